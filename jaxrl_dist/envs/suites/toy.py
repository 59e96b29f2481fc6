"""Tiny environments for tests, in which every number is known beforehand; they are no tasks to learn."""

import functools

import jax
import jax.numpy as jnp

from jaxrl_dist import envs, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.types import Array

_NAME = "toy"
ENVIRONMENTS = ("episode", "time_limit", "both", "walk")

_FAMILY = "classic"


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `toy:name`.

    `episode` counts its steps, and terminates after 7: observation [steps, last action], reward steps / 2 + action with
    the steps before this one. `time_limit` is the same, truncated after 7; `both` terminates and is truncated there at
    once. `walk` is truncated after 7 and has random first states and steps, so its numbers tell the keys apart.

    Args:
        name: one of `ENVIRONMENTS`.
        params: `length`, steps of an episode.

    Raises:
        errors.UsageError: unknown parameter, or a length below 1.
    """
    values = {"length": 7, **parameters.parse_params(params, {"length": 7}, f"{_NAME}:{name}")}
    parameters.check_least(values, {"length": 1})
    return wrappers.auto_reset(bare(name, values["length"]))


def bare(name: str, length: int) -> envs.BareEnvironment:
    """Makes the environment without resets; see `make`."""
    spec = types.EnvironmentSpec(f"{_NAME}:{name}", (), types.DiscreteSpace(3), _FAMILY, time_limit=length)
    if name == "walk":
        return envs.BareEnvironment(_walk_reset, functools.partial(_walk_step, length=length), spec)
    step = functools.partial(
        _count_step, length=length, terminates=name in ("episode", "both"), truncates=name in ("time_limit", "both")
    )
    return envs.BareEnvironment(_count_reset, step, spec)


def _count_reset(key: Array) -> tuple[Array, Array]:
    del key
    return jnp.int32(0), jnp.zeros(2, jnp.float32)


def _count_step(
    key: Array, state: Array, action: Array, *, length: int, terminates: bool, truncates: bool
) -> envs.Transition:
    del key
    steps = state + 1
    observation = jnp.stack([steps, action]).astype(jnp.float32)
    at_end = steps >= length
    return envs.Transition(steps, observation, state / 2 + action, at_end & terminates, at_end & truncates)


def _walk_reset(key: Array) -> tuple[tuple[Array, Array], Array]:
    position = jax.random.normal(key, (2,))
    return (position, jnp.int32(0)), position


def _walk_step(key: Array, state: tuple[Array, Array], action: Array, *, length: int) -> envs.Transition:
    position, steps = state
    position = position + 0.1 * jax.random.normal(key, (2,)) + 0.1 * (action - 1)
    steps = steps + 1
    return envs.Transition((position, steps), position, -jnp.abs(position).sum(), jnp.bool_(False), steps >= length)


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
