"""The workers of an asynchronous run and their server while they are at work: takes gradients, and answers each."""

import functools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import learner as learners
from jaxrl_dist.envs import base as envs
from jaxrl_dist.parallel import schedules, server, worker

_POLL_S = 0.1
_MOST_THREADS = 64
_BROKEN_IN_A_ROW = 10
_AHEAD = 3
_CLOSE_WITHIN_S = 5.0
FRESH, AT_WORK, WAITING = range(3)


class Event(NamedTuple):
    """A gradient that arrived.

    Attributes:
        worker: whose.
        verdict: what became of it, in NumPy.
        sums: f64, of its episodes and of the update's metrics, 0 where there was none, as `server.pack` orders them.
    """

    worker: int
    verdict: server.Verdict
    sums: np.ndarray


class Crowd:
    """Workers at work.

    Attributes:
        learner: `LearnerState`, leaves [...], of the server.
        served: `server.Server`.
        waiting: workers that are answered when the update that their gradient is part of has been made.
    """

    def __init__(
        self,
        workers: Sequence[worker.Worker],
        schedule: schedules.Schedule,
        receive: Callable[..., Any],
        learner: learners.LearnerState,
        served: server.Server,
        answers_at_once: bool,
    ) -> None:
        """Takes up a state; nobody is at work yet.

        Args:
            workers: all of them.
            schedule: says whose gradient is next.
            receive: (learner, served, `worker.Sent`, progress) -> (learner, served, what `server.pack` returns).
            learner: leaves [...].
            served: state of the server beside it.
            answers_at_once: whether every gradient is answered whatever becomes of it, as each makes an update.
        """
        self.learner, self.served = learner, served
        self._workers, self._schedule, self._receive = workers, schedule, receive
        self._answers_at_once = answers_at_once
        self._at_work: dict[int, futures.Future[worker.Sent]] = {}
        self.waiting: list[int] = []
        self._arrived: list[tuple[int, Any]] = []
        self._broken = 0
        threads = min(len(workers), _MOST_THREADS)
        self._pool = _Threads(threads) if threads > 1 else None

    def resume(self, index: int, sent: worker.Sent) -> None:
        """Takes up a gradient that had not arrived when it was saved."""
        self._is_at_work(index, _done(sent))

    def answer(self, index: int, progress: float) -> None:
        """Sends a worker to work with the newest parameters."""
        state, one = self.learner, self._workers[index]
        held = worker.Held(state.params, state.target_network, state.updates, np.float32(progress))
        self._schedule.answered(index, one.number)
        self._is_at_work(index, self._pool.submit(one.work, held) if self._pool else _done(one.work(held)))

    def event(self, iteration: int, total: int, check: Callable[[], None]) -> None:
        """Takes the next gradient, judges it, and answers.

        Args:
            iteration: its number.
            total: of all.
            check: called while waiting; what it raises is raised here, and no gradient was taken.

        Raises:
            envs.EnvironmentFault: an environment hangs.
        """
        check()
        look = functools.partial(self._look, check)
        index = self._schedule.next(self._at_work, look)
        while not (self._at_work[index].done() or futures.wait([self._at_work[index]], _POLL_S).done):
            look()
        sent = self._at_work.pop(index).result()
        progress = np.float32(iteration) / np.float32(total)
        self.learner, self.served, packed = self._receive(self.learner, self.served, sent, progress)
        self._arrived.append((index, packed))
        answered = [index] if self._answers_at_once else self._whom_to_answer(index, packed)
        for each in answered:
            self.answer(each, (iteration + 1) / total)
        if len(self._arrived) > _AHEAD:
            # What is not looked at is not waited for: without this the host would run ahead without end.
            jax.block_until_ready(self._arrived[-_AHEAD][1])

    def take(self) -> list[Event]:
        """Returns the events since the last call.

        Raises:
            FloatingPointError: gradients go on being not finite.
        """
        events = [Event(index, *server.unpack(packed)) for index, packed in self._arrived]
        self._arrived = []
        for event in events:
            bad = event.verdict.broken or event.verdict.reverted
            self._broken = self._broken + 1 if bad else 0
            if self._broken >= _BROKEN_IN_A_ROW * len(self._workers):
                raise FloatingPointError(
                    f"{self._broken} gradients in a row were not finite, the last of worker {event.worker}; a smaller "
                    "--learner.learning_rate may help"
                )
        return events

    def warm(self, check: Callable[[], None]) -> None:
        """Waits until every worker has sent a gradient: everything is compiled then.

        Raises:
            Exception: what a worker raised, or `check`.
        """
        while futures.wait(self._at_work.values(), _POLL_S).not_done:
            self._look(check)
        for future in self._at_work.values():
            future.result()

    def rest(self) -> tuple[list[worker.Sent | None], list[int]]:
        """Waits until every worker has sent its gradient, but for those that a fault holds.

        Returns:
            Of each worker its gradient, None where there is none, and what it is to do when the run goes on: `AT_WORK`
            (it has sent), `WAITING` (for an update), or `FRESH` (begin its unroll anew).
        """
        left = dict(self._at_work)
        while left := {i: future for i, future in left.items() if not future.done() and not self._hangs(i)}:
            futures.wait(left.values(), _POLL_S)
        arrived = {i: future for i, future in self._at_work.items() if future.done() and future.exception() is None}
        workers = range(len(self._workers))
        sent = [arrived[i].result() if i in arrived else None for i in workers]
        return sent, [AT_WORK if i in arrived else WAITING if i in self.waiting else FRESH for i in workers]

    def close(self) -> None:
        """Lets the threads go, but for those that an environment holds."""
        if self._pool is not None:
            self._pool.close()
        futures.wait(self._at_work.values(), _CLOSE_WITHIN_S)
        for one in self._workers:
            one.close()

    def _is_at_work(self, index: int, future: futures.Future[worker.Sent]) -> None:
        self._at_work[index] = future
        future.add_done_callback(lambda _: self._schedule.came(index))

    def _hangs(self, index: int) -> bool:
        try:
            self._workers[index].check()
        except envs.EnvironmentFault:
            return True
        return False

    def _look(self, check: Callable[[], None]) -> None:
        check()
        for one in self._workers:
            one.check()

    def _whom_to_answer(self, index: int, packed: Any) -> list[int]:
        """Lets a worker wait until the update that its gradient is part of has been made."""
        verdict, _ = server.unpack(packed)
        if not verdict.taken:
            return [index]
        self.waiting.append(index)
        if not (verdict.applied or verdict.reverted):
            return []
        answered, self.waiting = self.waiting, []
        return answered


class _Threads:
    """A few threads that work off calls; the process does not wait for one that an environment holds."""

    def __init__(self, count: int) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._run, name=f"worker {number}", daemon=True).start()

    def submit(self, call: Callable[[Any], worker.Sent], held: worker.Held) -> futures.Future[worker.Sent]:
        future: futures.Future[worker.Sent] = futures.Future()
        self._calls.put((future, call, held))
        return future

    def close(self) -> None:
        for _ in range(self._count):
            self._calls.put(None)

    def _run(self) -> None:
        while (job := self._calls.get()) is not None:
            future, call, held = job
            try:
                future.set_result(call(held))
            except BaseException as error:
                future.set_exception(error)


def _done(sent: worker.Sent) -> futures.Future[worker.Sent]:
    future: futures.Future[worker.Sent] = futures.Future()
    future.set_result(sent)
    return future
