"""The watch of a process: says that it lives, and ends it with a line if another one is dead or has failed."""

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from jaxrl_dist import errors
from jaxrl_dist.processes import agreement, service

HEARTBEAT_S = 30.0
# A fault is told to the others; a process that has not ended by itself so long after that is ended by its watch, since
# it may wait in a collective for ever. The rest of 5 s is the time between two looks, and that to end.
_GRACE_S = 3.5
_LOOK_S = 0.5
# Libraries of collectives, which name themselves in their errors.
_COLLECTIVES = ("Gloo", "NCCL")


class Stop(Protocol):
    """Hears that the run is to stop, see `training.stop.StopToken`."""

    exit_code: int
    leave: Callable[[int], None]

    def heed(self, signal_number: int) -> None: ...


@contextlib.contextmanager
def watched(stop: Stop, heartbeat_s: float = HEARTBEAT_S) -> Iterator[None]:
    """Tells the other processes within the context that this one lives, that it is to stop, or that it failed.

    All processes must enter it. A request to stop reaches each of them within a second or two; each agrees on the
    moment by `exchange`. One that waits for a process that has failed or died is ended, with a line that says so.

    Args:
        stop: is told of the others' requests to stop.
        heartbeat_s: seconds without a sign of life after which a process counts as dead.

    Raises:
        Exception: an exception that leaves the context is told to the others.
    """
    if agreement.count() == 1:
        yield
        return
    agreement.begin_run()
    watch, leave = _Watch(stop, heartbeat_s), stop.leave

    def leave_with_others(exit_code: int) -> None:
        with contextlib.suppress(Exception):
            watch.say("stop", str(exit_code))
        leave(exit_code)

    stop.leave = leave_with_others
    watch.start()
    try:
        yield
    except BaseException as fault:
        if any(name in str(fault) for name in _COLLECTIVES):
            # A collective failed, most likely since a process has died: the watch will know, and end this one.
            time.sleep(heartbeat_s + 2 * _LOOK_S)
        if not hasattr(fault, "shared_in"):
            watch.say("fault", json.dumps(agreement.described(fault)))
        raise
    finally:
        stop.leave = leave
        watch.over.set()
        watch.join()


class _Watch(threading.Thread):
    """Says that this process lives, and looks whether the others do.

    Attributes:
        over: ends it.
    """

    def __init__(self, stop: Stop, heartbeat_s: float) -> None:
        super().__init__(name="watch", daemon=True)
        self.over = threading.Event()
        self._client, self._place = agreement.state().client, agreement.place_of_watch()
        self._stop_token, self._heartbeat_s = stop, heartbeat_s
        self._has_told = False
        now_s = time.monotonic()
        # When each of the others was last seen to live, and by which word.
        self._seen = {number: ("", now_s) for number in range(agreement.count()) if number != agreement.index()}

    def say(self, kind: str, text: str) -> None:
        """Says a word under the number of this process, which all others look at."""
        self._client.key_value_set(f"{self._place}/{kind}/{agreement.index()}", text, True)

    def run(self) -> None:
        for beat in itertools.count():
            try:
                self._tell(beat)
                words = self._client.key_value_dir_get(f"{self._place}/")
            except Exception as error:
                leave_at_once(f"the coordinator of the run is gone ({str(error).splitlines()[0]})")
            self._look({tuple(name.split("/")[-2:]): text for name, text in words})
            if self.over.wait(min(_LOOK_S, self._heartbeat_s / 4)):
                break
        with contextlib.suppress(Exception):
            self.say("over", "")

    def _tell(self, beat: int) -> None:
        self.say("beat", str(beat))
        if self._stop_token.exit_code and not self._has_told:
            self._has_told = True
            self.say("stop", str(self._stop_token.exit_code))

    def _look(self, words: dict[tuple[str, ...], str]) -> None:
        """Follows the others' words, and ends the process if one of them is dead or has failed."""
        for number, (word, since_s) in self._seen.items():
            stop, fault = words.get(("stop", str(number))), words.get(("fault", str(number)))
            if stop and not self._stop_token.exit_code:
                self._has_told = True
                self._stop_token.heed(int(stop) - 128)
            if ("over", str(number)) in words and not fault:
                continue
            beat = words.get(("beat", str(number)), "")
            if beat != word:
                self._seen[number] = beat, time.monotonic()
            elif time.monotonic() - since_s > self._heartbeat_s:
                leave_at_once(f"process {number} is gone: no sign of life for {self._heartbeat_s:g} s")
            if fault:
                self._end_after(agreement.fault_of(number, json.loads(fault)))

    def _end_after(self, fault: Exception) -> None:
        """Ends the process unless it ends by itself after a fault of another, as it does outside collectives."""
        if not self.over.wait(_GRACE_S):
            leave_at_once(errors.as_typed(fault))


def leave_at_once(reason: str) -> None:
    """Ends the process at once, with a line: it may wait in a collective, which nothing else can end."""
    line = f"process {agreement.index()}: {reason}; the same commands resume the run from its last checkpoint\n"
    with contextlib.suppress(OSError, ValueError):
        os.write(2, line.encode())
        service.say_left()
    os._exit(1)
