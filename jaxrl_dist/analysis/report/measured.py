"""The part of the page about speed: throughput, where time goes, the bottleneck, placement, policy lag and replay."""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_dist.analysis import curves, plots
from jaxrl_dist.analysis.report import tasks
from jaxrl_dist.analysis.report.pages import Cell, Table, number
from jaxrl_dist.runs import view as run_view

_TIMES = ("steps/s", "time in all", "training", "compiling", "evaluating and saving", "device", "placement")
_SHARES = ("bottleneck", "time of the actors", *curves.SHARES.values(), "learner learns")


def parts(views: Sequence[tasks.Numbered]) -> dict[str, Any]:
    """Makes the tables and charts of what the runs measured of themselves, each with the number of its colour."""
    rows: list[Sequence[Any]] = [(tasks.name(view, i), *_throughput(view)) for i, view in views]
    tables = [Table("What each run took, and where it ran", ("run", *_TIMES), rows, "cards")]
    timed = [(i, view) for i, view in views if curves.has_shares(view.records)]
    if timed:
        rows = [(tasks.name(view, i), *_shares(view)) for i, view in timed]
        tables.append(Table("Where time goes, mean over the run", ("run", *_SHARES), rows, "cards"))
    counted = [(i, view, counts) for i, view in views if (counts := _counts(view))]
    if counted:
        names = list(dict.fromkeys(name for _, _, counts in counted for name in counts))
        rows = [(tasks.name(view, i), *(counts.get(name, "–") for name in names)) for i, view, counts in counted]
        tables.append(Table("Lag, replay and exchange", ("run", *names), rows, "cards"))
    runs = [(i, plots.plain(view.label, tasks.LETTERS), view.records) for i, view in views]
    recorded = [name for name in curves.GAUGES if any(plots.is_recorded(name, view.records) for _, view in views)]
    panels = [plots.gauge(name, runs) for name in recorded]
    panels += [plots.shares(label, records) for _, label, records in runs if curves.has_shares(records)]
    return {"measured": tables, "gauges": panels}


def speed(view: run_view.View) -> Cell:
    """Returns the environment steps per second of all seeds over the whole training time."""
    value = view.summary.get("steps_per_second") or _mean(view, "steps_per_second")
    return number(f"{value:,.0f}" if value else "–")


def seconds(view: run_view.View) -> float:
    """Returns the wall time of all sessions so far."""
    return max(
        (record["wall_s"] for record in view.records if "wall_s" in record), default=view.summary.get("wall_s", 0.0)
    )


def clock(seconds: float) -> str:
    """Writes seconds as 12.3 s, 4.5 min or 6.7 h."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def bottleneck(view: run_view.View) -> str:
    """Names the bottleneck that most of the run's records name."""
    names = [record["bottleneck"] for record in view.records if record.get("bottleneck")]
    return collections.Counter(names).most_common(1)[0][0] if names else "–"


def _throughput(view: run_view.View) -> tuple[Cell | str, ...]:
    """Makes the row of times and devices."""
    summary = view.summary
    training, compiling = summary.get("train_s"), summary.get("compile_s")
    is_known = training is not None and compiling is not None and "wall_s" in summary
    times = (seconds(view), training, compiling, summary["wall_s"] - training - compiling if is_known else None)
    device = f"{summary.get('num_devices', '?')} × {summary['device']}" if "device" in summary else "–"
    on_all = "all of it on every device" if view.settings.get("layout") == "anakin" else "–"
    placed = "\n".join(summary.get("placement") or [on_all])
    cells = [number("–" if value is None else clock(value)) for value in times]
    return speed(view), *cells, number(device), Cell(placed, "lines")


def _shares(view: run_view.View) -> tuple[str | plots.Panel, ...]:
    """Makes the row of shares of time, with a bar."""
    means = [_mean(view, name) or 0.0 for name in (*curves.SHARES, curves.LEARNING)]
    return bottleneck(view), plots.share_bar(means[:-1]), *(f"{share:.0%}" for share in means)


def _counts(view: run_view.View) -> dict[str, str]:
    """Lists what a layout with threads, or a replay, measured."""
    found: dict[str, str] = {}
    for name, words in (("policy_lag_p50", "policy lag, median"), ("policy_lag_p99", "policy lag, 99 %")):
        value = view.summary.get(name, _mean(view, name))
        found |= {words: f"{value:g}"} if value is not None else {}
    for name, words in (("samples_per_insert", "samples per insert"), ("queue_depth", "unrolls waiting")):
        value = _mean(view, name)
        found |= {words: f"{value:.3g}"} if value is not None else {}
    crossed = {"to_learner": "to the learner", "to_actors": "to actors", "from_players": "from players, packed"}
    for name, words in crossed.items():
        value = _mean(view, f"bytes_per_second_{name}")
        found |= {words: f"{value / 2**20:.3g} MiB/s"} if value is not None else {}
    counts = (("param_versions_published", "versions published"), ("gradients", "gradients"))
    return found | {words: f"{view.summary[name]:,}" for name, words in counts if name in view.summary}


def _mean(view: run_view.View, name: str) -> float | None:
    """Averages a number over the training records that have it."""
    values: list[Any] = [record[name] for record in view.records if isinstance(record.get(name), int | float)]
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else None
