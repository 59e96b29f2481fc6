r"""GTrXL: a transformer whose layers are gated, as a core that attends to the last rows of an episode.

Each of its layers maps rows x, with LN for layer normalisation, A for attention and M for an MLP of one hidden layer:

.. math:: y = g(x, \mathrm{relu}(A(\mathrm{LN}(x)))), \quad x' = g(y, \mathrm{relu}(M(\mathrm{LN}(y))))

The gate g is a GRU's, whose bias opens it little at first, so that an untrained core passes rows on:

.. math:: r = \sigma(W_r y + U_r x), \quad z = \sigma(W_z y + U_z x - b)

.. math:: g(x, y) = (1 - z) x + z \tanh(W_g y + U_g (r x))

Every row attends to itself and to as many rows before it as the memory holds, wherever an unroll is cut; in the paper
rows late in an unroll attend to more. Rows of the memory have no gradient.

Source: Parisotto et al. 2020, "Stabilizing transformers for reinforcement learning", sections 3.1 and 3.2; relative
positions: Dai et al. 2019, "Transformer-XL", section 3.3.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


class GTrXL(nn.Module):
    """A `cores.Core`; its memory is the inputs of each layer at the last rows, and whether these are of this episode.

    Attributes:
        size: D, numbers of a row.
        layers: number of layers.
        heads: of attention, a divisor of D.
        rows: W, rows before its own that a row attends to, in each layer.
    """

    size: int
    layers: int
    heads: int
    rows: int

    @nn.nowrap
    def initial(self, batch_size: int) -> Any:
        """Returns rows f32 [B, W, D] of each layer, and bool [B, W], all zeros and False; so are rows of no episode."""
        rows = tuple(jnp.zeros((batch_size, self.rows, self.size)) for _ in range(self.layers))
        return rows, jnp.zeros((batch_size, self.rows), bool)

    @nn.compact
    def __call__(self, carry: Any, features: jax.Array, is_first: jax.Array) -> Any:
        memories, is_kept = carry
        x = nn.Dense(self.size, name="input")(features).swapaxes(0, 1)
        episode = jnp.cumsum(is_first.T, axis=1, dtype=jnp.int32)
        # Number of each key's episode: that of the memory is 0, −1 stands for rows of earlier ones.
        of_key = jnp.concatenate([jnp.where(is_kept, 0, -1), episode], 1)
        distance = self.rows + np.arange(x.shape[1])[:, None] - np.arange(of_key.shape[1])
        is_near = (distance >= 0) & (distance <= self.rows)
        visible = jnp.asarray(is_near) & (episode[:, :, None] == of_key[:, None, :])
        is_kept = (of_key == episode[:, -1:])[:, -self.rows :]
        after = []
        for i, memory in enumerate(memories):
            seen = jnp.concatenate([jax.lax.stop_gradient(memory).astype(x.dtype), x], 1)
            after.append(jnp.where(is_kept[..., None], seen[:, -self.rows :], 0.0).astype(memory.dtype))
            x = _Layer(self.heads, name=f"layer_{i}")(x, seen, visible)
        return (tuple(after), is_kept), x.swapaxes(0, 1).astype(memories[0].dtype)


class _Layer(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, seen: jax.Array, visible: jax.Array) -> jax.Array:
        """Maps rows [B, T, D] that see rows [B, W + T, D], the last of which they are, where bool [B, T, W + T]."""
        size = x.shape[-1]
        normal = nn.LayerNorm(name="norm_attention")(seen)
        found = _Attention(self.heads, name="attention")(normal, visible)
        y = _Gate(name="gate_attention")(x, nn.relu(found))
        inner = nn.relu(nn.Dense(4 * size, name="wide")(nn.LayerNorm(name="norm_mlp")(y)))
        return _Gate(name="gate_mlp")(y, nn.relu(nn.Dense(size, name="narrow")(inner)))  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """Attention by contents and by distances: (q + u) k + (q + v) r of each distance (Dai et al. 2019, section 3.3)."""

    heads: int

    @nn.compact
    def __call__(self, seen: jax.Array, visible: jax.Array) -> jax.Array:
        batch, length, keys = visible.shape
        size, of_head = seen.shape[-1], seen.shape[-1] // self.heads
        # A row that is not finite must not reach those that do not see it; by itself it passes the gate.
        seen = jnp.where(jnp.isfinite(seen), seen, 0.0)

        def split(x: jax.Array) -> jax.Array:
            return x.reshape(*x.shape[:-1], self.heads, of_head)

        query = split(nn.Dense(size, use_bias=False, name="query")(seen[:, -length:]))
        key, value = (split(nn.Dense(size, use_bias=False, name=name)(seen)) for name in ("key", "value"))
        position = split(
            nn.Dense(size, use_bias=False, name="distance")(_waves(keys - length, size).astype(seen.dtype))
        )
        by_content, by_distance = (
            self.param(name, nn.initializers.zeros_init(), (self.heads, of_head)) for name in ("u", "v")
        )
        content = jnp.einsum("bthd,bshd->bhts", query + by_content, key)
        # Distances from the largest to 0, which lie at keys t … t + W of row t.
        places = jnp.einsum("bthd,whd->bhtw", query + by_distance, position)
        scores = (content + _shifted(places)).astype(jnp.float32) / math.sqrt(of_head)
        weights = jax.nn.softmax(jnp.where(visible[:, None], scores, -jnp.inf)).astype(value.dtype)
        found = jnp.einsum("bhts,bshd->bthd", weights, value).reshape(batch, length, size)
        return nn.Dense(size, use_bias=False, name="out")(found)  # type: ignore[no-any-return]


def _shifted(x: jax.Array) -> jax.Array:
    """Moves row t of [..., T, W + 1] to the right by t, in [..., T, W + T]; without a gather."""
    *lead, length, width = x.shape
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, length)])
    flat = padded.reshape(*lead, length * (width + length))[..., : length * (width + length - 1)]
    return flat.reshape(*lead, length, width + length - 1)


def _waves(largest: int, size: int) -> np.ndarray:
    """Returns sines and cosines f32 [W + 1, D] of the distances W … 0 (Vaswani et al. 2017, section 3.5)."""
    distance = np.arange(largest, -1, -1)[:, None]
    frequency = 10_000.0 ** (-np.arange(0, size, 2) / size)
    return np.concatenate([np.sin(distance * frequency), np.cos(distance * frequency)], -1)[:, :size].astype(np.float32)


class _Gate(nn.Module):
    """The gate of a GRU (section 3.2); b is 2 at first, as in the paper."""

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        size = x.shape[-1]
        reset, keep, new = jnp.split(nn.Dense(3 * size, use_bias=False, name="w")(y), 3, axis=-1)
        of_reset, of_keep = jnp.split(nn.Dense(2 * size, use_bias=False, name="u")(x), 2, axis=-1)
        bias = self.param("bias", nn.initializers.constant(2.0), (size,))
        opened = nn.sigmoid(keep + of_keep - bias)
        reset_x = nn.sigmoid(reset + of_reset) * x
        return (1 - opened) * x + opened * jnp.tanh(new + nn.Dense(size, use_bias=False, name="u_new")(reset_x))
