"""Deep Q-learning with n-step targets, and double Q-learning as a switch.

Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning"; van Hasselt et al. 2016.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl_dist import networks, returns, types, values
from jaxrl_dist.agents import base
from jaxrl_dist.config import UsageError, setting
from jaxrl_dist.types import Array, ArrayTree


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of DQN; defaults are the paper's for Atari."""

    discount: float = setting(
        0.99, "Discount factor of future rewards (γ).", low=0.0, high=1.0, source="Mnih et al. 2015, extended table 1"
    )
    n_step: int = setting(1, "Rewards summed before bootstrapping (n).", low=1, source="Mnih et al. 2015, equation 2")
    double: bool = setting(
        False, "Choose the bootstrap action by the online network.", source="van Hasselt et al. 2016, equation 4"
    )
    error_clip: float = setting(
        1.0,
        "Size of the error beyond which the loss grows linearly; 0 squares it everywhere.",
        low=0.0,
        source="Mnih et al. 2015, methods (error term clipped to ±1)",
    )
    clip_rewards: float = setting(
        0.0, "Clip rewards to ± this; 0 is off.", low=0.0, source="Mnih et al. 2015, methods (1 on Atari)"
    )
    epsilon_start: float = setting(
        1.0, "Probability of a random action at the start.", low=0.0, high=1.0, source="Mnih et al. 2015, table 1"
    )
    epsilon_end: float = setting(
        0.1, "Probability of a random action after the schedule.", low=0.0, high=1.0, source="Mnih et al. 2015, table 1"
    )
    epsilon_fraction: float = setting(
        0.02,
        "Share of training in which ε falls linearly.",
        above=0.0,
        high=1.0,
        source="Mnih et al. 2015, table 1 (1M of 50M steps)",
    )
    evaluation_epsilon: float = setting(
        0.05,
        "Probability of a random action in evaluation.",
        low=0.0,
        high=1.0,
        source="Mnih et al. 2015, methods (evaluation procedure)",
    )


class Batch(NamedTuple):
    """N transitions of up to n steps: leaves [N, ...]; `discount` is γ^k·∏discount, `reward` the discounted sum."""

    inputs: Array
    action: Array
    reward: Array
    discount: Array
    next_inputs: Array
    taught: Array


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> base.Agent:
    """Builds the agent for an environment; see `base.Agent` for its functions.

    Raises:
        UsageError: real-valued actions, or a recurrent core.
    """
    if not isinstance(spec.action, types.DiscreteSpace):
        raise UsageError(f"--system=dqn needs discrete actions; --env={spec.name} has real ones: use --system=ppo")
    net = networks.make(network, spec, (networks.Head("q", spec.action.num_values, 1.0),))
    if net.recurrent:
        raise UsageError("--network.core=lstm: dqn replays single steps; use identity or frame_stack, or --system=ppo")
    static = _Static(config, net, spec.action.num_values)
    return base.Agent(
        context=net.context,
        taught=1,
        lookahead=config.n_step,
        keeps_sequences=False,
        staleness="any",
        init=lambda key: types.Params(net.init(key), ()),
        init_carry=net.initial,
        exploration=functools.partial(_exploration, config),
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=functools.partial(_prepare, static),
        loss=functools.partial(_loss, static),
        adapt=base.no_adaptation,
        target=base.copy_target,
    )


class _Static(NamedTuple):
    config: Config
    net: networks.Network
    num_actions: int


def _exploration(config: Config, env_index: Array, num_envs: int, progress: Array) -> Array:
    """Linear ε schedule, the same for every environment."""
    del num_envs
    share = jnp.clip(progress / config.epsilon_fraction, 0.0, 1.0)
    epsilon = config.epsilon_start + share * (config.epsilon_end - config.epsilon_start)
    return jnp.broadcast_to(epsilon, env_index.shape).astype(jnp.float32)


def _act(
    static: _Static,
    params: types.Params,
    carry: ArrayTree,
    timestep: types.TimeStep,
    key: Array,
    exploration: Array,
) -> types.ActOutput:
    """Acts ε-greedily with ε = `exploration` [B]."""
    outputs, carry = static.net.step(params.network, carry, timestep.observation, base.is_first(timestep))
    greedy = jnp.argmax(outputs["q"], axis=-1).astype(jnp.int32)
    uniform = jax.random.uniform(key, (2, *greedy.shape))
    random = jnp.minimum((uniform[0] * static.num_actions).astype(jnp.int32), static.num_actions - 1)
    return types.ActOutput(jnp.where(uniform[1] < exploration, random, greedy), (), carry)


def _evaluate(
    static: _Static, params: types.Params, carry: ArrayTree, timestep: types.TimeStep, key: Array
) -> types.ActOutput:
    epsilon = jnp.full(timestep.reward.shape, static.config.evaluation_epsilon)
    return _act(static, params, carry, timestep, key, epsilon)


def _prepare(static: _Static, params: types.Params, sequences: types.Unroll, axis: types.Axis) -> Batch:
    """Cuts the taught row and its bootstrap row out of each window of `context + 1 + n` rows."""
    del params, axis
    config, context = static.config, static.net.context
    timestep = sequences.steps.timestep
    chex.assert_axis_dimension(timestep.reward, 0, context + 1 + config.n_step)
    reward = timestep.reward
    if config.clip_rewards:
        reward = jnp.clip(reward, -config.clip_rewards, config.clip_rewards)
    rows = jax.tree.map(lambda x: x[context:], (reward, timestep.discount, timestep.step_type))
    transitions = functools.partial(returns.n_step_transitions, gamma=config.discount, n=config.n_step)
    reward, offset, discount = jax.tree.map(lambda x: x[0], jax.vmap(transitions, in_axes=1, out_axes=1)(*rows))
    inputs = static.net.stack(sequences.carry, timestep.observation, base.is_first(timestep))[context:]
    next_inputs = inputs[1]
    if config.n_step > 1:
        index = offset.reshape(1, -1, *(1,) * (inputs.ndim - 2))
        next_inputs = jnp.take_along_axis(inputs, index, axis=0)[0]
    return Batch(
        inputs[0],
        sequences.steps.action[context],
        reward,
        discount,
        next_inputs,
        base.taught_rows(timestep.step_type[context]),
    )


def _loss(
    static: _Static,
    params: types.Params,
    target_network: ArrayTree,
    batch: Batch,
    key: Array,
    progress: Array,
    axis: types.Axis,
) -> types.LossOutput:
    """Huber loss of the n-step Q-learning error (equation 2)."""
    del key, progress, axis
    config, apply = static.config, static.net.apply
    q_tm1 = apply(params.network, batch.inputs)["q"]
    q_t = apply(target_network, batch.next_inputs)["q"]
    q_a_tm1 = jnp.take_along_axis(q_tm1, batch.action[:, None], axis=-1)[:, 0]
    if config.double:
        choice = jnp.argmax(apply(params.network, batch.next_inputs)["q"], axis=-1)
        bootstrap = jnp.take_along_axis(q_t, choice[:, None], axis=-1)[:, 0]
    else:
        bootstrap = q_t.max(-1)
    target = jax.lax.stop_gradient(batch.reward + batch.discount * bootstrap)
    error = jnp.where(batch.taught > 0, target - q_a_tm1, 0.0)
    loss = values.huber(error, config.error_clip) if config.error_clip else 0.5 * jnp.square(error)
    metrics: dict[str, Any] = {
        "td_error": jnp.abs(error),
        "q_value": batch.taught * q_a_tm1,
        "loss": loss,
    }
    return types.LossOutput(loss, batch.taught, jnp.abs(error), metrics, {})
