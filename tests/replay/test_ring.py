"""The ring: what is read back is what was written, no window crosses the write head, windows are uniform."""

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from fakes import rings
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_dist import types
from jaxrl_dist.numeric import permutations


@settings(max_examples=15, deadline=None)
@given(
    length=st.integers(1, 5),
    blocks=st.integers(2, 4),
    columns=st.integers(1, 3),
    unrolls=st.integers(1, 11),
    lookahead=st.integers(1, 3),
)
def test_windows_are_consecutive_rows_of_one_column_that_were_not_overwritten(
    length, blocks, columns, unrolls, lookahead
):
    rows = length * blocks
    if unrolls * length < lookahead + 1 or rows < lookahead + 1:
        return
    shard = rings.make(rows * columns, columns, length, lookahead=lookahead)
    sample = shard.sample(rings.filled(shard, unrolls, length, columns), jax.random.key(unrolls), rings.NOW)
    time = np.asarray(sample.sequences.steps.timestep.reward)
    column = np.asarray(sample.sequences.steps.action)
    assert time.shape == (lookahead + 1, 64)
    np.testing.assert_array_equal(np.diff(time, axis=0), 1.0)
    assert (column == column[0]).all()
    newest = unrolls * length - 1
    assert time.max() <= newest
    assert time.min() >= max(0, newest + 1 - rows)
    np.testing.assert_array_equal(np.asarray(sample.sequences.steps.timestep.observation)[..., 0], time)


def test_windows_are_drawn_uniformly_over_all_that_are_valid():
    shard = rings.make(24, 2, 4, batch=20_000)
    sample = shard.sample(rings.filled(shard, 5, 4, 2), jax.random.key(0), rings.NOW)
    time, column = (np.asarray(x[0]) for x in (sample.sequences.steps.timestep.reward, sample.sequences.steps.action))
    # 12 rows per column are kept, 8 … 19; a window of two rows starts at 8 … 18.
    counts = np.histogram2d(time, column, bins=[np.arange(8, 20), [0, 1, 2]])[0]
    assert counts.sum() == 20_000
    assert scipy.stats.chisquare(counts.ravel()).pvalue > 1e-4


def test_columns_that_were_filled_differently_share_draws_by_their_windows():
    shard = rings.make(24, 2, 4, batch=12_000)
    state = rings.filled(shard, 2, 4, 2)
    state = state._replace(filled=jnp.asarray([8, 4], jnp.int32), head=jnp.asarray([8, 4], jnp.int32))
    sample = shard.sample(state, jax.random.key(1), rings.NOW)
    column = np.asarray(sample.sequences.steps.action[0])
    assert scipy.stats.chisquare(np.bincount(column), np.array([0.7, 0.3]) * 12_000).pvalue > 1e-4
    assert np.asarray(sample.sequences.steps.timestep.reward)[:, column == 1].max() <= 3


@pytest.mark.parametrize(
    "samples_per_insert,expected", [(1.0, (1, 16)), (8.0, (1, 2)), (48.0, (3, 1)), (0.1, (1, 160))]
)
def test_updates_per_unroll_follow_samples_per_insert(samples_per_insert, expected):
    shard = rings.make(80, 1, 4, samples_per_insert=samples_per_insert)
    assert shard.updates == expected


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"capacity": 1001, "columns": 10, "length": 4}, ["--replay.capacity=1001", "1000 or 1040"]),
        (
            {"capacity": 40, "columns": 10, "length": 4, "batch": 63, "devices": 2},
            ["=63", "62 or 64"],
        ),
        ({"capacity": 40, "columns": 10, "length": 4, "lookahead": 7}, ["--replay.capacity=40", " 80"]),
        ({"capacity": 40, "columns": 10, "length": 4, "min_size": 41}, ["--replay.min_size=41", " 40"]),
        (
            {"capacity": 40, "columns": 10, "length": 4, "samples_per_insert": 1e-9},
            ["samples_per_insert=1e-09"],
        ),
    ],
)
def test_sizes_that_cannot_be_name_the_nearest_valid_ones(arguments, named):
    with conftest.refused(*named):
        rings.make(**arguments)


@pytest.mark.parametrize("priorities", [{}, {"priority_exponent": 0.6}])
def test_prefetch_is_refused_where_nothing_is_drawn_ahead(priorities):
    sizes = {"capacity": 40, "columns": 10, "length": 4, **priorities}
    with conftest.refused("--replay.prefetch=0: ", "--replay.storage=host"):
        rings.make(**sizes, prefetch=0)
    assert rings.make(**sizes, prefetch=1).host is None
    assert rings.make(**sizes, prefetch=0, storage="host").host.prefetch == 0


def test_a_ring_may_wait_until_it_is_full():
    assert rings.make(capacity=40, columns=10, length=4, min_size=40).min_rows == 4
    # No window is whole before it has all of its rows.
    assert rings.make(capacity=64, columns=2, length=4, lookahead=10, min_size=1).min_rows == 11


@pytest.mark.parametrize("bound", [1, 2, 65_535, 65_536, 1_000_003, 2**31 - 1])
def test_integers_are_the_upper_word_of_a_64_bit_product(bound):
    key = jax.random.key(bound)
    bits = np.asarray(jax.random.bits(key, (2000,), jnp.uint32)).astype(np.uint64)
    drawn = permutations.integers(key, 2000, jnp.int32(bound))
    np.testing.assert_array_equal(drawn, (bits * np.uint64(bound)) >> np.uint64(32))
    assert drawn.dtype == jnp.int32 and drawn.min() >= 0 and drawn.max() < bound


def test_actors_that_finish_at_different_times_never_join_trajectories():
    """Unrolls of some columns only, one column twice in one unroll: each window is one column's history."""
    length, columns, lookahead = 3, 4, 2
    shard = rings.make(12 * columns, columns, length, lookahead=lookahead)
    state, clock = shard.init(rings.step_spec(), ()), np.zeros(columns, int)
    rng = np.random.default_rng(0)
    for _ in range(30):
        chosen = np.sort(rng.choice(columns, 2, p=[0.55, 0.25, 0.15, 0.05]))
        first = []
        for column in chosen:
            first.append(clock[column])
            clock[column] += length
        unroll = rings.unroll(0, length, 2)
        time = unroll.steps.timestep.reward + jnp.asarray(first, jnp.float32)
        timestep = unroll.steps.timestep._replace(reward=time)
        action = jnp.broadcast_to(jnp.asarray(chosen, jnp.int32), time.shape)
        steps = unroll.steps._replace(timestep=timestep, action=action)
        state = jax.jit(shard.add)(state, types.Unroll(steps, ()), jnp.asarray(chosen, jnp.int32))
    np.testing.assert_array_equal(state.filled, np.minimum(clock, 12))
    assert len(set(clock)) > 2
    sample = shard.sample(state, jax.random.key(0), rings.NOW)
    time, column = np.asarray(sample.sequences.steps.timestep.reward), np.asarray(sample.sequences.steps.action)
    assert (np.diff(time, axis=0) == 1).all() and (column == column[0]).all()
    assert (time[-1] < clock[column[0]]).all() and (time[0] >= clock[column[0]] - 12).all()


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("prioritised", [False, True])
def test_all_columns_at_once_are_what_naming_them_gives(prioritised: bool, carry: bool) -> None:
    """Seven unrolls in a ring of three, so that heads wrap twice."""
    settings_ = {"priority_exponent": 0.6, "smallest_error": 1e-6} if prioritised else {}
    shard = rings.make(2 * 12, 2, 4, lookahead=2, carry=carry, **settings_)
    memory = jnp.zeros((2, 3)) if carry else ()
    all_at_once = named = shard.init(rings.step_spec(), jax.eval_shape(lambda: memory))
    for i in range(7):
        memory = jnp.full((2, 3), i) + jnp.arange(2.0)[:, None] if carry else ()
        new = rings.unroll(4 * i, 4, 2)._replace(carry=memory)
        named = jax.jit(shard.add)(named, new, jnp.arange(2))
        all_at_once = jax.jit(lambda state, new: shard.add(state, new, None))(all_at_once, new)
        for x, y in zip(*map(jax.tree.leaves, (all_at_once, named)), strict=True):
            np.testing.assert_array_equal(x, y)
    assert int(all_at_once.head[0]) == 28 and int(all_at_once.filled[1]) == 12


def test_an_agent_that_takes_unrolls_whole_is_refused():
    with conftest.refused("taught=0"):
        rings.make(80, 1, 4, taught=0)
