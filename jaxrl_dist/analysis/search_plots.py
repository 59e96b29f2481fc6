"""Draws the trials of a search: evaluation return against each setting that was searched.

Matplotlib is imported lazily, and only its objects are used, as in `plots`.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist.analysis import plots
from jaxrl_dist.runs import aggregate

_COLOUR, _BEST = plots.style(0)[0], plots.style(1)[0]


class Setting(NamedTuple):
    """One setting of a search.

    Attributes:
        name: name of the setting.
        values: one for each trial.
        is_log: whether its axis is logarithmic.
        names: its choices, each with a place of its own, if values are no numbers.
    """

    name: str
    values: Sequence[Any]
    is_log: bool
    names: Sequence[str] = ()

    @property
    def places(self) -> list[float]:
        """Returns the place of each trial on its axis."""
        return [float(self.names.index(str(value)) if self.names else value) for value in self.values]


def draw(
    settings: Sequence[Setting], returns: Sequence[np.ndarray], path: str | os.PathLike[str], title: str = ""
) -> None:
    """Draws return against each setting that was searched, one panel for each.

    Args:
        settings: their values, one for each trial.
        returns: for each trial f64 [S], the returns of its seeds; empty without any.
        path: PNG file to write.
        title: text above the panels.
    """
    from matplotlib import figure

    columns = min(len(settings), 3)
    rows = -(-len(settings) // columns)
    picture = figure.Figure(figsize=(1.0 + 4.2 * columns, 0.6 + 3.6 * rows), dpi=120, layout="constrained")
    grid = picture.subplots(rows, columns, sharey=True, squeeze=False)
    known = [i for i, scores in enumerate(returns) if len(scores)]
    scores = [float(aggregate.interquartile_mean(returns[i])) for i in known]
    best = known[int(np.argmax(scores))] if known else None
    for axes, setting in zip(grid.flat, settings, strict=False):
        _draw_setting(axes, setting, [(i, score, returns[i]) for i, score in zip(known, scores, strict=True)], best)
    for axes in grid.flat[len(settings) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("Evaluation return")
    note = "Large: interquartile mean of a trial's seeds; small: single seeds; ringed: the best trial"
    picture.suptitle(f"{title}\n{note}" if title else note, fontsize=9, color="0.35")
    picture.savefig(str(path), format="png")


def _draw_setting(
    axes: Any, setting: Setting, trials: Sequence[tuple[int, float, np.ndarray]], best: int | None
) -> None:
    """Draws one panel."""
    places = setting.places
    for i, score, returns in trials:
        axes.plot([places[i]] * len(returns), returns, ".", color=_COLOUR, alpha=0.35, markersize=4)
        axes.plot(places[i], score, "o", color=_COLOUR, markersize=7)
        if i == best:
            axes.plot(places[i], score, "o", color=_BEST, markersize=13, fillstyle="none", markeredgewidth=2)
    if setting.names:
        axes.set_xticks(range(len(setting.names)), setting.names)
        axes.set_xlim(-0.5, len(setting.names) - 0.5)
    elif setting.is_log:
        axes.set_xscale("log")
        # Rotated, since labels would overlap if the range has few powers of ten.
        axes.tick_params(axis="x", which="minor", labelsize=6, labelrotation=45)
    axes.set_xlabel(setting.name)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
