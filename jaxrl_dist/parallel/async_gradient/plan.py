"""Checks which settings of asynchronous gradients fit together, and says by them who plays, who learns, and where."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import agents, envs, types
from jaxrl_dist import replay as replays
from jaxrl_dist.errors import UsageError
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import placement
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.async_gradient import programs as worker_programs
from jaxrl_dist.parallel.async_gradient import schedules, server, shared_replay
from jaxrl_dist.parallel.sebulba import tiers
from jaxrl_dist.types import Array


class Plan(NamedTuple):
    """Who does what in a run. Members are those that play, P of them, and after them learners that are apart.

    Attributes:
        config: settings of the layout.
        agent: acts and defines the loss.
        learner: built with `types.LOCAL`.
        environment: on the device, or of a suite on the CPU.
        mesh: of the server's devices.
        players: P.
        learners_from: the first member that takes gradients: 0, or P where learners are apart.
        members: of them all.
        width: environments of a player, B.
        num_rings: shared replays; 0 where each worker has its own.
        devices: of the members.
        rows: an unroll [T + 1, B] of `jax.ShapeDtypeStruct`.
        replay: a worker's own, or one ring.
        programs: of the members.
        rings: programs of a shared replay.
        judge: of the server.
    """

    config: Any
    agent: agents.Agent
    learner: learners.Learner
    environment: envs.Environment | envs.HostTask
    mesh: Mesh
    players: int
    learners_from: int
    members: int
    width: int
    num_rings: int
    devices: tuple[jax.Device, ...]
    rows: types.Unroll
    replay: replays.Replay
    programs: worker_programs.Programs
    rings: shared_replay.Programs
    judge: Any

    def plays(self, index: int) -> bool:
        """Says whether a member has environments."""
        return index < self.players

    def learns(self, index: int) -> bool:
        """Says whether a member takes gradients."""
        return index >= self.learners_from

    def env_ids(self, index: int) -> np.ndarray:
        """Returns i32 [B], the global indices of a player's environments."""
        return np.arange(index * self.width, (index + 1) * self.width, dtype=np.int32)

    def ring_device(self, ring: int) -> jax.Device:
        """Returns where a ring is: with its actor, or the only one with the server."""
        return self.devices[ring] if self.num_rings > 1 else self.mesh.devices.flat[0]

    def rate(self) -> shared_replay.Rate:
        """Returns how fast shared replays are learned from."""
        ahead = self.members - self.players
        return shared_replay.rate(self.replay, self.config.unroll_length, self.num_rings, self.players, ahead)

    def learner_struct(self) -> learners.LearnerState:
        """Returns the learner's state, leaves [...], of `jax.ShapeDtypeStruct`."""
        return jax.eval_shape(lambda: self.learner.init(self.agent.init(jax.random.key(0))))

    def init_actors(self, key: Array, env_ids: Array) -> unrolls.ActorState:
        """Returns the first state of a player's environments."""
        zero = tiers.zero_timestep(self.environment.spec, self.width)
        return worker_programs.init_actors(self.agent, self.environment, zero, key, env_ids)

    def actors_struct(self) -> unrolls.ActorState:
        """Returns the state of a player's environments, of `jax.ShapeDtypeStruct`."""
        return jax.eval_shape(self.init_actors, jax.random.key(0), self.env_ids(0))

    def init_ring(self) -> Any:
        """Returns an empty replay, a worker's own or a shared one."""
        return worker_programs.init_replay(self.agent, self.replay, self.rows)

    def program(self) -> tuple[Any, tuple[Any, ...]]:
        """Returns the program that takes gradients, and its arguments of `jax.ShapeDtypeStruct`."""
        state = self.learner_struct()
        held = worker_programs.Held(state.params, state.target_network, state.updates, np.float32(0))
        common = held, jax.eval_shape(lambda: jax.random.key(0)), np.int32(0)
        ring = jax.eval_shape(self.init_ring)
        if self.num_rings:
            return self.programs.teach, (*common, shared_replay.sample_struct(self.rings, ring))
        if self.programs.on_host is None:
            more = np.asarray(True), self.env_ids(0), self.actors_struct(), ring
            return self.programs.on_device, (*common, *more)
        return self.programs.learn, (*common, np.asarray(True), self.rows, ring)

    def gradient_struct(self) -> learners.Gradient:
        """Returns what the server gets, of `jax.ShapeDtypeStruct`."""
        program, arguments = self.program()
        given = jax.eval_shape(program, *arguments)
        return next(part for part in given if isinstance(part, learners.Gradient))

    def nothing(self, index: int) -> worker_programs.Work:
        """Returns what a member sends that did neither play nor learn: `Work` of zeros in JAX."""
        none: Any = ()
        gradient = unroll = indices = priorities = ring = none
        episodes = jax.tree.map(jax.numpy.asarray, unrolls.no_episodes())
        if self.learns(index):
            gradient = worker_programs.zeros_like(self.gradient_struct())
        if self.num_rings and self.plays(index):
            unroll = worker_programs.zeros_like(self.rows)
        if self.num_rings and self.learns(index):
            program, arguments = self.program()
            indices = worker_programs.zeros_like(arguments[-1].indices)
            priorities = worker_programs.zeros_like(jax.eval_shape(program, *arguments)[1])
            ring = jax.numpy.full((), -1, np.int32)
        return worker_programs.Work(
            worker_programs.Sent(gradient, episodes, jax.numpy.int32(0)), unroll, indices, priorities, ring
        )

    def first_kept(self) -> Any:
        """Returns what a worker keeps between pushes before its first unroll, `()` where it keeps nothing."""
        if self.config.exchange == "unroll":
            return ()
        state = worker_programs.zeros_like(self.learner_struct())
        held = worker_programs.Held(state.params, state.target_network, state.updates, jax.numpy.float32(0))
        return worker_programs.Kept(held, worker_programs.zeros_like(self.gradient_struct()), jax.numpy.ones((), bool))


def num_players(settings: Any) -> int:
    """Returns how many members play, of the settings by flag name."""
    return settings["layout.num_actors"] or settings["layout.num_workers"]


def replay_shards(settings: Any) -> int:
    """Returns the rings that environments and capacity are divided over.

    Raises:
        UsageError: players that do not divide the environments.
    """
    flag = "num_actors" if settings["layout.num_actors"] else "num_workers"
    count, num_envs = num_players(settings), settings["env.num_envs"]
    if num_envs % count:
        valid = [n for n in range(1, num_envs + 1) if num_envs % n == 0]
        nearest = ", ".join(map(str, sorted(valid, key=lambda n: abs(n - count))[:3]))
        raise UsageError(f"--layout.{flag}={count} does not divide --env.num_envs={num_envs}; nearest valid: {nearest}")
    return 1 if settings["layout.replay"] == "global" else count


def make(
    config: Any,
    agent: agents.Agent,
    replay: replays.Replay,
    learner: learners.Learner,
    environment: envs.Environment | envs.HostTask,
    num_envs: int,
    mesh: Mesh,
) -> Plan:
    """Makes the plan; arguments as those of `layout.make`.

    Raises:
        UsageError: settings that do not fit together.
    """
    players = config.num_actors or config.num_workers
    members = config.num_workers + config.num_actors
    shares = bool(config.num_actors) or config.replay == "global"
    num_rings = (1 if config.replay == "global" else players) if shares else 0
    _check(config, agent, replay, players, members, num_rings)
    width = num_envs // players
    available, named = jax.local_devices(backend=mesh.devices.flat[0].platform), config.worker_devices
    devices = placement.parse("--layout.worker_devices", named, available) if named else available
    return Plan(
        config=config,
        agent=agent,
        learner=learner,
        environment=environment,
        mesh=mesh,
        players=players,
        learners_from=config.num_actors,
        members=members,
        width=width,
        num_rings=num_rings,
        devices=tuple(devices[i % len(devices)] for i in range(members)),
        rows=tiers.rows_struct(agent, environment.spec, config.unroll_length, width),
        replay=replay,
        programs=worker_programs.make(agent, replay, learner, environment, num_envs, config.unroll_length),
        rings=shared_replay.make(replay),
        judge=server.make(learner, config.gradients_per_apply, config.max_gradient_age, config.outlier_deviations),
    )


def _check(
    config: Any, agent: agents.Agent, replay: replays.Replay, players: int, members: int, num_rings: int
) -> None:
    """Raises a UsageError unless the settings fit together."""
    count = config.num_workers
    if config.gradients_per_apply > count:
        raise UsageError(
            f"--layout.gradients_per_apply={config.gradients_per_apply}: there are {count} workers, and each sends its "
            f"next gradient when its last is applied; nearest valid: {count}"
        )
    if replay.host:
        raise UsageError("--replay.storage=host: workers keep their replays on their devices; valid: device")
    if num_rings and not replay.min_rows:
        flag = f"num_actors={config.num_actors}" if config.num_actors else f"replay={config.replay}"
        valid = "0" if config.num_actors else "local"
        raise UsageError(
            f"--layout.{flag}: this agent learns from unrolls of its own, not from a replay; valid: {valid}"
        )
    if config.exchange == "episode" and config.num_actors:
        raise UsageError(
            f"--layout.exchange=episode: with --layout.num_actors={config.num_actors} learners play no episodes; "
            "valid: unroll"
        )
    _check_pace(replay, players, num_rings, bool(config.num_actors))
    if config.schedule == "virtual":
        schedules.parse_durations(config.durations, members)
    if not server.no_statistics(jax.eval_shape(agent.init, jax.random.key(0))):
        raise UsageError(
            "async_gradient keeps no running statistics; valid: --agent.normalise_observations=false "
            "--agent.scale_rewards=false, and where there is one --agent.kl_penalty=0"
        )


def _check_pace(replay: replays.Replay, players: int, num_rings: int, is_apart: bool) -> None:
    """Raises a UsageError unless those that play and learn take one gradient per unroll."""
    numerator, denominator = replay.updates
    if num_rings:
        denominator *= players // num_rings
    if not is_apart and numerator != denominator:
        wanted = denominator / numerator
        raise UsageError(
            f"async_gradient takes one gradient per unroll, these settings {1 / wanted:g}; multiply "
            f"--replay.samples_per_insert by {wanted:g}, or give learners apart by --layout.num_actors"
        )
