"""The saved state of a Sebulba run, with the unrolls that wait for the learner, and its shapes."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_dist import envs, processes
from jaxrl_dist.envs.host import as_host
from jaxrl_dist.parallel import mesh, unroll
from jaxrl_dist.parallel.sebulba import tiers
from jaxrl_dist.parallel.sebulba.actor import Threads
from jaxrl_dist.parallel.sebulba.actors import Actors
from jaxrl_dist.types import Array


def is_exact(actors: Actors) -> bool:
    """Says whether snapshots are exact: environments can be saved, and unrolls come in the same order every time."""
    all_are_taken = actors.lag is not None and actors.quorum == actors.num_actors
    return all_are_taken and isinstance(actors.parts.environment, envs.Environment)


def snapshot(threads: Threads) -> tiers.State:
    """Waits until the actors rest; returns the state with their states and the unrolls that wait for the learner.

    Args:
        threads: actors of a run that `is_exact`.

    Raises:
        RuntimeError: unrolls were taken and not learned from.
    """
    if threads.queue.first() > threads.iteration:
        raise RuntimeError("an iteration was cut short, and the unrolls that it took are lost")
    resting = threads.resting_points(threads.iteration + threads.actors.num_waiting)
    pending = tuple(
        tuple((threads.send.whole(one), one.episodes) for one in threads.queue.waiting(actor))
        for actor in range(threads.actors.num_actors)
    )
    return threads.state._replace(actors=resting, pending=pending)


def template(actors: Actors, tier: tiers.Tier, keys: Array) -> tiers.State:
    """Returns a saved state of `jax.ShapeDtypeStruct` with shardings; keys [1]."""
    parts = actors.parts
    learner, replay = tier.template(keys)
    timestep = jax.eval_shape(lambda: unroll.zero_timestep(parts.environment.spec, actors.num_rows))
    acting: Any = unroll.ActorState((), timestep, ())
    pending: Any = ()
    if is_exact(actors):
        saved = as_host.saved_struct(parts.environment, actors.width)
        acting = unroll.ActorState(saved, timestep, jax.eval_shape(lambda: parts.agent.init_carry(actors.num_rows)))
        one = mesh.placed(parts.mesh, mesh.UNROLL, tiers.unroll_struct(parts)), jax.eval_shape(unroll.no_episodes)
        pending = ((one,) * actors.num_waiting,) * actors.num_actors
    key = mesh.placed(parts.mesh, mesh.PER_SEED, keys)
    state = tiers.State(learner, key, (acting,) * actors.num_actors, replay, pending, np.zeros((), np.int32))
    return state if processes.count() == 1 else _of_own(state, functools.partial(_joined_struct, _across(actors)))


def joined(actors: Actors, state: tiers.State) -> tiers.State:
    """Returns a saved state whose actors are those of all processes: what each has is a row of arrays [P, ...]."""
    where = _across(actors)
    device = where.mesh.local_devices[0]

    def join(x: Any) -> jax.Array:
        own = jax.device_put(np.asarray(x)[None], device)
        shape = (processes.count(), *own.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, where, [own])

    return _of_own(state, join)


def own(actors: Actors, state: tiers.State) -> tiers.State:
    """Returns the state of this process of a restored one, the inverse of `joined`; any other state as it is."""
    if not any(isinstance(x, jax.Array) and x.sharding == _across(actors) for x in jax.tree.leaves(state.actors)):
        return state
    return _of_own(state, lambda x: np.asarray(x.addressable_data(0))[0])


def _across(actors: Actors) -> NamedSharding:
    """Returns the sharding of one row in each process."""
    devices = [own[0] for own in processes.by_process(actors.parts.mesh.devices.flat)]
    return NamedSharding(Mesh(np.asarray(devices), ("processes",)), PartitionSpec("processes"))


def _joined_struct(where: NamedSharding, x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((processes.count(), *x.shape), x.dtype, sharding=where)


def _of_own(state: tiers.State, function: Callable[[Any], Any]) -> tiers.State:
    """Maps what belongs to one process: the actors, and the sums of the episodes in unrolls that wait."""
    pending = tuple(tuple((unroll, jax.tree.map(function, sums)) for unroll, sums in one) for one in state.pending)
    return state._replace(actors=jax.tree.map(function, state.actors), pending=pending)
