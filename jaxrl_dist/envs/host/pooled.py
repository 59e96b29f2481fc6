"""Puts a pool with the Gymnasium interface of EnvPool behind `envs.HostEnvironment`; knows no suite."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import checked, episodes, hangs

Convert = Callable[[Any], Any]


class Pooled(checked.Checked):
    """B environments of one pool; batches of the first `batch_size` that have stepped, or of all B in order.

    EnvPool's `recv` has no timeout, and only one thread may use a pool. Handing each step to a thread that could be
    abandoned costs a fifth to a third of a step of CartPole (64 environments, 2 cores: 40 of 180 µs), so the caller's
    own thread waits, and `hangs.check_waiting` in another thread notices if it waits too long. A step that returns too
    late is a fault as well; after a fault nothing but `close` works.

    Attributes:
        timeout_s, waiting_since: see `envs.HostEnvironment`.
    """

    def __init__(
        self,
        pool: Any,
        spec: types.EnvironmentSpec,
        batch_size: int,
        timeout_s: float,
        *,
        convert: Convert,
        life_loss: bool,
    ) -> None:
        """Takes over a new pool.

        Args:
            pool: with the interface of EnvPool's type "gymnasium": `async_reset`, `send`, `recv` and its length. It
                returns new arrays for every batch.
            spec: spec of one environment.
            batch_size: batch size of the pool, a divisor of its environments.
            timeout_s: longest step.
            convert: brings observations [N, ...] into the form of the spec, in arrays of its own, or as f64.
            life_loss: whether the discount is 0 where `info["lives"]` falls.
        """
        super().__init__(spec, len(pool), batch_size)
        self.timeout_s, self.waiting_since = timeout_s, 0.0
        self._pool, self._convert, self._life_loss = pool, convert, life_loss
        self._unsent: list[tuple[np.ndarray, np.ndarray]] = []
        self._lives = np.zeros(self.num_envs, np.int32)

    def raw_reset(self) -> envs.RawStep:
        """Starts every environment anew, waiting first for those that are being stepped."""
        pool = self._usable()
        if self._busy.any():
            self._finish_steps(pool, self._wait)
        self._busy[:] = True
        self._wait(pool.async_reset)
        return checked.receive_all(self, self._all)

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step of some environments.

        A pool whose batches hold all B environments takes one send per batch (a second one would overwrite rows of the
        first), so the step starts when all B have been sent.
        """
        pool = self._usable()
        self._busy[env_ids] = True
        if self.batch_size == self.num_envs > len(env_ids):
            self._unsent.append((action, env_ids))
            if not self._busy.all():
                return
            action, env_ids = self._take_unsent()
        self._wait(lambda: pool.send(action, env_ids))

    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        """Waits for `batch_size` environments."""
        observation, reward, terminated, truncated, info = self._wait(self._usable().recv)
        env_ids, is_first = info["env_id"], info["elapsed_step"] == 0
        self._busy[env_ids] = False
        self._usable()
        if "terminated" in info:
            terminated = terminated | (truncated & (info["terminated"] != 0))
        goes_on = ~terminated
        if self._life_loss:
            goes_on &= ~self._count_lives(env_ids, info["lives"], is_first)
        is_last = (terminated | truncated) & ~is_first
        return envs.RawStep(self._convert(observation), reward, is_first, is_last, goes_on), env_ids

    def close(self) -> None:
        """Frees the pool; if environments are still being stepped, another thread waits for them first."""
        pool, self._pool = self._pool, None
        self._fault = self._fault or errors.EnvironmentFault(f"{self.spec.name}: these environments were closed")
        # Freeing a pool joins its threads and holds up all Python threads meanwhile, so it must not happen while an
        # environment may hang. A thread that waits in `recv` keeps the pool alive itself.
        if pool is not None and self._busy.any() and not self.waiting_since:
            threading.Thread(
                target=self._finish_steps,
                args=(pool, lambda call: call()),
                daemon=True,
                name=f"{self.spec.name} closing",
            ).start()

    def _usable(self) -> Any:
        self._check_usable()
        return self._pool

    def _wait(self, call: Callable[[], Any]) -> Any:
        """Calls the pool, and notes the start for other threads; `_usable` refuses an answer that came too late."""
        start = self.waiting_since = hangs.now()
        try:
            result = call()
        except Exception as error:
            self._fault = errors.EnvironmentFault(f"{self.spec.name}: {type(error).__name__}: {error}")
            raise self._fault from error
        finally:
            self.waiting_since = 0.0
        if hangs.now() - start > self.timeout_s:
            self._fault = hangs.overdue(self.spec, self.waiting_for, self.timeout_s)
        return result

    def _finish_steps(self, pool: Any, wait: Callable[[Callable[[], Any]], Any]) -> None:
        """Receives every step under way; idle environments step too, since a pool returns whole batches only."""
        unsent = np.concatenate([ids for _, ids in self._unsent] or [self._all[:0]])
        self._unsent.clear()
        idle = np.union1d(np.flatnonzero(~self._busy), unsent).astype(np.int32)
        if len(idle) < self.num_envs:
            if len(idle):
                struct = self.spec.action.struct
                zeros = np.zeros((len(idle), *struct.shape), struct.dtype)
                wait(lambda: pool.send(episodes.check_action(self.spec, zeros, idle), idle))
            for _ in range(self.num_envs // self.batch_size):
                wait(pool.recv)
        self._busy[:] = False

    def _take_unsent(self) -> tuple[np.ndarray, np.ndarray]:
        sent, self._unsent = self._unsent, []
        if len(sent) == 1:
            return sent[0]
        return np.concatenate([action for action, _ in sent]), np.concatenate([ids for _, ids in sent])

    def _count_lives(self, ids: np.ndarray, lives: np.ndarray, is_first: np.ndarray) -> Any:
        lost = (lives < self._lives[ids]) & ~is_first
        self._lives[ids] = lives
        return lost
