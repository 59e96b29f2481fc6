"""Plays one Gymnasium environment in this process, which draws itself (`render_mode="rgb_array"`)."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import film
from jaxrl_dist.envs.host import episodes, worker_pool

_FRAMES_PER_SECOND = 30.0
_ENV_IDS = np.zeros(1, np.int32)


def start(make: Callable[[], Any], plan: worker_pool.Plan, seed: int, timeout_s: float) -> envs.Film:
    """Makes the environment, and draws it once to find out whether it can be drawn here.

    Args:
        make: () -> the environment, which draws arrays.
        plan: plan of the task.
        seed: seed of the environment.
        timeout_s: longest step.

    Raises:
        errors.UsageError: it cannot be drawn, since a library or OpenGL is missing.
    """
    try:
        with film.without_display():
            drawn = make()
            drawn.reset(seed=seed)
            frame = drawn.render()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise errors.UsageError(
            f"{plan.spec.name} cannot be drawn here: {type(error).__name__}: {reason} (classic control needs "
            f"{errors.install('video', 'pygame')}; MuJoCo needs OpenGL, without a display MUJOCO_GL=egl)"
        ) from error
    if np.shape(frame)[2:] != (3,):
        raise errors.UsageError(f"{plan.spec.name} cannot be filmed: it draws {np.shape(frame)}, not [H, W, 3]")
    speed = float(drawn.metadata.get("render_fps") or _FRAMES_PER_SECOND)
    return envs.Film(_Single(drawn, plan, seed, timeout_s), lambda _: np.asarray(drawn.render(), np.uint8), speed)


class _Single:
    """One environment of Gymnasium's; see `envs.HostEnvironment`."""

    num_envs = 1

    def __init__(self, environment: Any, plan: worker_pool.Plan, seed: int, timeout_s: float) -> None:
        self.spec, self.timeout_s, self.waiting_since = plan.spec, timeout_s, 0.0
        self._environment, self._plan, self._seed = environment, plan, seed
        self._episodes = episodes.Episodes(plan.spec, 1)
        self._sent: types.TimeStep | None = None

    @property
    def waiting_for(self) -> np.ndarray:
        return _ENV_IDS[: self.waiting_since > 0]

    def reset(self) -> types.TimeStep:
        observation, _ = self._call(lambda: self._environment.reset(seed=self._seed))
        return self._episodes.first(_ENV_IDS, self._seen(observation))

    def step(self, action: np.ndarray) -> types.TimeStep:
        action = episodes.check_action(self.spec, action).astype(self._plan.action_dtype)[0]
        if self._episodes.ended[0]:
            observation, _ = self._call(self._environment.reset)
            reward, terminated, truncated = 0.0, False, False
        else:
            stepped = self._call(lambda: self._environment.step(action))
            observation, reward, terminated, truncated, _ = stepped
        columns = (np.asarray([x]) for x in (reward, terminated, truncated))
        return self._episodes.step(_ENV_IDS, self._seen(observation), *columns)

    def send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        episodes.check_ids(self.spec, env_ids, len(action), 1)
        self._sent = self.step(action)

    def recv(self) -> tuple[types.TimeStep, np.ndarray]:
        if self._sent is None:
            raise RuntimeError("recv without a send: nothing is being stepped")
        timestep, self._sent = self._sent, None
        return timestep, _ENV_IDS

    def close(self) -> None:
        self._environment.close()

    def _call(self, function: Callable[[], Any]) -> Any:
        """Calls the environment's code, and notes when the call began, so that another thread can notice a hang."""
        self.waiting_since = time.monotonic()
        try:
            return function()
        except Exception as error:
            reason = " ".join(str(error).split())
            raise errors.EnvironmentFault(f"{self.spec.name} raised {type(error).__name__}: {reason}") from error
        finally:
            self.waiting_since = 0.0

    def _seen(self, observation: Any) -> types.ArrayTree:
        """Turns an observation into the tree [1, ...] that the agent sees."""
        arrays = [leaf.of(observation).astype(leaf.dtype)[None] for leaf in self._plan.leaves]
        return self._plan.observation(arrays)
