"""Parts of agents that learn from whole unrolls: the network's outputs, the items of a batch, sums over each item."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl_dist import networks, types
from jaxrl_dist.types import Array, ArrayTree


class Inputs(Protocol):
    """Inputs of the network for N items, rows or sequences."""

    @property
    def inputs(self) -> ArrayTree:
        """Leaves [N, ...] or [N, T, ...]."""

    @property
    def is_first(self) -> ArrayTree:
        """Bool [N, T] of sequences, () of rows."""

    @property
    def carry(self) -> ArrayTree:
        """Leaves [N, ...], before the first row of sequences."""


def items(net: networks.Network, rows: Any) -> Any:
    """Makes items of the rows of an unroll: one per row, or, for a recurrent network, one per column.

    Args:
        net: the network that learns from them.
        rows: a batch with the fields of `Inputs`, leaves [T, B, ...], carry [B, ...].
    """
    if net.recurrent:
        return swapped(rows._replace(carry=()))._replace(carry=rows.carry)
    rows = rows._replace(is_first=(), carry=())
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)


def item_outputs(net: networks.Network, network: ArrayTree, batch: Inputs) -> dict[str, Array]:
    """Returns the network's outputs of items: leaves [N, ...] of rows, [N, T, ...] of sequences."""
    if net.recurrent:
        rows, is_first = swapped((batch.inputs, batch.is_first))
        outputs: dict[str, Array] = swapped(net.unroll(network, batch.carry, rows, is_first)[0])
        return outputs
    if isinstance(batch.is_first, tuple):
        return networks.of_rows(net, network, batch.inputs)
    # For a network without a memory, a sequence is no more than its rows.
    shape = batch.is_first.shape
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.inputs)
    outputs = networks.of_rows(net, network, flat)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), outputs)


def summed(taught: Array, loss: Array, metrics: dict[str, Array], maxima: dict[str, Array]) -> types.LossOutput:
    """Sums f32 [N] or [N, T] over the taught rows of each item; takes the largest of each of `maxima`."""

    def per_item(x: Array) -> Array:
        return jnp.where(taught > 0, x, 0.0).reshape(x.shape[0], -1)

    loss, valid, metrics = jax.tree.map(lambda x: per_item(x).sum(-1), (loss, taught, metrics))
    maxima = jax.tree.map(lambda x: per_item(x).max(-1), maxima)
    return types.LossOutput(loss, valid, jnp.zeros_like(loss), metrics, maxima)


def swapped(tree: ArrayTree) -> ArrayTree:
    """Exchanges the first two axes of every leaf."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1), tree)
