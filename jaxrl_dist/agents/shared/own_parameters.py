"""Gives each agent of an environment its own parameters: a wrapper of an agent whose parameters have leaves [A, ...].

Columns of agents lie beside each other, so B = E·A rows are E groups of one row of each agent. An item of a batch is
such a group, whose losses are added up: minibatches are then drawn without regard to whose rows they are.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxrl_dist import agents, types
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.numeric import vectors
from jaxrl_dist.types import Array, ArrayTree

# Axes of agents in an unroll, see `_unrolls`.
_COLUMNS: Any = types.Unroll._make((2, 1))


def make(agent: agents.Agent, num_agents: int) -> agents.Agent:
    """Makes an agent of which each of the A agents of an environment has its own parameters and statistics.

    The gradient is that of the sum of all losses over the number of all taught rows: each agent's is smaller than alone
    by its share of the rows, and `learner.max_grad_norm` bounds the norm of all together.

    Args:
        agent: learns from whole unrolls, by a loss.
        num_agents: A.

    Returns:
        `agents.Agent`, whose parameters, target network and `LossOutput.aux` have leaves [A, ...], and whose items have
        leaves [N', A, ...].

    Raises:
        UsageError: an agent that replays windows of single columns, or gives its gradient itself.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import ppo
        >>> from jaxrl_dist.agents.shared import own_parameters
        >>> shared = ppo.make(ppo.Config(), envs.make("toy:team").spec, networks.Config(torso="mlp"))
        >>> agent = own_parameters.make(shared, num_agents=3)
        >>> {leaf.shape[0] for leaf in jax.tree.leaves(agent.init(jax.random.key(0)))}
        {3}
    """
    if agent.gradient is not None or agent.taught:
        raise UsageError(
            given("agent.share_parameters", "false"),
            ": for agents that learn from whole unrolls by a loss; valid: true",
        )
    own = functools.partial
    return agent._replace(
        init=own(_init, agent, num_agents),
        act=own(_act, agent.act, num_agents),
        evaluate=own(_act, agent.evaluate, num_agents),
        exploration=own(_exploration, agent, num_agents),
        prepare=own(_prepare, agent, num_agents),
        loss=own(_loss, agent, num_agents),
        epoch=None if agent.epoch is None else jax.vmap(agent.epoch, in_axes=(1, None, None), out_axes=1),
        adapt=own(_adapt, agent, num_agents),
        columns_per_item=num_agents,
    )


def _init(agent: agents.Agent, num_agents: int, key: Array) -> types.Params:
    # One after the other: mapped by `vmap`, the orthogonal matrices of a training run's first program were never
    # finished, in two runs of two (jaxlib 0.10.2, two CPU cores).
    params: types.Params = jax.lax.map(agent.init, jax.random.split(key, num_agents))
    return params


def _act(
    act: Callable[..., types.ActOutput], num_agents: int, params: types.Params, inputs: types.ActInputs
) -> types.ActOutput:
    count = inputs.timestep.step_type.shape[0]
    if count % num_agents:
        raise UsageError(
            given("agent.share_parameters", "false"),
            f": rows are of {num_agents} agents in turn, of which {count} are no multiple",
        )

    def one(params: types.Params, rows: tuple[Any, ...], key: Array) -> types.ActOutput:
        timestep, carry, exploration = rows
        return act(params, types.ActInputs(timestep, carry, key, exploration))

    rows = _apart((inputs.timestep, inputs.carry, inputs.exploration), num_agents, 0)
    output = jax.vmap(one, in_axes=(0, 1, 0), out_axes=1)(params, rows, jax.random.split(inputs.key, num_agents))
    together: types.ActOutput = vectors.flat(output)
    return together


def _exploration(
    agent: agents.Agent, num_agents: int, params: types.Params, env_index: Array, num_envs: int, progress: Array
) -> ArrayTree:
    def one(params: types.Params, index: Array) -> ArrayTree:
        return agent.exploration(params, index, num_envs, progress)

    found = jax.vmap(one, in_axes=(0, 1), out_axes=1)(params, _apart(env_index, num_agents, 0))
    return vectors.flat(found)


def _prepare(agent: agents.Agent, num_agents: int, params: types.Params, inputs: types.LossInputs) -> ArrayTree:
    def one(params: types.Params, unroll: types.Unroll, target: ArrayTree, key: Array) -> ArrayTree:
        return agent.prepare(params, inputs._replace(batch=unroll, target=target, key=key))

    unroll, keys = _unrolls(inputs.batch, num_agents), jax.random.split(inputs.key, num_agents)
    in_axes: Any = (0, _COLUMNS, 0, 0)
    return jax.vmap(one, in_axes=in_axes, out_axes=1)(params, unroll, inputs.target, keys)


def _loss(agent: agents.Agent, num_agents: int, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    def one(params: types.Params, batch: ArrayTree, target: ArrayTree, key: Array) -> types.LossOutput:
        return agent.loss(params, inputs._replace(batch=batch, target=target, key=key))

    keys = jax.random.split(inputs.key, num_agents)
    each: types.LossOutput = jax.vmap(one, in_axes=(0, 1, 0, 0))(params, inputs.batch, inputs.target, keys)
    loss, valid, metrics, unweighted = jax.tree.map(
        lambda x: x.sum(0), (each.loss, each.valid, each.metrics, each.unweighted)
    )
    maxima = {name: x.max(0) for name, x in each.maxima.items()}
    return types.LossOutput(loss, valid, each.priority.max(0), metrics, maxima, unweighted, each.aux)


def _adapt(
    agent: agents.Agent,
    num_agents: int,
    params: types.Params,
    sequences: types.Unroll,
    metrics: Any,
    aux: ArrayTree,
    axis: types.Axis,
) -> types.Params:
    def one(params: types.Params, unroll: types.Unroll, aux: ArrayTree) -> types.Params:
        return agent.adapt(params, unroll, metrics, aux, axis)

    in_axes: Any = (0, _COLUMNS, 0)
    moved: types.Params = jax.vmap(one, in_axes=in_axes)(params, _unrolls(sequences, num_agents), aux)
    return moved


def _unrolls(sequences: types.Unroll, num_agents: int) -> types.Unroll:
    """Returns an unroll with leaves [L, N/A, A, ...] and carry [N/A, A, ...]."""
    return types.Unroll(_apart(sequences.steps, num_agents, 1), _apart(sequences.carry, num_agents, 0))


def _apart(tree: ArrayTree, num_agents: int, axis: int) -> ArrayTree:
    """Splits the axis of columns into environments and agents."""

    def split(x: Array) -> Array:
        return x.reshape(*x.shape[:axis], -1, num_agents, *x.shape[axis + 1 :])

    return jax.tree.map(split, tree)
