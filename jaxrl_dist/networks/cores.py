"""Cores between torso and heads: memories that are cleared at FIRST rows, and a stack of frames."""

from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import types


class Core(Protocol):
    """A core with a memory, a Flax module over time.

    T rows at once, one by one, or in pieces give the same result, and rows before a FIRST row have no influence on it.
    """

    def initial(self, batch_size: int) -> Any:
        """Returns the memory before any row, leaves [B, ...] of zeros."""

    def __call__(self, carry: Any, features: jax.Array, is_first: jax.Array) -> Any:
        """Maps a memory, features f32 [T, B, F] and bool [T, B] to (memory, features [T, B, F'])."""


class Lstm(nn.Module):
    """LSTM, a `Core`; the input projection of all rows is one product.

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
        # The bias of the forget gates is added once for all rows.
        bias = bias + self.forget_bias * jnp.repeat(jnp.array([0.0, 1.0, 0.0, 0.0]), self.size)
        carry, hidden, _ = _lstm(features @ w_input + bias, w_hidden, *carry, is_first)
        return carry, hidden


def _rows_per_pass(length: int) -> int:
    """Returns how many rows share a pass of a loop over time, and so its own kernels; a rest of rows costs more."""
    return 5 if length % 5 == 0 else 4


def _gates(rows: jax.Array) -> tuple[jax.Array, ...]:
    i, f, g, o = jnp.split(rows, 4, axis=-1)
    return nn.sigmoid(i), nn.sigmoid(f), jnp.tanh(g), nn.sigmoid(o)


def _product(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Multiplies in the dtype of the weights; the result has that of x, which is a memory's."""
    return (x.astype(weights.dtype) @ weights).astype(x.dtype)


def _cleared(memory: jax.Array, first: jax.Array) -> jax.Array:
    return jnp.where(first[..., None], 0.0, memory)


@jax.custom_vjp
def _lstm(
    rows: jax.Array, w_hidden: jax.Array, hidden: jax.Array, cell: jax.Array, is_first: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], jax.Array, jax.Array]:
    """Returns the last hidden state and cell f32 [B, H], and those of all projected rows [T, B, 4H]: f32 [T, B, H].

    The last ones are results of their own, so that a burn-in, which needs no others, writes no others. The gradient is
    written by hand. Going back keeps the states of all rows, and computes the gates of all rows anew in one product,
    and the gradient of the weights in another: JAX's own gradient writes every part of every gate in each pass of the
    loop, and reads it again.
    """

    def step(carry: Any, x: Any) -> Any:
        (hidden, cell), (row, first) = carry, x
        # Cleared behind the product, in the kernel of the gates: the same numbers, and one kernel less.
        i, f, g, o = _gates(row + _cleared(_product(hidden, w_hidden), first))
        cell = f * _cleared(cell, first) + i * g
        hidden = o * jnp.tanh(cell)
        return (hidden, cell), (hidden, cell)

    last, every = jax.lax.scan(step, (hidden, cell), (rows, is_first), unroll=_rows_per_pass(len(rows)))
    return last, *every


def _lstm_forward(
    rows: jax.Array, w_hidden: jax.Array, hidden: jax.Array, cell: jax.Array, is_first: jax.Array
) -> tuple[Any, Any]:
    last, hiddens, cells = _lstm(rows, w_hidden, hidden, cell, is_first)
    return (last, hiddens, cells), (rows, w_hidden, hidden, cell, is_first, hiddens, cells)


def _lstm_backward(kept: Any, to_outputs: tuple[Any, jax.Array, jax.Array]) -> tuple[Any, ...]:
    """Returns gradients of the arguments of `_lstm`; names are those of what each is the gradient to."""
    rows, w_hidden, hidden, cell, is_first, hiddens, cells = kept
    before, cell_before = (
        _cleared(jnp.concatenate([first[None], memories[:-1]]), is_first)
        for first, memories in ((hidden, hiddens), (cell, cells))
    )
    i, f, g, o = _gates(rows + _product(before, w_hidden))
    squashed = jnp.tanh(cells)
    # Factors of the gradient to a cell, to its gates before they are squashed, and of that to a hidden state.
    by_cell = jnp.concatenate([g * i * (1 - i), cell_before * f * (1 - f), i * (1 - g * g)], axis=-1)
    by_hidden, through = squashed * o * (1 - o), o * (1 - squashed * squashed)

    def step(carry: Any, x: Any) -> Any:
        to_hidden, to_cell = carry
        own_hidden, own_cell, by_cell, by_hidden, through, f, first = x
        to_hidden = to_hidden + own_hidden
        to_cell = to_cell + own_cell + to_hidden * through
        to_row = jnp.concatenate([jnp.tile(to_cell, 3) * by_cell, to_hidden * by_hidden], axis=-1)
        return (_cleared(_product(to_row, w_hidden.T), first), _cleared(to_cell * f, first)), to_row

    to_last, *to_every = to_outputs
    factors = (*to_every, by_cell, by_hidden, through, f, is_first)
    (to_hidden, to_cell), to_rows = jax.lax.scan(step, to_last, factors, reverse=True, unroll=_rows_per_pass(len(rows)))
    to_rows = to_rows.astype(rows.dtype)
    to_weights = jnp.einsum("tbh,tbk->hk", before.astype(w_hidden.dtype), to_rows.astype(w_hidden.dtype))
    return to_rows, to_weights, to_hidden, to_cell, np.zeros(is_first.shape, jax.dtypes.float0)


_lstm.defvjp(_lstm_forward, _lstm_backward)


class _Hidden(nn.Module):
    """A core whose memory is one array, which is what it puts out."""

    size: int
    forget_bias: float

    @nn.nowrap
    def initial(self, batch_size: int) -> jax.Array:
        """Returns the memory before any row, zeros f32 [B, size]."""
        return jnp.zeros((batch_size, self.size))


class Gru(_Hidden):
    """Gated recurrent unit whose reset gate acts on the product with the memory, so that a row takes one product.

    Source: Cho et al. 2014, section 2.3, where the reset gate acts on the memory before the product; cuDNN's form.

    Attributes:
        size: units.
        forget_bias: added to the gates that keep the memory, which fades by sigmoid(forget_bias) per row at first.
    """

    @nn.compact
    def __call__(self, memory: jax.Array, features: jax.Array, is_first: jax.Array) -> Any:
        w_input = self.param("input", nn.initializers.orthogonal(), (features.shape[-1], 3 * self.size))
        w_hidden = self.param("hidden", nn.initializers.orthogonal(), (self.size, 3 * self.size))
        bias = self.param("bias", nn.initializers.zeros_init(), (3 * self.size,))

        def step(memory: jax.Array, x: Any) -> Any:
            row, first = x
            memory = _cleared(memory, first)
            (reset, keep, new), (r, k, n) = (jnp.split(x, 3, axis=-1) for x in (row, _product(memory, w_hidden)))
            new = jnp.tanh(new + nn.sigmoid(reset + r) * n)
            keep = nn.sigmoid(keep + k + self.forget_bias)
            memory = keep * memory + (1 - keep) * new
            return memory, memory

        return jax.lax.scan(step, memory, (features @ w_input + bias, is_first))


class MinGru(_Hidden):
    """Gated recurrent unit whose gates see no memory, so that all rows are computed in parallel.

    h_t = (1 − z_t) h_{t−1} + z_t W_h x_t with z_t = sigmoid(W_z x_t), by an associative scan over rows.

    Source: Feng et al. 2024, section 3.1.2 (minGRU), in linear space, where a memory may be negative.

    Attributes:
        size: units.
        forget_bias: taken from the gate that writes; the memory fades by sigmoid(forget_bias) per row at first.
    """

    @nn.compact
    def __call__(self, memory: jax.Array, features: jax.Array, is_first: jax.Array) -> Any:
        gate = nn.Dense(self.size, kernel_init=nn.initializers.orthogonal(), name="gate")(features)
        new = nn.Dense(self.size, kernel_init=nn.initializers.orthogonal(), name="new")(features)
        gate, new = gate.astype(memory.dtype), new.astype(memory.dtype)
        keep, started = nn.sigmoid(self.forget_bias - gate), is_first[..., None]
        keep, written, started = jax.lax.associative_scan(_after, (keep, (1 - keep) * new, started))
        memories = jnp.where(started, written, keep * memory + written)
        return memories[-1], memories


def _after(earlier: Any, later: Any) -> Any:
    """Returns what two stretches of rows do to a memory: the share kept, what is written, and if it is cleared."""
    keep, written, started = later
    # A product would let what is not finite through to the rows behind a FIRST row.
    written = jnp.where(started, written, keep * earlier[1] + written)
    return earlier[0] * keep, written, earlier[2] | started


class FrameStack(NamedTuple):
    """Stacks the last k frames of the leaves of an observation that are images, of all numbers if none is.

    Attributes:
        num_frames: k; 1 stacks none.
        chosen: whether each leaf is stacked, in the order of `jax.tree.leaves`.
    """

    num_frames: int
    chosen: tuple[bool, ...]

    def structs(self, observation: Any) -> Any:
        """Returns the shapes of stacked observations; k frames lie behind each other on the last axis."""
        if self.num_frames == 1:
            return observation

        def stacked(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*x.shape[:-1], (x.shape or (1,))[-1] * self.num_frames), x.dtype)

        return self._with(observation, [stacked(x) for x in self._chosen(observation)])

    def initial(self, observation: Any, batch_size: int) -> Any:
        """Returns the frames before any row, zeros [B, k − 1, ...] of the chosen leaves, () if none are stacked."""
        if self.num_frames == 1:
            return ()
        shape = (batch_size, self.num_frames - 1)
        frames = [jnp.zeros((*shape, *x.shape), x.dtype) for x in self._chosen(observation)]
        return self._kept(observation, frames)

    def push(self, frames: Any, observation: Any, is_first: jax.Array) -> tuple[Any, Any]:
        """Returns the frames after rows [T, B, ...], and the rows stacked."""
        if self.num_frames == 1:
            return frames, observation

        def step(carry: Any, row: Any) -> Any:
            pairs = [_stacked(*pair, row[1]) for pair in zip(carry, row[0], strict=True)]
            return tuple(zip(*pairs, strict=True))

        rows = self._chosen(observation)
        before = frames if types.is_tree(observation) else (frames,)
        after, stacked = jax.lax.scan(step, tuple(before), (tuple(rows), is_first))
        return self._kept(observation, after), self._with(observation, stacked)

    def _chosen(self, observation: Any) -> list[Any]:
        leaves = jax.tree.leaves(observation)
        return [leaf for leaf, is_chosen in zip(leaves, self.chosen, strict=True) if is_chosen]

    def _with(self, observation: Any, stacked: Any) -> Any:
        """Puts stacked leaves into the places of the chosen ones."""
        leaves, structure = jax.tree.flatten(observation)
        rest = iter(stacked)
        every = [next(rest) if chosen else x for x, chosen in zip(leaves, self.chosen, strict=True)]
        return jax.tree.unflatten(structure, every)

    def _kept(self, observation: Any, frames: Any) -> Any:
        """Returns frames as a carry keeps them: a tuple for a tree."""
        return tuple(frames) if types.is_tree(observation) else frames[0]


def _stacked(frames: jax.Array, observation: jax.Array, is_first: jax.Array) -> Any:
    """Appends a frame; at FIRST the whole stack is that frame, as EnvPool's own stack does."""
    frames = jnp.concatenate([frames, observation[:, None]], axis=1)
    first = is_first.reshape(-1, *(1,) * observation.ndim)
    frames = jnp.where(first, observation[:, None], frames)
    stacked = jnp.moveaxis(frames, 1, -1)
    return frames[:, 1:], stacked.reshape(*observation.shape[:-1], -1) if observation.ndim > 1 else stacked
