"""The actors of one process: what they are, how they start, and what replaces lost ones."""

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import agents, envs, types
from jaxrl_dist import replay as replays
from jaxrl_dist.envs.host import as_host
from jaxrl_dist.envs.host import episodes as host_episodes
from jaxrl_dist.errors import UsageError
from jaxrl_dist.learning import learner
from jaxrl_dist.parallel import keys, placement
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.sebulba import actor as actors
from jaxrl_dist.parallel.sebulba import channels, first_ready, metrics, tiers
from jaxrl_dist.parallel.sebulba import queue as queues
from jaxrl_dist.replay import packed_observations
from jaxrl_dist.types import Array, ArrayTree

_CLOSE_WITHIN_S = 5.0
# So many unrolls of each actor are kept, and saved with every checkpoint.
_LARGEST_LAG = 64


class Actors(NamedTuple):
    """State of the actors of this process, one entry each: environments and carries only where they are saveable."""

    environment: tuple[ArrayTree, ...]
    timestep: tuple[types.TimeStep, ...]
    carry: tuple[ArrayTree, ...]


class Pending(NamedTuple):
    """An unroll that waits for the learner, and the sums of its episodes."""

    unroll: types.Unroll
    episodes: unrolls.EpisodeSums


class State(NamedTuple):
    """Everything of a run that is not in a thread.

    Attributes:
        learner: `LearnerState`, leaves [1, ...].
        key: typed keys [1], constant.
        actors: as of the last finished iteration, or, in a snapshot of what can be saved, after all of `pending`.
        replay: leaves [1, B, ...].
        pending: in such a snapshot, for each actor what the learner has not taken.
        replay_began: i32 [] in NumPy, the iteration at which the replay was empty.
    """

    learner: learner.LearnerState
    key: Array
    actors: Actors
    replay: ArrayTree
    pending: tuple[tuple[Pending, ...], ...]
    replay_began: np.ndarray


class Stage(NamedTuple):
    """Describes the actors of this process, the same over the whole run.

    Attributes:
        agent: acts.
        environment: on the device, then stepped through `as_host`; or of a suite on the CPU.
        programs: of the actors.
        width: environments of one actor.
        ready: environments that act as soon as so many are ready; 0 waits for all.
        length: of an unroll.
        devices: of each actor.
        mesh: of the learner.
        local: the learner's devices of this process.
        observations: how they are compressed where they stay on the host, None where they do not.
        lag: exact policy lag, None where it is free.
        quorum: unrolls of an iteration that suffice to go on; all actors' where nothing may be late.
        timeout_s: longest step of an environment.
        max_restarts: of actors.
    """

    agent: agents.Agent
    environment: envs.Environment | envs.HostTask
    programs: unrolls.HostUnroll | first_ready.Programs
    width: int
    ready: int
    length: int
    devices: tuple[jax.Device, ...]
    mesh: Mesh
    local: tuple[jax.Device, ...]
    observations: packed_observations.Observations | None
    lag: int | None
    quorum: int
    timeout_s: float
    max_restarts: int

    @property
    def num_actors(self) -> int:
        """Actors of this process."""
        return len(self.devices)

    @property
    def inference_batch(self) -> int:
        """Environments whose actions are chosen together."""
        return self.ready or self.width

    @property
    def columns(self) -> int:
        """Columns of an unroll on each of the learner's devices."""
        return self.width // len(self.local)


class Parts(NamedTuple):
    """Holds the parts that all actors share: see `actors.Actor`."""

    programs: unrolls.HostUnroll | first_ready.Programs
    store: channels.ParamStore
    queue: queues.UnrollQueue
    send: Callable[[tuple[types.Unroll, ...]], tuple[types.Unroll, channels.Packed]]


class Crew:
    """Runs one actor per plan.

    Attributes:
        restarts: how many actors were replaced.
    """

    def __init__(
        self, plans: Sequence[actors.Plan], starts: Sequence[actors.Start], parts: Parts, max_restarts: int
    ) -> None:
        """Starts every actor; `max_restarts` of them may be replaced."""
        self.restarts = 0
        self._parts, self._max_restarts = parts, max_restarts
        self._actors = [actors.Actor(plan, start, *parts) for plan, start in zip(plans, starts, strict=True)]

    def check(self) -> None:
        """Replaces actors that were lost, and raises the fault of one that may not be replaced any more."""
        for number, actor in enumerate(self._actors):
            try:
                actor.check()
            except Exception as fault:
                actor.give_up()
                if self.restarts >= self._max_restarts:
                    raise
                self.restarts += 1
                warnings.warn(
                    f"actor {number} is started anew ({self.restarts} of {self._max_restarts}) after "
                    f"{type(fault).__name__}: {fault}",
                    RuntimeWarning,
                    stacklevel=2,
                )
                self._actors[number] = self._replacement(actor)

    def resting_points(self, number: int) -> list[actors.Start]:
        """Waits until every actor rests before its unroll of that number; returns where each goes on."""
        while any((at := actor.at()) is None or at.number < number for actor in self._actors):
            self.check()
            time.sleep(0.005)
        return [actor.resting_point() for actor in self._actors]

    def close(self) -> None:
        """Ends every thread, but for those that an environment holds; the channels are closed then."""
        self._parts.store.close()
        self._parts.queue.close()
        until_s = time.monotonic() + _CLOSE_WITHIN_S
        for actor in self._actors:
            actor.give_up()
        for actor in self._actors:
            actor.join(max(0.0, until_s - time.monotonic()))

    def _replacement(self, lost: actors.Actor) -> actors.Actor:
        """Starts an actor with new environments where the lost one began its unfinished unroll.

        The timestep that opens this unroll closes the one before, so it becomes the last of its episode: no sequence
        joins two lives, and the rows of the unfinished unroll are lost.
        """
        at = lost.at() or lost.start
        timestep = at.timestep
        if isinstance(timestep, types.TimeStep):
            timestep = ended(timestep)
        plan = lost.plan._replace(life=lost.plan.life + 1)
        return actors.Actor(plan, at._replace(timestep=timestep, environment=()), *self._parts)


@dataclasses.dataclass
class Running:
    """The threads and what they share, and the state that they go on from, after so many iterations.

    What stands in for the unrolls of actors that are late is there only if they may be. It is whole unless an iteration
    failed after it had taken its unrolls.
    """

    state: State
    iteration: int
    store: channels.ParamStore
    queue: queues.UnrollQueue
    send: channels.Sender
    crew: Crew
    gauges: metrics.Gauges
    stand_ins: tuple[queues.Item, ...]
    is_whole: bool = True

    def measured(self) -> dict[str, np.ndarray]:
        """Returns what the gauges sum since the last call."""
        sizes = {"to_learner": self.send.transfers.num_bytes, "to_actors": self.store.transfers.num_bytes}
        counts = {f"bytes_{name}": size for name, size in sizes.items()}
        return self.gauges.take(counts | {"dropped_unrolls": self.queue.dropped})


def start(stage: Stage, state: State, iteration: int, published: channels.Published) -> Running:
    """Starts the actors.

    Args:
        stage: what they are.
        state: a snapshot, or as of the last finished iteration; new environments then take the place of its own.
        iteration: finished so far.
        published: parameters of that state.
    """
    lag, num_actors = stage.lag or 0, stage.num_actors
    store = channels.ParamStore(stage.devices, lag + 1)
    queue = queues.UnrollQueue(num_actors, num_actors if stage.lag is None else lag + 1, iteration)
    store.publish(iteration, published)
    send = channels.Sender(stage.mesh, stage.local, stage.observations)
    stand_ins: tuple[queues.Item, ...] = ()
    if stage.quorum < num_actors:
        rows = tiers.rows_struct(stage.agent, stage.environment.spec, stage.length, stage.columns)
        stand_ins = queues.stand_ins(rows, stage.agent.init_carry(stage.columns), num_actors, send, len(stage.local))
    key = keys.seed_keys(state.key.addressable_data(0)[0])
    plans = []
    for number, device in enumerate(stage.devices):
        index = jax.process_index() * num_actors + number
        first = index * stage.width
        env_ids = jax.device_put(np.arange(first, first + stage.width, dtype=np.int32), device)
        plans.append(
            actors.Plan(
                number=number,
                env_ids=env_ids,
                key=jax.device_put(jax.random.fold_in(key.training, index), device),
                columns=np.arange(number * stage.columns, (number + 1) * stage.columns, dtype=np.int32),
                ready=stage.ready,
                length=stage.length,
                device=device,
                version_of=functools.partial(_version, stage.lag, iteration, store),
                number_of=functools.partial(queues.number_in_time, lag, store, queue),
                make_environment=functools.partial(_make_environments, stage, key.environment, first, iteration),
            )
        )
        for ahead, pending in enumerate(state.pending[number] if state.pending else ()):
            version, episodes = max(0, iteration + ahead - lag), jax.tree.map(np.asarray, pending.episodes)
            unroll, packed = send.again(pending.unroll)
            item = queues.Item(number, iteration + ahead, version, unroll, packed, plans[-1].columns, (), episodes, {})
            queue.put(item, lambda: True)
    starts = [_start_of(stage, state, number, iteration) for number in range(num_actors)]
    crew = Crew(plans, starts, Parts(stage.programs, store, queue, send), stage.max_restarts)
    measured = metrics.Gauges(num_actors, stage.width * stage.length)
    return Running(state, iteration, store, queue, send, crew, measured, stand_ins)


def ended(timestep: types.TimeStep) -> types.TimeStep:
    """Makes every row of a timestep in NumPy the last of its episode."""
    last: Any = np.full_like(timestep.step_type, types.LAST)
    return timestep._replace(step_type=last)


def make_stage(
    config: Any,
    agent: agents.Agent,
    replay: replays.Replay,
    environment: envs.Environment | envs.HostTask,
    num_envs: int,
    mesh: Mesh,
) -> Stage:
    """Makes the stage of this process; arguments as those of `layout.make`.

    Raises:
        UsageError: settings that do not fit together.
    """
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    num_actors = _count_actors(config, num_envs, mesh)
    devices = acting_devices(config.actor_devices, local)
    width = num_envs // (num_actors * jax.process_count())
    lag, ready = _parse_lag(config.policy_lag, agent.staleness), config.ready_envs
    if config.inference == "central":
        _check_central(config, lag)
        devices, ready = local[:1], ready or _half(width)
    if replay.host and jax.process_count() > 1:
        raise UsageError(
            f"--replay.storage=host: for runs of one process, this has {jax.process_count()}; valid: device"
        )
    if config.quorum:
        _check_quorum(config, replay, lag, num_actors)
    if ready:
        _check_ready(ready, agent, replay, lag, width, mesh)
        if ready < width and isinstance(environment, envs.HostTask) and environment.steps_together:
            raise UsageError(
                f"--env={environment.spec.name}: its {width} environments of an actor step together; valid: "
                "--layout.ready_envs=0 with --layout.inference=per_actor"
            )
    return Stage(
        agent=agent,
        environment=environment,
        programs=_acting_programs(config, ready, agent, environment.spec, num_envs, width, len(local)),
        width=width,
        ready=ready,
        length=config.unroll_length,
        devices=tuple(devices[i % len(devices)] for i in range(num_actors)),
        mesh=mesh,
        local=tuple(local),
        observations=packed_observations.Observations(environment.spec.observation, config.unroll_length)
        if replay.host
        else None,
        lag=lag,
        quorum=config.quorum or num_actors,
        timeout_s=config.timeout_s,
        max_restarts=config.max_actor_restarts,
    )


def acting_devices(named: str, learners: Sequence[jax.Device]) -> Sequence[jax.Device]:
    """Returns the devices that are named; else the learner's, on a CPU all there are.

    Raises:
        UsageError: a name is not that of a device of this process.
    """
    there = jax.local_devices(backend=learners[0].platform)
    if named:
        return placement.parse("--layout.actor_devices", named, there)
    return there if learners[0].platform == "cpu" else learners


def _start_of(stage: Stage, state: State, number: int, iteration: int) -> actors.Start:
    """Says where an actor begins: from a snapshot, afresh, or where its lost environments ended."""
    if state.pending:
        acting = jax.tree.map(_to_host, state.actors)
        following = iteration + len(state.pending[number])
        return actors.Start(following, acting.timestep[number], acting.carry[number], acting.environment[number])
    carry = stage.agent.init_carry(stage.width)
    timestep = ended(jax.tree.map(np.asarray, state.actors.timestep[number])) if iteration else ()
    return actors.Start(iteration, timestep, carry, ())


def _make_environments(stage: Stage, key: Array, first: int, iteration: int, life: int) -> envs.HostEnvironment:
    """Makes an actor's environments; a resumed run and a replaced actor play others than those before."""
    if isinstance(stage.environment, envs.Environment):
        key = jax.random.fold_in(jax.random.fold_in(key, iteration), life) if life or iteration else key
        return as_host.AsHost(stage.environment, stage.width, key, first_env=first)
    seed = int(jax.random.bits(key, dtype=np.uint32))
    seeds = host_episodes.seeds(seed, f"training {life}", iteration, first, stage.width)
    return stage.environment.make(seeds, stage.ready or stage.width, stage.timeout_s)


def _version(lag: int | None, first: int, store: channels.ParamStore, index: int) -> int:
    """Returns the version to act with in an unroll."""
    return store.newest() if lag is None else max(first, index - lag)


def _to_host(x: Any) -> Any:
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


def _parse_lag(text: str, staleness: str) -> int | None:
    """Reads a policy lag: a number, or None for free."""
    if text != "free" and not (text.isdecimal() and int(text) <= _LARGEST_LAG):
        raise UsageError(f"--layout.policy_lag={text}: expected a whole number from 0 to {_LARGEST_LAG}, or free")
    if staleness in ("none", "own") and text != "0":
        raise UsageError(f"--layout.policy_lag={text}: this agent learns from its own rows only; valid: 0")
    return None if text == "free" else int(text)


def _count_actors(config: Any, num_envs: int, mesh: Mesh) -> int:
    """Returns the number of actors of this process, each with environments for every one of the learner's devices."""
    share = mesh.shape["devices"]
    count = config.num_actors
    if num_envs % (count * share):
        valid = [n for n in range(1, num_envs + 1) if num_envs % (n * share) == 0]
        nearest = ", ".join(map(str, sorted(valid, key=lambda n: abs(n - count))[:3])) or "none"
        raise UsageError(
            f"--layout.num_actors={count} on {share} learner device(s) does not divide --env.num_envs={num_envs}; "
            f"nearest valid: {nearest}"
        )
    return count


def _acting_programs(
    config: Any, ready: int, agent: agents.Agent, spec: types.EnvironmentSpec, num_envs: int, width: int, parts: int
) -> unrolls.HostUnroll | first_ready.Programs:
    """Returns the programs of an actor."""
    if ready:
        return first_ready.make(agent, spec, num_envs, config.unroll_length, width, ready, parts)
    return unrolls.host_unroll(agent, num_envs, config.unroll_length, parts)


def _check_quorum(config: Any, replay: replays.Replay, lag: int | None, num_actors: int) -> None:
    """Raises a UsageError where the learner cannot go on without late unrolls."""
    flag = f"--layout.quorum={config.quorum}"
    if config.quorum > num_actors:
        raise UsageError(f"{flag}: there are {num_actors} actors; valid: 0 to {num_actors}; nearest: {num_actors}")
    if config.ready_envs:
        raise UsageError(
            f"{flag}: with --layout.ready_envs={config.ready_envs} no actor waits for its slow environments; valid: 0"
        )
    if lag is None:
        raise UsageError(
            f"{flag}: with --layout.policy_lag=free no unroll is late; valid: 0, or a policy lag from 0 to "
            f"{_LARGEST_LAG}; nearest: --layout.policy_lag=1"
        )
    if replay.keeps_rows and config.quorum < num_actors:
        raise UsageError(
            f"{flag}: a replay learns from late unrolls too, and --layout.policy_lag=free waits for no actor; "
            f"valid: 0 or {num_actors}; nearest: {num_actors}"
        )


def _check_central(config: Any, lag: int | None) -> None:
    """Raises a UsageError where one loop cannot choose the actions of all environments."""
    flag = "--layout.inference=central"
    if lag is not None:
        raise UsageError(f"{flag}: the clock says which environments are ready first; give --layout.policy_lag=free")
    if config.num_actors != 1:
        raise UsageError(f"{flag}: one loop acts for all environments; valid: --layout.num_actors=1")
    if config.actor_devices:
        raise UsageError(f"{flag} is on the learner's device; leave out --layout.actor_devices={config.actor_devices}")


def _half(width: int) -> int:
    """Returns the largest number up to half of the environments that divides them."""
    return next(count for count in range(max(width // 2, 1), 0, -1) if width % count == 0)


def _check_ready(
    ready: int, agent: agents.Agent, replay: replays.Replay, lag: int | None, width: int, mesh: Mesh
) -> None:
    """Raises a UsageError where environments cannot act as they get ready."""
    flag = f"--layout.ready_envs={ready}"
    if lag is not None:
        raise UsageError(f"{flag}: the clock says which environments are ready first; give --layout.policy_lag=free")
    if width % ready:
        valid = ", ".join(str(n) for n in range(1, width + 1) if width % n == 0)
        raise UsageError(f"{flag} does not divide the {width} environments of an actor; valid: {valid}")
    if agent.keeps_sequences and agent.staleness != "any":
        raise UsageError(f"{flag}: this recurrent policy keeps its parameters for a whole unroll; valid: 0")
    if replay.keeps_rows and mesh.shape["devices"] > 1:
        raise UsageError(f"{flag}: a replay over {mesh.shape['devices']} devices takes whole unrolls in turn; valid: 0")
