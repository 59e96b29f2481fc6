"""Compares runs with reference curves of the same system and environment, seed by seed."""

import functools
import itertools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.analysis import curves, published
from jaxrl_dist.analysis import reference as reference_curves
from jaxrl_dist.runs import view as run_view
from jaxrl_dist.settings import resolve

WINDOWS = 10
# Of runs that learn like the reference, so many at most are outside by one number alone, if seeds differ normally.
# Curves that fall now and then do not, so that a band is twice as wide as the largest deviation at least.
ALARMS = 0.02
LEAST_WIDENING = 2.0
SMALLEST_SHARE = 0.05
# Below so much of what the reference gained over random play nothing is inside, however far its seeds differ: of the
# stored references' own seeds this makes none an alarm that was not one before, at 0.5 three.
LEAST_GAIN = 0.25
_MOST_GROUPS = 2_000
_DRAWS = 4_000


class Number(NamedTuple):
    """One number of a run beside that of its reference, and the two ends of the band around that."""

    name: str
    run: float
    reference: float
    low: float
    high: float

    @property
    def is_inside(self) -> bool:
        """Says whether the run is in the band."""
        return self.low <= self.run <= self.high


class Comparison(NamedTuple):
    """A run beside its reference.

    Attributes:
        env_steps: f64 [w], the end of each tenth that both were evaluated in.
        run: f64 [w], mean over the run's seeds.
        reference: f64 [w], mean over the reference's seeds.
        numbers: the numbers that decide; the last tenth is among them if the run has come to it.
    """

    env_steps: np.ndarray
    run: np.ndarray
    reference: np.ndarray
    numbers: tuple[Number, ...]

    @property
    def is_inside(self) -> bool:
        """Says whether all numbers are in their bands."""
        return all(number.is_inside for number in self.numbers)


class Verdict(NamedTuple):
    """A run beside a reference.

    Attributes:
        reference: the reference that it is compared with.
        changes: settings in which the run differs from it.
        num_seeds: number of seeds of the run.
        result: the comparison.
    """

    reference: reference_curves.Reference
    changes: tuple[resolve.Change, ...]
    num_seeds: int
    result: Comparison


def judge(references: Sequence[reference_curves.Reference], views: Sequence[run_view.View]) -> Verdict:
    """Compares the seeds of all runs with the reference whose settings are nearest to theirs.

    Raises:
        UsageError: there is no reference of this system and environment, the runs are not alike or were not evaluated
            at the steps of the reference, or a run is a sweep or given twice.
    """
    run_view.check_one_setting(views)
    reference_curves.seeds_of(views)
    chosen, changes = _nearest(references, views[0])
    curve = curves.curve([view.records for view in views])
    try:
        level = published.random_play(views[0].settings["env"], views[0].task_params)
        result = compare(curve.env_steps, curve.returns, chosen.env_steps, chosen.returns, level)
    except ValueError as error:
        raise errors.UsageError(f"{views[0].label}: {error}") from None
    return Verdict(chosen, changes, curve.returns.shape[1], result)


def describe(verdict: Verdict, views: Sequence[run_view.View]) -> str:
    """Describes a comparison and its result, in lines."""
    one, result = verdict.reference, verdict.result
    commits = ", ".join(dict.fromkeys(re.sub("(?<=^.{7})[0-9a-f]*", "", x["commit"]) for x in one.facts["software"]))
    lines = [
        f"{', '.join(view.label for view in views)}: {_seeds(verdict.num_seeds)}, {_steps(views)}",
        f"beside {one.title} (commit {commits})",
    ]
    if verdict.changes:
        lines.append(f"settings that differ from the reference's: {resolve.describe(verdict.changes)}")
    lines += ["", f"{'steps':>12} {'run':>10} {'reference':>10}"]
    for steps, run, theirs in zip(result.env_steps, result.run, result.reference, strict=True):
        lines.append(f"{steps:>12,.0f} {run:>10.4g} {theirs:>10.4g}")
    lines += ["", f"{'':<26} {'run':>10} {'reference':>10}   band"]
    for number in result.numbers:
        word = "inside" if number.is_inside else "above" if number.run > number.reference else "below"
        lines.append(
            f"{number.name:<26} {number.run:>10.4g} {number.reference:>10.4g}   [{number.low:.4g}, {number.high:.4g}] "
            f"{word}"
        )
    if "last tenth" not in [number.name for number in result.numbers]:
        lines.append("the run has not come to the last tenth of the reference's steps")
    level = published.random_play(one.facts["env"], reference_curves.task_params(one.facts["settings"]))
    alarms = false_alarms(one.env_steps, one.returns, level)
    own = f" (for scale: of the reference's own {len(alarms)} seeds, {sum(alarms)} lie outside the band of the others)"
    lines += ["", f"{'inside' if result.is_inside else 'OUTSIDE'} the band{own if alarms else ''}"]
    return "\n".join(lines)


def compare(
    steps: np.ndarray,
    returns: np.ndarray,
    reference_steps: np.ndarray,
    reference_returns: np.ndarray,
    random_play: float = -math.inf,
) -> Comparison:
    """Compares a run with a reference, over the steps that both were evaluated in.

    Args:
        steps: f64 [n], steps of the run's evaluations, rising.
        returns: f64 [n, S'], mean return per seed of the run; interpolated linearly between two evaluations.
        reference_steps: f64 [m], rising.
        reference_returns: f64 [m, S], finite.
        random_play: its level, -inf where it is not known.

    Raises:
        ValueError: the reference has too few seeds, or the run has no evaluation at any of its steps but 0.
    """
    if reference_returns.shape[1] < reference_curves.SMALLEST_SEEDS:
        raise ValueError(
            f"a reference needs {reference_curves.SMALLEST_SEEDS} seeds or more, not {reference_returns.shape[1]}"
        )
    known = np.isfinite(returns).all(1)
    first, last = steps[known][[0, -1]] if known.any() else (np.inf, -np.inf)
    # The last evaluations of two runs may be an unroll apart.
    shared = (reference_steps >= 0.99 * first) & (reference_steps <= curves.AN_UNROLL_MORE * last)
    # Before the first update all runs of a system are alike.
    if not (shared & (reference_steps > 0)).any():
        raise ValueError(
            "the run has no evaluation, in all of its seeds, at the reference's steps after 0: the first is at "
            f"{min(reference_steps[reference_steps > 0], default=0):,g}"
        )
    placed = np.stack([np.interp(reference_steps, steps[known], column) for column in returns[known].T], axis=1)
    windows = np.ceil(WINDOWS * reference_steps / reference_steps[-1] - 1e-9).astype(int)
    shown = np.unique(windows[shared])
    run, reference = (
        np.stack([values[shared & (windows == window)].mean(0) for window in shown])
        for values in (placed, reference_returns)
    )
    ends = shown / WINDOWS * reference_steps[-1]
    return Comparison(ends, run.mean(1), reference.mean(1), _numbers(shown, run, reference, random_play))


def false_alarms(env_steps: np.ndarray, returns: np.ndarray, random_play: float = -math.inf) -> list[bool]:
    """Leaves each seed of a reference out in turn, and says which of them would be outside of the band of the others.

    Args:
        env_steps: f64 [m].
        returns: f64 [m, S].
        random_play: its level, -inf where it is not known.

    Returns:
        S verdicts; none if the others would be too few for a reference.
    """
    if returns.shape[1] <= reference_curves.SMALLEST_SEEDS:
        return []
    others = [np.delete(returns, i, axis=1) for i in range(returns.shape[1])]
    pairs = zip(returns.T, others, strict=True)
    return [not compare(env_steps, seed[:, None], env_steps, rest, random_play).is_inside for seed, rest in pairs]


def _nearest(
    references: Sequence[reference_curves.Reference], view: run_view.View
) -> tuple[reference_curves.Reference, tuple[resolve.Change, ...]]:
    """Finds the reference with the system, environment and parameters of a run, and the fewest other differences."""
    settings = view.settings
    own = [
        one for one in references if (one.facts["system"], one.facts["env"]) == (settings["system"], settings["env"])
    ]
    own = [one for one in own if reference_curves.task_params(one.facts["settings"]) == view.task_params]
    if not own:
        params = "".join(f" {name}={value}" for name, value in sorted(view.task_params.items()))
        listed = ", ".join(one.name for one in references)
        raise errors.UsageError(
            f"{view.label}: no reference of {settings['system']} on {settings['env']}{params}; there are {listed} "
            "(--list says of what)"
        )
    return min(((one, _changes(one, view)) for one in own), key=lambda pair: len(pair[1]))


def _changes(one: reference_curves.Reference, view: run_view.View) -> tuple[resolve.Change, ...]:
    """Lists the settings in which a run differs, with `steps`, but without others that a resumed run may change."""
    after = {name: entry for name, entry in view.entries.items() if name not in reference_curves.OF_EACH_RUN}
    return resolve.difference(one.facts["settings"], after, always=("steps",)).identity


def _seeds(count: int) -> str:
    return f"{count} seeds" if count > 1 else "one seed"


def _steps(views: Sequence[run_view.View]) -> str:
    steps = min(view.env_steps for view in views)
    return f"{steps:,} steps"


def _numbers(windows: np.ndarray, run: np.ndarray, reference: np.ndarray, random_play: float) -> tuple[Number, ...]:
    """Computes the numbers and their bands from returns f64 [w, S'] and f64 [w, S] by tenth."""
    deviations = _deviations(reference, run.shape[1])
    factor = widening(reference.shape[1], run.shape[1])
    smallest = SMALLEST_SHARE * float(np.ptp(reference))
    ours, theirs = run.mean(1), reference.mean(1)

    def number(name: str, run: float, reference: float, deviations: np.ndarray, random_play: float) -> Number:
        width = max(factor * float(deviations.max()), smallest)
        gained = random_play + LEAST_GAIN * (reference - random_play) if math.isfinite(random_play) else -math.inf
        least = min(gained, reference - smallest)
        return Number(name, run, reference, max(reference - width, least), reference + width)

    whole = _deviations(reference.mean(0, keepdims=True), run.shape[1])
    numbers = [number("whole run", float(ours.mean()), float(theirs.mean()), whole, random_play)]
    if windows[-1] == WINDOWS:
        last = deviations[:, -1]
        numbers.append(number("last tenth", float(ours[-1]), float(theirs[-1]), last, random_play))
    worst = int(np.argmax(np.abs(ours - theirs)))
    name = f"tenth {windows[worst]}, the farthest"
    # It may be one of the first, in which a seed is at random play's level still.
    return (*numbers, number(name, float(ours[worst]), float(theirs[worst]), deviations, -math.inf))


@functools.cache
def widening(reference_seeds: int, run_seeds: int) -> float:
    """Returns how many times the largest deviation within a reference a band is wide.

    It is the quantile 1 − `ALARMS` of how far the mean of a run's seeds is from that of the reference's, over the
    largest deviation of a group of the reference's seeds from the others, of numbers that are drawn alike from a normal
    distribution (by simulation, from a fixed seed); `LEAST_WIDENING` at least.

    Args:
        reference_seeds: S, 2 or more.
        run_seeds: S', 1 or more.

    Example:
        >>> from jaxrl_dist.analysis import compare
        >>> [round(compare.widening(seeds, 1), 1) for seeds in (4, 5, 6)]
        [2.8, 2.3, 2.0]
    """
    generator = np.random.default_rng(0)
    reference, run = (generator.standard_normal((_DRAWS, seeds)) for seeds in (reference_seeds, run_seeds))
    ratios = np.abs(run.mean(1) - reference.mean(1)) / _deviations(reference, run_seeds).max(0)
    return max(float(np.quantile(ratios, 1 - ALARMS)), LEAST_WIDENING)


def _deviations(values: np.ndarray, num_seeds: int) -> np.ndarray:
    """Computes how far the mean of each group of seeds is from that of the others.

    Args:
        values: f64 [w, S].
        num_seeds: size of a group; at most half of S is used, whose deviations are larger than those of more seeds.

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
    """Lists the groups of seeds; if there are very many, enough of them, drawn at random."""
    if math.comb(count, size) <= _MOST_GROUPS:
        return [list(group) for group in itertools.combinations(range(count), size)]
    generator = np.random.default_rng(0)
    return [generator.choice(count, size, replace=False).tolist() for _ in range(_MOST_GROUPS)]
