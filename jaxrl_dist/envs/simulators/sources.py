"""Provides simulators for the suite `external`: the interface, and functions of this process that play in threads.

A claim asks for one simulator per seat, which is an environment of training or of an evaluation.
"""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jaxrl_dist import simulator

TRAINING, EVALUATION = "training", "evaluation"

_CLOSE_S = 1.0
# Bytes per read, and most reads, to empty the connection of a dismissed peer.
_DRAINED_BYTES, _DRAINED_READS = 1 << 16, 64


class Peer(NamedTuple):
    """A simulator that has a seat.

    Attributes:
        connection: not blocking; the other end is a `simulator.Session`.
        name: its name for messages.
        errors: exceptions of its thread, if it is a thread of this process.
    """

    connection: socket.socket
    name: str
    errors: list[BaseException]


class Claim(Protocol):
    """A request for seats with simulators."""

    def wait(self, timeout_s: float) -> list[Peer]:
        """Waits until every seat has its simulator.

        Raises:
            errors.EnvironmentFault: too few simulators came, or the claim was closed.
        """

    def close(self, reason: str) -> None:
        """Dismisses the simulators; any thread may call it, and more than once."""


class Source(Protocol):
    """Provides simulators; each set of environments that uses it calls `open` and `close` once."""

    def open(self) -> None: ...
    def close(self) -> None: ...

    def claim(self, purpose: str, terms: Sequence[Mapping[str, Any]]) -> Claim:
        """Asks for a simulator for each of the terms, which the simulator is told with its purpose and slot."""


class Threads:
    """Simulators that are a function of this process, called with a `simulator.Session` in a thread each."""

    def __init__(self, play: Callable[[simulator.Session], None]) -> None:
        """Takes the function; starts no thread yet."""
        self._play, self._taken, self._lock = play, dict[str, set[int]](), threading.Lock()

    def open(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def claim(self, purpose: str, terms: Sequence[Mapping[str, Any]]) -> Claim:
        """Starts the threads."""
        with self._lock:
            taken = self._taken.setdefault(purpose, set())
            slots = lowest_free(taken, len(terms))
            taken.update(slots)
        return _ThreadsClaim(self._play, purpose, dict(zip(slots, terms, strict=True)), taken)


class _ThreadsClaim:
    def __init__(
        self,
        play: Callable[[simulator.Session], None],
        purpose: str,
        terms: Mapping[int, Mapping[str, Any]],
        taken: set[int],
    ) -> None:
        self._slots, self._taken = terms.keys(), taken
        self._peers, self._threads = list[Peer](), list[threading.Thread]()
        for slot, seat_terms in terms.items():
            ours, theirs = socket.socketpair()
            name, errors = f"{purpose} simulator {slot}", list[BaseException]()
            ours.sendall(welcome(purpose, slot, seat_terms))
            ours.setblocking(False)
            self._peers.append(Peer(ours, name, errors))
            thread = threading.Thread(target=_run, args=(play, theirs, errors), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout_s: float) -> list[Peer]:
        return self._peers

    def close(self, reason: str) -> None:
        for peer in self._peers:
            dismiss(peer.connection, "end", reason)
        until_s = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._taken.difference_update(self._slots)


def _run(play: Callable[[simulator.Session], None], connection: socket.socket, errors: list[BaseException]) -> None:
    """Plays in this thread, and keeps an exception for the claim."""
    try:
        with simulator.Session(connection) as session:
            try:
                play(session)
            except simulator.Ended:
                raise
            except BaseException as error:
                # Stored before the session closes, since the other end then looks for it.
                errors.append(error)
                raise
    except BaseException as error:
        if not errors and not isinstance(error, simulator.Ended):
            errors.append(error)
    finally:
        connection.close()


def shown(value: Any) -> str:
    """Returns a value that a peer has sent as text for a message, shortened."""
    return repr(value)[:80]


def lowest_free(taken: Collection[int], count: int) -> list[int]:
    """Returns the lowest `count` numbers from 0 on that are not taken."""
    free = (slot for slot in range(len(taken) + count) if slot not in taken)
    return list(itertools.islice(free, count))


def welcome(purpose: str, slot: int, terms: Mapping[str, Any]) -> bytes:
    """Returns the message that gives a simulator its seat."""
    return simulator.pack({"kind": "welcome", "purpose": purpose, "slot": slot, **terms})


def dismiss(connection: socket.socket, kind: str, reason: str) -> None:
    """Sends a last message to a peer, which may have gone, without waiting for it."""
    with contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.send(simulator.pack({"kind": kind, "reason": reason}))
        # If bytes were left unread, the connection would be reset before the peer gets the message.
        for _ in range(_DRAINED_READS):
            if not connection.recv(_DRAINED_BYTES):
                break
    # Wakes a thread that waits for this peer.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
