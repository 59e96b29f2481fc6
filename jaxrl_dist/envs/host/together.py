"""One environment of several agents of PettingZoo's parallel API, stepped as Gymnasium's; worker processes run it.

It imports nothing of this package, since importing that would import JAX. `teams.py` takes the agents apart again.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

# Leaves of an observation beside the agents' own.
REWARD, ENDS, OWN = "reward", "ends", "own"
# Values of `ENDS`, 0 until then: of the step that ends an agent's episode, and of those after it until all are reset.
TERMINATED, TRUNCATED, GONE = 1, 2, 3


class Together:
    """Steps all agents at once; an observation has what each sees, its reward, and whether its episode has ended.

    Its observation is a dict: `own`, the agents' observations as a dict of arrays [A, ...] by name, "" for one that has
    none; `reward` f64 [A]; `ends` u8 [A]. An agent that is gone keeps its last observation.
    """

    def __init__(self, environment: Any) -> None:
        """Takes an environment with `possible_agents`, `reset` and `step`."""
        self._environment, self._agents = environment, list(environment.possible_agents)
        self._seen: dict[Any, dict[str, np.ndarray]] = {}
        self._ends = np.zeros(len(self._agents), np.uint8)

    @property
    def agents(self) -> list[Any]:
        """Its agents, in the order of columns."""
        return self._agents

    def spaces(self, agent: Any) -> tuple[Any, Any]:
        """Returns the spaces of what an agent sees and does."""
        return self._environment.observation_space(agent), self._environment.action_space(agent)

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode of all agents.

        Raises:
            ValueError: not all of them begin.
        """
        observations, _ = self._environment.reset(seed=seed)
        missing = [agent for agent in self._agents if agent not in observations]
        if missing:
            raise ValueError(f"reset returns no observation of {missing[0]}: all agents must begin together")
        self._ends[:] = 0
        return self._joined(observations, {}), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Steps the agents that are left, with actions [A, ...]."""
        there = [i for i, end in enumerate(self._ends) if not end]
        self._ends[self._ends != 0] = GONE
        chosen = {self._agents[i]: action[i].copy() if action[i].ndim else action[i] for i in there}
        observations, rewards, terminated, truncated, _ = self._environment.step(chosen)
        for i in there:
            agent = self._agents[i]
            if terminated.get(agent, False):
                self._ends[i] = TERMINATED
            elif truncated.get(agent, False) or agent not in self._environment.agents:
                self._ends[i] = TRUNCATED
        return self._joined(observations, rewards), 0.0, bool(self._ends.all()), False, {}

    def close(self) -> None:
        """Frees the environment."""
        self._environment.close()

    def _joined(self, observations: Mapping[Any, Any], rewards: Mapping[Any, float]) -> dict[str, Any]:
        for agent, seen in observations.items():
            named = seen if isinstance(seen, Mapping) else {"": seen}
            self._seen[agent] = {name: np.asarray(leaf) for name, leaf in named.items()}
        names = self._seen[self._agents[0]]
        own = {name: np.stack([self._seen[agent][name] for agent in self._agents]) for name in names}
        reward = np.array([float(rewards.get(agent, 0.0)) for agent in self._agents])
        return {OWN: own, REWARD: reward, ENDS: self._ends.copy()}


def make(argument: Mapping[str, Any]) -> Together:
    """Makes an environment.

    Args:
        argument: `module` and `function`, which makes one of the parallel API, and its arguments `kwargs`.
    """
    function = getattr(importlib.import_module(argument["module"]), argument["function"])
    return Together(function(**argument["kwargs"]))
