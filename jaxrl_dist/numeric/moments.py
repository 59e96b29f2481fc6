"""Running mean and variance of rows spread over devices, exact over billions of them in f32; pure functions.

Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl_dist import types
from jaxrl_dist.types import Array, ArrayTree

# A smaller deviation (plus this share of the mean, for f32's rounding) counts as that of a constant.
_SMALLEST_STD = 1e-6


class Moments(NamedTuple):
    """Moments of all rows so far; the same on every device.

    After 2²⁴ times as many rows, a batch changes a sum by less than f32 resolves, and rows, mean and M2 would stop or
    drift apart. So the part that an addition rounds off is kept and added the next time (Kahan 1965).

    Attributes:
        rows: f32 [], number of rows.
        mean: tree of f32 [...].
        m2: tree of f32 [...], summed squared deviations from the mean.
        lost: (rows, mean, m2) of f32, the part of each that rounding has left out so far.
    """

    rows: Array
    mean: ArrayTree
    m2: ArrayTree
    lost: ArrayTree


def initial(spec: ArrayTree) -> Moments:
    """Returns the moments before any row.

    Args:
        spec: tree of arrays or `jax.ShapeDtypeStruct` [...], one row.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import moments
        >>> running = moments.initial(jax.ShapeDtypeStruct((2,), jnp.float32))
        >>> print(running.rows, running.mean)
        0.0 [0. 0.]
    """

    def zeros() -> ArrayTree:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), spec)

    return Moments(jnp.zeros((), jnp.float32), zeros(), zeros(), (jnp.zeros((), jnp.float32), zeros(), zeros()))


def update(moments: Moments, batch: ArrayTree, mask: Array, axis: types.Axis) -> Moments:
    """Adds rows.

    Args:
        moments: moments of the rows so far.
        batch: tree of [N, ...], this device's rows, of any real type.
        mask: bool or f32 [N], which rows count; the others may hold anything.
        axis: reductions over all devices, whose rows are merged as if they were one batch.

    Returns:
        `Moments` of all rows.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.numeric import moments
        >>> rows = jnp.array([[0.0, 1.0], [2.0, 5.0], [9.0, 9.0]])
        >>> counted = jnp.array([True, True, False])
        >>> running = moments.update(moments.initial(rows[0]), rows, counted, types.LOCAL)
        >>> print(running.rows, running.mean)
        2.0 [1. 3.]
    """
    chex.assert_rank(mask, 1)
    chex.assert_tree_shape_prefix(batch, mask.shape)
    mask = mask.astype(bool)

    def summed(x: Array, centre: Array, power: int) -> Array:
        chex.assert_equal_shape([x[0], centre])
        chosen = mask.reshape(-1, *(1,) * centre.ndim)
        return jnp.where(chosen, (x.astype(jnp.float32) - centre) ** power, 0.0).sum(0)

    # Distances from the running mean keep their digits even if the mean is far from 0.
    distance = jax.tree.map(lambda x, mean: summed(x, mean, 1), batch, moments.mean)
    rows, distance = axis.sum((mask.sum(dtype=jnp.float32), distance))
    offset = jax.tree.map(lambda d: d / jnp.maximum(rows, 1.0), distance)
    centre = jax.tree.map(jnp.add, moments.mean, offset)
    batch_m2 = axis.sum(jax.tree.map(lambda x, c: summed(x, c, 2), batch, centre))

    # Distances from the mean with the part that rounding has left out.
    delta = jax.tree.map(jnp.subtract, offset, moments.lost[1])
    weight = rows / jnp.maximum(moments.rows + rows, 1.0)
    step = (
        rows,
        jax.tree.map(lambda d: d * weight, delta),
        jax.tree.map(lambda m2, d: m2 + d * d * weight * moments.rows, batch_m2, delta),
    )
    step = jax.tree.map(jnp.add, step, moments.lost)
    before = (moments.rows, moments.mean, moments.m2)
    after = jax.tree.map(jnp.add, before, step)
    lost = jax.tree.map(lambda s, a, b: s - (a - b), step, after, before)
    return Moments(after[0], after[1], after[2], lost)


def std(moments: Moments) -> ArrayTree:
    """Returns the standard deviation of every component, to divide by.

    Args:
        moments: of the rows so far.

    Returns:
        Tree of f32 [...]; 1 where there were no rows or all were equal, so that a constant is not scaled, and the first
        reward other than 0 does not become huge.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.numeric import moments
        >>> rows = jnp.array([[0.0, 5.0], [4.0, 5.0]])
        >>> running = moments.update(moments.initial(rows[0]), rows, jnp.ones(2), types.LOCAL)
        >>> print(moments.std(running))
        [2. 1.]
    """

    def leaf(mean: Array, m2: Array) -> Array:
        deviation = jnp.sqrt(m2 / jnp.maximum(moments.rows, 1.0))
        return jnp.where(deviation > _SMALLEST_STD * (1 + jnp.abs(mean)), deviation, 1.0)

    return jax.tree.map(leaf, moments.mean, moments.m2)


def normalise(x: ArrayTree, moments: Moments, clip: float = float("inf")) -> ArrayTree:
    """Subtracts the mean and divides by the standard deviation.

    Args:
        x: tree of [..., *row's shape], of any real type.
        moments: moments of such rows.
        clip: largest size of a result.

    Returns:
        Tree of f32 [..., *row's shape], within ±clip.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.numeric import moments
        >>> rows = jnp.array([[0.0, 5.0], [4.0, 5.0]])
        >>> running = moments.update(moments.initial(rows[0]), rows, jnp.ones(2), types.LOCAL)
        >>> print(moments.normalise(jnp.array([8.0, 6.0]), running, clip=2.0))
        [2. 1.]
    """

    def leaf(x: Array, mean: Array, deviation: Array) -> Array:
        return jnp.clip((x.astype(jnp.float32) - mean) / deviation, -clip, clip)

    return jax.tree.map(leaf, x, moments.mean, std(moments))
