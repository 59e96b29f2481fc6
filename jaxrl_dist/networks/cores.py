"""Cores between torso and heads: an LSTM that is cleared at FIRST rows, and a stack of frames."""

from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp


class Core(Protocol):
    """A core with a memory, a Flax module over time.

    T rows at once, one by one, or in pieces give the same result, and rows before a FIRST row have no influence on it.
    """

    def initial(self, batch_size: int) -> Any:
        """Returns the memory before any row, leaves [B, ...] of zeros."""

    def __call__(self, carry: Any, features: jax.Array, is_first: jax.Array) -> Any:
        """Maps a memory, features f32 [T, B, F] and bool [T, B] to (memory, features [T, B, F'])."""


class Lstm(nn.Module):
    """LSTM over time with resets, a `Core`; the input projection of all steps is one product.

    Source: Gers et al. 2000.

    Attributes:
        size: units.
        forget_bias: added to the forget gates; a cell fades by sigmoid(forget_bias) per step before it has learned.
    """

    size: int
    forget_bias: float

    @nn.nowrap
    def initial(self, batch_size: int) -> tuple[jax.Array, jax.Array]:
        """Returns hidden state and cell before any row, zeros f32 [B, size]."""
        return jnp.zeros((batch_size, self.size)), jnp.zeros((batch_size, self.size))

    @nn.compact
    def __call__(self, carry: Any, features: jax.Array, is_first: jax.Array) -> Any:
        w_input = self.param("input", nn.initializers.orthogonal(), (features.shape[-1], 4 * self.size))
        w_hidden = self.param("hidden", nn.initializers.orthogonal(), (self.size, 4 * self.size))
        bias = self.param("bias", nn.initializers.zeros_init(), (4 * self.size,))
        projected = features @ w_input + bias

        def step(carry: Any, x: Any) -> Any:
            row, first = x
            hidden, cell = jax.tree.map(lambda c: jnp.where(first[:, None], 0.0, c), carry)
            i, f, g, o = jnp.split(row + hidden @ w_hidden, 4, axis=-1)
            cell = nn.sigmoid(f + self.forget_bias) * cell + nn.sigmoid(i) * jnp.tanh(g)
            hidden = nn.sigmoid(o) * jnp.tanh(cell)
            return (hidden, cell), hidden

        return jax.lax.scan(step, carry, (projected, is_first))


def stack_step(carry: jax.Array, observation: jax.Array, is_first: jax.Array) -> Any:
    """Appends a frame; at FIRST the whole stack is that frame, as EnvPool's own stack does."""
    frames = jnp.concatenate([carry, observation[:, None]], axis=1)
    first = is_first.reshape(-1, *(1,) * observation.ndim)
    frames = jnp.where(first, observation[:, None], frames)
    stacked = jnp.moveaxis(frames, 1, -1)
    return frames[:, 1:], stacked.reshape(*stacked.shape[: observation.ndim - 1], -1)


def stacked_shape(shape: tuple[int, ...], num_frames: int) -> tuple[int, ...]:
    return shape if num_frames == 1 else (*shape[:-1], shape[-1] * num_frames)
