"""Plays one Gymnasium environment in this process, which draws itself (`render_mode="rgb_array"`)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_dist import envs, errors
from jaxrl_dist.envs import film
from jaxrl_dist.envs.host import checked, hangs, worker_pool

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


class _Single(checked.Checked):
    """One environment of Gymnasium's; see `envs.HostEnvironment`."""

    def __init__(self, environment: Any, plan: worker_pool.Plan, seed: int, timeout_s: float) -> None:
        super().__init__(plan.spec, 1, 1)
        self.timeout_s, self.waiting_since = timeout_s, 0.0
        self._environment, self._plan, self._seed = environment, plan, seed
        self._has_ended, self._sent = True, np.zeros(plan.shape, plan.action_dtype)

    @property
    def waiting_for(self) -> np.ndarray:
        return _ENV_IDS[: self.waiting_since > 0]

    def raw_reset(self) -> envs.RawStep:
        observation, _ = self._call(lambda: self._environment.reset(seed=self._seed))
        return self._row(observation, 0.0, False, False, is_first=True)

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        self._busy[env_ids], self._sent = True, self._plan.sent(action).astype(self._plan.action_dtype)[0]

    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        if self._has_ended:
            observation, _ = self._call(self._environment.reset)
            row = self._row(observation, 0.0, False, False, is_first=True)
        else:
            observation, reward, terminated, truncated, _ = self._call(lambda: self._environment.step(self._sent))
            row = self._row(observation, reward, terminated, truncated, is_first=False)
        self._busy[:] = False
        return row, _ENV_IDS

    def close(self) -> None:
        self._environment.close()

    def _call(self, function: Callable[[], Any]) -> Any:
        """Calls the environment's code, and notes when the call began, so that another thread can notice a hang."""
        self.waiting_since = hangs.now()
        try:
            return function()
        except Exception as error:
            reason = " ".join(str(error).split())
            raise errors.EnvironmentFault(f"{self.spec.name} raised {type(error).__name__}: {reason}") from error
        finally:
            self.waiting_since = 0.0

    def _row(self, observation: Any, reward: Any, terminated: Any, truncated: Any, *, is_first: bool) -> envs.RawStep:
        """Makes columns [1, ...] of what the environment returned."""
        arrays = [leaf.of(observation).astype(leaf.dtype)[None] for leaf in self._plan.leaves]
        self._has_ended = bool(terminated) or bool(truncated)
        columns = (np.asarray([x]) for x in (reward, is_first, self._has_ended, not terminated))
        return envs.RawStep(self._plan.observation(arrays), *columns)
