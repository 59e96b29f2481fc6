"""Puts a pool with the Gymnasium interface of EnvPool behind `envs.HostEnvironment`; knows no suite."""

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_dist import errors, types
from jaxrl_dist.envs.host import episodes, hangs

Convert = Callable[[Any], Any]


class Pooled:
    """B environments of one pool; batches of the first `batch_size` that have stepped, or of all B in order.

    EnvPool's `recv` has no timeout, and only one thread may use a pool. Handing each step to a thread that could be
    abandoned costs a fifth to a third of a step of CartPole (64 environments, 2 cores: 40 of 180 µs), so the caller's
    own thread waits, and `hangs.check_waiting` in another thread notices if it waits too long. A step that returns too
    late is a fault as well; after a fault nothing but `close` works.

    Attributes:
        spec, num_envs, timeout_s, waiting_since: see `envs.HostEnvironment`.
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
            pool: EnvPool's, of type "gymnasium".
            spec: spec of one environment.
            batch_size: batch size of the pool, a divisor of its environments.
            timeout_s: longest step.
            convert: brings observations [N, ...] into the form of the spec, in arrays of its own; f64 is cast to f32
                afterwards.
            life_loss: whether the discount is 0 where `info["lives"]` falls.
        """
        self.spec, self.num_envs, self.timeout_s = spec, len(pool), timeout_s
        self.waiting_since = 0.0
        self._pool, self._batch_size, self._convert, self._life_loss = pool, batch_size, convert, life_loss
        self._all = np.arange(self.num_envs, dtype=np.int32)
        self._busy = np.zeros(self.num_envs, bool)
        self._unsent: list[tuple[np.ndarray, np.ndarray]] = []
        self._lives = np.zeros(self.num_envs, np.int32)
        self._fault = ""
        # EnvPool allocates new arrays for every batch (a test checks it), so nothing is copied.
        self._episodes = episodes.Episodes(spec, self.num_envs, episodes.cast)

    @property
    def waiting_for(self) -> np.ndarray:
        """The environments i32 [N] that are being stepped; any thread may ask."""
        return np.flatnonzero(self._busy).astype(np.int32)

    def reset(self) -> types.TimeStep:
        """Starts every environment anew, waiting first for those that are being stepped; returns leaves [B, ...].

        Raises:
            errors.EnvironmentFault: one of them hung, or returned an invalid value.
        """
        pool = self._usable()
        if self._busy.any():
            self._finish_steps(pool, self._wait)
        self._busy[:] = True
        self._wait(pool.async_reset)
        self._episodes.ended[:] = True
        return self._gather()

    def step(self, action: np.ndarray) -> types.TimeStep:
        """Steps every environment with action [B, ...] and returns leaves [B, ...].

        Raises:
            errors.EnvironmentFault: one of them hung, or returned an invalid value.
            ValueError: an action is not one of the action space, or an environment is already being stepped.
        """
        self.send(action, self._all)
        return self._gather()

    def send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step of the environments i32 [N] with action [N, ...].

        A pool whose batches hold all B environments takes one send per batch (a second one would overwrite rows of the
        first), so the step starts when all B have been sent.

        Raises:
            ValueError: an action is not one of the action space, or an index is not one of the B, is given twice, or is
                already being stepped.
        """
        pool = self._usable()
        action = episodes.check_action(self.spec, action, env_ids)
        # Checking the indices may take longer than a step of the environments.
        is_all = env_ids is self._all and len(action) == self.num_envs
        ids = self._all if is_all else episodes.check_ids(self.spec, env_ids, len(action), self.num_envs)
        episodes.check_idle(self.spec, ids, self._busy)
        self._busy[ids] = True
        if self._batch_size == self.num_envs:
            self._unsent.append((action, ids))
            if not self._busy.all():
                return
            action, ids = self._take_unsent()
        self._wait(lambda: pool.send(action, ids))

    def recv(self) -> tuple[types.TimeStep, np.ndarray]:
        """Waits for `batch_size` environments: leaves [N, ...], their indices i32 [N].

        Raises:
            errors.EnvironmentFault: one of them hung, or returned an invalid value.
            RuntimeError: fewer than `batch_size` are being stepped, so it would wait for ever.
        """
        pool, num_busy = self._usable(), np.count_nonzero(self._busy)
        if num_busy < self._batch_size:
            raise RuntimeError(
                f"{self.spec.name}: recv waits for {self._batch_size} environments, but {num_busy} are being stepped"
            )
        observation, reward, terminated, truncated, info = self._wait(pool.recv)
        ids = info["env_id"]
        self._busy[ids] = False
        self._usable()
        is_first = self._episodes.ended[ids]
        misplaced = (info["elapsed_step"] == 0) != is_first
        if misplaced.any():
            row = int(misplaced.argmax())
            raise self._failed(
                f"environment {ids[row]} was not reset in the step after its episode's end, or elsewhere"
            )
        if "terminated" in info:
            terminated = terminated | (truncated & (info["terminated"] != 0))
        life_lost = self._count_lives(ids, info["lives"], is_first) if self._life_loss else None
        converted = self._convert(observation)
        try:
            return self._episodes.step(ids, converted, reward, terminated, truncated, life_lost), ids
        except errors.EnvironmentFault as error:
            self._fault = str(error)
            raise

    def close(self) -> None:
        """Frees the pool; if environments are still being stepped, another thread waits for them first."""
        pool, self._pool = self._pool, None
        self._fault = self._fault or f"{self.spec.name}: these environments were closed"
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
        if self._fault:
            raise errors.EnvironmentFault(self._fault)
        return self._pool

    def _failed(self, message: str) -> errors.EnvironmentFault:
        self._fault = f"{self.spec.name}: {message}"
        return errors.EnvironmentFault(self._fault)

    def _wait(self, call: Callable[[], Any]) -> Any:
        """Calls the pool, and notes the start for other threads; `_usable` refuses an answer that came too late."""
        start = self.waiting_since = time.monotonic()
        try:
            result = call()
        except Exception as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error
        finally:
            self.waiting_since = 0.0
        if time.monotonic() - start > self.timeout_s:
            self._fault = str(hangs.overdue(self.spec, self.waiting_for, self.timeout_s))
        return result

    def _gather(self) -> types.TimeStep:
        """Receives all B rows and puts them in order."""
        batches = [self.recv() for _ in range(self.num_envs // self._batch_size)]
        timestep, ids = batches[0]
        if len(batches) > 1:
            timestep = jax.tree.map(lambda *rows: np.concatenate(rows), *(rows for rows, _ in batches))
            ids = np.concatenate([rows for _, rows in batches])
        if (ids == self._all).all():
            return timestep
        order = np.argsort(ids)
        return jax.tree.map(lambda x: x[order], timestep)

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
            for _ in range(self.num_envs // self._batch_size):
                wait(pool.recv)
        self._busy[:] = False

    def _take_unsent(self) -> tuple[np.ndarray, np.ndarray]:
        sent, self._unsent = self._unsent, []
        if len(sent) == 1:
            return sent[0]
        return np.concatenate([action for action, _ in sent]), np.concatenate([ids for _, ids in sent])

    def _count_lives(self, ids: np.ndarray, lives: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        lost = (lives < self._lives[ids]) & ~is_first
        self._lives[ids] = lives
        return lost
