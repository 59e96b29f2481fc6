"""The suite ale (ale-py 0.12.1): Atari 2600 games, stepped by the C++ threads of ale-py's own vector environment.

Its environments follow the same protocols as EnvPool's Atari; it was not measured whether results are equal. It takes
actions only for the environments that it returned last, so all of them step together.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_dist import envs, types
from jaxrl_dist.envs import parameters
from jaxrl_dist.envs.host import episodes, pooled
from jaxrl_dist.envs.suites import atari

_NAME = "ale"
_MORE_NAMES = 'python -c "from ale_py import roms; print(roms.get_all_rom_ids())" lists all'

# Parameters that a user may give; `atari.choose` replaces those that a protocol sets.
_DEFAULTS: dict[str, Any] = {**atari.PROTOCOLS["deepmind"], "num_threads": 0, **atari.DEFAULTS}
_PIXELS = 84


def make(name: str, params: Mapping[str, str]) -> envs.HostTask:
    """Makes the task `ale:name`.

    Args:
        name: of a ROM, such as pong or ms_pacman.
        params: `protocol` ("deepmind" or "machado"), `life_loss` (whether the discount is 0 where a life is lost),
            `num_threads` (0: as many as ale-py chooses), or a setting of the protocol, such as `frame_skip`.

    Raises:
        errors.UsageError: unknown name or parameter, or a value that does not fit.
        ModuleNotFoundError: ale-py or Gymnasium is not installed.
    """
    library = importlib.import_module("ale_py")
    vector = importlib.import_module("ale_py.vector_env")
    parameters.check_name(name, _NAME, library.roms.get_all_rom_ids(), _MORE_NAMES)
    values = parameters.parse_params(params, _DEFAULTS, f"{_NAME}:{name}")
    protocol, life_loss, values = atari.choose(values)
    atari.check_ranges(values)
    library.ALEInterface.setLoggerMode(library.LoggerMode.Error)
    settings = _native(values)
    spec = _spec(vector.AtariVectorEnv(name, 1, **{**settings, "num_threads": 1}), name, values)

    def make_environments(seeds: np.ndarray, batch_size: int, timeout_s: float) -> envs.HostEnvironment:
        if batch_size != len(seeds):
            raise ValueError(f"batch_size={batch_size}: ale-py steps all {len(seeds)} environments together")
        pool = _Pool(vector.AtariVectorEnv(name, len(seeds), **settings), seeds)
        return pooled.Pooled(pool, spec, batch_size, timeout_s, convert=_channels_last, life_loss=life_loss)

    return envs.HostTask(spec, protocol, make_environments, steps_together=True)


def _native(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ale-py's settings: frames are not stacked, rewards are raw, and a life loss ends no episode."""
    return {
        "noop_max": values["noop_max"] if values["noop_max"] > 1 else 0,
        "use_fire_reset": values["use_fire_reset"],
        "repeat_action_probability": values["repeat_action_probability"],
        "full_action_space": values["full_action_space"],
        "max_num_frames_per_episode": values["max_episode_steps"] * values["frame_skip"],
        "frameskip": values["frame_skip"],
        "num_threads": values.get("num_threads", 0),
        "img_height": _PIXELS,
        "img_width": _PIXELS,
        "stack_num": 1,
        "reward_clipping": False,
        "episodic_life": False,
    }


def _spec(native: Any, name: str, values: Mapping[str, Any]) -> types.EnvironmentSpec:
    return types.EnvironmentSpec(
        name=f"{_NAME}:{name}",
        observation=jax.ShapeDtypeStruct((_PIXELS, _PIXELS, 1), np.dtype(np.uint8)),
        action=episodes.plain_space(native.single_action_space, f"{_NAME}:{name}"),
        family="atari",
        time_limit=values["max_episode_steps"],
        frames_per_step=values["frame_skip"],
    )


def _channels_last(frames: np.ndarray) -> np.ndarray:
    """Turns frames [N, 1, H, W] into [N, H, W, 1], without a copy."""
    return frames.reshape(len(frames), *frames.shape[2:], 1)


class _Pool:
    """Gives ale-py's vector environment the interface of an EnvPool pool whose batches hold all of its environments.

    A game that ends exactly at the time limit counts as terminated, as in ale-py.
    """

    def __init__(self, vector: Any, seeds: np.ndarray) -> None:
        """Takes over the environments; the first reset seeds them, a later one goes on with their random numbers."""
        self._vector, self._seeds = vector, seeds
        self._was_reset = False
        self._ended = np.ones(len(seeds), bool)
        self._first: tuple[Any, Any] | None = None

    def __len__(self) -> int:
        return self._vector.num_envs

    def async_reset(self) -> None:
        """Resets every environment; `recv` returns the observations."""
        seed = None if self._was_reset else self._seeds.astype(np.int64)
        self._first, self._was_reset = self._vector.reset(seed=seed), True

    def send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step of all environments."""
        ordered = np.empty(len(self), np.int32)
        ordered[env_ids] = action
        self._vector.send(ordered)

    def recv(self) -> Any:
        """Waits for all environments: (observation, reward, terminated, truncated, info)."""
        if self._first is not None:
            (observation, info), self._first = self._first, None
            ended = self._ended = np.zeros(len(self), bool)
            zeros = np.zeros(len(self), np.int32)
            return observation, zeros, ended, ended, {**info, "elapsed_step": zeros}
        observation, reward, terminated, truncated, info = self._vector.recv()
        elapsed = np.where(self._ended, 0, 1)
        self._ended = terminated | truncated
        return observation, reward, terminated, truncated, {**info, "elapsed_step": elapsed}


SUITE = envs.Suite(_NAME, "host", make)
