"""Unrolling a policy in an environment: on the device, as one scan."""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import types
from jaxrl_dist.agents import base
from jaxrl_dist.envs import base as envs
from jaxrl_dist.types import Array, ArrayTree


class ActorState(NamedTuple):
    """State of B environments between unrolls, leaves [B, ...]."""

    environment: ArrayTree
    timestep: types.TimeStep
    carry: ArrayTree


class EpisodeSums(NamedTuple):
    """Sums over the episodes that ended, the taught rows, and those with numbers that cannot be: i32 [] or f32 []."""

    episodes: Array
    episode_return: Array
    episode_length: Array
    valid_steps: Array
    unsound_rows: Array


def device_unroll(
    agent: base.Agent, environment: envs.Environment, length: int
) -> Callable[..., tuple[ActorState, types.Unroll, EpisodeSums]]:
    """Makes the unroll of T rows on the device.

    Args:
        agent: acts.
        environment: one, of which B are stepped.
        length: T.

    Returns:
        (params, actor_state, key, exploration [B], version i32[]) -> (actor_state, unroll [T + 1, B], sums). The
        closing row is acted on for its extras only; its action is chosen anew when the next unroll opens with it.
    """

    step = jax.vmap(environment.step)

    def unroll(
        params: types.Params, state: ActorState, key: Array, exploration: Array, version: Array
    ) -> tuple[ActorState, types.Unroll, EpisodeSums]:
        keys = jax.random.split(key, length + 1)

        def act(timestep: types.TimeStep, carry: ArrayTree, key: Array) -> tuple[types.Step, ArrayTree]:
            output = agent.act(params, carry, timestep, key, exploration)
            return types.Step(timestep._replace(info=()), output.action, output.extras, ()), output.carry

        def body(state: ActorState, key: Array) -> Any:
            row, carry = act(state.timestep, state.carry, key)
            environments, timestep = step(state.environment, row.action)
            ended = timestep.step_type == types.LAST
            episode = (ended, timestep.info.episode_return, timestep.info.episode_length)
            return ActorState(environments, timestep, carry), (row, episode)

        final, (rows, episode) = jax.lax.scan(body, state, keys[:-1])
        closing, _ = act(final.timestep, final.carry, keys[-1])
        steps = jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), rows, closing)
        # The same for every row, so it is not the loop's to write.
        steps = steps._replace(version=jnp.broadcast_to(version, steps.timestep.step_type.shape))
        return final, types.Unroll(steps, state.carry), _episode_sums(environment.spec, rows.timestep, *episode)

    return unroll


def _episode_sums(
    spec: types.EnvironmentSpec,
    timestep: types.TimeStep,
    ended: Array,
    episode_return: Array,
    episode_length: Array,
) -> EpisodeSums:
    unsound = functools.reduce(operator.or_, envs.out_of_range(spec, timestep).values())
    return EpisodeSums(
        ended.sum(dtype=jnp.int32),
        jnp.where(ended, episode_return, 0.0).sum(),
        jnp.where(ended, episode_length, 0).sum(dtype=jnp.int32),
        (timestep.step_type != types.LAST).sum(dtype=jnp.int32),
        unsound.sum(dtype=jnp.int32),
    )
