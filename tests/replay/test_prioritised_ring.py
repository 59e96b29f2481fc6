"""The prioritised ring: which windows have a priority, how they are drawn, and how they are weighed."""

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from fakes import rings
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import replay

from jaxrl_dist import types
from jaxrl_dist.parallel import mesh
from jaxrl_dist.replay import sum_tree
from jaxrl_dist.systems import catalogue

PRIORITISED = {"priority_exponent": 0.5, "importance_exponent": 1.0, "importance_exponent_end": 1.0}


def _valid(shard_rows, clock, step_type_of, length, context, taught, stride):
    """Lists by brute force the windows of one column that are whole and teach something: (first row in time)."""
    starts = replay.windows(clock, shard_rows, length, stride)
    return {start for start in starts if any(step_type_of(start + context + i) != types.LAST for i in range(taught))}


@settings(max_examples=12, deadline=None)
@given(
    length=st.integers(1, 5),
    blocks=st.integers(2, 6),
    context=st.integers(0, 3),
    taught=st.integers(1, 4),
    lookahead=st.integers(0, 3),
    carry=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_exactly_the_whole_windows_that_teach_have_a_priority(length, blocks, context, taught, lookahead, carry, seed):
    """Unrolls of some columns only, one column up to twice; ends of episodes at random."""
    columns, rows, window = 3, length * blocks, context + taught + lookahead
    if window > rows:
        return
    rng = np.random.default_rng(seed)
    ends = rng.random((columns, 500)) < 0.4
    shard = rings.make(
        rows * columns, columns, length, context=context, taught=taught, lookahead=lookahead, carry=carry, **PRIORITISED
    )
    unroll = rings.unroll(0, length, 2)
    state, clock = shard.init(rings.step_spec(), jax.ShapeDtypeStruct((columns,), jnp.float32)), np.zeros(columns, int)
    add = jax.jit(shard.add)
    for _ in range(2 * blocks + 2):
        chosen = np.sort(rng.choice(columns, 2))
        first = []
        for column in chosen:
            first.append(clock[column])
            clock[column] += length
        time = np.asarray(unroll.steps.timestep.reward) + np.asarray(first, np.float32)
        last = ends[chosen[None], time.astype(int)]
        timestep = unroll.steps.timestep._replace(
            reward=jnp.asarray(time), step_type=jnp.asarray(np.where(last, types.LAST, types.MID), jnp.int8)
        )
        steps = unroll.steps._replace(
            timestep=timestep, action=jnp.broadcast_to(jnp.asarray(chosen, jnp.int32), time.shape)
        )
        state = add(state, types.Unroll(steps, jnp.asarray(first, jnp.float32)), jnp.asarray(chosen, jnp.int32))
        stride = length if carry else 1
        leaves = np.asarray(state.priorities.tree[0])
        for column in range(columns):
            wanted = _valid(
                rows,
                clock[column],
                lambda t, c=column: types.LAST if ends[c, t] else types.MID,
                window,
                context,
                taught,
                stride,
            )
            expected = np.zeros(leaves.shape[1])
            expected[[start % rows // stride for start in wanted]] = 1
            np.testing.assert_array_equal(leaves[column], expected)
    if leaves.sum() == 0:
        return
    sample = jax.jit(shard.sample)(state, jax.random.key(seed), rings.NOW)
    time, column = np.asarray(sample.sequences.steps.timestep.reward), np.asarray(sample.sequences.steps.action)
    assert (np.diff(time, axis=0) == 1).all() and (column == column[0]).all()
    taught_rows = ends[column[0][None], time[context : context + taught].astype(int)]
    assert (~taught_rows).any(0).all()
    np.testing.assert_array_equal(sample.weights, 1)
    if carry:
        np.testing.assert_array_equal(sample.sequences.carry, time[0])


def _prioritised(sizes, num_shards=1, batch=4, axis=types.LOCAL, **changes):
    """Rings of one column in which row i of shard d has error sizes[d][i]; windows are single rows."""
    length = len(sizes[0])
    settings_ = PRIORITISED | changes
    shard = rings.make(
        length * num_shards,
        num_shards,
        length,
        lookahead=0,
        batch=batch * num_shards,
        devices=num_shards,
        axis=axis,
        **settings_,
    )
    states = []
    for error in sizes:
        state = rings.filled(shard, 1, length, 1)
        indices = rings.drawn(state, length)
        if axis is types.LOCAL:
            state = shard.update(state, indices, jnp.asarray(error, jnp.float32))
        states.append(state)
    return shard, states


@pytest.mark.slow
def test_priorities_are_the_error_to_the_power_once():
    error = np.array([0.0, 0.5, 2.0, 7.0, 1.0, 1e-3])
    shard, (state,) = _prioritised([error])
    leaves = np.asarray(state.priorities.tree[0])[0, :6]
    np.testing.assert_allclose(leaves, (error + 1e-6) ** 0.5, rtol=1e-5)
    np.testing.assert_allclose(state.priorities.largest, [(7.0 + 1e-6) ** 0.5], rtol=1e-6)
    # What comes now is given the largest priority ever, even after all have fallen.
    drawn = rings.drawn(state, 6)
    state = shard.update(state, drawn, jnp.full(6, 0.01))
    state = shard.add(state, rings.unroll(6, 6, 1), jnp.arange(1))
    np.testing.assert_allclose(np.asarray(state.priorities.tree[0])[0, :6], 7.0**0.5, rtol=1e-5)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_probabilities_and_weights_are_those_of_the_paper(progress):
    error = np.random.default_rng(0).gamma(1.0, size=64)
    shard, (state,) = _prioritised(
        [error], batch=20_000, priority_exponent=0.6, importance_exponent=0.4, importance_exponent_end=0.9
    )
    sample = jax.jit(shard.sample)(state, jax.random.key(0), jnp.float32(progress))
    row = np.asarray(sample.sequences.steps.timestep.reward[0]).astype(int)
    (probability,) = replay.probabilities([error], 0.6, 1e-6)
    # Stratified draws differ from their expectation by less than one.
    assert np.abs(np.bincount(row, minlength=64) - 20_000 * probability).max() < 2
    (weights,) = replay.weights([probability[row]], 64, replay.exponent(progress, 0.4, 0.9))
    np.testing.assert_allclose(sample.weights, weights, rtol=1e-4)


def test_the_largest_priority_and_the_largest_weight_are_those_of_all_shards():
    """Two shards, one with large errors; what comes next has the largest priority of both (Schaul et al. 2016)."""
    error = np.array([[0.5, 1.0, 2.0, 7.0], [0.1, 0.2, 0.3, 0.4]])
    _, states = _prioritised(error, 2, priority_exponent=0.6, importance_exponent=0.7)
    shard, _ = _prioritised(error, 2, axis=mesh.AXIS, priority_exponent=0.6, importance_exponent=0.7)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)

    def learned(state, errors):
        state = shard.update(state, rings.drawn(state, 4), errors)
        sample = shard.sample(state, jax.random.key(0), rings.NOW)
        before = shard.add(state, rings.unroll(4, 4, 1), jnp.arange(1)).priorities.tree[0]
        # Shards hear of each other's largest as they draw, and use it from their next update on.
        state = shard.update(state, sample.indices, jnp.full(4, 0.01))
        after = shard.add(state, rings.unroll(4, 4, 1), jnp.arange(1)).priorities.tree[0]
        return sample.sequences.steps.timestep.reward[0].astype(jnp.int32), sample.weights, before, after

    mapped = jax.jit(jax.vmap(learned, axis_name="devices"))
    row, weights, before, after = mapped(stacked, jnp.asarray(3 * error, jnp.float32))
    np.testing.assert_allclose(before[:, 0, :4], [[(21 + 1e-6) ** 0.6] * 4, [(1.2 + 1e-6) ** 0.6] * 4], rtol=1e-5)
    np.testing.assert_allclose(after[:, 0, :4], (21 + 1e-6) ** 0.6, rtol=1e-5)
    probabilities = replay.probabilities(list(3 * error), 0.6, 1e-6)
    drawn = [each[places] for each, places in zip(probabilities, np.asarray(row), strict=True)]
    np.testing.assert_allclose(weights, replay.weights(drawn, 8, 0.7), rtol=1e-4)


@pytest.mark.parametrize("num_shards", marks.some([1, 4], slow={"1"}))
def test_weighted_sums_are_unbiased_for_any_number_of_shards(num_shards):
    """Shards of quite unequal priorities: at β = 1 every row counts the same in expectation."""
    rng = np.random.default_rng(1)
    rows = 256 // num_shards
    sizes = rng.gamma(0.5, size=(num_shards, rows)) * np.array([1, 30, 0.1, 5])[:num_shards, None] + 1e-2
    values = np.log(sizes) + rng.normal(size=(num_shards, rows))
    shard, states = _prioritised(sizes, num_shards, batch=20_000)

    def draw(state, key):
        sample = shard.sample(state, key, rings.NOW)
        return sample.sequences.steps.timestep.reward[0].astype(jnp.int32), sample.weights

    # Shards on a mapped axis, which reduces as the mesh does.
    shard, _ = _prioritised(sizes, num_shards, batch=20_000, axis=mesh.AXIS)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    row, weights = jax.vmap(draw, axis_name="devices")(stacked, jax.random.split(jax.random.key(0), num_shards))
    assert float(weights.max()) == 1 and (num_shards == 1 or float(weights.max(1).min()) < 0.9)
    drawn = np.take_along_axis(values, np.asarray(row), 1)
    assert abs((np.asarray(weights) * drawn).sum() / np.asarray(weights).sum() - values.mean()) < 0.02
    assert abs(drawn.mean() - values.mean()) > 0.2, "without weights the priorities must show"


def test_what_actors_saw_gives_new_windows_their_error():
    shard = rings.make(
        24,
        2,
        4,
        lookahead=1,
        first_error=lambda unroll: unroll.steps.timestep.reward[0] + unroll.steps.action[0],
        **PRIORITISED,
    )
    leaves = np.asarray(rings.filled(shard, 3, 4, 2).priorities.tree[0])
    for column in range(2):
        np.testing.assert_allclose(leaves[column, :11], (np.arange(11) + column + 1e-6) ** 0.5, rtol=1e-5)
        assert leaves[column, 11] == 0


def test_a_shard_without_priorities_gains_none_by_an_update():
    shard = rings.make(24, 2, 4, **PRIORITISED)
    state = rings.filled(shard, 0, 4, 2)
    sample = shard.sample(state, jax.random.key(0), rings.NOW)
    np.testing.assert_array_equal(sample.weights, 0)
    state = shard.update(state, sample.indices, jnp.ones(64))
    assert float(sum_tree.totals(state.priorities.tree).sum()) == 0


@pytest.mark.parametrize("name", ["priority_exponent", "importance_exponent", "importance_exponent_end"])
def test_exponents_lie_between_zero_and_one(name):
    with conftest.refused(f"--replay.{name}=1.5: ", "<= 1"):
        catalogue.resolved({"system": "rainbow", f"replay.{name}": 1.5})


@pytest.mark.slow
def test_what_was_overwritten_since_it_was_drawn_keeps_its_new_priority():
    shard = rings.make(16, 2, 4, priority_exponent=1.0, smallest_error=1e-6)
    state = rings.filled(shard, 2, 4, 2)
    drawn = shard.sample(state, jax.random.key(0), rings.NOW).indices
    assert set(np.asarray(drawn.start)) >= {0, 1, 4, 5}
    state = shard.add(state, rings.unroll(8, 4, 2), jnp.arange(2))
    before = sum_tree.get(state.priorities.tree, drawn.column, drawn.start)
    state = shard.update(state, drawn, jnp.full(64, 7.0))
    after = np.asarray(sum_tree.get(state.priorities.tree, drawn.column, drawn.start))
    is_old = np.asarray(drawn.start) >= 4
    # Rows 0 … 3 hold the third unroll now, whose windows are whole and had a priority of their own.
    assert (np.asarray(before)[~is_old] > 0).any()
    np.testing.assert_array_equal(after[~is_old], np.asarray(before)[~is_old])
    np.testing.assert_allclose(after[is_old], np.where(np.asarray(before)[is_old] > 0, 7.0, 0.0), rtol=1e-5)
    assert after[is_old].max() > 6


@pytest.mark.parametrize("unrolls", [0, 1, 2, 3, 5])
def test_whole_laps_since_a_window_was_drawn_are_noticed(unrolls):
    """A ring of two unrolls of 4 rows: after one, half of what was drawn is another window, after more all of it."""
    shard = rings.make(16, 2, 4, priority_exponent=1.0, smallest_error=1e-6)
    state, add = rings.filled(shard, 2, 4, 2), jax.jit(shard.add)
    drawn = shard.sample(state, jax.random.key(0), rings.NOW).indices
    assert set(np.asarray(drawn.start)) == set(range(7))
    for i in range(unrolls):
        state = add(state, rings.unroll(8 + 4 * i, 4, 2), jnp.arange(2))
    before = sum_tree.get(state.priorities.tree, drawn.column, drawn.start)
    state = shard.update(state, drawn, jnp.full(64, 7.0))
    after = sum_tree.get(state.priorities.tree, drawn.column, drawn.start)
    is_old = np.asarray(drawn.start) >= 4 * unrolls
    wanted = np.where(is_old & (np.asarray(before) > 0), 7.0, before)
    np.testing.assert_allclose(after, wanted, rtol=1e-5)


@pytest.mark.parametrize("error", [np.nan, np.inf, -np.inf])
def test_an_error_that_is_not_finite_changes_no_priority(error):
    """One NaN in the tree would make its sum NaN, and every draw after it nothing."""
    shard, (state,) = _prioritised([np.array([0.5, 2.0, 7.0, 1.0])])
    drawn = rings.drawn(state, 4)
    known = shard.update(state, drawn, jnp.array([3.0, 2.0, 3.0, 1.0]))
    assert float(sum_tree.get(known.priorities.tree, *drawn[:2])[0]) == pytest.approx(3.0**0.5, rel=1e-5)
    after = shard.update(state, drawn, jnp.array([3.0, error, 3.0, error]))
    for x, y in zip(*map(jax.tree.leaves, (known.priorities, after.priorities)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_errors_that_change_no_priority_leave_the_largest_as_it_was():
    shard, (state,) = _prioritised([np.array([0.5, 0.2, 0.7, 0.1])])
    drawn = rings.drawn(state, 4)
    after = shard.update(state, drawn, jnp.full(4, jnp.nan))
    np.testing.assert_array_equal(after.priorities.largest, state.priorities.largest)


def test_a_first_error_that_is_not_finite_gives_the_largest_priority():
    def first_error(unroll):
        return jnp.where(unroll.steps.timestep.reward[0] == 5, jnp.nan, 4.0)

    leaves = np.asarray(
        rings.filled(rings.make(24, 2, 4, first_error=first_error, **PRIORITISED), 3, 4, 2).priorities.tree[0]
    )
    np.testing.assert_allclose(leaves[:, :11], np.where(np.arange(11) == 5, 1.0, 2.0)[None].repeat(2, 0), rtol=1e-5)
