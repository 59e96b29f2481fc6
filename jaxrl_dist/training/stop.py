"""Asks a run to stop: signals, and the token that every loop polls."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Shows a terminal's cursor again, which a live line hides, below that line.
_LINE_OVER = "\x1b[?25h\n"


def leave_on_signals() -> None:
    """Lets signals end the process silently with code 128 + the signal, while there is nothing to save.

    Python's own handler of SIGINT raises wherever the process happens to be: within a library's import, which turns it
    into another error, or in a callback from native code, which drops it, so that the process goes on.
    """
    for number in heeded():
        signal.signal(number, lambda number, frame: os._exit(128 + number))


class StopToken:
    """Says whether the run was asked to stop; every loop polls `requested`.

    Attributes:
        requested: whether the run is to save and end.
        exit_code: 0 without a request; 143 for SIGTERM, 130 for SIGINT, 129 for SIGHUP (a terminal or connection that
            was closed), whichever came first.
        leave: (exit code) ends the process at once, within `at_once`.
    """

    def __init__(self) -> None:
        self.leave: Callable[[int], None] = os._exit
        self.requested = False
        self.exit_code = 0
        self._interrupts = 0
        self._farewell = ""

    def request(self, signal_number: int = signal.SIGTERM) -> None:
        """Asks the run to stop, as that signal would; a later request changes nothing."""
        if not self.requested:
            self.exit_code = 128 + signal_number
            self.requested = True

    def heed(self, signal_number: int) -> None:
        """Asks the run to stop as that signal does to the process that gets it; any thread may call it."""
        self.request(signal_number)
        if farewell := self._farewell:
            with contextlib.suppress(OSError):
                os.write(sys.stdout.fileno(), f"{_LINE_OVER * sys.stdout.isatty()}{farewell}\n".encode())
            self.leave(self.exit_code)

    @contextlib.contextmanager
    def at_once(self, farewell: str) -> Iterator[None]:
        """Within the context, a signal that `install` listens to ends the process at once, with this line.

        It is meant for work that cannot be interrupted, such as compiling, while there is nothing to save.
        """
        self._farewell = farewell
        try:
            yield
        finally:
            self._farewell = ""

    @contextlib.contextmanager
    def install(self) -> Iterator["StopToken"]:
        """Listens to signals within the context; a second SIGINT ends the process at once with code 130.

        Python runs signal handlers only between two steps of the main thread, which may compile for a minute. So a
        thread reads the signals, and the second SIGINT works even then. Outside the main thread, where no handler can
        be set, this only yields the token.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        listener = threading.Thread(target=self._listen, args=(receiver,), name="signals", daemon=True)
        listener.start()
        handlers = {number: signal.signal(number, self._handle) for number in heeded()}
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

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within the context, the first Ctrl-C asks to stop and is raised at the end, a second one is raised at once.

        It is meant for a notebook or a program of the user's own. Outside the main thread, and where a handler of
        theirs is set, it changes nothing.
        """
        own = signal.default_int_handler
        if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not own:
            yield
            return

        def interrupt(number: int, frame: Any) -> None:
            if self.requested:
                own(number, frame)
            self.request(number)

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, own)
        if self.exit_code == 128 + signal.SIGINT:
            raise KeyboardInterrupt

    def _handle(self, signal_number: int, frame: Any) -> None:
        """Does nothing, but must be set for the signal to reach the listener, which counts it."""
        self.request(signal_number)

    def _listen(self, receiver: socket.socket) -> None:
        """Reads the numbers of the signals that arrive, until the sender is closed."""
        while received := receiver.recv(1):
            if received[0] in _SIGNALS:
                self.heed(received[0])
            self._interrupts += received[0] == signal.SIGINT
            if self._interrupts >= 2:
                if sys.stdout.isatty():
                    os.write(sys.stdout.fileno(), _LINE_OVER.encode())
                os._exit(128 + signal.SIGINT)


def heeded() -> list[signal.Signals]:
    """Lists the signals that ask to stop, without those that the process ignores: SIGHUP under `nohup`, for one.

    Example:
        >>> import signal
        >>> from jaxrl_dist.training import stop
        >>> signal.SIGTERM in stop.heeded()
        True
    """
    return [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _restore(handlers: dict[signal.Signals, Any], wakeup: int) -> None:
    """Restores the handlers from before `install`."""
    signal.set_wakeup_fd(wakeup)
    for number, handler in handlers.items():
        signal.signal(number, handler)
