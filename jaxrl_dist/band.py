"""Whether the seeds of a run learn like those of a reference: three numbers, each in a band that its seeds set.

A curve is cut into tenths of the reference's steps, and each seed's evaluations are averaged in each. Compared are the
mean over the whole run, the last tenth alone, and the tenth that is farthest off. Half a band is as wide as twice the
largest deviation that any group of as many of the reference's seeds as the run has shows from the others, and at least
5 % of the range of the reference's returns.

How often that is a false alarm: of S + 1 seeds that were drawn alike each is equally likely to be the farthest from the
others, so in one number a single seed is farther than all S of the reference with a probability of about 1/(S + 1).
Three numbers make that 3/(S + 1) at most, and being outside takes twice the distance, which is rarer by an amount that
depends on the tails: `benchmarks/reference/README.md` has what was measured.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

WINDOWS = 10
WIDENING = 2.0
SMALLEST_SHARE = 0.05
SMALLEST_SEEDS = 4
_MOST_GROUPS = 2_000


class Number(NamedTuple):
    """One number of a run beside that of its reference, and half the width of the band around that."""

    name: str
    run: float
    reference: float
    half_width: float

    @property
    def is_inside(self) -> bool:
        """Whether the run is in the band."""
        return abs(self.run - self.reference) <= self.half_width


class Comparison(NamedTuple):
    """A run beside its reference.

    Attributes:
        env_steps: f64 [w], the end of each tenth that both were evaluated in.
        run: f64 [w], mean over the run's seeds.
        reference: f64 [w], mean over the reference's seeds.
        numbers: that decide; the last tenth is among them if the run has come to it.
    """

    env_steps: np.ndarray
    run: np.ndarray
    reference: np.ndarray
    numbers: tuple[Number, ...]

    @property
    def is_inside(self) -> bool:
        """Whether all numbers are in their bands."""
        return all(number.is_inside for number in self.numbers)


def compare(
    steps: np.ndarray, returns: np.ndarray, reference_steps: np.ndarray, reference_returns: np.ndarray
) -> Comparison:
    """Compares a run with a reference, over the steps that both were evaluated in.

    Args:
        steps: f64 [n], of the run's evaluations, rising.
        returns: f64 [n, S'], one mean return per seed of the run; between two evaluations it is put on a line.
        reference_steps: f64 [m], rising.
        reference_returns: f64 [m, S], finite.

    Raises:
        ValueError: the reference has too few seeds, or the run no evaluation at any of its steps.
    """
    if reference_returns.shape[1] < SMALLEST_SEEDS:
        raise ValueError(f"a reference needs {SMALLEST_SEEDS} seeds or more, not {reference_returns.shape[1]}")
    known = np.isfinite(returns).all(1)
    first, last = steps[known][[0, -1]] if known.any() else (np.inf, -np.inf)
    # The last evaluations of two runs may be an unroll apart.
    shared = (reference_steps >= 0.99 * first) & (reference_steps <= 1.01 * last)
    if not shared.any():
        raise ValueError("the run has no evaluation, in all of its seeds, at the steps of the reference")
    placed = np.stack([np.interp(reference_steps, steps[known], column) for column in returns[known].T], axis=1)
    windows = np.ceil(WINDOWS * reference_steps / reference_steps[-1] - 1e-9).astype(int)
    shown = np.unique(windows[shared])
    run, reference = (
        np.stack([values[shared & (windows == window)].mean(0) for window in shown])
        for values in (placed, reference_returns)
    )
    ends = shown / WINDOWS * reference_steps[-1]
    return Comparison(ends, run.mean(1), reference.mean(1), _numbers(shown, run, reference))


def false_alarms(env_steps: np.ndarray, returns: np.ndarray) -> list[bool]:
    """Leaves each seed of a reference out in turn, and says which of them would be outside of the band of the others.

    Args:
        env_steps: f64 [m].
        returns: f64 [m, S].

    Returns:
        S verdicts; none where the others would be too few for a reference.
    """
    if returns.shape[1] <= SMALLEST_SEEDS:
        return []
    others = [np.delete(returns, i, axis=1) for i in range(returns.shape[1])]
    pairs = zip(returns.T, others, strict=True)
    return [not compare(env_steps, seed[:, None], env_steps, rest).is_inside for seed, rest in pairs]


def _numbers(windows: np.ndarray, run: np.ndarray, reference: np.ndarray) -> tuple[Number, ...]:
    """Computes the numbers and their bands from returns f64 [w, S'] and f64 [w, S] by tenth."""
    deviations = _deviations(reference, run.shape[1])
    smallest = SMALLEST_SHARE * float(np.ptp(reference))
    ours, theirs = run.mean(1), reference.mean(1)
    whole = _deviations(reference.mean(0, keepdims=True), run.shape[1])
    numbers = [
        Number("whole run", float(ours.mean()), float(theirs.mean()), max(WIDENING * float(whole.max()), smallest))
    ]
    if windows[-1] == WINDOWS:
        width = max(WIDENING * float(deviations[:, -1].max()), smallest)
        numbers.append(Number("last tenth", float(ours[-1]), float(theirs[-1]), width))
    worst = int(np.argmax(np.abs(ours - theirs)))
    width = max(WIDENING * float(deviations.max()), smallest)
    name = f"farthest tenth, the {windows[worst]}."
    return (*numbers, Number(name, float(ours[worst]), float(theirs[worst]), width))


def _deviations(values: np.ndarray, num_seeds: int) -> np.ndarray:
    """Computes how far the mean of each group of seeds is from that of the others.

    Args:
        values: f64 [w, S].
        num_seeds: of a group; half of S at most, whose deviations are larger than those of more.

    Returns:
        f64 [groups, w].
    """
    count = values.shape[1]
    groups = _groups(count, min(num_seeds, count // 2))
    means = np.stack([values[:, group].mean(1) for group in groups])
    size = len(groups[0])
    rest = (values.sum(1) - size * means) / (count - size)
    return np.abs(means - rest)


def _groups(count: int, size: int) -> list[list[int]]:
    """Lists the groups of seeds; of very many, as many as are enough, drawn at random."""
    if math.comb(count, size) <= _MOST_GROUPS:
        return [list(group) for group in itertools.combinations(range(count), size)]
    generator = np.random.default_rng(0)
    return [generator.choice(count, size, replace=False).tolist() for _ in range(_MOST_GROUPS)]
