"""Action distributions against SciPy, numerical integration, chi-square tests, and extreme parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxrl_dist.numeric import distributions

KEY = jax.random.key(0)


def draw(seed, *shape, scale=1.0):
    return jnp.asarray(np.random.default_rng(seed).normal(scale=scale, size=shape), jnp.float32)


@pytest.mark.parametrize("num_actions", [2, 3, 6, 40])
def test_categorical_samples_pass_a_chi_square_test(num_actions):
    logits = draw(num_actions, 3, num_actions)
    rows = 40_000
    sample = jax.jit(
        lambda key: distributions.Categorical(jnp.broadcast_to(logits, (rows, 3, num_actions))).sample(key)
    )
    actions = np.asarray(sample(KEY))
    assert actions.dtype == np.int32 and actions.shape == (rows, 3)
    for i in range(3):
        counts = np.bincount(actions[:, i], minlength=num_actions)
        expected = rows * np.asarray(jax.nn.softmax(logits[i]), np.float64)
        assert scipy.stats.chisquare(counts, expected / expected.sum() * rows).pvalue > 1e-4
    table = np.histogram2d(actions[:, 0], actions[:, 1], bins=2)[0]
    assert scipy.stats.chi2_contingency(table).pvalue > 1e-4


@pytest.mark.parametrize("num_actions", [1, 2, 5, 33])
def test_a_forbidden_action_is_never_drawn(num_actions):
    """At both ends of the uniform numbers, with forbidden actions first, last and between, and sums that round."""
    rng, rows = np.random.default_rng(num_actions), 3000
    logits = rng.normal(scale=10, size=(rows, num_actions)).astype(np.float32)
    forbidden = rng.random((rows, num_actions)) < 0.5
    forbidden[np.arange(rows), rng.integers(num_actions, size=rows)] = False
    policy = distributions.Categorical(jnp.where(forbidden, -jnp.inf, logits))
    largest = 1 - 2.0**-23
    numbers = jnp.asarray(rng.choice([0.0, 2.0**-23, 0.5, largest], rows), jnp.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.random, "uniform", lambda key, shape: numbers)
        actions = np.asarray(policy.sample(KEY))
    assert not forbidden[np.arange(rows), actions].any()
    assert np.isfinite(policy.log_prob(jnp.asarray(actions))).all()
    assert jax.random.uniform(KEY, (10**6,)).max() <= largest


def test_categorical_inverts_the_cumulative_distribution():
    probabilities = np.array([0.125, 0.25, 0.0, 0.5, 0.125])
    numbers = (np.arange(64) / 64).astype(np.float32)
    policy = distributions.Categorical(jnp.broadcast_to(jnp.log(probabilities), (64, 5)).astype(jnp.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.random, "uniform", lambda key, shape: jnp.asarray(numbers) + 1e-4)
        counts = np.bincount(np.asarray(policy.sample(KEY)), minlength=5)
    assert counts.tolist() == [8, 16, 0, 32, 8]


@pytest.mark.parametrize("seed", range(3))
def test_categorical_equals_scipy(seed):
    logits, others = draw(seed, 7, 5, scale=3), draw(seed + 100, 7, 5, scale=3)
    policy, other = distributions.Categorical(logits), distributions.Categorical(others)
    p, q = (np.asarray(jax.nn.softmax(x), np.float64) for x in (logits, others))
    np.testing.assert_allclose(policy.entropy(KEY), scipy.stats.entropy(p, axis=-1), rtol=1e-4)
    np.testing.assert_allclose(policy.kl(other), scipy.stats.entropy(p, q, axis=-1), rtol=1e-4)
    for action in range(5):
        np.testing.assert_allclose(policy.log_prob(jnp.full(7, action)), np.log(p[:, action]), rtol=1e-4, atol=1e-5)
    assert policy.mode().tolist() == p.argmax(-1).tolist()
    np.testing.assert_allclose(policy.kl(policy), 0.0, atol=1e-7)


@pytest.mark.parametrize(
    "logits", [[0.0, 1.0, -jnp.inf], [1e4, -1e4, 0.0], [-jnp.inf, 3.0, -jnp.inf], [-1e30, 1e30, 0.0]]
)
def test_categorical_is_finite_in_value_and_gradient_at_extremes(logits):
    logits = jnp.array(logits)

    def everything(logits):
        policy = distributions.Categorical(logits)
        return policy.entropy(KEY) + policy.log_prob(policy.mode()) + policy.kl(distributions.Categorical(logits))

    value, gradient = jax.value_and_grad(everything)(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_categorical_kl_to_a_distribution_that_forbids_what_it_allows_is_infinite():
    allowed = distributions.Categorical(jnp.array([0.0, 0.0]))
    forbids = distributions.Categorical(jnp.array([0.0, -jnp.inf]))
    assert allowed.kl(forbids) == jnp.inf
    assert forbids.kl(allowed) == pytest.approx(np.log(2))


@pytest.mark.parametrize("seed", range(3))
def test_gaussian_equals_scipy(seed):
    mean, log_std = draw(seed, 7, 4), draw(seed + 1, 7, 4)
    policy, action = distributions.Gaussian(mean, log_std), draw(seed + 2, 7, 4, scale=2)
    reference = scipy.stats.norm(np.asarray(mean, np.float64), np.exp(np.asarray(log_std, np.float64)))
    np.testing.assert_allclose(policy.log_prob(action), reference.logpdf(action).sum(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(policy.entropy(KEY), reference.entropy().sum(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(policy.mode(), mean)


def test_gaussian_kl_by_hand_and_by_integration():
    wide, narrow = (
        distributions.Gaussian(jnp.array([m]), jnp.log(jnp.array([s]))) for m, s in ((1.0, 2.0), (0.0, 1.0))
    )
    # ½(4 + 1 − 1) − log 2.
    assert float(wide.kl(narrow)) == pytest.approx(2 - np.log(2), rel=1e-5)
    assert float(wide.kl(wide)) == 0.0
    x = np.linspace(-30, 30, 20_001)
    p, q = scipy.stats.norm(0, 1), scipy.stats.norm(1, 2)
    integral = np.trapezoid(p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), x)
    assert float(narrow.kl(wide)) == pytest.approx(integral, rel=1e-4)


@pytest.mark.parametrize("make", [distributions.Gaussian, distributions.TanhGaussian])
def test_continuous_samples_pass_a_kolmogorov_smirnov_test(make):
    mean, log_std = jnp.array([0.3, -1.0]), jnp.array([-0.5, 0.2])
    policy = make(jnp.broadcast_to(mean, (20_000, 2)), jnp.broadcast_to(log_std, (20_000, 2)))
    samples = np.asarray(policy.sample(KEY), np.float64)
    action = np.asarray(policy.action(policy.sample(KEY)), np.float64)
    np.testing.assert_allclose(action, np.tanh(samples) if policy.squashes else samples, atol=1e-6)
    assert (np.abs(action) <= 1).all() == policy.squashes == (make is distributions.TanhGaussian)
    for i in range(2):
        standardised = (samples[:, i] - float(mean[i])) / float(np.exp(log_std[i]))
        assert scipy.stats.kstest(standardised, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.03


def test_tanh_gaussian_density_and_entropy_by_integration():
    policy = distributions.TanhGaussian(jnp.array([0.4]), jnp.array([-0.3]))
    sample = np.linspace(-6, 6, 4001).astype(np.float32)
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(sample), 1)), policy)
    log_prob = np.asarray(rows.log_prob(jnp.asarray(sample)[:, None]), np.float64)
    wide = np.tanh(sample.astype(np.float64))
    assert np.trapezoid(np.exp(log_prob), wide) == pytest.approx(1.0, abs=1e-3)
    entropy = -np.trapezoid(np.exp(log_prob) * log_prob, wide)
    estimates = np.asarray(jax.vmap(policy.entropy)(jax.random.split(KEY, 20_000)))
    assert estimates.mean() == pytest.approx(entropy, abs=4 * estimates.std() / np.sqrt(len(estimates)) + 2e-3)


def test_tanh_gaussian_log_prob_equals_the_change_of_variables_in_float64():
    mean, log_std = draw(0, 50, 3), draw(1, 50, 3, scale=0.5)
    policy = distributions.TanhGaussian(mean, log_std)
    sample = policy.sample(KEY)
    x = np.asarray(sample, np.float64)
    base = scipy.stats.norm(np.asarray(mean, np.float64), np.exp(np.asarray(log_std, np.float64)))
    expected = (base.logpdf(x) - np.log(1 - np.tanh(x) ** 2)).sum(-1)
    np.testing.assert_allclose(policy.log_prob(sample), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(policy.action(policy.mode()), np.tanh(mean), rtol=1e-6)
    base_kl = distributions.Gaussian(mean, log_std).kl(distributions.Gaussian(log_std, mean))
    np.testing.assert_array_equal(policy.kl(distributions.TanhGaussian(log_std, mean)), base_kl)


@pytest.mark.parametrize("sample", [-40.0, 12.0, 0.0])
@pytest.mark.parametrize("mean", [-30.0, 0.0, 30.0])
@pytest.mark.parametrize("log_std", [-7.0, 0.0, 3.0])
def test_tanh_gaussian_is_finite_in_value_and_gradient_where_actions_round_to_the_bounds(sample, mean, log_std):
    def everything(mean, log_std):
        policy = distributions.TanhGaussian(mean, log_std)
        return policy.log_prob(jnp.array([sample])) + policy.entropy(KEY)

    value, gradients = jax.value_and_grad(everything, (0, 1))(jnp.array([mean]), jnp.array([log_std]))
    assert np.isfinite(value) and np.isfinite(gradients).all()


def test_a_saturated_policy_keeps_its_ratio():
    """Samples of tanh far beyond ±1's resolution: what a small step of the mean changes is still told exactly."""
    before = distributions.TanhGaussian(jnp.array([12.0]), jnp.array([-3.0]))
    after = distributions.TanhGaussian(jnp.array([12.01]), jnp.array([-3.0]))
    sample = before.sample(KEY)
    assert before.action(sample) == after.action(after.sample(KEY)) > 0.999999
    base = scipy.stats.norm
    x, std = float(sample[0]), np.exp(-3.0)
    expected = base(12.01, std).logpdf(x) - base(12.0, std).logpdf(x)
    assert float(after.log_prob(sample) - before.log_prob(sample)) == pytest.approx(expected, rel=1e-2, abs=1e-4)


@pytest.mark.parametrize(
    "policy",
    [
        distributions.Categorical(jnp.zeros((4, 3))),
        distributions.Gaussian(jnp.zeros((4, 3)), jnp.zeros((4, 3))),
        distributions.TanhGaussian(jnp.zeros((4, 3)), jnp.zeros((4, 3))),
    ],
)
def test_one_key_is_repeatable_and_serves_different_numbers_to_every_row(policy):
    wide = jax.tree.map(lambda x: jnp.tile(x, (50, 1)), policy)
    first, again, other = (np.asarray(wide.sample(jax.random.key(seed))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and len(np.unique(first)) > 2
    for x in (policy.log_prob(policy.mode()), policy.entropy(KEY), policy.kl(policy)):
        assert x.shape == (4,) and x.dtype == jnp.float32


def test_the_door_refuses_wrong_shapes():
    with pytest.raises(AssertionError):
        distributions.Categorical(jnp.zeros((4, 3))).log_prob(jnp.zeros((4, 1), jnp.int32))
    with pytest.raises(AssertionError):
        distributions.Gaussian(jnp.zeros((4, 3)), jnp.zeros(3)).log_prob(jnp.zeros((4, 3)))


@pytest.mark.parametrize("num_actions", [1, 2, 6, 18])
def test_sums_over_few_actions_are_the_gather(num_actions):
    """Values and gradients of the sum, for accelerators, and of the gather, for CPUs; an action may be forbidden."""
    rng = np.random.default_rng(num_actions)
    logits = rng.normal(scale=3, size=(50, num_actions)).astype(np.float32)
    logits[:25, 0] = -np.inf if num_actions > 1 else 0.0
    action = jnp.asarray(rng.integers(min(1, num_actions - 1), num_actions, size=50))
    weights = rng.normal(size=50).astype(np.float32)
    of_action = [functools.partial(f, action=action) for f in (distributions._gathered, distributions._summed)]
    for functions in (of_action, [distributions._mean_surprise, distributions._summed_surprise]):
        both = [jax.value_and_grad(lambda x, f=f: (weights * f(x)).sum())(jnp.asarray(logits)) for f in functions]
        for x, y in zip(jax.tree.leaves(both[0]), jax.tree.leaves(both[1]), strict=True):
            assert np.isfinite(y).all()
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


def test_a_mixture_with_the_uniform_distribution_by_hand():
    found = jnp.exp(distributions.unimix(jnp.log(jnp.array([[0.7, 0.2, 0.1], [1.0, 1e-30, 1e-30]])), 0.3))
    np.testing.assert_allclose(found, [[0.59, 0.24, 0.17], [0.8, 0.1, 0.1]], rtol=1e-5)


def test_straight_through_draws_by_probability_and_has_its_gradient():
    p = np.array([0.6, 0.3, 0.1])
    logits = jnp.broadcast_to(jnp.log(p), (4000, 3)).astype(jnp.float32)
    drawn = np.asarray(distributions.straight_through(logits, jax.random.key(0)))
    np.testing.assert_allclose(np.sort(drawn, -1), np.tile([0, 0, 1], (4000, 1)), atol=1e-6)
    np.testing.assert_allclose(drawn.mean(0), p, atol=0.03)
    slopes = jnp.array([1.0, -2.0, 5.0])
    gradient = jax.grad(lambda x: (slopes * distributions.straight_through(x, jax.random.key(1))).sum())(logits[0])
    np.testing.assert_allclose(gradient, p * (np.asarray(slopes) - p @ np.asarray(slopes)), rtol=1e-4)


def test_balanced_divergences_teach_one_side_each_and_nothing_below_the_free_nats():
    rng = np.random.default_rng(0)
    one, other = (jax.nn.log_softmax(jnp.asarray(rng.normal(size=(2, 3, 4)), jnp.float32)) for _ in range(2))
    p, q = (np.asarray(x, np.float64) for x in (one, other))
    wanted = (np.exp(p) * (p - q)).sum((-1, -2))
    free = float(wanted.mean())

    def of(which, posterior, prior, free):
        return distributions.balanced_kl(posterior, prior, free)[which].sum()

    for which in (0, 1):
        found = distributions.balanced_kl(one, other, 0.0)[which]
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
        np.testing.assert_allclose(
            distributions.balanced_kl(one, other, free)[which], np.maximum(wanted, free), rtol=1e-4
        )
        to_posterior, to_prior = jax.grad(of, argnums=(1, 2))(which, one, other, free)
        taught, untaught = (to_prior, to_posterior) if which == 0 else (to_posterior, to_prior)
        assert not np.asarray(untaught).any()
        for b in range(2):
            assert np.asarray(taught[b]).any() == (wanted[b] > free)
    # KL(p ‖ softmax(x)) has the gradient softmax(x) − p.
    to_prior = jax.grad(of, argnums=2)(0, one, other, 0.0)
    np.testing.assert_allclose(to_prior, np.exp(q) - np.exp(p), atol=1e-5)
