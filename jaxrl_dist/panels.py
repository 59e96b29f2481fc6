"""Panels of a picture that show what runs measure of themselves: speed, policy lag, samples per insert, shares of time.

Each draws training records on Matplotlib's axes; what a run does not record is said in the panel.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import display, metrics

Records = Sequence[Mapping[str, Any]]


class Gauge(NamedTuple):
    """Numbers of training records in one panel.

    Attributes:
        title: what they are, with their unit.
        names: of the records' numbers; the first is drawn thick, the others thin.
        note: says what thick and thin lines are, "" where there is one only.
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
# Of what actors do, and of the learner's time.
SHARES = {"share_environment": "environment", "share_inference": "inference", "share_transfer": "transfer"}
LEARNING = "share_learning"
SHARE_COLOURS = ("#56B4E9", "#E69F00", "#CC79A7")


def series(records: Records, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Collects numbers of training records.

    Returns:
        Environment steps f64 [n] and the numbers f64 [n, names], without records that hold none of them.
    """
    steps = metrics.column(records, "train", "env_steps")
    values = np.stack([metrics.column(records, "train", name) for name in names], axis=-1)
    known = np.isfinite(values).any(-1)
    return steps[known], values[known]


def has_shares(records: Records) -> bool:
    """Whether a run records where its time goes."""
    return any(LEARNING in record for record in records)


def is_recorded(name: str, records: Records) -> bool:
    """Whether a run records what a panel shows; returns are there wherever there is an evaluation."""
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
    """Draws where the time of one run goes: what its actors do as areas, the learner's share as a line."""
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
    """Gives axes over environment steps their grid and labels, and says why there is nothing in them."""
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
