"""A pool with the semantics of EnvPool's Gymnasium interface, of the known episode of `known_episode`."""

import threading
from typing import Any

import numpy as np

LENGTH = 7


class FakePool:
    """Environments whose episodes end after `LENGTH` steps: truly, by a time limit, or both at once.

    As EnvPool: the step after an end ignores the action and resets; `terminated = done & ~trunc`; batches of the first
    `batch_size` in the order in which they were sent; rows carry `env_id` and `elapsed_step`.

    Attributes:
        sent: every (action, env_ids) that reached the pool.
        hold: while clear, `recv` waits.
    """

    def __init__(self, name: str, num_envs: int, batch_size: int, *, atari: bool = True) -> None:
        self.sent: list[tuple[np.ndarray, np.ndarray]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.lives = np.full(num_envs, 3)
        self._name, self._num_envs, self._batch_size, self._atari = name, num_envs, batch_size, atari
        self._elapsed, self._ended = np.zeros(num_envs, int), np.zeros(num_envs, bool)
        self._ready: list[tuple[int, list[float], float, bool, bool]] = []

    def __len__(self) -> int:
        return self._num_envs

    def async_reset(self) -> None:
        for env in range(self._num_envs):
            self._reset(env)

    def send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        assert env_ids.dtype == np.int32 and len(action) == len(env_ids)
        # A second batch in a pool that gives all rows at once overwrites rows of the first.
        assert self._batch_size < self._num_envs or not self._ready
        self.sent.append((action, env_ids))
        for a, env in zip(action.reshape(len(action), -1)[:, 0].tolist(), env_ids.tolist(), strict=True):
            if self._ended[env]:
                self._reset(env)
                continue
            self._elapsed[env] += 1
            steps = self._elapsed[env]
            ended = bool(steps == LENGTH)
            limited = ended and self._name in ("time_limit", "both")
            self._ended[env] = ended
            over = ended and self._name in ("episode", "both")
            self._ready.append((env, [float(steps), float(a)], (steps - 1) / 2 + a, limited, over))

    def recv(self) -> Any:
        self.hold.wait()
        assert len(self._ready) >= self._batch_size, "would wait for ever"
        batch, self._ready = self._ready[: self._batch_size], self._ready[self._batch_size :]
        ids, observation, reward, truncated, over = (np.asarray(column) for column in zip(*batch, strict=True))
        done = truncated | over
        info = {"env_id": ids.astype(np.int32), "elapsed_step": self._elapsed[ids].astype(np.int32)}
        if self._atari:
            info.update(terminated=over.astype(np.int32), lives=self.lives[ids].astype(np.int32))
        return observation, reward.astype(np.float32), done & ~truncated, truncated, info

    def _reset(self, env: int) -> None:
        self._elapsed[env], self._ended[env] = 0, False
        self._ready.append((env, [0.0, 0.0], 0.0, False, False))
