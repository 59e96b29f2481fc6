"""Gymnax environments for the baseline: batched, reset in the same step as the episode ends, with episode returns."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp


class EnvState(NamedTuple):
    """State of B environments and the running and the last finished return of each, f32 [B]."""

    inner: Any
    running_return: jax.Array
    finished_return: jax.Array


class Transition(NamedTuple):
    """Results of a step of B environments: observation [B, ...], reward f32 [B], done bool [B], finished returns."""

    observation: jax.Array
    reward: jax.Array
    done: jax.Array
    finished_return: jax.Array


class Environment(NamedTuple):
    """Batched functions of one environment and the sizes that networks need.

    Attributes:
        reset: (key) -> (EnvState, observation [B, ...]).
        step: (key, EnvState, action i32 [B]) -> (EnvState, Transition).
    """

    num_actions: int
    observation_shape: tuple[int, ...]
    reset: Callable[..., Any]
    step: Callable[..., Any]


def make(name: str, num_envs: int) -> Environment:
    """Makes `num_envs` copies of a gymnax environment with its default parameters."""
    env, params = gymnax.make(name)

    def reset(key: jax.Array) -> tuple[EnvState, jax.Array]:
        observation, inner = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(key, num_envs), params)
        return EnvState(inner, jnp.zeros(num_envs), jnp.zeros(num_envs)), observation

    def step(key: jax.Array, state: EnvState, action: jax.Array) -> tuple[EnvState, Transition]:
        keys = jax.random.split(key, num_envs)
        observation, inner, reward, terminated, truncated, _ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            keys, state.inner, action, params
        )
        done = terminated | truncated
        total = state.running_return + reward
        finished = jnp.where(done, total, state.finished_return)
        state = EnvState(inner, jnp.where(done, 0.0, total), finished)
        return state, Transition(observation, reward, done, finished)

    return Environment(env.num_actions, env.observation_space(params).shape, reset, step)


def mean_return(
    environment: Environment, act: Callable[[jax.Array], jax.Array], key: jax.Array, limit: int
) -> jax.Array:
    """Plays every environment for `limit` steps and averages the return of its first episode, f32 [].

    Args:
        act: observation [B, ...] -> action i32 [B].
        limit: steps; at least the longest episode.
    """
    reset_key, step_key = jax.random.split(key)
    state, observation = environment.reset(reset_key)

    def step(carry: Any, key: jax.Array) -> Any:
        state, observation, alive, returns = carry
        state, transition = environment.step(key, state, act(observation))
        returns = returns + jnp.where(alive, transition.reward, 0.0)
        return (state, transition.observation, alive & ~transition.done, returns), None

    start = (state, observation, jnp.ones_like(state.running_return, bool), jnp.zeros_like(state.running_return))
    (_, _, _, returns), _ = jax.lax.scan(step, start, jax.random.split(step_key, limit))
    return returns.mean()
