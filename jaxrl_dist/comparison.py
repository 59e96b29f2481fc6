"""Compares runs with the reference curves of the same system and environment, and says in words what came of it."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_dist import band, errors, plots, reference, run_view
from jaxrl_dist.settings import resolve


class Verdict(NamedTuple):
    """A run beside a reference.

    Attributes:
        reference: that it is compared with.
        changes: settings in which the run differs from it.
        num_seeds: of the run.
        result: of the comparison.
    """

    reference: reference.Reference
    changes: tuple[resolve.Change, ...]
    num_seeds: int
    result: band.Comparison


def judge(references: Sequence[reference.Reference], views: Sequence[run_view.View]) -> Verdict:
    """Compares runs, whose seeds are taken together, with the reference that is nearest to their settings.

    Raises:
        UsageError: there is no reference of this system and environment, the runs are not alike, or they were not
            evaluated at the steps of the reference; or one is a sweep, or given twice.
    """
    run_view.check_one_setting(views)
    chosen, changes = _nearest(references, views[0])
    for view in views[1:]:
        other, _ = _nearest(references, view)
        if other.name != chosen.name:
            raise errors.UsageError(
                f"{views[0].label} belongs to {chosen.name}, {view.label} to {other.name}: give them one by one"
            )
    curve = plots.curve([view.records for view in views])
    try:
        result = band.compare(curve.env_steps, curve.returns, chosen.env_steps, chosen.returns)
    except ValueError as error:
        raise errors.UsageError(f"{views[0].label}: {error}") from None
    return Verdict(chosen, changes, curve.returns.shape[1], result)


def describe(verdict: Verdict, views: Sequence[run_view.View]) -> str:
    """Says in lines what was compared and what came of it."""
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
        low, high = number.reference - number.half_width, number.reference + number.half_width
        word = "inside" if number.is_inside else "above" if number.run > number.reference else "below"
        lines.append(
            f"{number.name:<26} {number.run:>10.4g} {number.reference:>10.4g}   [{low:.4g}, {high:.4g}] {word}"
        )
    if "last tenth" not in [number.name for number in result.numbers]:
        lines.append("the run has not come to the last tenth of the reference's steps")
    alarms = band.false_alarms(one.env_steps, one.returns)
    own = f"; of the reference's {len(alarms)} seeds, each beside the others, {sum(alarms)} would be outside"
    lines += ["", f"{'inside' if result.is_inside else 'OUTSIDE'} the band{own if alarms else ''}"]
    return "\n".join(lines)


def _nearest(
    references: Sequence[reference.Reference], view: run_view.View
) -> tuple[reference.Reference, tuple[resolve.Change, ...]]:
    """Finds the reference with the system, environment and parameters of a run, and the fewest other differences."""
    settings = view.settings
    own = [
        one for one in references if (one.facts["system"], one.facts["env"]) == (settings["system"], settings["env"])
    ]
    own = [one for one in own if reference.env_params(one.facts["settings"]) == view.env_params]
    if not own:
        params = "".join(f" {name}={value}" for name, value in sorted(view.env_params.items()))
        listed = ", ".join(one.name for one in references)
        raise errors.UsageError(
            f"{view.label}: no reference of {settings['system']} on {settings['env']}{params}; there are {listed} "
            "(--list says of what)"
        )
    return min(((one, _changes(one, view)) for one in own), key=lambda pair: len(pair[1]))


def _changes(one: reference.Reference, view: run_view.View) -> tuple[resolve.Change, ...]:
    """Lists the settings in which a run differs, but for those that a resumed run may change; steps do count."""
    after = {name: entry for name, entry in view.entries.items() if name not in reference.OF_EACH_RUN}
    return resolve.difference(one.facts["settings"], after, always=("steps",)).identity


def _seeds(count: int) -> str:
    return f"{count} seeds" if count > 1 else "one seed"


def _steps(views: Sequence[run_view.View]) -> str:
    steps = min(view.env_steps for view in views)
    return f"{steps:,} steps"
