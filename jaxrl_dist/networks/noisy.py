"""Noisy linear layers and their noise.

Source: Fortunato et al. 2018, "Noisy networks for exploration".
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

_DEVIATION = "kernel_deviation"


def num_factors(params: Any) -> int:
    """Counts the factors of all noisy layers among parameters or their shapes: one per input and output of a layer."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return sum(sum(leaf.shape) for path, leaf in leaves if getattr(path[-1], "key", "") == _DEVIATION)


def draw(key: jax.Array, shape: tuple[int, ...], *, count: int) -> jax.Array:
    """Draws f(ε) = sgn(ε)√|ε| for normal ε, from a word of random bits each.

    Sign and size come from different bits, so that the root is the last costly operation. XLA repeats the operations
    after it for every weight; when drawing the normal was one of these, a gradient step took twice as long.
    """
    bits = jax.random.bits(key, (*shape, count), jnp.uint32)
    size = jnp.sqrt(math.sqrt(2.0) * jax.lax.erf_inv((bits >> 9).astype(jnp.float32) * 2.0**-23))
    return jnp.where(bits & 1, size, -size)


class Noisy(nn.Module):
    """A linear layer with factorised Gaussian noise on its weights, of p + q factors for p inputs and q outputs.

    It computes in bfloat16 if its input is.

    Source: Fortunato et al. 2018, "Noisy networks for exploration", equations 10 and 11 and section 3.2.
    """

    size: int
    deviation: float

    @nn.compact
    def __call__(self, x: jax.Array, noise: jax.Array | None) -> jax.Array:
        inputs = x.shape[-1]
        bound = inputs**-0.5

        def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

        deviation = nn.initializers.constant(self.deviation * bound)
        kernel, bias = self.param("kernel", uniform, (inputs, self.size)), self.param("bias", uniform, (self.size,))
        kernel_deviation = self.param(_DEVIATION, deviation, (inputs, self.size))
        bias_deviation = self.param("bias_deviation", deviation, (self.size,))
        if x.dtype == jnp.bfloat16:
            parts = kernel, bias, kernel_deviation, bias_deviation, noise
            kernel, bias, kernel_deviation, bias_deviation, noise = jax.tree.map(lambda y: y.astype(x.dtype), parts)
        if noise is None:
            return x @ kernel + bias
        noise_in, noise_out = jnp.split(noise, (inputs,), axis=-1)
        if noise.ndim == 1:
            weights = kernel + kernel_deviation * noise_in[:, None] * noise_out
            return x @ weights + bias + bias_deviation * noise_out
        # (x ∘ ε_in) W ∘ ε_out is x times the noisy part of the weights, without forming those of every row.
        return x @ kernel + bias + ((x * noise_in) @ kernel_deviation + bias_deviation) * noise_out
