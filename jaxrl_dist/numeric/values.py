"""Transformations of values and their errors: rescalings, C51's projection, two-hot targets, errors of quantiles."""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl_dist.types import Array

# The most rows that are added one by one without a loop in the program.
_UNROLLED = 256


def signed_hyperbolic(x: Array, eps: float = 1e-3) -> Array:
    """Compresses values: h(x) = sgn(x)(√(|x| + 1) − 1) + εx.

    Args:
        x: f32 [...].
        eps: ε, at least 0.

    Returns:
        f32 [...]. It is computed as x / (√(|x| + 1) + 1) + εx, which neither loses digits near 0 nor has a wrong
        gradient there.

    Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 2.3;
        Pohlen et al. 2018, "Observe and look further", proposition A.2.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import values
        >>> print(values.signed_hyperbolic(jnp.array([-8.0, 0.0, 99.0]), eps=0.0))
        [-2.  0.  9.]
    """
    chex.assert_type(x, jnp.float32)
    return x / (jnp.sqrt(jnp.abs(x) + 1) + 1) + eps * x


def signed_parabolic(x: Array, eps: float = 1e-3) -> Array:
    """Inverts `signed_hyperbolic` exactly.

    Args:
        x: f32 [...].
        eps: ε, at least 0.

    Returns:
        f32 [...], h⁻¹(x) = sgn(x)(((√(1 + 4ε(|x| + 1 + ε)) − 1) / 2ε)² − 1). The printed form loses four of f32's seven
        digits at ε = 1e-3, so the quadratic |x| = d(1 + 2ε) + εd² of d = √(|h⁻¹| + 1) − 1 is solved instead.

    Source: Pohlen et al. 2018, "Observe and look further", proposition A.2.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import values
        >>> print(values.signed_parabolic(jnp.array([-2.0, 0.0, 9.0]), eps=0.0))
        [-8.  0. 99.]
    """
    chex.assert_type(x, jnp.float32)
    slope = 1 + 2 * eps
    d = 2 * x / (slope + jnp.sqrt(slope**2 + 4 * eps * jnp.abs(x)))
    return d * (jnp.abs(d) + 2)


def symlog(x: Array) -> Array:
    """Compresses numbers of any size and sign: sgn(x) log(|x| + 1).

    Args:
        x: f32 [...].

    Returns:
        f32 [...].

    Source: Webber 2013, "A bi-symmetric log transformation for wide-range data"; Hafner et al. 2025, "Mastering diverse
        control tasks through world models", methods (symlog).

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import values
        >>> print(values.symlog(jnp.array([1 - jnp.e, 0.0])))
        [-1.  0.]
    """
    chex.assert_type(x, jnp.float32)
    # XLA's compiler for TPUs (libtpu 0.0.52) fails on `log1p` of gathered rows; what is lost is below 1e-7.
    return jnp.sign(x) * jnp.log(1 + jnp.abs(x))


def symexp(x: Array) -> Array:
    """Inverts `symlog`.

    Args:
        x: f32 [...].

    Returns:
        f32 [...], sgn(x)(exp(|x|) − 1).

    Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", methods (symexp).

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import values
        >>> print(values.symexp(values.symlog(jnp.array([-3.0, 0.0]))))
        [-3.  0.]
    """
    chex.assert_type(x, jnp.float32)
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


def symexp_support(num_bins: int, limit: float = 20.0) -> Array:
    """Places bins exponentially on both sides of 0.

    Args:
        num_bins: K, odd and at least 3.
        limit: symlog of the largest bin.

    Returns:
        f32 [K], symexp of even steps from −limit to limit; the middle one is 0, and the others are in pairs ±b.

    Raises:
        ValueError: an even number of bins, or fewer than 3.

    Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", methods (critic learning).

    Example:
        >>> import numpy as np
        >>> from jaxrl_dist.numeric import values
        >>> print(np.asarray(values.symexp_support(5, limit=2.0)).round(3))
        [-6.389 -1.718  0.     1.718  6.389]
    """
    if num_bins < 3 or num_bins % 2 == 0:
        raise ValueError(f"{num_bins} bins: needs an odd number of at least 3")
    positive = symexp(jnp.linspace(0.0, limit, num_bins // 2 + 1))
    return jnp.concatenate([-positive[:0:-1], positive])


def two_hot(x: Array, bins: Array) -> Array:
    """Spreads each number over its two neighbours among bins, so that their mean is the number.

    Args:
        x: f32 [...]; numbers outside the bins count as the nearest of them.
        bins: f32 [K], rising, at any distances.

    Returns:
        f32 [..., K], at least 0, with sum 1.

    Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", methods (twohot).

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import values
        >>> print(values.two_hot(jnp.array([0.5, 9.0]), jnp.array([0.0, 2.0, 6.0])))
        [[0.75 0.25 0.  ]
         [0.   0.   1.  ]]
    """
    chex.assert_rank(bins, 1)
    chex.assert_type([x, bins], jnp.float32)
    # The share of the way from each bin to the next that lies below x.
    share = jnp.clip((x[..., None] - bins[:-1]) / (bins[1:] - bins[:-1]), 0.0, 1.0)
    one, zero = jnp.ones_like(share[..., :1]), jnp.zeros_like(share[..., :1])
    return jnp.concatenate([one, share], -1) - jnp.concatenate([share, zero], -1)


def mean_of_bins(logits: Array, bins: Array) -> Array:
    """Returns the mean of a distribution over symmetric bins.

    Args:
        logits: f32 [..., K].
        bins: f32 [K], of `symexp_support`.

    Returns:
        f32 [...]. Bins ±b are added in pairs, so that equal logits have mean 0 even beside bins of 5e8.

    Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", methods (critic learning), and
        their code (the symmetric sum).

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import values
        >>> print(values.mean_of_bins(jnp.zeros((2, 255)), values.symexp_support(255)))
        [0. 0.]
    """
    chex.assert_axis_dimension(logits, -1, bins.shape[0])
    half = bins.shape[0] // 2
    probabilities = jax.nn.softmax(logits)
    paired = probabilities[..., half + 1 :] - probabilities[..., half - 1 :: -1]
    return (paired * bins[half + 1 :]).sum(-1)


def two_hot_loss(logits: Array, target: Array, bins: Array) -> Array:
    """Returns the cross-entropy of a distribution over bins for a number.

    Args:
        logits: f32 [..., K].
        target: f32 [...].
        bins: f32 [K].

    Returns:
        f32 [...].

    Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", methods (critic learning).

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import values
        >>> import numpy as np
        >>> print(np.asarray(values.two_hot_loss(jnp.zeros(2), jnp.array(0.25), jnp.array([0.0, 1.0]))).round(3))
        0.693
    """
    chex.assert_axis_dimension(logits, -1, bins.shape[0])
    return -(two_hot(target, bins) * jax.nn.log_softmax(logits)).sum(-1)


def support(low: float, high: float, num_atoms: int) -> Array:
    """Places C51's atoms evenly.

    Args:
        low: V_min, the smallest value.
        high: V_max, the largest value.
        num_atoms: at least 2.

    Returns:
        f32 [num_atoms], from low to high.

    Raises:
        ValueError: low is not below high, or fewer than two atoms.

    Source: Bellemare et al. 2017, "A distributional perspective on reinforcement learning", section 4.

    Example:
        >>> from jaxrl_dist.numeric import values
        >>> print(values.support(-1.0, 1.0, num_atoms=5))
        [-1.  -0.5  0.   0.5  1. ]
    """
    if not low < high or num_atoms < 2:
        raise ValueError(f"support of {num_atoms} atoms from {low} to {high}: needs low < high and at least 2 atoms")
    return jnp.linspace(low, high, num_atoms, dtype=jnp.float32)


def mean_of_atoms(logits: Array, atoms: Array) -> Array:
    """Returns the mean of a distribution over atoms, summed in the precision of its numbers.

    A product of matrices would do, but an accelerator may round its operands: in bfloat16 299 is 300.

    Args:
        logits: f32 [..., K].
        atoms: f32 [K], of `support`.

    Returns:
        f32 [...].

    Source: Bellemare et al. 2017, "A distributional perspective on reinforcement learning", section 4.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import values
        >>> print(values.mean_of_atoms(jnp.zeros((2, 3)), values.support(0.0, 2.0, 3)))
        [1. 1.]
    """
    chex.assert_axis_dimension(logits, -1, atoms.shape[0])
    return (jax.nn.softmax(logits) * atoms).sum(-1)


def categorical_projection(target_atoms: Array, probabilities: Array, atoms: Array) -> Array:
    """Moves one distribution's mass to the neighbouring atoms of a fixed support.

    Args:
        target_atoms: f32 [M], any values, such as r + γz; those outside the support count as its ends.
        probabilities: f32 [M], the mass at each.
        atoms: f32 [K], evenly spaced and rising (`support`).

    Returns:
        f32 [K], the mass at each atom; sum and, inside the support, mean are kept.

    Source: Bellemare et al. 2017, "A distributional perspective on reinforcement learning", equation 7.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import values
        >>> atoms = values.support(0.0, 2.0, num_atoms=3)
        >>> target_atoms = jnp.array([0.25, 1.0, 5.0])  # 5 counts as 2
        >>> print(values.categorical_projection(target_atoms, jnp.array([0.5, 0.25, 0.25]), atoms))
        [0.375 0.375 0.25 ]
    """
    chex.assert_rank([target_atoms, probabilities, atoms], 1)
    chex.assert_equal_shape([target_atoms, probabilities])
    chex.assert_type([target_atoms, probabilities, atoms], jnp.float32)
    spacing = (atoms[-1] - atoms[0]) / (atoms.shape[0] - 1)

    def share(target: Array, mass: Array) -> Array:
        return jnp.maximum(1 - jnp.abs(target - atoms) / spacing, 0.0) * mass

    return _added(share, jnp.clip(target_atoms, atoms[0], atoms[-1]), probabilities)


def _added(function: Callable[..., Any], *rows: Array) -> Any:
    """Returns the sum of a function's results for each row [N, ...], by what the platform is fast at.

    Where rows are added one by one, XLA's CPU compiler makes a single loop over vectors. A sum along an axis writes all
    pairs to memory there, and takes 6 to 140 times as long (docs/results.md, pairs of atoms). XLA's GPU compiler is
    fast at such a sum, and takes minutes to compile rows that are added one by one.
    """
    one_by_one, at_once = (functools.partial(way, function) for way in (_add_one_by_one, _add_at_once))
    return jax.lax.platform_dependent(*rows, cpu=one_by_one, default=at_once)


def _add_one_by_one(function: Callable[..., Any], *rows: Array) -> Any:
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *(row[0] for row in rows)))

    def add(total: Any, row: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*row)), None

    return jax.lax.scan(add, zero, rows, unroll=min(len(rows[0]), _UNROLLED))[0]


def _add_at_once(function: Callable[..., Any], *rows: Array) -> Any:
    return jax.tree.map(lambda x: x.sum(0), jax.vmap(function)(*rows))


def quantile_levels(count: int) -> Array:
    """Returns the levels of evenly spread quantiles: the middles of equal shares of the probability.

    Args:
        count: K, at least 1.

    Returns:
        f32 [K], (2i + 1) / 2K.

    Source: Dabney et al. 2018, "Distributional reinforcement learning with quantile regression", lemma 2.

    Example:
        >>> from jaxrl_dist.numeric import values
        >>> print(values.quantile_levels(4))
        [0.125 0.375 0.625 0.875]
    """
    return (jnp.arange(count, dtype=jnp.float32) + 0.5) / count


def quantile_loss(predicted: Array, levels: Array, target: Array, clip: float) -> Array:
    """Returns the quantile Huber loss of quantiles for samples of their distribution.

    Args:
        predicted: f32 [K], quantiles.
        levels: f32 [K], the level τ of each.
        target: f32 [M], samples, or quantiles of equal shares.
        clip: κ; errors beyond it count linearly, and all of them with 0.

    Returns:
        f32 [], the sum over predictions of the mean over samples of |τ − 1{u < 0}| L(u) / κ, u the error and L Huber's
        function; with κ = 0 of |τ − 1{u < 0}| |u|, which is the limit. The gradient passes through `predicted`
        alone: `levels` and `target` count as fixed.

    Source: Dabney et al. 2018, "Distributional reinforcement learning with quantile regression", equations 9 and 10;
        divided by κ as in Dabney et al. 2018, "Implicit quantile networks", equation 3.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import values
        >>> print(values.quantile_loss(jnp.array([0.0]), jnp.array([0.75]), jnp.array([3.0, -1.0]), clip=0.0))
        1.25
    """
    chex.assert_rank([predicted, levels, target], 1)
    chex.assert_equal_shape([predicted, levels])
    chex.assert_type([predicted, levels, target], jnp.float32)
    return _quantile_loss(predicted, levels, target, clip)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _quantile_loss(predicted: Array, levels: Array, target: Array, clip: float) -> Array:
    return _quantile_losses(predicted, levels, target, clip)[0].sum()


@_quantile_loss.defjvp
def _quantile_loss_jvp(clip: float, primals: Any, tangents: Any) -> tuple[Array, Array]:
    predicted, levels, target = primals
    losses, slopes = _quantile_losses(predicted, levels, target, clip)
    return losses.sum(), (slopes * tangents[0]).sum()


def _quantile_losses(predicted: Array, levels: Array, target: Array, clip: float) -> tuple[Array, Array]:
    """Returns the loss f32 [K] of each prediction, and its slope f32 [K]."""

    def of_sample(sample: Array) -> tuple[Array, Array]:
        error = sample - predicted
        # L(u) / κ is u s − κ s² / 2, with its slope s: u / κ between ±κ, and ±1 beyond. With κ = 0 an error of 0 has
        # a slope of 0, between those on its two sides.
        slope = jnp.clip(error / clip, -1.0, 1.0) if clip else jnp.sign(error)
        weight = jnp.abs(levels - (error < 0)) * slope
        return weight * (error - 0.5 * clip * slope), -weight

    losses, slopes = _added(of_sample, target)
    return losses / len(target), slopes / len(target)
