"""Drives two workers (see `worker.py`) in interleaved rounds A B B A … and compares their speed.

Neighbouring chunks share the noise of the machine, so the ratio of each round is far steadier than either speed. Only
one side computes at a time: the other waits on its input, but for actors of ours, which play an unroll or two ahead.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import queue
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple


class WorkerError(RuntimeError):
    """A worker died, fell silent, or said something that is not in the protocol."""


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a pair: a name for the table, the command, and what its environment adds or replaces."""

    name: str
    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...] = ()


class Chunk(NamedTuple):
    """One timed chunk: transitions, and the worker's own seconds."""

    steps: int
    seconds: float


class Ratio(NamedTuple):
    """Median of the rounds' ratios and its bootstrap 95 % interval."""

    median: float
    low: float
    high: float


class Result(NamedTuple):
    """Holds the measurements of a pair.

    Attributes:
        chunks_a: chunks of side A, one per round; `chunks_b` likewise.
        rate_a: median steps per second of side A; `rate_b` likewise.
        ratio: A over B, per round.
        ready_a: what A said when it was ready, with `ready_s` added, the seconds from its launch; `ready_b` likewise.
    """

    chunks_a: list[Chunk]
    chunks_b: list[Chunk]
    rate_a: float
    rate_b: float
    ratio: Ratio
    ready_a: dict[str, Any]
    ready_b: dict[str, Any]


class Worker:
    """A running worker; use as a context manager, so that it never outlives its pair."""

    def __init__(self, side: Side, ready_timeout_s: float = 600.0):
        """Starts the process and waits until it is compiled and warm.

        Raises:
            WorkerError: it cannot be started, ended, was not ready in time, or broke the protocol.
        """
        self._name = side.name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._lines: queue.Queue[bytes] = queue.Queue()
        started = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                side.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **dict(side.environ)},
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise WorkerError(f"{side.name}: cannot start {side.argv[0]}: {error.strerror}") from error
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.ready = self._receive("ready", ready_timeout_s)
        except WorkerError:
            self.close()
            raise
        self.ready["ready_s"] = round(time.perf_counter() - started, 3)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def train_chunk(self, timeout_s: float = 300.0) -> Chunk:
        """Trains one chunk.

        Raises:
            WorkerError: the worker ended, was silent for `timeout_s`, or gave no positive numbers.
        """
        started = time.perf_counter()
        record = self._ask("go", "steps", timeout_s)
        wall_s = time.perf_counter() - started
        chunk = Chunk(int(record["steps"]), float(record.get("seconds", 0.0)))
        if chunk.steps <= 0 or not 0.0 < chunk.seconds <= wall_s + 0.05:
            raise WorkerError(f"{self._name}: {record} is not a chunk that took {wall_s:.3f} s here")
        return chunk

    def evaluate(self, timeout_s: float = 300.0) -> float:
        """Returns the mean return of evaluation episodes.

        Raises:
            WorkerError: as `train_chunk`, or the worker cannot evaluate.
        """
        return float(self._ask("evaluate", "return", timeout_s)["return"])

    def peak_bytes(self, timeout_s: float = 60.0) -> int:
        """Returns the most bytes that the worker's first device held at once, 0 where it does not say.

        Raises:
            WorkerError: as `train_chunk`.
        """
        return int(self._ask("memory", "peak_bytes", timeout_s)["peak_bytes"])

    def close(self) -> None:
        """Asks the worker to quit, and kills it with its children if it has not within 5 s."""
        with contextlib.suppress(WorkerError, subprocess.TimeoutExpired):
            self._send("quit")
            self._process.wait(5.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(5.0)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put(b"")

    def _send(self, command: str) -> None:
        try:
            self._process.stdin.write(command.encode() + b"\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        except (BrokenPipeError, ValueError) as error:
            raise WorkerError(self._describe("does not listen any more")) from error

    def _ask(self, command: str, field: str, timeout_s: float) -> dict[str, Any]:
        self._send(command)
        return self._receive(field, timeout_s)

    def _receive(self, field: str, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise WorkerError(self._describe(f"said nothing for {timeout_s:g} s")) from None
        if not line:
            self._lines.put(b"")
            self._process.wait(5.0)
            raise WorkerError(self._describe(f"ended with code {self._process.returncode}"))
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or field not in record:
            raise WorkerError(self._describe(f"answered {line!r}, which has no {field!r}"))
        return record

    def _describe(self, fact: str) -> str:
        self._errors.seek(0)
        tail = self._errors.read().decode(errors="replace").strip().splitlines()[-5:]
        return "\n  ".join([f"{self._name} {fact}; the end of its standard error:", *(tail or ["(nothing)"])])


def alive(started: Worker | WorkerError) -> Worker:
    """Returns a worker of `in_turn`.

    Raises:
        WorkerError: it is the error that kept the worker from starting.
    """
    if isinstance(started, WorkerError):
        raise started
    return started


def in_turn(
    sides: Sequence[Side], starts: int = 1, ready_timeout_s: float = 600.0
) -> Generator[Worker | WorkerError, None, None]:
    """Starts workers, some at once, so that a machine of many cores compiles their programs side by side.

    Args:
        starts: workers that compile at once, and that keep their memory until the last of them was used.
        ready_timeout_s: time that each has to import, compile and warm up.

    Yields:
        Each worker in the order of the sides, or the error that kept it from starting.
    """

    def start(side: Side) -> Worker | WorkerError:
        try:
            return Worker(side, ready_timeout_s)
        except WorkerError as error:
            return error

    for first in range(0, len(sides), starts):
        with concurrent.futures.ThreadPoolExecutor(starts) as pool:
            workers = list(pool.map(start, sides[first : first + starts]))
        with contextlib.ExitStack() as stack:
            for worker in workers:
                if not isinstance(worker, WorkerError):
                    stack.enter_context(worker)
            yield from workers


def compare(
    a: Side, b: Side, rounds: int = 7, ready_timeout_s: float = 600.0, chunk_timeout_s: float = 300.0
) -> Result:
    """Times two workers against each other; even rounds run A before B, odd rounds B before A.

    Args:
        rounds: chunks of each side.
        ready_timeout_s: time that each worker has to import, compile and warm up; they do so one after the other.
        chunk_timeout_s: time that a chunk may take.

    Raises:
        ValueError: fewer than one round.
        WorkerError: a worker failed.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds} must be at least 1; use 7 or more for a claim")
    with Worker(a, ready_timeout_s) as worker_a, Worker(b, ready_timeout_s) as worker_b:
        chunks: dict[str, list[Chunk]] = collections.defaultdict(list)
        for index in range(rounds):
            order = [("a", worker_a), ("b", worker_b)]
            for key, worker in order if index % 2 == 0 else reversed(order):
                chunks[key].append(worker.train_chunk(chunk_timeout_s))
    rates = {key: [chunk.steps / chunk.seconds for chunk in side] for key, side in chunks.items()}
    ratio = bootstrap_ratio([x / y for x, y in zip(rates["a"], rates["b"], strict=True)])
    medians = {key: statistics.median(side) for key, side in rates.items()}
    return Result(chunks["a"], chunks["b"], medians["a"], medians["b"], ratio, worker_a.ready, worker_b.ready)


def bootstrap_ratio(ratios: Sequence[float], resamples: int = 10_000, seed: int = 0) -> Ratio:
    """Estimates the median of ratios with a percentile bootstrap 95 % interval.

    Args:
        ratios: one per round.

    Source: Efron and Tibshirani 1993, chapter 13 (percentile interval).
    """
    chance = random.Random(seed)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(resamples))
    return Ratio(statistics.median(ratios), medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1])


def seconds_to(
    side: Side, threshold: float, limit_steps: int, consecutive: int = 3, ready_timeout_s: float = 600.0
) -> tuple[float, int] | None:
    """Trains one worker from the start until evaluations reach a return and stay there; one alone may be luck.

    Args:
        threshold: mean evaluation return to reach; the evaluations themselves are not timed.
        limit_steps: steps after which it is given up.
        consecutive: evaluations in a row, one after each chunk, that must reach it.

    Returns:
        Seconds of training and environment steps, or `None` where `limit_steps` were not enough.
    """
    seconds, steps, good = 0.0, 0, 0
    with Worker(side, ready_timeout_s) as worker:
        while steps < limit_steps:
            chunk = worker.train_chunk()
            seconds, steps = seconds + chunk.seconds, steps + chunk.steps
            good = good + 1 if worker.evaluate() >= threshold else 0
            if good == consecutive:
                return seconds, steps
    return None


def machine() -> dict[str, Any]:
    """Describes the machine: processor, cores that this process may use, load, system."""
    model = "unknown"
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
    }


def append_record(path: pathlib.Path, record: dict[str, Any]) -> None:
    """Appends one JSON line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
