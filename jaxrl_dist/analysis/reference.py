"""Reference curves: a CSV per study with the evaluations of every seed, beside it a JSON with settings and versions."""

import csv
import io
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.analysis import curves
from jaxrl_dist.runs import files
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.runs import view as run_view
from jaxrl_dist.settings import resolve

_NAME = re.compile(r"[\w.+-]+")
_COLUMNS = ("seed", "env_steps", "minutes", "return")
# Settings in which the runs of one study may differ.
OF_EACH_RUN = {"seed", "num_seeds"}
SMALLEST_SEEDS = 4


class Reference(NamedTuple):
    """The curves of a study.

    Attributes:
        name: name of its files.
        facts: `system`, `env`, `layout`, `settings` by name, `seeds`, `env_steps`, `device`, `software`.
        env_steps: f64 [n].
        returns: f64 [n, S].
    """

    name: str
    facts: dict[str, Any]
    env_steps: np.ndarray
    returns: np.ndarray

    @property
    def title(self) -> str:
        """One line that names its system, environment, layout and steps."""
        params = "".join(f" {name}={value}" for name, value in sorted(task_params(self.facts["settings"]).items()))
        steps = f"{self.facts['env_steps']:,} steps, {len(self.facts['seeds'])} seeds"
        return f"{self.name}: {self.facts['system']} on {self.facts['env']}{params}, {self.facts['layout']}, {steps}"


def write(folder: pathlib.Path, name: str, views: Sequence[run_view.View]) -> pathlib.Path:
    """Writes the curves of finished runs of one study, which differ only in their seeds.

    Args:
        folder: folder of the references.
        name: name of the study.
        views: its runs, with one seed each or several.

    Returns:
        The CSV.

    Raises:
        UsageError: a run is not finished, they are not one study, or there are too few seeds.
    """
    if not _NAME.fullmatch(name):
        raise errors.UsageError(f"--name={name}: expected letters, digits and any of . + - _")
    run_view.check_one_setting(views)
    seeds = _seeds(views)
    curve = curves.curve([view.records for view in views])
    if not np.isfinite(curve.returns).all():
        raise errors.UsageError(
            f"{name}: not every seed was evaluated at every step, so there is no curve to compare with"
        )
    if len(seeds) < SMALLEST_SEEDS:
        raise errors.UsageError(f"{name}: a reference needs {SMALLEST_SEEDS} seeds or more, not {len(seeds)}")
    folder.mkdir(parents=True, exist_ok=True)
    minutes = np.concatenate([_minutes(view, curve.env_steps) for view in views], axis=1)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for column, seed in enumerate(seeds):
        for row, steps in enumerate(curve.env_steps):
            value = f"{curve.returns[row, column]:.6g}"
            writer.writerow((seed, int(steps), f"{minutes[row, column]:.3f}", value))
    folders.write_text(folder / f"{name}.json", json.dumps(_facts(views, seeds), indent=1) + "\n")
    folders.write_text(folder / f"{name}.csv", table.getvalue())
    return folder / f"{name}.csv"


def read_all(folder: pathlib.Path) -> list[Reference]:
    """Reads all references, by name.

    Raises:
        UsageError: there is none, or one cannot be read.
    """
    found = [_read(path) for path in sorted(folder.glob("*.csv"))]
    if not found:
        raise errors.UsageError(f"--references={folder} holds no reference curves")
    return found


def _seeds(views: Sequence[run_view.View]) -> list[int]:
    """Lists the seeds of the runs of one study.

    Raises:
        UsageError: they are not of one study, or a run is not finished.
    """
    for view in views:
        if view.state not in ("finished", "return reached"):
            raise errors.UsageError(f"{view.label} is not finished: {view.state}")
    return seeds_of(views)


def seeds_of(views: Sequence[run_view.View]) -> list[int]:
    """Lists the seeds of runs that are alike.

    Raises:
        UsageError: they differ in more than their seeds, or have some in common.
    """
    seeds: list[int] = []
    for view in views:
        differences = resolve.difference(views[0].entries, view.entries, always=("steps",)).identity
        others = [change.name for change in differences if change.name not in {*OF_EACH_RUN, "out"}]
        if others:
            raise errors.UsageError(f"{view.label} differs from {views[0].label} in {', '.join(others[:4])}")
        first, count = int(view.settings.get("seed", 0)), int(view.settings.get("num_seeds", 1))
        seeds += range(first, first + count)
    if len(set(seeds)) < len(seeds):
        raise errors.UsageError(f"the runs have seeds in common: {', '.join(map(str, seeds))}")
    return seeds


def _plain(view: run_view.View) -> dict[str, Any]:
    """Returns the settings that all runs of a study share."""
    return {name: value for name, value in view.settings.items() if name not in {*OF_EACH_RUN, "out"}}


def _facts(views: Sequence[run_view.View], seeds: Sequence[int]) -> dict[str, Any]:
    """Collects the contents of the JSON file."""
    first = views[0]
    sessions = [session for view in views for session in view.software]
    return {
        "system": first.settings["system"],
        "env": first.settings["env"],
        "layout": first.settings["layout"],
        "seeds": list(seeds),
        "env_steps": first.env_steps,
        "device": f"{first.summary.get('num_devices', '?')} × {first.summary.get('device', 'unknown')}",
        "protocol": first.summary.get("protocol", ""),
        "settings": {name: first.entries[name] for name in _plain(first)},
        "software": [session for i, session in enumerate(sessions) if session not in sessions[:i]],
    }


def _minutes(view: run_view.View, steps: np.ndarray) -> np.ndarray:
    """Returns the wall minutes f64 [n, S] at which each seed of a run was evaluated."""
    own = curves.curve([view.records])
    minutes = np.interp(steps, own.env_steps, own.wall_s) / 60
    return np.repeat(minutes[:, None], own.returns.shape[1], axis=1)


def _read(path: pathlib.Path) -> Reference:
    """Reads one reference."""
    try:
        facts = files.read_json(path.with_suffix(".json"))
        if "settings" not in facts:
            raise ValueError(f"{path.with_suffix('.json').name} beside it has no settings")
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(int(row["seed"]), float(row["env_steps"]), float(row["return"])) for row in csv.DictReader(file)]
        seeds, steps = sorted({row[0] for row in rows}), sorted({row[1] for row in rows})
        values = {(seed, step): value for seed, step, value in rows}
        returns = np.array([[values[seed, step] for seed in seeds] for step in steps])
        return Reference(path.stem, facts, np.array(steps), returns)
    except (OSError, ValueError, KeyError) as error:
        raise errors.UsageError(f"{path} is no reference curve: {' '.join(str(error).split())}") from None


def task_params(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the parameters of the task in a reference's settings."""
    return resolve.task_params({name: entry["value"] for name, entry in settings.items()})
