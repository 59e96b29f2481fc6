"""Draws pictures of runs: evaluation return against steps, wall time, and what runs measure.

Uses Matplotlib's objects and its Agg canvas only, so that neither a display nor global state is touched; imported
lazily, as Matplotlib takes seconds.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import aggregate, display, metrics, panels, published

Records = Sequence[Mapping[str, Any]]

# Okabe and Ito 2008: told apart by colour-blind readers; yellow is left out, being faint on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINE_STYLES = ("-", "--", "-.", ":")
_INCHES_PER_LETTER = 0.075
_MARKERS = ("s", "^", "D", "v", "P")
RETURNS = ("steps", "minutes")
FORMATS = (".png", ".pdf", ".svg")
PANELS = (*RETURNS, *panels.GAUGES, "shares")
TIME_UNITS = ((2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


class Curve(NamedTuple):
    """Evaluations of one setting, over all its seeds.

    Attributes:
        env_steps: f64 [n], rising.
        wall_s: f64 [n], mean over programs.
        returns: f64 [n, S], one mean return per seed; NaN where a seed was not evaluated.
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
        title: above the panels.
        names: of the panels, of `PANELS`; `shares` is one panel for each run that records them.
        marks: what others have measured, in the panels of returns.
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
        curves: label -> curve; there is no interval for a single seed, nor a mean where a seed is missing, and of more
            curves than there are colours the means alone are drawn.
        path: PNG, PDF or SVG file to write.
        title: above the panels.
        names: of the panels.
        marks: what others have measured.
        runs: label -> records of the same runs, for the panels that are not of returns.
    """
    from matplotlib import figure
    from matplotlib.backends import backend_agg

    runs = runs or {}
    timed = [label for label, records in runs.items() if panels.has_shares(records)] or list(runs)[:1]
    shown = [
        one for name in names for one in ([(name, label) for label in timed] if name == "shares" else [(name, "")])
    ]
    rows = -(-len(shown) // 2)
    picture = figure.Figure(figsize=(10.0 if len(shown) > 1 else 6.0, 0.8 + 3.6 * rows), dpi=120, layout="constrained")
    backend_agg.FigureCanvasAgg(picture)
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
            panels.draw_shares(axes, label, runs[label])
        else:
            panels.draw_gauge(axes, name, runs, styles)
    picture.suptitle(title, fontsize=11)
    _add_legend(picture, curves, styles, marks if returns else published.NO_MARKS)
    suffix = pathlib.PurePath(path).suffix.lower()
    # A picture that is to replace another has a name of its own until it is whole.
    picture.savefig(str(path), format=suffix[1:] if suffix in FORMATS else "png")


def style(number: int) -> tuple[str, Any]:
    """Returns colour and line style of the run of a number."""
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


def _table(records: Records) -> Curve:
    """Collects the evaluations of one program; of several at one step the last counts."""
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
    """Draws one curve; points that have no neighbour to be joined with get a marker."""
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
    """Draws returns of all runs against steps, or against wall time, with what others have measured."""
    from matplotlib import ticker

    longest_s = max((item.wall_s.max() for item in curves.values() if len(item.wall_s)), default=0.0)
    unit_s, unit = next((size, name) for least, size, name in TIME_UNITS if longest_s >= least)
    is_crowded = len(curves) > len(_COLOURS)
    for item, (colour, line_style) in zip(curves.values(), styles, strict=True):
        x = item.wall_s / unit_s if by_time else item.env_steps
        _draw_curve(axes, x, item.returns, band(item.returns), colour, line_style, is_crowded)
    is_empty = all(np.isnan(item.returns).all() for item in curves.values())
    has_seeds = any(item.returns.shape[1] > 1 for item in curves.values())
    panels.finish(axes, "no evaluation yet" if is_empty else "")
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
    """Draws levels as lines and published runs as points, without making room for what lies to the right."""
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
    """Names the runs below the panels, and published ones with the last return that they came to."""
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
