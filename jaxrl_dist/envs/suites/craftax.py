"""The suite craftax (1.6.1): Craftax and Craftax-Classic with symbolic observations, all on the device.

It uses the environments without auto-reset. Observations of pixels are not offered: they are drawn from the same state,
at many times the cost.
"""

import dataclasses
import importlib
from typing import Any

import jax.numpy as jnp

from jaxrl_dist import envs, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.types import Array, ArrayTree

_NAME = "craftax"
ENVIRONMENTS = ("Craftax-Symbolic-v1", "Craftax-Classic-Symbolic-v1")

_NO_LIMIT = 2**31 - 1


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `craftax:name`.

    Args:
        name: one of `ENVIRONMENTS`.
        params: those of Craftax's `EnvParams` that are numbers or switches, such as `max_timesteps`.

    Raises:
        errors.UsageError: unknown parameter, or a value that does not fit.
        ModuleNotFoundError: Craftax is not installed.
    """
    library = importlib.import_module("craftax.craftax_env")
    environment = library.make_craftax_env_from_name(name, auto_reset=False)
    given = environment.default_params
    fields = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    defaults = {key: value for key, value in fields.items() if isinstance(value, bool | int | float)}
    values = parameters.parse_params(params, defaults, f"{_NAME}:{name}")
    parameters.check_least(values, {"max_timesteps": 1})
    return wrappers.auto_reset(adapt(environment, given.replace(**values), name))


def adapt(environment: Any, env_params: Any, name: str) -> envs.BareEnvironment:
    """Gives an environment of Craftax's without auto-reset, and its parameters, the interface of a bare environment.

    Craftax reports its time limit as an end like any other. Here it truncates, so the adapter asks Craftax whether the
    episode would have ended without a limit.
    """
    time_limit = env_params.max_timesteps
    env_params = env_params.replace(max_timesteps=_NO_LIMIT)

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        observation, state = environment.reset_env(key, env_params)
        return state, observation

    def step(key: Array, state: ArrayTree, action: Array) -> envs.Transition:
        observation, state, reward, terminated, _ = environment.step_env(key, state, action, env_params)
        return envs.Transition(state, observation, reward, terminated, jnp.asarray(state.timestep >= time_limit))

    spec = types.EnvironmentSpec(
        name=f"{_NAME}:{name}",
        observation=(),
        action=types.DiscreteSpace(environment.num_actions),
        family="classic",
        time_limit=int(time_limit),
    )
    return envs.BareEnvironment(reset, step, spec)


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
