"""An environment that resets by itself; its state is a bare tuple, and one leaf of its observation is empty."""

import jax
import jax.numpy as jnp

from jaxrl_dist import envs, types

LENGTH = 5


def _row(count: jax.Array) -> types.TimeStep:
    """Returns the row of the step after the last FIRST one; episodes end after `LENGTH` of them."""
    kind = jnp.where(count == 0, types.FIRST, jnp.where(count == LENGTH, types.LAST, types.MID)).astype(jnp.int8)
    seen = {"count": jnp.stack([count / LENGTH, jnp.float32(1)]), "nothing": jnp.zeros((0,))}
    reward = jnp.where(count == 0, 0.0, 1.0)
    info = types.EpisodeInfo(count.astype(jnp.float32), count, reward, count == LENGTH)
    return types.TimeStep(kind, reward, jnp.where(count == LENGTH, 0.0, 1.0), seen, info)


def make() -> envs.Environment:
    """Makes it."""
    seen = {"count": jax.ShapeDtypeStruct((2,), jnp.float32), "nothing": jax.ShapeDtypeStruct((0,), jnp.float32)}
    spec = types.EnvironmentSpec("own", seen, types.DiscreteSpace(2), "classic", time_limit=LENGTH)

    def reset(key: jax.Array) -> tuple[tuple[jax.Array], types.TimeStep]:
        del key
        count = jnp.int32(0)
        return (count,), _row(count)

    def step(state: tuple[jax.Array], action: jax.Array) -> tuple[tuple[jax.Array], types.TimeStep]:
        del action
        count = jnp.where(state[0] == LENGTH, 0, state[0] + 1)
        return (count,), _row(count)

    return envs.Environment(reset, step, spec)
