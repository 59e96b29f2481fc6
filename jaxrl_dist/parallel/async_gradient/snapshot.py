"""The state of an asynchronous run in a checkpoint: made, described, taken from the members, and rolled back."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import mesh, unroll
from jaxrl_dist.parallel.async_gradient import dispatcher, programs, server
from jaxrl_dist.parallel.async_gradient import plan as plans
from jaxrl_dist.types import Array, ArrayTree


class State(NamedTuple):
    """Everything of a run that is not in a thread, while its members rest.

    Attributes:
        learner: `LearnerState`, leaves [1, ...].
        key: typed keys [1], constant.
        server: `server.Server`.
        actors: of each player; with the state of environments only where these can be saved.
        replay: of each worker, or the shared ones.
        kept: of each worker that exchanges by the episode.
        pending: of each member, the work that the server has not taken; zeros without any, since shapes are constant.
        versions: kept versions of the learner, oldest first, leaves [1, ...].
        status: i64 [M], `dispatcher.FRESH` and so on.
        numbers: i64 [M], number of each member's next unroll or gradient.
        counts: i64 [P + 1], `SharedReplay.counts`.
        events: i64 [], number of events so far.
        broken: i64 [], number of gradients in a row that were not finite.
        schedule: f64, state of the schedule.
        replay_began: i32 [], the iteration at which the replay was empty.
    """

    learner: learners.LearnerState
    key: Array
    server: server.Server
    actors: tuple[unroll.ActorState, ...]
    replay: tuple[ArrayTree, ...]
    kept: tuple[programs.Kept, ...]
    pending: tuple[programs.Work, ...]
    versions: tuple[learners.LearnerState, ...]
    status: np.ndarray
    numbers: np.ndarray
    counts: np.ndarray
    events: np.ndarray
    broken: np.ndarray
    schedule: np.ndarray
    replay_began: np.ndarray


class Running(NamedTuple):
    """The part of `State` that is known while members work."""

    learner: learners.LearnerState
    key: Array
    events: np.ndarray
    replay_began: np.ndarray


def init(plan: plans.Plan, keys: Array, schedule: np.ndarray) -> State:
    """Returns the state before the first unroll; `schedule` is the state of the schedule."""
    return _first(plan, keys, schedule, lambda function, *arguments: function(*arguments), jax.device_put)


def template(plan: plans.Plan, keys: Array) -> State:
    """Returns a snapshot of `jax.ShapeDtypeStruct` with shardings."""
    return _first(plan, keys, np.zeros(plan.members + 1), jax.eval_shape, _struct)


def snapshot(plan: plans.Plan, running: Running, threads: dispatcher.Dispatcher) -> State:
    """Takes the state of all members, once each has sent its work; does not change the run.

    Args:
        plan: plan of the run.
        running: as `run` returned it.
        threads: members at work.
    """
    sent, status = threads.rest()
    states, parameter_server = [one.state for one in threads.workers], threads.server
    kept = [one.kept for one in states if one.kept is not None]
    replay = threads.replay.rings if threads.replay else [one.replay for one in states]
    counts = threads.replay.counts.copy() if threads.replay else np.zeros(plan.players + 1, np.int64)
    return State(
        learner=running.learner,
        key=running.key,
        server=parameter_server.state,
        actors=tuple(one.actors for one in states if one.actors is not None),
        replay=tuple(replay),
        kept=tuple(programs.emptied(one) if i in threads.outdated else one for i, one in enumerate(kept)),
        pending=tuple(map(jax.device_put, map(_filled, sent, plan.work_structs), plan.devices)),
        versions=tuple(map(parameter_server.saved, parameter_server.versions)),
        status=np.asarray(status),
        numbers=np.asarray([one.number for one in threads.workers]),
        counts=counts,
        events=running.events,
        broken=np.asarray(parameter_server.broken),
        schedule=threads.schedule.state.copy(),
        replay_began=running.replay_began,
    )


def roll_back(state: State, updates: int) -> State:
    """Returns a snapshot whose server has a kept version, bit for bit; later gradients will be dropped.

    Args:
        state: a snapshot.
        updates: number of updates of the version.

    Raises:
        UsageError: the version is not kept; the message names those that are.
    """
    kept = {int(np.asarray(one.updates)[0]): one for one in state.versions}
    if updates not in kept:
        if not kept:
            raise UsageError(f"version {updates} is not kept: there are none, as ", given("layout.kept_versions", 0))
        raise UsageError(f"version {updates} is not kept; valid: {', '.join(map(str, sorted(kept)))}")
    waiting = np.asarray(state.status) >= dispatcher.WAITING
    return state._replace(
        learner=kept[updates],
        server=server.emptied(state.server),
        broken=np.zeros_like(state.broken),
        kept=tuple(map(programs.emptied, state.kept)),
        versions=tuple(one if int(np.asarray(one.updates)[0]) <= updates else kept[updates] for one in state.versions),
        pending=tuple(map(programs.outdated, state.pending)),
        # The update that these members waited for will not be made.
        status=np.where(waiting, dispatcher.FRESH, state.status),
    )


def _first(
    plan: plans.Plan, keys: Array, schedule: np.ndarray, call: Callable[..., Any], put: Callable[..., Any]
) -> State:
    """Returns the state before the first unroll.

    Args:
        plan: plan of the run.
        keys: typed keys [1].
        schedule: state of the schedule.
        call: (function, arguments) -> the result, or its shapes.
        put: (tree, sharding) -> the tree with this sharding.
    """
    config, zeros = plan.parts.config, functools.partial(jax.tree.map, jnp.zeros_like)
    per_seed, shared = (mesh.sharding(plan.parts.mesh, kind) for kind in (mesh.PER_SEED, mesh.SHARED))
    replay_devices = map(jax.sharding.SingleDeviceSharding, plan.replay_devices())
    devices = list(map(jax.sharding.SingleDeviceSharding, plan.devices))
    init_actors = jax.jit(plan.init_actors)
    actors = tuple(put(call(init_actors, keys, plan.env_ids(i)), devices[i]) for i in range(plan.players))
    learner = put(call(lambda keys: jax.tree.map(lambda x: x[None], plan.init_learner(keys)), keys), per_seed)
    keepers = devices if config.exchange == "episode" else []
    none = np.zeros((), np.int64)
    return State(
        learner=learner,
        key=put(keys, per_seed),
        server=put(call(lambda: server.init(plan.gradient_struct)), shared),
        actors=actors,
        replay=tuple(put(call(plan.init_replay), device) for device in replay_devices),
        kept=tuple(put(call(lambda: programs.emptied(zeros(plan.kept_struct()))), device) for device in keepers),
        pending=tuple(
            put(call(zeros, struct), device) for struct, device in zip(plan.work_structs, devices, strict=True)
        ),
        versions=(learner,) * config.kept_versions,
        status=np.full(plan.members, dispatcher.FRESH),
        numbers=np.zeros(plan.members, np.int64),
        counts=np.zeros(plan.players + 1, np.int64),
        events=none,
        broken=none,
        schedule=schedule,
        replay_began=np.zeros((), np.int32),
    )


def _struct(tree: ArrayTree, where: jax.sharding.Sharding) -> ArrayTree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree)


def _filled(work: programs.Work, struct: programs.Work) -> programs.Work:
    """Returns work in which zeros stand for results that the member's role makes, but has not made yet."""
    parts = zip(work, struct, strict=True)
    return programs.Work(*(jax.tree.map(jnp.zeros_like, like) if part is None else part for part, like in parts))
