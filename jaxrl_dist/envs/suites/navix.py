"""The suite navix (0.7.4): MiniGrid's tasks, all on the device.

Its own `step` also resets; this file uses the step without the reset. GoToDoor is not offered: its observation does not
show to which door the agent must go.
"""

import importlib
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_dist import envs, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.types import Array, ArrayTree

_NAME = "navix"
ENVIRONMENTS = (
    "Navix-Empty-5x5-v0",
    "Navix-Empty-6x6-v0",
    "Navix-Empty-8x8-v0",
    "Navix-Empty-16x16-v0",
    "Navix-Empty-Random-5x5-v0",
    "Navix-Empty-Random-6x6-v0",
    "Navix-Empty-Random-8x8-v0",
    "Navix-Empty-Random-16x16-v0",
    "Navix-DoorKey-5x5-v0",
    "Navix-DoorKey-6x6-v0",
    "Navix-DoorKey-8x8-v0",
    "Navix-DoorKey-16x16-v0",
    "Navix-DoorKey-Random-5x5-v0",
    "Navix-DoorKey-Random-6x6-v0",
    "Navix-DoorKey-Random-8x8-v0",
    "Navix-DoorKey-Random-16x16-v0",
    "Navix-FourRooms-v0",
    "Navix-LavaGapS5-v0",
    "Navix-LavaGapS6-v0",
    "Navix-LavaGapS7-v0",
    "Navix-SimpleCrossingS9N1-v0",
    "Navix-SimpleCrossingS9N2-v0",
    "Navix-SimpleCrossingS9N3-v0",
    "Navix-SimpleCrossingS11N5-v0",
    "Navix-Dynamic-Obstacles-5x5-v0",
    "Navix-Dynamic-Obstacles-5x5-Random-v0",
    "Navix-Dynamic-Obstacles-6x6-v0",
    "Navix-Dynamic-Obstacles-6x6-Random-v0",
    "Navix-Dynamic-Obstacles-8x8-v0",
    "Navix-Dynamic-Obstacles-16x16-v0",
    "Navix-DistShift1-v0",
    "Navix-DistShift2-v0",
)

_OBSERVATIONS = ("symbolic", "symbolic_first_person")
_DEFAULTS = {"observation": _OBSERVATIONS[0], "max_steps": 100}
# A cell is (kind, colour, state): kinds up to 10; six colours; as states three of a door, or four directions.
_CODES = (11, 6, 4)
_TERMINATED, _TRUNCATED = 2, 1


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `navix:name`.

    Args:
        name: one of `ENVIRONMENTS`.
        params: `observation`, "symbolic" for the whole grid, which is NAVIX's default, or "symbolic_first_person" for
            the 7 × 7 cells before the agent; `max_steps`, the time limit, 100 as in NAVIX.

    Raises:
        errors.UsageError: unknown parameter, or a value that does not fit.
        ModuleNotFoundError: NAVIX is not installed.
    """
    library = importlib.import_module("navix")
    values = {**_DEFAULTS, **parameters.parse_params(params, _DEFAULTS, f"{_NAME}:{name}")}
    shown, max_steps = values["observation"], values["max_steps"]
    parameters.check_choice("observation", shown, _OBSERVATIONS)
    parameters.check_least(values, {"max_steps": 1})
    # NAVIX's DistShift lets an agent walk through lava, which ends all its other tasks.
    ends = library.terminations.DEFAULT_TERMINATION
    observe = getattr(library.observations, shown)
    environment = library.make(name, max_steps=max_steps, observation_fn=observe, termination_fn=ends)
    return wrappers.auto_reset(adapt(environment, name))


def adapt(environment: Any, name: str) -> envs.BareEnvironment:
    """Gives a NAVIX environment with symbolic observations [H, W, 3] the interface of a bare environment.

    The three codes of a cell become one-hot planes, bool [H, W, 21], since their order means nothing. The family is not
    MinAtar's: with its settings one seed of PPO solved Empty-5x5 and forgot it after 120,000 steps.
    """

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        timestep = environment.reset(key)
        return _without_pictures(timestep), _planes(timestep.observation)

    def step(key: Array, state: ArrayTree, action: Array) -> envs.Transition:
        del key
        timestep = environment._step(state, action)
        kind = timestep.step_type
        observation = _planes(timestep.observation)
        return envs.Transition(
            _without_pictures(timestep), observation, timestep.reward, kind == _TERMINATED, kind == _TRUNCATED
        )

    spec = types.EnvironmentSpec(
        name=f"{_NAME}:{name}",
        observation=(),
        action=types.DiscreteSpace(len(environment.action_set)),
        family="grid",
        reward_range=(-1.0, 1.0),
        time_limit=int(environment.max_steps),
    )
    return envs.BareEnvironment(reset, step, spec)


def _planes(observation: Array) -> Array:
    """Turns the codes [..., 3] into bool [..., 21]."""
    parts = [jax.nn.one_hot(observation[..., i], size, dtype=bool) for i, size in enumerate(_CODES)]
    return jnp.concatenate(parts, axis=-1)


def _without_pictures(timestep: Any) -> Any:
    """Drops the sprites that NAVIX keeps in every state for drawing, 3 KiB a cell."""
    return timestep.replace(state=timestep.state.replace(cache=None))


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
