"""Aggregate statistics against SciPy, exhaustive enumeration and slow loops."""

import itertools
import re
import tracemalloc

import hypothesis
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies
from hypothesis.extra import numpy as hypothesis_numpy

from jaxrl_dist.runs import aggregate

SCORES = hypothesis_numpy.arrays(
    np.float64,
    strategies.tuples(strategies.integers(1, 12), strategies.integers(1, 4)),
    elements=strategies.floats(-1e3, 1e3),
)


def all_resamples(scores: np.ndarray) -> np.ndarray:
    """Every resample of a [S, K] array within its tasks, [S^(S·K), S, K]."""
    columns = [list(itertools.product(column, repeat=len(column))) for column in scores.T]
    return np.array([np.stack(choice, axis=-1) for choice in itertools.product(*columns)])


def test_interquartile_mean_of_a_hand_worked_case() -> None:
    assert aggregate.interquartile_mean(np.array([-1e9, 2.0, 4.0, 1e9])) == 3.0
    assert aggregate.interquartile_mean(np.array([1.0, 5.0])) == 3.0
    assert aggregate.interquartile_mean(np.array([7.0])) == 7.0


@hypothesis.given(SCORES)
def test_interquartile_mean_is_scipys_trimmed_mean(scores: np.ndarray) -> None:
    expected = scipy.stats.trim_mean(scores, 0.25, axis=None)
    np.testing.assert_allclose(aggregate.interquartile_mean(scores), expected, rtol=1e-12, atol=1e-9)


def test_statistics_work_on_batches() -> None:
    generator = np.random.default_rng(0)
    ours, theirs = generator.normal(size=(2, 5, 6, 3)), generator.normal(size=(2, 5, 4, 3))
    for statistic in (aggregate.interquartile_mean, aggregate.mean):
        expected = [[statistic(item) for item in row] for row in ours]
        np.testing.assert_allclose(statistic(ours), expected)
    pairs = [[aggregate.probability_of_improvement(ours[i, j], theirs[i, j]) for j in range(5)] for i in range(2)]
    np.testing.assert_allclose(aggregate.probability_of_improvement(ours, theirs), pairs)


def test_a_missing_seed_is_not_trimmed_away() -> None:
    scores = np.array([1.0, 2.0, 3.0, 4.0, np.nan, 6.0, 7.0, 8.0])
    assert np.isnan(aggregate.interquartile_mean(scores))
    assert np.isnan(aggregate.probability_of_improvement(scores, np.ones(3)))
    assert all(np.isnan(aggregate.interval(scores)))


@hypothesis.given(SCORES, strategies.integers(1, 12), strategies.integers(0, 1000))
def test_probability_of_improvement_is_the_mean_mann_whitney_u(scores: np.ndarray, rivals: int, seed: int) -> None:
    baseline = np.random.default_rng(seed).choice(scores.ravel(), (rivals, scores.shape[1]))
    wins = [
        np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x in scores[:, k] for y in baseline[:, k]])
        for k in range(scores.shape[1])
    ]
    utility = [
        scipy.stats.mannwhitneyu(scores[:, k], baseline[:, k]).statistic / (len(scores) * rivals)
        for k in range(scores.shape[1])
    ]
    result = aggregate.probability_of_improvement(scores, baseline)
    np.testing.assert_allclose(result, np.mean(wins), atol=1e-12)
    np.testing.assert_allclose(result, np.mean(utility), atol=1e-12)


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_interval_is_that_of_all_resamples(num_tasks: int) -> None:
    scores = np.random.default_rng(1).normal(size=(3, num_tasks))
    exact = aggregate.interquartile_mean(all_resamples(scores))
    low, high = aggregate.interval(scores, resamples=40_000)
    # The distribution is discrete: the bounds lie between neighbouring quantiles of it.
    first, second, third, fourth = np.quantile(exact, [0.02, 0.03, 0.97, 0.98], method="inverted_cdf")
    assert first - 1e-9 <= low <= second + 1e-9
    assert third - 1e-9 <= high <= fourth + 1e-9


def test_interval_agrees_with_scipys_bootstrap() -> None:
    scores = np.random.default_rng(2).normal(10.0, 3.0, size=20)
    low, high = aggregate.interval(scores, resamples=20_000)
    expected = scipy.stats.bootstrap(
        (scores,),
        lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis=axis),
        n_resamples=20_000,
        method="percentile",
        random_state=np.random.default_rng(3),
    ).confidence_interval
    np.testing.assert_allclose([low, high], expected, atol=0.06)


def test_seeds_are_resampled_within_their_task() -> None:
    tasks = np.array([[0.0, 100.0], [0.0, 100.0], [0.0, 100.0]])
    assert aggregate.interval(tasks, statistic=aggregate.mean) == (50.0, 50.0)
    mixed = np.array([[0.0, 100.0], [1.0, 101.0], [2.0, 102.0]])
    low, high = aggregate.interval(mixed, statistic=aggregate.mean)
    assert 50.0 <= low < 51.0 < high <= 52.0


def test_interval_of_two_samples() -> None:
    generator = np.random.default_rng(4)
    better, worse = generator.normal(1.0, 1.0, 12), generator.normal(0.0, 1.0, 9)
    low, high = aggregate.interval(better, worse, statistic=aggregate.probability_of_improvement)
    assert 0.0 <= low < aggregate.probability_of_improvement(better, worse) < high <= 1.0
    same = aggregate.interval(better + 100, worse, statistic=aggregate.probability_of_improvement)
    assert same == (1.0, 1.0)


def test_pairs_of_many_seeds_fit_into_memory() -> None:
    generator = np.random.default_rng(6)
    better, worse = generator.normal(1.0, 1.0, 300), generator.normal(0.0, 1.0, 300)
    tracemalloc.start()
    low, high = aggregate.interval(better, worse, statistic=aggregate.probability_of_improvement, resamples=200)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The normal distribution function of 1 / √2 is .76; all pairs of all resamples are 144 MB.
    assert 0.6 < low < 0.76 < high < 0.9 and peak < 120e6


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        low, high = aggregate.interval(generator.normal(size=20), statistic=aggregate.mean, resamples=500)
        covered += low <= 0.0 <= high
    # The percentile method is a little short with 20 seeds: about 0.93.
    assert 0.88 <= covered / 300 <= 0.97


def test_interval_is_reproducible_and_does_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(6).normal(size=(7, 2))
    whole = aggregate.interval(scores, resamples=2_001)
    assert whole == aggregate.interval(scores, resamples=2_001)
    assert whole != aggregate.interval(scores, resamples=2_001, seed=1)
    monkeypatch.setattr(aggregate, "_ITEMS_PER_BATCH", 14 * 100)
    assert aggregate.interval(scores, resamples=2_001) == whole


def test_interval_of_one_seed_is_its_score() -> None:
    assert aggregate.interval(np.array([3.5])) == (3.5, 3.5)


@pytest.mark.parametrize("shape", [(0,), (0, 2), (2, 3, 4)])
def test_interval_refuses_what_is_no_table_of_scores(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(str(shape).rstrip(",)"))):
        aggregate.interval(np.zeros(shape))


def test_final_window_mean() -> None:
    steps = np.array([10, 50, 90, 91, 100])
    returns = np.array([[0.0, 0.0], [1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [5.0, 50.0]])
    np.testing.assert_allclose(aggregate.final_window_mean(steps, returns), [4.0, 40.0])
    np.testing.assert_allclose(aggregate.final_window_mean(steps, returns[:, 0], fraction=0.6), 11 / 4)
    assert aggregate.final_window_mean(np.array([0]), np.array([7.0])) == 7.0
    with pytest.raises(ValueError, match="evaluation"):
        aggregate.final_window_mean(np.array([]), np.array([]))
