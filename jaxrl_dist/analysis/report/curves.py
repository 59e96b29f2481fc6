"""The parts of the page about returns: learning curves by task, the last evaluation of every seed, every evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist.analysis import plots, published
from jaxrl_dist.analysis.report import charts
from jaxrl_dist.analysis.report.markup import Markup, details, element, joined, table
from jaxrl_dist.runs import aggregate, display
from jaxrl_dist.runs import view as run_view

Numbered = tuple[int, run_view.View]

_STEPS = "Environment steps per seed"
# Most other runs behind the chart of a run; with all of them the page would grow with the square of their number.
_MOST_OTHERS = 50


class Drawn(NamedTuple):
    """Evaluations that are drawn in one colour, with the colour's number and the label."""

    number: int
    label: str
    curve: plots.Curve


def section(views: Sequence[run_view.View]) -> Markup:
    """Draws the curves of each task, with published numbers."""
    parts = []
    for name, members in _by_task(views).items():
        drawn = [Drawn(number, view.label, plots.curve([view.records])) for number, view in members]
        parts.append(task(name, drawn, published.marks_of([view for _, view in members])))
    return joined(parts)


def evaluation(views: Sequence[run_view.View]) -> Markup | None:
    """Makes the table of last evaluations, those of one task on one scale."""
    parts = []
    for name, members in _by_task(views).items():
        drawn = [value for _, view in members for value in _extent(view)]
        scale = (min(drawn, default=0.0), max(drawn, default=1.0))
        rows = [_evaluated(i, view, scale) for i, view in members if view.evaluation]
        if rows:
            ends = f"from {_number(scale[0])} to {_number(scale[1])}"
            head = ("run", "interquartile mean", "95 % interval", "over", "mean", "lowest", "highest", "seeds", ends)
            protocols = dict.fromkeys(view.summary.get("protocol") or "" for _, view in members)
            texts = [element("p", text, class_="soft") for text in protocols if text]
            parts += [element("h3", name), table(f"Last evaluation on {name}", head, rows, "cards"), *texts]
    return joined(parts) if parts else None


def name(view: run_view.View, number: int) -> Markup:
    """Returns the label of a run with its line in the charts."""
    return charts.named(view.label, number)


def state(view: run_view.View) -> str:
    """Says how a run ended, and after how many steps if it stopped early."""
    steps = view.settings.get("steps", 0)
    word = "not at its end" if view.state == "going" else view.state
    is_short = view.state != "finished" and view.env_steps < steps
    return f"{word}, at {display.count(view.env_steps)} of {display.count(steps)} steps" if is_short else word


def score(view: run_view.View) -> Markup:
    """Returns the last evaluation with its interval."""
    last = view.evaluation
    if not _is_known(last.get("eval_return_iqm")):
        return element("span", _number(last.get("eval_return")))
    ends = interval(last)
    shown = element("span", f"{_number(last['eval_return_iqm'])}", class_="number")
    return element("span", shown, " ", element("small", ends, class_="number")) if ends else shown


def interval(last: Mapping[str, Any]) -> str:
    """Writes the interval of an evaluation, "" without one."""
    ends: Sequence[Any] = last.get("eval_return_ci95") or ()
    return f"[{_number(ends[0])}, {_number(ends[1])}]" if len(ends) == 2 and all(_is_known(end) for end in ends) else ""


def task(name: str, drawn: Sequence[Drawn], marks: published.Marks = published.NO_MARKS) -> Markup:
    """Draws the two charts of one task, with its legend and the numbers behind them.

    If there are more runs than colours, the two charts show only the means, and each run has a chart of its own.
    """
    is_crowded = len(drawn) > charts.NUM_COLOURS
    longest = max((one.curve.wall_s.max() for one in drawn if len(one.curve.wall_s)), default=0.0)
    unit_s, unit = next((size, word) for least, size, word in plots.TIME_UNITS if longest >= least)
    levels = [(level.name, level.value) for level in marks.levels]
    by_steps = [_lines(one, one.curve.env_steps) for one in drawn]
    by_time = [_lines(one, one.curve.wall_s / unit_s) for one in drawn]
    apart = _apart(drawn, by_steps) if is_crowded else []
    if is_crowded:
        by_steps, by_time = ([[lines[-1]._replace(band=None)] for lines in side] for side in (by_steps, by_time))
    returns = "Evaluation return"
    works = [
        charts.chart(returns, _STEPS, _flat(by_steps), levels, None, _published(marks, 1.0, is_time=False)),
        charts.chart(
            returns, f"Wall time ({unit})", _flat(by_time), levels, None, _published(marks, 60.0 / unit_s, is_time=True)
        ),
    ]
    legend = [element("li", charts.named(one.label, one.number), _seeds(one.curve)) for one in drawn]
    legend += [
        element(
            "li",
            charts.swatch("works"),
            f"{work.name}: {work.returns[-1]:.4g} at {display.count(work.env_steps[-1])} steps",
        )
        for work in marks.curves
    ]
    has_seeds = any(one.curve.returns.shape[1] > 1 for one in drawn)
    where = " in the charts of single runs" if is_crowded else ""
    key = f"Line: interquartile mean; shaded{where}: its 95 % interval; thin: single seeds. " if has_seeds else ""
    numbers = [_evaluations(one) for one in drawn if len(one.curve.env_steps)]
    return element(
        "div", element("h3", name), element("ul", *legend, class_="legend"), element("div", *works, class_="charts"),
        element("p", element("small", key),
                element("small", " ".join(f"{source}." for source in marks.sources))),
        details("Each run, beside the means of the others", element("div", *apart, class_="charts")) if apart else "",
        details("Every evaluation", *numbers) if numbers else "",
    )  # fmt: skip


def _apart(drawn: Sequence[Drawn], lines: Sequence[Sequence[charts.Line]]) -> list[Markup]:
    """Draws a chart of each run, on one scale, with the means of the others behind it."""
    means = [group[-1]._replace(band=None, class_="others") for group in lines]
    values = np.concatenate(
        [values.ravel() for one in _flat(lines) for values in (one.y, one.band) if values is not None]
    )
    ends = charts.padded(np.nanmin(values), np.nanmax(values)) if np.isfinite(values).any() else None
    return [
        charts.chart(one.label, _STEPS, group, (), ends, [*means[:i], *means[i + 1 :]][:_MOST_OTHERS])
        for i, (one, group) in enumerate(zip(drawn, lines, strict=True))
    ]


def _flat(groups: Sequence[Sequence[charts.Line]]) -> list[charts.Line]:
    return [line for group in groups for line in group]


def _lines(drawn: Drawn, x: np.ndarray) -> list[charts.Line]:
    """Makes the lines of one run: its seeds thinly, and the mean with its band."""
    order, class_, label = np.argsort(x, kind="stable"), charts.colour(drawn.number), drawn.label
    centre, low, high = (values[order] for values in plots.band(drawn.curve.returns))
    x, returns = x[order], drawn.curve.returns[order]
    seeds = returns.shape[1]
    if seeds == 1:
        return [charts.Line(x, centre, class_, label)]
    thin = [charts.Line(x, column, f"seed {class_}", f"{label}, seed {i}") for i, column in enumerate(returns.T)]
    # The lines of many seeds would hide the band.
    return [*thin[:20], charts.Line(x, centre, class_, label, np.stack([low, high]))]


def _published(marks: published.Marks, per_minute: float, *, is_time: bool) -> list[charts.Line]:
    """Makes the lines of published runs."""
    return [
        charts.Line(
            work.minutes * per_minute if is_time else work.env_steps, work.returns, "works", work.name, None, True
        )
        for work in marks.curves
    ]


def _evaluations(drawn: Drawn) -> Markup:
    """Makes the table of all evaluations of one run."""
    rows, curve = [], drawn.curve
    for steps, seconds, returns in zip(curve.env_steps, curve.wall_s, curve.returns, strict=True):
        known = returns[np.isfinite(returns)]
        ends = (f"{known.mean():.4g}", f"{known.min():.4g}", f"{known.max():.4g}") if len(known) else ("–", "–", "–")
        rows.append((f"{steps:,.0f}", f"{seconds / 60:.2f}", *ends))
    head = ("steps per seed", "minutes", "mean", "lowest seed", "highest seed")
    return table(f"Evaluations of {drawn.label}", head, rows)


def _evaluated(number: int, view: run_view.View, scale: tuple[float, float]) -> tuple[str, ...]:
    """Makes the row of one run's last evaluation."""
    last = view.evaluation
    scores = [value for value in last.get("eval_return_per_seed") or [last.get("eval_return")] if _is_known(value)]
    centre: Any = last.get("eval_return_iqm", last.get("eval_return"))
    ends: Any = last.get("eval_return_ci95") or (centre, centre)
    strip = ""
    if scores and all(_is_known(value) for value in (centre, *ends)):
        strip = charts.strip(scores, centre, ends, scale, charts.colour(number))
    over = f"{last.get('eval_interval_over', '')} ({last.get('eval_episodes', '?')} episodes)"
    over += ", few seeds" * (1 < len(scores) < aggregate.FEW)
    lowest, highest = (_number(pick(scores)) if scores else "–" for pick in (min, max))
    mean = _number(last.get("eval_return"))
    texts = (_number(centre), interval(last) or "–", over, mean, lowest, highest, str(len(scores)))
    return name(view, number), *(element("span", text, class_="number") for text in texts), strip


def _extent(view: run_view.View) -> list[float]:
    """Lists the numbers for which the strip of a run must have room."""
    last = view.evaluation
    values = [*(last.get("eval_return_per_seed") or ()), *(last.get("eval_return_ci95") or ()), last.get("eval_return")]
    return [value for value in values if _is_known(value)]


def _by_task(views: Sequence[run_view.View]) -> dict[str, list[Numbered]]:
    """Groups the runs by task; each keeps its number."""
    groups: dict[str, list[Numbered]] = {}
    for i, view in enumerate(views):
        params = ", ".join(f"{key}={value}" for key, value in sorted(view.env_params.items()))
        groups.setdefault(view.settings["env"] + (f" with {params}" if params else ""), []).append((i, view))
    return groups


def _seeds(curve: plots.Curve) -> str:
    return f" ({curve.returns.shape[1]} seeds)" if curve.returns.shape[1] > 1 else ""


def _is_known(value: Any) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def _number(value: Any) -> str:
    return f"{value:.4g}".replace("-", "−") if _is_known(value) else "–"
