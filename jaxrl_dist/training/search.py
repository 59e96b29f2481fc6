"""Searches settings: draws values at random or by Optuna, trains each draw as a study does, and writes one page.

A search is a folder: one run folder per trial, `trials.json` with the drawn values, `page.html`, `table.md`,
`table.json`, and `search.png` with the return against each setting. Drawn trials never change: the same command
resumes a search that was stopped, and one with more trials continues a search with fewer.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.analysis import plots, study_table
from jaxrl_dist.analysis.report import studies
from jaxrl_dist.runs import files, folder, software
from jaxrl_dist.settings import fields, resolve
from jaxrl_dist.systems import catalogue, training_flags
from jaxrl_dist.training import study

SAMPLERS = ("random", "optuna")

Drawn = dict[str, Any]


class Range(NamedTuple):
    """Values of one setting to draw from: `choices`, or from `low` to `high`, both inclusive."""

    name: str
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    is_whole: bool = False
    choices: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Search:
    """Describes a search.

    Attributes:
        plan: study to which each trial is added as a setting; it has no settings of its own.
        ranges: ranges of the searched settings.
        trials: number of draws.
        sampler: one of `SAMPLERS`; Optuna's is its tree of Parzen estimators, without pruning.
    """

    plan: study.Study
    ranges: tuple[Range, ...]
    trials: int
    sampler: str = "random"


def parse_range(text: str, common: Sequence[str]) -> Range:
    """Reads `NAME=log:1e-5..1e-2`, `NAME=0.9..0.999`, values `NAME=16,32,64`, or lists `NAME=64;64,64;256,256`.

    Args:
        text: argument of the user.
        common: flags of `train.py`, which say which system it is and so which settings it has.

    Raises:
        UsageError: there is no such setting, or it cannot have these values.
    """
    name, _, given = text.partition("=")
    name = catalogue.ALIASES.get(name, name)
    settings = training_flags.parse(tuple(common)).settings
    if settings is None:
        raise errors.UsageError(f"--search={text}: a flag of train.py prints instead of training")
    if name.startswith(resolve.PARAMS):
        raise errors.UsageError(
            f"--search={text}: parameters of the environment change the task; vary them by --setting"
        )
    if name not in settings.fields:
        raise catalogue.unknown_flag(settings.row, settings.fields, name)
    field = settings.fields[name]
    scale, _, ends = given.rpartition(":")
    low, dots, high = ends.partition("..")
    try:
        if given and not dots and scale != "log":
            parts = given.split(";" if ";" in given else ",")
            return Range(name, choices=tuple(fields.parse(field, part) for part in parts))
        if scale not in ("", "log") or not dots or field.kind not in ("int", "float"):
            raise ValueError("expected log:LOW..HIGH or LOW..HIGH of a number, or values A,B,C (of lists A,B;C)")
        first, last = (float(fields.parse(field, end)) for end in (low, high))
    except ValueError as error:
        raise errors.UsageError(f"--search={text}: {error}") from None
    if not (first < last < math.inf) or (scale == "log" and first <= 0):
        raise errors.UsageError(f"--search={text}: expected LOW < HIGH, and LOW > 0 for logarithms")
    return Range(name, first, last, scale == "log", field.kind == "int")


def run(search: Search, train_command: Sequence[str], say: Callable[[str], None] = print) -> list[study_table.Row]:
    """Trains every trial that is not finished, one after the other, and writes the page.

    Args:
        search: the search.
        train_command: program and first arguments of a training process.
        say: prints a line.

    Returns:
        The rows of the table in the order of the trials, each with its drawn values `searched`, name -> value.

    Raises:
        UsageError: a flag is not valid, the folder holds another search or other runs, or Optuna is missing; nothing
            was started.
        errors.LockError: the search is running already.
    """
    if search.trials < 1:
        raise errors.UsageError(f"--trials={search.trials}: a search needs at least one")
    names = [one.name for one in search.ranges]
    if len(set(names)) < len(names):
        raise errors.UsageError(f"--search: each setting once, not {', '.join(names)}")
    if search.sampler == "optuna" and not software.is_installed("optuna"):
        raise errors.missing_package("--sampler=optuna", "optuna", "optuna")
    draw = _draw_by_optuna if search.sampler == "optuna" else _draw_at_random
    out, failures, rows = search.plan.out, {}, []  # type: ignore[var-annotated]
    _cells(search, 0, _draw_at_random(search, 0, [], []))
    drawn = _kept(search)
    study.check_folders([cell for i, values in enumerate(drawn) for cell in _cells(search, i, values)])
    with folder.lock(out):
        for i in range(search.trials):
            if i == len(drawn):
                values = draw(search, i, drawn, rows)
                # What does not go together is refused before it is kept, so that the folder still takes a command.
                _cells(search, i, values)
                drawn.append(values)
                _keep(search, drawn)
            planned = _cells(search, i, drawn[i])
            try:
                for cell in planned:
                    study.finish(cell, f"[{i + 1}/{search.trials}]", train_command, say, failures)
            finally:
                row, _ = study.row(search.plan, planned[0].label, planned, failures)
                rows.append({**row, "searched": drawn[i]})
                _report(search, rows)
    return rows


def markdown(search: Search, rows: Sequence[study_table.Row]) -> str:
    """Formats the trials as Markdown, the best first, with the command of the best below."""
    lines = [*_table(search, rows).markdown(), "![return against each setting](search.png)", ""]
    best = max(rows, key=_score)
    if _score(best) > -math.inf:
        lines.append(f"- the best: `{best['command']}`")
    lines += [f"- {row['setting']} failed: {failure}" for row in rows for failure in row["failures"]]
    return "\n".join(lines) + "\n"


def _table(search: Search, rows: Sequence[study_table.Row]) -> study_table.Table:
    """Makes the table of the trials, the best first."""
    names, made = [one.name for one in search.ranges], []
    for row in sorted(rows, key=_score, reverse=True):
        numbers = [row[f"eval_return_{name}"] for name in ("iqm", "mean", "min", "max")] + [row["minutes"]]
        shown = ["–" if number is None else f"{number:.4g}" for number in numbers]
        values = [_text(row["searched"][name]) for name in names]
        made.append([row["setting"], *values, str(row["seeds"]), *shown, row["state"]])
    note = (
        f"{len(rows)} of {search.trials} trials, drawn {'by Optuna' if search.sampler == 'optuna' else 'at random'}.",
        "Returns are of the last evaluation, one mean per seed; IQM is the interquartile mean. The best of many trials",
        "owes its rank to luck too: train it again with new seeds.",
    )
    head = ["trial", *names, "seeds", "IQM", "mean", "min", "max", "minutes", "state"]
    return study_table.Table(head, made, note)


def _cells(search: Search, number: int, drawn: Drawn) -> list[study.Cell]:
    """Checks the flags of one trial, and lists its training processes."""
    chosen = study.Setting(f"trial {number:03}", tuple(f"--{name}={_text(value)}" for name, value in drawn.items()))
    return study.cells(dataclasses.replace(search.plan, settings=(chosen,)))


def _draw_at_random(search: Search, number: int, drawn: Sequence[Drawn], rows: Sequence[study_table.Row]) -> Drawn:
    """Draws a trial at random; the draw depends on its number and the first seed only."""
    del drawn, rows
    random = np.random.default_rng([search.plan.first_seed, number])
    return {one.name: _draw(one, float(random.random())) for one in search.ranges}


def _draw(one: Range, share: float) -> Any:
    """Returns the value at a share in [0, 1) of a range, rounded to six digits."""
    if one.choices:
        return one.choices[int(share * len(one.choices))]
    low, high = (one.low, one.high + 1) if one.is_whole else (one.low, one.high)
    value = low * (high / low) ** share if one.is_log else low + share * (high - low)
    return _rounded(one, math.floor(value) if one.is_whole else value)


def _draw_by_optuna(search: Search, number: int, drawn: Sequence[Drawn], rows: Sequence[study_table.Row]) -> Drawn:
    """Draws a trial by Optuna from the scores of all trials so far; a trial without a score counts as failed."""
    import optuna

    spaces: dict[str, Any] = {}
    for one in search.ranges:
        if one.choices:
            # As text, since a tuple that was saved comes back from JSON as a list.
            spaces[one.name] = optuna.distributions.CategoricalDistribution(tuple(map(_text, one.choices)))
        elif one.is_whole:
            spaces[one.name] = optuna.distributions.IntDistribution(int(one.low), int(one.high), log=one.is_log)
        else:
            spaces[one.name] = optuna.distributions.FloatDistribution(one.low, one.high, log=one.is_log)
    sampler = optuna.samplers.TPESampler(seed=search.plan.first_seed * 100_003 + number)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    told = optuna.create_study(direction="maximize", sampler=sampler)
    by_text = {one.name: {_text(choice): choice for choice in one.choices} for one in search.ranges}
    for values, row in zip(drawn, rows, strict=True):
        values = {name: _text(value) if by_text[name] else value for name, value in values.items()}
        score = _score(row)
        known = {"value": score} if score > -math.inf else {"state": optuna.trial.TrialState.FAIL}
        told.add_trial(optuna.trial.create_trial(params=values, distributions=spaces, **known))
    asked = told.ask(spaces).params
    return {one.name: _rounded(one, by_text[one.name].get(asked[one.name], asked[one.name])) for one in search.ranges}


def _rounded(one: Range, value: Any) -> Any:
    """Rounds a number to six digits, but keeps it within its range."""
    if one.choices or one.is_whole:
        return value
    return min(max(float(f"{value:.6g}"), one.low), one.high)


def _text(value: Any) -> str:
    """Writes a value as a flag takes it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _shown(value: Any) -> Any:
    """Returns a number as it is, and any other value as a flag takes it."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _text(value)


def _names(one: Range) -> tuple[str, ...]:
    """Lists the choices of a range, empty if they are numbers."""
    numbers = all(isinstance(_shown(choice), int | float) for choice in one.choices)
    return () if numbers else tuple(map(_text, one.choices))


def _score(row: study_table.Row) -> float:
    """Returns the score of a trial, minus infinity unless all of its seeds have finished."""
    is_whole = row["state"] == "finished" and row["eval_return_iqm"] is not None
    return float(row["eval_return_iqm"]) if is_whole else -math.inf


def _asked(search: Search) -> dict[str, Any]:
    """Returns what identifies the search, for JSON; the runs themselves compare their other flags."""
    ranges = json.loads(json.dumps([one._asdict() for one in search.ranges]))
    return {"sampler": search.sampler, "first_seed": search.plan.first_seed, "ranges": ranges}


def _kept(search: Search) -> list[Drawn]:
    """Reads the trials that an earlier session has drawn."""
    path = search.plan.out / "trials.json"
    if not path.exists():
        return []
    kept = files.read_json(path)
    if kept.get("asked") != _asked(search):
        raise errors.UsageError(
            f"--out={search.plan.out} holds another search (other ranges, sampler or first seed): give another --out"
        )
    trial = files.Kind("trials that this search draws", lambda values: _is_drawn(search, values))
    try:
        files.check(kept, {"drawn": files.list_of(trial)}, ("drawn",))
    except ValueError as error:
        raise errors.UsageError(f"{path} is not what this search writes, give another --out: {error}") from None
    drawn: list[Drawn] = kept["drawn"]
    return drawn


def _is_drawn(search: Search, values: Any) -> bool:
    """Says whether a search can have drawn a trial; a file that was changed could name flags such as an environment."""
    if not isinstance(values, dict) or values.keys() != {one.name for one in search.ranges}:
        return False
    return all(map(files.VALUE.holds, values.values())) and all(
        _text(values[one.name]) in map(_text, one.choices)
        if one.choices
        else isinstance(values[one.name], int | float) and one.low <= values[one.name] <= one.high
        for one in search.ranges
    )


def _keep(search: Search, drawn: Sequence[Drawn]) -> None:
    contents = json.dumps({"asked": _asked(search), "drawn": list(drawn)}, indent=1)
    folder.write_text(search.plan.out / "trials.json", contents + "\n")


def _report(search: Search, rows: Sequence[study_table.Row]) -> None:
    """Writes the page of the trials that are finished so far."""
    out: pathlib.Path = search.plan.out
    study_table.write(out, rows, markdown(search, rows))
    settings = [
        plots.Setting(one.name, [_shown(row["searched"][one.name]) for row in rows], one.is_log, _names(one))
        for one in search.ranges
    ]
    returns = [np.array(row["eval_return_per_seed"], np.float64) for row in rows]
    environments: Mapping[str, None] = dict.fromkeys(name for row in rows for name in row["environments"])
    finished = [row["state"] == "finished" for row in rows]
    plots.draw_search(settings, returns, finished, out / "search.png", ", ".join(environments))
    title = study.title(_cells(search, 0, rows[0]["searched"]))
    studies.write_search(out, title, rows, _table(search, rows), settings, search.trials)
