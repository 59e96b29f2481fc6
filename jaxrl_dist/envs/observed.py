"""Shows only some components of what environments on the CPU observe, as `wrappers.observe` does on the device."""

from collections.abc import Callable

import jax
import numpy as np

from jaxrl_dist import errors, types
from jaxrl_dist.envs import base


def observe(task: base.HostTask, indices: tuple[int, ...]) -> base.HostTask:
    """Shows only some components of a one-dimensional observation, as `wrappers.observe` does on the device.

    Args:
        task: its observation has shape [D].
        indices: components that remain, in this order.

    Raises:
        config.UsageError: the observation is not one-dimensional, or an index is not in it.
    """
    spec = spec_of(task.spec, indices)

    def observed(
        make: Callable[[np.ndarray, int, float], base.HostEnvironment],
    ) -> Callable[[np.ndarray, int, float], base.HostEnvironment]:
        return lambda seeds, batch_size, timeout_s: _Observed(make(seeds, batch_size, timeout_s), spec, indices)

    def film(seed: int, timeout_s: float) -> base.Film:
        made = task.make_film(seed, timeout_s)  # type: ignore[misc]
        return made._replace(environment=_Observed(made.environment, spec, indices))

    make_evaluation = observed(task.make_evaluation or task.make)
    make_film = film if task.make_film is not None else None
    return task._replace(spec=spec, make=observed(task.make), make_evaluation=make_evaluation, make_film=make_film)


def spec_of(spec: types.EnvironmentSpec, indices: tuple[int, ...]) -> types.EnvironmentSpec:
    """Returns the spec of an environment of which only some components of its observation [D] are shown.

    Raises:
        config.UsageError: the observation is not one-dimensional, or an index is not in it.
    """
    shape = getattr(spec.observation, "shape", None)
    if shape is None or len(shape) != 1:
        raise errors.UsageError(f"--env.params.observe takes observations of shape [D]; {spec.name} has {shape}")
    if not indices or not all(0 <= index < shape[0] for index in indices):
        raise errors.UsageError(
            f"--env.params.observe={','.join(map(str, indices))}: {spec.name} has components 0 … {shape[0] - 1}"
        )
    return spec._replace(observation=jax.ShapeDtypeStruct((len(indices),), spec.observation.dtype))


class _Observed:
    """Environments on the CPU of which only some components of the observation are shown."""

    def __init__(
        self, environment: base.HostEnvironment, spec: types.EnvironmentSpec, indices: tuple[int, ...]
    ) -> None:
        self.spec, self.num_envs, self.timeout_s = spec, environment.num_envs, environment.timeout_s
        self._environment, self._indices = environment, np.asarray(indices)

    @property
    def waiting_since(self) -> float:
        return self._environment.waiting_since

    @property
    def waiting_for(self) -> np.ndarray:
        return self._environment.waiting_for

    def reset(self) -> types.TimeStep:
        return self._shown(self._environment.reset())

    def step(self, action: np.ndarray) -> types.TimeStep:
        return self._shown(self._environment.step(action))

    def send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        self._environment.send(action, env_ids)

    def recv(self) -> tuple[types.TimeStep, np.ndarray]:
        timestep, env_ids = self._environment.recv()
        return self._shown(timestep), env_ids

    def close(self) -> None:
        self._environment.close()

    def _shown(self, timestep: types.TimeStep) -> types.TimeStep:
        return timestep._replace(observation=timestep.observation[:, self._indices])
