"""Reads the folder of a run, finished, stopped, failed or still going; reads files only, without JAX."""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.runs import aggregate, metrics
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.runs import software as software_versions
from jaxrl_dist.settings import resolve, sweep

_LOG_NAME = "train.log"
_COMPLAINT = "train.py: "
# Metric that counts a kind of trouble -> the words for it.
_COUNTS = {
    "dropped_unrolls": "unrolls came too late and were dropped",
    "gradients_dropped_stale": "gradients were too old and were dropped",
    "gradients_dropped_outlier": "gradients were outliers and were dropped",
    "gradients_dropped_broken": "gradients were not finite and were dropped",
    "updates_reverted": "updates were not finite and were undone",
    "rollbacks": "times the server went back to an earlier version",
}


class View(NamedTuple):
    """A run as its folder has it.

    Attributes:
        folder: of the run.
        label: to call it by.
        settings: value by flag name.
        origins: where each value comes from.
        entries: of `config.json`, name -> value with origin, tag, and the default where the value is another.
        software: commit and versions of each session.
        records: of `metrics.jsonl`.
        summary: of the last session that came to an end; empty before.
        state: `finished`, `return reached`, `stopped`, `failed`; `going` (or killed) where a session has not ended.
        troubles: a line for everything that went wrong.
    """

    folder: pathlib.Path
    label: str
    settings: dict[str, Any]
    origins: dict[str, str]
    entries: dict[str, dict[str, Any]]
    software: list[dict[str, Any]]
    records: list[metrics.Record]
    summary: dict[str, Any]
    state: str
    troubles: tuple[str, ...]

    @property
    def env_steps(self) -> int:
        """Steps per seed so far."""
        return max((record["env_steps"] for record in self.records), default=self.summary.get("env_steps", 0))

    @property
    def evaluation(self) -> metrics.Record:
        """The last evaluation; empty before the first."""
        return next((record for record in reversed(self.records) if record["kind"] == "eval"), {})

    @property
    def env_params(self) -> dict[str, str]:
        """The environment's own parameters."""
        return resolve.env_params(self.settings)


def read(folder: pathlib.Path, label: str = "") -> View:
    """Reads a run folder.

    Args:
        folder: of the run.
        label: to call it by; the folder's path by default.

    Raises:
        UsageError: it holds no run, or files of it cannot be read.
    """
    if not folder.is_dir():
        raise errors.UsageError(f"{folder} is no run folder: there is no such folder")
    contents = read_json(folder / "config.json")
    if not (folder / "config.json").is_file():
        nested = sorted(path.parent for path in folder.glob("*/config.json"))
        hint = f"; it holds runs: {', '.join(str(path) for path in nested[:4])}" if nested else ""
        raise errors.UsageError(f"{folder} is no run folder: it has no config.json{hint}")
    try:
        values = {name: entry["value"] for name, entry in contents["settings"].items()}
        origins = {name: str(entry["origin"]) for name, entry in contents["settings"].items()}
    except (KeyError, TypeError, AttributeError):
        values, origins = {}, {}
    if not {"system", "env"} <= values.keys():
        raise errors.UsageError(f"{folder / 'config.json'} is not what a run writes: it lists no settings")
    records, summary = metrics.read(folder), read_json(folder / "summary.json")
    state = _state(folder, records, summary)
    sessions = software_versions.recorded(contents)
    return View(
        folder,
        label or str(folder),
        values,
        origins,
        contents["settings"],
        sessions,
        records,
        summary,
        state,
        _troubles(folder, records, summary),
    )


def read_all(folders: Sequence[pathlib.Path], labels: str | None) -> list[View]:
    """Reads the runs that a command line names.

    Args:
        folders: of the runs.
        labels: one per run, separated by commas; None takes the folders.

    Raises:
        UsageError: there are not as many different labels, or a folder is no run folder.
    """
    names = labels.split(",") if labels else [str(folder) for folder in folders]
    if len(names) != len(folders) or len(set(names)) < len(names):
        raise errors.UsageError(f"{len(folders)} runs need as many different labels, not {', '.join(names)}")
    return [read(folder, name) for folder, name in zip(folders, names, strict=True)]


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object; empty where there is none.

    Raises:
        UsageError: the file holds something else.
    """
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise errors.UsageError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(contents, dict):
        raise errors.UsageError(f"{path} is not what a run writes: no JSON object")
    return contents


def members(view: View) -> list[View]:
    """Returns a view of each combination of a sweep, with its own seeds, scores and values; of another run itself."""
    if not view.settings.get("sweep"):
        return [view]
    count, found = view.settings["num_seeds"], []
    for i, values in enumerate(sweep.read(view.settings["sweep"])):
        seeds = slice(i * count, (i + 1) * count)
        found.append(
            view._replace(
                label=f"{view.label}, {sweep.describe(values)}",
                settings={**view.settings, **values, "sweep": ""},
                origins={**view.origins, **dict.fromkeys(values, "sweep")},
                records=[_of_seeds(record, seeds) for record in view.records],
            )
        )
    return found


def check_one_setting(views: Sequence[View]) -> None:
    """Checks that the seeds of some runs can be taken together.

    Raises:
        UsageError: a run is a sweep, or is given twice.
    """
    folders = [view.folder.resolve() for view in views]
    for i, view in enumerate(views):
        if view.settings.get("sweep"):
            raise errors.UsageError(f"{view.label} is a sweep, {view.settings['sweep']}, so its seeds are not alike")
        if folders[i] in folders[:i]:
            raise errors.UsageError(f"{view.label} is given twice: each run counts once")


def _of_seeds(record: metrics.Record, seeds: slice) -> metrics.Record:
    """Returns a record with the returns of some of its seeds; there is an interval only where these are several."""
    name = "eval_return" if record["kind"] == "eval" else "episode_return"
    scores = np.asarray(record.get(f"{name}_per_seed", ()), np.float64)[seeds]
    known = scores[np.isfinite(scores)]
    own = {f"{name}_per_seed": scores.tolist(), name: float(known.mean()) if len(known) else math.nan}
    if record["kind"] == "eval":
        share = len(scores) / max(len(record.get("eval_return_per_seed", ())), 1)
        own["eval_episodes"] = round(record.get("eval_episodes", 0) * share)
        several = len(scores) > 1
        own["eval_return_iqm"] = float(aggregate.interquartile_mean(scores)) if several else None
        own["eval_return_ci95"] = list(aggregate.interval(scores)) if several else None
        own["eval_interval_over"] = "seeds" if several else "no interval"
    return {**record, **own}


def _state(folder: pathlib.Path, records: Sequence[metrics.Record], summary: dict[str, Any]) -> str:
    """Says how a run is; a later session than the summary's may still be going."""
    if any((folder / "failure").glob("*")):
        return "failed"
    last = max((record["env_steps"] for record in records), default=0)
    is_open = not summary or (folder / run_folder.LOCK_NAME).exists() or last > summary.get("env_steps", 0)
    return "going" if is_open else str(summary.get("reason", "stopped"))


def _troubles(folder: pathlib.Path, records: Sequence[metrics.Record], summary: dict[str, Any]) -> tuple[str, ...]:
    """Lists failures, warnings and counts of what was dropped."""
    found = [f"a loss or gradient was not finite; the state before it is in {folder / 'failure'}"]
    found = found if any((folder / "failure").glob("*")) else []
    if (folder / _LOG_NAME).is_file():
        lines = (folder / _LOG_NAME).read_text(encoding="utf-8", errors="replace").splitlines()
        found += dict.fromkeys(line.removeprefix(_COMPLAINT) for line in lines if line.startswith(_COMPLAINT))
    trained = [record for record in records if record["kind"] == "train"]
    for name, words in _COUNTS.items():
        count = summary.get(name) or sum(record.get(name) or 0 for record in trained)
        found += [f"{count:,.0f} {words}"] if count else []
    return tuple(found)
