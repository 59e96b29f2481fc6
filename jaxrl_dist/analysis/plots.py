"""Draws pictures of runs: returns, measurements of speed and lag, scores of many settings."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist.analysis import published
from jaxrl_dist.runs import aggregate, display, metrics
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.settings import resolve, sweep

Records = Sequence[Mapping[str, Any]]
# Okabe and Ito 2008: colour-blind readers can tell them apart; yellow is left out, since it is faint on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINE_STYLES = ("-", "--", "-.", ":")
_INCHES_PER_LETTER = 0.075
_MARKERS = ("s", "^", "D", "v", "P")
RETURNS = ("steps", "minutes")
FORMATS = (".png", ".pdf", ".svg")


class Gauge(NamedTuple):
    """Numbers of training records in one panel.

    Attributes:
        title: their meaning, with their unit.
        names: names of the records' numbers; the first is drawn thick, the others thin.
        note: explains thick and thin lines, "" if there is only one.
    """

    title: str
    names: tuple[str, ...]
    note: str = ""


GAUGES = {
    "speed": Gauge("Environment steps per second, all seeds", ("steps_per_second",)),
    "lag": Gauge(
        "Policy lag (versions)", ("policy_lag_p50", "policy_lag_p99"), "Line: median; thin: 99th percentile of rows"
    ),
    "inserts": Gauge("Samples per insert", ("samples_per_insert",)),
}


PANELS = (*RETURNS, *GAUGES, "shares")
TIME_UNITS = ((2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_ROW_INCHES, _MARGIN_INCHES = 0.28, 1.1


class Curve(NamedTuple):
    """Evaluations of one setting, over all its seeds.

    Attributes:
        env_steps: f64 [n], rising.
        wall_s: f64 [n], mean over programs.
        returns: f64 [n, S], mean return per seed; NaN where a seed was not evaluated.
    """

    env_steps: np.ndarray
    wall_s: np.ndarray
    returns: np.ndarray


def learning_curve(
    runs: Mapping[str, Records],
    path: str | os.PathLike[str],
    title: str = "",
    names: Sequence[str] = RETURNS,
    marks: published.Marks = published.NO_MARKS,
) -> None:
    """Draws one curve per run, from the records of each.

    Args:
        runs: label -> records, as `metrics.read` returns them.
        path: PNG, PDF or SVG file to write.
        title: text above the panels.
        names: names of panels, from `PANELS`; `shares` is one panel for each run that records them.
        marks: published numbers, for the panels of returns.
    """
    draw({label: curve([records]) for label, records in runs.items()}, path, title, names, marks, runs)


def curve(programs: Sequence[Records]) -> Curve:
    """Joins the evaluations of one setting.

    Args:
        programs: the records of each program that trained it, with one seed or several.

    Returns:
        All seeds side by side, at every step at which any of them was evaluated.
    """
    tables = [_table(records) for records in programs]
    steps = np.unique(np.concatenate([table.env_steps for table in tables])) if tables else np.empty(0)
    wall_s = np.full((len(steps), len(tables)), np.nan)
    columns = []
    for i, table in enumerate(tables):
        rows = np.searchsorted(steps, table.env_steps)
        returns = np.full((len(steps), table.returns.shape[1]), np.nan)
        returns[rows], wall_s[rows, i] = table.returns, table.wall_s
        columns.append(returns)
    returns = np.concatenate(columns, axis=1) if columns else np.empty((0, 1))
    weights = np.isfinite(wall_s)
    mean_wall_s = np.where(weights, wall_s, 0.0).sum(1) / np.maximum(weights.sum(1), 1)
    return Curve(steps, mean_wall_s, returns)


def draw(
    curves: Mapping[str, Curve],
    path: str | os.PathLike[str],
    title: str = "",
    names: Sequence[str] = RETURNS,
    marks: published.Marks = published.NO_MARKS,
    runs: Mapping[str, Records] | None = None,
) -> None:
    """Draws curves with their intervals: the interquartile mean over seeds, its 95 % interval, and each seed thinly.

    Args:
        curves: label -> curve. A single seed has no interval, and a point with a missing seed no mean; if there are
            more curves than colours, only the means are drawn.
        path: PNG, PDF or SVG file to write.
        title: text above the panels.
        names: names of the panels.
        marks: published numbers.
        runs: label -> records of the same runs, for the panels other than returns.
    """
    from matplotlib import figure

    runs = runs or {}
    timed = [label for label, records in runs.items() if has_shares(records)] or list(runs)[:1]
    shown = [
        one for name in names for one in ([(name, label) for label in timed] if name == "shares" else [(name, "")])
    ]
    rows = -(-len(shown) // 2)
    picture = figure.Figure(figsize=(10.0 if len(shown) > 1 else 6.0, 0.8 + 3.6 * rows), dpi=120, layout="constrained")
    styles = [style(i) for i in range(len(curves))]
    returns: list[Any] = []
    for i, (name, label) in enumerate(shown):
        axes = picture.add_subplot(
            rows, min(len(shown), 2), i + 1, sharey=returns[0] if name in RETURNS and returns else None
        )
        if name in RETURNS:
            _draw_returns(axes, curves, styles, marks, by_time=name == "minutes", is_first=not returns)
            returns.append(axes)
        elif name == "shares":
            draw_shares(axes, label, runs[label])
        else:
            draw_gauge(axes, name, runs, styles)
    picture.suptitle(title, fontsize=11)
    _add_legend(picture, curves, styles, marks if returns else published.NO_MARKS)
    suffix = pathlib.PurePath(path).suffix.lower()
    # The format is given, since a picture that replaces another has a temporary name until it is whole.
    picture.savefig(str(path), format=suffix[1:] if suffix in FORMATS else "png")


def style(number: int) -> tuple[str, Any]:
    """Returns colour and line style of run number `number`."""
    return _COLOURS[number % len(_COLOURS)], _LINE_STYLES[number // len(_COLOURS) % len(_LINE_STYLES)]


def band(returns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Summarises the seeds at every point.

    Args:
        returns: f64 [n, S].

    Returns:
        Interquartile mean and the two ends of its 95 % interval, f64 [n] each; NaN where a seed is missing.
    """
    centre = aggregate.interquartile_mean(returns[..., None])
    low, high = np.array([aggregate.interval(row) for row in returns], np.float64).reshape(-1, 2).T
    return centre, low, high


# Shares of the actors' time, and of the learner's.
SHARES = {"share_environment": "environment", "share_inference": "inference", "share_transfer": "transfer"}
LEARNING = "share_learning"
SHARE_COLOURS = ("#56B4E9", "#E69F00", "#CC79A7")


def series(records: Records, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Collects numbers of training records.

    Returns:
        Environment steps f64 [n] and the numbers f64 [n, names], without records that hold none of them.
    """
    steps = metrics.column(records, "train", "env_steps")
    values = np.stack([metrics.column(records, "train", name, ()) for name in names], axis=-1)
    known = np.isfinite(values).any(-1)
    return steps[known], values[known]


def has_shares(records: Records) -> bool:
    """Says whether a run records shares of time."""
    return any(LEARNING in record for record in records)


def is_recorded(name: str, records: Records) -> bool:
    """Says whether a run records the numbers of a panel; panels of returns need only an evaluation."""
    if name in GAUGES:
        return bool(len(series(records, GAUGES[name].names)[0]))
    return name != "shares" or has_shares(records)


def draw_gauge(axes: Any, name: str, runs: Mapping[str, Records], styles: Sequence[tuple[str, str]]) -> None:
    """Draws one gauge of every run.

    Args:
        axes: of the panel.
        name: in `GAUGES`.
        runs: label -> records.
        styles: colour and line style of each run.
    """
    from matplotlib import ticker

    gauge, is_empty = GAUGES[name], True
    for records, (colour, line_style) in zip(runs.values(), styles, strict=True):
        steps, values = series(records, gauge.names)
        is_empty &= not len(steps)
        marker = "o" if len(steps) == 1 else None
        for column, width in zip(values.T, (2.0, 0.8, 0.8), strict=False):
            axes.plot(steps, column, color=colour, linestyle=line_style, linewidth=width, marker=marker)
    axes.set_title(gauge.note, loc="left", fontsize=8, color="0.35")
    axes.set_ylabel(gauge.title)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: display.count(y) if y >= 1000 else f"{y:g}"))
    finish(axes, "" if not is_empty else "not recorded by these runs")


def draw_shares(axes: Any, label: str, records: Records) -> None:
    """Draws the shares of time of one run: those of its actors as areas, the learner's as a line."""
    steps, values = series(records, (*SHARES, LEARNING))
    if len(steps):
        values = np.nan_to_num(values)
        axes.stackplot(steps, values[:, :-1].T, labels=list(SHARES.values()), colors=SHARE_COLOURS, alpha=0.85)
        axes.plot(steps, values[:, -1], color="black", linewidth=1.6, label="learner learns")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=4, fontsize=7, frameon=False)
    axes.set_title(f"{label}: areas: time of the actors; line: time of the learner".replace("$", r"\$"), fontsize=8,
                   loc="left", color="0.35")  # fmt: skip
    axes.set_ylabel("Share of time")
    axes.set_ylim(0, 1)
    finish(axes, "" if len(steps) else "not recorded by this run")


def finish(axes: Any, empty: str = "") -> None:
    """Gives axes over environment steps their grid and labels; `empty` says why nothing is drawn."""
    from matplotlib import ticker

    axes.set_xlabel("Environment steps per seed")
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: display.count(x)))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)
    axes.set_xlim(left=0)
    if empty:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, empty, transform=axes.transAxes, ha="center", color="0.4")


class Score(NamedTuple):
    """Returns f64 [S] of the seeds, their interquartile mean, and the ends of its 95 % interval, NaN without one."""

    returns: np.ndarray
    centre: float
    low: float
    high: float


def at_steps(curve: Curve, steps: float) -> Score:
    """Returns the score of the last evaluation of all seeds up to so many steps."""
    return _last(curve, curve.env_steps <= steps)


def at_seconds(curve: Curve, seconds: float) -> Score:
    """Returns the score of the last evaluation of all seeds within so many seconds of wall time."""
    return _last(curve, curve.wall_s <= seconds)


def draw_scores(curves: Mapping[str, Curve], path: str | os.PathLike[str]) -> None:
    """Draws a row for each setting and two columns: scores at the steps that all reached, and at the median time.

    A setting that had ended by then has its last score in the second column.

    Args:
        curves: label -> curve, from the top down.
        path: PNG file to write.
    """
    from matplotlib import figure

    shown = {label: curve for label, curve in curves.items() if np.isfinite(curve.returns).all(1).any()}
    steps = min((curve.env_steps[-1] for curve in shown.values()), default=0.0)
    seconds = float(np.median([curve.wall_s[-1] for curve in shown.values()] or [0.0]))
    unit_s, unit = next((size, name) for least, size, name in TIME_UNITS if seconds >= least)
    columns = (
        (f"after {steps:,.0f} steps", [at_steps(curve, steps) for curve in shown.values()]),
        (
            f"after {seconds / unit_s:.3g} {unit}, or at the end",
            [at_seconds(curve, seconds) for curve in shown.values()],
        ),
    )
    height = _MARGIN_INCHES + _ROW_INCHES * max(len(shown), 1)
    picture = figure.Figure(figsize=(10.0, height), dpi=120, layout="constrained")
    panels = picture.subplots(1, 2, sharex=True, sharey=True)
    for i, (axes, (title, scores)) in enumerate(zip(panels, columns, strict=True)):
        _draw_column(axes, title, list(shown), scores, names_rows=i == 0)
    picture.supxlabel("Evaluation return: interquartile mean, 95 % interval, single seeds", fontsize=9)
    picture.savefig(str(path), format="png")


def draw_run(folder: pathlib.Path, settings: resolve.Resolved) -> None:
    title, whole = f"{settings['system']} on {settings['env']}", curve([metrics.read(folder)])
    grouped = sweep.by_combination(settings, list(whole.returns.T))
    curves = {
        sweep.describe(values) or settings["system"]: whole._replace(returns=np.stack(returns, axis=1))
        for values, returns in grouped
    }
    folders.replace(folder / "learning_curve.png", lambda scratch: draw(curves, scratch, title))


def _table(records: Records) -> Curve:
    """Collects the evaluations of one program; if there are several at one step, the last counts."""
    steps = metrics.column(records, "eval", "env_steps")
    wall_s = metrics.column(records, "eval", "wall_s")
    returns = metrics.column(records, "eval", "eval_return_per_seed")
    if returns.ndim == 1:
        returns = metrics.column(records, "eval", "eval_return")[:, None]
    steps, last = np.unique(steps[::-1], return_index=True)
    return Curve(steps, wall_s[::-1][last], returns[::-1][last])


def _draw_curve(
    axes: Any,
    x: np.ndarray,
    returns: np.ndarray,
    interval: tuple[np.ndarray, np.ndarray, np.ndarray],
    colour: str,
    line_style: str,
    is_mean_alone: bool,
) -> None:
    """Draws one curve; points without a neighbour get a marker."""
    centre, low, high = interval
    order = np.argsort(x, kind="stable")
    x, returns, centre, low, high = x[order], returns[order], centre[order], low[order], high[order]
    if returns.shape[1] > 1 and not is_mean_alone:
        axes.plot(x, returns, color=colour, linewidth=0.6, alpha=0.35, zorder=2)
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0, zorder=1)
    axes.plot(x, centre, color=colour, linestyle=line_style, linewidth=2.0, zorder=3)
    known = np.isfinite(np.concatenate([[np.nan], centre, [np.nan]]))
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    if alone.any() and is_mean_alone:
        axes.plot(x[alone], centre[alone], "o", color=colour, markersize=5, zorder=3)
    elif alone.any():
        spread = np.stack([centre - low, high - centre])[:, alone]
        axes.errorbar(x[alone], centre[alone], spread, color=colour, fmt="o", markersize=5, capsize=3, zorder=3)
        axes.plot(np.repeat(x[alone], returns.shape[1]), returns[alone].ravel(), ".", color=colour, alpha=0.35)


def _draw_returns(
    axes: Any,
    curves: Mapping[str, Curve],
    styles: Sequence[tuple[str, str]],
    marks: published.Marks,
    *,
    by_time: bool,
    is_first: bool,
) -> None:
    """Draws returns of all runs against steps or wall time, with published numbers."""
    from matplotlib import ticker

    longest_s = max((item.wall_s.max() for item in curves.values() if len(item.wall_s)), default=0.0)
    unit_s, unit = next((size, name) for least, size, name in TIME_UNITS if longest_s >= least)
    is_crowded = len(curves) > len(_COLOURS)
    for item, (colour, line_style) in zip(curves.values(), styles, strict=True):
        x = item.wall_s / unit_s if by_time else item.env_steps
        _draw_curve(axes, x, item.returns, band(item.returns), colour, line_style, is_crowded)
    is_empty = all(np.isnan(item.returns).all() for item in curves.values())
    has_seeds = any(item.returns.shape[1] > 1 for item in curves.values())
    finish(axes, "no evaluation yet" if is_empty else "")
    axes.set_ylabel("Evaluation return" if is_first else "")
    if by_time:
        axes.set_xlabel(f"Wall time ({unit})")
        axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
    elif not has_seeds:
        axes.set_xlabel("Environment steps")
    if has_seeds and is_first:
        band_text = "" if is_crowded else "; band: 95 % bootstrap interval; thin: single seeds"
        text = f"Line: interquartile mean{band_text}"
        axes.set_title(text, loc="left", fontsize=8, color="0.35")
    _draw_marks(axes, marks, by_time, unit_s)


def _draw_marks(axes: Any, marks: published.Marks, by_time: bool, unit_s: float) -> None:
    """Draws levels as lines and published runs as points, without making the panel wider."""
    right = axes.get_xlim()[1]
    for i, level in enumerate(marks.levels):
        axes.axhline(level.value, color="0.45", linestyle=_LINE_STYLES[1 + i % 3], linewidth=0.9, zorder=0)
        axes.annotate(level.name, (0.995, level.value), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                      fontsize=7, color="0.4")  # fmt: skip
    for i, work in enumerate(marks.curves):
        x = work.minutes * 60 / unit_s if by_time else work.env_steps
        inside = x <= right
        axes.plot(x[inside], work.returns[inside], color="0.35", marker=_MARKERS[i % len(_MARKERS)], markersize=5,
                  linewidth=0.8, linestyle=":", zorder=2)  # fmt: skip
    axes.set_xlim(right=right)


def _add_legend(
    picture: Any, curves: Mapping[str, Curve], styles: Sequence[tuple[str, Any]], marks: published.Marks
) -> None:
    """Names the runs below the panels, and published runs with their last return."""
    from matplotlib import lines

    handles, labels = [], []
    for (label, item), (colour, line_style) in zip(curves.items(), styles, strict=True):
        count = item.returns.shape[1]
        handles.append(lines.Line2D([], [], color=colour, linestyle=line_style, linewidth=2.0))
        labels.append(f"{label} ({count} seeds)" if count > 1 else label)
    for i, work in enumerate(marks.curves):
        marker = _MARKERS[i % len(_MARKERS)]
        handles.append(lines.Line2D([], [], color="0.35", marker=marker, markersize=5, linewidth=0.8, linestyle=":"))
        labels.append(f"{work.name}: {work.returns[-1]:.4g} at {display.count(work.env_steps[-1])} steps")
    if handles:
        # Matplotlib would read text between dollar signs as a formula.
        labels = [label.replace("$", r"\$") for label in labels]
        longest_inches = _INCHES_PER_LETTER * max(map(len, labels)) + 0.6
        fitting = max(1, int(picture.get_figwidth() / longest_inches))
        columns = min(len(labels), 2 if marks.curves else 3, fitting)
        picture.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9,
                       title="\n".join(marks.sources) or None, title_fontsize=6)  # fmt: skip


def _last(curve: Curve, reached: np.ndarray) -> Score:
    rows = np.flatnonzero(reached & np.isfinite(curve.returns).all(1))
    if not len(rows):
        return Score(np.empty(0), np.nan, np.nan, np.nan)
    returns = curve.returns[rows[-1]]
    centre, low, high = (float(x[0]) for x in band(returns[None]))
    return Score(returns, centre, low, high)


def _draw_column(axes: Any, title: str, labels: list[str], scores: list[Score], *, names_rows: bool) -> None:
    rows = np.arange(len(labels))
    colour, _ = style(0)
    for row, score in zip(rows, scores, strict=True):
        axes.plot(score.returns, np.full(len(score.returns), row), ".", color=colour, alpha=0.35, markersize=4)
        axes.plot([score.low, score.high], [row, row], color=colour, linewidth=2.0)
        axes.plot(score.centre, row, "o", color=colour, markersize=6)
    axes.set_title(title, fontsize=10)
    axes.set_ylim(max(len(labels), 1) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_yticks(rows, [label.replace("$", r"\$") for label in labels])
    axes.tick_params(axis="y", length=0, labelleft=names_rows)
