"""The workers of an asynchronous run and their server while at work: takes what they send, and answers each."""

import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import precision
from jaxrl_dist.parallel.async_gradient import programs, schedules, server, shared_replay, worker

_POLL_S = 0.1
_MOST_THREADS = 64
_BROKEN_IN_A_ROW = 10
_AHEAD = 3
_CLOSE_WITHIN_S = 5.0
FRESH, AT_WORK, WAITING, HELD_BACK = range(4)


class Event(NamedTuple):
    """Work that arrived.

    Attributes:
        worker: whose.
        verdict: what became of its gradient, in NumPy; None of an unroll alone.
        sums: f64, of its episodes and of the update's metrics, 0 where there was none, as `server.pack` orders them;
            of an unroll alone without the metrics.
    """

    worker: int
    verdict: server.Verdict | None
    sums: np.ndarray


class Crowd:
    """Workers at work.

    Attributes:
        learner: `LearnerState`, leaves [...], of the server.
        served: `server.Server`.
        waiting: workers that are answered when the update that their gradient is part of has been made.
        held_back: workers that are answered when as much as they ask for has been played, or learned.
        void: workers at work whose gradient is of parameters that were rolled back.
        broken: gradients in a row that were not finite.
        versions: what the server can be rolled back to.
        store: of shared replays, None where each worker has its own.
        events: how many there were, of the whole run.
    """

    def __init__(
        self,
        workers: Sequence[worker.Worker],
        schedule: schedules.Schedule,
        receive: Callable[..., Any],
        learner: learners.LearnerState,
        served: server.Server,
        answers_at_once: bool,
        versions: server.Versions,
        store: shared_replay.Store | None,
        events: int,
    ) -> None:
        """Takes up a state; nobody is at work yet.

        Args:
            workers: all of them, those that play first.
            schedule: says whose gradient is next.
            receive: (learner, served, `programs.Sent`, progress) -> (learner, served, what `server.pack` returns).
            learner: leaves [...].
            served: state of the server beside it.
            answers_at_once: whether every gradient is answered whatever becomes of it, as each makes an update.
            versions: that were kept.
            store: with what it holds.
            events: until now.
        """
        self.learner, self.served, self.versions, self.store, self.events = learner, served, versions, store, events
        self._workers, self._schedule, self._receive = workers, schedule, receive
        self._answers_at_once = answers_at_once and not versions.kept
        self._at_work: dict[int, futures.Future[programs.Work]] = {}
        self.waiting: list[int] = []
        self.held_back: set[int] = set()
        self._arrived: list[tuple[int, Any, Any]] = []
        self.broken, self._rollbacks = 0, 0
        self.void: set[int] = set()
        count = min(len(workers), _MOST_THREADS)
        # A single worker needs no thread, unless its environment may hang.
        on_host = any(one.role.make_environment is not None for one in workers)
        self._pool = Threads(count) if count > 1 or on_host else None

    def resume(self, index: int, work: programs.Work) -> None:
        """Takes up work that had not arrived when it was saved."""
        self._is_at_work(index, done(work))

    def answer(self, index: int, progress: float) -> None:
        """Sends a worker to work with the newest parameters, now, or once it may go on."""
        if not self._may_go(index):
            self.held_back.add(index)
            return
        state, one = self.learner, self._workers[index]
        held = programs.Held(state.params, state.target_network, state.updates, np.float32(progress))
        drawn = None
        if self.store is not None and one.role.learns and self.store.is_ready:
            place = index if one.role.env_ids is not None else index - len(self.store.inserted)
            drawn = self.store.draw(place, one.role.key, one.number, progress)
        self._schedule.answered(index, one.number)
        self._is_at_work(index, self._pool.submit(one.work, held, drawn) if self._pool else done(one.work(held, drawn)))

    def iterate(self, iteration: int, total: int, check: Callable[[], None]) -> None:
        """Takes what comes up to the next unroll, with that, judges gradients, and answers.

        Args:
            iteration: its number.
            total: of all.
            check: called while waiting; what it raises is raised here, and no unroll was taken.

        Raises:
            envs.EnvironmentFault: an environment hangs.
            FloatingPointError: gradients go on being not finite.
        """
        while not self._take_next(iteration, total, check):
            pass

    def take(self) -> tuple[list[Event], int, FloatingPointError | None]:
        """Returns the events since the last call, how often the server went back to an earlier version, and a fault.

        The fault is that gradients go on being not finite where there is no version to go back to.
        """
        events, fault = [], None
        for index, packed, episodes in self._arrived:
            if packed is None:
                events.append(Event(index, None, np.asarray(server.pack_episodes(episodes), np.float64)))
            else:
                events.append(Event(index, *server.unpack(packed)))
        self._arrived = []
        if not self.versions.kept:
            for event in events:
                if event.verdict is not None and self._goes_on_being_broken(event.verdict):
                    fault = self._broken_gradients(event.worker)
        rollbacks, self._rollbacks = self._rollbacks, 0
        return events, rollbacks, fault

    def warm(self, check: Callable[[], None]) -> None:
        """Waits until every worker has sent something: everything is compiled then.

        Raises:
            Exception: what a worker raised, or `check`.
        """
        while futures.wait(self._at_work.values(), _POLL_S).not_done:
            self._look(check)
        for future in self._at_work.values():
            future.result()

    def rest(self) -> tuple[list[programs.Work | None], list[int]]:
        """Waits until every worker has sent its work, but for those that a fault holds.

        Returns:
            Of each worker its work, None where there is none, and what it is to do when the run goes on: `AT_WORK` (it
            has sent), `WAITING` (for an update), `HELD_BACK`, or `FRESH` (begin anew).
        """
        left = dict(self._at_work)
        while left := {i: future for i, future in left.items() if not future.done() and not self._hangs(i)}:
            futures.wait(left.values(), _POLL_S)
        arrived = {i: future for i, future in self._at_work.items() if future.done() and future.exception() is None}
        workers = range(len(self._workers))
        status = dict.fromkeys(workers, FRESH) | dict.fromkeys(arrived, AT_WORK)
        status |= dict.fromkeys(self.waiting, WAITING) | dict.fromkeys(self.held_back, HELD_BACK)
        return [self._sent_by(i) if i in arrived else None for i in workers], [status[i] for i in workers]

    def close(self) -> None:
        """Lets the threads go, but for those that an environment holds."""
        if self._pool is not None:
            self._pool.close(_CLOSE_WITHIN_S)
        for one in self._workers:
            one.close()

    def _take_next(self, iteration: int, total: int, check: Callable[[], None]) -> bool:
        """Takes the next work, and returns whether there was an unroll in it."""
        check()
        look = functools.partial(self._look, check)
        index = self._schedule.next(self._at_work, look)
        while not (self._at_work[index].done() or futures.wait([self._at_work[index]], _POLL_S).done):
            look()
        work, role = self._sent_by(index), self._workers[index].role
        self._at_work.pop(index)
        self._schedule.took(index)
        if index in self.void:
            self.void.remove(index)
            self._workers[index].forget()
        self.events += 1
        played = role.env_ids is not None
        if self.store is not None:
            if played:
                self.store.add(index, work.unroll)
            if role.learns and int(work.ring) >= 0:
                self.store.update(int(work.ring), work.indices, work.priorities)
        answered = self._serve(index, work, iteration, total) if role.learns else [index]
        if not role.learns:
            self._arrived.append((index, None, work.sent.episodes))
        # An iteration is an unroll: what its own worker does next belongs to the one after it.
        progress = (iteration + played) / total
        for each in answered:
            self.answer(each, progress)
        for each in sorted(self.held_back):
            if self._may_go(each):
                self.held_back.remove(each)
                self.answer(each, progress)
        return played

    def _sent_by(self, index: int) -> programs.Work:
        """Returns the work of one that is done; a gradient of parameters that were rolled back is void."""
        work = self._at_work[index].result()
        return programs.void(work) if index in self.void else work

    def _serve(self, index: int, work: programs.Work, iteration: int, total: int) -> list[int]:
        """Has the server judge a gradient, and returns the workers to answer."""
        progress = np.float32(iteration) / np.float32(total)
        self.learner, self.served, packed = self._receive(self.learner, self.served, work.sent, progress)
        self._arrived.append((index, packed, None))
        if len(self._arrived) > _AHEAD:
            # What is not looked at is not waited for: without this the host would run ahead without end.
            before = self._arrived[-_AHEAD]
            jax.block_until_ready((before[1], before[2]))
        if self._answers_at_once:
            return [index]
        verdict, _ = server.unpack(packed)
        if verdict.applied:
            self.versions.add(self.learner)
        if self.versions.kept and self._goes_on_being_broken(verdict):
            return self._roll_back(index)
        return self._whom_to_answer(index, verdict)

    def _roll_back(self, index: int) -> list[int]:
        """Goes on from the oldest version that was kept, or ends the run where that came to nothing before.

        Returns:
            The workers to answer: this one, and those whose gradients were lost.

        Raises:
            FloatingPointError: this is that version.
        """
        oldest = self.versions.back()
        if int(oldest.updates) == int(self.learner.updates):
            raise self._broken_gradients(index)
        self.learner, self.served, self.broken = oldest, server.emptied(self.served), 0
        self._rollbacks += 1
        self.void = set(self._at_work)
        for each, one in enumerate(self._workers):
            if each not in self.void:
                one.forget()
        answered, self.waiting = [index, *self.waiting], []
        return answered

    def _goes_on_being_broken(self, verdict: server.Verdict) -> bool:
        """Counts gradients that are not finite, and whether there were too many in a row; of no rows says nothing."""
        if not any(verdict[1:]):
            return False
        self.broken = self.broken + 1 if verdict.broken or verdict.reverted else 0
        return self.broken >= _BROKEN_IN_A_ROW * sum(one.role.learns for one in self._workers)

    def _broken_gradients(self, index: int) -> FloatingPointError:
        return FloatingPointError(
            f"{self.broken} gradients in a row were not finite, the last of worker {index}; a smaller "
            "--learner.learning_rate may help"
        )

    def _may_go(self, index: int) -> bool:
        """Says whether a worker apart need not wait for others to play, or to learn."""
        role = self._workers[index].role
        if self.store is None or (role.learns and role.env_ids is not None):
            return True
        return self.store.may_learn() if role.learns else self.store.may_play()

    def _is_at_work(self, index: int, future: futures.Future[programs.Work]) -> None:
        self._at_work[index] = future
        future.add_done_callback(lambda _: self._schedule.came(index))

    def _hangs(self, index: int) -> bool:
        try:
            self._workers[index].check()
        except errors.EnvironmentFault:
            return True
        return False

    def _look(self, check: Callable[[], None]) -> None:
        check()
        for one in self._workers:
            one.check()

    def _whom_to_answer(self, index: int, verdict: server.Verdict) -> list[int]:
        """Lets a worker wait until the update that its gradient is part of has been made."""
        if not verdict.taken:
            return [index]
        self.waiting.append(index)
        if not (verdict.applied or verdict.reverted):
            return []
        answered, self.waiting = self.waiting, []
        return answered


class Threads:
    """A few threads that work off calls; the process does not wait for one that an environment holds."""

    def __init__(self, count: int) -> None:
        """Starts so many threads."""
        self._as_precise = precision.of_this_thread()
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"worker {number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[..., programs.Work], *arguments: Any) -> futures.Future[programs.Work]:
        """Leaves a call to the next thread that is free; its future holds what it returns or raises."""
        future: futures.Future[programs.Work] = futures.Future()
        self._calls.put((future, call, arguments))
        return future

    def close(self, timeout_s: float) -> None:
        """Ends each thread when it is free, and waits so long: what is inside of JAX must not outlive Python."""
        for _ in self._threads:
            self._calls.put(None)
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until_s - time.monotonic(), 0.0))

    def _run(self) -> None:
        while (job := self._calls.get()) is not None:
            future, call, arguments = job
            try:
                with self._as_precise():
                    result = call(*arguments)
                future.set_result(result)
            except BaseException as error:
                future.set_exception(error)


def done(work: programs.Work) -> futures.Future[programs.Work]:
    """Returns the future of work that is there already."""
    future: futures.Future[programs.Work] = futures.Future()
    future.set_result(work)
    return future
