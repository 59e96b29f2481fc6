"""Guards of a run against the outside: the lock on its folder, and the token that asks it to stop.

Imports neither JAX nor NumPy, so that a refused run ends within milliseconds.
"""

import contextlib
import fcntl
import os
import pathlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from jaxrl_dist import errors

LOCK_NAME = ".lock"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_OWNER_WRITES_WITHIN_S = 0.05


@contextlib.contextmanager
def made(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Makes a folder where it is missing; what is still empty at the end, of all that it made, is removed again.

    Args:
        folder: to make, with those above it.

    Raises:
        OSError: it cannot be made.
    """
    path = pathlib.Path(folder)
    missing = [level for level in (path, *path.parents) if not level.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for level in missing:
            # One that holds something stays.
            with contextlib.suppress(OSError):
                level.rmdir()


@contextlib.contextmanager
def lock(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Holds the folder for this process alone; the lock ends with the context or with the process, however it dies.

    Args:
        folder: run folder; made where it is missing.

    Raises:
        LockError: another holder has it, in this process or in another.
        OSError: the folder cannot be written.
    """
    path = pathlib.Path(folder) / LOCK_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    with _take(path) as handle:
        # A forked worker that outlives this process would otherwise hold the lock on.
        os.register_at_fork(after_in_child=handle.close)
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            # The file goes before the lock does, so that no later owner's is removed. A forked child that leaves
            # through here has no handle and must not touch it.
            if not handle.closed and _is_at(handle, path):
                path.unlink()


def leave_on_signals() -> None:
    """Lets SIGTERM and SIGINT end the process silently, with 128 + the signal; for as long as nothing is to be saved.

    Python's own handler of SIGINT raises wherever the process happens to be: in a library's import, which becomes
    another error, or in a callback from native code, which drops it, so that the process goes on.
    """
    for number in _SIGNALS:
        signal.signal(number, lambda number, frame: os._exit(128 + number))


class StopToken:
    """Says whether the run was asked to stop; every loop polls `requested`.

    Attributes:
        requested: whether to save and leave.
        exit_code: 0 until then; 143 for SIGTERM, 130 for SIGINT, whichever came first.
    """

    def __init__(self) -> None:
        self.requested = False
        self.exit_code = 0
        self._interrupts = 0
        self._farewell = ""

    def request(self, signal_number: int = signal.SIGTERM) -> None:
        """Asks the run to stop, as that signal would; a later request changes nothing."""
        if not self.requested:
            self.exit_code = 128 + signal_number
            self.requested = True

    @contextlib.contextmanager
    def at_once(self, farewell: str) -> Iterator[None]:
        """Lets a signal that `install` listens to end the process at once, with that line, within the context.

        For work that cannot be interrupted, such as a compiler's, while there is nothing to save.
        """
        self._farewell = farewell
        try:
            yield
        finally:
            self._farewell = ""

    @contextlib.contextmanager
    def install(self) -> Iterator["StopToken"]:
        """Listens to SIGTERM and SIGINT within the context; a second SIGINT ends the process at once with code 130.

        Python runs signal handlers between two steps of the main thread only, which may be compiling for a minute; so
        a thread reads the signals, and the second SIGINT works even then. Outside the main thread, where no handler
        can be set, this only yields the token.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        listener = threading.Thread(target=self._listen, args=(receiver,), name="signals", daemon=True)
        listener.start()
        handlers = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        active = [True]

        def leave_fork() -> None:
            # A forked worker must die of the signals as usual, and not write them to the parent's listener.
            if active:
                active.clear()
                _restore(handlers, -1)

        os.register_at_fork(after_in_child=leave_fork)
        try:
            yield self
        finally:
            if active:
                active.clear()
                _restore(handlers, wakeup)
                # Ends the listener even where a forked worker still has a copy of the sender.
                sender.shutdown(socket.SHUT_RDWR)
                listener.join()
            sender.close()
            receiver.close()

    def _handle(self, signal_number: int, frame: Any) -> None:
        """Runs in the main thread; the listener counts."""
        self.request(signal_number)

    def _listen(self, receiver: socket.socket) -> None:
        """Reads the numbers of the signals that arrive, until the sender is closed."""
        while received := receiver.recv(1):
            if received[0] in _SIGNALS:
                self.request(received[0])
                if farewell := self._farewell:
                    os.write(sys.stdout.fileno(), f"{farewell}\n".encode())
                    os._exit(self.exit_code)
            self._interrupts += received[0] == signal.SIGINT
            if self._interrupts >= 2:
                if sys.stdout.isatty():
                    # A live line hides the cursor.
                    os.write(sys.stdout.fileno(), b"\x1b[?25h\n")
                os._exit(128 + signal.SIGINT)


def _restore(handlers: dict[signal.Signals, Any], wakeup: int) -> None:
    """Puts back what was set before `install`."""
    signal.set_wakeup_fd(wakeup)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _take(path: pathlib.Path) -> BinaryIO:
    """Opens and locks a file, which is made where it is missing."""
    while True:
        handle = path.open("a+b", buffering=0)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The owner before may have removed the file between these two calls.
            if _is_at(handle, path):
                return handle
        except BlockingIOError:
            handle.close()
            raise errors.LockError(
                f"{path.parent} belongs to a running trainer ({_owner(path)}): wait for it or choose another folder"
            ) from None
        handle.close()


def _is_at(handle: BinaryIO, path: pathlib.Path) -> bool:
    """Whether an open file is the one of that name."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _owner(path: pathlib.Path) -> str:
    """Reads who holds a lock; the owner writes its name right after it has taken it."""
    time.sleep(_OWNER_WRITES_WITHIN_S)
    unknown = "its process is unknown"
    try:
        return path.read_text(errors="replace") or unknown
    except FileNotFoundError:
        return unknown
