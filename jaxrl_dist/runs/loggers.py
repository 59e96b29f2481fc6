"""Shows and records a run's measurements: `metrics.jsonl`, TensorBoard events, trackers and a live line.

If one of these fails, for example since the disk is full, it warns once and never stops the training.
"""

import collections
import contextlib
import dataclasses
import itertools
import math
import operator
import os
import pathlib
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TextIO

from jaxrl_dist.runs import display as displays
from jaxrl_dist.runs import metrics, software, trackers
from jaxrl_dist.settings import fields, setting

_EVENTS = "events.out.tfevents."
# Of the speed shown: beyond them every second one is dropped.
_MOST_MOMENTS = 1_000


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of a run's records and display."""

    interval_steps: int = setting(
        0,
        "Environment steps between two log lines, rounded down to whole iterations; 0 is a hundredth of the run.",
        low=0,
        high=fields.MANY,
        tag="tunable",
    )
    tensorboard: bool = setting(True, "Write TensorBoard events into the run folder.", tag="tunable")
    progress: bool = setting(True, "Show the progress of the run in the terminal.", tag="tunable")
    wandb: str = setting("", "Project of Weights & Biases that gets the records too; empty for none.", tag="tunable")
    mlflow: str = setting("", "Experiment of MLflow that gets the records too; empty for none.", tag="tunable")


class Logger:
    """Writes the records of one session of a run; a context manager."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        config: Config,
        *,
        title: str = "",
        settings: Mapping[str, Any] | None = None,
        total_steps: int = 0,
        display: bool = True,
        stream: TextIO | None = None,
    ) -> None:
        """Lets trackers begin to connect; files are made by the first record.

        Args:
            folder: run folder.
            config: settings of records and display.
            title: begin of the live line, such as "ppo gymnax:CartPole-v1"; also the run's name in trackers.
            settings: flag name -> value, for trackers.
            total_steps: environment steps per seed at which the run ends, 0 while unknown; it may be set later, and so
                may `members`, the number of seeds that train side by side.
            display: whether to show anything at all.
            stream: terminal, or output of a notebook's cell; standard output by default.
        """
        self.title, self.total_steps, self.members = title, total_steps, 1
        self._folder = path = pathlib.Path(folder)
        # The order matters: TensorBoard's sink looks for the last record before this session.
        self._sinks: dict[str, _Sink] = {"TensorBoard events": _TensorBoard(path)} if config.tensorboard else {}
        self._sinks[metrics.FILE_NAME] = _JsonLines(path)
        for name, label in software.TRACKERS.items():
            if destination := getattr(config, name):
                session = trackers.Session(destination, path, title, settings or {})
                self._sinks[label] = trackers.Tracker(name, session)
        self._display: displays.Display | None = None
        if display:
            self._display = displays.make(stream or sys.stdout, is_live=config.progress)
        self._latest: metrics.Record = {}
        # Records of this session, from about halfway to the newest: the pace is that since the first of them.
        self._moments: collections.deque[metrics.Record] = collections.deque()
        self._start_s = math.nan
        self._warned: set[str] = set()

    def log(self, record: Mapping[str, Any]) -> None:
        """Writes one record and shows its progress.

        Args:
            record: has `kind`, `env_steps` and any numbers, texts, lists and arrays.
        """
        plain = metrics.plain(record)
        for name, sink in list(self._sinks.items()):
            try:
                sink.write(plain)
            except Exception as error:
                self._give_up(name, error, sink.consequence)
                if not sink.can_recover:
                    with contextlib.suppress(Exception):
                        self._sinks.pop(name).close()
        self.show(plain)

    def sync(self) -> None:
        """Waits until all records so far are on disk in `metrics.jsonl`; a failure only warns."""
        try:
            metrics.sync(self._folder)
        except OSError as error:
            self._give_up(metrics.FILE_NAME, error, _JsonLines.consequence)

    def show(self, record: Mapping[str, Any]) -> None:
        """Moves the live line without a record on disk.

        Args:
            record: the values that changed, such as `env_steps` and `wall_s`.
        """
        # If no episode ended, the last known return stays on the line.
        self._latest |= {name: value for name, value in record.items() if value is not None}
        if self._display is None:
            return
        now_s = self._latest.get("wall_s")
        if now_s is not None:
            self._moments.append({"wall_s": now_s, "env_steps": self._latest["env_steps"]})
            self._start_s = now_s if math.isnan(self._start_s) else self._start_s
            while len(self._moments) > 2 and self._moments[1]["wall_s"] <= (self._start_s + now_s) / 2:
                self._moments.popleft()
            if len(self._moments) > _MOST_MOMENTS:
                self._moments = collections.deque(itertools.islice(self._moments, 0, None, 2))
        since = self._moments[0] if self._moments else {}
        line = displays.progress_line(self._latest, self.title, self.total_steps, since, self.members)
        self._print(lambda display: display.update(line))

    @contextlib.contextmanager
    def waiting(self, doing: str) -> Iterator[None]:
        """Shows within the context what the run is doing, and for how many seconds."""
        if self._display is None:
            yield
            return
        started_s, over = time.monotonic(), threading.Event()

        def show() -> None:
            while not over.is_set():
                shown = (self.title, 1), (f"{doing}, {time.monotonic() - started_s:.0f} s", 0)
                self._print(operator.methodcaller("update", displays.Line(shown)))
                over.wait(1.0)

        shower = threading.Thread(target=show, name="live line", daemon=True)
        shower.start()
        try:
            yield
        finally:
            over.set()
            shower.join()

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


class _Sink(Protocol):
    """Writes records to one place; `consequence` completes the warning after a failure."""

    can_recover: bool
    consequence: str

    def write(self, record: metrics.Record) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    """Appends records to `metrics.jsonl`."""

    can_recover = True
    consequence = "and the records until it can be written again are lost"

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def write(self, record: metrics.Record) -> None:
        metrics.append(self._folder, record)

    def close(self) -> None:
        """Does nothing, as every line is written already."""


class _TensorBoard:
    """Writes scalars as TensorBoard events.

    It uses the file writer below tensorboardX's `SummaryWriter`, which hands events to a thread: once that thread has
    died on a full disk, all further calls would wait for ever.
    """

    can_recover = False
    consequence = f"without further events; {metrics.FILE_NAME} has them all"

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, record: metrics.Record) -> None:
        from tensorboardX.proto import event_pb2, summary_pb2

        if self._writer is None:
            self._open(event_pb2)
        values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.scalars(record)]
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
            kept = metrics.read(self._folder)
            # Tells TensorBoard to forget events of an earlier session after the step at which this one begins.
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(event_pb2.Event(step=kept[-1]["env_steps"] + 1 if kept else 0, session_log=start))

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())
        self._writer.flush()
