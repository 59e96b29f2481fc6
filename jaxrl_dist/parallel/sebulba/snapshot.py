"""Saved state of a Sebulba run, with the unrolls that wait, and its shapes."""

from typing import Any

import jax
import numpy as np

from jaxrl_dist import envs
from jaxrl_dist.envs.host import as_host
from jaxrl_dist.parallel import mesh, unroll
from jaxrl_dist.parallel.sebulba import actors, tiers
from jaxrl_dist.types import Array


def is_exact(stage: actors.Stage) -> bool:
    """Says whether all of a run can be saved: its environments, and unrolls that come in the same order every time."""
    all_are_taken = stage.lag is not None and stage.quorum == stage.num_actors
    return all_are_taken and isinstance(stage.environment, envs.Environment)


def snapshot(stage: actors.Stage, threads: actors.Running) -> actors.State:
    """Waits until the actors rest, and returns their state with the unrolls that the learner has not taken.

    Args:
        stage: of a run that `is_exact`.
        threads: its actors, running.
    """
    points = threads.crew.resting_points(threads.iteration + _waiting(stage))
    pending = tuple(
        tuple(
            actors.Pending(threads.send.whole(item.unroll, item.packed), item.episodes)
            for item in threads.queue.pending(actor)
        )
        for actor in range(stage.num_actors)
    )
    acting = actors.Actors(*zip(*((at.environment, at.timestep, at.carry) for at in points), strict=True))
    return threads.state._replace(actors=acting, pending=pending)


def template(stage: actors.Stage, tier: tiers.Tier, keys: Array) -> actors.State:
    """Returns a saved state of `jax.ShapeDtypeStruct` with shardings; keys [1]."""
    learner_state, replay_state = tier.template(keys)
    timestep = jax.eval_shape(lambda: tiers.zero_timestep(stage.environment.spec, stage.width))
    acting = actors.Actors((), (timestep,) * stage.num_actors, ())
    pending: Any = ()
    if is_exact(stage):
        environment: Any = stage.environment
        saved = as_host.saved_struct(environment, stage.width)
        carry = jax.eval_shape(lambda: stage.agent.init_carry(stage.width))
        acting = acting._replace(environment=(saved,) * stage.num_actors, carry=(carry,) * stage.num_actors)
        episodes = jax.eval_shape(unroll.no_episodes)
        one = actors.Pending(mesh.placed(stage.mesh, mesh.UNROLL, tier.unroll), episodes)
        pending = ((one,) * _waiting(stage),) * stage.num_actors
    return actors.State(
        learner_state,
        mesh.placed(stage.mesh, mesh.PER_SEED, keys),
        acting,
        replay_state,
        pending,
        np.zeros((), np.int32),
    )


def _waiting(stage: actors.Stage) -> int:
    """Returns how many unrolls of each actor wait for the learner when all actors rest."""
    return (stage.lag or 0) + 1
