"""The records of a run in `metrics.jsonl`: written whole or not at all, read back, and cut where a run resumes.

The file holds one JSON object per line with sorted keys. JSON has no NaN and no infinity: both are written as null, and
null is read back as NaN. Every record has `kind` ("train" or "eval") and `env_steps`.
"""

import contextlib
import json
import math
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.runs import files
from jaxrl_dist.runs import folder as run_folder

FILE_NAME = "metrics.jsonl"

Record = dict[str, Any]

_REQUIRED = ("kind", "env_steps")
_PER_SEED = ("eval_return_per_seed", "episode_return_per_seed")
# Kinds of the values with which code here computes; others may have any value that a record can have.
_KINDS = {
    **dict.fromkeys(("kind", "bottleneck", "eval_interval_over"), files.TEXT),
    **dict.fromkeys(("env_steps", "eval_episodes"), files.COUNT),
    **dict.fromkeys(("eval_return", "eval_return_iqm", "episode_return"), files.NUMBER),
    **dict.fromkeys(_PER_SEED, files.list_of(files.NUMBER)),
    **{"wall_s": files.AMOUNT, "eval_return_ci95": files.list_of(files.NUMBER, 2)},
}
# A file with more lines that are no records is refused: they are no accident.
_MOST_BROKEN = 100


def plain(record: Mapping[str, Any]) -> Record:
    """Converts a record to JSON's types: arrays to lists, NaN and infinities to null."""
    return {name: _plain(value) for name, value in record.items()}


def scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the numbers of a plain record without its steps, as kind/name, or kind/name/index for those of lists."""
    for name, value in record.items():
        items = [(f"{name}/{i}", item) for i, item in enumerate(value)] if isinstance(value, list) else [(name, value)]
        numbers = [(tag, item) for tag, item in items if isinstance(item, int | float) and tag != "env_steps"]
        yield from ((f"{record['kind']}/{tag}", float(item)) for tag, item in numbers)


def append(folder: pathlib.Path, record: Record) -> None:
    """Appends a plain record to the file of a run, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    line = json.dumps(record, sort_keys=True, allow_nan=False).encode() + b"\n"
    # Opened for each line, so that it is appended also to a file that was cut or replaced in between.
    with (folder / FILE_NAME).open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            written = file.write(line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes fit")
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise


def sync(folder: pathlib.Path) -> None:
    """Waits until the records of a run, if it has some, are on disk.

    Raises:
        OSError: they cannot be written there.
    """
    run_folder.sync_file(folder / FILE_NAME)


def truncate_after(folder: str | os.PathLike[str], env_steps: int, evaluated: int | None = None) -> None:
    """Cuts the records past a step off `metrics.jsonl`, and a last line that was only half written.

    A run that resumes at this step then records no step twice. Needs no free space on the disk.

    Args:
        folder: run folder; nothing happens if it has no records.
        env_steps: last step to keep; -1 keeps none.
        evaluated: last step whose evaluation to keep; None is `env_steps`, too.

    Raises:
        UsageError: the file holds no records.
    """
    path = pathlib.Path(folder) / FILE_NAME
    last = env_steps if evaluated is None else evaluated
    end = 0
    for position, record in _lines(path):
        if not isinstance(record, str):
            if record["env_steps"] > (last if record["kind"] == "eval" else env_steps):
                break
            end = position
    if path.exists():
        with run_folder.named(path):
            os.truncate(path, end)


def read(
    folder: str | os.PathLike[str],
    members: int = 0,
    warn: Callable[[str], object] | None = None,
    most: int | None = None,
) -> list[Record]:
    """Reads the records of a run, also of one that is being written: a last line that is not whole is left out.

    Args:
        folder: run folder.
        members: number of returns of an evaluation; 0 takes any.
        warn: called with one line if lines were left out that are no records; a warning by default.
        most: largest size of the file in bytes; None takes any, as of a run of one's own.

    Returns:
        The records in order, with NaN for null in the file; empty if the run has recorded nothing yet.

    Raises:
        UsageError: the file holds no records, or is larger.
    """
    path = pathlib.Path(folder) / FILE_NAME
    found: list[Record] = []
    broken = list[str]()
    for number, (_, record) in enumerate(_lines(path, members, most)):
        if isinstance(record, str):
            broken.append(f"line {number + 1}: {record}")
        else:
            found.append({name: _restored(value) for name, value in record.items()})
    if broken:
        text = f"{path}: {len(broken)} of its lines left out, being no records ({broken[0]})"
        warn(text) if warn else warnings.warn(text, RuntimeWarning, stacklevel=2)
    return found


def column(
    records: Iterable[Mapping[str, Any]], kind: str, name: str, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Collects one number, or one list of numbers, from all records of a kind.

    Args:
        records: from `read`.
        kind: "train" or "eval".
        name: name of the number.
        shape: () for a number, [S] for a list; that of the first record by default.

    Returns:
        f64 [n, *shape]; NaN for a record that lacks it or has something else.
    """
    values = [_numbers(record.get(name)) for record in records if record.get("kind") == kind]
    shape = next((value.shape for value in values if value is not None), ()) if shape is None else shape
    missing = np.full(shape, np.nan)
    rows = [missing if value is None or value.shape != shape else value for value in values]
    return np.array(rows, np.float64).reshape(len(rows), *shape)


def _numbers(value: Any) -> np.ndarray | None:
    """Returns a number f64 [] or numbers f64 [n], None of anything else."""
    is_known = all(isinstance(item, int | float) for item in (value if isinstance(value, list) else [value]))
    return np.asarray(value, np.float64) if is_known else None


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _restored(value: Any) -> Any:
    """Returns a value of a record as it was before `_plain`."""
    if isinstance(value, list):
        return [math.nan if item is None else item for item in value]
    return math.nan if value is None else value


def _lines(path: pathlib.Path, members: int = 0, most: int | None = None) -> Iterator[tuple[int, Record | str]]:
    """Yields for each line the position of its end, and its record or its fault; leaves out an unfinished last line."""
    position, broken = 0, 0
    for line in files.lines(path, most):
        position += len(line)
        if not line.endswith(b"\n") and len(line) < files.LONGEST_LINE:
            return
        record = _parse(line, members)
        broken += isinstance(record, str)
        if broken > _MOST_BROKEN:
            many = f"more than {_MOST_BROKEN} lines are no records, the last: {record}"
            raise errors.UsageError(f"{path} is not what a run writes, move it away: {many}")
        yield position, record


def _parse(line: bytes, members: int) -> Record | str:
    """Reads the record of one line, or returns its fault in words."""
    try:
        record = files.parsed(line)
        if not isinstance(record, dict):
            return "it is no JSON object"
        files.check(record, _KINDS, _REQUIRED, files.VALUE)
    except ValueError as error:
        return str(error)
    for name in _PER_SEED:
        if members and len(record.get(name, range(members))) != members:
            return f"{name} has {len(record[name])} numbers; the run has {members} of settings and seeds"
    return record
