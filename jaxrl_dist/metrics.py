"""Records what a run measures: `metrics.jsonl`, TensorBoard events and a live line; and reads the records back.

`metrics.jsonl` holds one JSON object per line with sorted keys. JSON has no NaN and no infinity: both are written as
null, and null is read back as NaN. Every record has `kind` ("train" or "eval") and `env_steps`. A logger that fails
alone, because the disk is full say, warns once and never stops the training.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TextIO

import numpy as np

from jaxrl_dist import display as displays
from jaxrl_dist.config import setting

FILE_NAME = "metrics.jsonl"
_EVENTS = "events.out.tfevents."

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of what a run records and shows."""

    interval_steps: int = setting(
        0, "Environment steps between two log lines; 0 is a hundredth of the run.", low=0, tag="tunable"
    )
    tensorboard: bool = setting(True, "Write TensorBoard events into the run folder.", tag="tunable")
    progress: bool = setting(True, "Show the progress of the run in the terminal.", tag="tunable")


class Logger:
    """Writes the records of one session of a run; a context manager."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        config: Config,
        *,
        title: str = "",
        total_steps: int = 0,
        display: bool = True,
        stream: TextIO | None = None,
    ) -> None:
        """Writes nothing yet: files are made by the first record.

        Args:
            folder: run folder.
            config: what to write and show.
            title: opens the live line, such as "ppo gymnax:CartPole-v1".
            total_steps: environment steps per seed at which the run ends, 0 while unknown; may be set later.
            display: whether to show anything at all in the terminal.
            stream: the terminal; standard output by default.
        """
        self.title = title
        self.total_steps = total_steps
        path = pathlib.Path(folder)
        # The order matters: TensorBoard's sink looks for the last record before this session.
        self._sinks: dict[str, _Sink] = {"TensorBoard events": _TensorBoard(path)} if config.tensorboard else {}
        self._sinks[FILE_NAME] = _JsonLines(path / FILE_NAME)
        self._display: displays.Display | None = None
        if display:
            self._display = displays.make(stream or sys.stdout, is_live=config.progress)
        self._first: Record = {}
        self._latest: Record = {}
        self._warned: set[str] = set()

    def log(self, record: Mapping[str, Any]) -> None:
        """Writes one record and shows its progress.

        Args:
            record: has `kind`, `env_steps` and any numbers, texts, lists and arrays.
        """
        plain = {name: _plain(value) for name, value in record.items()}
        for name, sink in list(self._sinks.items()):
            try:
                sink.write(plain)
            except Exception as error:
                self._give_up(name, error, sink.consequence)
                if not sink.can_recover:
                    with contextlib.suppress(Exception):
                        self._sinks.pop(name).close()
        self.show(plain)

    def show(self, record: Mapping[str, Any]) -> None:
        """Moves the live line without a record on disk.

        Args:
            record: the names that changed, such as `env_steps` and `wall_s`.
        """
        self._latest |= record
        if not self._first:
            self._first = dict(self._latest)
        if self._display is not None:
            text = displays.progress_line(self._latest, self.title, self.total_steps, self._first)
            self._print(lambda display: display.update(text))

    def say(self, text: str) -> None:
        """Prints a line that stays, above the live line."""
        self._print(lambda display: display.say(text))

    def close(self) -> None:
        """Shows the last progress and closes what is open."""
        for name, sink in self._sinks.items():
            try:
                sink.close()
            except Exception as error:
                self._give_up(name, error, sink.consequence)
        self._print(lambda display: display.close())
        self._sinks, self._display = {}, None

    def __enter__(self) -> "Logger":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _print(self, action: Callable[[displays.Display], None]) -> None:
        if self._display is None:
            return
        try:
            action(self._display)
        except Exception as error:
            self._display = None
            self._give_up("the live display", error, "nothing more is shown")

    def _give_up(self, name: str, error: Exception, consequence: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            warnings.warn(
                f"{name} failed ({type(error).__name__}: {error}); training goes on, {consequence}",
                RuntimeWarning,
                stacklevel=3,
            )


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


class _Sink(Protocol):
    """Where records go; `consequence` completes the warning after a failure."""

    can_recover: bool
    consequence: str

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    """Appends records to a file, each whole or not at all."""

    can_recover = True
    consequence = "and the records until it can be written again are lost"

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def write(self, record: Record) -> None:
        line = json.dumps(record, sort_keys=True, allow_nan=False).encode() + b"\n"
        # Opened for each line: whoever cuts or replaces the file in between is never overwritten.
        with self._path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                written = file.write(line)
                if written != len(line):
                    raise OSError(f"only {written} of {len(line)} bytes fit")
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(size)
                raise

    def close(self) -> None:
        """Every line is written already."""


class _TensorBoard:
    """Writes scalars as TensorBoard events.

    Uses the file writer below tensorboardX's `SummaryWriter`: that one hands events to a thread, and once the thread
    has died of a full disk, the next calls wait forever.
    """

    can_recover = False
    consequence = f"without further events; {FILE_NAME} has them all"

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, record: Record) -> None:
        from tensorboardX.proto import event_pb2, summary_pb2

        if self._writer is None:
            self._open(event_pb2)
        kind = record["kind"]
        values = [
            summary_pb2.Summary.Value(tag=f"{kind}/{tag}", simple_value=value)
            for tag, value in _scalars(record)
            if tag != "env_steps"
        ]
        self._add(event_pb2.Event(step=record["env_steps"], summary=summary_pb2.Summary(value=values)))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self, event_pb2: Any) -> None:
        from tensorboardX import record_writer

        is_resumed = any(self._folder.glob(f"{_EVENTS}*"))
        # TensorBoard reads files by name; the nanoseconds order sessions that start within one second.
        now = time.time_ns()
        name = f"{_EVENTS}{now // 10**9}.{socket.gethostname()}.{now}"
        self._writer = record_writer.RecordWriter(str(self._folder / name))
        self._add(event_pb2.Event(file_version="brain.Event:2"))
        if is_resumed:
            kept = read(self._folder)
            # Tells TensorBoard to forget what an earlier session wrote past the step at which this one took over.
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(event_pb2.Event(step=kept[-1]["env_steps"] + 1 if kept else 0, session_log=start))

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())
        self._writer.flush()


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: arrays as lists, NaN and infinities as null."""
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


def _scalars(record: Record) -> Iterator[tuple[str, float]]:
    """Yields every number of a record with its name; those of lists as name/index."""
    for name, value in record.items():
        items = [(f"{name}/{i}", item) for i, item in enumerate(value)] if isinstance(value, list) else [(name, value)]
        yield from ((tag, float(item)) for tag, item in items if isinstance(item, int | float))
