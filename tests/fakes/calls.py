"""Calls of an agent's functions with plain arguments, as tests have them."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, types


def act(
    agent: agents.Agent,
    params: Any,
    carry: Any,
    timestep: types.TimeStep,
    key: Any,
    exploration: Any = (),
    state: Any = (),
) -> types.ActOutput:
    """Acts on a timestep [B]."""
    return agent.act(params, types.ActInputs(timestep, carry, key, exploration, state))


def evaluate(agent: agents.Agent, params: Any, carry: Any, timestep: types.TimeStep, key: Any) -> types.ActOutput:
    """Acts as in evaluation."""
    return agent.evaluate(params, types.ActInputs(timestep, carry, key))


def prepare(agent: agents.Agent, params: Any, sequences: types.Unroll, axis: types.Axis = types.LOCAL) -> Any:
    """Prepares the batch of an unroll, as its only minibatch."""
    inputs = types.LossInputs(sequences, (), jax.random.key(0), jnp.float32(0), axis)
    batch = agent.prepare(params, inputs)
    if agent.epoch is None:
        return batch
    return agent.epoch(batch, jnp.arange(jax.tree.leaves(batch)[0].shape[0])[None], axis)


def loss(agent: agents.Agent, params: Any, target: Any, batch: Any, key: Any, progress: float = 0.0) -> Any:
    """Returns the `types.LossOutput` of a prepared batch."""
    return agent.loss(params, types.LossInputs(batch, target, key, jnp.float32(progress), types.LOCAL))
