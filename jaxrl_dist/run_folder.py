"""The files of a run folder beside metrics and checkpoints: `config.json`, `summary.json`, the curve."""

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_dist import (
    assemble,
    checkpoint,
    metrics,
    plots,
    records,
    session,
    software,
)
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.settings import resolve, sweep


def write_config(folder: pathlib.Path, settings: resolve.Resolved) -> tuple[resolve.Change, ...]:
    """Writes every setting with its origin, and the commit and versions of each session so far.

    Returns:
        The settings that an earlier session in this folder had otherwise.
    """
    earlier = folders.held(folder)
    changes = () if earlier is None else settings.difference(earlier).tunable
    _write(folder / "config.json", software.record(settings.as_json(), earlier))
    return changes


def write_summary(folder: pathlib.Path, parts: assemble.Assembly, result: session.Result) -> dict[str, Any]:
    """Writes `summary.json` and the learning curve, and returns the summary.

    The evaluation in it is the run's last one, also where this session made none.

    Raises:
        OSError: one of them cannot be written; the message says that the run itself is whole.
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
        "steps_per_second": records.steps_per_second(parts, progress.iteration, progress.layout_sums, progress.train_s)
        if progress.train_s
        else None,
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
    try:
        _write(folder / "summary.json", summary)
        if evaluations:
            _draw(folder, settings)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror or error}; the run is saved, and the same command writes its summary and picture again",
            str(folder),
        ) from error
    return summary


_EVALUATION = ("eval_return_iqm", "eval_return_ci95", "eval_return_per_seed", "eval_episodes", "eval_interval_over")


def _by_combination(settings: resolve.Resolved, last: dict[str, Any]) -> dict[str, Any]:
    """Returns the last evaluation of each combination of a sweep, nothing without one."""
    if not settings["sweep"] or not last:
        return {}
    grouped = sweep.by_combination(settings, last["eval_return_per_seed"])
    return {
        "sweep": [
            {"settings": values, "eval_return_mean": float(np.mean(returns)), "eval_return_per_seed": returns}
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
        lines.append(f"evaluation return, mean of {summary['num_seeds']} seed(s) each:")
        lines += [f"  {sweep.describe(item['settings'])}: {item['eval_return_mean']:.1f}" for item in summary["sweep"]]
    elif summary["eval_return_mean"] is not None:
        low, high = summary["eval_return_ci95"]
        lines.append(
            f"evaluation return {summary['eval_return_mean']:.1f}, interquartile mean {summary['eval_return_iqm']:.1f} "
            f"(95 % interval {low:.1f} to {high:.1f} over {summary['eval_interval_over']}; {summary['eval_episodes']} "
            "episodes)"
        )
    if summary["steps_per_second"]:
        lines.append(
            f"{summary['steps_per_second']:,.0f} steps/s, {summary['wall_s']:.1f} s in all, of which compiling "
            f"{summary['compile_s']:.1f} s"
        )
    lines.append(f"run folder {folder}, learning curve {folder / 'learning_curve.png'}")
    return "\n".join(lines)


def _write(path: pathlib.Path, contents: dict[str, Any]) -> None:
    """Replaces a file in one step, so that a kill leaves the old one or the new one."""
    text = json.dumps(contents, indent=1, allow_nan=False) + "\n"
    _replace(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))


def _draw(folder: pathlib.Path, settings: resolve.Resolved) -> None:
    title, whole = f"{settings['system']} on {settings['env']}", plots.curve([metrics.read(folder)])
    grouped = sweep.by_combination(settings, list(whole.returns.T))
    curves = {
        sweep.describe(values) or settings["system"]: whole._replace(returns=np.stack(returns, axis=1))
        for values, returns in grouped
    }
    _replace(folder / "learning_curve.png", lambda scratch: plots.draw(curves, scratch, title))


def _replace(path: pathlib.Path, write: Callable[[pathlib.Path], object]) -> None:
    scratch = path.with_name(f".{path.name}.new")
    try:
        write(scratch)
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
