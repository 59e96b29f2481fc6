"""Assembles a system from its settings: environment, agent, replay, learner, layout and evaluation on a mesh."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import config, evaluation, learner, mixed, networks, replay, resolution, ring, sweeps, swept, types
from jaxrl_dist.agents import base as agents
from jaxrl_dist.envs import base as envs
from jaxrl_dist.parallel import mesh as meshes


class Assembly(NamedTuple):
    """The parts of one run, ready to be driven.

    Attributes:
        settings: every value with its origin.
        environment: on the device, or of a suite on the CPU.
        agent: pure functions.
        layout: programs of the layout.
        evaluate: (params [S, ...], keys [S], index) -> returns f64 [S, episodes].
    """

    settings: resolution.Resolved
    environment: envs.Environment | envs.HostTask
    agent: agents.Agent
    layout: Any
    evaluate: Any

    @property
    def protocol(self) -> str:
        """What scores depend on beside the environment's name, "" where nothing does."""
        return self.environment.protocol if isinstance(self.environment, envs.HostTask) else ""


def resolve(
    flags: Mapping[str, Any], measured: Mapping[str, tuple[Any, str]] | None = None
) -> tuple[resolution.Resolved, envs.Environment | envs.HostTask]:
    """Resolves settings for the task family of the environment that the flags name, and makes that environment.

    Args:
        flags: settings by flag name.
        measured: what `--layout=auto` has chosen, by flag name with its origin.

    Raises:
        UsageError: a value that does not fit.
    """
    checked = resolution.resolve(flags, measured=measured or {})
    sweeps.combinations(checked)
    environment = envs.make(checked["env"], checked.env_params)
    return resolution.resolve(flags, environment.spec.family, measured=measured or {}), environment


def assemble(
    settings: resolution.Resolved,
    environment: envs.Environment | envs.HostTask,
    devices: Sequence[jax.Device],
    episodes: int = 0,
) -> Assembly:
    """Builds every part.

    Args:
        settings: resolved.
        environment: that the settings name.
        devices: to use, all of them.
        episodes: per evaluation and seed; 0 takes the setting.

    Raises:
        UsageError: sizes that devices do not divide, or an action space that the agent cannot serve.
    """
    mesh = meshes.make(devices, sweeps.num_members(settings))
    num_devices, num_envs = mesh.shape["devices"], settings["env.num_envs"]
    _check_divides("--env.num_envs", num_envs, num_devices)
    layout_module = _layout_module(settings)
    layout_config, axis = settings.group("layout", layout_module.Config), layout_module.AXIS
    shards = layout_module.replay_shards(settings, num_devices)

    def build(values: Mapping[str, Any]) -> tuple[agents.Agent, learner.Learner]:
        chosen = sweeps.replaced(settings, values)
        agent = make_agent(chosen, environment.spec)
        return agent, learner.make(chosen.group("learner", learner.Config), agent, axis)

    def lay_out(agent: agents.Agent, learns: learner.Learner) -> Any:
        rows = make_replay(settings, agent, settings.group("learner", learner.Config), shards, axis)
        return layout_module.make(layout_config, agent, rows, learns, environment, num_envs, mesh)

    if settings["sweep"]:
        agent, layout = _sweep(settings, build, lay_out)
    else:
        agent, learns = build({})
        layout = lay_out(agent, learns)
    episodes, max_steps = episodes or settings["evaluation.episodes"], settings["evaluation.max_steps"]
    if isinstance(environment, envs.HostTask):
        evaluate: Any = evaluation.make_on_host(agent, environment, episodes, max_steps, settings["layout.timeout_s"])
    else:
        evaluate = evaluation.make(agent, environment, episodes, max_steps, mesh)
    return Assembly(settings, environment, agent, layout, evaluate)


def _sweep(settings: resolution.Resolved, build: swept.Build, lay_out: Callable[..., Any]) -> tuple[agents.Agent, Any]:
    """Builds agent and layout of a sweep.

    Raises:
        UsageError: a setting of it is not one that the program computes with.
    """
    combinations = sweeps.combinations(settings)
    keys = jax.vmap(jax.random.key)(np.zeros(sweeps.num_members(settings), np.uint32))

    def trace(values: Mapping[str, Any]) -> None:
        layout = lay_out(*build(values))
        layout.program.eval_shape(*layout.run_arguments(layout.template(keys), 0, 1, 1))

    valid = swept.sweepable(sweeps.candidates(settings), settings, build, trace)
    for name in combinations[0]:
        if name not in valid:
            raise config.UsageError(
                f"--sweep: {name} decides what is compiled, or where a run begins; valid here: {', '.join(valid)} "
                "(scripts/study.py --search takes any)"
            )
    agent, learns = swept.over(list(combinations[0]), build)
    layout = lay_out(agent, learns)

    def init(keys: jax.Array) -> Any:
        state = layout.init(keys)
        params = swept.set_values(state.learner.params, combinations)
        return state._replace(learner=state.learner._replace(params=params))

    return agent, layout._replace(init=init)


def make_agent(settings: resolution.Resolved, spec: types.EnvironmentSpec) -> agents.Agent:
    """Builds the agent of the settings' system for an environment."""
    module = importlib.import_module(f"jaxrl_dist.agents.{config.find_system(settings['system']).agent}")
    return module.make(settings.group("agent", module.Config), spec, settings.group("network", networks.Config))


def choose_devices(settings: resolution.Resolved, devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Returns the devices to learn on, of those there are, as the layout chooses them.

    Raises:
        UsageError: more devices asked for than there are, or others.
    """
    return _layout_module(settings).choose_devices(settings, devices)


def _layout_module(settings: resolution.Resolved) -> Any:
    return importlib.import_module(f"jaxrl_dist.parallel.{settings['layout']}")


def _check_divides(flag: str, value: int, num_devices: int) -> None:
    if value % num_devices:
        below = max(value // num_devices, 1) * num_devices
        raise config.UsageError(
            f"{flag}={value} is not divided by {num_devices} devices; nearest valid: {below} or {below + num_devices}"
        )


def make_replay(
    settings: resolution.Resolved,
    agent: agents.Agent,
    learner_config: learner.Config,
    num_shards: int,
    axis: types.Axis,
) -> replay.Replay:
    """Builds one shard of the replay of the settings' system.

    Args:
        settings: resolved.
        agent: whose windows it cuts.
        learner_config: of the learner.
        num_shards: over which environments and capacity are divided.
        axis: reduces over the shards, which draw a batch together; `types.LOCAL` where each draws one of its own.

    Raises:
        UsageError: sizes that do not fit together.
    """
    num_envs, unroll_length = settings["env.num_envs"], settings["layout.unroll_length"]
    system = config.find_system(settings["system"])
    once = f"--learner.epochs={learner_config.epochs} --learner.minibatches={learner_config.minibatches}"
    more_than_once, is_apart = learner_config.epochs * learner_config.minibatches > 1, axis is types.LOCAL
    if system.replay == "latest":
        if is_apart and more_than_once:
            raise config.UsageError(f"{once}: {settings['layout']} takes one gradient per unroll; valid: 1 and 1")
        if agent.staleness == "none" and more_than_once:
            raise config.UsageError(
                f"{once}: after one update rows are not the policy's own, as {system.name} needs; valid: 1 and 1 (or "
                "--system=ppo)"
            )
        items = num_envs if agent.keeps_sequences else num_envs * unroll_length
        learner.check_batch(learner_config, items, num_shards)
        return replay.latest()
    if more_than_once:
        raise config.UsageError(
            f"{once}: {settings['system']} samples a replay; valid: 1 and 1 (raise --replay.samples_per_insert instead)"
        )
    sizes: Any = {"num_columns": num_envs, "num_devices": num_shards, "unroll_length": unroll_length, "axis": axis}
    if system.replay == "mixed":
        return mixed.make(settings.group("replay", replay.MixedConfig), **sizes)
    kind = replay.PrioritisedConfig if system.replay == "prioritised" else replay.UniformConfig
    windows = ring.Windows(
        agent.context,
        agent.taught,
        agent.lookahead,
        None if agent.keeps_sequences else agent.init_carry,
        agent.first_error,
    )
    replay_config = settings.group("replay", kind)
    if is_apart:
        replay_config = dataclasses.replace(replay_config, batch_size=replay_config.batch_size * num_shards)
    return ring.make(replay_config, windows, **sizes)
