"""Parts of agents that learn from whole unrolls: the network's outputs, the items of a batch, sums over each item."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl_dist import networks, types
from jaxrl_dist.numeric import vectors
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

    Returns:
        The batch, leaves [T · B, ...] without `is_first` and `carry`, or [B, T, ...].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import pqn
        >>> from jaxrl_dist.agents.shared import sequences
        >>> net = networks.make(networks.Config(torso="mlp"), envs.make("toy:walk").spec, [networks.Head("q", 3, 1.0)])
        >>> seen, row = jnp.zeros((4, 2, 2)), jnp.zeros((4, 2))  # T = 4, B = 2
        >>> rows = pqn.Batch(inputs=seen, is_first=row > 0, carry=(), action=row.astype(int), target=row, taught=row)
        >>> batch = sequences.items(net, rows)
        >>> batch.inputs.shape, batch.target.shape
        ((8, 2), (8,))
    """
    if net.recurrent:
        return swapped(rows._replace(carry=()))._replace(carry=rows.carry)
    rows = rows._replace(is_first=(), carry=())
    return vectors.flat(rows)


def item_outputs(net: networks.Network, network: ArrayTree, batch: Inputs) -> dict[str, Array]:
    """Returns the network's outputs of items.

    Args:
        net: the network.
        network: its parameters.
        batch: N items, rows or sequences.

    Returns:
        Name of a head -> [N, ...] of rows, [N, T, ...] of sequences.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import pqn
        >>> from jaxrl_dist.agents.shared import sequences
        >>> net = networks.make(networks.Config(torso="mlp"), envs.make("toy:walk").spec, [networks.Head("q", 3, 1.0)])
        >>> row = jnp.zeros(8)
        >>> batch = pqn.Batch(inputs=jnp.zeros((8, 2)), is_first=(), carry=(), action=row, target=row, taught=row)
        >>> sequences.item_outputs(net, net.init(jax.random.key(0)), batch)["q"].shape
        (8, 3)
    """
    if net.recurrent:
        rows, is_first = swapped((batch.inputs, batch.is_first))
        outputs: dict[str, Array] = swapped(net.unroll(network, batch.carry, rows, is_first)[0])
        return outputs
    if isinstance(batch.is_first, tuple):
        return networks.of_rows(net, network, batch.inputs)
    # For a network without a memory, a sequence is no more than its rows.
    shape = batch.is_first.shape
    outputs = networks.of_rows(net, network, vectors.flat(batch.inputs))
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), outputs)


def summed(taught: Array, loss: Array, metrics: dict[str, Array], maxima: dict[str, Array]) -> types.LossOutput:
    """Sums numbers over the taught rows of each item.

    Args:
        taught: f32 [N] or [N, T], 1 where the row teaches.
        loss: f32 [N] or [N, T].
        metrics: name -> f32 [N] or [N, T].
        maxima: name -> f32 [N] or [N, T]; of these the largest is taken.

    Returns:
        `types.LossOutput`, leaves [N], with priorities 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import sequences
        >>> taught, loss = jnp.array([[1.0, 1.0], [1.0, 0.0]]), jnp.array([[1.0, 2.0], [4.0, 8.0]])
        >>> output = sequences.summed(taught, loss, metrics={}, maxima={"largest": loss})
        >>> print(output.loss, output.valid, output.maxima["largest"])
        [3. 4.] [2. 1.] [2. 4.]
    """

    def per_item(x: Array) -> Array:
        return jnp.where(taught > 0, x, 0.0).reshape(*x.shape[: x.ndim - taught.ndim + 1], -1)

    # One sum of all rows instead of one sum each.
    valid, *sums = per_item(jnp.stack([taught, *metrics.values()])).sum(-1)
    loss, maxima = per_item(loss).sum(-1), jax.tree.map(lambda x: per_item(x).max(-1), maxima)
    return types.LossOutput(loss, valid, jnp.zeros_like(loss), dict(zip(metrics, sums, strict=True)), maxima)


def swapped(tree: ArrayTree) -> ArrayTree:
    """Exchanges the first two axes of every leaf."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1), tree)
