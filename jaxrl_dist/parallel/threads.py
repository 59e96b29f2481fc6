"""Threads of the asynchronous layout's workers, as few as there are cores for, and futures of what they do."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

from jaxrl_dist import precision
from jaxrl_dist.parallel import tasks


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

    def submit(self, call: Callable[..., tasks.Work], *arguments: Any) -> futures.Future[tasks.Work]:
        """Leaves a call to the next thread that is free; its future holds what it returns or raises."""
        future: futures.Future[tasks.Work] = futures.Future()
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


def done(work: tasks.Work) -> futures.Future[tasks.Work]:
    """Returns the future of work that is there already."""
    future: futures.Future[tasks.Work] = futures.Future()
    future.set_result(work)
    return future
