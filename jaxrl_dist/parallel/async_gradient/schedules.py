"""Orders the work of asynchronous members: each in turn, as it comes, by a virtual clock, or as recorded.

Every worker is given new parameters in answer to its gradient, so a run with the same order repeats bit for bit.
"""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_dist.errors import UsageError, given


class Schedule(abc.ABC):
    """Says whose work is next.

    Attributes:
        state: f64 [W + 1], a number for each worker and one for all, which a checkpoint holds.
    """

    def __init__(self, num_workers: int) -> None:
        self.state = np.zeros(num_workers + 1)

    @abc.abstractmethod
    def next(self, at_work: Sequence[int]) -> Sequence[int]:
        """Returns the workers to wait for, of those at work: the first of them that is done is next.

        Returns the same until `took` is called."""

    def took(self, worker: int) -> None:  # noqa: B027
        """Takes note that this worker's work has been taken."""

    def answered(self, worker: int, number: int) -> None:  # noqa: B027
        """Takes note that a worker begins its unroll of that number."""


class RoundRobin(Schedule):
    """Takes the work of each worker in turn, but for workers that wait for an update."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self.state[-1] = -1

    def next(self, at_work: Sequence[int]) -> Sequence[int]:
        following = int(self.state[-1]) + 1
        return [min(at_work, key=lambda worker: (worker - following) % (len(self.state) - 1))]

    def took(self, worker: int) -> None:
        self.state[-1] = worker


class Free(Schedule):
    """Takes work as it comes."""

    def next(self, at_work: Sequence[int]) -> Sequence[int]:
        return at_work


class VirtualClock(Schedule):
    """Takes the work that would come first if workers took the durations that the settings give.

    The state holds the time at which each worker finishes, and the present time.
    """

    def __init__(self, durations: Sequence[float], jitter: float, seed: int) -> None:
        """Starts at time 0.

        Args:
            durations: time that each worker takes for an unroll and its gradient, in any unit.
            jitter: standard deviation of the logarithm of each duration.
            seed: seed of the jitter.
        """
        super().__init__(len(durations))
        self._durations, self._jitter, self._seed = durations, jitter, seed

    def next(self, at_work: Sequence[int]) -> Sequence[int]:
        return [min(at_work, key=lambda worker: (self.state[worker], worker))]

    def took(self, worker: int) -> None:
        self.state[-1] = self.state[worker]

    def answered(self, worker: int, number: int) -> None:
        spread = np.random.default_rng([self._seed, worker, number]).normal() * self._jitter
        self.state[worker] = self.state[-1] + self._durations[worker] * np.exp(spread)


class EndOfLog(Exception):  # noqa: N818
    """The recorded events are used up."""


class Recorded(Schedule):
    """Takes work in the order of a run's event log."""

    def __init__(self, workers: Sequence[int], num_workers: int) -> None:
        super().__init__(num_workers)
        self._workers = workers

    def next(self, at_work: Sequence[int]) -> Sequence[int]:
        position = int(self.state[-1])
        if position == len(self._workers):
            raise EndOfLog
        worker = self._workers[position]
        if worker not in at_work:
            raise UsageError(f"event {position}: worker {worker} was not at work; the log is of another run")
        return [worker]

    def took(self, worker: int) -> None:
        self.state[-1] += 1


def make(config: Any, num_workers: int, seed: int) -> Schedule:
    """Makes the schedule that the layout's settings name; `seed` is the seed of the jitter."""
    if config.schedule == "virtual":
        return VirtualClock(parse_durations(config.durations, num_workers), config.jitter, seed)
    return Free(num_workers) if config.schedule == "free" else RoundRobin(num_workers)


def parse_durations(text: str, num_workers: int) -> list[float]:
    """Reads the durations of workers, such as "1,1,10", and repeats them for all workers.

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
