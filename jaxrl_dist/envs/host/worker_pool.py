"""A pool of processes that step environments on the CPU, behind `envs.HostEnvironment`; it knows no suite.

Numbers cross in one block of shared memory, and indices of environments in pipes: a pipe wakes as quickly as a
semaphore, and closes when the process at its other end dies. A worker that dies, raises or hangs is replaced.
"""

import collections
import contextlib
import json
import mmap
import os
import pathlib
import secrets
import select
import signal
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import checked, hangs, lifeline, worker_process
from jaxrl_dist.processes import cgroups

_CHECK_S = 0.1
_CLOSE_S = 1.0
_POLL_S = 0.005
_READ_BYTES = 1 << 16
# Environment variable that everything a worker starts inherits, also in another session.
_MARK = "JAXRL_DIST_WORKER"
_PASSES = 3
# Run by its path, since importing the package around it would import JAX.
_BOOTSTRAP = "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[1]); runpy.run_path(sys.argv[2])['main']()"


class Plan(NamedTuple):
    """Describes the environments and processes of a pool.

    Attributes:
        spec: spec of one environment.
        factory: makes an environment in a process, with Gymnasium's `reset(seed=)`, `step(action)` and `close()`.
        leaves: arrays of an observation as the environment returns it.
        observation: (list of these arrays, each [N, ...]) -> tree of [N, ...] as in `spec.observation`.
        action_dtype: dtype of actions for the environment.
        action_shape: their shape there, None for that of the spec.
        action_start: added to actions of the spec, an array of `action_shape` or one number; None adds nothing.
        workers: largest number of processes; 0 takes as many as there are cores.
        max_restarts: number of workers that may be replaced over the life of the pool; the next fault ends it.
    """

    spec: types.EnvironmentSpec
    factory: worker_process.Factory
    leaves: tuple[worker_process.Leaf, ...]
    observation: Callable[[list[np.ndarray]], Any]
    action_dtype: str
    action_shape: tuple[int, ...] | None = None
    action_start: Any = None
    workers: int = 0
    max_restarts: int = 3

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of one action for the environment."""
        found: tuple[int, ...] = self.spec.action.struct.shape
        return found if self.action_shape is None else self.action_shape

    def sent(self, action: np.ndarray) -> np.ndarray:
        """Returns actions [N, ...] of the spec as the environment takes them, not yet in its dtype."""
        action = action.reshape(-1, *self.shape)
        return action if self.action_start is None else action + self.action_start


class WorkerPool(checked.Checked):
    """B environments, of which each process steps a fixed share; see `envs.HostEnvironment`.

    If a worker is replaced, the episodes of its environments end at their last observation (LAST, discount 1, reward 0,
    length 0), and the next step returns FIRST from the new process, with new seeds.

    Attributes:
        timeout_s: longest step.
        waiting_since: always 0, since the pool ends its waits itself.
    """

    waiting_since = 0.0

    def __init__(self, plan: Plan, seeds: np.ndarray, batch_size: int, timeout_s: float) -> None:
        """Starts the processes, and does not wait for them.

        Args:
            plan: environments and processes.
            seeds: u32 [B] of 31 bits.
            batch_size: number of environments that `recv` returns at a time.
            timeout_s: longest step, or reset.

        Raises:
            ValueError: a number is out of range.
        """
        super().__init__(plan.spec, len(seeds), batch_size)
        if not 1 <= batch_size <= self.num_envs or timeout_s <= 0:
            expected = f"expected 1 to {self.num_envs}, and more than 0"
            raise ValueError(f"{plan.spec.name}: batch_size={batch_size} and timeout_s={timeout_s}, {expected}")
        self._plan, self.timeout_s = plan, timeout_s
        self._seeds = np.asarray(seeds, np.uint32)
        num_workers = min(plan.workers or cgroups.num_cores(), self.num_envs)
        self._shares = np.array_split(self._all, num_workers)
        self._owner = np.repeat(np.arange(num_workers), [len(share) for share in self._shares])
        self._since, self._stood_s = np.zeros((2, num_workers))
        # An environment is busy from `send` to `recv`, and pending until its worker has stepped it. It is stale after
        # its process was replaced, and cut while the row that ends its episode for that reason waits for `recv`.
        self._pending, self._stale, self._cut = np.zeros((3, self.num_envs), bool)
        self._ended, self._was_reset = np.ones(self.num_envs, bool), False
        self._lives = np.zeros(self.num_envs, np.int64)
        self._ready: collections.deque[int] = collections.deque()
        self._restarts = 0
        self._next_check = 0.0
        action = (plan.shape, plan.action_dtype)
        self._processes = Processes(
            worker_process.fields(self.num_envs, num_workers, action, plan.leaves),
            self._shares,
            {"factory": plan.factory, "leaves": plan.leaves, "eager": batch_size < self.num_envs},
        )
        self._close = weakref.finalize(self, self._processes.close)
        self._block = self._processes.block
        for index in range(num_workers):
            self._processes.start(index)

    def raw_reset(self) -> envs.RawStep:
        """Starts every environment anew, with its first seed; waits for those that are being stepped."""
        self._check_usable()
        while self._pending.any():
            self._wait()
        self._ready.clear()
        self._stale[:] = self._cut[:] = False
        self._ended[:] = self._was_reset = True
        self._block["seed"][:] = self._seeds
        self._busy[:] = True
        self._dispatch(~self._all)
        return self._receive(self.num_envs)[0]

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step of some environments."""
        self._check_started()
        self._busy[env_ids] = True
        self._block["action"][env_ids] = self._plan.sent(action)
        stale = self._stale[env_ids]
        if stale.any():
            renewed = stale & self._ended[env_ids]
            self._renew(env_ids[renewed])
            for env in env_ids[stale & ~renewed]:
                self._cut_short(int(env))
            env_ids = np.where(renewed, ~env_ids, env_ids)[~stale | renewed]
        self._dispatch(env_ids)

    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        """Waits for the first `batch_size` environments, in the order in which they became ready.

        If `batch_size` is B, they are in the order of their indices.
        """
        self._check_started()
        return self._receive(self.batch_size)

    def close(self) -> None:
        """Ends the processes, by force after a second; further calls do nothing."""
        self._close()

    def _check_usable(self) -> None:
        super()._check_usable()
        if not self._close.alive:
            raise RuntimeError(f"{self.spec.name}: the pool is closed")

    def _check_started(self) -> None:
        self._check_usable()
        if not self._was_reset:
            raise RuntimeError(f"{self.spec.name}: reset the environments first")

    def _dispatch(self, commands: np.ndarray) -> None:
        """Sends commands i32 [N], `env` to step and `~env` to reset with its seed, to the workers."""
        envs = np.maximum(commands, ~commands)
        self._block["slot"][envs] ^= 1
        self._pending[envs] = True
        owner = self._owner[envs]
        order = owner.argsort(kind="stable")
        bounds = 4 * owner[order].searchsorted(np.arange(len(self._shares) + 1))
        message, now, stood_s = commands[order].tobytes(), time.monotonic(), _stood_still_s()
        for index, (low, high) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
            if low < high:
                self._since[index], self._stood_s[index] = now, stood_s
                self._processes[index].command(message[low:high])

    def _receive(self, count: int) -> tuple[envs.RawStep, np.ndarray]:
        # Checked even if enough are ready, since the others go on while one hangs.
        if time.monotonic() >= self._next_check:
            self._check_workers()
        while len(self._ready) < count:
            self._wait()
        ids = np.asarray([self._ready.popleft() for _ in range(count)], np.int32)
        return self._rows(self._all.copy() if count == self.num_envs else ids)

    def _rows(self, ids: np.ndarray) -> tuple[envs.RawStep, np.ndarray]:
        rows = self._block["slot"][ids] * self.num_envs + ids
        leaves = [
            self._block[f"leaf{i}"].reshape(2 * self.num_envs, *leaf.shape).take(rows, 0)
            for i, leaf in enumerate(self._plan.leaves)
        ]
        is_cut, flags, is_reset = self._cut[ids], self._block["flags"][ids], self._ended[ids]
        is_last = np.where(is_reset, False, flags != 0) | is_cut
        self._busy[ids] = self._cut[ids] = False
        self._ended[ids] = is_last
        observation, reward = self._plan.observation(leaves), self._block["reward"][ids]
        terminated = (flags & worker_process.TERMINATED) != 0
        return envs.RawStep(observation, reward, is_reset | is_cut, is_last, ~terminated), ids

    def _wait(self) -> None:
        """Waits for a worker, at most until the next check of all workers."""
        for index in self._processes.wait(_CHECK_S):
            self._take(index)
        if time.monotonic() >= self._next_check:
            self._check_workers()

    def _take(self, index: int) -> None:
        """Takes the environments that a worker has finished; replaces a worker that has died."""
        try:
            finished = self._processes[index].finished()
            if finished is not None:
                self._finish(finished)
                return
            what = ""
        except (ValueError, IndexError):
            what = "wrote no message of ours"
        self._replace(index, what)

    def _finish(self, envs: np.ndarray) -> None:
        """Notes environments u32 [N] that have been stepped.

        Raises:
            ValueError: one of them was not asked to step, so something else has written into the worker's pipe.
            IndexError: there is no such environment, for the same reason.
        """
        if not self._pending[envs].all():
            raise ValueError(envs)
        self._pending[envs] = False
        self._ready.extend(envs.tolist())

    def _check_workers(self) -> None:
        """Replaces workers that have died, or have spent too long on one step."""
        self._next_check = time.monotonic() + min(_CHECK_S, self.timeout_s / 4)
        for index, share in enumerate(self._shares):
            self._take(index)
            # The pipe of a dead worker may be held open by a process that an environment has started.
            if self._processes[index].has_died():
                self._replace(index, "")
            limit = self.timeout_s if self._block["built"][index] else max(self.timeout_s, hangs.MAKE_S)
            since = max(self._since[index], self._block["since"][index])
            waited_s = time.monotonic() - since - (_stood_still_s() - self._stood_s[index])
            if self._pending[share].any() and waited_s > limit:
                self._replace(index, f"did not answer within {limit:g} s")

    def _replace(self, index: int, wrong: str) -> None:
        """Replaces a process that has died, or that did something wrong, which `wrong` names.

        Raises:
            EnvironmentFault: no more workers may be replaced.
        """
        share = self._shares[index]
        fate, raised, finished = self._processes.end(index, wrong)
        with contextlib.suppress(ValueError, IndexError):
            self._finish(finished)
        error, _, frames = raised.partition("\n")
        what, most = f"{self.spec.name}: {fate}{': ' * bool(error)}{error}", self._plan.max_restarts
        self._restarts += 1
        # The place is told in full only the first time.
        place = f"\n{frames}" if frames and self._restarts == 1 else ""
        # An environment that raises before its first step would do so in another process too.
        is_wrong = bool(raised) and not self._block["stepped"][index]
        if is_wrong or self._restarts > most:
            if place:
                warnings.warn(f"{what}{place}", RuntimeWarning, stacklevel=2)
            allowed = f"; {most} were replaced before, as many as ", errors.given("env.params.max_restarts"), " allows"
            never = ("; it never made a step, so no other process is tried",)
            self._fault = errors.EnvironmentFault(what, *(never if is_wrong else allowed))
            self.close()
            raise self._fault
        warnings.warn(f"replaced ({self._restarts} of {most}): {what}{place}", RuntimeWarning, stacklevel=2)
        self._processes.start(index)
        self._since[index], self._stood_s[index] = time.monotonic(), _stood_still_s()
        ended, lost = self._ended[share], self._pending[share]
        self._stale[share] = True
        for env in share[lost & ~ended]:
            # The slot with its last whole row is the other one: the process may have been writing to this.
            self._block["slot"][env] ^= 1
            self._pending[env] = False
            self._cut_short(int(env))
        if (lost & ended).any():
            self._renew(share[lost & ended])
            self._dispatch(~share[lost & ended])

    def _cut_short(self, env: int) -> None:
        """Makes the next row of an environment end its episode at its last observation."""
        self._cut[env] = True
        self._ready.append(env)

    def _renew(self, envs: np.ndarray) -> None:
        """Gives environments new seeds, for their first reset in a new process."""
        self._stale[envs] = False
        self._lives[envs] += 1
        for env in envs:
            sequence = np.random.SeedSequence((int(self._seeds[env]), int(self._lives[env])))
            self._block["seed"][env] = sequence.generate_state(1)[0] >> 1


def _stood_still_s() -> float:
    """Returns the seconds in which this process stood still, from a time before it began."""
    return time.monotonic() - hangs.now()


class Process:
    """One worker.

    Attributes:
        results: descriptor that is readable when environments have finished, or the worker has died.
    """

    def __init__(self, job: dict[str, Any], block: int, mark: str) -> None:
        """Starts a fresh interpreter, never a fork, which would copy the locks of JAX's threads.

        Args:
            job: argument of `worker_process.main`, of JSON's types.
            block: descriptor of the shared memory.
            mark: marks everything that it starts, see `_end_marked`.
        """
        path = [os.path.abspath(entry) for entry in sys.path]
        # Several processes share the cores, and an accelerator is the trainer's.
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "JAX_PLATFORMS": "cpu", _MARK: mark}
        commands, self._commands = os.pipe()
        self.results, results = os.pipe()
        # Each worker has a pipe of its own, since the signal is set for the pipe.
        line, self._lifeline = os.pipe()
        os.set_blocking(self.results, False)
        try:
            # A process group of its own, so that Ctrl-C reaches the trainer alone, and that a kill also ends the
            # programs that environments have started.
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOTSTRAP, json.dumps(path), worker_process.__file__],
                stdin=subprocess.PIPE,
                pass_fds=(commands, results, line, block),
                env=environment,
                process_group=0,
            )
            lifeline.tie(line, -self._popen.pid, signal.SIGKILL)
        except BaseException:
            self.stop()
            self.release()
            raise
        finally:
            for descriptor in (commands, results, line):
                os.close(descriptor)
        stdin: Any = self._popen.stdin
        with contextlib.suppress(BrokenPipeError), stdin:
            descriptors = {"commands": commands, "results": results, "block": block}
            stdin.write(json.dumps({**job, **descriptors, "path": path}).encode())

    def command(self, message: bytes) -> None:
        """Sends commands; does not notice that the worker has died, which reading its results does."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, message)

    def finished(self) -> np.ndarray | None:
        """Returns the environments u32 [N] that have finished since the last call, None once the worker has died.

        Raises:
            ValueError: the pipe holds something else.
        """
        try:
            received = os.read(self.results, _READ_BYTES)
        except BlockingIOError:
            return np.zeros(0, np.uint32)
        return np.frombuffer(received, np.uint32) if received else None

    def has_died(self) -> bool:
        """Says whether the worker has ended; the system does not reuse its process number before `kill`."""
        try:
            return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True

    def stop(self) -> None:
        """Asks the worker to close its environments and end."""
        os.close(self._commands)

    def kill(self, timeout_s: float = 0.0) -> int:
        """Ends the worker and all that it started, by force after `timeout_s`; returns the worker's exit code."""
        deadline = time.monotonic() + timeout_s
        while not self.has_died() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        return self._popen.wait()

    def release(self) -> None:
        """Closes the pipes that are still open."""
        os.close(self.results)
        os.close(self._lifeline)


class Processes:
    """Processes, memory and pipes of a pool; an object of its own, so that they are freed even after the pool is gone.

    Attributes:
        block: arrays of the shared memory by name, zeros at first. The memory has no name in the file system, so it is
            freed even if all processes are killed.
    """

    def __init__(self, fields: list[worker_process.Field], shares: list[np.ndarray], job: dict[str, Any]) -> None:
        """Makes the memory; `start` starts a worker.

        Args:
            fields: arrays of the memory.
            shares: environments of each worker.
            job: the part of `worker_process.main`'s argument that is the same for every worker.
        """
        self._owner, self._shares, self._mark = os.getpid(), shares, secrets.token_hex(8)
        self._job = {**job, "fields": fields}
        self._memory = os.memfd_create("jaxrl_dist")
        os.ftruncate(self._memory, worker_process.size(fields))
        self.block = worker_process.views(mmap.mmap(self._memory, worker_process.size(fields)), fields)
        self._running: dict[int, Process] = {}
        self._poll, self._index_of = select.poll(), dict[int, int]()

    def start(self, index: int) -> None:
        """Starts a worker, or its successor."""
        self.block["env"][index], self.block["built"][index], self.block["text"][index] = -1, 0, 0
        job = {**self._job, "index": index, "envs": self._shares[index].tolist()}
        process = Process(job, self._memory, f"{self._mark}.{index}.")
        self._running[index] = process
        self._index_of[process.results] = index
        self._poll.register(process.results, select.POLLIN)

    def __getitem__(self, index: int) -> Process:
        """Returns a worker."""
        return self._running[index]

    def wait(self, timeout_s: float) -> list[int]:
        """Waits until workers have finished environments or died; returns their indices, none after `timeout_s`."""
        return [self._index_of[results] for results, _ in self._poll.poll(1e3 * timeout_s)]

    def end(self, index: int, wrong: str) -> tuple[str, str, np.ndarray]:
        """Ends a worker by force.

        Args:
            index: index of the worker.
            wrong: its mistake in words, or "" if it has died.

        Returns:
            Its fate in words; its error by `worker_process.described`, "" without one; and the environments u32 [N]
            that it had finished and not yet reported.
        """
        process, share = self._running.pop(index), self._shares[index]
        self._poll.unregister(process.results)
        del self._index_of[process.results]
        process.stop()
        code, found = process.kill(), [np.zeros(0, np.uint32)]
        with contextlib.suppress(ValueError):
            while (finished := process.finished()) is not None and finished.size:
                found.append(finished)
        process.release()
        _end_marked(f"{self._mark}.{index}.")
        at = self.block["env"][index]
        text = self.block["text"][index].tobytes().rstrip(b"\0").decode(errors="replace").rstrip()
        text = "\n".join(map(errors.printable, text.splitlines()))
        died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        what = f"the worker of environments {share[0]} … {share[-1]} {wrong or ('raised' if text else died)}"
        what += f" at environment {at}" if at in share else ""
        return what, text, np.concatenate(found)

    def close(self) -> None:
        """Ends the workers, by force after a second, and frees memory and pipes; call it only once."""
        # A forked child that exits must not end its parent's workers.
        if os.getpid() != self._owner:
            return
        for process in self._running.values():
            process.stop()
        deadline = time.monotonic() + _CLOSE_S
        for process in self._running.values():
            process.kill(max(0.0, deadline - time.monotonic()))
            process.release()
        _end_marked(f"{self._mark}.")
        self._running.clear()
        os.close(self._memory)


def _end_marked(mark: str) -> None:
    """Ends processes that workers have left behind, also in other sessions: those whose mark begins with `mark`."""
    wanted = f"{_MARK}={mark}".encode()
    for _ in range(_PASSES):
        for process in filter(str.isdecimal, os.listdir("/proc")):
            # The process is another user's, or gone.
            with contextlib.suppress(OSError):
                if wanted in pathlib.Path("/proc", process, "environ").read_bytes():
                    os.kill(int(process), signal.SIGKILL)
