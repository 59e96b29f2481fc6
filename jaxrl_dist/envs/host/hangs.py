"""Notices environments that hang from another thread, since a thread within native code cannot be interrupted."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxrl_dist import envs, errors, types

# Seconds to make an environment: longer than for a step, since libraries are imported and programs compiled.
MAKE_S = 120.0
# Seconds for which the end of a thread is awaited that its environments keep.
CLOSE_WITHIN_S = 5.0
_POLL_S, _LOOK_S = 0.1, 0.005
# Work that checks for a stop itself, between the steps of environments, does so within this time.
_STOP_WITHIN_S = 2.0
# Between two looks at the clock, and the most that counts of the time between two.
_TICK_S, _GAP_S = 0.25, 1.0


class _Clock:
    """The monotonic clock, less what the process stood still, as after Ctrl-Z; of each time a second at most counts.

    While it stands still no environment gives anything, and none of them hangs.
    """

    def __init__(self) -> None:
        self._lock, self._seen_s, self._ran_s = threading.Lock(), 0.0, 0.0
        self._ticker: threading.Thread | None = None

    def now(self) -> float:
        """Returns its seconds, more than 0."""
        with self._lock:
            if self._ticker is None:
                # It begins with the first look at it.
                self._seen_s = self._ran_s = time.monotonic()
                self._ticker = threading.Thread(target=self._tick, daemon=True, name="clock of environments")
                self._ticker.start()
            seen_s = time.monotonic()
            self._ran_s += min(seen_s - self._seen_s, _GAP_S)
            self._seen_s = seen_s
            return self._ran_s

    def _tick(self) -> None:
        while True:
            time.sleep(_TICK_S)
            self.now()


_CLOCK = _Clock()


def now() -> float:
    """Returns the seconds, more than 0, by which waits for environments are measured; see `_Clock`."""
    return _CLOCK.now()


def check_waiting(environment: envs.HostEnvironment) -> None:
    """Checks that environments have not been silent for longer than their timeout; any thread but theirs calls it.

    The thread that waits for them cannot be interrupted; the caller closes the environments and goes on without it.

    Raises:
        errors.EnvironmentFault: they have; the message names them.
    """
    since, limit = environment.waiting_since, environment.timeout_s
    if since and now() - since > limit:
        raise overdue(environment.spec, environment.waiting_for, limit)


class Making:
    """The time in which a thread makes environments, which any other thread can check.

    Attributes:
        since_s: `now()` when it began, 0 while none are made.
    """

    def __init__(self, environment: str, timeout_s: float) -> None:
        """Allows as long as environments may take, `MAKE_S`, or the timeout of their steps if that is longer.

        Args:
            environment: suite:name.
            timeout_s: longest step.
        """
        self.since_s = 0.0
        self._environment, self._limit_s = environment, max(timeout_s, MAKE_S)

    def __enter__(self) -> None:
        self.since_s = now()

    def __exit__(self, *_: object) -> None:
        self.since_s = 0.0

    def check(self) -> None:
        """Raises an `EnvironmentFault` if it takes too long; any thread but that which makes them calls it."""
        if (since_s := self.since_s) and now() - since_s > self._limit_s:
            raise errors.EnvironmentFault(f"{self._environment}: making it takes longer than {self._limit_s:g} s")


def check(environment: envs.HostEnvironment | None, making: Making) -> None:
    """Checks that a thread's environments take no longer than they may, to be made or to step; any other calls it.

    Args:
        environment: the thread's, None before they are made.
        making: the time in which it makes them.

    Raises:
        errors.EnvironmentFault: they do.
    """
    making.check()
    if environment is not None:
        check_waiting(environment)


def may_keep(environment: envs.HostEnvironment | None, making: Making) -> bool:
    """Says whether a thread is, as far as can be seen, in code of its environments, which may never return.

    Args:
        environment: the thread's, None before they are made.
        making: the time in which it makes them.
    """
    if environment is None:
        return making.since_s > 0
    return environment.waiting_since > 0 or len(environment.waiting_for) > 0


def await_ends(count_alive: Callable[[], int], count_kept: Callable[[], int]) -> None:
    """Waits for the end of threads: the process would abort if Python ended while one of them is inside JAX.

    Those that environments keep are waited for shortly. The others end by themselves; there is a limit for them too,
    in case one of them hangs where it cannot be seen.

    Args:
        count_alive: () -> number of threads that still run.
        count_kept: () -> number of those that environments may keep for ever.
    """
    began_s = time.monotonic()
    while alive := count_alive():
        waited_s = time.monotonic() - began_s
        if waited_s > MAKE_S or (waited_s > CLOSE_WITHIN_S and alive <= count_kept()):
            break
        time.sleep(_LOOK_S)


@contextlib.contextmanager
def limited(environment: str, doing: str) -> Iterator[None]:
    """Limits the time that an environment's code may take in this thread to make or close it.

    A timer's signal interrupts waits and Python code, but not native code that never returns. Signals reach the main
    thread only, so there is no limit in other threads.

    Args:
        environment: suite:name.
        doing: the work in words, such as "making it".

    Raises:
        errors.UsageError: it took longer than `MAKE_S`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise _Overdue

    before = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            # The signal is repeated, since the environment may catch the first exception as an error of its own.
            signal.setitimer(signal.ITIMER_REAL, MAKE_S, _POLL_S)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _Overdue:
        raise errors.UsageError(
            errors.given("env", environment),
            f": {doing} takes longer than {MAKE_S:g} s",
        ) from None
    finally:
        signal.signal(signal.SIGALRM, before)


class _Overdue(BaseException):
    """The timer has expired; no error of an environment, which may catch every `Exception`."""


def watched(
    environment: str,
    make: Callable[[], envs.HostEnvironment],
    work: Callable[[Callable[[], envs.HostEnvironment]], Any],
    stopped: Callable[[], bool] = lambda: False,
    left: threading.Event | None = None,
) -> Any:
    """Calls `work` in another thread, which is abandoned if an environment hangs, at a stop, and by Ctrl-C.

    The environments of a thread that is abandoned are closed, and so it ends as soon as it has another step made.

    Args:
        environment: suite:name.
        make: makes environments, in that thread.
        work: (a function that makes environments) -> result.
        stopped: () -> whether to stop; work that waits for environments at a stop is abandoned, too.
        left: is set here before environments are closed, so that work which reads it can end by itself.

    Returns:
        The result of `work`, or None if it was abandoned at a stop.

    Raises:
        errors.EnvironmentFault: an environment hangs, also as it is made, or the work raises it.
    """
    left, making = threading.Event() if left is None else left, Making(environment, MAKE_S)
    made: list[envs.HostEnvironment] = []
    results: list[Any] = []
    raised: list[BaseException] = []

    def remembering() -> envs.HostEnvironment:
        with making:
            made.append(make())
        if left.is_set():
            made[-1].close()
            raise errors.EnvironmentFault(f"{made[-1].spec.name}: these environments were closed")
        return made[-1]

    def run() -> None:
        try:
            results.append(work(remembering))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True, name="watched")
    thread.start()
    has_ended = False
    try:
        has_ended = _ends(thread, making, made, stopped)
    except KeyboardInterrupt:
        left.set()
        thread.join(_STOP_WITHIN_S)
        raise
    finally:
        left.set()
        if not has_ended:
            for one in made:
                one.close()
    if raised and has_ended:
        raise raised[0]
    return results[0] if has_ended else None


def _ends(
    thread: threading.Thread, making: Making, made: list[envs.HostEnvironment], stopped: Callable[[], bool]
) -> bool:
    """Waits for a thread, and says whether it has ended; not if it still plays some time after a stop.

    Raises:
        errors.EnvironmentFault: an environment hangs.
    """
    stop_s = 0.0
    while thread.is_alive():
        thread.join(_POLL_S)
        making.check()
        for environment in made:
            check_waiting(environment)
        if stopped():
            stop_s = stop_s or time.monotonic()
            if time.monotonic() - stop_s > _STOP_WITHIN_S:
                return False
    return True


def overdue(spec: types.EnvironmentSpec, env_ids: np.ndarray, timeout_s: float) -> errors.EnvironmentFault:
    """Makes the fault of environments i32 [N] that are still being stepped after `timeout_s`."""
    shown = ", ".join(map(str, env_ids[:8])) + (f" and {len(env_ids) - 8} more" if len(env_ids) > 8 else "")
    return errors.EnvironmentFault(f"{spec.name} gave nothing for {timeout_s:g} s; it is stepping environments {shown}")
