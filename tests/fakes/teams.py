"""Environments of PettingZoo's parallel API without PettingZoo: teams whose agents end at known steps."""

from typing import Any

import gymnasium
import numpy as np

ENDS = {"red": 7, "green": 5, "blue": 3}


class Team:
    """Agents see (goal, steps); 1 is the reward for the goal's number plus one's place, modulo 3."""

    def __init__(
        self,
        fails_at: int = 0,
        late: bool = False,
        masked: bool = False,
        other: bool = False,
        picture: bool = False,
        leaf: str = "observation",
        early: bool = False,
    ) -> None:
        self.possible_agents, self.agents = list(ENDS), list[str]()
        self._fails_at, self._late, self._masked, self._other = fails_at, late, masked, other
        self._picture, self._leaf, self._early = picture, leaf, early
        self._rng = np.random.default_rng(0)
        self._goal = self._steps = 0

    def observation_space(self, agent: str) -> Any:
        box = gymnasium.spaces.Box(0.0, 9.0, (2 + (self._other and agent == "blue"),), np.float64)
        mask = gymnasium.spaces.Box(0, 1, (3,), np.int8)
        if self._picture:
            return gymnasium.spaces.Box(0, 255, (2, 3, 4), np.uint8)
        return gymnasium.spaces.Dict({self._leaf: box, "action_mask": mask}) if self._masked else box

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._steps = self.possible_agents[: 2 if self._late else 3], 0
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert list(actions) == self.agents, "actions of the agents that are left, and no others"
        there, self._steps = list(self.agents), self._steps + 1
        if self._steps == self._fails_at:
            raise RuntimeError("broken")
        rewards = {a: float(actions[a] == (self._goal + self.possible_agents.index(a)) % 3) for a in there}
        ended = {a: self._steps >= ENDS[a] for a in there}
        self.agents = [a for a in there if not ended[a]]
        cut = "blue" if self._early else "red"
        truncated = {a: ended[a] and a == cut for a in there}
        terminated = {a: ended[a] and a != cut for a in there}
        return self._seen(there), rewards, terminated, truncated, {a: {} for a in there}

    def close(self) -> None:
        pass

    def _seen(self, agents: list[str]) -> Any:
        self._goal = int(self._rng.integers(3))
        if self._picture:
            return {a: np.arange(24, dtype=np.uint8).reshape(2, 3, 4) + len(a) for a in agents}
        seen = {a: np.array([self._goal, self._steps], np.float64) for a in agents}
        legal = np.arange(3) != (self._goal + 1) % 3
        return {a: {self._leaf: x, "action_mask": legal} for a, x in seen.items()} if self._masked else seen
