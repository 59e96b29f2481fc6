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
_POLL_S = 0.1
# Work that checks for a stop itself, between the steps of environments, does so within this time.
_STOP_WITHIN_S = 2.0


def check_waiting(environment: envs.HostEnvironment) -> None:
    """Checks that environments have not been silent for longer than their timeout; any thread but theirs calls it.

    The thread that waits for them cannot be interrupted; the caller closes the environments and goes on without it.

    Raises:
        errors.EnvironmentFault: they have; the message names them.
    """
    since, limit = environment.waiting_since, environment.timeout_s
    if since and time.monotonic() - since > limit:
        raise overdue(environment.spec, environment.waiting_for, limit)


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
    make: Callable[[], envs.HostEnvironment],
    work: Callable[[Callable[[], envs.HostEnvironment]], Any],
    stopped: Callable[[], bool] = lambda: False,
    left: threading.Event | None = None,
) -> Any:
    """Calls `work` in another thread, which is abandoned if an environment hangs, at a stop, and by Ctrl-C.

    The environments of a thread that is abandoned are closed, and so it ends as soon as it has another step made.

    Args:
        make: makes environments.
        work: (a function that makes environments) -> result.
        stopped: () -> whether to stop; work that waits for environments at a stop is abandoned, too.
        left: is set here before environments are closed, so that work which reads it can end by itself.

    Returns:
        The result of `work`, or None if it was abandoned at a stop.

    Raises:
        errors.EnvironmentFault: an environment hangs, or the work raises it.
    """
    left = threading.Event() if left is None else left
    made: list[envs.HostEnvironment] = []
    results: list[Any] = []
    raised: list[BaseException] = []

    def remembering() -> envs.HostEnvironment:
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
        has_ended = _ends(thread, made, stopped)
    except KeyboardInterrupt:
        left.set()
        thread.join(_STOP_WITHIN_S)
        raise
    finally:
        left.set()
        if not has_ended:
            for environment in made:
                environment.close()
    if raised and has_ended:
        raise raised[0]
    return results[0] if has_ended else None


def _ends(thread: threading.Thread, made: list[envs.HostEnvironment], stopped: Callable[[], bool]) -> bool:
    """Waits for a thread, and says whether it has ended; not if it still plays some time after a stop.

    Raises:
        errors.EnvironmentFault: an environment hangs.
    """
    stop_s = 0.0
    while thread.is_alive():
        thread.join(_POLL_S)
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
