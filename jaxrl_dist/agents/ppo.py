"""Proximal policy optimisation, feed-forward and recurrent, each code-level detail its own switch.

Source: Schulman et al. 2017, "Proximal policy optimization algorithms"; the details as listed by Engstrom et al. 2020,
"Implementation matters in deep policy gradients".
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl_dist import networks, returns, statistics, types
from jaxrl_dist.agents import base
from jaxrl_dist.config import setting
from jaxrl_dist.types import Array, ArrayTree


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of PPO; defaults are the paper's for Atari."""

    discount: float = setting(
        0.99, "Discount factor of future rewards (γ).", low=0.0, high=1.0, source="Schulman et al. 2017, table 5"
    )
    gae_lambda: float = setting(
        0.95, "Trace decay of the advantage estimate (λ).", low=0.0, high=1.0, source="Schulman et al. 2017, table 5"
    )
    clip_epsilon: float = setting(
        0.1,
        "Range 1 ± ε in which the probability ratio is rewarded; 0 takes the unclipped ratio.",
        low=0.0,
        source="Schulman et al. 2017, equation 7 and table 5",
    )
    clip_value: float = setting(
        0.1,
        "Range in which a value may move from its old prediction before its loss stops falling; 0 is off.",
        low=0.0,
        source="Engstrom et al. 2020, section 3 (value function clipping)",
    )
    value_cost: float = setting(
        0.5, "Weight of half the squared value error.", low=0.0, source="Huang et al. 2022, table of Atari settings"
    )
    entropy_cost: float = setting(
        0.01, "Weight of the entropy bonus.", low=0.0, source="Schulman et al. 2017, table 5 (c2)"
    )
    normalise_advantage: str = setting(
        "minibatch",
        "Rows over which advantages get mean 0 and deviation 1, on all devices together.",
        choices=("none", "batch", "minibatch"),
        source="Huang et al. 2022, detail 7",
    )
    normalise_observations: bool = setting(
        False,
        "Normalise observations by running mean and deviation, frozen within an update.",
        source="Engstrom et al. 2020, section 3",
    )
    clip_observations: float = setting(
        0.0, "Clip observations to ± this (after any normalisation); 0 is off.", low=0.0, source="Engstrom et al. 2020"
    )
    scale_rewards: bool = setting(
        False,
        "Divide rewards by the running deviation of the discounted return.",
        source="Engstrom et al. 2020, section 3 and appendix A.2",
    )
    clip_rewards: float = setting(
        0.0, "Clip rewards to ± this (after any scaling); 0 is off.", low=0.0, source="Engstrom et al. 2020, section 3"
    )
    distribution: str = setting(
        "gaussian",
        "Policy over real actions: gaussian with free deviations, or tanh_gaussian squashed to [-1, 1] with "
        "deviations given by the network.",
        choices=("gaussian", "tanh_gaussian"),
        source="Schulman et al. 2017, section 6.1; Freeman et al. 2021 (Brax)",
    )


_LARGEST_LOG_RATIO = 20.0


class Carry(NamedTuple):
    """Acting state: the network's carry, and the running discounted return f32 [B] (`()` where rewards stay)."""

    core: ArrayTree
    discounted_return: ArrayTree


class Statistics(NamedTuple):
    """Running moments of observations and of discounted returns; `()` where the switch is off."""

    observation: ArrayTree
    discounted_return: ArrayTree


class Extras(NamedTuple):
    """What acting remembers: log-probability f32 [B], and where the policy squashes, the sample before, f32 [B, A]."""

    log_prob: Array
    sample: ArrayTree


class Batch(NamedTuple):
    """N items: single rows, leaves [N, ...], or whole sequences, leaves [N, T, ...] with carry [N, ...]."""

    inputs: ArrayTree
    is_first: ArrayTree
    carry: ArrayTree
    sample: Array
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    taught: Array


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> base.Agent:
    """Builds the agent for an environment; see `base.Agent` for its functions."""
    distribution, heads = base.policy_head(spec, config.distribution)
    heads = (*heads, networks.Head("value", 1, 1.0))
    observation = spec.observation
    if config.normalise_observations or config.clip_observations:
        observation = jax.ShapeDtypeStruct(observation.shape, jnp.float32)
    net = networks.make(network, spec._replace(observation=observation), heads)
    static = _Static(config, net, distribution)
    return base.Agent(
        context=net.context,
        taught=0,
        lookahead=0,
        keeps_sequences=net.recurrent,
        staleness="corrected",
        init=functools.partial(_init, static, spec),
        init_carry=functools.partial(_init_carry, static),
        exploration=base.no_exploration,
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=functools.partial(_prepare, static),
        loss=functools.partial(_loss, static),
        adapt=functools.partial(_adapt, static),
        target=base.no_target,
    )


class _Static(NamedTuple):
    config: Config
    net: networks.Network
    distribution: Any


def _init(static: _Static, spec: types.EnvironmentSpec, key: Array) -> types.Params:
    running = Statistics(
        statistics.initial(spec.observation) if static.config.normalise_observations else (),
        statistics.initial(jax.ShapeDtypeStruct((), jnp.float32)) if static.config.scale_rewards else (),
    )
    return types.Params(static.net.init(key), running)


def _init_carry(static: _Static, batch_size: int) -> Carry:
    return Carry(static.net.initial(batch_size), jnp.zeros(batch_size) if static.config.scale_rewards else ())


def _act(
    static: _Static, params: types.Params, carry: Carry, timestep: types.TimeStep, key: Array, exploration: Array
) -> types.ActOutput:
    del exploration
    policy, carry = _policy(static, params, carry, timestep)
    sample = policy.sample(key)
    extras = Extras(policy.log_prob(sample), sample if policy.squashes else ())
    return types.ActOutput(policy.action(sample), extras, carry)


def _evaluate(
    static: _Static, params: types.Params, carry: Carry, timestep: types.TimeStep, key: Array
) -> types.ActOutput:
    del key
    policy, carry = _policy(static, params, carry, timestep)
    return types.ActOutput(policy.action(policy.mode()), (), carry)


def _policy(static: _Static, params: types.Params, carry: Carry, timestep: types.TimeStep) -> Any:
    observation = _normalised(static.config, params.statistics, timestep.observation)
    outputs, core = static.net.step(params.network, carry.core, observation, base.is_first(timestep))
    running = carry.discounted_return
    if static.config.scale_rewards:
        running = _next_return(static.config, running, timestep)
    return static.distribution(outputs), Carry(core, running)


def _prepare(static: _Static, params: types.Params, sequences: types.Unroll, axis: types.Axis) -> Batch:
    """Computes values, advantages and targets, and flattens rows where nothing is recurrent.

    Values come from here and not from acting: all rows in one pass cost a fraction of one pass per row, and actors run
    the policy alone.
    """
    config, net = static.config, static.net
    timestep = sequences.steps.timestep
    chex.assert_rank(timestep.reward, 2)
    observation, is_first = _normalised(config, params.statistics, timestep.observation), base.is_first(timestep)
    inputs = net.stack(sequences.carry.core, observation, is_first)
    if net.recurrent:
        outputs = net.unroll(params.network, sequences.carry.core, inputs, is_first)[0]
    else:
        outputs = jax.vmap(net.apply, in_axes=(None, 0))(params.network, inputs)
    value = outputs["value"][..., 0]
    gae = functools.partial(returns.gae, gamma=config.discount, lambda_=config.gae_lambda)
    reward = _scaled_reward(config, params.statistics, timestep.reward)
    advantage, target = jax.vmap(gae, in_axes=1, out_axes=1)(reward, timestep.discount, timestep.step_type, value)
    steps = jax.tree.map(lambda x: x[:-1], sequences.steps)
    taught = base.taught_rows(steps.timestep.step_type)
    if config.normalise_advantage == "batch":
        advantage = _standardised(advantage, taught, axis)
    inputs, is_first = inputs[:-1], is_first[:-1]
    sample = steps.action if isinstance(steps.extras.sample, tuple) else steps.extras.sample
    rows = (sample, steps.extras.log_prob, value[:-1], advantage, target, taught)
    if net.recurrent:
        inputs, is_first, rows = jax.tree.map(lambda x: x.swapaxes(0, 1), (inputs, is_first, rows))
        return Batch(inputs, is_first, sequences.carry.core, *rows)
    inputs, rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (inputs, rows))
    return Batch(inputs, (), (), *rows)


def _loss(
    static: _Static,
    params: types.Params,
    target_network: ArrayTree,
    batch: Batch,
    key: Array,
    progress: Array,
    axis: types.Axis,
) -> types.LossOutput:
    """Clipped surrogate, value error and entropy bonus (equation 9)."""
    del target_network, progress
    config, net = static.config, static.net
    if net.recurrent:
        inputs, is_first = jax.tree.map(lambda x: x.swapaxes(0, 1), (batch.inputs, batch.is_first))
        outputs, _ = net.unroll(params.network, batch.carry, inputs, is_first)
        outputs = jax.tree.map(lambda x: x.swapaxes(0, 1), outputs)
    else:
        outputs = net.apply(params.network, batch.inputs)
    policy = static.distribution(outputs)
    value = outputs["value"][..., 0]
    advantage = batch.advantage
    if config.normalise_advantage == "minibatch":
        advantage = _standardised(advantage, batch.taught, axis)

    # An infinite ratio would make the gradient of what is clipped away 0 × ∞.
    log_ratio = jnp.minimum(policy.log_prob(batch.sample) - batch.log_prob, _LARGEST_LOG_RATIO)
    ratio = jnp.exp(log_ratio)
    surrogate = ratio * advantage
    if config.clip_epsilon:
        clipped = jnp.clip(ratio, 1 - config.clip_epsilon, 1 + config.clip_epsilon)
        surrogate = jnp.minimum(surrogate, clipped * advantage)
    error = jnp.square(value - batch.target)
    if config.clip_value:
        moved = batch.value + jnp.clip(value - batch.value, -config.clip_value, config.clip_value)
        error = jnp.maximum(error, jnp.square(moved - batch.target))
    entropy = policy.entropy(key)
    loss = -surrogate + config.value_cost * 0.5 * error - config.entropy_cost * entropy
    metrics = {
        "policy_loss": -surrogate,
        "value_loss": 0.5 * error,
        "entropy": entropy,
        "approx_kl": ratio - 1 - log_ratio,
        "clip_fraction": (jnp.abs(ratio - 1) > config.clip_epsilon).astype(jnp.float32),
        "ratio_deviation": jnp.abs(ratio - 1),
    }

    def per_item(x: Array) -> Array:
        return jnp.where(batch.taught > 0, x, 0.0).reshape(x.shape[0], -1)

    loss, valid, metrics = jax.tree.map(lambda x: per_item(x).sum(-1), (loss, batch.taught, metrics))
    maxima = {"largest_ratio": per_item(ratio).max(-1)}
    return types.LossOutput(loss, valid, jnp.zeros_like(loss), metrics, maxima)


def _adapt(
    static: _Static, params: types.Params, sequences: types.Unroll, metrics: Any, axis: types.Axis
) -> types.Params:
    """Moves the running statistics by the unroll that was just learned from, each taught row once."""
    del metrics
    config, timestep, running = static.config, sequences.steps.timestep, params.statistics
    taught = base.taught_rows(timestep.step_type[:-1]).reshape(-1)
    if config.normalise_observations:
        rows = timestep.observation[:-1].reshape(-1, *timestep.observation.shape[2:])
        running = running._replace(observation=statistics.update(running.observation, rows, taught, axis))
    if config.scale_rewards:
        _, discounted = jax.lax.scan(
            lambda carry, row: (_next_return(config, carry, row),) * 2,
            sequences.carry.discounted_return,
            timestep._replace(observation=(), info=()),
        )
        moments = statistics.update(running.discounted_return, discounted[1:].reshape(-1), taught, axis)
        running = running._replace(discounted_return=moments)
    return params._replace(statistics=running)


def _next_return(config: Config, running: Array, timestep: types.TimeStep) -> Array:
    return jnp.where(base.is_first(timestep), 0.0, config.discount * running + timestep.reward)


def _normalised(config: Config, running: Statistics, observation: Array) -> Array:
    if config.normalise_observations:
        observation = statistics.normalise(observation, running.observation)
    if config.clip_observations:
        observation = jnp.clip(observation.astype(jnp.float32), -config.clip_observations, config.clip_observations)
    return observation


def _scaled_reward(config: Config, running: Statistics, reward: Array) -> Array:
    if config.scale_rewards:
        reward = reward / statistics.std(running.discounted_return)
    return base.clip(reward, config.clip_rewards)


def _standardised(advantage: Array, taught: Array, axis: types.Axis) -> Array:
    """Gives taught advantages mean 0 and deviation 1 over all devices; a single row becomes 0."""
    count, total = axis.sum((taught.sum(), (taught * advantage).sum()))
    centred = advantage - total / jnp.maximum(count, 1.0)
    variance = axis.sum((taught * jnp.square(centred)).sum()) / jnp.maximum(count, 1.0)
    return centred / (jnp.sqrt(variance) + 1e-8)
