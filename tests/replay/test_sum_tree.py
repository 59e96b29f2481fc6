"""Trees of priorities: every level is the sum of the one below, and items are drawn exactly in proportion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_dist.replay import sum_tree


def _check_sums(tree, leaves):
    """Compares every level with float64 sums of the leaves [B, M]."""
    columns, items = leaves.shape
    np.testing.assert_array_equal(np.asarray(tree[0])[:, :items], leaves)
    assert (np.asarray(tree[0])[:, items:] == 0).all()
    sums = np.asarray(tree[0], np.float64)
    for level in tree[1:]:
        sums = sums.reshape(columns, -1, sum_tree.FAN_OUT).sum(-1)
        padded = np.pad(sums, ((0, 0), (0, level.shape[1] - sums.shape[1])))
        np.testing.assert_allclose(level, padded, rtol=1e-6)
        sums = padded
    np.testing.assert_allclose(sum_tree.totals(tree), leaves.sum(1, dtype=np.float64), rtol=1e-6)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(data=st.data(), columns=st.integers(1, 4), items=st.sampled_from([1, 2, 15, 16, 17, 37, 256, 257, 600]))
def test_sums_hold_after_any_writes(data, columns, items):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    tree, leaves = sum_tree.init(columns, items), np.zeros((columns, items), np.float32)
    for _ in range(4):
        if data.draw(st.booleans()):
            column, item = rng.integers(0, columns, 9), rng.integers(0, items, 9)
            value = (column + item + 1).astype(np.float32)
            tree = sum_tree.put(tree, *map(jnp.asarray, (column, item, value)))
            leaves[column, item] = value
        else:
            count = data.draw(st.sampled_from([1, 3, 17, 64]).filter(lambda count: count <= items))
            column = rng.permutation(columns)[: data.draw(st.integers(1, columns))]
            blocks = []
            for _ in range(2):
                first, value = rng.integers(0, items, len(column)), rng.random((len(column), count)).astype(np.float32)
                blocks.append((jnp.asarray(first), jnp.asarray(value)))
                leaves[column[:, None], (first[:, None] + np.arange(count)) % items] = value
            tree = sum_tree.put_blocks(tree, items, jnp.asarray(column), blocks)
        _check_sums(tree, leaves)


@pytest.mark.parametrize(("columns", "items"), [(1, 1), (1, 5000), (40, 37), (300, 3)])
def test_items_are_drawn_in_proportion(columns, items):
    rng = np.random.default_rng(columns)
    leaves = rng.random((columns, items)) ** 4 * (rng.random((columns, items)) < 0.7)
    leaves[0, 0] = 1e-3
    column = np.arange(columns)
    tree = sum_tree.put_blocks(
        sum_tree.init(columns, items),
        items,
        jnp.asarray(column),
        [(jnp.zeros(columns, jnp.int32), jnp.asarray(leaves, jnp.float32))],
    )
    count = 200_000
    share = (jnp.arange(count) + 0.5) / count
    drawn = jax.jit(sum_tree.draw)(tree, share)
    flat = np.asarray(drawn[0]) * items + np.asarray(drawn[1])
    assert (np.diff(flat) >= 0).all(), "shares rise through columns and items"
    np.testing.assert_array_equal(drawn[2], leaves.astype(np.float32).ravel()[flat])
    assert (np.asarray(drawn[2]) > 0).all()
    # A fine grid of shares meets an item as often as its float64 probability says, but for its ends and rounding.
    expected = leaves.ravel() / leaves.sum() * count
    assert np.abs(np.bincount(flat, minlength=leaves.size) - expected).max() <= 1 + 2e-7 * count


def test_rounding_never_leads_to_an_item_without_priority():
    """Sums of f32 leave targets beyond the last item, and zeros stand at both ends of every node."""
    items = 4096
    leaves = np.full(items, 0.1, np.float32)
    leaves[np.arange(items) % 16 > 9] = 0
    leaves[np.arange(items) % 16 < 3] = 0
    leaves[-300:] = 0
    tree = sum_tree.put_blocks(
        sum_tree.init(1, items),
        items,
        jnp.zeros(1, jnp.int32),
        [(jnp.zeros(1, jnp.int32), jnp.asarray(leaves)[None])],
    )
    ends = np.nextafter(np.float32(1), np.float32(0)) - np.arange(1000, dtype=np.float32) * np.float32(2**-24)
    share = jnp.concatenate([jnp.asarray(ends), jnp.zeros(3), jnp.linspace(0, 1, 5000, endpoint=False)])
    _, item, priority = sum_tree.draw(tree, share)
    assert (np.asarray(priority) > 0).all()
    assert int(item[0]) == np.flatnonzero(leaves)[-1]
    assert int(item[1001]) == np.flatnonzero(leaves)[0]


def test_no_share_at_the_border_of_two_items_leads_to_one_without_priority():
    """The rest of a share, after the subtractions on its way down, may be as large as all of a node's items."""
    items, rng = 4096, np.random.default_rng(0)
    draw = jax.jit(sum_tree.draw)
    for _ in range(24):
        leaves = rng.random(items).astype(np.float32) ** 3
        leaves[(np.arange(items) % 16 > 3) | (rng.random(items) < 0.5)] = 0
        put = [(jnp.zeros(1, jnp.int32), jnp.asarray(leaves)[None])]
        tree = sum_tree.put_blocks(sum_tree.init(1, items), items, jnp.zeros(1, jnp.int32), put)
        border = np.cumsum(leaves, dtype=np.float64)
        border = (border / border[-1]).astype(np.float32)
        around = np.concatenate([np.nextafter(border, np.float32(-1)), border, np.nextafter(border, np.float32(2))])
        share = np.clip(around, 0, np.float32(1 - 2**-24))
        _, _, priority = draw(tree, jnp.asarray(share))
        assert (np.asarray(priority) > 0).all()


def test_a_tree_of_zeros_gives_priority_zero():
    _, _, priority = sum_tree.draw(sum_tree.init(3, 100), jnp.asarray([0.0, 0.5, 0.99]))
    np.testing.assert_array_equal(priority, 0)


def test_stratified_shares_lie_one_in_each_part():
    for seed in range(20):
        share = np.asarray(sum_tree.stratified(jax.random.key(seed), 512))
        np.testing.assert_array_equal(np.floor(share * 512).astype(int), np.arange(512))
        assert share.max() < 1
    # A last share that rounds to 1 would fall behind the last item.
    assert float(sum_tree.stratified(jax.random.key(1), 2**21).max()) == 1 - 2.0**-24
    first = [float(sum_tree.stratified(jax.random.key(seed), 4)[0]) for seed in range(400)]
    assert 0.11 < np.mean(first) < 0.14
