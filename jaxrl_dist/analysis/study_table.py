"""The table of a study: one row per setting, with interquartile means, intervals, commands and versions."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist.analysis import curves
from jaxrl_dist.runs import aggregate, metrics
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.runs import view as run_view

Row = dict[str, Any]

LISTED = ("environments", "devices", "commits", "versions")
_UNKNOWN = "–"
_NOTE = (
    "Returns are of the last evaluation, one mean per seed; IQM is the interquartile mean, and its 95 % interval a",
    "stratified bootstrap over seeds. The final window is the last tenth of the steps.",
)
_FEW = (f"Of fewer than {aggregate.FEW} seeds intervals and probabilities say little: the next seed may lie outside.",)


class Table(NamedTuple):
    """A table as text.

    Attributes:
        head: a heading per column.
        rows: rows of cells, the first of which is the row's label.
        note: lines that explain the numbers.
    """

    head: list[str]
    rows: list[list[str]]
    note: tuple[str, ...]

    def markdown(self) -> list[str]:
        """Returns its lines in Markdown."""
        rule = "|" + " --- |" * len(self.head)
        return [f"| {' | '.join(self.head)} |", rule, *(f"| {' | '.join(row)} |" for row in self.rows),
                "", *self.note, ""]  # fmt: skip


def row(
    label: str,
    command: str,
    finished: Sequence[run_view.View],
    failed: Sequence[str],
    seeds_asked: int,
    means: Sequence[str] = (),
) -> Row:
    """Computes the row of one setting.

    Args:
        label: label of the setting.
        command: command that trains it, or its first seed.
        finished: its finished cells.
        failed: reasons why its other cells failed.
        seeds_asked: number of seeds that the row is to have.
        means: names of training metrics to average over seeds and records.

    Returns:
        Numbers by name, None for numbers that cannot be computed.
    """
    summaries = [view.summary for view in finished]
    origins = [origin for view in finished for origin in view.software]
    scores = np.array([score for summary in summaries for score in summary.get("eval_return_per_seed", ())], np.float64)
    records = [view.records for view in finished]
    made = [curves.curve([one]) for one in records]
    windows = [aggregate.final_window_mean(curve.env_steps, curve.returns) for curve in made if len(curve.env_steps)]
    incomplete = f"{len(scores)} of {seeds_asked} seeds"
    return {
        "setting": label,
        "environments": sorted(set(map(run_view.task_of, finished))),
        "state": "failed" if failed else "finished" if len(scores) == seeds_asked else incomplete,
        "failures": list(failed),
        "seeds": len(scores),
        "seeds_asked": seeds_asked,
        "eval_return_per_seed": scores.tolist(),
        "eval_return_iqm": float(aggregate.interquartile_mean(scores)) if len(scores) else None,
        "eval_return_ci95": list(aggregate.interval(scores)) if len(scores) > 1 else None,
        "eval_return_mean": float(scores.mean()) if len(scores) else None,
        "eval_return_min": float(scores.min()) if len(scores) else None,
        "eval_return_max": float(scores.max()) if len(scores) else None,
        "final_window_mean": float(np.concatenate(windows).mean()) if windows else None,
        "better_than_first": None,
        "better_than_first_ci95": None,
        "means": {name: _mean(name, records) for name in means},
        "env_steps": max((view.env_steps for view in finished), default=None),
        "minutes": sum(summary.get("wall_s", 0.0) for summary in summaries) / 60 if summaries else None,
        "command": command,
        "devices": sorted({f"{one.get('num_devices', '?')} × {one['device']}" for one in summaries if "device" in one}),
        "commits": sorted({origin["commit"] for origin in origins}),
        "versions": sorted({version for origin in origins for version in origin["versions"]}),
    }


def compare_with_first(rows: Sequence[Row]) -> list[Row]:
    """Adds to each later row the probability that a seed of it scores higher than one of the first row.

    Rows of another environment than the first are not changed.
    """
    baseline = np.array(rows[0]["eval_return_per_seed"])
    compared = list(rows[:1])
    for item in rows[1:]:
        scores = np.array(item["eval_return_per_seed"])
        if len(scores) and len(baseline) and item["environments"] == rows[0]["environments"]:
            low, high = aggregate.interval(scores, baseline, statistic=aggregate.probability_of_improvement)
            probability = float(aggregate.probability_of_improvement(scores, baseline))
            item = {**item, "better_than_first": probability, "better_than_first_ci95": [low, high]}
        compared.append(item)
    return compared


def write(folder: pathlib.Path, rows: Sequence[Row], text: str) -> None:
    """Writes rows into `table.json`, and their text into `table.md`."""
    folders.write_text(folder / "table.json", json.dumps(list(rows), indent=1, allow_nan=False) + "\n")
    folders.write_text(folder / "table.md", text)


def markdown(rows: Sequence[Row]) -> str:
    """Formats the table as Markdown, with commands and versions below it."""
    lines = table(rows).markdown()
    for item in rows:
        lines.append(f"- {item['setting']}: `{item['command']}`")
        lines += [f"  - failed: {failure}" for failure in item["failures"]]
        lines += [f"  - {name}: {', '.join(item[name])}" for name in LISTED if item[name]]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Row]) -> Table:
    """Writes the rows' numbers as text, a row each."""
    has_rivals = len(rows) > 1
    names = ["setting", "seeds", "IQM", "95 % interval", "mean", "min", "max", "final-window mean"]
    names += [f"mean {name}" for name in rows[0]["means"]]
    names += ["P(better than first)"] * has_rivals + ["steps per seed", "minutes", "state"]
    made = []
    for item in rows:
        values = [item["setting"], str(item["seeds"]), _number(item["eval_return_iqm"])]
        values.append(_range(item["eval_return_ci95"]))
        values += [_number(item[name]) for name in ("eval_return_mean", "eval_return_min", "eval_return_max")]
        values.append(_number(item["final_window_mean"]))
        values += [_number(value) for value in item["means"].values()]
        rival = f"{_number(item['better_than_first'])} {_range(item['better_than_first_ci95'])}"
        values += [_UNKNOWN if item["better_than_first"] is None else rival] * has_rivals
        values.append(_UNKNOWN if item["env_steps"] is None else f"{item['env_steps']:,}")
        made.append([*values, _number(item["minutes"]), item["state"]])
    is_few = any(0 < item["seeds"] < aggregate.FEW for item in rows)
    return Table(names, made, _NOTE + _FEW * is_few)


def _mean(name: str, runs: Sequence[Sequence[metrics.Record]]) -> float | None:
    """Averages a training metric over all records and seeds that have it, None if none has it."""
    values = [metrics.column(records, "train", name).ravel() for records in runs]
    known = [array[np.isfinite(array)] for array in values]
    return float(np.concatenate(known).mean()) if any(len(array) for array in known) else None


def _number(value: float | None) -> str:
    """Writes a number with four digits."""
    return _UNKNOWN if value is None else f"{value:.4g}"


def _range(bounds: Sequence[float] | None) -> str:
    """Writes an interval."""
    return _UNKNOWN if bounds is None else f"[{bounds[0]:.4g}, {bounds[1]:.4g}]"
