"""The checked face of CPU environments, made of their raw one: timesteps one at a time, as for evaluation and films."""

import abc
import contextlib
from collections.abc import Iterator
from typing import Protocol

import jax
import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import episodes


class Checked(abc.ABC):
    """B environments of which an adapter writes the raw face alone, see `envs.HostEnvironment`.

    After a fault nothing but `close` works.

    Attributes:
        spec: spec of one environment.
        num_envs: B.
        batch_size: number of environments that `recv` returns.
    """

    def __init__(self, spec: types.EnvironmentSpec, num_envs: int, batch_size: int) -> None:
        """Starts with no episode."""
        self.spec, self.num_envs, self.batch_size = spec, num_envs, batch_size
        self._all = np.arange(num_envs, dtype=np.int32)
        # The raw face marks here what is being stepped.
        self._busy = np.zeros(num_envs, bool)
        self._episodes = episodes.Episodes(spec, num_envs)
        self._fault: errors.EnvironmentFault | None = None

    @abc.abstractmethod
    def raw_reset(self) -> envs.RawStep:
        """Starts every environment anew."""

    @abc.abstractmethod
    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step of some environments."""

    @abc.abstractmethod
    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        """Waits for the environments that have stepped first."""

    @abc.abstractmethod
    def close(self) -> None:
        """Frees the environments."""

    @property
    def waiting_for(self) -> np.ndarray:
        """The environments i32 [N] that are being stepped; any thread may ask."""
        return np.flatnonzero(self._busy).astype(np.int32)

    def reset(self) -> types.TimeStep:
        """Starts every environment anew, waiting first for those that are being stepped; returns leaves [B, ...].

        Raises:
            errors.EnvironmentFault: one of them failed.
        """
        self._check_usable()
        self._episodes = episodes.Episodes(self.spec, self.num_envs)
        with self._remembering():
            return self._timestep(self.raw_reset(), self._all)

    def step(self, action: np.ndarray) -> types.TimeStep:
        """Steps every environment with action [B, ...] and returns leaves [B, ...].

        Raises:
            errors.EnvironmentFault: one of them failed, or a number is not finite or out of range.
            ValueError: an action is not one of the action space, or an environment is being stepped.
        """
        self.send(action, self._all)
        with self._remembering():
            return self._timestep(receive_all(self, self._all), self._all)

    def send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step of the environments i32 [N], none of which is being stepped, with action [N, ...].

        Raises:
            errors.EnvironmentFault: an earlier fault has ended the environments.
            ValueError: an action is not one of the action space, or an index is not one of the B, is given twice, or is
                being stepped.
        """
        self._check_usable()
        action = episodes.check_action(self.spec, action, env_ids)
        # Checking the indices may take longer than a step of the environments.
        num_agents = self.spec.num_agents
        is_all = env_ids is self._all and len(action) == self.num_envs * num_agents
        ids = self._all
        if not is_all:
            ids = episodes.check_ids(self.spec, env_ids, len(action) / num_agents, self.num_envs)
        episodes.check_idle(self.spec, ids, self._busy)
        with self._remembering():
            self.raw_send(action, ids)

    def recv(self) -> tuple[types.TimeStep, np.ndarray]:
        """Waits for the first `batch_size` environments that have stepped: leaves [N, ...], their indices i32 [N].

        Raises:
            errors.EnvironmentFault: one of them failed, or a number is not finite or out of range.
            RuntimeError: fewer than `batch_size` are being stepped, so it would wait for ever.
        """
        self._check_usable()
        if (num_busy := np.count_nonzero(self._busy)) < self.batch_size:
            raise RuntimeError(
                f"{self.spec.name}: recv of {self.batch_size} without as many sends: {num_busy} are being stepped"
            )
        with self._remembering():
            raw, env_ids = self.raw_recv()
            return self._timestep(raw, env_ids), env_ids

    def account(self, rows: types.TimeStep, lost: np.ndarray, env_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Checks rows of the raw face, and follows their episodes, see `envs.HostEnvironment`."""
        with self._remembering():
            return self._episodes.add(rows, lost, env_ids)

    def _timestep(self, raw: envs.RawStep, env_ids: np.ndarray) -> types.TimeStep:
        row = jax.tree.map(lambda x: x[None], episodes.timestep(raw))
        returns, lengths = self.account(row, episodes.lost(raw)[None], env_ids)
        reward, game_over = row.reward[0], (row.step_type[0] == types.LAST) & (row.discount[0] == 0)
        info = types.EpisodeInfo(returns[0], lengths[0], reward, game_over)
        return jax.tree.map(lambda x: x[0], row)._replace(info=info)

    def _check_usable(self) -> None:
        if self._fault is not None:
            raise self._fault

    @contextlib.contextmanager
    def _remembering(self) -> Iterator[None]:
        """Keeps the fault that ends the environments."""
        try:
            yield
        except errors.EnvironmentFault as fault:
            self._fault = fault
            raise


class Receiving(Protocol):
    """The half of a raw face that waits."""

    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        """Waits for the environments that have stepped first."""


def receive_all(environment: Receiving, env_ids: np.ndarray) -> envs.RawStep:
    """Waits until all B environments, i32 [B] in order, have stepped; returns leaves [B, ...] in this order."""
    raw, received = environment.raw_recv()
    if received.tobytes() == env_ids.tobytes():
        return raw
    batches, first = [raw], received
    while len(received) < len(env_ids):
        raw, more = environment.raw_recv()
        batches, received = [*batches, raw], np.concatenate([received, more])
    order = envs.column_ids(np.argsort(received), len(batches[0].is_first) // max(len(first), 1))
    return jax.tree.map(lambda *rows: np.concatenate(rows)[order], *batches)
