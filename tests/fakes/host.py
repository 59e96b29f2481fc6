"""Environments in plain NumPy for tests: every observation says whose it is, in which life and at which step."""

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_dist import envs, types
from jaxrl_dist.envs.host import checked, hangs

LENGTH = 7


class Broken(RuntimeError):
    """Raised by an environment."""


class Walk(checked.Checked):
    """B environments that count; observation [environment's seed, episode, step], reward 1, an episode is 7 steps."""

    def __init__(
        self, seeds: np.ndarray, timeout_s: float, before_step: Callable[["Walk"], None], terminates: bool = True
    ) -> None:
        super().__init__(spec(), len(seeds), len(seeds))
        self.timeout_s, self.waiting_since = timeout_s, 0.0
        self.seeds, self.total_steps, self.is_closed = np.asarray(seeds, np.float32), 0, False
        self._before_step, self._terminates = before_step, terminates

    def raw_reset(self) -> envs.RawStep:
        self._episode, self._step = np.zeros(self.num_envs), np.zeros(self.num_envs)
        return self._row(self._all)

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        self._busy[env_ids] = True

    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        self.total_steps += 1
        self.waiting_since = hangs.now()
        self._before_step(self)
        self.waiting_since = 0.0
        self._busy[:] = False
        self._walk(self._all)
        return self._row(self._all), self._all

    def close(self) -> None:
        self.is_closed = True

    def _walk(self, env_ids: np.ndarray) -> None:
        ended = self._step[env_ids] == LENGTH
        self._episode[env_ids] += ended
        self._step[env_ids] = np.where(ended, 0, self._step[env_ids] + 1)

    def _row(self, env_ids: np.ndarray) -> envs.RawStep:
        observation = np.stack([self.seeds, self._episode, self._step], -1).astype(np.float32)[env_ids]
        is_first, is_last = self._step[env_ids] == 0, self._step[env_ids] == LENGTH
        return envs.RawStep(observation, np.ones(len(env_ids)), is_first, is_last, ~(is_last & self._terminates))


class Paced(Walk):
    """The same, each stepping at its own pace: a virtual clock says who is ready first, `batch_size` at a time."""

    def __init__(self, seeds: np.ndarray, timeout_s: float, batch_size: int, periods: np.ndarray) -> None:
        super().__init__(seeds, timeout_s, lambda walk: None)
        self.batch_size, self._periods = batch_size, periods
        self._clock, self._due = 0.0, np.full(self.num_envs, np.inf)

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        assert np.isinf(self._due[env_ids]).all()
        self._busy[env_ids], self._due[env_ids] = True, self._clock + self._periods[env_ids]

    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        ids = np.argsort(self._due, kind="stable")[: self.batch_size].astype(np.int32)
        self._clock = self._due[ids].max()
        assert np.isfinite(self._clock)
        self._busy[ids], self._due[ids] = False, np.inf
        self._walk(ids)
        return self._row(ids), ids


def spec() -> types.EnvironmentSpec:
    observation = jax.ShapeDtypeStruct((3,), np.float32)
    return types.EnvironmentSpec("fake:walk", observation, types.DiscreteSpace(3), "classic", (0.0, 1.0), LENGTH)


def task(before_step: Callable[[Walk], None] = lambda walk: None, made: list[Walk] | None = None) -> envs.HostTask:
    """Returns the task; `before_step` is called in the actor's thread, and `made` collects the environments."""

    def make(seeds: np.ndarray, batch_size: int, timeout_s: float) -> Any:
        walk = Walk(seeds, timeout_s, before_step)
        if made is not None:
            made.append(walk)
        return walk

    return envs.HostTask(spec(), "", make)


def position(observation: np.ndarray) -> np.ndarray:
    """Returns how many timesteps of its environment came before each, from observations [..., 3]."""
    return observation[..., 1] * (LENGTH + 1) + observation[..., 2]


def in_actor(number: int) -> bool:
    """Says whether this thread is that actor's."""
    return threading.current_thread().name == f"actor {number}"


def sleep_forever() -> None:
    time.sleep(3600)


def paced_task(periods: np.ndarray, made: list[Any] | None = None) -> envs.HostTask:
    """Returns the task whose environments take so long, each actor's in turn."""

    def make(seeds: np.ndarray, batch_size: int, timeout_s: float) -> Any:
        paced = Paced(seeds, timeout_s, batch_size, periods[: len(seeds)])
        if made is not None:
            made.append(paced)
        return paced

    return envs.HostTask(spec(), "", make)
