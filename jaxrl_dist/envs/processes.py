"""Processes of a worker pool as its owner holds them: their pipes, the memory that they share, and their end."""

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

_CLOSE_S = 1.0
_POLL_S = 0.005
_READ_BYTES = 1 << 16
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from jaxrl_dist.envs import worker; worker.main()"
)


class Process:
    """One worker.

    Attributes:
        results: descriptor that can be read when environments have finished, or the worker has died.
    """

    def __init__(self, job: dict[str, Any], block: int) -> None:
        """Starts a fresh interpreter, never a fork, which would copy the locks of JAX's threads.

        Args:
            job: for `worker.main`, what JSON can hold.
            block: descriptor of the shared memory.
        """
        path = [os.path.abspath(entry) for entry in sys.path]
        # Several processes share the cores, and an accelerator is the trainer's.
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "JAX_PLATFORMS": "cpu"}
        commands, self._commands = os.pipe()
        self.results, results = os.pipe()
        # Nothing is ever written here: its end tells the worker that the owner is gone. The signal that the worker
        # asks for belongs to the pipe, so each has one of its own.
        lifeline, self._lifeline = os.pipe()
        os.set_blocking(self.results, False)
        try:
            # A process group of its own, so that Ctrl-C reaches the trainer alone, and that a kill takes along what
            # the environments have started.
            self._popen = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, json.dumps(path)],
                stdin=subprocess.PIPE,
                pass_fds=(commands, results, lifeline, block),
                env=environment,
                process_group=0,
            )
        except BaseException:
            self.stop()
            self.release()
            raise
        finally:
            for descriptor in (commands, results, lifeline):
                os.close(descriptor)
        stdin: Any = self._popen.stdin
        with contextlib.suppress(BrokenPipeError), stdin:
            descriptors = {"commands": commands, "results": results, "lifeline": lifeline, "block": block}
            stdin.write(json.dumps({**job, **descriptors, "path": path}).encode())

    def command(self, message: bytes) -> None:
        """Sends commands; a worker that has died is noticed when its results are read."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, message)

    def finished(self) -> np.ndarray | None:
        """Returns the environments i32 [N] that have finished since the last call, None once the worker has died."""
        try:
            received = os.read(self.results, _READ_BYTES)
        except BlockingIOError:
            return np.zeros(0, np.int32)
        return np.frombuffer(received, np.int32) if received else None

    def has_died(self) -> bool:
        """Whether the worker has ended; its number is not given to another process before `kill`."""
        try:
            return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def stop(self) -> None:
        """Asks the worker to close its environments and end."""
        os.close(self._commands)

    def kill(self, timeout_s: float = 0.0) -> int:
        """Ends the worker, by force unless it ends within the time, and all that it started; returns its exit code."""
        deadline = time.monotonic() + timeout_s
        while not self.has_died() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        return self._popen.wait()

    def release(self) -> None:
        """Closes what is left of its pipes."""
        os.close(self.results)
        os.close(self._lifeline)


class Resources:
    """All that must be given back when a pool ends, apart from the pool, so that it can be done after its death.

    Attributes:
        block: the shared memory; it has no name, so nothing is left of it however the processes die.
        processes: by index of the worker.
    """

    def __init__(self, size: int) -> None:
        """Makes the memory, zeros."""
        self._owner = os.getpid()
        self.processes: dict[int, Process] = {}
        self._memory = _anonymous_file()
        os.ftruncate(self._memory, size)
        self.block = mmap.mmap(self._memory, size)

    def start(self, index: int, job: dict[str, Any]) -> Process:
        """Starts a worker, in the place of an earlier one that was killed."""
        process = Process({**job, "index": index}, self._memory)
        self.processes[index] = process
        return process

    def end(self, index: int) -> tuple[int, np.ndarray]:
        """Ends a worker by force; returns its exit code and the environments that it had finished by then."""
        process = self.processes.pop(index)
        process.stop()
        code, found = process.kill(), [np.zeros(0, np.int32)]
        while (finished := process.finished()) is not None and finished.size:
            found.append(finished)
        process.release()
        return code, np.concatenate(found)

    def close(self) -> None:
        """Ends the workers, by force after a second, and frees memory and pipes; for a single call."""
        # A forked child that exits must not end its parent's workers.
        if os.getpid() != self._owner:
            return
        for process in self.processes.values():
            process.stop()
        deadline = time.monotonic() + _CLOSE_S
        for process in self.processes.values():
            process.kill(max(0.0, deadline - time.monotonic()))
            process.release()
        self.processes.clear()
        os.close(self._memory)


def _anonymous_file() -> int:
    """Returns a descriptor of memory without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("jaxrl_dist")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
