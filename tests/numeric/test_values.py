"""Value rescaling, Huber loss and C51's projection against numbers worked by hand, float64, optax and rlax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_dist.numeric import values

REALS = st.floats(-(2.0**20), 2.0**20, width=32)


def test_rescaling_by_hand():
    # h(3) = √4 − 1 + .003, h(−8) = −(√9 − 1) − .008.
    x = jnp.array([0.0, 3.0, -8.0])
    np.testing.assert_allclose(values.signed_hyperbolic(x), [0.0, 1.003, -2.008], rtol=1e-7)
    np.testing.assert_allclose(values.signed_parabolic(jnp.array([0.0, 1.003, -2.008])), x, rtol=1e-6)


@given(x=st.lists(REALS, min_size=8, max_size=8), eps=st.sampled_from([0.0, 1e-3, 1e-2]))
@settings(max_examples=60, deadline=None)
def test_rescaling_equals_the_printed_formula_in_float64_and_inverts(x, eps):
    x = np.array(x, np.float32)
    wide = x.astype(np.float64)
    h = np.sign(wide) * (np.sqrt(np.abs(wide) + 1) - 1) + eps * wide
    np.testing.assert_allclose(values.signed_hyperbolic(x, eps), h, rtol=1e-6, atol=1e-15)
    np.testing.assert_allclose(values.signed_parabolic(values.signed_hyperbolic(x, eps), eps), x, rtol=2e-6, atol=1e-30)
    if eps:
        root = np.sqrt(1 + 4 * eps * (np.abs(wide) + 1 + eps)) - 1
        inverse = np.sign(wide) * ((root / (2 * eps)) ** 2 - 1)
        np.testing.assert_allclose(values.signed_parabolic(x, eps), inverse, rtol=2e-6, atol=1e-9)


def test_rescaling_equals_rlax_and_has_the_right_slope_at_zero():
    x = jnp.linspace(-50.0, 50.0, 101)
    np.testing.assert_allclose(values.signed_hyperbolic(x), rlax.signed_hyperbolic(x, 1e-3), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(values.signed_parabolic(x), rlax.signed_parabolic(x, 1e-3), rtol=2e-2, atol=1e-2)
    assert jax.grad(values.signed_hyperbolic)(0.0) == pytest.approx(0.501)
    assert jax.grad(values.signed_parabolic)(0.0) == pytest.approx(1 / 0.501)


def test_projection_by_hand():
    # Support 0, 1, 2: a quarter of the way from 0 to 1; beyond the top; beyond the bottom; on an atom.
    atoms = values.support(0.0, 2.0, 3)
    out = values.categorical_projection(jnp.array([0.25, 9.0, -5.0, 1.0]), jnp.array([0.4, 0.3, 0.2, 0.1]), atoms)
    np.testing.assert_allclose(out, [0.4 * 0.75 + 0.2, 0.4 * 0.25 + 0.1, 0.3], rtol=1e-6)


def slow_projection(target_atoms, probabilities, low, high, num_atoms):
    """Algorithm 1 of Bellemare et al. 2017, one atom at a time in float64."""
    out, spacing = np.zeros(num_atoms), (high - low) / (num_atoms - 1)
    for z, p in zip(target_atoms.astype(np.float64), probabilities.astype(np.float64), strict=True):
        b = (min(max(z, low), high) - low) / spacing
        lower, upper = int(np.floor(b)), int(np.ceil(b))
        if lower == upper:
            out[lower] += p
        else:
            out[lower] += p * (upper - b)
            out[upper] += p * (b - lower)
    return out


@pytest.mark.parametrize(("low", "high", "num_atoms"), [(-10.0, 10.0, 51), (0.0, 475.0, 101), (-1.0, 3.0, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_projection_equals_a_slow_loop_and_rlax(low, high, num_atoms, seed):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(num_atoms)).astype(np.float32)
    atoms = values.support(low, high, num_atoms)
    target_atoms = (rng.normal() + rng.choice([0.0, 0.9, 3.0]) * np.asarray(atoms)).astype(np.float32)
    out = values.categorical_projection(target_atoms, probabilities, atoms)
    np.testing.assert_allclose(out, slow_projection(target_atoms, probabilities, low, high, num_atoms), atol=2e-6)
    np.testing.assert_allclose(out, rlax.categorical_l2_project(target_atoms, probabilities, atoms), atol=5e-6)
    assert out.sum() == pytest.approx(1.0, abs=1e-5)
    assert (np.asarray(out) >= 0).all()


def test_projection_onto_its_own_support_changes_nothing():
    atoms = values.support(-10.0, 10.0, 51)
    probabilities = np.random.default_rng(0).dirichlet(np.ones(51)).astype(np.float32)
    np.testing.assert_allclose(values.categorical_projection(atoms, probabilities, atoms), probabilities, atol=1e-6)


@pytest.mark.parametrize(("low", "high", "num_atoms"), [(1.0, 1.0, 51), (2.0, 1.0, 51), (0.0, 1.0, 1)])
def test_a_support_that_cannot_be_is_refused(low, high, num_atoms):
    with pytest.raises(ValueError, match=rf"\b{num_atoms}\b.*{low}.*{high}"):
        values.support(low, high, num_atoms)


def test_the_mean_of_atoms_is_that_of_float64_and_no_product_of_matrices():
    atoms, logits = (
        values.support(-300.0, 300.0, 601),
        np.random.default_rng(0).normal(0, 9, (4, 601)).astype(np.float32),
    )
    weights = np.exp(logits.astype(np.float64))
    wanted = (weights * np.asarray(atoms)).sum(-1) / weights.sum(-1)
    np.testing.assert_allclose(values.mean_of_atoms(logits, atoms), wanted, rtol=1e-5)
    # An accelerator may round the operands of such a product.
    assert "dot_general" not in str(jax.make_jaxpr(values.mean_of_atoms)(logits, atoms))


def slow_quantile_loss(predicted, levels, target, clip):
    """Equation 3 of Dabney et al. 2018 (IQN), one pair at a time in float64."""
    predicted, levels, target = (np.asarray(rows, np.float64) for rows in (predicted, levels, target))
    total = 0.0
    for level, place in zip(levels, predicted, strict=True):
        for y in target:
            size = abs(y - place)
            huber = size if not clip else 0.5 * size**2 / clip if size <= clip else size - 0.5 * clip
            total += abs(level - (y < place)) * huber / len(target)
    return total


@pytest.mark.parametrize("clip", [0.0, 0.5, 1.0])
def test_quantile_loss_is_that_of_rlax_and_of_a_slow_loop(clip):
    rng = np.random.default_rng(int(10 * clip))
    predicted, target = rng.normal(size=5).astype(np.float32), 2 * rng.normal(size=7).astype(np.float32)
    levels = rng.random(5).astype(np.float32)
    found = values.quantile_loss(jnp.asarray(predicted), jnp.asarray(levels), jnp.asarray(target), clip)
    assert float(found) == pytest.approx(slow_quantile_loss(predicted, levels, target, clip), rel=1e-5)
    theirs = rlax.quantile_regression_loss(predicted, levels, target, clip)
    # rlax does not divide by κ.
    np.testing.assert_allclose(found, theirs / (clip or 1.0), rtol=1e-5)


@pytest.mark.parametrize("clip", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [7, 300])
def test_the_slope_of_a_quantile_loss_passes_through_predictions_alone(clip, count):
    rng = np.random.default_rng(count)
    predicted, target = rng.normal(size=5).astype(np.float32), 2 * rng.normal(size=count).astype(np.float32)
    levels = rng.random(5).astype(np.float32)
    of_rows = jax.vmap(functools.partial(values.quantile_loss, clip=clip), (0, None, 0))
    loss_and_slopes = jax.value_and_grad(lambda *rows: of_rows(*rows).sum(), (0, 1, 2))
    loss, slopes = loss_and_slopes(
        jnp.stack([predicted, -predicted]), jnp.asarray(levels), jnp.stack([target, 3 * target])
    )
    rows = (predicted, target), (-predicted, 3 * target)
    assert float(loss) == pytest.approx(sum(slow_quantile_loss(p, levels, y, clip) for p, y in rows), rel=1e-5)
    for found, (places, samples) in zip(slopes[0], rows, strict=True):
        by = [np.eye(5)[i] * 1e-6 for i in range(5)]
        higher, lower = ([slow_quantile_loss(places + s * e, levels, samples, clip) for e in by] for s in (1, -1))
        np.testing.assert_allclose(found, (np.array(higher) - lower) / 2e-6, rtol=1e-4, atol=1e-5)
        theirs = jax.grad(rlax.quantile_regression_loss)(places, levels, samples, clip) / (clip or 1.0)
        np.testing.assert_allclose(found, theirs, rtol=2e-5, atol=1e-6)
    assert not slopes[1].any()
    assert not slopes[2].any()


@pytest.mark.parametrize(
    ("clip", "wanted"),
    [
        (0.0, [0.75, 0.75, 0.0, -0.25, -0.25]),
        (1.0, [0.75, 0.75, 0.0, -0.25, -0.25]),
        (2.0, [0.75, 0.375, 0.0, -0.125, -0.25]),
    ],
)
def test_slopes_of_a_quantile_loss_by_hand(clip, wanted):
    # Errors of −2, −1, 0, 1 and 2 at a level of a quarter: (1 − τ) u / κ above the sample, −τ u / κ below, at most 1.
    predicted = jnp.array([2.0, 1.0, 0.0, -1.0, -2.0])
    slope = jax.grad(values.quantile_loss)(predicted, jnp.full(5, 0.25), jnp.zeros(1), clip)
    np.testing.assert_allclose(slope, wanted, atol=1e-7)


@pytest.mark.parametrize("count", [255, 256, 257, 601])
def test_many_atoms_are_projected_as_few_are(count):
    rng = np.random.default_rng(count)
    probabilities, atoms = rng.dirichlet(np.ones(count)).astype(np.float32), values.support(-4.0, 9.0, 21)
    target_atoms = (6 * rng.normal(size=count)).astype(np.float32)
    out = values.categorical_projection(target_atoms, probabilities, atoms)
    np.testing.assert_allclose(out, slow_projection(target_atoms, probabilities, -4.0, 9.0, 21), atol=5e-6)


@pytest.mark.parametrize("count", [1, 51, 300])
def test_both_ways_to_add_have_the_same_sums(count):
    rng = np.random.default_rng(count)
    rows, other = rng.normal(size=(2, count)).astype(np.float32)
    places = np.linspace(-1.0, 1.0, 5)

    def function(row, by):
        return jnp.abs(row - places), by * places

    wanted = np.abs(rows[:, None] - places).sum(0), (other[:, None] * places).sum(0)
    for way in (values._add_one_by_one, values._add_at_once):
        for found, sums in zip(way(function, jnp.asarray(rows), jnp.asarray(other)), wanted, strict=True):
            np.testing.assert_allclose(found, sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("platform", "adds_at_once"), [("cpu", False), ("cuda", True), ("tpu", True)])
def test_cpus_alone_add_pairs_row_by_row(platform, adds_at_once):
    x = jnp.ones(5)
    losses = jax.value_and_grad(functools.partial(values.quantile_loss, clip=1.0))
    for function in (values.categorical_projection, losses):
        text = jax.jit(function).trace(x, x, x).lower(lowering_platforms=(platform,)).as_text()
        # The loss of all predictions is a sum of 5 on each platform.
        sums_of_pairs = [line for line in text.splitlines() if "stablehlo.reduce" in line and "tensor<5x5xf32>" in line]
        assert bool(sums_of_pairs) == adds_at_once


def test_quantile_regression_finds_the_quantiles_of_its_samples():
    samples = jnp.asarray(np.random.default_rng(0).exponential(size=999), jnp.float32)
    levels = values.quantile_levels(4)
    step = jax.jit(lambda x: x - 0.05 * jax.grad(values.quantile_loss)(x, levels, samples, 0.0))
    places = jnp.zeros(4)
    for _ in range(600):
        places = step(places)
    np.testing.assert_allclose(places, np.quantile(samples, levels), atol=0.05)


@given(x=st.lists(REALS, min_size=4, max_size=4))
@settings(max_examples=60, deadline=None)
def test_symlog_is_the_printed_formula_in_float64_and_inverts(x):
    x = np.array(x, np.float32)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(values.symlog(x), np.sign(wide) * np.log1p(np.abs(wide)), rtol=1e-6, atol=1.2e-7)
    np.testing.assert_allclose(values.symexp(values.symlog(x)), x, rtol=1e-5, atol=1.2e-7)


def test_symlog_has_slope_1_at_zero():
    assert jax.grad(values.symlog)(1e-6) == pytest.approx(1.0, rel=1e-5)
    assert jax.grad(values.symexp)(1e-6) == pytest.approx(1.0, rel=1e-5)


def test_bins_are_symmetric_and_reach_the_limit():
    bins = np.asarray(values.symexp_support(7, limit=3.0), np.float64)
    steps = np.array([-3, -2, -1, 0, 1, 2, 3.0])
    np.testing.assert_allclose(bins, np.sign(steps) * (np.exp(np.abs(steps)) - 1), rtol=1e-6)
    np.testing.assert_array_equal(bins, -bins[::-1])
    assert values.symexp_support(255).shape == (255,)
    assert float(values.symexp_support(255)[-1]) == pytest.approx(np.exp(20) - 1, rel=1e-5)


@pytest.mark.parametrize("count", [1, 2, 254])
def test_bins_without_a_middle_are_refused(count):
    with pytest.raises(ValueError, match=f"^{count} bins"):
        values.symexp_support(count)


@given(x=st.floats(-(2.0**20), 2.0**20, width=32), num_bins=st.sampled_from([3, 63, 255]))
@settings(max_examples=60, deadline=None)
def test_two_hot_weights_are_the_distances_of_the_neighbours(x, num_bins):
    bins = values.symexp_support(num_bins)
    wide = np.asarray(bins, np.float64)
    k = int(np.searchsorted(wide, x, side="right")) - 1
    expected = np.zeros(num_bins)
    expected[k] = (wide[k + 1] - x) / (wide[k + 1] - wide[k])
    expected[k + 1] = 1 - expected[k]
    np.testing.assert_allclose(values.two_hot(jnp.float32(x), bins), expected, atol=2e-6)


def test_numbers_beyond_the_bins_count_as_the_last():
    bins = values.symexp_support(5, limit=2.0)
    found = values.two_hot(jnp.array([[-99.0, 99.0]]), bins)
    np.testing.assert_array_equal(found, [[[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]])


def test_the_mean_of_a_two_hot_distribution_is_the_number_and_of_equal_logits_0():
    bins, x = values.symexp_support(63), jnp.array([-1e3, -0.3, 0.0, 2.5, 77.0])
    weights = values.two_hot(x, bins)
    np.testing.assert_allclose(values.mean_of_bins(jnp.log(weights), bins), x, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(values.mean_of_bins(jnp.full((2, 63), 5.0), bins), [0, 0])


def test_the_loss_of_a_number_is_least_where_the_distribution_is_two_hot():
    bins, x = values.symexp_support(9, limit=3.0), jnp.array([-4.0, 0.5])
    logits = jax.random.normal(jax.random.key(0), (2, 9))
    p = np.asarray(logits, np.float64)
    p = p - np.log(np.exp(p).sum(-1, keepdims=True))
    expected = -(np.asarray(values.two_hot(x, bins), np.float64) * p).sum(-1)
    np.testing.assert_allclose(values.two_hot_loss(logits, x, bins), expected, rtol=1e-5)
    gradient = jax.grad(lambda logits: values.two_hot_loss(logits, x, bins).sum())(jnp.log(values.two_hot(x, bins)))
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
