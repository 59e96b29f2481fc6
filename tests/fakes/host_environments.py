"""Environments with Gymnasium's API whose numbers are known, for processes of a worker pool: imports NumPy only."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from typing import Any

import numpy as np

LENGTH = 7


class Counting:
    """Counts its steps for 7 of them, as `toy` does: observation [steps, last action], reward steps / 2 + action."""

    def __init__(self, name: str) -> None:
        self._name, self._steps = name, 0

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._steps = 0
        return np.zeros(2), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = self._steps / 2 + action
        self._steps += 1
        ended = self._steps == LENGTH
        terminated, truncated = ended and self._name != "time_limit", ended and self._name != "episode"
        return np.array([self._steps, action], np.float64), reward, terminated, truncated, {}

    def close(self) -> None:
        pass


class Lives:
    """Tells its lives apart: observation [seed it was last given, its process, episodes, steps]; faults on demand.

    Args:
        length: of an episode.
        close: what `close` writes to, if anything.
        start: where the number of a process is written which each starts, in a session of its own.
        **faults: name of a fault -> [seed, steps] of the environment where it happens; -1 for any seed.
    """

    def __init__(
        self, length: int = 5, close: str = "", delay: float = 0.0, start: str = "", **faults: list[int]
    ) -> None:
        self._length, self._faults, self._close, self._delay = length, faults, close, delay
        self._seed, self._episodes, self._steps = -1, 0, 0
        if "build" in faults:
            raise RuntimeError("cannot be made")
        if start:
            process = subprocess.Popen(["sleep", "3600"], start_new_session=True)
            with open(start, "a") as file:
                file.write(f"{process.pid}\n")

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._seed = self._seed if seed is None else seed
        self._episodes, self._steps = self._episodes + 1, 0
        # Gym's, before version 0.26.
        return self._observation() if "old_reset" in self._faults else (self._observation(), {})  # type: ignore[return-value]

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        time.sleep(self._delay * (self._seed % 1000 == 0))
        now = [name for name, at in self._faults.items() if at[0] in (-1, self._seed) and at[1] == self._steps]
        if "kill" in now:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in now:
            time.sleep(3600)
        if "hold" in now:
            ctypes.PyDLL(None).sleep(3600)
        if "garbage" in now:
            for name in os.listdir("/proc/self/fd"):
                if os.path.realpath(f"/proc/self/fd/{name}").startswith(f"/proc/{os.getpid()}/fd/pipe:"):
                    with contextlib.suppress(OSError):
                        os.write(int(name), b"\xff\x7f\x00\x00" * 4)
            time.sleep(3600)
        if "raise" in now:
            raise ZeroDivisionError("the physics broke")
        observation, reward = self._observation(), 1.0
        if "shape" in now:
            observation = observation[:2]
        if "observation" in now:
            observation[1] = np.nan
        if "reward" in now:
            reward = float("nan")
        if "none" in now:
            reward = None  # type: ignore[assignment]
        if "array" in now:
            reward = np.ones(1)  # type: ignore[assignment]
        if "old_step" in now:
            return observation, reward, False, {}  # type: ignore[return-value]
        return observation, reward, self._steps == self._length, False, {}

    def close(self) -> None:
        if self._close:
            with open(self._close, "a") as file:
                file.write("closed\n")

    def _observation(self) -> np.ndarray:
        return np.array([self._seed, os.getpid(), self._episodes, self._steps], np.float64)


def counting(name: str) -> Counting:
    return Counting(name)


def lives(arguments: dict[str, Any]) -> Lives:
    return Lives(**arguments)
