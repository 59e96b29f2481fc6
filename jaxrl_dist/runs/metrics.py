"""The records of a run in `metrics.jsonl`: written whole or not at all, read back, and cut where a run resumes.

The file holds one JSON object per line with sorted keys. JSON has no NaN and no infinity: both are written as null, and
null is read back as NaN. Every record has `kind` ("train" or "eval") and `env_steps`.
"""

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxrl_dist.runs import folder as run_folder

FILE_NAME = "metrics.jsonl"

Record = dict[str, Any]


def plain(record: Mapping[str, Any]) -> Record:
    """Returns a record as JSON has it: arrays as lists, NaN and infinities as null."""
    return {name: _plain(value) for name, value in record.items()}


def scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the numbers of a plain record but its steps, each as kind/name; those of lists as kind/name/index."""
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
    # Opened for each line, so that a cut or a replacement of the file in between is never overwritten.
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


def truncate_after(folder: str | os.PathLike[str], env_steps: int) -> None:
    """Cuts the records past a step off `metrics.jsonl`, and a last line that was only half written.

    A run that resumes at this step then records no step twice. Needs no free space on the disk.

    Args:
        folder: run folder; nothing happens where it has no records.
        env_steps: last step to keep; -1 keeps none.
    """
    path = pathlib.Path(folder) / FILE_NAME
    if not path.exists():
        return
    position = end = 0
    with run_folder.named(path):
        with path.open("rb") as file:
            for line in file:
                position += len(line)
                record = _parse(line)
                if record is not None and record["env_steps"] > env_steps:
                    break
                if record is not None:
                    end = position
        os.truncate(path, end)


def read(folder: str | os.PathLike[str]) -> list[Record]:
    """Reads the records of a run, also of one that is being written; lines that are not whole are left out.

    Args:
        folder: run folder.

    Returns:
        The records in order, with NaN where the file has null; none where the run has recorded nothing yet.
    """
    path = pathlib.Path(folder) / FILE_NAME
    if not path.exists():
        return []
    with path.open("rb") as file:
        parsed = [_parse(line) for line in file]
    return [{name: _restored(value) for name, value in record.items()} for record in parsed if record is not None]


def column(records: Iterable[Mapping[str, Any]], kind: str, name: str) -> np.ndarray:
    """Collects one number, or one list of numbers, from all records of a kind.

    Args:
        records: from `read`.
        kind: "train" or "eval".
        name: of the number.

    Returns:
        f64 [n], or [n, S] where the records hold lists of S; NaN where a record lacks it.
    """
    values = [record.get(name) for record in records if record.get("kind") == kind]
    shape = next((np.shape(value) for value in values if value is not None), ())
    missing = np.full(shape, np.nan)
    rows = [missing if value is None else np.asarray(value, np.float64) for value in values]
    return np.array(rows, np.float64).reshape(len(rows), *shape)


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
        return [_restored(item) for item in value]
    return math.nan if value is None else value


def _parse(line: bytes) -> Record | None:
    """Reads one line, None where it is not a whole record."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("env_steps"), int) else None
