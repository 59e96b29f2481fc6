"""Trains by the command, in environments of which those of process 1 misbehave: `python in_processes.py HOW FLAGS`.

With `raises_exactly` they are those of a device suite, which are saved with the run. With `alone` no others come, and
the wait for them is short. With `hangs_evaluating` only those of its second evaluation hang. With `writes_for_ever` the
folder of process 1 answers no more after the first checkpoint, and with `lost_folder` it is not there.
"""

import itertools
import os
import pathlib
import signal
import sys
import threading
import time
from typing import Any

from fakes import host

from jaxrl_dist import commands, envs, errors, processes
from jaxrl_dist.envs.host import as_host
from jaxrl_dist.processes import group
from jaxrl_dist.runs import checkpoint

AT_STEP = 400


def before_step(walk: host.Walk) -> None:
    """Does what the first argument says before a step of process 1."""
    if processes.index() != 1:
        return
    if HOW == "slow":
        time.sleep(0.002)
    if HOW == "hangs_evaluating" and not threading.current_thread().name.startswith("actor"):
        if walk not in EVALUATED:
            EVALUATED.append(walk)
        if len(EVALUATED) == 2 and walk.total_steps == 3:
            host.sleep_forever()
        return
    if walk.total_steps < AT_STEP or not os.path.isdir(f"{OUT}/checkpoints"):
        return
    if HOW in ("raises", "hangs"):
        # Of the whole run's environment steps, if all environments are as far.
        pathlib.Path(OUT, "misbehaved").write_text(str(walk.total_steps * NUM_ENVS), encoding="utf-8")
    if HOW == "raises":
        raise errors.EnvironmentFault("the floor is missing")
    if HOW == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "hangs":
        time.sleep(3600)


def write_own(new: pathlib.Path, tree: Any, write: Any = checkpoint._write_own) -> Any:
    """Writes the pieces of a checkpoint, as long as the folder of process 1 is there."""
    if processes.index() == 1 and checkpoint.latest(new.parent):
        if HOW == "writes_for_ever":
            time.sleep(3600)
        return write(new / "away", tree)
    return write(new, tree)


HOW = sys.argv.pop(1)
NUM_ENVS = 8
# Environments of the evaluations of this process so far.
EVALUATED: list[host.Walk] = []
OUT = next(flag.partition("=")[2] for flag in sys.argv if flag.startswith("--out="))

if __name__ == "__main__":
    if HOW == "alone":
        group.START_S = 3.0
    if HOW in ("writes_for_ever", "lost_folder"):
        checkpoint._WRITE_WITHIN_S, checkpoint._write_own = 2.0, write_own
    elif HOW == "raises_exactly":
        step, calls = as_host.AsHost.raw_recv, itertools.count()

        def broken(environment: as_host.AsHost) -> object:
            if processes.index() == 1 and next(calls) == AT_STEP:
                raise errors.EnvironmentFault("the floor is missing")
            return step(environment)

        as_host.AsHost.raw_recv = broken
    else:
        envs.make = lambda name, params=None: host.task(before_step, [])
    sys.exit(commands.start("train"))
