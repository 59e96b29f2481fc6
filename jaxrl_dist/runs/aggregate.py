"""Statistics over seeds and tasks, as in Agarwal et al. 2021 (rliable): interquartile mean, stratified intervals.

Scores are [S] for S seeds of one task, or [..., S, K] for K tasks, with any number of leading batch axes. A NaN among
the scores of a statistic makes it NaN: a missing seed is never trimmed away in silence.
"""

import math
from collections.abc import Callable

import numpy as np

# With fewer seeds an interval says little: that of two seeds is the two scores.
FEW = 5
_ITEMS_PER_BATCH = 4_000_000

Statistic = Callable[..., np.ndarray]


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Averages the middle half of the scores of all seeds and tasks together.

    Args:
        scores: [S] or [..., S, K].

    Returns:
        f64 [...]: the mean without the ⌊N/4⌋ lowest and ⌊N/4⌋ highest of the N = S·K scores.

    Source:
        Agarwal et al. 2021, section 4.3; equals `scipy.stats.trim_mean(scores, 0.25, axis=None)`.
    """
    scores = _with_tasks(scores)
    flat = np.sort(scores.reshape(*scores.shape[:-2], scores.shape[-2] * scores.shape[-1]), axis=-1)
    cut = flat.shape[-1] // 4
    means = flat[..., cut : flat.shape[-1] - cut].mean(-1)
    # Sorting puts NaN last, among the scores that are cut off.
    return np.where(np.isnan(flat[..., -1]), np.nan, means)


def mean(scores: np.ndarray) -> np.ndarray:
    """Averages the scores of all seeds and tasks: [S] or [..., S, K] -> f64 [...]."""
    return _with_tasks(scores).mean((-2, -1))


def probability_of_improvement(scores: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """Estimates how likely a run scores higher than one of the baseline on a task drawn at random; ties count half.

    Args:
        scores: [S] or [..., S, K].
        baseline: [S'] or [..., S', K].

    Returns:
        f64 [...] in [0, 1]: the mean over tasks of the Mann-Whitney U of the task divided by S·S'.

    Source:
        Agarwal et al. 2021, section 4.4.
    """
    ours, theirs = _with_tasks(scores), _with_tasks(baseline)
    difference = ours[..., :, None, :] - theirs[..., None, :, :]
    return (0.5 + 0.5 * np.sign(difference)).mean((-3, -2, -1))


def interval(
    *scores: np.ndarray,
    statistic: Statistic = interquartile_mean,
    confidence: float = 0.95,
    resamples: int = 5_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Computes the stratified bootstrap interval of a statistic by the percentile method.

    Every resample draws, for each task by itself, as many seeds as there are, with replacement. Several score arrays
    are drawn independently of each other.

    Args:
        *scores: the arguments of the statistic, each [S] or [S, K].
        statistic: maps arrays [R, S, K] to [R].
        confidence: probability that the interval is to cover.
        resamples: number of bootstrap resamples.
        seed: seed of the resampling; equal arguments give equal intervals.

    Returns:
        (low, high); both are the score itself if there is one seed, and NaN if a score is.

    Raises:
        ValueError: there are no scores, or an array has more than two axes.

    Source:
        Agarwal et al. 2021, section 4.1.
    """
    samples = [_with_tasks(array) for array in scores]
    for array in samples:
        if array.ndim != 2 or array.size == 0:
            raise ValueError(f"scores are [S] or [S, K] and not empty, these have shape {array.shape}")
    if any(np.isnan(array).any() for array in samples):
        return float("nan"), float("nan")
    generator = np.random.default_rng(seed)
    # A statistic of two samples may compare each seed of the one with each of the other.
    pairs = math.prod(len(array) for array in samples) * max(array.shape[1] for array in samples)
    batch = max(1, _ITEMS_PER_BATCH // max(pairs, sum(array.size for array in samples)))
    sizes = [min(batch, resamples - start) for start in range(0, resamples, batch)]
    drawn = [statistic(*(_resample(array, size, generator) for array in samples)) for size in sizes]
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(drawn), [tail, 1 - tail])
    return float(low), float(high)


def final_window_mean(env_steps: np.ndarray, returns: np.ndarray, fraction: float = 0.1) -> np.ndarray:
    """Averages the evaluations in the last part of training, for each seed.

    Args:
        env_steps: [n], rising.
        returns: [n] or [n, S].
        fraction: length of the window, relative to the last step; the last evaluation is always in it.

    Returns:
        f64 [] or [S].

    Raises:
        ValueError: there are no evaluations.
    """
    if len(env_steps) == 0:
        raise ValueError("a final-window mean needs at least one evaluation")
    steps = np.asarray(env_steps, np.float64)
    in_window = steps > (1 - fraction) * steps[-1]
    in_window[-1] = True
    return np.asarray(returns, np.float64)[in_window].mean(0)


def _with_tasks(scores: np.ndarray) -> np.ndarray:
    """Returns f64 scores with a task axis: [S] becomes [S, 1]."""
    scores = np.asarray(scores, np.float64)
    return scores[:, None] if scores.ndim == 1 else scores


def _resample(scores: np.ndarray, resamples: int, generator: np.random.Generator) -> np.ndarray:
    """Draws seeds with replacement within each task: [S, K] -> [R, S, K]."""
    rows = generator.integers(scores.shape[0], size=(resamples, *scores.shape))
    return scores[rows, np.arange(scores.shape[1])]
