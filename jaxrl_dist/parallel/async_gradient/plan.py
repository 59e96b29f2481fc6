"""Checks which settings of asynchronous gradients fit together, and says by them who plays, who learns, and where."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_dist import envs, parallel, types
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import placement
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.async_gradient import schedules
from jaxrl_dist.parallel.async_gradient.programs import Held, Kept, Programs, Turn, Work
from jaxrl_dist.types import Array, ArrayTree


class Plan:
    """The members of a run: P players, and after them the learners that do not play.

    Attributes:
        parts: the parts of the layout.
        players: P.
        members: number of all members.
        width: E, environments of a player.
        columns: B, columns of its rows, one for each agent of these.
        num_rings: number of shared replays; 0 where each worker has its own.
        devices: device of each member.
        rows: an unroll [T + 1, B] of `jax.ShapeDtypeStruct`.
        programs: programs of the members.
    """

    def __init__(self, parts: parallel.LayoutParts) -> None:
        """Makes the plan of a layout.

        Raises:
            UsageError: settings that do not fit together.
        """
        config, platform = parts.config, parts.mesh.devices.flat[0].platform
        self.parts, self.players = parts, config.num_actors or config.num_workers
        self.members = config.num_workers + config.num_actors
        is_shared = bool(config.num_actors) or config.replay == "global"
        self.num_rings = (1 if config.replay == "global" else self.players) if is_shared else 0
        _check(self)
        self.width, self.columns = parts.num_envs // self.players, parts.num_columns // self.players
        available, named = placement.here(parts.devices, platform), config.worker_devices
        devices = placement.parse("layout.worker_devices", named, available) if named else available
        self.devices = tuple(devices[i % len(devices)] for i in range(self.members))
        self.rows = unrolls.rows_struct(parts.agent, parts.environment.spec, config.unroll_length, self.columns)
        self.programs = Programs(parts)

    def plays(self, index: int) -> bool:
        """Says whether a member has environments."""
        return index < self.players

    def learns(self, index: int) -> bool:
        """Says whether a member takes gradients."""
        return bool(index >= self.parts.config.num_actors)

    def role(self, index: int) -> str:
        """Says in words what a member does."""
        if not self.plays(index):
            return f"learner {index - self.players}"
        return f"{'worker' if self.learns(index) else 'actor'} {index} ({self.width} environments)"

    def env_ids(self, index: int) -> np.ndarray:
        """Returns i32 [E], the global indices of a player's environments."""
        return np.arange(index * self.width, (index + 1) * self.width, dtype=np.int32)

    def replay_devices(self) -> Sequence[jax.Device]:
        """Returns the device of each replay: its player's, or the server's for the only one that all share."""
        return [self.parts.mesh.devices.flat[0]] if self.num_rings == 1 else self.devices[: self.players]

    def init_learner(self, keys: Array) -> learners.LearnerState:
        """Returns the first state of the learner, leaves [...], of keys [1]."""
        return self.parts.learner.init(self.parts.agent.init(run_keys.seed_keys(keys[0]).params))

    def init_actors(self, keys: Array, env_ids: Any) -> unrolls.ActorState:
        """Returns the first state of a player's environments, of keys [1]; on the host a LAST timestep of zeros."""
        carry, environment = self.parts.agent.init_carry(self.columns), self.parts.environment
        if not isinstance(environment, envs.Environment):
            return unrolls.ActorState((), unrolls.zero_timestep(environment.spec, self.columns), carry)
        state, timestep = envs.columns(environment).reset(run_keys.seed_keys(keys[0]).environment, env_ids)
        return unrolls.ActorState(state, timestep, carry)

    def init_replay(self) -> ArrayTree:
        """Returns an empty replay, a worker's own or a shared one."""
        carry = jax.eval_shape(lambda: self.parts.agent.init_carry(self.columns))
        return self.parts.replay.init(unrolls.step_struct(self.rows.steps), carry)

    @functools.cached_property
    def learner_struct(self) -> learners.LearnerState:
        """The learner's state, leaves [...], of `jax.ShapeDtypeStruct`."""
        return jax.eval_shape(lambda: self.init_learner(jax.random.key(0)[None]))

    @functools.cached_property
    def learning(self) -> tuple[Any, tuple[Any, ...]]:
        """The program that takes gradients, which it returns first, and its arguments' shapes."""
        state, replay, ready = self.learner_struct, jax.eval_shape(self.init_replay), np.asarray(True)
        key, progress = jax.eval_shape(lambda: jax.random.key(0)), np.float32(0)
        turn = Turn(Held(state.params, state.target_network, state.updates, progress), key, np.int32(0))
        if self.num_rings:
            return self.programs.learn, (turn, jax.eval_shape(self.parts.replay.sample, replay, key, progress))
        if self.programs.on_host is not None:
            return self.programs.learn_own, (turn, ready, self.rows, replay)
        env_ids = self.env_ids(0)
        actors = jax.eval_shape(lambda: self.init_actors(jax.random.key(0)[None], env_ids))
        return self.programs.play_and_learn, (turn, ready, env_ids, actors, replay)

    @functools.cached_property
    def work_structs(self) -> list[Work]:
        """The work of each member, of `jax.ShapeDtypeStruct`."""
        program, arguments = self.learning
        gradient, priorities, *_ = jax.eval_shape(program, *arguments)
        given, episodes = jax.ShapeDtypeStruct((), np.int32), jax.eval_shape(unrolls.no_episodes)
        if not self.num_rings:
            return [Work(gradient, given, episodes)] * self.members
        played = {"episodes": episodes, "unroll": self.rows}
        learned = {"gradient": gradient, "given": given, "indices": arguments[-1].indices, "priorities": priorities}
        each = range(self.members)
        return [Work(**(played if self.plays(i) else {}), **(learned if self.learns(i) else {})) for i in each]

    @property
    def gradient_struct(self) -> types.Gradient:
        """The gradient that the server gets, of `jax.ShapeDtypeStruct`."""
        # The last member always learns.
        gradient = self.work_structs[-1].gradient
        assert gradient is not None
        return gradient

    def kept_struct(self) -> Kept:
        """Returns the state of a worker that exchanges by the episode, of `jax.ShapeDtypeStruct`."""
        (turn, *_), pushed = self.learning[1], jax.ShapeDtypeStruct((), bool)
        return Kept(turn.held, self.gradient_struct, pushed)


def replay_shards(settings: Any, num_devices: int) -> int:
    """Returns the number of replays: one for each player, or one for all.

    Raises:
        UsageError: players that do not divide the environments.
    """
    del num_devices
    flag = "num_actors" if settings["layout.num_actors"] else "num_workers"
    count, num_envs = settings[f"layout.{flag}"], settings["env.num_envs"]
    if num_envs % count:
        valid = [n for n in range(1, num_envs + 1) if num_envs % n == 0]
        nearest = ", ".join(map(str, sorted(valid, key=lambda n: abs(n - count))[:3]))
        raise UsageError(
            given(f"layout.{flag}", count),
            " does not divide ",
            given("env.num_envs", num_envs),
            f"; nearest valid: {nearest}",
        )
    return 1 if settings["layout.replay"] == "global" else int(count)


def _check(plan: Plan) -> None:
    """Raises a UsageError unless the settings fit together."""
    config, replay, count = plan.parts.config, plan.parts.replay, plan.parts.config.num_workers
    if config.gradients_per_apply > count:
        raise UsageError(
            given("layout.gradients_per_apply", config.gradients_per_apply),
            f": there are {count} workers, and each sends its next gradient when its last is applied; nearest valid: "
            f"{count}",
        )
    if replay.host:
        raise UsageError(
            given("replay.storage", "host"), ": workers keep their replays on their devices; valid: device"
        )
    if plan.num_rings and not replay.min_rows:
        asked = given("layout.replay", config.replay)
        if config.num_actors:
            asked = given("layout.num_actors", config.num_actors)
        valid = "0" if config.num_actors else "local"
        raise UsageError(asked, f": this agent learns from unrolls of its own, not from a replay; valid: {valid}")
    if config.exchange == "episode" and config.num_actors:
        raise UsageError(
            given("layout.exchange", "episode"),
            ": with ",
            given("layout.num_actors", config.num_actors),
            " learners play no episodes; valid: unroll",
        )
    _check_ratio(plan)
    told = ": nothing reads it; leave it out, or give "
    if config.schedule == "virtual":
        schedules.parse_durations(config.durations, plan.members)
    else:
        parallel.check_unread(config, ("durations", "jitter"), told, given("layout.schedule", "virtual"))
    if not config.kept_versions:
        parallel.check_unread(config, ("kept_every",), told, given("layout.kept_versions", 2))
    if jax.tree.leaves(jax.eval_shape(plan.parts.agent.init, jax.random.key(0)).statistics):
        raise UsageError(
            "async_gradient keeps no running statistics; valid: ",
            given("agent.normalise_observations", "false"),
            " ",
            given("agent.scale_rewards", "false"),
            ", and where there is one ",
            given("agent.kl_penalty", 0),
        )


def _check_ratio(plan: Plan) -> None:
    """Raises a UsageError unless members that both play and learn take one gradient per unroll."""
    numerator, denominator = plan.parts.replay.updates
    if plan.num_rings:
        denominator *= plan.players // plan.num_rings
    if not plan.parts.config.num_actors and numerator != denominator:
        wanted = denominator / numerator
        raise UsageError(
            f"async_gradient takes one gradient per unroll, these settings {1 / wanted:g}; multiply ",
            given("replay.samples_per_insert"),
            f" by {wanted:g}, or give learners apart by ",
            given("layout.num_actors"),
        )
