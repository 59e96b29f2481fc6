"""Assembles a system from its settings: environment, agent, replay, learner, layout and evaluation on a mesh."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import agents, envs, errors, networks, parallel, replay, systems, types
from jaxrl_dist.envs.suites import gymnasium
from jaxrl_dist.learning import learner, members, step
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.settings import resolve as resolves
from jaxrl_dist.settings import sweep
from jaxrl_dist.settings.resolve import Resolved
from jaxrl_dist.systems import catalogue, families, fitting
from jaxrl_dist.training import agent_shapes, arguments, evaluation, population


class Assembly(NamedTuple):
    """The parts of one run, ready to be driven.

    Attributes:
        settings: every value with its origin.
        environment: on the device, or of a suite on the CPU.
        agent: pure functions.
        layout: programs of the layout.
        evaluate: the evaluation, see `evaluation.make`.
        exploit: what a population does after it, see `population.make`; None without one.
    """

    settings: Resolved
    environment: envs.Environment | envs.HostTask
    agent: agents.Agent
    layout: parallel.Layout
    evaluate: Any
    exploit: population.Exploit | None = None

    @property
    def protocol(self) -> str:
        """Names the rules of the environment on which scores depend, such as episode length; "" without any."""
        return self.environment.protocol if isinstance(self.environment, envs.HostTask) else ""

    def init(self, keys: jax.Array) -> Any:
        """Returns the layout's first state, of typed keys [S], with the values of a sweep."""
        state = self.layout.init(keys)
        if not self.settings["sweep"]:
            return state
        params = members.set_values(state.learner.params, sweep.combinations(self.settings))
        return self.layout.start_from(state, state.learner._replace(params=params))


def resolve(
    flags: Mapping[str, Any], measured: Mapping[str, tuple[Any, str]] | None = None
) -> tuple[Resolved, envs.Environment | envs.HostTask]:
    """Resolves settings for the task family of the environment that the flags name, and makes that environment.

    Args:
        flags: settings by flag name.
        measured: choices of `--layout=auto`, by flag name, each with its origin.

    Raises:
        UsageError: a value does not fit, or the environment names a family that there is not.
    """
    checked = catalogue.resolved(flags, measured=measured or {})
    sweep.combinations(checked)
    environment = envs.make(checked["env"], checked.env_params)
    family = environment.spec.family
    if family not in families.FAMILIES:
        known = ", ".join(families.FAMILIES) + errors.nearest(family, families.FAMILIES)
        raise errors.UsageError(
            errors.given("env", checked["env"]), f": its spec has family={family!r}; valid: {known}"
        )
    found = catalogue.resolved(flags, family, measured=measured or {})
    return fitting.fit_to_task(found, environment.spec), environment


def assemble(
    settings: Resolved,
    environment: envs.Environment | envs.HostTask,
    devices: Sequence[jax.Device],
    episodes: int = 0,
    available: Sequence[jax.Device] = (),
) -> Assembly:
    """Builds every part.

    Args:
        settings: resolved settings.
        environment: the environment that they name.
        devices: devices to learn on, all of them.
        episodes: episodes per evaluation and seed; 0 takes the setting.
        available: those from which these were chosen, on which actors and workers may be; empty for all that there are.

    Raises:
        UsageError: devices do not divide a size, or the agent cannot take the environment's actions.
    """
    mesh = meshes.make(devices, sweep.num_members(settings))
    errors.check_divided("env.num_envs", settings["env.num_envs"], mesh.shape["devices"])
    builder = Builder(settings, environment, mesh, available)
    if settings["sweep"]:
        agent, learns = _sweep(builder)
    else:
        agent, learns = builder.agent_and_learner({})
    layout = builder.layout(agent, learns)
    episodes, max_steps = episodes or settings["evaluation.episodes"], settings["evaluation.max_steps"]
    if isinstance(environment, envs.HostTask):
        evaluate: Any = evaluation.make_on_host(agent, environment, episodes, max_steps, settings["layout.timeout_s"])
    else:
        scored = environment.evaluation or environment
        evaluate = evaluation.make(agent, scored, episodes, max_steps, mesh)
    exploit = population.make(settings, mesh) if settings["population"] else None
    return Assembly(settings, environment, agent, layout, evaluate, exploit)


class Parts(NamedTuple):
    """The parts of a system for a loop of one's own, on one device and for one seed.

    Attributes:
        settings: every value with its origin; `settings["agent.discount"]` is a value.
        environment: on the device, or of a suite on the CPU.
        agent: pure functions.
        replay: one shard that holds all environments.
        learner: learner of the agent.
        step: from `learning.step.make`: adds unrolls to the replay, and makes the updates that are due: (state, replay
            state, [(unroll, columns)], credit, ready, key, progress) -> (state, replay state, credit, updates, sums of
            metrics).
    """

    settings: Resolved
    environment: envs.Environment | envs.HostTask
    agent: agents.Agent
    replay: replay.Replay
    learner: learner.Learner
    step: Callable[..., Any]

    def __repr__(self) -> str:
        return f"Parts({self.settings['system']} {self.settings['env']}: {', '.join(self._fields)})"


def make(
    system: str | systems.System | None = None,
    env: Any = None,
    *,
    settings: Mapping[str, Any] | None = None,
    **run_settings: Any,
) -> Parts:
    """Makes the parts of a system with the settings that it has for a task.

    Args:
        system: name of a system, `module:SYSTEM`, or a `System` of one's own; by default that of the preset.
        env: environment as suite:name, by default that of the preset; or one of Gymnasium's as `train` takes it.
        settings: by flag name, such as `{"agent.discount": 0.9}`.
        **run_settings: settings without a dot in their name, such as `steps`, as `train` takes them.

    Returns:
        `Parts`.

    Raises:
        UsageError: arguments or settings are not valid, or do not go together.

    Example:
        >>> import jaxrl_dist
        >>> parts = jaxrl_dist.make("ppo", "toy:walk", settings={"agent.discount": 0.9})
        >>> parts.settings["agent.discount"], parts.environment.spec.action.num_values, parts.replay.updates
        (0.9, 3, (1, 1))
    """
    resolved, environment = resolve(by_flag(system, env, settings, run_settings))
    agent, config = make_agent(resolved, *facts(environment)), resolved.group("learner", learner.Config)
    rows = make_replay(resolved, agent, config, num_agents=environment.spec.num_agents)
    learns = learner.make(config, agent, types.LOCAL)
    return Parts(resolved, environment, agent, rows, learns, step.make(learns, rows))


def by_flag(
    system: str | systems.System | None, env: Any, settings: Mapping[str, Any] | None, run_settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns all settings of a call by flag name.

    Raises:
        UsageError: one has the wrong type, or is given twice.
    """
    arguments.check_task(system, env, settings, run_settings)
    named = dict(run_settings) if system is None else {"system": system, **run_settings}
    params = dict[str, Any]()
    if env is not None:
        made = gymnasium.Named(env, {}) if isinstance(env, str) else gymnasium.named(env)
        named["env"], params = made.name, {f"{resolves.PARAMS}{name}": value for name, value in made.params.items()}
    for name, value in (settings or {}).items():
        if name in named:
            raise errors.UsageError(f"{name}={named[name]} and {name}={value} among settings: give one of them")
        named[name] = value
    return params | named


class Builder(NamedTuple):
    """Builds agent, learner and layout of a run, with its own settings or with other values for some of them."""

    settings: Resolved
    environment: envs.Environment | envs.HostTask
    mesh: Mesh
    available: Sequence[jax.Device] = ()

    def agent_and_learner(self, values: Mapping[str, Any]) -> tuple[agents.Agent, learner.Learner]:
        """Returns agent and learner; `values`, numbers or arrays [], replace those of the settings."""
        chosen = self.settings.replaced(values)
        agent = make_agent(chosen, *facts(self.environment))
        return agent, learner.make(chosen.group("learner", learner.Config), agent, _layout(self.settings).axis)

    def layout(self, agent: agents.Agent, learns: learner.Learner) -> parallel.Layout:
        """Returns the layout of an agent and its learner."""
        chosen, num_envs = _layout(self.settings), self.settings["env.num_envs"]
        shards = chosen.replay_shards(self.settings, self.mesh.shape["devices"])
        rules = self.settings.group("learner", learner.Config)
        apart = chosen.axis is types.LOCAL
        num_agents = self.environment.spec.num_agents
        rows = make_replay(self.settings, agent, rules, shards, chosen.axis, apart=apart, num_agents=num_agents)
        config: Any = self.settings.group("layout", chosen.config)
        parts = parallel.LayoutParts(
            *(config, agent, rows, learns, self.environment, num_envs, self.mesh),
            rebuild=functools.partial(acting_parts, self.settings),
            devices=self.available,
        )
        return chosen.make(parts)

    def trace(self, values: Mapping[str, Any]) -> None:
        """Traces the training program with values, as `agent_and_learner` takes them."""
        keys = jax.vmap(jax.random.key)(np.zeros(sweep.num_members(self.settings), np.uint32))
        layout = self.layout(*self.agent_and_learner(values))
        layout.program.eval_shape(*layout.run_arguments(layout.template(keys), 0, 1, 1))

    def can_vary(self, name: str) -> bool:
        """Says whether a setting that is marked to be swept can have several values here."""
        return members.can_vary(name, self.agent_and_learner, self.trace)


def _sweep(builder: Builder) -> tuple[agents.Agent, learner.Learner]:
    """Builds agent and learner of a sweep.

    Raises:
        UsageError: a combination is not valid, or a swept setting decides what is compiled, so one program cannot have
            several values of it.
    """
    combinations = sweep.combinations(builder.settings)
    for values in combinations:
        # In the agent of all combinations they are arrays, of which no check says anything.
        builder.agent_and_learner(values)
    for name in combinations[0]:
        if not builder.can_vary(name):
            marked = [one for one, field in builder.settings.fields.items() if field.sweep]
            raise sweep.refused(builder.settings["sweep"], name, [one for one in marked if builder.can_vary(one)])
    agent, learns = members.over(list(combinations[0]), builder.agent_and_learner)
    return agent, learns


def facts(environment: envs.Environment | envs.HostTask) -> tuple[types.EnvironmentSpec, Any]:
    """Returns what `make_agent` takes of an environment: its spec, and its step, None if it is not on the device."""
    return environment.spec, environment.step if isinstance(environment, envs.Environment) else None


def make_agent(settings: Resolved, spec: types.EnvironmentSpec, step: Any = None) -> agents.Agent:
    """Builds the agent of the settings' system for an environment; its functions refuse results of wrong shapes.

    Args:
        settings: resolved settings.
        spec: of the environment.
        step: `envs.Environment.step`, for a system with a model; None if the environment is not on the device.

    Raises:
        UsageError: agent or network do not fit the environment; the message names systems that take its actions.
    """
    system = settings.row
    config: Any = settings.group("agent", system.config)
    network = settings.group("network", networks.Config)
    if spec.players > 1 and not system.self_play:
        able = ", ".join(name for name, row in systems.SYSTEMS.items() if row.self_play)
        raise errors.UsageError(
            errors.given("env", spec.name),
            f": two players take turns in it, of which {system.name} knows nothing; valid: ",
            errors.given("system", able),
            ", or one opponent in the environment (",
            errors.given("env.params.opponent", "random"),
            ")",
        )
    if system.model and step is None:
        raise errors.UsageError(
            errors.given("env", spec.name),
            f": {system.name} steps the environment in thought, which needs it on the device; valid: a suite of those, "
            "such as ",
            errors.given("env", "gymnax:CartPole-v1"),
            ", or ",
            errors.given("system", "muzero"),
        )
    try:
        agent = system.agent(config, spec, network, *((step,) if system.model else ()))
    except errors.UnfitError as error:
        raise errors.UsageError(
            *error.args, "; valid: ", errors.given("system", catalogue.systems_for(error.actions))
        ) from error
    if agent.staleness not in agents.STALENESS:
        raise errors.UsageError(
            f"the agent of {system.name} says staleness={agent.staleness!r}; valid: {', '.join(agents.STALENESS)}"
        )
    return agent_shapes.checked(agent, settings["system"], spec.action.struct)


def acting_parts(settings: Resolved) -> tuple[agents.Agent, envs.Environment | envs.HostTask]:
    """Makes the agent and the environment of a run once more, in whatever process.

    Raises:
        UsageError: the environment cannot be made here.
    """
    environment = envs.make(settings["env"], settings.env_params)
    return make_agent(settings, *facts(environment)), environment


def choose_devices(settings: Resolved, devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Lets the layout choose from the given devices those to learn on.

    Raises:
        UsageError: the settings ask for more devices than there are, or for others.
    """
    return _layout(settings).choose_devices(settings, devices)


def _layout(settings: Resolved) -> parallel.LayoutSpec:
    return settings.row.layout(settings["layout"])


def make_replay(
    settings: Resolved,
    agent: agents.Agent,
    learner_config: learner.Config,
    num_shards: int = 1,
    axis: types.Axis = types.LOCAL,
    *,
    apart: bool = False,
    num_agents: int = 1,
) -> replay.Replay:
    """Builds one shard of the replay of the settings' system.

    Args:
        settings: resolved settings.
        agent: the agent, which says how long its windows are.
        learner_config: settings of the learner.
        num_shards: number of shards, which divide environments and capacity.
        axis: reduces over the shards, which draw a batch together.
        apart: whether each shard draws a batch of its own, of which one gradient is taken.
        num_agents: agents in each environment, each of which is a column.

    Raises:
        UsageError: sizes do not fit together.
    """
    num_columns, unroll_length = settings["env.num_envs"] * num_agents, settings["layout.unroll_length"]
    system = settings.row
    epochs, minibatches = learner_config.epochs, learner_config.minibatches
    once = errors.given("learner.epochs", epochs), " ", errors.given("learner.minibatches", minibatches)
    more_than_once = epochs * minibatches > 1
    if settings.settings.get("agent.actor_errors") and "replay.priority_exponent" not in settings.settings:
        raise errors.UsageError(
            errors.given("agent.actor_errors", "true"),
            f": the replay of {system.name} has no priorities, nothing reads them; valid: ",
            errors.given("agent.actor_errors", "false"),
        )
    if not system.replay.keeps_rows:
        if apart and more_than_once:
            raise errors.UsageError(*once, f": {settings['layout']} takes one gradient per unroll; valid: 1 and 1")
        if agent.staleness == "none" and more_than_once:
            raise errors.UsageError(
                *once,
                f": {system.name} learns once from each row, by the policy that acted; valid: 1 and 1 (or ",
                errors.given("system", "ppo"),
                ")",
            )
        items = num_columns // agent.columns_per_item * (1 if agent.keeps_sequences else unroll_length)
        learner.check_batch(learner_config, items, num_shards)
    elif more_than_once:
        raise errors.UsageError(
            *once,
            f": {settings['system']} samples a replay; valid: 1 and 1 (raise ",
            errors.given("replay.samples_per_insert"),
            " instead)",
        )
    if system.replay.keeps_rows and agent.keeps_sequences and 0 < agent.taught < unroll_length:
        raise errors.UsageError(
            errors.given("layout.unroll_length", unroll_length),
            f": windows begin where unrolls do, and teach {agent.taught} rows; the others would never be learned from; "
            f"valid: 1 to {agent.taught}",
        )
    windows = replay.Windows(
        agent.context,
        agent.taught,
        agent.lookahead,
        None if agent.keeps_sequences else agent.init_carry,
        agent.first_error,
    )
    config: Any = settings.group("replay", system.replay.config)
    if apart and isinstance(config, replay.UniformConfig):
        # Each shard draws a whole batch of its own.
        config = dataclasses.replace(config, batch_size=config.batch_size * num_shards)
    sizes: Any = {"num_columns": num_columns, "num_devices": num_shards, "unroll_length": unroll_length, "axis": axis}
    return system.replay.make(config, windows, **sizes)


def seed_keys(settings: resolves.Resolved) -> jax.Array:
    """Returns the typed keys [S] of a run's seeds; seed i of several is the run of `seed + i` alone.

    With a sweep, all seeds of the first combination come first, then those of the second, and so on.
    """
    seeds = settings["seed"] + np.arange(settings["num_seeds"], dtype=np.uint32)
    seeds = np.tile(seeds, len(sweep.combinations(settings)))
    return jax.vmap(jax.random.key)(seeds)
