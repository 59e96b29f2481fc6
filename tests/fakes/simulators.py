"""Simulators for the suite `external`, as a user's own module would define them: functions that play a session."""

import threading
import time

import numpy as np
from fakes import host_environments

from jaxrl_dist import simulator


def threads() -> set[threading.Thread]:
    """Returns those that play, of earlier tests too."""
    return {thread for thread in threading.enumerate() if " simulator " in thread.name}


def assert_gone(before: set[threading.Thread], within_s: float = 10.0) -> None:
    """Fails if threads that play are left which were not there before."""
    until_s = time.monotonic() + within_s
    while threads() - before and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not threads() - before


def _play_counting(session: simulator.Session, name: str) -> None:
    world = host_environments.Counting(name)
    while True:
        action = session.begin(world.reset()[0])
        while action is not None:
            action = session.act(*world.step(action)[:4])


def episode(session: simulator.Session) -> None:
    """The known episode, which ends by itself after 7 steps."""
    _play_counting(session, "episode")


def time_limit(session: simulator.Session) -> None:
    """The same, ended by a time limit."""
    _play_counting(session, "time_limit")


def both(session: simulator.Session) -> None:
    """The same, ended by both at once."""
    _play_counting(session, "both")


def telling(session: simulator.Session) -> None:
    """Observes (evaluation?, slot, seed mod 1000, step of the episode), for ever in episodes of 3 steps."""
    told = [session.purpose == "evaluation", session.slot, session.seed % 1000]
    while True:
        session.begin([*told, 0])
        for step in (1, 2, 3):
            session.act([*told, step], 1.0, truncated=step == 3)


def broken(session: simulator.Session) -> None:
    """Fails at its third step, where its slot is 1."""
    session.begin(np.zeros(2))
    for step in range(100):
        if step == 2 and session.slot == 1:
            raise ZeroDivisionError("the world fell over")
        session.act(np.zeros(2), 0.0)


def silent(session: simulator.Session) -> None:
    """Says nothing after its first observation."""
    session.begin(np.zeros(2))
    time.sleep(3600)


def real(session: simulator.Session) -> None:
    """Observes the real action that it was given."""
    action = session.begin(np.zeros((2, 3)))
    while True:
        action = session.act(action, float(action.sum()))
