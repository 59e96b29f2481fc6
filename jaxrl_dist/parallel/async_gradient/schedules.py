"""In which order gradients of asynchronous workers arrive: in turn, as they come, by a virtual clock, or as recorded.

Every worker is given new parameters in answer to its gradient, so the order of arrivals is all that a run needs to be
repeated bit for bit.
"""

import queue
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, Protocol

import numpy as np

from jaxrl_dist.errors import UsageError

_POLL_S = 0.1


class Schedule(Protocol):
    """Chooses whose gradient is next."""

    def next(self, at_work: dict[int, futures.Future[Any]], check: Callable[[], None]) -> int:
        """Returns one of the workers that are at work; `check` is called while it waits.

        Asked again before `took`, it is the same."""

    def took(self, worker: int) -> None:
        """Takes note that what this worker sent has been taken: it was its turn."""

    def answered(self, worker: int, number: int) -> None:
        """Takes note that a worker begins its unroll of that number."""

    def came(self, worker: int) -> None:
        """Takes note, in any thread, that a worker's gradient is there."""

    def state(self) -> np.ndarray:
        """Returns what a checkpoint holds of it, f64 [W + 1]."""

    def load(self, state: np.ndarray) -> None:
        """Takes up what a checkpoint held."""


class RoundRobin:
    """Each worker in turn, without those that wait for an update."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers, self._last = num_workers, -1

    def next(self, at_work: dict[int, futures.Future[Any]], check: Callable[[], None]) -> int:
        del check
        turns = ((self._last + i) % self._num_workers for i in range(1, self._num_workers + 1))
        return next(worker for worker in turns if worker in at_work)

    def took(self, worker: int) -> None:
        self._last = worker

    def answered(self, worker: int, number: int) -> None:
        pass

    def came(self, worker: int) -> None:
        pass

    def state(self) -> np.ndarray:
        return np.asarray([*np.zeros(self._num_workers), self._last])

    def load(self, state: np.ndarray) -> None:
        self._last = int(state[-1])


class Free:
    """Whichever comes first."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._come: queue.SimpleQueue[int] = queue.SimpleQueue()

    def next(self, at_work: dict[int, futures.Future[Any]], check: Callable[[], None]) -> int:
        while True:
            try:
                return self._come.get(timeout=_POLL_S)
            except queue.Empty:
                check()

    def took(self, worker: int) -> None:
        pass

    def answered(self, worker: int, number: int) -> None:
        pass

    def came(self, worker: int) -> None:
        self._come.put(worker)

    def state(self) -> np.ndarray:
        return np.zeros(self._num_workers + 1)

    def load(self, state: np.ndarray) -> None:
        pass


class VirtualClock:
    """Whose gradient would be the first, if workers took as long as they are said to take."""

    def __init__(self, durations: Sequence[float], jitter: float, seed: int) -> None:
        """Starts at time 0.

        Args:
            durations: of an unroll and its gradient, by worker, in any unit.
            jitter: deviation of the logarithm of each duration.
            seed: of the jitter.
        """
        self._durations, self._jitter, self._seed = durations, jitter, seed
        self._finish, self._now = np.zeros(len(durations)), 0.0

    def next(self, at_work: dict[int, futures.Future[Any]], check: Callable[[], None]) -> int:
        del check
        return min(at_work, key=lambda worker: (self._finish[worker], worker))

    def took(self, worker: int) -> None:
        self._now = float(self._finish[worker])

    def answered(self, worker: int, number: int) -> None:
        spread = np.random.default_rng([self._seed, worker, number]).normal() * self._jitter
        self._finish[worker] = self._now + self._durations[worker] * np.exp(spread)

    def came(self, worker: int) -> None:
        pass

    def state(self) -> np.ndarray:
        return np.asarray([*self._finish, self._now])

    def load(self, state: np.ndarray) -> None:
        self._finish, self._now = np.array(state[:-1]), float(state[-1])


class EndOfLog(Exception):  # noqa: N818
    """All that was recorded has come."""


class Recorded:
    """As a run's event log says."""

    def __init__(self, workers: Sequence[int], num_workers: int) -> None:
        self._workers, self._num_workers, self._position = workers, num_workers, 0

    def next(self, at_work: dict[int, futures.Future[Any]], check: Callable[[], None]) -> int:
        del check
        if self._position == len(self._workers):
            raise EndOfLog
        worker = self._workers[self._position]
        if worker not in at_work:
            raise ValueError(f"event {self._position}: worker {worker} was not at work; the log is of another run")
        return worker

    def took(self, worker: int) -> None:
        self._position += 1

    def answered(self, worker: int, number: int) -> None:
        pass

    def came(self, worker: int) -> None:
        pass

    def state(self) -> np.ndarray:
        return np.asarray([*np.zeros(self._num_workers), self._position])

    def load(self, state: np.ndarray) -> None:
        self._position = int(state[-1])


def make(name: str, num_workers: int, durations: str, jitter: float, seed: int) -> Schedule:
    """Makes the schedule of a name: `round_robin`, `free` or `virtual`, which takes durations, jitter and its seed."""
    if name == "virtual":
        return VirtualClock(parse_durations(durations, num_workers), jitter, seed)
    return Free(num_workers) if name == "free" else RoundRobin(num_workers)


def parse_durations(text: str, num_workers: int) -> list[float]:
    """Reads the durations of workers, such as "1,1,10": they are repeated over all.

    Raises:
        UsageError: they are not positive numbers, or more than the workers.
    """
    try:
        given = [float(word) for word in text.split(",")]
    except ValueError:
        given = []
    if not given or min(given) <= 0 or not np.isfinite(given).all() or len(given) > num_workers:
        raise UsageError(f"--layout.durations={text}: expected at most {num_workers} positive numbers, as in 1,1,10")
    return [given[worker % len(given)] for worker in range(num_workers)]
