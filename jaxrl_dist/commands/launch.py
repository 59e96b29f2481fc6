"""Starts the processes of one run on this machine, each with its share of the cores, and ends them together.

Example: launch.py --processes=2 -- train --system=ppo --env=gymnax:CartPole-v1 --out=runs/two
"""

import collections
import contextlib
import dataclasses
import math
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

from jaxrl_dist import commands, errors
from jaxrl_dist.envs.host import lifeline
from jaxrl_dist.processes import service, watch
from jaxrl_dist.settings import command_line, setting
from jaxrl_dist.systems import training_flags
from jaxrl_dist.training import stop

_NAME = "launch"
_LISTENS_AT, _VISIBLE = "127.0.0.1", "CUDA_VISIBLE_DEVICES"
# Files of the GPUs that this machine or container has; CUDA counts them from 0.
_DEVICES, _GPUS = pathlib.Path("/dev"), "nvidia[0-9]*"
_LOOK_S = 0.1
# Those that run notice by themselves that one has died; after so long those that still wait for it to begin are ended.
_END_OTHERS_S = watch.HEARTBEAT_S + 30.0


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the command."""

    processes: int = setting(2, "Number of processes.", low=1, high=1024)


def main(arguments: Sequence[str]) -> int:
    """Runs the processes; returns 0, or the exit code of the first that failed."""
    usage = f"{commands.usage(_NAME)} [--processes=2] -- train [flags of training]"
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    advice = "(--help lists them; those of training go after --)"
    options, given = command_line.options(Config, arguments[:end], usage, str(__doc__), advice=advice)
    commands.no_more(given.rest)
    name, flags = arguments[end + 1 : end + 2], list(arguments[end + 2 :])
    if list(name) != ["train"]:
        raise errors.UsageError(
            f"expected the command of the processes, -- train [flags], got {' '.join(name) or 'none'}"
        )
    set_here = [flag for flag in command_line.names(flags) if flag in ("processes", "process_index", "coordinator")]
    if set_here:
        raise errors.UsageError(errors.given(set_here[0]), " is given to each process by this command; leave it out")
    # A wrong flag is said once, and before anything starts.
    command = training_flags.parse([*flags, f"--processes={options.processes}"], commands.usage("train"))
    if command.settings is None or command.dry_run:
        raise errors.UsageError("a run is expected: --help, --list, --version and --dry_run need no processes")
    return run(options.processes, flags)


def run(count: int, flags: Sequence[str]) -> int:
    """Runs the processes of a training command; passes on signals, which save the run.

    Args:
        count: number of processes.
        flags: of the training command.

    Returns:
        0, or the exit code of the first process that failed.
    """
    address = f"{_LISTENS_AT}:{_free_port()}"
    asked = collections.deque[int]()
    for number in stop.heeded():
        signal.signal(number, lambda number, frame: asked.append(number))
    gpus = _gpus()
    if idle := _idle(gpus, count):
        told = f"{len(gpus)} GPUs cannot be shared equally by {count} processes; idle: {', '.join(idle)}"
        commands.complain(_NAME, f"warning: {told}")
    started = list[subprocess.Popen[bytes]]()
    with contextlib.ExitStack() as lines:
        for index in range(count):
            # Those that have started get the signal below; another one would only be told to end at once.
            if not asked:
                line = lines.enter_context(lifeline.pipe())
                visible = _accelerators(gpus, index, count)
                started.append(_start(index, count, flags, address, line, visible))
        code = _wait(started, asked)
    # Before the first process there may have been a signal alone.
    code = code or -next(iter(asked), 0)
    return code if code >= 0 else 128 - code


def _wait(started: Sequence[subprocess.Popen[bytes]], asked: collections.deque[int]) -> int:
    """Waits until all processes have ended, and passes on signals; returns the first code that is not 0, or 0."""
    code, end_others_s, was_asked = 0, math.inf, False
    while None in [process.poll() for process in started]:
        was_asked = _pass_on(asked, started) or was_asked
        # After a signal those that are left save, for as long as it takes; another one would cut that short.
        if not code and (code := _failed(started)) and not was_asked:
            end_others_s = time.monotonic() + _END_OTHERS_S
        if time.monotonic() > end_others_s:
            asked.append(signal.SIGTERM)
            end_others_s = math.inf
        # A signal must find this process awake, and not in one wait for ever.
        time.sleep(_LOOK_S)
    return code or _failed(started)


def _failed(started: Sequence[subprocess.Popen[bytes]]) -> int:
    """Returns the exit code of a process that has failed, 0 without one."""
    return next((process.returncode for process in started if process.returncode), 0)


def _start(
    index: int, count: int, flags: Sequence[str], address: str, line: int, visible: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a process, which ends as by SIGTERM, saved, when the other end of the pipe `line` closes."""
    own = [f"--processes={count}", f"--process_index={index}", f"--coordinator={address}"] if count > 1 else []
    with _cores(index, count):
        process = subprocess.Popen(
            [*commands.command_of("train"), *flags, *own],
            stdout=None if index == 0 else subprocess.DEVNULL,
            # Signals of the terminal reach this process, which passes them on, once.
            start_new_session=True,
            env={**service.environ(), **visible},
            pass_fds=(line,),
        )
    lifeline.tie(line, process.pid, signal.SIGTERM)
    return process


def _pass_on(asked: collections.deque[int], started: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Sends the processes the signals that have come; returns whether there were any."""
    were_any = False
    while asked:
        number, were_any = asked.popleft(), True
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
    return were_any


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((_LISTENS_AT, 0))
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def _cores(index: int, count: int) -> Iterator[None]:
    """Gives a process that starts within the context cores of its own, if there are enough for all."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        if len(cores) >= count:
            os.sched_setaffinity(0, cores[index::count])
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _accelerators(gpus: Sequence[str], index: int, count: int) -> dict[str, str]:
    """Returns the GPUs of a process where all can have one; all get as many, since a run takes equal parts."""
    own = gpus[index::count][: len(gpus) // count]
    return {_VISIBLE: ",".join(own)} if own and count > 1 else {}


def _idle(gpus: Sequence[str], count: int) -> Sequence[str]:
    """Returns the GPUs that no process gets where each has some of its own."""
    return gpus[len(gpus) // count * count :] if len(gpus) > count else ()


def _gpus() -> list[str]:
    """Returns the GPUs that the environment names, or that the machine has."""
    named = os.environ.get(_VISIBLE)
    return [str(i) for i, _ in enumerate(_DEVICES.glob(_GPUS))] if named is None else named.split(",")
