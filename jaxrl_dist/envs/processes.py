"""Processes of a worker pool as its owner holds them: their pipes, the memory that they share, and their end.

Linux only: memory without a name, and signals of pipes.
"""

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np

from jaxrl_dist.envs import worker

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


class Processes:
    """All that must be given back when a pool ends, apart from the pool, so that it can be done after its death.

    Attributes:
        block: arrays of the shared memory by name, at first zeros; the memory has none, so nothing is left of it
            however the processes die.
    """

    def __init__(self, fields: list[worker.Field], shares: list[np.ndarray], job: dict[str, Any]) -> None:
        """Makes the memory; `start` starts a worker.

        Args:
            fields: arrays of the memory.
            shares: environments of each worker.
            job: for `worker.main`, what is the same for every worker.
        """
        self._owner, self._shares = os.getpid(), shares
        self._job = {**job, "fields": fields}
        self._memory = os.memfd_create("jaxrl_dist")
        os.ftruncate(self._memory, worker.size(fields))
        self.block = worker.views(mmap.mmap(self._memory, worker.size(fields)), fields)
        self._running: dict[int, Process] = {}
        self._poll, self._index_of = select.poll(), dict[int, int]()

    def start(self, index: int) -> None:
        """Starts a worker, in the place of an earlier one that was ended."""
        self.block["env"][index], self.block["built"][index], self.block["text"][index] = -1, 0, 0
        process = Process({**self._job, "index": index, "envs": self._shares[index].tolist()}, self._memory)
        self._running[index] = process
        self._index_of[process.results] = index
        self._poll.register(process.results, select.POLLIN)

    def __getitem__(self, index: int) -> Process:
        """Returns a worker."""
        return self._running[index]

    def wait(self, timeout_s: float) -> list[int]:
        """Waits until workers have finished something or died, and returns their indices, none after the time."""
        return [self._index_of[results] for results, _ in self._poll.poll(1e3 * timeout_s)]

    def end(self, index: int, hung: str) -> tuple[str, np.ndarray]:
        """Ends a worker by force.

        Args:
            index: of the worker.
            hung: why, or "" where it has died.

        Returns:
            What happened to it, followed by its own traceback where it raised; the environments i32 [N] that it had
            finished and not yet told.
        """
        process, share = self._running.pop(index), self._shares[index]
        self._poll.unregister(process.results)
        del self._index_of[process.results]
        process.stop()
        code, found = process.kill(), [np.zeros(0, np.int32)]
        while (finished := process.finished()) is not None and finished.size:
            found.append(finished)
        process.release()
        at = self.block["env"][index]
        text = self.block["text"][index].tobytes().rstrip(b"\0").decode(errors="replace").rstrip()
        died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        what = f"the worker of environments {share[0]} … {share[-1]} {hung or ('raised' if text else died)}"
        what += f" at environment {at}" if at in share else ""
        return what + (f":\n{text}" if text else ""), np.concatenate(found)

    def close(self) -> None:
        """Ends the workers, by force after a second, and frees memory and pipes; for a single call."""
        # A forked child that exits must not end its parent's workers.
        if os.getpid() != self._owner:
            return
        for process in self._running.values():
            process.stop()
        deadline = time.monotonic() + _CLOSE_S
        for process in self._running.values():
            process.kill(max(0.0, deadline - time.monotonic()))
            process.release()
        self._running.clear()
        os.close(self._memory)
