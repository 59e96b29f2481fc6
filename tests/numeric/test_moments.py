"""Running moments against float64 over all rows: many batches, unequal masks per device, far means, huge counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxrl_dist import types
from jaxrl_dist.numeric import moments as statistics

DEVICES = types.Axis(
    sum=lambda x: jax.lax.psum(x, "devices"),
    max=lambda x: jax.lax.pmax(x, "devices"),
    gather=lambda x: jax.lax.all_gather(x, "devices", tiled=True),
)
SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


@jax.jit
def update(moments, batch, mask):
    return statistics.update(moments, batch, mask, types.LOCAL)


@jax.jit
def update_on_devices(moments, batch, mask):
    """Rows [devices, N, ...]; every device starts from the same moments and returns its own."""
    step = jax.vmap(statistics.update, in_axes=(None, 0, 0, None), axis_name="devices")
    return step(moments, batch, mask, DEVICES)


def variance(moments):
    return np.asarray(moments.m2, np.float64) / np.asarray(moments.rows, np.float64)


def test_by_hand():
    # Rows 1, 2, 6 then 3: mean 3, squared deviations 4 + 1 + 9 + 0.
    moments = update(statistics.initial(SCALAR), jnp.array([1.0, 2.0, 6.0, 99.0]), jnp.array([True, True, True, False]))
    moments = update(moments, jnp.array([99.0, 3.0, 99.0, 99.0]), jnp.array([0.0, 1.0, 0.0, 0.0]))
    assert (float(moments.rows), float(moments.mean), float(moments.m2)) == pytest.approx((4.0, 3.0, 14.0))
    assert float(statistics.std(moments)) == pytest.approx(np.sqrt(3.5))
    np.testing.assert_allclose(statistics.normalise(jnp.array([3.0, 100.0]), moments, 5.0), [0.0, 5.0])


@given(seed=st.integers(0, 10**6), share=st.floats(0, 1), scale=st.sampled_from([1e-3, 1.0, 1e3]))
@example(seed=1934, share=0.125, scale=1e-3)
@example(seed=98702, share=0.125, scale=1e-3)
@settings(max_examples=30, deadline=None)
def test_batches_equal_float64_over_all_rows(seed, share, scale):
    rng = np.random.default_rng(seed)
    batches = rng.normal(rng.normal(), scale, size=(6, 9, 3)).astype(np.float32)
    masks = rng.random((6, 9)) < share
    moments = statistics.initial(jax.ShapeDtypeStruct((3,), jnp.float32))
    for batch, mask in zip(batches, masks, strict=True):
        moments = update(moments, np.where(mask[:, None], batch, np.nan), mask)
    rows = batches[masks].astype(np.float64)
    assert float(moments.rows) == len(rows)
    if len(rows):
        np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-5, atol=1e-6 * scale)
        # A row's distance from the mean is known up to the rounding of both.
        rounding = 2e-7 * scale * np.abs(rows.mean(0)).max()
        np.testing.assert_allclose(variance(moments), rows.var(0), rtol=1e-4, atol=1e-6 * scale**2 + rounding)


def test_devices_with_unequal_masks_equal_one_device_and_agree_to_the_bit():
    rng = np.random.default_rng(0)
    together = apart = statistics.initial({"x": jax.ShapeDtypeStruct((2,), jnp.float32), "n": SCALAR})
    rows = []
    for shares in ([0.9, 0.1, 0.0], [0.0, 0.0, 0.0], [0.3, 1.0, 0.6]):
        batch = {
            "x": rng.normal(5, 3, size=(3, 20, 2)).astype(np.float32),
            "n": rng.integers(0, 255, size=(3, 20)).astype(np.uint8),
        }
        mask = rng.random((3, 20)) < np.array(shares)[:, None]
        replicas = update_on_devices(apart, batch, mask)
        for leaf in jax.tree.leaves(replicas):
            np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[0], leaf.shape))
        apart = jax.tree.map(lambda x: x[0], replicas)
        flat = jax.tree.map(lambda x: x.reshape(60, *x.shape[2:]), batch)
        together = update(together, flat, mask.reshape(60))
        rows.append({name: x.astype(np.float64)[mask.reshape(60)] for name, x in flat.items()})
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), apart[:3], together[:3])
    for name in ("x", "n"):
        everything = np.concatenate([r[name] for r in rows])
        assert float(apart.rows) == len(everything)
        np.testing.assert_allclose(apart.mean[name], everything.mean(0), rtol=1e-6)
        np.testing.assert_allclose(apart.m2[name] / apart.rows, everything.var(0), rtol=1e-5)


@pytest.mark.parametrize("mean", [0.0, 100.0, -3e4])
def test_a_mean_far_from_zero_keeps_the_deviation(mean):
    rng = np.random.default_rng(1)
    batches = (mean + rng.normal(size=(20, 4096))).astype(np.float32)
    moments = statistics.initial(SCALAR)
    for batch in batches:
        moments = update(moments, batch, np.ones(4096, bool))
    wide = batches.astype(np.float64)
    assert float(moments.mean) == pytest.approx(wide.mean(), rel=2e-7, abs=1e-6)
    assert variance(moments) == pytest.approx(wide.var(), rel=1e-4)


def test_one_large_batch_far_from_zero_is_exact():
    batch = (3e4 + np.random.default_rng(3).normal(size=(100_000, 2))).astype(np.float32)
    moments = update(statistics.initial(jax.ShapeDtypeStruct((2,), jnp.float32)), batch, np.ones(100_000, bool))
    np.testing.assert_allclose(moments.mean, batch.astype(np.float64).mean(0), rtol=2e-7)
    np.testing.assert_allclose(variance(moments), batch.astype(np.float64).var(0), rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_a_billion_rows_before_do_not_stall_or_bias_small_batches(rows):
    """Plain f32 sums fail here: at 1e9 the number of rows moves in steps of 64, and M2 in steps of its own."""
    before, batches, old_mean, old_variance = 10**9, 200_000, 1.0, 4.0
    template = statistics.initial(SCALAR)
    start = template._replace(
        rows=jnp.float32(before), mean=jnp.float32(old_mean), m2=jnp.float32(old_variance * before)
    )
    pool = np.random.default_rng(2).normal(3.0, 0.5, size=(1000, rows)).astype(np.float32)

    @jax.jit
    def run(moments):
        def body(moments, i):
            return statistics.update(moments, jnp.asarray(pool)[i % 1000], jnp.ones(rows, bool), types.LOCAL), None

        return jax.lax.scan(body, moments, jnp.arange(batches))[0]

    moments = run(start)
    added, wide = rows * batches, pool.astype(np.float64)
    total, delta = before + added, wide.mean() - old_mean
    assert float(moments.rows) + float(moments.lost[0]) == total
    gained = float(moments.mean) + float(moments.lost[1]) - old_mean
    assert gained == pytest.approx(delta * added / total, rel=1e-3)
    m2 = old_variance * before + wide.var() * added + delta**2 * before * added / total
    grown = float(moments.m2) - float(start.m2) + float(moments.lost[2])
    assert grown == pytest.approx(m2 - old_variance * before, rel=1e-3)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1234.567])
def test_no_rows_and_constant_rows_have_deviation_one(constant):
    moments = statistics.initial(SCALAR)
    assert float(statistics.std(moments)) == 1.0
    assert statistics.normalise(jnp.float32(7.0), moments) == 7.0
    for _ in range(5):
        moments = update(moments, jnp.full(333, constant), jnp.ones(333, bool))
    assert float(statistics.std(moments)) == 1.0
    assert abs(float(statistics.normalise(jnp.float32(constant), moments))) <= 1e-6 * (1 + constant)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1e-5), (1.0, 1e-4), (-100.0, 1e-2)])
def test_what_varies_a_little_is_no_constant(mean, deviation):
    rows = jnp.array([mean - deviation, mean + deviation])
    running = statistics.update(statistics.initial(rows[0]), rows, jnp.ones(2), types.LOCAL)
    np.testing.assert_allclose(statistics.std(running), deviation, rtol=2e-2)


def test_an_update_of_nothing_changes_nothing_and_keeps_types():
    moments = update(statistics.initial(SCALAR), jnp.array([1.0, 5.0]), jnp.ones(2))
    again = update(moments, jnp.full(2, jnp.nan), jnp.zeros(2))
    assert [float(x) for x in again[:3]] == [2.0, 3.0, 8.0]
    for x, y in zip(jax.tree.leaves(moments), jax.tree.leaves(again), strict=True):
        assert (x.dtype, x.weak_type, x.shape) == (y.dtype, y.weak_type, y.shape) == (jnp.float32, False, ())


def test_the_door_refuses_wrong_shapes():
    with pytest.raises(AssertionError):
        statistics.update(statistics.initial(SCALAR), jnp.zeros(3), jnp.ones(4), types.LOCAL)
    with pytest.raises(AssertionError):
        statistics.update(statistics.initial(SCALAR), jnp.zeros((3, 2)), jnp.ones(3), types.LOCAL)
