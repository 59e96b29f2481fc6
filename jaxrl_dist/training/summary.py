"""Sums up a run at its end: `summary.json` and a few lines."""

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_dist.analysis import plots
from jaxrl_dist.runs import aggregate, checkpoint, metrics
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.settings import resolve, sweep
from jaxrl_dist.training import assemble, population, records, session


def write_summary(folder: pathlib.Path, parts: assemble.Assembly, result: session.Result) -> dict[str, Any]:
    """Writes `summary.json` and the learning curve, and returns the summary.

    It has the run's last evaluation, even if this session made none.

    Raises:
        OSError: a file cannot be written; the message says that the run itself is whole.
    """
    settings, progress = parts.settings, result.progress
    counters = records.counters(parts, progress)
    evaluations = [record for record in metrics.read(folder) if record["kind"] == "eval"]
    last = evaluations[-1] if evaluations else {}
    summary = {
        "system": settings["system"],
        "env": settings["env"],
        "protocol": parts.protocol,
        "layout": settings["layout"],
        "reason": result.reason,
        **counters,
        "steps_per_second": records.steps_per_second(
            parts, progress.iteration, progress.layout_sums, progress.running_s
        )
        if progress.running_s
        else None,
        "running_s": progress.running_s,
        "train_s": progress.train_s,
        "compile_s": progress.compile_s,
        "eval_return_mean": last.get("eval_return"),
        **{name: last.get(name) for name in _EVALUATION},
        "best_return": progress.best_return,
        "seconds_to_best": progress.seconds_to_best,
        "seed": settings["seed"],
        "num_seeds": settings["num_seeds"],
        **_by_combination(settings, last),
        "num_devices": int(parts.layout.mesh.devices.size),
        "device": parts.layout.mesh.devices.flat[0].device_kind,
        "placement": list(parts.layout.placement),
        **parts.layout.summary({name: np.asarray(values) for name, values in progress.layout_sums.items()}),
        "resumed_from": result.resumed_from,
        "params_sha256": checkpoint.params_sha256(jax.tree.map(np.asarray, result.params)),
    }
    with folders.named(folder, "the run is saved, and the same command writes its summary and picture again"):
        folders.write_json(folder / "summary.json", summary)
        if evaluations:
            plots.draw_run(folder, settings)
    return summary


_EVALUATION = ("eval_return_iqm", "eval_return_ci95", "eval_return_per_seed", "eval_episodes", "eval_interval_over")


def _by_combination(settings: resolve.Resolved, last: dict[str, Any]) -> dict[str, Any]:
    """Returns the last evaluation of each combination of a sweep, or of each member of a population."""
    if not settings["sweep"] or not last:
        return {}
    if settings["population"]:
        return {"population": population.ranked(settings, last)}
    grouped = sweep.by_combination(settings, last["eval_return_per_seed"])
    return {
        "sweep": [
            {
                "settings": values,
                "eval_return_mean": float(np.mean(returns)),
                "eval_return_ci95": aggregate.interval(np.asarray(returns)) if len(returns) > 1 else None,
                "eval_return_per_seed": returns,
            }
            for values, returns in grouped
        ]
    }


def describe(folder: pathlib.Path, summary: dict[str, Any]) -> str:
    """Says in a few lines how a run ended and where to look."""
    steps, frames = summary["env_steps"], summary["frames"]
    played = f"{steps:,} steps" + (f", {frames:,} frames" if frames != steps else "")
    lines = [f"{summary['system']} on {summary['env']}: {played} per seed ({summary['reason']})"]
    if summary["protocol"]:
        lines.append(summary["protocol"])
    if summary.get("sweep"):
        lines += _ranked(summary["sweep"])
    elif summary.get("population"):
        lines += _best_of_each(summary["population"])
    elif summary["eval_return_mean"] is not None:
        lines.append(_evaluated(summary))
    if summary["steps_per_second"]:
        lines.append(
            f"{summary['steps_per_second']:,.0f} steps/s, {summary['wall_s']:.1f} s in all: compiling "
            f"{summary['compile_s']:.1f} s, training {summary['train_s']:.1f} s, evaluating, writing and saving "
            f"{summary['running_s'] - summary['train_s']:.1f} s"
        )
    lines.append(f"run folder {folder}, learning curve {folder / 'learning_curve.png'}")
    return "\n".join(lines)


def _ranked(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lists the combinations of a sweep, the best one first; ties keep their order."""
    seeds = len(items[0]["eval_return_per_seed"])
    of_seeds = (
        f"mean of {seeds} seeds each, and the 95 % interval of their interquartile mean"
        if seeds > 1
        else "one seed each"
    )
    lines = [f"evaluation return, best first ({of_seeds}):"]
    for item in sorted(items, key=lambda item: -item["eval_return_mean"]):
        band = f" [{', '.join(map(_shown, item['eval_return_ci95']))}]" if seeds > 1 else ""
        lines.append(f"  {sweep.describe(item['settings'])}: {_shown(item['eval_return_mean'])}{band}")
    return lines


def _best_of_each(members: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lists the best member of the population of each seed, with the values that it ended with."""
    lines = ["evaluation return of the best member of each population:"]
    for seed, of_seed in itertools.groupby(members, key=lambda one: one["seed"]):
        best = next(of_seed)
        values = sweep.describe(best["settings"])
        lines.append(f"  seed {seed}, member {best['member']}: {_shown(best['eval_return_mean'])} with {values}")
    return lines


def _evaluated(summary: dict[str, Any]) -> str:
    """Says the result of the last evaluation, and what its interval is over."""
    low, high = summary["eval_return_ci95"]
    told, seeds = f"evaluation return {_shown(summary['eval_return_mean'])}", len(summary["eval_return_per_seed"])
    within = f"95 % interval {_shown(low)} to {_shown(high)} over"
    if seeds == 1:
        return f"{told} ({within} {summary['eval_episodes']} episodes of one seed)"
    few = ", which are few" if seeds < aggregate.FEW else ""
    return (
        f"{told}, interquartile mean {_shown(summary['eval_return_iqm'])} ({within} {seeds} seeds{few}; "
        f"{summary['eval_episodes']} episodes)"
    )


def _shown(score: float) -> str:
    """Writes a return with one decimal, or with four digits if it is small: .957 and .95 of 1 are not alike."""
    return f"{score:.1f}" if abs(score) >= 100 else f"{score:.4g}"
