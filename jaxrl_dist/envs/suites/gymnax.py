"""The suite gymnax (1.0.1): classic control, bsuite and MinAtar, all on the device.

Its own `step` resets in the same step; this file uses the parts of it (`step_env`, `is_truncated`, `reset_env`).
"""

import contextlib
import dataclasses
import functools
import importlib
import math
import sys
import types as python_types
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.envs.film import classic_control
from jaxrl_dist.types import Array, ArrayTree

_NAME = "gymnax"
# All that gymnax registers, but for MNISTBandit-bsuite, which downloads its images when it is made.
ENVIRONMENTS = (
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Asterix-MinAtar",
    "Breakout-MinAtar",
    "Freeway-MinAtar",
    "Seaquest-MinAtar",
    "SpaceInvaders-MinAtar",
    "Catch-bsuite",
    "DeepSea-bsuite",
    "MemoryChain-bsuite",
    "UmbrellaChain-bsuite",
    "DiscountingChain-bsuite",
    "SimpleBandit-bsuite",
    "FourRooms-misc",
    "MetaMaze-misc",
    "PointRobot-misc",
    "BernoulliBandit-misc",
    "GaussianBandit-misc",
    "Reacher-misc",
    "Swimmer-misc",
    "Pong-misc",
    "FrozenLake-misc",
)

# Listed only where no parameter changes the range; Pendulum's is computed from its parameters.
_REWARD_RANGES = {
    "CartPole-v1": (0.0, 1.0),
    "Acrobot-v1": (-1.0, 0.0),
    "MountainCar-v0": (-1.0, 0.0),
    "Breakout-MinAtar": (0.0, 1.0),
    "Freeway-MinAtar": (0.0, 1.0),
    "Catch-bsuite": (-1.0, 1.0),
    "MemoryChain-bsuite": (-1.0, 1.0),
    "UmbrellaChain-bsuite": (-1.0, 1.0),
    "FourRooms-misc": (0.0, 1.0),
    "BernoulliBandit-misc": (0.0, 1.0),
    "Pong-misc": (0.0, 1.0),
}

# Parameters, of any environment, that count something and must be at least 1.
_COUNTS = (
    *("max_steps_in_episode", "memory_length", "num_bits", "chain_length", "rows", "columns", "size"),
    *("n_actions", "num_actions", "num_joints", "ramp_interval", "width", "height", "maze_size", "rf_size"),
)
# Likewise, at least 0.
_EXTRAS = ("n_distractor", "num_urchins")

# Modules that gymnax always imports, but uses only for drawing.
_DRAWING = ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "seaborn")


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `gymnax:name`.

    Args:
        name: one of `ENVIRONMENTS`.
        params: fields of the environment's `EnvParams`, such as `max_steps_in_episode`, or arguments of its
            constructor, such as `num_bits` of MemoryChain.

    Raises:
        errors.UsageError: unknown parameter, or a value that does not fit.
        ModuleNotFoundError: gymnax is not installed.
    """
    library = _import_library()
    environment, default_params = _made(library, name)
    defaults = {field.name: getattr(default_params, field.name) for field in dataclasses.fields(default_params)}
    arguments = parameters.defaults_of(type(environment))
    values = parameters.parse_params(params, {**arguments, **defaults}, f"{_NAME}:{name}")
    parameters.check_least(values, {**dict.fromkeys(_COUNTS, 1), **dict.fromkeys(_EXTRAS, 0)})
    given = {key: value for key, value in values.items() if key in arguments}
    try:
        if given:
            environment, default_params = _made(library, name, **given)
    except (ValueError, AssertionError) as error:
        why = str(error) or "it takes no such values"
        raise errors.UsageError(errors.given("env", f"{_NAME}:{name}"), f" with {given}: {why}") from error
    env_params = default_params.replace(**{key: value for key, value in values.items() if key in defaults})
    made = wrappers.auto_reset(adapt(environment, env_params, name))
    if name not in classic_control.NAMES:
        return made
    return made._replace(make_picture=functools.partial(classic_control.make, name, env_params))


def _made(library: Any, name: str, **arguments: Any) -> tuple[Any, Any]:
    """Makes an environment and its default parameters.

    MetaMaze's time is a share of the longest episode: a count up to 200 is all that a network would see beside flags.
    """
    environment, default_params = library.make(name, **arguments)
    if hasattr(default_params, "normalize_time"):
        default_params = default_params.replace(normalize_time=True)
    return environment, default_params


def adapt(environment: Any, env_params: Any, name: str) -> envs.BareEnvironment:
    """Gives a gymnax environment and its parameters the interface of a bare environment.

    A discrete observation becomes one-hot f32. MinAtar's planes, 0 or 1 in f32, become bool: exact, and a quarter of
    the memory in a replay.

    Raises:
        errors.UsageError: its action space is neither discrete nor a box.
    """
    is_minatar = name.endswith("-MinAtar")
    observed = environment.observation_space(env_params)
    num_observations = getattr(observed, "n", None)

    def convert(observation: ArrayTree) -> ArrayTree:
        if num_observations is not None:
            return jax.nn.one_hot(observation, num_observations, dtype=jnp.float32)
        return observation.astype(bool) if is_minatar else observation

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        observation, state = environment.reset_env(key, env_params)
        return state, convert(observation)

    def step(key: Array, state: ArrayTree, action: Array) -> envs.Transition:
        observation, state, reward, terminated, _ = environment.step_env(key, state, action, env_params)
        truncated = environment.is_truncated(state, env_params)
        return envs.Transition(state, convert(observation), reward, terminated, truncated)

    action = _space(environment.action_space(env_params), name)
    continuous = isinstance(action, types.BoxSpace)
    has_planes = len(observed.shape or ()) == 3
    spec = types.EnvironmentSpec(
        name=f"{_NAME}:{name}",
        observation=(),
        action=action,
        family="continuous" if continuous else "minatar" if has_planes else "classic",
        reward_range=_reward_range(name, env_params),
        time_limit=math.ceil(env_params.max_steps_in_episode),
    )
    return envs.BareEnvironment(reset, step, spec)


def _space(space: Any, name: str) -> types.DiscreteSpace | types.BoxSpace:
    if hasattr(space, "n"):
        return types.DiscreteSpace(int(space.n))
    if not hasattr(space, "low"):
        raise errors.UsageError(
            errors.given("env", f"{_NAME}:{name}"), f": its actions are {space}; they must be discrete or a box"
        )
    shape = tuple(space.shape)
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in (space.low, space.high))
    return types.BoxSpace(shape, low, high)


def _reward_range(name: str, env_params: Any) -> tuple[float, float]:
    if name == "Pendulum-v1":
        # An episode begins at a speed of 1 at most, whatever the largest is.
        lowest = math.pi**2 + 0.1 * max(1.0, env_params.max_speed) ** 2 + 0.001 * env_params.max_torque**2
        return -lowest, 0.0
    return _REWARD_RANGES.get(name, (-math.inf, math.inf))


def _import_library() -> Any:
    with _deferred_imports(_DRAWING):
        return importlib.import_module("gymnax")


@contextlib.contextmanager
def _deferred_imports(names: Sequence[str]) -> Iterator[None]:
    """Replaces modules within the context by placeholders, each of which imports its module when it is first used.

    gymnax imports pyplot and seaborn (hence pandas and scipy.stats), which takes longer than all the rest, and uses
    them only in its `render` methods. Modules that are already imported are not replaced, and after the context an
    import of the others finds the real ones.
    """
    placeholders = {name: _placeholder(name) for name in names if name not in sys.modules}
    for name, module in placeholders.items():
        parent, _, child = name.rpartition(".")
        if parent in placeholders:
            setattr(placeholders[parent], child, module)
    sys.modules.update(placeholders)
    try:
        yield
    finally:
        for name in placeholders:
            sys.modules.pop(name, None)


def _placeholder(name: str) -> python_types.ModuleType:
    def attribute(attribute_name: str) -> Any:
        if attribute_name.startswith("__"):
            raise AttributeError(attribute_name)
        return getattr(importlib.import_module(name), attribute_name)

    module = python_types.ModuleType(name)
    module.__dict__["__getattr__"] = attribute
    return module


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS, draws="classic control, MinAtar, Catch, DeepSea, Pong")
