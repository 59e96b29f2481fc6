"""Lets simulators connect to a port of this machine, and wait in a waiting room until an environment needs them.

So the same programs serve training, and in turn one evaluation after the other. A message of a peer without a seat is
refused, but is no fault of an environment.
"""

import contextlib
import dataclasses
import errno
import resource
import select
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl_dist import errors, simulator
from jaxrl_dist.envs.simulators import sources

# Seconds within which a connection must say hello; after which the user is told that too few simulators have come; and
# for which a candidate may keep its place in a full room.
_HELLO_S, _NOTICE_S, _GIVES_WAY_S = 5.0, 5.0, 2.0
_MOST_WAITING = 1024
# Errors that say that process or machine can open no more connections for now.
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_POLL_S, _CLOSE_S, _WAKE_BYTES = 0.5, 1.0, 1 << 16


@dataclasses.dataclass(eq=False)
class _Seat:
    """An environment's place for a simulator; empty while it has no peer."""

    purpose: str
    slot: int
    terms: Mapping[str, Any]
    peer: sources.Peer | None = None


@dataclasses.dataclass(eq=False)
class _Candidate:
    """A connection in the waiting room; after its hello it waits for a seat that suits it."""

    connection: socket.socket
    reader: simulator.Reader
    since_s: float
    is_heard: bool = False
    purpose: str | None = None
    slot: int | None = None
    name: str = ""

    def suits(self, seat: _Seat) -> bool:
        return self.is_heard and self.purpose in (None, seat.purpose) and self.slot in (None, seat.slot)


class Listener:
    """Provides simulators that connect to a port of 127.0.0.1; listens in one thread while environments use it."""

    def __init__(self, port: int) -> None:
        """Takes the port; does not listen yet."""
        self._port, self._users = port, 0
        self._changed = threading.Condition()
        self._seats: list[_Seat] = []
        self._candidates: list[_Candidate] = []
        self._error: BaseException | None = None
        # The reason why nobody more can connect for now, and the time when that is tried again.
        self._exhausted, self._again_s, self._most = "", 0.0, _MOST_WAITING
        self._wake: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Begins to listen, unless it already listens.

        Raises:
            errors.EnvironmentFault: the port is taken.
        """
        with self._changed:
            self._users += 1
            if self._users > 1:
                return
            try:
                with contextlib.ExitStack() as opened:
                    self._wake, woken = map(opened.enter_context, socket.socketpair())
                    listening = opened.enter_context(socket.socket())
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listening.bind((simulator.HOST, self._port))
                    listening.listen(_MOST_WAITING)
                    opened.pop_all()
            except OSError as error:
                self._users, self._wake = 0, None
                raise errors.EnvironmentFault(
                    errors.given("env.params.listen", self._port),
                    f": cannot listen on {simulator.HOST}:{self._port}: {error.strerror or error}",
                ) from error
            listening.setblocking(False)
            self._wake.setblocking(False)
            self._error, self._exhausted = None, ""
            self._thread = threading.Thread(target=self._run, args=(listening, woken), name="waiting room", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stops listening, unless others use it, and dismisses the candidates that wait."""
        with self._changed:
            self._users -= 1
            if self._users:
                return
            wake, thread, self._wake, self._thread = self._wake, self._thread, None, None
        assert wake is not None and thread is not None
        wake.close()
        thread.join(_CLOSE_S)

    def claim(self, purpose: str, terms: Sequence[Mapping[str, Any]]) -> sources.Claim:
        """Opens seats with the lowest free numbers."""
        with self._changed:
            slots = sources.lowest_free({seat.slot for seat in self._seats if seat.purpose == purpose}, len(terms))
            seats = [_Seat(purpose, slot, seat_terms) for slot, seat_terms in zip(slots, terms, strict=True)]
            self._seats += seats
            self._notify()
        return _SeatsClaim(self, purpose, seats)

    def wait_for(
        self, purpose: str, seats: list[_Seat], timeout_s: float, is_closed: Callable[[], bool]
    ) -> list[sources.Peer]:
        """Waits until the seats are taken; see `Claim.wait`."""
        since_s, is_noticed = time.monotonic(), False
        with self._changed:
            while True:
                peers = [seat.peer for seat in seats if seat.peer is not None]
                if len(peers) == len(seats):
                    return peers
                waited_s = time.monotonic() - since_s
                came = f"{len(peers)} of {len(seats)} simulators for {purpose}"
                where = f"{simulator.HOST}:{self._port}{self._exhausted}"
                if self._error is not None:
                    raise errors.EnvironmentFault(f"listening on {where} failed: {self._error}") from self._error
                if is_closed():
                    raise errors.EnvironmentFault("these environments were closed")
                if waited_s >= timeout_s:
                    raise errors.EnvironmentFault(
                        f"{came} connected to {where} within {timeout_s:g} s; start as many as there are environments "
                        "(env.num_envs) and as many again as there are episodes in an evaluation"
                    )
                if waited_s >= _NOTICE_S and not is_noticed:
                    is_noticed = True
                    warnings.warn(
                        f"{came} have connected to {where}: waiting for the others", RuntimeWarning, stacklevel=2
                    )
                self._changed.wait(min(_POLL_S, timeout_s - waited_s))

    def leave(self, seats: list[_Seat], reason: str) -> None:
        """Frees seats, and dismisses their simulators."""
        with self._changed:
            self._seats = [seat for seat in self._seats if seat not in seats]
            peers = [seat.peer for seat in seats if seat.peer is not None]
            self._changed.notify_all()
        for peer in peers:
            sources.dismiss(peer.connection, "end", reason)

    def _notify(self) -> None:
        # If the thread has ended, `wait_for` says why. If the pipe is full, the thread has enough reasons to wake up.
        if self._wake is not None:
            with contextlib.suppress(OSError):
                self._wake.send(b"\0")

    def _run(self, listening: socket.socket, woken: socket.socket) -> None:
        with listening, woken:
            try:
                while self._serve(listening, woken):
                    pass
            except BaseException as error:
                self._error = error
            with self._changed:
                for candidate in self._candidates:
                    sources.dismiss(candidate.connection, "end", "the trainer has closed")
                self._candidates.clear()
                self._changed.notify_all()

    def _serve(self, listening: socket.socket, woken: socket.socket) -> bool:
        """Waits for the next connections or messages, and handles them; returns whether to go on."""
        waiting = {candidate.connection.fileno(): candidate for candidate in self._candidates}
        poll, is_open = select.poll(), time.monotonic() >= self._again_s and self._has_place()
        for descriptor in (woken.fileno(), *waiting, *([listening.fileno()] if is_open else [])):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(_POLL_S * 1000)}
        if woken.fileno() in ready and not woken.recv(_WAKE_BYTES):
            return False
        with self._changed:
            now_s = time.monotonic()
            for descriptor, candidate in waiting.items():
                if descriptor in ready:
                    self._hear(candidate)
                elif not candidate.is_heard and now_s - candidate.since_s > _HELLO_S:
                    self._refuse(candidate, f"hello: expected within {_HELLO_S:g} s")
            if listening.fileno() in ready:
                self._accept(listening)
            self._seat_candidates()
        return True

    def _has_place(self) -> bool:
        """Says whether one more may come in; into a full room only when the oldest candidate has waited for a while.

        Until then new connections wait outside, so a crowd cannot push out a simulator for which there is a seat.
        """
        # The rest of the run needs files, too.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = min(_MOST_WAITING, max(1, limit // 2)) if limit > 0 else _MOST_WAITING
        is_full = len(self._candidates) >= self._most
        return not is_full or time.monotonic() - self._candidates[0].since_s > _GIVES_WAY_S

    def _accept(self, listening: socket.socket) -> None:
        """Lets a connection in, and dismisses the oldest candidate if there are too many."""
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            self._exhausted, self._again_s = f" ({error.strerror})", time.monotonic() + _POLL_S
            if self._candidates:
                self._dismiss_oldest()
            return
        self._exhausted = ""
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = simulator.Reader(connection, simulator.ASKING_BYTES, 0)
        self._candidates.append(_Candidate(connection, reader, time.monotonic()))
        if len(self._candidates) > self._most:
            self._dismiss_oldest()

    def _dismiss_oldest(self) -> None:
        """Dismisses the candidate that has waited longest; a simulator that is dismissed so connects again."""
        sources.dismiss(self._candidates.pop(0).connection, "end", "others want to wait too")

    def _hear(self, candidate: _Candidate) -> None:
        """Reads a candidate's hello; any other message, or a closed connection, removes it from the waiting room."""
        try:
            frame = candidate.reader.read()
            if candidate.is_heard:
                raise ValueError("expected no message between hello and the trainer's welcome")
            if frame is None:
                return
            candidate.purpose, candidate.slot, candidate.name = self._read_hello(frame.header)
            candidate.is_heard = True
        except ValueError as error:
            self._refuse(candidate, str(error))
        except (EOFError, OSError):
            self._candidates.remove(candidate)
            candidate.connection.close()

    def _read_hello(self, header: Mapping[str, Any]) -> tuple[str | None, int | None, str]:
        purpose, slot, pid = (header.get(name) for name in ("purpose", "slot", "pid"))
        given = (header.get("kind"), header.get("protocol"))
        if given != ("hello", simulator.PROTOCOL):
            expected = f"hello in protocol {simulator.PROTOCOL}"
            raise ValueError(f"kind and protocol: expected {expected}, given {sources.shown(given)}")
        if purpose not in (None, sources.TRAINING, sources.EVALUATION):
            raise ValueError(
                f"purpose: expected {sources.TRAINING}, {sources.EVALUATION} or null, given {sources.shown(purpose)}"
            )
        if slot is not None and (type(slot) is not int or slot < 0 or purpose is None):
            raise ValueError(f"slot: expected a number from 0 beside a purpose, or null, given {sources.shown(slot)}")
        others = [(seat.purpose, seat.slot) for seat in self._seats if seat.peer is not None]
        others += [(other.purpose or "", other.slot or 0) for other in self._candidates if other.slot is not None]
        if slot is not None and (purpose, slot) in others:
            raise ValueError(f"slot: {purpose} {slot} is taken by another simulator")
        return purpose, slot, f" (pid {sources.shown(pid)})" if type(pid) is int else ""

    def _refuse(self, candidate: _Candidate, reason: str) -> None:
        self._candidates.remove(candidate)
        sources.dismiss(candidate.connection, "refused", reason)

    def _seat_candidates(self) -> None:
        """Gives free seats to candidates, first to those that ask for this very seat."""
        for seat in self._seats:
            suited = [candidate for candidate in self._candidates if seat.peer is None and candidate.suits(seat)]
            if not suited:
                continue
            candidate = min(suited, key=lambda candidate: candidate.slot is None)
            self._candidates.remove(candidate)
            # A simulator that has gone meanwhile is noticed when its first message is read.
            with contextlib.suppress(OSError):
                candidate.connection.send(sources.welcome(seat.purpose, seat.slot, seat.terms))
            name = f"{seat.purpose} simulator {seat.slot}{candidate.name}"
            seat.peer = sources.Peer(candidate.connection, name, [])
            self._changed.notify_all()


class _SeatsClaim:
    def __init__(self, listener: Listener, purpose: str, seats: list[_Seat]) -> None:
        self._listener, self._purpose, self._seats = listener, purpose, seats
        self._is_closed = False

    def wait(self, timeout_s: float) -> list[sources.Peer]:
        return self._listener.wait_for(self._purpose, self._seats, timeout_s, lambda: self._is_closed)

    def close(self, reason: str) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._listener.leave(self._seats, reason)
