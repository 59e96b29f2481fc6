"""Draws PNG files: evaluation return against environment steps and wall time, and against settings that were searched.

Uses Matplotlib's objects and its Agg canvas only, so that neither a display nor global state is touched; imported
lazily, as Matplotlib takes seconds.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import aggregate, display, metrics

Records = Sequence[Mapping[str, Any]]

# Okabe and Ito 2008: told apart by colour-blind readers; yellow is left out, being faint on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINE_STYLES = ("-", "--", "-.", ":")
_TIME_UNITS = ((2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


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


def learning_curve(runs: Mapping[str, Records], path: str | os.PathLike[str], title: str = "") -> None:
    """Draws one curve per run, from the records of each.

    Args:
        runs: label -> records, as `metrics.read` returns them.
        path: PNG file to write.
        title: above the panels.
    """
    draw({label: curve([records]) for label, records in runs.items()}, path, title)


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


def draw(curves: Mapping[str, Curve], path: str | os.PathLike[str], title: str = "") -> None:
    """Draws curves with their intervals: the interquartile mean over seeds, its 95 % interval, and each seed thinly.

    Args:
        curves: label -> curve; there is no interval for a single seed, nor a mean where a seed is missing.
        path: PNG file to write.
        title: above the panels.
    """
    from matplotlib import figure
    from matplotlib.backends import backend_agg

    picture = figure.Figure(figsize=(10.0, 4.4), dpi=120, layout="constrained")
    canvas = backend_agg.FigureCanvasAgg(picture)
    panels = picture.subplots(1, 2, sharey=True)
    longest_s = max((item.wall_s.max() for item in curves.values() if len(item.wall_s)), default=0.0)
    unit_s, unit = next((size, name) for least, size, name in _TIME_UNITS if longest_s >= least)
    for i, (label, item) in enumerate(curves.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        line_style = _LINE_STYLES[i // len(_COLOURS) % len(_LINE_STYLES)]
        count = item.returns.shape[1]
        # Matplotlib would read text between dollar signs as a formula.
        name = (f"{label} ({count} seeds)" if count > 1 else label).replace("$", r"\$")
        interval = band(item.returns)
        _draw_curve(panels[0], item.env_steps, item.returns, interval, colour, line_style, name)
        _draw_curve(panels[1], item.wall_s / unit_s, item.returns, interval, colour, line_style, name)
    has_seeds = any(item.returns.shape[1] > 1 for item in curves.values())
    _label(panels, unit, has_seeds, is_empty=all(np.isnan(item.returns).all() for item in curves.values()))
    picture.suptitle(title, fontsize=11)
    if curves:
        handles, labels = panels[0].get_legend_handles_labels()
        picture.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3), frameon=False)
    canvas.print_png(str(path))


class Searched(NamedTuple):
    """One setting of a search: its name, its value in each trial, and whether its axis is logarithmic."""

    name: str
    values: Sequence[Any]
    is_log: bool


def searched(
    settings: Sequence[Searched], returns: Sequence[np.ndarray], path: str | os.PathLike[str], title: str = ""
) -> None:
    """Draws return against each setting that was searched, one panel for each.

    Args:
        settings: their values, one for each trial.
        returns: of each trial, f64 [S], one of each seed; empty where it has none.
        path: PNG file to write.
        title: above the panels.
    """
    from matplotlib import figure
    from matplotlib.backends import backend_agg

    columns = min(len(settings), 3)
    rows = -(-len(settings) // columns)
    picture = figure.Figure(figsize=(1.0 + 4.2 * columns, 0.6 + 3.6 * rows), dpi=120, layout="constrained")
    canvas = backend_agg.FigureCanvasAgg(picture)
    grid = picture.subplots(rows, columns, sharey=True, squeeze=False)
    known = [i for i, scores in enumerate(returns) if len(scores)]
    scores = [float(aggregate.interquartile_mean(returns[i])) for i in known]
    best = known[int(np.argmax(scores))] if known else None
    for axes, setting in zip(grid.flat, settings, strict=False):
        _draw_searched(axes, setting, [(i, score, returns[i]) for i, score in zip(known, scores, strict=True)], best)
    for axes in grid.flat[len(settings) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("Evaluation return")
    note = "Large: interquartile mean of a trial's seeds; small: single seeds; ringed: the best trial"
    picture.suptitle(f"{title}\n{note}" if title else note, fontsize=9, color="0.35")
    canvas.print_png(str(path))


def _draw_searched(
    axes: Any, setting: Searched, trials: Sequence[tuple[int, float, np.ndarray]], best: int | None
) -> None:
    """Draws one panel; values that are no numbers, or few, get a place each."""
    values = setting.values
    names = None if all(isinstance(value, int | float) for value in values) else list(dict.fromkeys(map(str, values)))
    places = values if names is None else [names.index(str(value)) for value in values]
    for i, score, returns in trials:
        axes.plot([places[i]] * len(returns), returns, ".", color=_COLOURS[0], alpha=0.35, markersize=4)
        axes.plot(places[i], score, "o", color=_COLOURS[0], markersize=7)
        if i == best:
            axes.plot(places[i], score, "o", color=_COLOURS[1], markersize=13, fillstyle="none", markeredgewidth=2)
    if names is not None:
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
    elif setting.is_log:
        axes.set_xscale("log")
    axes.set_xlabel(setting.name)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


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
    label: str,
) -> None:
    """Draws one curve; points that have no neighbour to be joined with get a marker."""
    centre, low, high = interval
    order = np.argsort(x, kind="stable")
    x, returns, centre, low, high = x[order], returns[order], centre[order], low[order], high[order]
    if returns.shape[1] > 1:
        axes.plot(x, returns, color=colour, linewidth=0.6, alpha=0.35, zorder=2)
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0, zorder=1)
    axes.plot(x, centre, color=colour, linestyle=line_style, linewidth=2.0, label=label, zorder=3)
    known = np.isfinite(np.concatenate([[np.nan], centre, [np.nan]]))
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    if alone.any():
        spread = np.stack([centre - low, high - centre])[:, alone]
        axes.errorbar(x[alone], centre[alone], spread, color=colour, fmt="o", markersize=5, capsize=3, zorder=3)
        axes.plot(np.repeat(x[alone], returns.shape[1]), returns[alone].ravel(), ".", color=colour, alpha=0.35)


def _label(panels: Sequence[Any], unit: str, has_seeds: bool, is_empty: bool) -> None:
    """Names axes and units, and says what line and band are."""
    from matplotlib import ticker

    by_steps, by_time = panels
    by_steps.set_ylabel("Evaluation return")
    by_steps.set_xlabel("Environment steps per seed" if has_seeds else "Environment steps")
    by_steps.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: display.count(x)))
    by_time.set_xlabel(f"Wall time ({unit})")
    if has_seeds:
        text = "Line: interquartile mean; band: 95 % bootstrap interval; thin: single seeds"
        by_steps.set_title(text, loc="left", fontsize=8, color="0.35")
    for axes in panels:
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.02)
        axes.set_xlim(left=0)
        if is_empty:
            axes.text(0.5, 0.5, "no evaluation yet", transform=axes.transAxes, ha="center", color="0.4")
