"""In which order the work of asynchronous members arrives: in turn, as it comes, by a virtual clock, or as recorded.

Every worker is given new parameters in answer to its gradient, so the order of arrivals is all that a run needs to be
repeated bit for bit.
"""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_dist.errors import UsageError, given


class Schedule(abc.ABC):
    """Says whose work is next; most take note of a part of what happens.

    Attributes:
        state: f64 [W + 1], a number of each worker, and one more: what a checkpoint holds of it.
    """

    def __init__(self, num_workers: int) -> None:
        self.state = np.zeros(num_workers + 1)

    @abc.abstractmethod
    def next(self, at_work: Sequence[int]) -> Sequence[int]:
        """Returns which of the workers at work it waits for: whichever of these is done first is next.

        Asked again before `took`, it is the same."""

    def took(self, worker: int) -> None:  # noqa: B027
        """Takes note that what this worker sent has been taken: it was its turn."""

    def answered(self, worker: int, number: int) -> None:  # noqa: B027
        """Takes note that a worker begins its unroll of that number."""


class RoundRobin(Schedule):
    """Each worker in turn, without those that wait for an update."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self.state[-1] = -1

    def next(self, at_work: Sequence[int]) -> Sequence[int]:
        following = int(self.state[-1]) + 1
        return [min(at_work, key=lambda worker: (worker - following) % (len(self.state) - 1))]

    def took(self, worker: int) -> None:
        self.state[-1] = worker


class Free(Schedule):
    """The first that comes."""

    def next(self, at_work: Sequence[int]) -> Sequence[int]:
        return at_work


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

    def next(self, at_work: Sequence[int]) -> Sequence[int]:
        return [min(at_work, key=lambda worker: (self.state[worker], worker))]

    def took(self, worker: int) -> None:
        self.state[-1] = self.state[worker]

    def answered(self, worker: int, number: int) -> None:
        spread = np.random.default_rng([self._seed, worker, number]).normal() * self._jitter
        self.state[worker] = self.state[-1] + self._durations[worker] * np.exp(spread)


class EndOfLog(Exception):  # noqa: N818
    """All that was recorded has come."""


class Recorded(Schedule):
    """As a run's event log says."""

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
