"""The part of a checkpoint that holds an asynchronous run: made, described, taken from its workers, and rolled back."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist.errors import UsageError
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import mesh, unroll
from jaxrl_dist.parallel.async_gradient import dispatcher, programs, schedules, server, shared_replay, worker
from jaxrl_dist.parallel.async_gradient import plan as plans
from jaxrl_dist.types import Array, ArrayTree

Actors = unroll.ActorState


class State(NamedTuple):
    """Everything of a run that is not in a thread; what members hold is there in a snapshot only, else ().

    Attributes:
        learner: `LearnerState`, leaves [1, ...].
        key: typed keys [1], constant.
        server: `server.Server`.
        actors: of each player, by field; environments only where they can be saved.
        replay: of each worker, or the shared ones.
        kept: of each worker what it keeps between pushes (`programs.Kept`), or ().
        pending: of each member the work that has not arrived; zeros where it waits.
        versions: of the server that are kept, oldest first, leaves [1, ...].
        status: i64 [M], `dispatcher.FRESH`, `AT_WORK`, `WAITING` or `HELD_BACK`.
        numbers: i64 [M], the next unroll or gradient of each.
        counts: i64 [P + 1], unrolls of each player in shared replays, and samples drawn of them.
        events: i64 [], how many there were.
        broken: i64 [], gradients in a row that were not finite.
        schedule: f64, state of the schedule.
        replay_began: i32 [], the iteration at which the replay was empty.
    """

    learner: learners.LearnerState
    key: Array
    server: server.Server
    actors: Actors
    replay: tuple[ArrayTree, ...]
    kept: tuple[Any, ...]
    pending: tuple[programs.Work, ...]
    versions: tuple[learners.LearnerState, ...]
    status: np.ndarray
    numbers: np.ndarray
    counts: np.ndarray
    events: np.ndarray
    broken: np.ndarray
    schedule: np.ndarray
    replay_began: np.ndarray


def init(plan: plans.Plan, keys: Array, schedule: np.ndarray) -> State:
    """Returns the state before the first unroll, `schedule` that of its schedule."""
    params = plan.agent.init(run_keys.seed_keys(keys[0]).params)
    learner = jax.tree.map(lambda x: x[None], plan.learner.init(params))
    learner = jax.device_put(learner, mesh.sharding(plan.mesh, mesh.PER_SEED))
    make_actors, members = jax.jit(plan.init_actors), range(plan.members)
    actors = [make_actors(keys[0], plan.env_ids(i)) for i in range(plan.players)]
    return State(
        learner=learner,
        key=keys,
        server=jax.device_put(server.init(plan.gradient_struct()), mesh.sharding(plan.mesh, mesh.SHARED)),
        actors=_by_field(_on_devices(plan, actors)),
        replay=tuple(jax.device_put(plan.init_ring(), place) for place in _ring_devices(plan)),
        kept=_on_devices(plan, [plan.first_kept() for _ in members]),
        pending=_on_devices(plan, [plan.nothing(i) for i in members]),
        versions=(learner,) * plan.config.kept_versions,
        status=np.full(plan.members, dispatcher.FRESH),
        numbers=np.zeros(plan.members, np.int64),
        counts=shared_replay.no_counts(plan.players),
        events=np.zeros((), np.int64),
        broken=np.zeros((), np.int64),
        schedule=schedule,
        replay_began=np.zeros((), np.int32),
    )


def template(plan: plans.Plan, keys: Array) -> State:
    """Returns a snapshot of `jax.ShapeDtypeStruct` with shardings."""
    members = range(plan.members)

    def on(device: jax.Device, tree: ArrayTree) -> ArrayTree:
        place = jax.sharding.SingleDeviceSharding(device)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree)

    def on_members(trees: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(on(device, tree) for device, tree in zip(plan.devices, trees, strict=False))

    actors, ring = plan.actors_struct(), jax.eval_shape(plan.init_ring)
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), plan.learner_struct())
    learner = mesh.placed(plan.mesh, mesh.PER_SEED, structs)
    return State(
        learner=learner,
        key=mesh.placed(plan.mesh, mesh.PER_SEED, keys),
        server=mesh.placed(plan.mesh, mesh.SHARED, jax.eval_shape(server.init, plan.gradient_struct())),
        actors=_by_field(on_members([actors] * plan.players)),
        replay=tuple(on(device, ring) for device in _ring_devices(plan)),
        kept=on_members([jax.eval_shape(plan.first_kept) for _ in members]),
        pending=on_members([jax.eval_shape(functools.partial(plan.nothing, i)) for i in members]),
        versions=(learner,) * plan.config.kept_versions,
        status=np.zeros(plan.members, np.int64),
        numbers=np.zeros(plan.members, np.int64),
        counts=shared_replay.no_counts(plan.players),
        events=np.zeros((), np.int64),
        broken=np.zeros((), np.int64),
        schedule=np.zeros(plan.members + 1),
        replay_began=np.zeros((), np.int32),
    )


def snapshot(
    plan: plans.Plan,
    state: State,
    threads: dispatcher.Crowd,
    workers: Sequence[worker.Worker],
    schedule: schedules.Schedule,
) -> State:
    """Takes the state of all members; waits until each has sent its work, and changes nothing of the run.

    Args:
        plan: of the run.
        state: as `run` returned it.
        threads: at work.
        workers: their members.
        schedule: that they go by.
    """
    sent, status = threads.rest()
    store, states = threads.store, [one.state for one in workers]
    where = mesh.sharding(plan.mesh, mesh.PER_SEED)
    pending = [plan.nothing(i) if one is None else one for i, one in enumerate(sent)]
    return state._replace(
        actors=_by_field([one.actors for one in states[: plan.players]]),
        replay=tuple(store.rings) if store else tuple(one.replay for one in states),
        kept=tuple(programs.forgotten(one.kept) if i in threads.void else one.kept for i, one in enumerate(states)),
        pending=_on_devices(plan, pending),
        versions=tuple(jax.device_put(jax.tree.map(lambda x: x[None], one), where) for one in threads.versions.kept),
        status=np.asarray(status),
        numbers=np.asarray([one.number for one in workers]),
        counts=np.asarray([*store.inserted, store.drawn]) if store else state.counts,
        broken=np.asarray(threads.broken),
        schedule=schedule.state(),
    )


def start_from(state: State, learner: learners.LearnerState) -> State:
    """Returns the state before the first unroll with another learner, leaves [1, ...]: every version is that one."""
    return state._replace(learner=learner, versions=(learner,) * len(state.versions))


def roll_back(state: State, updates: int) -> State:
    """Returns a snapshot whose server is that of a kept version, bit for bit; gradients since then will be dropped.

    Args:
        state: a snapshot.
        updates: that the version had had.

    Raises:
        UsageError: it is not kept; the message names those that are.
    """
    kept = {int(np.asarray(one.updates)[0]): one for one in state.versions}
    if updates not in kept:
        valid = ", ".join(map(str, sorted(kept))) or "none, as --layout.kept_versions=0"
        raise UsageError(f"version {updates} is not kept; valid: {valid}")
    waiting = np.asarray(state.status) == dispatcher.WAITING
    return state._replace(
        learner=kept[updates],
        server=server.emptied(state.server),
        broken=np.zeros_like(state.broken),
        kept=tuple(map(programs.forgotten, state.kept)),
        versions=tuple(one if int(np.asarray(one.updates)[0]) <= updates else kept[updates] for one in state.versions),
        pending=tuple(map(programs.void, state.pending)),
        # The update that they waited for is none any more.
        status=np.where(waiting, dispatcher.FRESH, state.status),
    )


def _ring_devices(plan: plans.Plan) -> list[jax.Device]:
    """Returns where the replays are."""
    if plan.num_rings:
        return [plan.ring_device(ring) for ring in range(plan.num_rings)]
    return list(plan.devices)


def _on_devices(plan: plans.Plan, trees: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(jax.device_put(tree, device) for tree, device in zip(trees, plan.devices, strict=False))


def _by_field(actors: Sequence[Actors]) -> Actors:
    fields: Any = zip(*actors, strict=True)
    return Actors(*fields)
