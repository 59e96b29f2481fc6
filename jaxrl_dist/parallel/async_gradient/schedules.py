"""In which order the work of asynchronous members arrives: in turn, as it comes, by a virtual clock, or as recorded.

Every worker is given new parameters in answer to its gradient, so the order of arrivals is all that a run needs to be
repeated bit for bit.
"""

import abc
import queue
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from jaxrl_dist.errors import UsageError, given

_POLL_S = 0.1
AtWork = dict[int, futures.Future[Any]]


class Schedule(abc.ABC):
    """Chooses whose work is next; most take note of a part of what happens."""

    def __init__(self, num_workers: int) -> None:
        # A number of each worker, and one more: what a checkpoint holds.
        self._state = np.zeros(num_workers + 1)

    @abc.abstractmethod
    def next(self, at_work: AtWork, check: Callable[[], None]) -> int:
        """Returns one of the workers that are at work; `check` is called while it waits.

        Asked again before `took`, it is the same."""

    def took(self, worker: int) -> None:  # noqa: B027
        """Takes note that what this worker sent has been taken: it was its turn."""

    def answered(self, worker: int, number: int) -> None:  # noqa: B027
        """Takes note that a worker begins its unroll of that number."""

    def came(self, worker: int) -> None:  # noqa: B027
        """Takes note, in any thread, that a worker's work is there."""

    def state(self) -> np.ndarray:
        """Returns what a checkpoint holds of it, f64 [W + 1]."""
        return self._state.copy()

    def load(self, state: np.ndarray) -> None:
        """Takes up what a checkpoint held."""
        self._state = np.array(state)


class RoundRobin(Schedule):
    """Each worker in turn, without those that wait for an update."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self._num_workers = num_workers
        self._state[-1] = -1

    def next(self, at_work: AtWork, check: Callable[[], None]) -> int:
        del check
        turns = ((int(self._state[-1]) + i) % self._num_workers for i in range(1, self._num_workers + 1))
        return next(worker for worker in turns if worker in at_work)

    def took(self, worker: int) -> None:
        self._state[-1] = worker


class Free(Schedule):
    """The first that comes."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self._come: queue.SimpleQueue[int] = queue.SimpleQueue()

    def next(self, at_work: AtWork, check: Callable[[], None]) -> int:
        while True:
            try:
                return self._come.get(timeout=_POLL_S)
            except queue.Empty:
                check()

    def came(self, worker: int) -> None:
        self._come.put(worker)


class VirtualClock(Schedule):
    """The worker that would be the first, if workers took as long as they are said to take.

    Its state are the times at which each finishes, and the present one.
    """

    def __init__(self, durations: Sequence[float], jitter: float, seed: int) -> None:
        """Starts at time 0.

        Args:
            durations: of an unroll and its gradient, by worker, in any unit.
            jitter: deviation of the logarithm of each duration.
            seed: of the jitter.
        """
        super().__init__(len(durations))
        self._durations, self._jitter, self._seed = durations, jitter, seed

    def next(self, at_work: AtWork, check: Callable[[], None]) -> int:
        del check
        return min(at_work, key=lambda worker: (self._state[worker], worker))

    def took(self, worker: int) -> None:
        self._state[-1] = self._state[worker]

    def answered(self, worker: int, number: int) -> None:
        spread = np.random.default_rng([self._seed, worker, number]).normal() * self._jitter
        self._state[worker] = self._state[-1] + self._durations[worker] * np.exp(spread)


class EndOfLog(Exception):  # noqa: N818
    """All that was recorded has come."""


class Recorded(Schedule):
    """As a run's event log says."""

    def __init__(self, workers: Sequence[int], num_workers: int) -> None:
        super().__init__(num_workers)
        self._workers = workers

    def next(self, at_work: AtWork, check: Callable[[], None]) -> int:
        del check
        position = int(self._state[-1])
        if position == len(self._workers):
            raise EndOfLog
        worker = self._workers[position]
        if worker not in at_work:
            raise ValueError(f"event {position}: worker {worker} was not at work; the log is of another run")
        return worker

    def took(self, worker: int) -> None:
        self._state[-1] += 1


def make(config: Any, num_workers: int, seed: int) -> Schedule:
    """Makes the schedule of the layout's settings; `seed` is that of the jitter."""
    if config.schedule == "virtual":
        return VirtualClock(parse_durations(config.durations, num_workers), config.jitter, seed)
    return Free(num_workers) if config.schedule == "free" else RoundRobin(num_workers)


def parse_durations(text: str, num_workers: int) -> list[float]:
    """Reads the durations of workers, such as "1,1,10": they are repeated over all.

    Raises:
        UsageError: they are not positive numbers, or more than the workers.
    """
    try:
        times = [float(word) for word in text.split(",")]
    except ValueError:
        times = []
    if not times or min(times) <= 0 or not np.isfinite(times).all() or len(times) > num_workers:
        raise UsageError(
            given("layout.durations", text), f": expected at most {num_workers} positive numbers, as in 1,1,10"
        )
    return [times[worker % len(times)] for worker in range(num_workers)]
