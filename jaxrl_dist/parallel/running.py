"""The threads of a Sebulba run and what they share, started where a state leaves them."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import blocks, types
from jaxrl_dist import learner as learners
from jaxrl_dist.agents import base as agents
from jaxrl_dist.envs import as_host
from jaxrl_dist.envs import base as envs
from jaxrl_dist.envs import host as hosts
from jaxrl_dist.parallel import actor as actors
from jaxrl_dist.parallel import arrivals, base, channels, first_ready, gauges, learning, quorum
from jaxrl_dist.parallel import crew as crews
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.types import Array, ArrayTree


class Actors(NamedTuple):
    """Where the actors of this process go on, one entry each: environments and carries only where they are saveable."""

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

    learner: learners.LearnerState
    key: Array
    actors: Actors
    replay: ArrayTree
    pending: tuple[tuple[Pending, ...], ...]
    replay_began: np.ndarray


class Stage(NamedTuple):
    """What the actors of this process are, the same over the whole run.

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
    observations: blocks.Observations | None
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


@dataclasses.dataclass
class Running:
    """The threads and what they share, and the state that they go on from, after so many iterations.

    What stands in for the unrolls of actors that are late is there only if they may be. It is whole unless an iteration
    failed after it had taken its unrolls.
    """

    state: State
    iteration: int
    store: channels.ParamStore
    queue: arrivals.UnrollQueue
    send: channels.Sender
    crew: crews.Crew
    gauges: gauges.Gauges
    stand_ins: tuple[arrivals.Item, ...]
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
    queue = arrivals.UnrollQueue(num_actors, num_actors if stage.lag is None else lag + 1, iteration)
    store.publish(iteration, published)
    send = channels.Sender(stage.mesh, stage.local, stage.observations)
    stand_ins: tuple[arrivals.Item, ...] = ()
    if stage.quorum < num_actors:
        rows = learning.rows_struct(stage.agent, stage.environment.spec, stage.length, stage.columns)
        stand_ins = quorum.stand_ins(rows, stage.agent.init_carry(stage.columns), num_actors, send, len(stage.local))
    key = base.seed_keys(state.key.addressable_data(0)[0])
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
                number_of=functools.partial(quorum.number_in_time, lag, store, queue),
                make_environment=functools.partial(_make_environments, stage, key.environment, first, iteration),
            )
        )
        for ahead, pending in enumerate(state.pending[number] if state.pending else ()):
            version, episodes = max(0, iteration + ahead - lag), jax.tree.map(np.asarray, pending.episodes)
            unroll, packed = send.again(pending.unroll)
            item = arrivals.Item(
                number, iteration + ahead, version, unroll, packed, plans[-1].columns, (), episodes, {}
            )
            queue.put(item, lambda: True)
    starts = [_start_of(stage, state, number, iteration) for number in range(num_actors)]
    crew = crews.Crew(plans, starts, crews.Parts(stage.programs, store, queue, send), stage.max_restarts)
    measured = gauges.Gauges(num_actors, stage.width * stage.length)
    return Running(state, iteration, store, queue, send, crew, measured, stand_ins)


def take(stage: Stage, threads: Running, iteration: int, check: Callable[[], None]) -> list[arrivals.Item]:
    """Takes the unrolls of an iteration: those of its number, or, where the lag is free, those that came first.

    Args:
        stage: what the actors are.
        threads: the actors, running.
        iteration: that begins.
        check: called while waiting; what it raises is raised here, and nothing was taken.
    """
    if stage.lag is None:
        return threads.queue.take(stage.num_actors, check)
    return threads.queue.take_number(iteration, stage.quorum, check)


def advance(state: State, learned: learning.Learned, items: Sequence[arrivals.Item]) -> State:
    """Returns the state after an iteration that took these items."""
    timesteps = list(state.actors.timestep)
    for item in items:
        timesteps[item.actor] = item.timestep
    acting = Actors((), tuple(timesteps), ())
    return State(learned.learner, state.key, acting, learned.replay, (), state.replay_began)


def _start_of(stage: Stage, state: State, number: int, iteration: int) -> actors.Start:
    """Says where an actor begins: from a snapshot, afresh, or where its lost environments ended."""
    if state.pending:
        acting = jax.tree.map(_to_host, state.actors)
        following = iteration + len(state.pending[number])
        return actors.Start(following, acting.timestep[number], acting.carry[number], acting.environment[number])
    carry = stage.agent.init_carry(stage.width)
    timestep = crews.ended(jax.tree.map(np.asarray, state.actors.timestep[number])) if iteration else ()
    return actors.Start(iteration, timestep, carry, ())


def _make_environments(stage: Stage, key: Array, first: int, iteration: int, life: int) -> envs.HostEnvironment:
    """Makes an actor's environments; a resumed run and a replaced actor play others than those before."""
    if isinstance(stage.environment, envs.Environment):
        key = jax.random.fold_in(jax.random.fold_in(key, iteration), life) if life or iteration else key
        return as_host.AsHost(stage.environment, stage.width, key, first_env=first)
    seed = int(jax.random.bits(key, dtype=np.uint32))
    seeds = hosts.seeds(seed, f"training {life}", iteration, first, stage.width)
    return stage.environment.make(seeds, stage.ready or stage.width, stage.timeout_s)


def _version(lag: int | None, first: int, store: channels.ParamStore, index: int) -> int:
    """Returns the version to act with in an unroll."""
    return store.newest() if lag is None else max(first, index - lag)


def _to_host(x: Any) -> Any:
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)
