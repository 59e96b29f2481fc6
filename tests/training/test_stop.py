"""The token that asks a run to stop: which signals it heeds, and those that somebody has the process ignore."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from jaxrl_dist.training import stop


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restores the handlers of this process; a hangup is not ignored, as it would be under nohup."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _send(number: int) -> None:
    os.kill(os.getpid(), number)
    # Python runs handlers between two steps.
    time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_asks_to_stop_and_a_later_one_changes_nothing(number: int, code: int) -> None:
    token = stop.StopToken()
    with token.install():
        _send(number)
        assert (token.requested, token.exit_code) == (True, code)
        _send(signal.SIGTERM)
        assert token.exit_code == code


def test_a_hangup_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    token = stop.StopToken()
    with token.install():
        _send(signal.SIGHUP)
        assert not token.requested
    stop.leave_on_signals()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_the_first_interrupt_of_a_program_is_raised_at_the_end_and_the_second_at_once() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    token, reached = stop.StopToken(), []
    with pytest.raises(KeyboardInterrupt), token.interruptible():
        _send(signal.SIGINT)
        reached.append((token.requested, token.exit_code))
    assert reached == [(True, 130)] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), stop.StopToken().interruptible():
        _send(signal.SIGINT)
        _send(signal.SIGINT)
        reached.append((False, 0))
    assert len(reached) == 1
    with stop.StopToken().interruptible():
        pass


def test_a_handler_of_the_program_s_own_is_left_alone() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    token = stop.StopToken()
    with token.interruptible():
        _send(signal.SIGINT)
    assert seen == [signal.SIGINT] and not token.requested
