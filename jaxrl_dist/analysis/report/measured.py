"""The part of the page about speed: throughput, where time goes, the bottleneck, placement, policy lag and replay."""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_dist.analysis import plots
from jaxrl_dist.analysis.report import charts, curves
from jaxrl_dist.analysis.report.markup import Markup, element, joined, table
from jaxrl_dist.runs import view as run_view

_ACTING = tuple(plots.SHARES.values())


def section(views: Sequence[curves.Numbered]) -> Markup:
    """Makes tables and charts of the runs' own measurements, each run with the number of its colour."""
    head: tuple[str, ...] = (
        "run",
        "steps/s",
        "time in all",
        "training",
        "compiling",
        "evaluating and saving",
        "device",
        "placement",
    )
    rows: list[tuple[str, ...]] = [(curves.name(view, i), *_throughput(view)) for i, view in views]
    parts: list[str] = [table("What each run took, and where it ran", head, rows, "cards")]
    timed = [(i, view) for i, view in views if plots.has_shares(view.records)]
    if timed:
        head = ("run", "bottleneck", "time of the actors", "environment", "inference", "transfer", "learner learns")
        shares = [(curves.name(view, i), *_shares(view)) for i, view in timed]
        parts.append(table("Where time goes, mean over the run", head, shares, "cards"))
    counted = [(i, view) for i, view in views if _counts(view)]
    if counted:
        names = list(dict.fromkeys(name for _, view in counted for name in _counts(view)))
        rows = [(curves.name(v, i), *(_counts(v).get(name, "–") for name in names)) for i, v in counted]
        parts.append(table("Lag, replay and exchange", ("run", *names), rows, "cards"))
    return joined([*parts, element("div", *_charts(views), class_="charts")])


def speed(view: run_view.View) -> Markup:
    """Returns the environment steps per second of all seeds over the whole training time."""
    value = view.summary.get("steps_per_second") or _mean(view, "steps_per_second")
    return element("span", f"{value:,.0f}" if value else "–", class_="number")


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


def _throughput(view: run_view.View) -> tuple[str, ...]:
    """Makes the row of times and devices."""
    summary = view.summary
    training, compiling = summary.get("train_s"), summary.get("compile_s")
    is_known = training is not None and compiling is not None and "wall_s" in summary
    times = (seconds(view), training, compiling, summary["wall_s"] - training - compiling if is_known else None)
    device = f"{summary.get('num_devices', '?')} × {summary['device']}" if "device" in summary else "–"
    lines = summary.get("placement") or [
        "all of it on every device" if view.settings.get("layout") == "anakin" else "–"
    ]
    placed = element("span", *(element("span", line, element("br")) for line in lines))
    return speed(view), *(_time(value) for value in times), element("span", device, class_="number"), placed


def _shares(view: run_view.View) -> tuple[str, ...]:
    """Makes the row of shares of time, with a bar."""
    means = [_mean(view, name) or 0.0 for name in (*plots.SHARES, plots.LEARNING)]
    spans = [
        element("span", class_=word, style=f"flex:{share:.4f}", title=f"{word} {share:.0%}")
        for word, share in zip(_ACTING, means, strict=False)
    ]
    bar = element("div", *spans, class_="share", role="img", aria_label="shares of the actors' time")
    return bottleneck(view), bar, *(f"{share:.0%}" for share in means)


def _counts(view: run_view.View) -> dict[str, str]:
    """Lists the measurements of a layout with threads, or of a replay."""
    found: dict[str, str] = {}
    for name, words in (("policy_lag_p50", "policy lag, median"), ("policy_lag_p99", "policy lag, 99 %")):
        value = view.summary.get(name, _mean(view, name))
        found |= {words: f"{value:g}"} if value is not None else {}
    for name, words in (("samples_per_insert", "samples per insert"), ("queue_depth", "unrolls waiting")):
        value = _mean(view, name)
        found |= {words: f"{value:.3g}"} if value is not None else {}
    for name, words in (("bytes_per_second_to_learner", "to the learner"), ("bytes_per_second_to_actors", "to actors")):
        value = _mean(view, name)
        found |= {words: f"{value / 2**20:.3g} MiB/s"} if value is not None else {}
    counts = (("param_versions_published", "versions published"), ("gradients", "gradients"))
    return found | {words: f"{view.summary[name]:,}" for name, words in counts if name in view.summary}


def _charts(views: Sequence[curves.Numbered]) -> list[Markup]:
    """Draws every gauge that a run records, and the shares of time of each run."""
    drawn, steps = [], "Environment steps per seed"
    for gauge in plots.GAUGES.values():
        lines = []
        for i, view in views:
            x, values = plots.series(view.records, gauge.names)
            # The last name is drawn first, below the others.
            for name, column in reversed(list(zip(gauge.names, values.T, strict=True))):
                thin = "" if name == gauge.names[0] else "thin "
                lines += [charts.Line(x, column, thin + charts.colour(i), f"{view.label}, {name}")] if len(x) else []
        if lines:
            top = 1.05 * max(0.0, *(float(value) for line in lines for value in line.y[np.isfinite(line.y)])) or 1.0
            title = gauge.title + (f" ({gauge.note[0].lower()}{gauge.note[1:]})" if gauge.note else "")
            drawn.append(charts.chart(title, steps, lines, (), (0.0, top)))
    return drawn + [_time_chart(view) for _, view in views if plots.has_shares(view.records)]


def _time_chart(view: run_view.View) -> Markup:
    """Draws the shares of time of one run over its steps."""
    x, values = plots.series(view.records, (*plots.SHARES, plots.LEARNING))
    values = np.nan_to_num(values)
    tops = np.cumsum(values[:, :-1], axis=1).T
    bottoms = np.concatenate([np.zeros((1, len(x))), tops[:-1]])
    lines = [
        charts.Line(x, high, f"thin {word}", f"{word}, share of the actors' time", np.stack([low, high]))
        for word, low, high in zip(_ACTING, bottoms, tops, strict=True)
    ]
    lines.append(charts.Line(x, values[:, -1], "learner", "learning, share of the learner's time"))
    key = [element("li", charts.swatch(word), word) for word in _ACTING] + [
        element("li", charts.swatch("learner"), "learner learns")
    ]
    chart = charts.chart(f"Share of time, {view.label}", "Environment steps per seed", lines, (), (0.0, 1.0))
    return element("div", chart, element("ul", *key, class_="legend"))


def _mean(view: run_view.View, name: str) -> float | None:
    """Averages a number over the training records that have it."""
    values: list[Any] = [record[name] for record in view.records if isinstance(record.get(name), int | float)]
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else None


def _time(value: float | None) -> Markup:
    return element("span", "–" if value is None else clock(value), class_="number")
