"""Reads the folder of a run, finished, stopped, failed or still going; reads files only, without JAX."""

import math
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.runs import aggregate, files, metrics
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
_ENTRY = files.Kind(
    "a value with its origin",
    lambda x: isinstance(x, dict) and {"value", "origin"} <= x.keys() and all(map(files.VALUE.holds, x.values())),
)
_SETTINGS = {
    **dict.fromkeys(("system", "env", "layout", "sweep"), files.TEXT),
    **dict.fromkeys(("steps", "seed"), files.COUNT),
    "num_seeds": files.Kind("a whole number from 1", lambda x: files.COUNT.holds(x) and x > 0),
}
_SUMMARY = {
    **dict.fromkeys(("env", "protocol", "reason", "device"), files.TEXT),
    **dict.fromkeys(("env_steps", "num_devices"), files.COUNT),
    **dict.fromkeys(("wall_s", "train_s", "compile_s", "steps_per_second"), files.AMOUNT),
    **dict.fromkeys(("gradients", "param_versions_published", *_COUNTS), files.AMOUNT),
    **dict.fromkeys(("eval_return_mean", "policy_lag_p50", "policy_lag_p99"), files.NUMBER),
    **{"placement": files.list_of(files.TEXT), "eval_return_per_seed": files.list_of(files.NUMBER)},
}
# A page or picture of more combinations would be unreadable.
_MOST_COMBINATIONS = 1_000


class View(NamedTuple):
    """The contents of a run's folder.

    Attributes:
        folder: folder of the run.
        label: name of the run in tables and pictures.
        settings: value by flag name.
        origins: origin of each value.
        entries: name -> entry of `config.json`: value with origin, tag, and the default if the value differs from it.
        software: commit and versions of each session.
        records: records of `metrics.jsonl`.
        summary: summary of the last session that has ended; empty before.
        state: `finished`, `return reached`, `stopped`, `failed`; `going` (or killed) if a session has not ended.
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
        """The steps per seed so far; a run that was stopped has some behind its last record."""
        recorded = max((record["env_steps"] for record in self.records), default=0)
        return max(recorded, self.summary.get("env_steps", 0))

    @property
    def evaluation(self) -> metrics.Record:
        """The last evaluation; empty before the first."""
        return next((record for record in reversed(self.records) if record["kind"] == "eval"), {})

    @property
    def task_params(self) -> dict[str, str]:
        """The parameters of the task."""
        return resolve.task_params(self.settings)


def read(folder: pathlib.Path, label: str = "") -> View:
    """Reads a run folder.

    Args:
        folder: folder of the run.
        label: name of the run; the folder's path by default.

    Raises:
        UsageError: it holds no run, or its files cannot be read.
    """
    run_folder.check_is_run(folder)
    contents = files.read_json(folder / "config.json")
    try:
        values, members = _checked(contents)
    except ValueError as error:
        raise errors.UsageError(f"{folder / 'config.json'} is not what a run writes; settings: {error}") from None
    told: list[str] = []
    records, summary = metrics.read(folder, members, told.append, files.LARGEST_FILE), read_summary(folder)
    for line in told:
        warnings.warn(line, RuntimeWarning, stacklevel=2)
    return View(
        folder,
        label or str(folder),
        values,
        {name: str(entry["origin"]) for name, entry in contents["settings"].items()},
        contents["settings"],
        software_versions.recorded(contents),
        records,
        summary,
        _state(folder, records, summary),
        (*told, *_troubles(folder, records, summary)),
    )


def _checked(contents: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Returns the settings in a `config.json`, and the number of returns that an evaluation of such a run has.

    Raises:
        ValueError: they are not what a run writes.
    """
    entries = contents.get("settings")
    if not isinstance(entries, dict):
        raise ValueError("there are none")
    files.check(entries, {}, ("system", "env"), _ENTRY)
    values = {name: entry["value"] for name, entry in entries.items()}
    files.check(values, _SETTINGS)
    combinations = sweep.size(values.get("sweep", ""))
    if combinations > _MOST_COMBINATIONS:
        raise ValueError(f"sweep has {combinations:,} combinations; {_MOST_COMBINATIONS:,} can be shown")
    return values, values.get("num_seeds", 1) * combinations


def read_summary(folder: pathlib.Path) -> dict[str, Any]:
    """Reads `summary.json`, without values that are null; empty if no session has ended.

    Raises:
        UsageError: the file is not what a run writes.
    """
    path = folder / "summary.json"
    known = {name: value for name, value in files.read_json(path).items() if value is not None}
    try:
        files.check(known, _SUMMARY)
    except ValueError as error:
        raise errors.UsageError(f"{path} is not what a run writes: {error}") from None
    return known


def read_all(folders: Sequence[pathlib.Path], labels: str | None) -> list[View]:
    """Reads the runs that a command line names; arguments and errors as of `named`, and of `read`."""
    return [read(folder, label) for folder, label in named(folders, labels)]


def named(folders: Sequence[pathlib.Path], labels: str | None) -> list[tuple[pathlib.Path, str]]:
    """Gives the run folders that a command line names their labels.

    Args:
        folders: folders of the runs.
        labels: one per run, separated by commas; None takes the folders.

    Raises:
        UsageError: there are more or fewer labels, or two are equal.
    """
    names = labels.split(",") if labels else [str(folder) for folder in folders]
    if not labels and len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise errors.UsageError(f"{twice} is given twice; expected different runs")
    if len(names) != len(folders) or len(set(names)) < len(names):
        expected = f"expected {len(folders)} label(s), one per run and all different"
        raise errors.UsageError(f"{expected}; given {', '.join(names)}")
    return list(zip(folders, names, strict=True))


def task_of(view: View) -> str:
    """Returns what a run plays: its environment, and the parameters that were given for it."""
    params = ", ".join(f"{key}={value}" for key, value in sorted(view.task_params.items()))
    return str(view.settings["env"]) + (f" with {params}" if params else "")


def members(view: View) -> list[View]:
    """Returns a view of each combination of a sweep, with its own seeds, scores and values; else the view itself."""
    if not view.settings.get("sweep"):
        return [view]
    count, found = view.settings.get("num_seeds", 1), []
    for i, values in enumerate(sweep.read(view.settings["sweep"])):
        seeds = slice(i * count, (i + 1) * count)
        found.append(
            view._replace(
                label=f"{view.label}, {sweep.label(view.settings, values)}",
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
    """Returns a record with the returns of some of its seeds, and an interval if these are several."""
    name = "eval_return" if record["kind"] == "eval" else "episode_return"
    scores = np.asarray(record.get(f"{name}_per_seed", ()), np.float64)[seeds]
    known = scores[np.isfinite(scores)]
    own = {f"{name}_per_seed": scores.tolist(), name: float(known.mean()) if len(known) else math.nan}
    if record["kind"] == "eval":
        share = len(scores) / max(len(record.get("eval_return_per_seed", ())), 1)
        own["eval_episodes"] = round(record.get("eval_episodes", 0) * share)
        several = len(scores) > 1
        own["eval_return_iqm"] = float(aggregate.interquartile_mean(scores)) if len(scores) else None
        own["eval_return_ci95"] = list(aggregate.interval(scores)) if several else None
        own["eval_interval_over"] = "seeds" if several else "no interval"
    return {**record, **own}


def _state(folder: pathlib.Path, records: Sequence[metrics.Record], summary: dict[str, Any]) -> str:
    """Returns the state of a run; a session after that of the summary may still be going."""
    if _has_failed(folder):
        return "failed"
    last = max((record["env_steps"] for record in records), default=0)
    is_open = not summary or (folder / run_folder.LOCK_NAME).exists() or last > summary.get("env_steps", 0)
    return "going" if is_open else str(summary.get("reason", "stopped"))


def _has_failed(folder: pathlib.Path) -> bool:
    """Says whether `checkpoint.find` finds a failure, which a kill may have left half-written."""
    return any((folder / "failure" / name).is_dir() for name in ("state", ".old-state"))


def _troubles(folder: pathlib.Path, records: Sequence[metrics.Record], summary: dict[str, Any]) -> tuple[str, ...]:
    """Lists failures, warnings, and counts of dropped unrolls and gradients."""
    found = [f"a loss or gradient was not finite; the state before it is in {folder / 'failure'}"]
    found = found if _has_failed(folder) else []
    try:
        found += dict.fromkeys(_complaints(folder / _LOG_NAME))
    except errors.UsageError as error:
        found.append(str(error))
    for name, words in _COUNTS.items():
        count = summary.get(name) or np.nansum(metrics.column(records, "train", name))
        found += [f"{count:,.0f} {words}"] if count else []
    return tuple(found)


def _complaints(path: pathlib.Path) -> Iterator[str]:
    """Yields the trainer's own warnings and errors in its log."""
    for line in files.lines(path, files.LARGEST_FILE):
        if line.startswith(_COMPLAINT.encode()):
            yield line.decode(errors="replace").strip().removeprefix(_COMPLAINT)
