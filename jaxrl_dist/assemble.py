"""Assembles a system from its settings: environment, agent, replay, learner, layout and evaluation on a mesh."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxrl_dist import config, evaluation, learner, networks, replay, types
from jaxrl_dist.agents import base as agents
from jaxrl_dist.envs import base as envs
from jaxrl_dist.parallel import mesh as meshes

# Rows of a minibatch on each core from which two cores beat one. CartPole gained 1.3× at this size, MinAtar nothing at
# 512, and CartPole lost half at 64; a row of simulated bodies takes ten times as long, and ant gained 1.6× at 160.
_ROWS_PER_CORE = 1024
_ROWS_PER_CORE_PHYSICS = 64


class Assembly(NamedTuple):
    """The parts of one run, ready to be driven.

    Attributes:
        settings: every value with its origin.
        environment: on the device.
        agent: pure functions.
        layout: programs of the layout.
        evaluate: (params [S, ...], keys [S], index) -> returns f64 [S, episodes].
    """

    settings: config.Resolved
    environment: envs.Environment
    agent: agents.Agent
    layout: Any
    evaluate: Any


def resolve(flags: Mapping[str, Any]) -> tuple[config.Resolved, envs.Environment]:
    """Resolves settings for the task family of the environment that the flags name, and makes that environment.

    Raises:
        UsageError: a value that does not fit.
    """
    checked = config.resolve(flags)
    environment = envs.make(checked["env"], checked.env_params)
    if isinstance(environment, envs.HostTask):
        raise config.UsageError(f"--env={checked['env']} runs on the CPU only: no layout here serves it yet")
    return config.resolve(flags, environment.spec.family), environment


def assemble(
    settings: config.Resolved, environment: envs.Environment, devices: Sequence[jax.Device], episodes: int = 0
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
    mesh = meshes.make(devices, settings["num_seeds"])
    num_devices, num_envs = mesh.shape["devices"], settings["env.num_envs"]
    _check_divides("--env.num_envs", num_envs, num_devices)
    agent = make_agent(settings, environment.spec)
    layout_module = importlib.import_module(f"jaxrl_dist.parallel.{settings['layout']}")
    layout_config = settings.group("layout", layout_module.Config)
    learner_config = settings.group("learner", learner.Config)
    layout = layout_module.make(
        layout_config,
        agent,
        _make_replay(settings, agent, learner_config, num_devices),
        learner.make(learner_config, agent, meshes.AXIS),
        environment,
        num_envs,
        mesh,
    )
    evaluate = evaluation.make(
        agent, environment, episodes or settings["evaluation.episodes"], settings["evaluation.max_steps"], mesh
    )
    return Assembly(settings, environment, agent, layout, evaluate)


def make_agent(settings: config.Resolved, spec: types.EnvironmentSpec) -> agents.Agent:
    """Builds the agent of the settings' system for an environment."""
    module = importlib.import_module(f"jaxrl_dist.agents.{config.find_system(settings['system']).agent}")
    return module.make(settings.group("agent", module.Config), spec, settings.group("network", networks.Config))


def choose_devices(settings: config.Resolved, devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Returns the devices to train on, of those there are.

    All accelerators, or, of virtual devices of a CPU, as many as the work per update can keep busy: seeds never
    communicate and always gain; one seed gains only where a minibatch is long enough to pay for the reductions.

    Raises:
        UsageError: more devices asked for than there are.
    """
    asked = settings["layout.num_devices"]
    if asked > len(devices):
        raise config.UsageError(f"--layout.num_devices={asked}: there are {len(devices)}; valid: 0 to {len(devices)}")
    if asked or devices[0].platform != "cpu":
        return list(devices[: asked or None])
    counts = range(len(devices), 1, -1)
    count = next((n for n in counts if settings["num_seeds"] % n == 0 or _gains(settings, n)), 1)
    return list(devices[:count])


def _gains(settings: config.Resolved, num_devices: int) -> bool:
    """Whether one seed divides over so many virtual devices of a CPU, and is faster for it."""
    num_envs, minibatches = settings["env.num_envs"], settings["learner.minibatches"]
    rows = num_envs * settings["layout.unroll_length"]
    enough = _ROWS_PER_CORE_PHYSICS if settings.family == "physics" else _ROWS_PER_CORE
    divides = num_envs % (num_devices * minibatches if settings["network.core"] == "lstm" else num_devices) == 0
    return (
        settings["num_seeds"] == 1
        and config.find_system(settings["system"]).replay == "latest"
        and divides
        and rows % (num_devices * minibatches) == 0
        and rows // (num_devices * minibatches) >= enough
    )


def _check_divides(flag: str, value: int, num_devices: int) -> None:
    if value % num_devices:
        below = max(value // num_devices, 1) * num_devices
        raise config.UsageError(
            f"{flag}={value} is not divided by {num_devices} devices; nearest valid: {below} or {below + num_devices}"
        )


def _make_replay(
    settings: config.Resolved, agent: agents.Agent, learner_config: learner.Config, num_devices: int
) -> replay.Replay:
    num_envs, unroll_length = settings["env.num_envs"], settings["layout.unroll_length"]
    if config.find_system(settings["system"]).replay == "latest":
        items = num_envs if agent.keeps_sequences else num_envs * unroll_length
        learner.check_batch(learner_config, items, num_devices)
        return replay.latest()
    if learner_config.epochs * learner_config.minibatches > 1:
        raise config.UsageError(
            f"--learner.epochs={learner_config.epochs} --learner.minibatches={learner_config.minibatches}: "
            f"{settings['system']} samples a replay; valid: 1 and 1 (raise --replay.samples_per_insert instead)"
        )
    return replay.uniform(
        settings.group("replay", replay.UniformConfig),
        num_columns=num_envs,
        num_devices=num_devices,
        unroll_length=unroll_length,
        context=agent.context,
        taught=agent.taught,
        lookahead=agent.lookahead,
        init_carry=agent.init_carry,
    )
