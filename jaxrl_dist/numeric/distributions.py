"""Action distributions as pure functions of their parameters: categorical, Gaussian, Gaussian squashed by tanh.

A product of categoricals is one over vectors of choices.

Each offers `sample(key)`, `log_prob(sample)`, `entropy(key)`, `mode()` and `kl(other)`; one key serves a whole batch.
`action(sample)` is the environment's action. A squashed distribution keeps samples from before tanh: near ±1
different samples have the same f32 action, from which no probability can be computed.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist.types import Array

_HALF_LOG_2PI = 0.5 * float(np.log(2 * np.pi))

# Sums over up to this many actions are unrolled, which XLA fuses; beyond, a loop keeps the program small.
UNROLLED_ACTIONS = 32


class Categorical(NamedTuple):
    """Distribution over A actions.

    Attributes:
        logits: f32 [..., A], unnormalised log-probabilities; −inf forbids an action.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from jaxrl_dist.numeric import distributions
        >>> policy = distributions.Categorical(jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.9, 0.0]])))
        >>> print(policy.mode(), np.asarray(policy.log_prob(jnp.array([1, 1]))).round(3))
        [0 1] [-1.386 -0.105]
        >>> print(policy.sample(jax.random.key(0)).shape, np.asarray(policy.entropy(jax.random.key(0))).round(3))
        (2,) [1.04  0.325]
    """

    logits: Array

    @property
    def squashes(self) -> bool:
        """Says whether actions differ from samples."""
        return False

    def sample(self, key: Array) -> Array:
        """Draws i32 [...] by inverting the cumulative distribution with one uniform number per row.

        The Gumbel trick needs A numbers and 2A logarithms per row (1.2 to 7 times slower for 2 to 18 actions in 2048
        rows on a CPU). A forbidden action is never drawn: partial sums are added in order, so that its sum equals the
        one before it, and a 23-bit uniform number below 1 times the total stays below the total. Actions rarer than
        2⁻²³ are drawn with that resolution.
        """
        _check(self.logits)
        weights = jnp.moveaxis(jnp.exp(self.logits - self.logits.max(-1, keepdims=True)), -1, 0)

        def body(total: Array, weight: Array) -> tuple[Array, Array]:
            total = total + weight
            return total, total

        unroll = min(weights.shape[0], UNROLLED_ACTIONS)
        total, sums = jax.lax.scan(body, jnp.zeros_like(weights[0]), weights, unroll=unroll)
        threshold = jax.random.uniform(key, total.shape) * total
        return (sums[:-1] <= threshold).sum(0, dtype=jnp.int32)

    def log_prob(self, action: Array) -> Array:
        """Returns f32 [...] of actions int [...]; −inf for a forbidden one."""
        _check(self.logits)
        chex.assert_shape(action, self.logits.shape[:-1])
        chex.assert_type(action, int)
        return _few_or_many(self.logits, _gathered, _summed, action)

    def entropy(self, key: Array) -> Array:
        """Returns f32 [...], exact; the key is not used."""
        del key
        return _few_or_many(self.logits, _mean_surprise, _summed_surprise)

    def mode(self) -> Array:
        """Returns i32 [...], the first of the likeliest actions."""
        return jnp.argmax(self.logits, -1).astype(jnp.int32)

    def action(self, sample: Array) -> Array:
        """Returns i32 [...], the sample as it is."""
        return sample

    def kl(self, other: "Categorical") -> Array:
        """Returns f32 [...], KL(self ‖ other); inf where self allows an action that other forbids."""
        chex.assert_equal_shape([self.logits, other.logits])
        return _expectation(self.logits, jax.nn.log_softmax(self.logits) - jax.nn.log_softmax(other.logits))


def _few_or_many(logits: Array, many: Callable[..., Array], few: Callable[..., Array], *others: Array) -> Array:
    """Calls one of two functions of the logits that return the same.

    A gather's gradient is a scatter, which accelerators start by itself, while sums over few actions join the kernels
    around them; on a CPU they are slower.
    """
    if logits.shape[-1] > UNROLLED_ACTIONS:
        return many(logits, *others)
    found: Array = jax.lax.platform_dependent(logits, *others, cpu=many, default=few)
    return found


def _gathered(logits: Array, action: Array) -> Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def _summed(logits: Array, action: Array) -> Array:
    chosen = [jnp.where(action == i, x, 0.0) for i, x in enumerate(_log_softmax(logits))]
    return functools.reduce(operator.add, chosen)


def _mean_surprise(logits: Array) -> Array:
    return -_expectation(logits, jax.nn.log_softmax(logits))


def _summed_surprise(logits: Array) -> Array:
    terms = [jnp.exp(x) * jnp.where(x > -jnp.inf, x, 0.0) for x in _log_softmax(logits)]
    return -functools.reduce(operator.add, terms)


def _log_softmax(logits: Array) -> list[Array]:
    """Returns the log-probabilities f32 [...] of each of A actions, whose sums are unrolled."""
    columns = [logits[..., i] for i in range(logits.shape[-1])]
    largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, columns))
    shifted = [x - largest for x in columns]
    total = jnp.log(functools.reduce(operator.add, map(jnp.exp, shifted)))
    return [x - total for x in shifted]


class Categoricals(NamedTuple):
    """Independent categorical distributions, one for each of K numbers of an action.

    Attributes:
        parts: K distributions, with leaves [...].

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import distributions
        >>> policy = distributions.Categoricals.of(jnp.array([[0.0, 2.0, 1.0, 3.0, 0.0]]), (3, 2))
        >>> print(policy.mode(), policy.log_prob(policy.mode()).shape, policy.sample(jax.random.key(0)).shape)
        [[1 0]] (1,) (1, 2)
    """

    parts: tuple[Categorical, ...]

    @classmethod
    def of(cls, logits: Array, sizes: Sequence[int], legal: Array | None = None) -> "Categoricals":
        """Splits logits f32 [..., sum of sizes] into those of each number, and masks each by its part of `legal`."""
        chex.assert_axis_dimension(logits, -1, sum(sizes))

        def split(x: Array) -> list[Array]:
            return jnp.split(x, np.cumsum(sizes)[:-1], axis=-1)

        masks = [None] * len(sizes) if legal is None else split(legal)
        return cls(tuple(Categorical(masked(*pair)) for pair in zip(split(logits), masks, strict=True)))

    @property
    def squashes(self) -> bool:
        """Says whether actions differ from samples."""
        return False

    def sample(self, key: Array) -> Array:
        """Draws i32 [..., K]."""
        keys = jax.random.split(key, len(self.parts))
        return jnp.stack([part.sample(own) for part, own in zip(self.parts, keys, strict=True)], -1)

    def log_prob(self, action: Array) -> Array:
        """Returns f32 [...] of actions int [..., K], summed over the numbers; −inf if one of them is forbidden."""
        chex.assert_axis_dimension(action, -1, len(self.parts))
        return functools.reduce(operator.add, [part.log_prob(action[..., k]) for k, part in enumerate(self.parts)])

    def entropy(self, key: Array) -> Array:
        """Returns f32 [...], exact; the key is not used."""
        return functools.reduce(operator.add, [part.entropy(key) for part in self.parts])

    def mode(self) -> Array:
        """Returns i32 [..., K], the first of the likeliest choices of each number."""
        return jnp.stack([part.mode() for part in self.parts], -1)

    def action(self, sample: Array) -> Array:
        """Returns i32 [..., K], the sample as it is."""
        return sample

    def kl(self, other: "Categoricals") -> Array:
        """Returns f32 [...], KL(self ‖ other); inf where self allows a choice that other forbids."""
        pairs = zip(self.parts, other.parts, strict=True)
        return functools.reduce(operator.add, [mine.kl(theirs) for mine, theirs in pairs])


def choose(policy: Any, action: str, key: Array) -> Array:
    """Chooses a sample [...] of a distribution: its `mode`, or a random `sample`.

    Args:
        policy: a distribution of this module.
        action: `mode` or `sample`.
        key: typed key [], of the draw.

    Returns:
        Array as from the distribution's `sample`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import distributions
        >>> policy, key = distributions.Categorical(jnp.log(jnp.array([0.4, 0.6]))), jax.random.key(3)
        >>> print(distributions.choose(policy, "mode", key), distributions.choose(policy, "sample", key))
        1 0
    """
    chosen: Array = policy.sample(key) if action == "sample" else policy.mode()
    return chosen


def masked(x: Array, legal: Array | None) -> Array:
    """Forbids actions: their logits or values become −inf.

    Args:
        x: f32 [..., A].
        legal: bool [..., A]; where none is legal, as after an episode's end, all are. None leaves x as it is.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import distributions
        >>> print(distributions.masked(jnp.ones((2, 2)), jnp.array([[True, False], [False, False]])))
        [[  1. -inf]
         [  1.   1.]]
    """
    if legal is None:
        return x
    chex.assert_equal_shape([x, legal])
    return jnp.where(legal | ~legal.any(-1, keepdims=True), x, -jnp.inf)


def unimix(logits: Array, share: float) -> Array:
    """Mixes a distribution with the uniform one, so that no probability is near 0.

    Args:
        logits: f32 [..., A].
        share: weight of the uniform distribution, above 0.

    Returns:
        f32 [..., A], the logarithms of the mixed probabilities.

    Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", methods (1% unimix).

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import distributions
        >>> print(jnp.exp(distributions.unimix(jnp.array([99.0, 0.0]), share=0.5)))
        [0.75 0.25]
    """
    # In the type of the logits, as a member of a sweep computes it.
    weight = jnp.asarray(share, logits.dtype)
    return jnp.log((1 - weight) * jax.nn.softmax(logits) + weight / logits.shape[-1])


def straight_through(logits: Array, key: Array) -> Array:
    """Draws one-hot vectors whose gradient is that of their probabilities.

    Args:
        logits: f32 [..., C].
        key: typed key [].

    Returns:
        f32 [..., C].

    Source: Bengio et al. 2013, "Estimating or propagating gradients through stochastic neurons"; Hafner et al. 2021,
        "Mastering Atari with discrete world models", algorithm 1.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import distributions
        >>> logits, key = jnp.array([0.0, 99.0]), jax.random.key(0)
        >>> print(distributions.straight_through(logits, key))
        [0. 1.]
        >>> print(jax.grad(lambda x: distributions.straight_through(x, key)[1])(jnp.zeros(2)))
        [-0.25  0.25]
    """
    drawn = jax.nn.one_hot(Categorical(logits).sample(key), logits.shape[-1], dtype=logits.dtype)
    probabilities = jax.nn.softmax(logits)
    return drawn + (probabilities - jax.lax.stop_gradient(probabilities))


def balanced_kl(posterior: Array, prior: Array, free: float) -> tuple[Array, Array]:
    """Returns the divergence of a prior from a posterior twice: one teaches the prior, the other the posterior.

    Args:
        posterior: logits f32 [..., G, C] of G independent categoricals.
        prior: logits f32 [..., G, C].
        free: divergence below which there is no gradient, in nats, of the sum over G.

    Returns:
        max(free, KL(posterior ‖ prior)) f32 [...] twice: the gradient of the first is to the prior alone, that of the
        second to the posterior alone.

    Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", equation 3.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import distributions
        >>> posterior, prior = jnp.log(jnp.array([[0.9, 0.1]])), jnp.log(jnp.array([[0.5, 0.5]]))
        >>> import numpy as np
        >>> print(np.asarray(distributions.balanced_kl(posterior, prior, free=0.0)).round(3))
        [0.368 0.368]
        >>> print(distributions.balanced_kl(posterior, prior, free=1.0)[0])
        1.0
    """
    still = jax.lax.stop_gradient

    def divergence(one: Array, other: Array) -> Array:
        return jnp.maximum(Categorical(one).kl(Categorical(other)).sum(-1), free)

    return divergence(still(posterior), prior), divergence(posterior, still(prior))


class Gaussian(NamedTuple):
    """Independent normal distributions of A components.

    Attributes:
        mean: f32 [..., A].
        log_std: f32 [..., A], logarithm of the standard deviation.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from jaxrl_dist.numeric import distributions
        >>> policy = distributions.Gaussian(mean=jnp.array([[0.0, 1.0]]), log_std=jnp.zeros((1, 2)))
        >>> print(policy.sample(jax.random.key(0)).shape, np.asarray(policy.log_prob(policy.mode())).round(3))
        (1, 2) [-1.838]
        >>> print(policy.kl(distributions.Gaussian(jnp.zeros((1, 2)), jnp.zeros((1, 2)))))
        [0.5]
    """

    mean: Array
    log_std: Array

    @property
    def squashes(self) -> bool:
        """Says whether actions differ from samples."""
        return False

    def sample(self, key: Array) -> Array:
        """Draws f32 [..., A]."""
        _check(self.mean, self.log_std)
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape)

    def log_prob(self, action: Array) -> Array:
        """Returns f32 [...], summed over the components of actions f32 [..., A]."""
        _check(self.mean, self.log_std, action)
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -(0.5 * jnp.square(z) + self.log_std + _HALF_LOG_2PI).sum(-1)

    def entropy(self, key: Array) -> Array:
        """Returns f32 [...], exact; the key is not used."""
        del key
        _check(self.mean, self.log_std)
        return (self.log_std + 0.5 + _HALF_LOG_2PI).sum(-1)

    def mode(self) -> Array:
        """Returns f32 [..., A], the mean."""
        return self.mean

    def action(self, sample: Array) -> Array:
        """Returns f32 [..., A], the sample as it is."""
        return sample

    def kl(self, other: "Gaussian") -> Array:
        """Returns f32 [...], KL(self ‖ other)."""
        _check(self.mean, self.log_std, other.mean, other.log_std)
        log_ratio = self.log_std - other.log_std
        distance = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return (0.5 * (jnp.exp(2 * log_ratio) + jnp.square(distance) - 1) - log_ratio).sum(-1)


class TanhGaussian(NamedTuple):
    """Distribution of tanh(x) for Gaussian x, on (−1, 1).

    Source: Haarnoja et al. 2018, "Soft actor-critic", appendix C.

    Attributes:
        mean: f32 [..., A], of x.
        log_std: f32 [..., A], of x.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from jaxrl_dist.numeric import distributions
        >>> policy = distributions.TanhGaussian(mean=jnp.array([[0.0, 1.0]]), log_std=jnp.full((1, 2), -1.0))
        >>> sample = policy.sample(jax.random.key(0))  # is kept, for `log_prob`
        >>> print(np.asarray(policy.action(policy.mode())).round(3), policy.log_prob(sample).shape)
        [[0.    0.762]] (1,)
    """

    mean: Array
    log_std: Array

    @property
    def squashes(self) -> bool:
        """Says whether actions differ from samples."""
        return True

    def sample(self, key: Array) -> Array:
        """Draws x, f32 [..., A]."""
        return self._base().sample(key)

    def log_prob(self, sample: Array) -> Array:
        """Returns f32 [...], the log-density of tanh(x) for samples x f32 [..., A]."""
        return self._base().log_prob(sample) - _log_slope(sample).sum(-1)

    def entropy(self, key: Array) -> Array:
        """Returns f32 [...], estimated without bias by one sample (as Brax does): there is no closed form."""
        return self._base().entropy(key) + _log_slope(self._base().sample(key)).sum(-1)

    def mode(self) -> Array:
        """Returns f32 [..., A], the mean, whose tanh is the median and the usual deterministic action."""
        return self.mean

    def action(self, sample: Array) -> Array:
        """Returns tanh(x), f32 [..., A] in [−1, 1]."""
        return jnp.tanh(sample)

    def kl(self, other: "TanhGaussian") -> Array:
        """Returns f32 [...], KL(self ‖ other): that of the Gaussians, which a bijection does not change."""
        return self._base().kl(other._base())

    def _base(self) -> Gaussian:
        return Gaussian(self.mean, self.log_std)


def _check(*arrays: Array) -> None:
    chex.assert_equal_shape(arrays)
    chex.assert_type(arrays, jnp.float32)


def _expectation(logits: Array, x: Array) -> Array:
    """Means x [..., A] over the actions that logits allow; the others count 0 in value and gradient."""
    _check(logits, x)
    allowed = logits > -jnp.inf
    return jnp.sum(jax.nn.softmax(logits) * jnp.where(allowed, x, 0.0), -1)


def _log_slope(x: Array) -> Array:
    """Returns log(1 − tanh²x) without underflow."""
    return 2 * (float(np.log(2)) - x - jax.nn.softplus(-2 * x))
