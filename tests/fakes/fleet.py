"""The counting environments of `fakes.host` for players of a fleet, with a fault that one of them commits, once."""

import functools
import os
import pathlib
import signal
import threading
import time
from typing import Any

from fakes import host

from jaxrl_dist import envs
from jaxrl_dist.training import assemble

# Of an environment, in its first life as in others.
AT_STEP = 30
PLAYING = "playing-"
# Set in a player whose steps take long from then on.
_slow = threading.Event()


def commit(folder: str, walk: host.Walk) -> None:
    """Commits the fault that a file of the folder is named for; the player that removes the file does, and no other.

    A player that plays leaves a file there, whose name has its process, and whose text has that of its machine's Ray.
    """
    if walk.total_steps == 1:
        (pathlib.Path(folder) / f"{PLAYING}{os.getpid()}").write_text(str(os.getppid()))
    for path in pathlib.Path(folder).glob("fault-*") if walk.total_steps == AT_STEP else ():
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        _FAULTS[path.name.removeprefix("fault-")]()
    if _slow.is_set():
        time.sleep(0.2)


def _raise() -> None:
    raise host.Broken("the simulator fell over")


_FAULTS: dict[str, Any] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sleeping": lambda: time.sleep(3600),
    "raising": _raise,
    "slow": lambda: _slow.set(),
}


def task(folder: str) -> envs.HostTask:
    return host.task(functools.partial(commit, folder))


def acting_parts(folder: str, settings: Any) -> tuple[Any, envs.HostTask]:
    """Stands in for `assemble.acting_parts`."""
    made = task(folder)
    return assemble.make_agent(settings, made.spec), made
