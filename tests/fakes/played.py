"""Windows of random timesteps, with ends of both kinds, that an agent acted on; and what its actors saw in them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from fakes import calls

from jaxrl_dist import agents, types


def windows(agent: agents.Agent, params: types.Params, columns: int, size: int) -> types.Unroll:
    """Returns windows of the agent's length, each with one end, of observations of `size` numbers."""
    length = agent.context + 1 + agent.lookahead
    rng = np.random.default_rng(0)
    step_type = np.full((length, columns), types.MID, np.int8)
    for column in range(columns):
        end = rng.integers(0, length)
        step_type[end, column] = types.LAST
        step_type[end + 1 : end + 2, column] = types.FIRST
    terminated = (step_type == types.LAST) & (rng.random(step_type.shape) < 0.5)
    reward = np.where(step_type == types.FIRST, 0, rng.normal(size=step_type.shape))
    observation = rng.normal(size=(length, columns, size))
    timestep = types.TimeStep(
        jnp.asarray(step_type), *(jnp.asarray(x, jnp.float32) for x in (reward, 1 - terminated, observation)), ()
    )
    carry, rows = agent.init_carry(columns), []
    act = jax.jit(functools.partial(calls.act, agent))
    for t in range(length):
        one = jax.tree.map(lambda x, t=t: x[t], timestep)
        output = act(params, carry, one, jax.random.key(t), jnp.full(columns, 0.5))
        carry = output.carry
        rows.append(types.Step(one, output.action, output.extras, jnp.zeros(columns, jnp.int32)))
    return types.Unroll(jax.tree.map(lambda *x: jnp.stack(x), *rows), agent.init_carry(columns))


def assert_errors_agree(agent: agents.Agent, params: types.Params, size: int, columns: int = 30) -> None:
    """With the same parameters, a new window's first error is the priority that learning from it would set."""
    sequences = windows(agent, params, columns, size)
    batch = calls.prepare(agent, params, sequences)
    output = calls.loss(agent, params, params.network, batch, jax.random.key(0))
    taught = np.asarray(batch.taught) > 0
    timestep = sequences.steps.timestep._replace(observation=())
    assert agent.first_error is not None
    error = agent.first_error(types.Unroll(sequences.steps._replace(timestep=timestep), ()))
    np.testing.assert_allclose(np.asarray(error)[taught], np.asarray(output.priority)[taught], rtol=1e-4, atol=1e-5)
    assert 0 < taught.sum() < columns and np.asarray(error)[taught].std() > 0.01
