"""The suite popgym (popgym-arcade 0.0.7): POPGym's arcade of pictures, all on the device.

Each game is drawn as a picture of 128 pixels; with `partial_obs=true` the picture hides what a memory has to keep.
The package brings another gymnax under the same name, which it does not need: install it without its dependencies.
"""

import importlib
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.types import Array, ArrayTree

_NAME = "popgym"
ENVIRONMENTS = tuple(
    f"{game}{level}"
    for game in (
        *("AutoEncode", "BattleShip", "Breakout", "CartPole", "CountRecall", "MineSweeper", "Navigator"),
        *("NoisyCartPole", "Skittles", "Tetris"),
    )
    for level in ("Easy", "Medium", "Hard")
)
_DEFAULTS = {"partial_obs": False, "obs_size": 128}
_SIZES = (128, 256)
# Its own dependency stable-gymnax would be written over gymnax.
_INSTALL = "pip install --no-deps popgym-arcade==0.0.7 dm-pix==0.4.5 jaxtyping==0.3.11 wadler-lindig==0.1.8"


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `popgym:name`.

    Args:
        name: one of `ENVIRONMENTS`.
        params: `partial_obs`, whether pictures hide what came before; `obs_size`, 128 or 256 pixels along each side.

    Raises:
        errors.UsageError: unknown parameter, a value that does not fit, or the package is not installed.
    """
    try:
        library = importlib.import_module("popgym_arcade")
    except ModuleNotFoundError as error:
        what = errors.given("env", f"{_NAME}:{name}")
        raise errors.UsageError(what, f" needs the package {error.name}: {_INSTALL}") from error
    values = _DEFAULTS | parameters.parse_params(params, _DEFAULTS, f"{_NAME}:{name}")
    if values["obs_size"] not in _SIZES:
        raise parameters.refused("obs_size", values["obs_size"], f"expected one of {', '.join(map(str, _SIZES))}")
    environment, settings = library.make(name, **values)
    return wrappers.auto_reset(adapt(environment, settings, name))


def adapt(environment: Any, settings: Any, name: str) -> envs.BareEnvironment:
    """Gives a game of the arcade and its parameters the interface of a bare environment.

    Args:
        environment: the library's.
        settings: its parameters.
        name: name without that of the suite.
    """

    limits = (getattr(environment, of, 0) for of in ("max_steps_in_episode", "max_episode_length"))
    limit = max(map(int, limits))

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        observation, state = environment.reset_env(key, settings)
        return (state, jnp.int32(0)), observation

    def step(key: Array, state: tuple[ArrayTree, Array], action: Array) -> envs.Transition:
        played, steps = state
        observation, played, reward, _, told = environment.step_env(key, played, action, settings)
        # Counted here, since MineSweeper and CartPole compare the number of steps before this one with their limit.
        steps = steps + 1
        truncated = jnp.asarray(told["truncated"]) | (steps >= limit)
        return envs.Transition((played, steps), observation, reward, told["terminated"], truncated)

    observed = jax.eval_shape(environment.reset_env, jax.eval_shape(jax.random.key, 0), settings)[0]
    spec = types.EnvironmentSpec(
        name=f"{_NAME}:{name}",
        observation=(),
        action=types.DiscreteSpace(int(environment.action_space(settings).n)),
        family="atari" if len(observed.shape) == 3 else "classic",
        time_limit=limit,
    )
    return envs.BareEnvironment(reset, step, spec)


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
