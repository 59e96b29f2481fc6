"""Sums of priorities in wide trees, one for each column of a ring: sets priorities, and draws in proportion to them.

A tree is a tuple of levels f32 [B, P], leaves first; a node is the sum of its `FAN_OUT` children, and the last level is
the column's total, [B, 1]. Nodes are always summed anew from their children, never changed by a difference, so that
rounding errors do not accumulate. Source: Schaul et al. 2016, "Prioritized experience replay", appendix B.2.1 (a binary
tree).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxrl_dist.types import Array

FAN_OUT = 16

Tree = tuple[Array, ...]


def init(num_columns: int, num_items: int) -> Tree:
    """Makes trees of zeros.

    Args:
        num_columns: B.
        num_items: leaves of each.

    Returns:
        Tree, a tuple of levels f32 [B, P].

    Example:
        >>> from jaxrl_dist.replay import sum_tree
        >>> tree = sum_tree.init(num_columns=2, num_items=20)
        >>> [level.shape for level in tree]
        [(2, 32), (2, 16), (2, 1)]
    """
    return _levels(jnp.zeros((num_columns, num_items), jnp.float32))


def totals(tree: Tree) -> Array:
    """Returns f32 [B], the sum of each column's priorities."""
    return tree[-1][:, 0]


def get(tree: Tree, column: Array, item: Array) -> Array:
    """Returns f32 [N], the priorities of items i32 [N] of columns i32 [N]."""
    return tree[0][column, item]


def put(tree: Tree, column: Array, item: Array, value: Array) -> Tree:
    """Sets priorities.

    Args:
        tree: levels f32 [B, P]; changed and returned.
        column: i32 [N].
        item: i32 [N]; if an item comes twice, one of its values is kept.
        value: f32 [N], at least 0.

    Returns:
        The tree.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.replay import sum_tree
        >>> tree = sum_tree.init(num_columns=2, num_items=20)
        >>> tree = sum_tree.put(tree, jnp.array([0, 1]), jnp.array([3, 19]), jnp.array([1.0, 2.0]))
        >>> print(sum_tree.totals(tree), sum_tree.get(tree, jnp.array([1]), jnp.array([19])))
        [1. 2.] [2.]
    """
    levels = [tree[0].at[column, item].set(value)]
    for above in tree[1:]:
        item = item // FAN_OUT
        levels.append(above.at[column, item].set(_sums(levels[-1], column, item)))
    return tuple(levels)


def put_blocks(tree: Tree, num_items: int, column: Array, blocks: Sequence[tuple[Array, Array]]) -> Tree:
    """Sets the priorities of consecutive items, and sums up once for all blocks.

    Args:
        tree: levels f32 [B, P]; changed and returned.
        num_items: number of items, after which a block goes on at item 0.
        column: i32 [N], column of each block.
        blocks: pairs of the first item i32 [N] and values f32 [N, K], at least 0; a later pair overwrites an earlier.

    Returns:
        The tree.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.replay import sum_tree
        >>> tree, column = sum_tree.init(num_columns=1, num_items=20), jnp.array([0])
        >>> tree = sum_tree.put_blocks(tree, 20, column, [(jnp.array([18]), jnp.array([[1.0, 2.0, 4.0]]))])
        >>> print(tree[0][0, [18, 19, 0]], sum_tree.totals(tree))
        [1. 2. 4.] [7.]
    """
    column, leaves = column[:, None], tree[0]
    spans = [(first, value.shape[1]) for first, value in blocks]
    for first, value in blocks:
        leaves = leaves.at[column, (first[:, None] + jnp.arange(value.shape[1])) % num_items].set(value)
    levels = [leaves]
    for above in tree[1:]:
        nodes = levels[-1].shape[1] // FAN_OUT
        # The parents of a block that passes the end are consecutive, too, since node 0 follows the last node. A few
        # more than needed are summed anew, which changes nothing.
        spans = [(first // FAN_OUT, min(count // FAN_OUT + 3, nodes)) for first, count in spans]
        node = jnp.concatenate([(first[:, None] + jnp.arange(count)) % nodes for first, count in spans], axis=1)
        levels.append(above.at[column, node].set(_sums(levels[-1], column, node)))
    return tuple(levels)


def draw(tree: Tree, share: Array) -> tuple[Array, Array, Array]:
    """Finds the items at given shares of all priorities, in the order of columns and items.

    Args:
        tree: levels f32 [B, P]; at least one priority is positive, else the items that are returned have
            priority 0.
        share: f32 [N] in [0, 1); uniform shares draw items in proportion to their priorities.

    Returns:
        (column i32 [N], item i32 [N], priority f32 [N]). Rounding never leads to an item of priority 0 if any priority
        is positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.replay import sum_tree
        >>> tree = sum_tree.init(num_columns=2, num_items=20)
        >>> tree = sum_tree.put(tree, jnp.array([0, 1]), jnp.array([3, 19]), jnp.array([1.0, 3.0]))
        >>> column, item, priority = sum_tree.draw(tree, jnp.array([0.1, 0.3, 0.9]))
        >>> print(column, item, priority)
        [0 1 1] [ 3 19 19] [1. 3. 3.]
    """
    across = _levels(totals(tree)[None])
    total = across[-1][0, 0]

    def search() -> tuple[Array, Array]:
        rest = share * total
        row = node = jnp.zeros(share.shape, jnp.int32)
        for level in across[-2::-1]:
            node, rest = _descend(level, row, node, rest)
        column, node = node, jnp.zeros_like(node)
        for level in tree[-2::-1]:
            node, rest = _descend(level, column, node, rest)
        return column, node

    def nothing() -> tuple[Array, Array]:
        return jnp.zeros(share.shape, jnp.int32), jnp.zeros(share.shape, jnp.int32)

    # The result of a branch is stored. Without the branch, XLA's CPU compiler repeats the search for every number that
    # is read at the items found.
    column, node = jax.lax.cond(total > 0, search, nothing)
    return column, node, get(tree, column, node)


def _descend(level: Array, row: Array, node: Array, rest: Array) -> tuple[Array, Array]:
    """Chooses the child of each node into which `rest` falls; returns the child, and the rest within it."""
    children = _children(level)[row, node]
    start, chosen, before = jnp.zeros_like(rest), jnp.zeros_like(node), jnp.zeros_like(rest)
    for i in range(FAN_OUT):
        takes = (start <= rest) & (children[:, i] > 0)
        chosen, before = jnp.where(takes, i, chosen), jnp.where(takes, start, before)
        start = start + children[:, i]
    return node * FAN_OUT + chosen, rest - before


def _levels(leaves: Array) -> Tree:
    """Adds up all levels above leaves [B, P], each padded to whole nodes."""
    levels = [leaves]
    while levels[-1].shape[1] > 1:
        padding = -levels[-1].shape[1] % FAN_OUT
        levels[-1] = jnp.pad(levels[-1], ((0, 0), (0, padding)))
        levels.append(_children(levels[-1]).sum(-1))
    return tuple(levels)


def _sums(level: Array, column: Array, node: Array) -> Array:
    """Adds up the children of nodes [N] or [N, K]."""
    return _children(level)[column, node].sum(-1)


def _children(level: Array) -> Array:
    return level.reshape(level.shape[0], -1, FAN_OUT)


def stratified(key: Array, count: int) -> Array:
    """Draws shares, one uniform in each of as many equal parts of [0, 1).

    Args:
        key: typed key [].
        count: how many.

    Returns:
        f32 [count].

    Source: Schaul et al. 2016, appendix B.2.1.

    Example:
        >>> import jax
        >>> from jaxrl_dist.replay import sum_tree
        >>> print((sum_tree.stratified(jax.random.key(0), 4) * 4).astype(int))
        [0 1 2 3]
    """
    shares = (jnp.arange(count, dtype=jnp.float32) + jax.random.uniform(key, (count,))) / count
    return jnp.minimum(shares, 1 - 2.0**-24)
