"""The ring: what is read back is what was written, no window crosses the write head, windows are uniform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_dist import config, priorities, replay, ring, types
from jaxrl_dist.parallel import mesh as meshes

NOW = jnp.float32(0)


def _ring(
    capacity, columns, length, *, context=0, taught=1, lookahead=1, batch=64, devices=1, carry=False, axis=types.LOCAL,
    first_error=None, **settings_
):  # fmt: skip
    settings_ = {"capacity": capacity, "min_size": 1, "batch_size": batch, "samples_per_insert": 1.0} | settings_
    kind = replay.PrioritisedConfig if "priority_exponent" in settings_ else replay.UniformConfig
    windows = ring.Windows(context, taught, lookahead, None if carry else lambda n: (), first_error)
    sizes = {"num_columns": columns, "num_devices": devices, "unroll_length": length}
    return ring.make(kind(**settings_), windows, axis=axis, **sizes)


def _unroll(first, length, columns):
    """Rows whose reward is their number in time and whose action is their column; the closing row opens the next."""
    time = jnp.broadcast_to(first + jnp.arange(length + 1, dtype=jnp.float32)[:, None], (length + 1, columns))
    column = jnp.broadcast_to(jnp.arange(columns, dtype=jnp.int32), time.shape)
    timestep = types.TimeStep(jnp.ones_like(time, jnp.int8), time, time, time[..., None], ())
    return types.Unroll(types.Step(timestep, column, (), column), ())


def _filled(shard, unrolls, length, columns):
    step_spec = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), _unroll(0, length, columns).steps)
    state = shard.init(step_spec, ())
    for i in range(unrolls):
        state = jax.jit(shard.add)(state, _unroll(i * length, length, columns), jnp.arange(columns))
    return state


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
    shard = _ring(rows * columns, columns, length, lookahead=lookahead)
    sample = shard.sample(_filled(shard, unrolls, length, columns), jax.random.key(unrolls), NOW)
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
    shard = _ring(24, 2, 4, batch=20_000)
    sample = shard.sample(_filled(shard, 5, 4, 2), jax.random.key(0), NOW)
    time, column = (np.asarray(x[0]) for x in (sample.sequences.steps.timestep.reward, sample.sequences.steps.action))
    # 12 rows per column are kept, 8 … 19; a window of two rows starts at 8 … 18.
    counts = np.histogram2d(time, column, bins=[np.arange(8, 20), [0, 1, 2]])[0]
    assert counts.sum() == 20_000
    assert scipy.stats.chisquare(counts.ravel()).pvalue > 1e-4


def test_columns_that_were_filled_differently_share_draws_by_their_windows():
    shard = _ring(24, 2, 4, batch=12_000)
    state = _filled(shard, 2, 4, 2)
    state = state._replace(filled=jnp.asarray([8, 4], jnp.int32), head=jnp.asarray([8, 4], jnp.int32))
    sample = shard.sample(state, jax.random.key(1), NOW)
    column = np.asarray(sample.sequences.steps.action[0])
    assert scipy.stats.chisquare(np.bincount(column), np.array([0.7, 0.3]) * 12_000).pvalue > 1e-4
    assert np.asarray(sample.sequences.steps.timestep.reward)[:, column == 1].max() <= 3


@pytest.mark.parametrize(
    "samples_per_insert,expected", [(1.0, (1, 16)), (8.0, (1, 2)), (48.0, (3, 1)), (0.1, (1, 160))]
)
def test_updates_per_unroll_follow_samples_per_insert(samples_per_insert, expected):
    shard = _ring(80, 1, 4, samples_per_insert=samples_per_insert)
    assert shard.updates == expected


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"capacity": 1001, "columns": 10, "length": 4}, "nearest valid: 1000 or 1040"),
        ({"capacity": 40, "columns": 10, "length": 4, "batch": 63, "devices": 2}, "nearest valid: 62 or 64"),
        ({"capacity": 40, "columns": 10, "length": 4, "lookahead": 7}, "nearest valid: 80"),
        ({"capacity": 40, "columns": 10, "length": 4, "min_size": 41}, "nearest valid: 40"),
        ({"capacity": 40, "columns": 10, "length": 4, "samples_per_insert": 1e-9}, "updates per unroll"),
    ],
)
def test_sizes_that_cannot_be_name_the_nearest_valid_ones(arguments, message):
    with pytest.raises(config.UsageError, match=message):
        _ring(**arguments)


@pytest.mark.parametrize("bound", [1, 2, 65_535, 65_536, 1_000_003, 2**31 - 1])
def test_integers_are_the_upper_word_of_a_64_bit_product(bound):
    key = jax.random.key(bound)
    bits = np.asarray(jax.random.bits(key, (2000,), jnp.uint32)).astype(np.uint64)
    drawn = ring._integers(key, 2000, jnp.int32(bound))
    np.testing.assert_array_equal(drawn, (bits * np.uint64(bound)) >> np.uint64(32))
    assert drawn.dtype == jnp.int32 and drawn.min() >= 0 and drawn.max() < bound


def test_actors_that_finish_at_different_times_never_join_trajectories():
    """Unrolls of some columns only, one column twice in one unroll: each window is one column's history."""
    length, columns, lookahead = 3, 4, 2
    shard = _ring(12 * columns, columns, length, lookahead=lookahead)
    step_spec = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), _unroll(0, length, columns).steps)
    state, clock = shard.init(step_spec, ()), np.zeros(columns, int)
    rng = np.random.default_rng(0)
    for _ in range(30):
        chosen = np.sort(rng.choice(columns, 2, p=[0.55, 0.25, 0.15, 0.05]))
        first = []
        for column in chosen:
            first.append(clock[column])
            clock[column] += length
        unroll = _unroll(0, length, 2)
        time = unroll.steps.timestep.reward + jnp.asarray(first, jnp.float32)
        timestep = unroll.steps.timestep._replace(reward=time)
        action = jnp.broadcast_to(jnp.asarray(chosen, jnp.int32), time.shape)
        steps = unroll.steps._replace(timestep=timestep, action=action)
        state = jax.jit(shard.add)(state, types.Unroll(steps, ()), jnp.asarray(chosen, jnp.int32))
    np.testing.assert_array_equal(state.filled, np.minimum(clock, 12))
    assert len(set(clock)) > 2
    sample = shard.sample(state, jax.random.key(0), NOW)
    time, column = np.asarray(sample.sequences.steps.timestep.reward), np.asarray(sample.sequences.steps.action)
    assert (np.diff(time, axis=0) == 1).all() and (column == column[0]).all()
    assert (time[-1] < clock[column[0]]).all() and (time[0] >= clock[column[0]] - 12).all()


PRIORITISED = {"priority_exponent": 0.5, "importance_exponent": 1.0, "importance_exponent_end": 1.0}


def _valid(shard_rows, clock, step_type_of, length, context, taught, stride):
    """Lists by brute force the windows of one column that are whole and teach something: (first row in time)."""
    first = max(0, clock - shard_rows)
    starts = range(-(-first // stride) * stride, clock - length + 1, stride)
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
    shard = _ring(
        rows * columns, columns, length, context=context, taught=taught, lookahead=lookahead, carry=carry, **PRIORITISED
    )
    unroll = _unroll(0, length, 2)
    step_spec = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), unroll.steps)
    state, clock = shard.init(step_spec, jax.ShapeDtypeStruct((columns,), jnp.float32)), np.zeros(columns, int)
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
    sample = shard.sample(state, jax.random.key(seed), NOW)
    time, column = np.asarray(sample.sequences.steps.timestep.reward), np.asarray(sample.sequences.steps.action)
    assert (np.diff(time, axis=0) == 1).all() and (column == column[0]).all()
    taught_rows = ends[column[0][None], time[context : context + taught].astype(int)]
    assert (~taught_rows).any(0).all()
    np.testing.assert_array_equal(sample.weights, 1)
    if carry:
        np.testing.assert_array_equal(sample.sequences.carry, time[0])


def _prioritised(errors, num_shards=1, batch=4, axis=types.LOCAL, **changes):
    """Rings of one column in which row i of shard d has error errors[d][i]; windows are single rows."""
    length = len(errors[0])
    settings_ = PRIORITISED | changes
    shard = _ring(
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
    for error in errors:
        state = _filled(shard, 1, length, 1)
        indices = jnp.zeros(length, jnp.int32), jnp.arange(length)
        if axis is types.LOCAL:
            state = shard.update(state, indices, jnp.asarray(error, jnp.float32))
        states.append(state)
    return shard, states


def test_priorities_are_the_error_to_the_power_once():
    error = np.array([0.0, 0.5, 2.0, 7.0, 1.0, 1e-3])
    shard, (state,) = _prioritised([error])
    leaves = np.asarray(state.priorities.tree[0])[0, :6]
    np.testing.assert_allclose(leaves, (error + 1e-6) ** 0.5, rtol=1e-5)
    np.testing.assert_allclose(state.priorities.largest, [(7.0 + 1e-6) ** 0.5], rtol=1e-6)
    # What comes now is given the largest priority ever, even after all have fallen.
    state = shard.update(state, (jnp.zeros(6, jnp.int32), jnp.arange(6)), jnp.full(6, 0.01))
    state = shard.add(state, _unroll(6, 6, 1), jnp.arange(1))
    np.testing.assert_allclose(np.asarray(state.priorities.tree[0])[0, :6], 7.0**0.5, rtol=1e-5)


def test_probabilities_and_weights_are_those_of_the_paper():
    error = np.random.default_rng(0).gamma(1.0, size=64)
    beta = 0.7
    shard, (state,) = _prioritised(
        [error], batch=50_000, priority_exponent=0.6, importance_exponent=0.4, importance_exponent_end=1.0
    )
    sample = shard.sample(state, jax.random.key(0), jnp.float32((beta - 0.4) / 0.6))
    row = np.asarray(sample.sequences.steps.timestep.reward[0]).astype(int)
    probability = (error + 1e-6) ** 0.6 / ((error + 1e-6) ** 0.6).sum()
    # Stratified draws differ from their expectation by less than one.
    assert np.abs(np.bincount(row, minlength=64) - 50_000 * probability).max() < 2
    weights = (64 * probability) ** -beta
    np.testing.assert_allclose(sample.weights, (weights / weights.max())[row], rtol=1e-4)


@pytest.mark.parametrize("num_shards", [1, 4])
def test_weighted_sums_are_unbiased_for_any_number_of_shards(num_shards):
    """Shards of quite unequal priorities: at β = 1 every row counts the same in expectation."""
    rng = np.random.default_rng(1)
    rows = 256 // num_shards
    errors = rng.gamma(0.5, size=(num_shards, rows)) * np.array([1, 30, 0.1, 5])[:num_shards, None] + 1e-2
    values = np.log(errors) + rng.normal(size=(num_shards, rows))
    shard, states = _prioritised(errors, num_shards, batch=20_000)

    def draw(state, key):
        sample = shard.sample(state, key, NOW)
        return sample.sequences.steps.timestep.reward[0].astype(jnp.int32), sample.weights

    # Shards on a mapped axis, which reduces as the mesh does.
    shard, _ = _prioritised(errors, num_shards, batch=20_000, axis=meshes.AXIS)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    row, weights = jax.vmap(draw, axis_name="devices")(stacked, jax.random.split(jax.random.key(0), num_shards))
    assert float(weights.max()) == 1 and (num_shards == 1 or float(weights.max(1).min()) < 0.9)
    drawn = np.take_along_axis(values, np.asarray(row), 1)
    assert abs((np.asarray(weights) * drawn).sum() / np.asarray(weights).sum() - values.mean()) < 0.02
    assert abs(drawn.mean() - values.mean()) > 0.2, "without weights the priorities must show"


def test_what_actors_saw_gives_new_windows_their_error():
    shard = _ring(
        24,
        2,
        4,
        lookahead=1,
        first_error=lambda unroll: unroll.steps.timestep.reward[0] + unroll.steps.action[0],
        **PRIORITISED,
    )
    leaves = np.asarray(_filled(shard, 3, 4, 2).priorities.tree[0])
    for column in range(2):
        np.testing.assert_allclose(leaves[column, :11], (np.arange(11) + column + 1e-6) ** 0.5, rtol=1e-5)
        assert leaves[column, 11] == 0


def test_a_shard_without_priorities_gains_none_by_an_update():
    shard = _ring(24, 2, 4, **PRIORITISED)
    state = _filled(shard, 0, 4, 2)
    sample = shard.sample(state, jax.random.key(0), NOW)
    np.testing.assert_array_equal(sample.weights, 0)
    state = shard.update(state, sample.indices, jnp.ones(64))
    assert float(priorities.totals(state.priorities.tree).sum()) == 0


@pytest.mark.parametrize("name", ["priority_exponent", "importance_exponent", "importance_exponent_end"])
def test_exponents_lie_between_zero_and_one(name):
    with pytest.raises(config.UsageError, match=rf"replay\.{name}=1.5.*<= 1"):
        config.resolve({"system": "rainbow", f"replay.{name}": 1.5})
