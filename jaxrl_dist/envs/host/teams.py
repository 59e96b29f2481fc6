"""Takes apart what environments of several agents give together: each agent becomes a column, see `together.py`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_dist import envs, types
from jaxrl_dist.envs.host import checked, together

# Leaves that are added to what an agent sees: its index, and for a critic alone what all see.
INDEX, ALL = "agent", "all"


class Teams(checked.Checked):
    """B environments of A agents on the CPU, made of a pool that steps each as one.

    Attributes:
        timeout_s: of the pool.
    """

    def __init__(self, spec: types.EnvironmentSpec, pool: envs.HostEnvironment, show: Callable[[Any], Any]) -> None:
        """Takes a pool.

        Args:
            spec: of one agent, with A agents.
            pool: its observations are dicts of `together.Together`, leaves [N, A, ...].
            show: (arrays [N·A, ...] of what agents see, by name) -> observation.
        """
        super().__init__(spec, pool.num_envs, pool.batch_size)
        self.timeout_s = pool.timeout_s
        self._pool, self._show = pool, show

    @property
    def waiting_since(self) -> float:
        return self._pool.waiting_since

    @property
    def waiting_for(self) -> np.ndarray:
        return self._pool.waiting_for

    def raw_reset(self) -> envs.RawStep:
        raw = self._pool.raw_reset()
        self._busy[:] = False
        return self._apart(raw)

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        self._pool.raw_send(action, env_ids)
        self._busy[env_ids] = True

    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        raw, env_ids = self._pool.raw_recv()
        self._busy[env_ids] = False
        return self._apart(raw), env_ids

    def close(self) -> None:
        self._pool.close()

    def _apart(self, raw: envs.RawStep) -> envs.RawStep:
        num_agents, seen = self.spec.num_agents, raw.observation
        ends = seen[together.ENDS].reshape(-1)
        is_first = np.repeat(raw.is_first, num_agents)
        # Both: the environment was lost, and with it the episodes of all its agents.
        is_lost = np.repeat(raw.is_first & raw.is_last, num_agents)
        own = {name: leaf.reshape(-1, *leaf.shape[2:]) for name, leaf in seen[together.OWN].items()}
        is_last = np.where(is_first, is_lost, ends != 0)
        return envs.RawStep(
            observation=self._show(own),
            reward=np.where(is_lost, 0.0, seen[together.REWARD].reshape(-1)),
            is_first=is_first,
            is_last=is_last,
            discount=(ends != together.TERMINATED) & (ends != together.GONE),
        )


def show(num_agents: int, has_all: bool, own: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns an observation [N·A, ...]: what each agent sees, its index, and for vectors what all see.

    Args:
        num_agents: A.
        has_all: whether what they see is one vector, of which `all` is made.
        own: arrays [N·A, ...] by name, "" for one that has none.

    Example:
        >>> import numpy as np
        >>> from jaxrl_dist.envs.host import teams
        >>> seen = teams.show(2, True, {"": np.array([[1.0], [2.0]])})
        >>> seen["agent"].tolist(), seen["all"].tolist(), seen["own"].tolist()
        ([0, 1], [[1.0, 2.0], [1.0, 2.0]], [[1.0], [2.0]])
    """
    count = len(next(iter(own.values())))
    found = {name or together.OWN: leaf for name, leaf in own.items()}
    found[INDEX] = np.tile(np.arange(num_agents, dtype=np.int32), count // num_agents)
    if has_all:
        every = found[together.OWN].reshape(count // num_agents, -1)
        found[ALL] = np.repeat(every, num_agents, 0)
    return found
