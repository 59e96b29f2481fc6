"""The workers of an asynchronous run and their server while they are at work: takes gradients, and answers each."""

import struct
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import learner as learners
from jaxrl_dist.parallel import schedules, server, worker
from jaxrl_dist.types import Array

_POLL_S = 0.1
_MOST_THREADS = 64
_BROKEN_IN_A_ROW = 10
EVENT = struct.Struct("<HHB")
FRESH, AT_WORK, WAITING = range(3)


class Event(NamedTuple):
    """What arrived and what became of it.

    Attributes:
        worker: whose gradient.
        age: updates since its parameters.
        sent: what it sent.
        verdict: bool each.
        metrics: of the update, where there was one.
    """

    worker: int
    age: int
    sent: worker.Sent
    verdict: server.Verdict
    metrics: dict[str, Array]

    def encode(self) -> bytes:
        """Returns its five bytes in a log: worker, age and verdict."""
        flags = sum(int(flag) << bit for bit, flag in enumerate(self.verdict))
        return EVENT.pack(self.worker, min(self.age, 2**16 - 1), flags)


class Crowd:
    """Workers at work.

    Attributes:
        learner: `LearnerState`, leaves [...], of the server.
        served: `server.Server`.
        updates: that were made, as the learner counts them.
        sent: of every worker the last gradient that has not arrived, None of one that waits or was never answered.
        waiting: workers whose gradients wait for others.
    """

    def __init__(
        self,
        workers: Sequence[worker.Worker],
        schedule: schedules.Schedule,
        receive: Callable[..., Any],
        learner: learners.LearnerState,
        served: server.Server,
    ) -> None:
        """Takes up a state; nobody is at work yet."""
        self.learner, self.served, self.updates = learner, served, int(np.asarray(learner.updates))
        self.waiting: list[int] = []
        self._workers, self._schedule, self._receive = workers, schedule, receive
        self._given = [0] * len(workers)
        self._at_work: dict[int, futures.Future[worker.Sent]] = {}
        self._broken = 0
        threads = min(len(workers), _MOST_THREADS)
        self._pool = futures.ThreadPoolExecutor(threads, thread_name_prefix="worker")

    def resume(self, index: int, sent: worker.Sent | None, given: int) -> None:
        """Takes up a gradient that had not arrived when it was saved, of parameters with so many updates."""
        self._given[index] = given
        if sent is None:
            self.waiting.append(index)
        else:
            self._at_work[index] = futures.Future()
            self._at_work[index].set_result(sent)

    def answer(self, index: int, progress: float) -> None:
        """Sends a worker to work with the newest parameters."""
        state = self.learner
        held = worker.Held(state.params, state.target_network, state.updates, np.float32(progress))
        self._given[index] = self.updates
        self._schedule.answered(index, self._workers[index].number)
        self._at_work[index] = self._pool.submit(self._workers[index].work, held)

    def event(self, iteration: int, total: int, check: Callable[[], None]) -> Event:
        """Takes the next gradient, judges it, and answers.

        Args:
            iteration: its number.
            total: of all.
            check: called while waiting; what it raises is raised here, and no gradient was taken.

        Raises:
            envs.EnvironmentFault: an environment hangs.
            FloatingPointError: gradients go on being not finite.
        """

        def look() -> None:
            check()
            for one in self._workers:
                one.check()

        check()
        index = self._schedule.next(self._at_work, look)
        while not futures.wait([self._at_work[index]], _POLL_S).done:
            look()
        sent = self._at_work.pop(index).result()
        age = self.updates - self._given[index]
        progress = np.float32(iteration) / np.float32(total)
        self.learner, self.served, verdict, metrics = self._receive(
            self.learner, self.served, sent.gradient, np.int32(age), progress
        )
        verdict = server.Verdict(*jax.device_get(verdict))
        self._note(index, verdict, iteration)
        self.updates += int(verdict.applied)
        answered = [index]
        if verdict.taken:
            self.waiting.append(index)
            answered = []
        if verdict.applied or verdict.reverted:
            answered, self.waiting = self.waiting, []
        for each in answered:
            self.answer(each, (iteration + 1) / total)
        return Event(index, age, sent, verdict, metrics)

    def rest(self, check: Callable[[], None]) -> list[tuple[worker.Sent | None, int]]:
        """Waits until every worker has sent its gradient; returns these with the updates of their parameters."""
        while futures.wait(self._at_work.values(), _POLL_S).not_done:
            check()
            for one in self._workers:
                one.check()
        at_work = {index: future.result() for index, future in self._at_work.items()}
        return [(at_work.get(index), self._given[index]) for index in range(len(self._workers))]

    def close(self) -> None:
        """Lets the threads go, but for those that an environment holds."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        futures.wait(self._at_work.values(), 5.0)
        for one in self._workers:
            one.close()

    def _note(self, index: int, verdict: server.Verdict, iteration: int) -> None:
        self._broken = self._broken + 1 if verdict.broken or verdict.reverted else 0
        if self._broken >= _BROKEN_IN_A_ROW * len(self._workers):
            raise FloatingPointError(
                f"{self._broken} gradients in a row were not finite, the last of worker {index} at event {iteration}; "
                "a smaller --learner.learning_rate may help"
            )
