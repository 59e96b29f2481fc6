"""Draws the scores of many settings as dots with intervals: after as many steps, and after as many minutes."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import plots

_ROW_INCHES, _MARGIN_INCHES = 0.28, 1.1


class Score(NamedTuple):
    """Returns f64 [S] of each seed, interquartile mean, and the ends of its 95 % interval; NaN where there is none."""

    returns: np.ndarray
    centre: float
    low: float
    high: float


def at_steps(curve: plots.Curve, steps: float) -> Score:
    """Returns the score of the last evaluation of all seeds up to so many steps."""
    return _last(curve, curve.env_steps <= steps)


def at_seconds(curve: plots.Curve, seconds: float) -> Score:
    """Returns the score of the last evaluation of all seeds within so many seconds of wall time."""
    return _last(curve, curve.wall_s <= seconds)


def draw(curves: Mapping[str, plots.Curve], path: str | os.PathLike[str]) -> None:
    """Draws a row for each setting and two columns: at the steps that all came to, and at the time that half took.

    What was done by then stands in the second column with its end.

    Args:
        curves: label -> curve, from the top down.
        path: PNG file to write.
    """
    from matplotlib import figure
    from matplotlib.backends import backend_agg

    shown = {label: curve for label, curve in curves.items() if np.isfinite(curve.returns).all(1).any()}
    steps = min((curve.env_steps[-1] for curve in shown.values()), default=0.0)
    seconds = float(np.median([curve.wall_s[-1] for curve in shown.values()] or [0.0]))
    unit_s, unit = next((size, name) for least, size, name in plots.TIME_UNITS if seconds >= least)
    columns = (
        (f"after {steps:,.0f} steps", [at_steps(curve, steps) for curve in shown.values()]),
        (
            f"after {seconds / unit_s:.3g} {unit}, or at the end",
            [at_seconds(curve, seconds) for curve in shown.values()],
        ),
    )
    height = _MARGIN_INCHES + _ROW_INCHES * max(len(shown), 1)
    picture = figure.Figure(figsize=(10.0, height), dpi=120, layout="constrained")
    backend_agg.FigureCanvasAgg(picture)
    first: Any = None
    for i, (title, scores) in enumerate(columns):
        first = axes = picture.add_subplot(1, 2, i + 1, sharex=first, sharey=first)
        _draw_column(axes, title, list(shown), scores, names_rows=i == 0)
    picture.supxlabel("Evaluation return: interquartile mean, 95 % interval, single seeds", fontsize=9)
    picture.savefig(str(path), format="png")


def _last(curve: plots.Curve, reached: np.ndarray) -> Score:
    rows = np.flatnonzero(reached & np.isfinite(curve.returns).all(1))
    if not len(rows):
        return Score(np.empty(0), np.nan, np.nan, np.nan)
    returns = curve.returns[rows[-1]]
    centre, low, high = (float(x[0]) for x in plots.band(returns[None]))
    return Score(returns, centre, low, high)


def _draw_column(axes: Any, title: str, labels: list[str], scores: list[Score], *, names_rows: bool) -> None:
    rows = np.arange(len(labels))
    colour, _ = plots.style(0)
    for row, score in zip(rows, scores, strict=True):
        axes.plot(score.returns, np.full(len(score.returns), row), ".", color=colour, alpha=0.35, markersize=4)
        axes.plot([score.low, score.high], [row, row], color=colour, linewidth=2.0)
        axes.plot(score.centre, row, "o", color=colour, markersize=6)
    axes.set_title(title, fontsize=10)
    axes.set_ylim(max(len(labels), 1) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_yticks(rows, [label.replace("$", r"\$") for label in labels])
    axes.tick_params(axis="y", length=0, labelleft=names_rows)
