"""The parts of a page about returns: learning curves by task, the last evaluation of every seed, every evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist.analysis import curves, plots, published
from jaxrl_dist.analysis.report.pages import Cell, Table, number
from jaxrl_dist.runs import aggregate, display
from jaxrl_dist.runs import view as run_view

Numbered = tuple[int, run_view.View]

LETTERS = 160
_CROWDED = len(plots.COLOURS)


class Task(NamedTuple):
    """Learning curves of one task.

    Attributes:
        name: of it.
        legend: of the runs, and of published ones.
        panels: returns against steps and time.
        note: says what the lines are.
        sources: of what others have measured.
        apart: a panel of each run, where there are more than colours.
        evaluations: a table of each run.
    """

    name: str
    legend: list[plots.Entry]
    panels: Sequence[plots.Panel]
    note: str
    sources: Sequence[str]
    apart: Sequence[plots.Panel]
    evaluations: Sequence[Table]


def of_views(views: Sequence[run_view.View]) -> list[Task]:
    """Draws the curves of each task, with what others have measured there."""
    made = []
    for task, members in _by_task(views).items():
        found = [(i, view.label, curves.curve([view.records])) for i, view in members]
        made.append(of_curves(task, found, published.marks_of([view for _, view in members])))
    return made


def of_curves(
    name: str, found: Sequence[tuple[int, str, curves.Curve]], marks: published.Marks = published.NO_MARKS
) -> Task:
    """Draws the curves of one task, each with the number of its colour and its label.

    Of more runs than there are colours the two charts show the means alone, and each run has a chart of its own.
    """
    labelled = [(i, plots.plain(label, LETTERS), curve) for i, label, curve in found]
    drawn = [plots.Drawn(*one, curves.band(one[-1].returns)) for one in labelled]
    legend = [one.entry for one in drawn] + plots.works(marks)
    apart = plots.apart(drawn) if len(drawn) > _CROWDED else []
    tables = [_evaluations(one) for one in drawn if len(one.curve.env_steps)]
    return Task(name, legend, plots.returns(drawn, marks), plots.note_of(drawn), marks.sources, apart, tables)


def last_evaluations(views: Sequence[run_view.View]) -> list[tuple[str, Table, list[str]]]:
    """Makes a table for each task, whose scores are on one scale, and lists how they were made."""
    made = []
    for task, members in _by_task(views).items():
        values = [value for _, view in members for value in _extent(view)]
        scale = (min(values, default=0.0), max(values, default=1.0))
        rows = [_evaluated(i, view, scale) for i, view in members if view.evaluation]
        ends = f"from {_number(scale[0])} to {_number(scale[1])}"
        head = ("run", ends, "interquartile mean", "95 % interval", "over", "mean", "lowest", "highest", "seeds")
        protocols = dict.fromkeys(view.summary.get("protocol") or "" for _, view in members)
        shown = Table(f"Last evaluation on {task}", head, rows, "cards")
        made += [(task, shown, list(filter(None, protocols)))] if rows else []
    return made


def name(view: run_view.View, number: int) -> Cell:
    """Returns the label of a run with its line in the charts."""
    return Cell(plots.plain(view.label, LETTERS), number=number)


def state(view: run_view.View) -> str:
    """Says how a run ended, and where it stopped short of its steps."""
    steps = view.settings.get("steps", 0)
    word = "not at its end" if view.state == "going" else view.state
    is_short = view.state != "finished" and view.env_steps < steps
    return f"{word}, at {display.count(view.env_steps)} of {display.count(steps)} steps" if is_short else word


def score(view: run_view.View) -> Cell:
    """Returns the last evaluation with its interval."""
    last = view.evaluation
    known = [last[name] for name in ("eval_return_iqm", "eval_return") if _is_known(last.get(name))]
    return number(_number(known[0] if known else None), _interval(last))


def _interval(last: Mapping[str, Any]) -> str:
    """Writes the interval of an evaluation, "" where there is none."""
    ends: Sequence[Any] = last.get("eval_return_ci95") or ()
    return f"[{_number(ends[0])}, {_number(ends[1])}]" if len(ends) == 2 and all(map(_is_known, ends)) else ""


def _evaluations(one: plots.Drawn) -> Table:
    """Makes the table of all evaluations of one run."""
    rows = []
    for steps, seconds, returns in zip(*one.curve, strict=True):
        known = returns[np.isfinite(returns)]
        ends = (f"{known.mean():.4g}", f"{known.min():.4g}", f"{known.max():.4g}") if len(known) else ("–", "–", "–")
        rows.append((f"{steps:,.0f}", f"{seconds / 60:.2f}", *ends))
    head = ("steps per seed", "minutes", "mean", "lowest seed", "highest seed")
    return Table(f"Evaluations of {one.label}", head, rows)


def _evaluated(colour: int, view: run_view.View, scale: tuple[float, float]) -> list[str | Cell | plots.Panel]:
    """Makes the row of one run's last evaluation."""
    last = view.evaluation
    scores = [value for value in last.get("eval_return_per_seed") or [last.get("eval_return")] if _is_known(value)]
    centre: Any = last.get("eval_return_iqm", last.get("eval_return"))
    ends: Any = last.get("eval_return_ci95") or (centre, centre)
    is_known = bool(scores) and all(map(_is_known, (centre, *ends)))
    strip = plots.strip(scores, centre, ends, scale, colour) if is_known else ""
    over = f"{last.get('eval_interval_over', '')} ({last.get('eval_episodes', '?')} episodes)"
    over += ", few seeds" * (1 < len(scores) < aggregate.FEW)
    lowest, highest = (_number(pick(scores)) if scores else "–" for pick in (min, max))
    mean = _number(last.get("eval_return"))
    texts = (_number(centre), _interval(last) or "–", mean, lowest, highest, str(len(scores)))
    first, second, *others = map(number, texts)
    return [name(view, colour), strip, first, second, over, *others]


def _extent(view: run_view.View) -> list[float]:
    """Lists what the strip of a run must have room for."""
    last = view.evaluation
    values = [*(last.get("eval_return_per_seed") or ()), *(last.get("eval_return_ci95") or ()), last.get("eval_return")]
    return [value for value in values if _is_known(value)]


def _by_task(views: Sequence[run_view.View]) -> dict[str, list[Numbered]]:
    """Groups the runs by what they play; each keeps its number."""
    groups: dict[str, list[Numbered]] = {}
    for i, view in enumerate(views):
        groups.setdefault(run_view.task_of(view), []).append((i, view))
    return groups


def _is_known(value: Any) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def _number(value: Any) -> str:
    return f"{value:.4g}".replace("-", "−") if _is_known(value) else "–"
