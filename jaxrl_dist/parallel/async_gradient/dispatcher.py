"""Takes the work that members of an asynchronous run send, hands it to the server, and answers each member."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.envs.host import hangs
from jaxrl_dist.parallel import precision
from jaxrl_dist.parallel.async_gradient import programs, schedules, server, shared_replay, worker

_POLL_S = 0.1
_MOST_THREADS = 64
_AHEAD = 3
# Tells a member how to go on when a run is resumed. WAITING and above are a queue: the first that waits has WAITING,
# the second WAITING + 1, and so on. Saved runs have these numbers.
HELD_BACK, FRESH, AT_WORK, PLAYED, WAITING = range(-1, 4)


class Event(NamedTuple):
    """Work that arrived.

    Attributes:
        worker: index of the worker that sent it.
        verdict: on its gradient, in NumPy; without a gradient, the verdict on one of no rows.
        sums: f64, of its episodes and then of the update's metrics, as `server.pack` orders them; 0 without episodes
            or an update. Without a gradient the metrics are missing.
    """

    worker: int
    verdict: server.Verdict
    sums: np.ndarray


class Dispatcher:
    """Members at work.

    Attributes:
        workers: all members; those that play come first.
        schedule: says whose work is next.
        server: judges gradients.
        replay: the shared replay; None where each worker has its own.
        events: number of events of the whole run.
        waiting: members that wait for the update that will contain their gradient.
        held_back: members that wait for the shared replay: for a sample that is due, or for learners to catch up.
        outdated: members whose parameters were rolled back; their gradients are dropped until they are answered.
    """

    def __init__(
        self,
        workers: Sequence[worker.Worker],
        schedule: schedules.Schedule,
        parameter_server: server.ParameterServer,
        replay: shared_replay.SharedReplay | None,
        events: int,
    ) -> None:
        """Takes over the state that the attributes describe; no member is at work yet."""
        self.workers, self.schedule, self.server, self.replay = workers, schedule, parameter_server, replay
        self.events, self._rollbacks = events, 0
        self.waiting: list[int] = []
        self.held_back: set[int] = set()
        self.outdated: set[int] = set()
        self._at_work: dict[int, futures.Future[programs.Work]] = {}
        self._arrived: list[tuple[int, Any]] = []
        count = min(len(workers), _MOST_THREADS)
        # A single worker needs no thread, unless its environment may hang.
        self._pool = Threads(count if count > 1 or any(one.may_hang for one in workers) else 0)

    def go_on(self, status: Sequence[int], pending: Sequence[programs.Work], progress: float) -> None:
        """Lets every member go on as its status says, see `rest`."""
        self.waiting = [index for index in np.argsort(status).tolist() if status[index] >= WAITING]
        self.held_back = {index for index, one in enumerate(status) if one == HELD_BACK}
        for index, (one, work) in enumerate(zip(status, pending, strict=True)):
            if one == FRESH:
                self.answer(index, progress)
            elif one in (AT_WORK, PLAYED):
                self._at_work[index] = done(work._replace(indices=None, priorities=None) if one == PLAYED else work)
        if not self._at_work:
            # After a fault there may be no work whose event would let those held back go on.
            self._answer([], progress)

    def answer(self, index: int, progress: float) -> None:
        """Gives a member the newest parameters and lets it work, at once or as soon as the shared replay permits."""
        state, one = self.server.learner, self.workers[index]
        if self.replay is not None and not self.replay.may_go(one.plays, one.learns):
            self.held_back.add(index)
            return
        if index in self.outdated:
            self.outdated.remove(index)
            one.forget()
        held = programs.Held(state.params, state.target_network, state.updates, np.float32(progress))
        sample = None
        if self.replay is not None and one.learns and self.replay.is_ready:
            sample = self.replay.draw(one.rank, one.number, one.key, progress)
        self.schedule.answered(index, one.number)
        self._at_work[index] = self._pool.submit(one.work, held, sample)

    def iterate(self, iteration: int, total: int, check: Callable[[], None]) -> None:
        """Takes work until an unroll has come, has each gradient judged, and answers the members.

        Args:
            iteration: index of the iteration.
            total: number of iterations.
            check: called while waiting; if it raises, the exception passes through, and no unroll was taken.

        Raises:
            envs.EnvironmentFault: an environment hangs.
            FloatingPointError: one gradient after another is not finite.
        """
        is_played = False
        while not is_played:
            index = self._next(check)
            work, one = self._sent_by(index), self.workers[index]
            self._at_work.pop(index)
            self.schedule.took(index)
            self.events += 1
            if self.replay is not None and work.unroll is not None:
                self.replay.add(index, work.unroll)
            if self.replay is not None and work.indices is not None:
                self.replay.update(one.rank, one.number - 1, work.indices, work.priorities)
            # An iteration ends with an unroll: what the member that played it does next belongs to the next iteration.
            is_played = work.episodes is not None
            answered = self._serve(index, work, np.float32(iteration) / np.float32(total))
            self._answer(answered, (iteration + is_played) / total)

    def take(self) -> tuple[list[Event], int, FloatingPointError | None]:
        """Returns the events since the last call, how often the server went back to an earlier version, and a fault.

        The fault is one gradient after another that is not finite, with no earlier version to go back to.
        """
        events, fault = [Event(index, *server.unpack(packed)) for index, packed in self._arrived], None
        self._arrived = []
        for event in () if self.server.versions else events:
            try:
                self.server.settle(event.verdict, event.worker)
            except FloatingPointError as error:
                fault = error
        rollbacks, self._rollbacks = self._rollbacks, 0
        return events, rollbacks, fault

    def warm(self, check: Callable[[], None]) -> None:
        """Waits until every member has sent something, since then everything is compiled.

        Raises:
            Exception: one that a member or `check` raised.
        """
        while futures.wait(self._at_work.values(), _POLL_S).not_done:
            self._look(check)
        for future in self._at_work.values():
            future.result()

    def rest(self) -> tuple[list[programs.Work], list[int]]:
        """Waits until every member has sent its work, but for those that a fault holds.

        Returns:
            Each member's work, empty if it has none, and its status, which says how it goes on: `AT_WORK` (its work is
            there), `PLAYED` (its work is there, but it had no sample to learn from), `FRESH` (it starts anew as soon as
            it may), `HELD_BACK` (it may not start before the next event, even if it could by now), or `WAITING` and
            more (it waits for an update; members are answered in the order of the numbers).
        """
        left = dict(self._at_work)
        while left := {i: future for i, future in left.items() if not future.done() and not self._hangs(i)}:
            futures.wait(left.values(), _POLL_S)
        sent, status = [programs.Work()] * len(self.workers), [FRESH] * len(self.workers)
        for index, future in self._at_work.items():
            if future.done() and future.exception() is None:
                work, learns = self._sent_by(index), self.workers[index].learns
                is_without = self.replay is not None and learns and work.indices is None
                sent[index], status[index] = work, PLAYED if is_without else AT_WORK
        for index in self.held_back:
            status[index] = HELD_BACK
        for place, index in enumerate(self.waiting):
            status[index] = WAITING + place
        return sent, status

    def close(self) -> None:
        """Ends the threads, but for those that hang in an environment."""
        self._pool.close(lambda: sum(one.is_kept() for one in self.workers))
        for one in self.workers:
            one.close()

    def _next(self, check: Callable[[], None]) -> int:
        """Waits for the next work, and returns the index of its member."""
        # Also where some member is always done: another one may hang.
        self._look(check)
        members = {self._at_work[index]: index for index in self.schedule.next(list(self._at_work))}
        while not (come := futures.wait(members, _POLL_S, futures.FIRST_COMPLETED).done):
            self._look(check)
        # If several are done, take the member that was answered first.
        return next(index for future, index in members.items() if future in come)

    def _answer(self, members: Sequence[int], progress: float) -> None:
        """Answers these members, and after them those that were held back before."""
        held_back, self.held_back = sorted(self.held_back), set()
        for index in (*members, *held_back):
            self.answer(index, progress)

    def _sent_by(self, index: int) -> programs.Work:
        """Returns the work of a member that is done; marks it as outdated if its parameters were rolled back."""
        work = self._at_work[index].result()
        return programs.outdated(work) if index in self.outdated else work

    def _serve(self, index: int, work: programs.Work, progress: np.float32) -> list[int]:
        """Has the server judge a gradient, if there is one, and returns the members to answer.

        A member whose gradient is taken waits until the update that contains it has been made.
        """
        if work.gradient is None:
            self._arrived.append((index, server.pack_episodes(work.episodes)))
            return [index]
        packed = self.server.receive(work, progress)
        self._arrived.append((index, packed))
        if len(self._arrived) > _AHEAD:
            # Block here, or the host runs ahead of the device without bound.
            jax.block_until_ready(self._arrived[-_AHEAD])
        if self.server.answers_at_once:
            return [index]
        verdict, _ = server.unpack(packed)
        if self.server.versions and self.server.settle(verdict, index):
            return self._rolled_back(index)
        if not verdict.taken:
            return [index]
        self.waiting.append(index)
        if not (verdict.applied or verdict.reverted):
            return []
        answered, self.waiting = self.waiting, []
        return answered

    def _rolled_back(self, index: int) -> list[int]:
        """Returns the members to answer after a rollback: this one, and those whose gradients were lost."""
        self._rollbacks += 1
        self.outdated = set(range(len(self.workers)))
        answered, self.waiting = [index, *self.waiting], []
        return answered

    def _hangs(self, index: int) -> bool:
        try:
            self.workers[index].check()
        except errors.EnvironmentFault:
            return True
        return False

    def _look(self, check: Callable[[], None]) -> None:
        check()
        for one in self.workers:
            one.check()


class Threads:
    """A few threads that make calls; the process can end while one of them hangs in an environment."""

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
        """Gives a call to the next free thread, or makes it here if there are no threads; returns its future."""
        if not self._threads:
            return done(call(*arguments))
        future: futures.Future[programs.Work] = futures.Future()
        self._calls.put((future, call, arguments))
        return future

    def close(self, count_kept: Callable[[], int]) -> None:
        """Ends each thread once it is free, but for those that environments keep, see `hangs.await_ends`."""
        for _ in self._threads:
            self._calls.put(None)
        hangs.await_ends(lambda: sum(thread.is_alive() for thread in self._threads), count_kept)

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
    """Returns a finished future that holds this work."""
    future: futures.Future[programs.Work] = futures.Future()
    future.set_result(work)
    return future
