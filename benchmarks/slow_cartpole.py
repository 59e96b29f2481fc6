"""CartPole whose steps take longer while the pole is upright, so that late unrolls are those that were played well.

Named `--env=gymnasium:slow_cartpole:SlowCartPole-v0` with this folder on PYTHONPATH; for the study of dropped unrolls.
"""

import time
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

_UPRIGHT = 0.05
_SLOWER = 4


class SlowCartPole(CartPoleEnv):
    """CartPole with steps of `pause_ms`, four times that at angles below .05 rad."""

    def __init__(self, pause_ms: float = 1.0, **rest: Any) -> None:
        super().__init__(**rest)
        self._pause_s = pause_ms / 1000

    def step(self, action: Any) -> Any:
        result = super().step(action)
        time.sleep(self._pause_s * (_SLOWER if abs(result[0][2]) < _UPRIGHT else 1))
        return result


if "SlowCartPole-v0" not in gymnasium.registry:
    gymnasium.register("SlowCartPole-v0", entry_point="slow_cartpole:SlowCartPole", max_episode_steps=500)
