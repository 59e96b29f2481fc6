"""What is saved of a Sebulba run, and in which shapes: its state with the unrolls that wait."""

from typing import Any

import jax
import numpy as np

from jaxrl_dist.envs import as_host
from jaxrl_dist.envs import base as envs
from jaxrl_dist.parallel import learning, running
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.types import Array


def is_exact(stage: running.Stage) -> bool:
    """Whether all of a run can be saved: its environments, and unrolls that come in the same order every time."""
    all_are_taken = stage.lag is not None and stage.quorum == stage.num_actors
    return all_are_taken and isinstance(stage.environment, envs.Environment)


def snapshot(stage: running.Stage, threads: running.Running) -> running.State:
    """Waits until the actors rest, and returns their state with the unrolls that the learner has not taken.

    Args:
        stage: of a run that `is_exact`.
        threads: its actors, running.
    """
    points = threads.crew.resting_points(threads.iteration + _waiting(stage))
    pending = tuple(
        tuple(
            running.Pending(threads.send.whole(item.unroll, item.packed), item.episodes)
            for item in threads.queue.pending(actor)
        )
        for actor in range(stage.num_actors)
    )
    acting = running.Actors(*zip(*((at.environment, at.timestep, at.carry) for at in points), strict=True))
    return threads.state._replace(actors=acting, pending=pending)


def template(stage: running.Stage, tier: learning.Tier, keys: Array) -> running.State:
    """Returns a saved state of `jax.ShapeDtypeStruct` with shardings; keys [1]."""
    learner_state, replay_state = tier.template(keys)
    timestep = jax.eval_shape(lambda: learning.zero_timestep(stage.environment.spec, stage.width))
    acting = running.Actors((), (timestep,) * stage.num_actors, ())
    pending: Any = ()
    if is_exact(stage):
        environment: Any = stage.environment
        saved = as_host.saved_struct(environment, stage.width)
        carry = jax.eval_shape(lambda: stage.agent.init_carry(stage.width))
        acting = acting._replace(environment=(saved,) * stage.num_actors, carry=(carry,) * stage.num_actors)
        episodes = jax.eval_shape(unrolls.no_episodes)
        one = running.Pending(meshes.placed(stage.mesh, meshes.UNROLL, tier.unroll), episodes)
        pending = ((one,) * _waiting(stage),) * stage.num_actors
    return running.State(
        learner_state,
        meshes.placed(stage.mesh, meshes.PER_SEED, keys),
        acting,
        replay_state,
        pending,
        np.zeros((), np.int32),
    )


def _waiting(stage: running.Stage) -> int:
    """Returns how many unrolls of each actor wait for the learner when all actors rest."""
    return (stage.lag or 0) + 1
