"""The thread that plays while another watches: it ends, and its environments are closed, however the watch ends."""

import threading
import time
import types
from collections.abc import Callable
from typing import Any

import conftest
import numpy as np
import pytest
from fakes import host

from jaxrl_dist import errors
from jaxrl_dist.envs.host import hangs

SEEDS, NO_ENVS = np.arange(2), np.zeros(2, np.int32)


class Closable(host.Walk):
    """Refuses a step once it is closed, as environments do."""

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        if self.is_closed:
            raise errors.EnvironmentFault("closed")
        super().raw_send(action, env_ids)


def interrupt_at(moment: threading.Event) -> Callable[[], bool]:
    """Returns a `stopped` that is Ctrl-C in the main thread, from that moment on."""

    def stopped() -> bool:
        if moment.is_set() and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return False

    return stopped


def assert_thread_ends() -> None:
    for thread in threading.enumerate():
        if thread.name == "watched":
            thread.join(conftest.SOON_S)
            assert not thread.is_alive()


def play_on(make: Callable[[], Any]) -> None:
    environment = make()
    environment.reset()
    while True:
        environment.step(NO_ENVS)


def test_an_interrupt_closes_the_environments_and_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "_STOP_WITHIN_S", 0.2)
    plays, walk = threading.Event(), Closable(SEEDS, 60.0, lambda walk: plays.set())
    with pytest.raises(KeyboardInterrupt):
        hangs.watched("fake:walk", lambda: walk, play_on, interrupt_at(plays))
    assert walk.is_closed
    assert_thread_ends()


def test_an_interrupt_tells_work_that_reads_it_before_it_closes_anything() -> None:
    plays, left, closed = threading.Event(), threading.Event(), []
    walk = Closable(SEEDS, 60.0, lambda walk: plays.set())

    def work(make: Callable[[], Any]) -> None:
        environment = make()
        environment.reset()
        while not left.is_set():
            environment.step(NO_ENVS)
        closed.append(environment.is_closed)

    with pytest.raises(KeyboardInterrupt):
        hangs.watched("fake:walk", lambda: walk, work, interrupt_at(plays), left)
    assert closed == [False]


def test_an_interrupt_leaves_an_environment_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "_STOP_WITHIN_S", 0.2)
    hung, over = threading.Event(), threading.Event()

    def hang(walk: host.Walk) -> None:
        hung.set()
        over.wait(conftest.SOON_S)

    walk = Closable(SEEDS, 60.0, hang)
    with pytest.raises(KeyboardInterrupt):
        hangs.watched("fake:walk", lambda: walk, play_on, interrupt_at(hung))
    assert walk.is_closed
    over.set()
    assert_thread_ends()
    assert walk.total_steps == 1


def test_environments_that_are_made_after_an_interrupt_are_closed_and_not_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hangs, "_STOP_WITHIN_S", 0.2)
    begun, over, walk = threading.Event(), threading.Event(), Closable(SEEDS, 60.0, lambda walk: None)

    def make() -> Any:
        begun.set()
        over.wait(conftest.SOON_S)
        return walk

    with pytest.raises(KeyboardInterrupt):
        hangs.watched("fake:walk", make, play_on, interrupt_at(begun))
    over.set()
    assert_thread_ends()
    assert walk.is_closed and walk.total_steps == 0


def test_an_environment_that_hangs_as_it_is_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "MAKE_S", 0.2)
    over, walk = threading.Event(), Closable(SEEDS, 60.0, lambda walk: None)

    def make() -> Any:
        over.wait(conftest.SOON_S)
        return walk

    with pytest.raises(errors.EnvironmentFault, match=r"fake:walk: .*\b0\.2 s"):
        hangs.watched("fake:walk", make, play_on)
    over.set()
    assert_thread_ends()
    assert walk.is_closed and walk.total_steps == 0


def test_an_environment_that_hangs_is_closed() -> None:
    over = threading.Event()
    walk = Closable(SEEDS, 0.2, lambda walk: over.wait(conftest.SOON_S))
    with pytest.raises(errors.EnvironmentFault, match=r"fake:walk gave nothing for 0\.2 s"):
        hangs.watched("fake:walk", lambda: walk, play_on)
    assert walk.is_closed
    over.set()
    assert_thread_ends()


def test_time_in_which_the_process_stood_still_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-Z and fg: nothing else ran either, and the environment answers at once."""
    clock, seen_s = hangs._Clock(), [100.0]
    # No thread looks at it.
    clock._ticker, clock._ran_s = threading.current_thread(), 50.0
    monkeypatch.setattr(hangs, "_CLOCK", clock)
    monkeypatch.setattr(hangs, "time", types.SimpleNamespace(monotonic=lambda: seen_s[0]))
    clock._seen_s = seen_s[0]
    environment: Any = types.SimpleNamespace(
        timeout_s=60.0, waiting_since=hangs.now(), waiting_for=SEEDS, spec=types.SimpleNamespace(name="x:y")
    )
    seen_s[0] += 3600.0
    hangs.check_waiting(environment)
    assert hangs.now() - environment.waiting_since == 1.0
    for _ in range(59):
        seen_s[0] += 1.0
        hangs.check_waiting(environment)
    seen_s[0] += 0.5
    with pytest.raises(errors.EnvironmentFault, match="60 s"):
        hangs.check_waiting(environment)


def test_the_clock_goes_on_though_nobody_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a wait of a minute that is looked at twice would count as a second."""
    clock, began_s = hangs._Clock(), time.monotonic()
    assert clock.now() >= began_s
    seen_s, until_s = clock._seen_s, time.monotonic() + conftest.SOON_S
    while clock._seen_s == seen_s:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert clock._ticker is not None and clock._ticker.daemon
