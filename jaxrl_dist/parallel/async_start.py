"""Makes the workers, replays and schedule of the asynchronous layout, as a saved state leaves them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_dist.envs import base as envs
from jaxrl_dist.envs import host as hosts
from jaxrl_dist.parallel import async_plan, base, schedules, worker
from jaxrl_dist.parallel import crew as crews
from jaxrl_dist.parallel import store as stores
from jaxrl_dist.parallel.async_state import Actors, State
from jaxrl_dist.types import Array


def make_worker(plan: async_plan.Plan, state: State, index: int) -> worker.Worker:
    """Makes an actor or a worker that goes on where a state leaves it, in environments of its own."""
    key = base.seed_keys(state.key[0])
    fields: Any = state.actors
    actors: Any = Actors(*(part[index] for part in fields)) if plan.plays(index) else ()
    make = None
    if plan.plays(index) and isinstance(plan.environment, envs.HostTask):
        actors = _reborn(actors, int(state.numbers[index]))
        make = _maker(plan, plan.environment, key.environment, index, int(state.numbers.sum()))
    role = worker.Role(
        device=plan.devices[index],
        # Acting and learning take other parts of a key, so a learner apart has that of the actor of its number.
        key=jax.random.fold_in(key.training, index if plan.plays(index) else index - plan.players),
        env_ids=plan.env_ids(index) if plan.plays(index) else None,
        make_environment=make,
        nothing=jax.device_put(plan.nothing(index), plan.devices[index]),
        learns=plan.learns(index),
        shares=bool(plan.num_rings),
        is_alone=plan.members == 1,
    )
    own: Any = () if plan.num_rings else state.replay[index]
    before = worker.State(actors, own, state.kept[index])
    return worker.Worker(plan.programs, role, before, int(state.numbers[index]), plan.config.unroll_length)


def make_store(plan: async_plan.Plan, state: State, iteration: int) -> stores.Store | None:
    """Makes what holds the replays of all, where they are shared."""
    if not plan.num_rings:
        return None
    counts = np.asarray(state.counts)
    if int(state.replay_began) == iteration:
        # The replay was not saved: it fills anew.
        counts = np.zeros_like(counts)
    return stores.Store(plan.rings, plan.rate(), state.replay, counts[:-1], int(counts[-1]), plan.width)


def make_schedule(plan: async_plan.Plan, keys: Array, recorded: Sequence[int] | None) -> schedules.Schedule:
    """Makes the order of the gradients, at its beginning: that of the settings, or the one that was recorded."""
    config, members = plan.config, plan.members
    if recorded is not None:
        return schedules.Recorded(recorded, members)
    seed = int(jax.random.bits(base.seed_keys(keys[0]).training, dtype=np.uint32))
    return schedules.make(config.schedule, members, config.durations, config.jitter, seed)


def _reborn(actors: Actors, number: int) -> Actors:
    """Ends the episodes of environments that are made anew."""
    timestep: Any = crews.ended(jax.tree.map(np.asarray, actors.timestep)) if number else ()
    return actors._replace(timestep=timestep)


def _maker(
    plan: async_plan.Plan, task: envs.HostTask, key: Array, index: int, played: int
) -> Callable[[], envs.HostEnvironment]:
    """Returns what makes a worker's environments; a resumed run plays others than before."""
    width = plan.width
    seed = int(jax.random.bits(key, dtype=np.uint32))
    seeds = hosts.seeds(seed, "training 0", played, index * width, width)
    return lambda: task.make(seeds, width, plan.config.timeout_s)
