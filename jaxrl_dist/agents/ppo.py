r"""Proximal policy optimisation, feed-forward and recurrent, each code-level detail its own switch.

The loss of a row, with advantages A and targets R of `returns.gae` by the policy μ that acted:

.. math:: L_t = -\min(r_t A_t,\, \operatorname{clip}(r_t, 1 - \epsilon, 1 + \epsilon) A_t)
   + \frac{c_1}{2} (V(s_t) - R_t)^2 - c_2 H(\pi(\cdot | s_t))

.. math:: r_t = \frac{\pi(a_t | s_t)}{\mu(a_t | s_t)}

ε is `clip_epsilon`, c_1 `value_cost`, c_2 `entropy_cost`. With `clip_value` the squared error is the larger of this one
and that of V moved by at most so much from its old prediction; `kl_penalty` adds λ KL(μ ‖ π), whose weight adapts, and
`adapt_learning_rate` lets the step size follow this divergence.

Source: Schulman et al. 2017, "Proximal policy optimization algorithms", equations 7 and 9; the details as listed by
Engstrom et al. 2020, "Implementation matters in deep policy gradients"; the penalty that adapts as in Heess et al.
2017, "Emergence of locomotion behaviours in rich environments" (DPPO); the step size that adapts as in Rudin et al.
2022, "Learning to walk in minutes using massively parallel deep reinforcement learning" (rsl_rl).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import actor_critic
from jaxrl_dist.agents.shared import sequences as unrolled
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array

ACTIONS = ("discrete", "multi_discrete", "bounded", "unbounded")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of PPO; defaults are the paper's for Atari."""

    discount: float = shared.discount(0.99, source="Schulman et al. 2017, table 5")
    gae_lambda: float = setting(
        0.95,
        "Trace decay of the advantage estimate (λ).",
        low=0.0,
        high=1.0,
        source="Schulman et al. 2017, table 5",
        sweep=True,
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
    value_cost: float = shared.value_cost(0.5, source="Huang et al. 2022, table of Atari settings")
    entropy_cost: float = shared.entropy_cost(0.01, source="Schulman et al. 2017, table 5 (c2)")
    kl_penalty: float = setting(
        0.0,
        "First weight of the divergence from the policy that acted (λ), which adapts after each update; 0 is off.",
        low=0.0,
        source="Heess et al. 2017, algorithms 1 and 2",
    )
    adapt_learning_rate: bool = setting(
        False,
        "Before each gradient step, divide the step size by 1.5 if its minibatch diverges from the policy that acted "
        "by more than twice kl_target, and multiply it by 1.5 below half of that target, between 1e-5 and 1e-2; the "
        "learner's schedule comes on top.",
        source="Rudin et al. 2022, section 3.1; rsl_rl algorithms/ppo.py (schedule adaptive)",
    )
    kl_target: float = setting(
        0.01,
        "Target of the divergence: above twice as much the penalty's weight grows or the step size falls, below half "
        "the other way round.",
        above=0.0,
        source="Schulman et al. 2017, section 4 and table 1",
        sweep=True,
    )
    normalise_advantage: str = setting(
        "minibatch",
        "Rows over which advantages get mean 0 and deviation 1, on all devices together.",
        choices=("none", "batch", "minibatch"),
        source="Huang et al. 2022, detail 7",
    )
    normalise_observations: bool = shared.normalise_observations(False, source="Engstrom et al. 2020, section 3")
    clip_observations: float = shared.clip_observations(0.0, source="Engstrom et al. 2020")
    scale_rewards: bool = shared.scale_rewards(False, source="Engstrom et al. 2020, section 3 and appendix A.2")
    smallest_deviation: float = shared.smallest_deviation(
        0.0, source="Engstrom et al. 2020, appendix A.2 (none); Hafner et al. 2023 (DreamerV3) have 1"
    )
    clip_rewards: float = shared.clip_rewards(0.0, source="Engstrom et al. 2020, section 3")
    reward_scale: float = shared.reward_scale(
        1.0, source="Brax training/agents/ppo, reward_scaling (Freeman et al. 2021)"
    )
    distribution: str = shared.distribution(
        "gaussian", source="Schulman et al. 2017, section 6.1; Freeman et al. 2021 (Brax)"
    )
    evaluation_action: str = shared.evaluation_action("mode", source="Stable-Baselines3 evaluation.py (deterministic)")


_LARGEST_LOG_RATIO = 20.0
# Heess et al. 2017, algorithm 2: when the weight changes, and by how much; the hinge's weight and the bounds are ours.
_HIGH, _LOW, _FACTOR, _HINGE = 2.0, 0.5, 1.5, 50.0
_SMALLEST, _LARGEST = 1e-4, 1e4
# rsl_rl algorithms/ppo.py; rl_games common/schedulers.py has 1e-6 for the first.
_SLOWEST, _FASTEST = 1e-5, 1e-2


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of the network.

    Raises:
        UsageError: the network or the distribution of actions does not fit the environment.

    Example:
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import ppo
        >>> spec, network = envs.make("toy:walk").spec, networks.Config(torso="mlp", core="lstm")
        >>> agent = ppo.make(ppo.Config(gae_lambda=0.9), spec, network)
        >>> agent.staleness, agent.keeps_sequences
        ('corrected', True)
    """
    adapt = _adapt if config.kl_penalty else None
    agent = actor_critic.make_agent(
        config, spec, network, staleness="corrected", act=actor_critic.act, prepare=_prepare, loss=_loss, adapt=adapt
    )
    if config.normalise_advantage == "minibatch":
        agent = agent._replace(epoch=_epoch)
    if config.adapt_learning_rate:
        agent = agent._replace(pace=functools.partial(_pace, config))
    if not config.kl_penalty:
        return agent

    def init(key: Array) -> types.Params:
        params = agent.init(key)
        return params._replace(statistics=params.statistics._replace(own=jnp.float32(config.kl_penalty)))

    def adopt(params: types.Params, other: types.Params) -> types.Params:
        return other._replace(statistics=other.statistics._replace(own=params.statistics.own))

    return agent._replace(init=init, adopt=adopt)


def _adapt(
    parts: actor_critic.Parts, params: types.Params, sequences: types.Unroll, metrics: Any, aux: Any, axis: types.Axis
) -> types.Params:
    """Moves the statistics, and the penalty's weight by the divergence of the policy that the update ended with."""
    divergence = _divergence_after(parts, params, sequences, axis)
    params = actor_critic.move_statistics(parts, params, sequences, metrics, aux, axis)
    weight = _adapted(parts.config, params.statistics.own, divergence)
    return params._replace(statistics=params.statistics._replace(own=weight))


def _divergence_after(
    parts: actor_critic.Parts, params: types.Params, sequences: types.Unroll, axis: types.Axis
) -> Array:
    """Returns the mean divergence f32 [] from the policy that acted, over the taught rows of all devices."""
    seen, is_first, _ = actor_critic.inputs(parts, params, sequences)
    outputs = parts.net.unroll(params.network, sequences.carry.core.memory, seen, is_first)[0]
    policy = parts.distribution(jax.tree.map(lambda x: x[:-1], outputs))
    steps = jax.tree.map(lambda x: x[:-1], sequences.steps)
    divergence = _divergence(policy.log_prob(actor_critic.drawn(steps)) - steps.extras.log_prob)[1]
    taught = agents.taught_rows(steps.timestep.step_type)
    return _mean(divergence, taught, axis)


def _divergence(log_ratio: Array) -> tuple[Array, Array]:
    """Returns probability ratios, and each row's term of the divergence.

    Over actions of the policy that acted, the mean of the terms is the divergence, and the mean of their gradients is
    its gradient (Schulman 2020).
    """
    # With an infinite ratio the gradient of a clipped term would be 0 × ∞.
    log_ratio = jnp.minimum(log_ratio, _LARGEST_LOG_RATIO)
    ratio = jnp.exp(log_ratio)
    return ratio, ratio - 1 - log_ratio


def _adapted(config: Config, weight: Array, divergence: Array) -> Array:
    """Returns the penalty's weight f32 [] after an update with this mean divergence."""
    grown = jnp.where(divergence > _HIGH * config.kl_target, weight * _FACTOR, weight)
    changed = jnp.where(divergence < _LOW * config.kl_target, weight / _FACTOR, grown)
    return jnp.clip(changed, _SMALLEST, _LARGEST)


def _pace(config: Config, rate: Array, metrics: Mapping[str, Array]) -> Array:
    """Returns the step size f32 [] for a minibatch with these means over all devices.

    Source: rsl_rl algorithms/ppo.py and rl_games common/schedulers.py (`AdaptiveScheduler`), whose divergence is that
    of two Gaussians; ours is estimated from the actions, as for any policy. At a divergence of exactly 0 rsl_rl leaves
    the step size; here, as in rl_games, it grows, since rounding would decide.
    """
    divergence = metrics["approx_kl"]
    grown = jnp.where(divergence < _LOW * config.kl_target, jnp.minimum(rate * _FACTOR, _FASTEST), rate)
    return jnp.where(divergence > _HIGH * config.kl_target, jnp.maximum(rate / _FACTOR, _SLOWEST), grown)


def _prepare(parts: actor_critic.Parts, params: types.Params, inputs: types.LossInputs) -> actor_critic.Batch:
    rows = actor_critic.estimate(parts, params, inputs.batch)
    if parts.config.normalise_advantage == "batch":
        rows = rows._replace(advantage=_standardised(rows.advantage, rows.taught, inputs.axis))
    return unrolled.items(parts.net, rows)


def _epoch(batch: actor_critic.Batch, order: Array, axis: types.Axis) -> actor_critic.Batch:
    """Standardises the advantages of each minibatch of an epoch over all devices: two reductions for all of them.

    Args:
        batch: items.
        order: i32 [M, N / M], the items of each minibatch.
        axis: reductions over all devices.
    """
    standardised = _standardised_each(batch.advantage[order], batch.taught[order], axis)
    flat = standardised.reshape(-1, *standardised.shape[2:])
    return batch._replace(advantage=jnp.zeros_like(batch.advantage).at[order.reshape(-1)].set(flat))


def _loss(parts: actor_critic.Parts, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Clipped surrogate, value error and entropy bonus (equation 9)."""
    config: Config = parts.config
    batch: actor_critic.Batch = inputs.batch
    policy, value = actor_critic.policy_and_value(parts, params, batch)
    ratio, divergence = _divergence(policy.log_prob(batch.sample) - batch.log_prob)
    surrogate = ratio * batch.advantage
    if config.clip_epsilon:
        clipped = jnp.clip(ratio, 1 - config.clip_epsilon, 1 + config.clip_epsilon)
        surrogate = jnp.minimum(surrogate, clipped * batch.advantage)
    error = jnp.square(value - batch.target)
    if config.clip_value:
        moved = batch.value + jnp.clip(value - batch.value, -config.clip_value, config.clip_value)
        error = jnp.maximum(error, jnp.square(moved - batch.target))
    entropy = policy.entropy(inputs.key)
    loss = -surrogate + config.value_cost * 0.5 * error - config.entropy_cost * entropy
    if config.kl_penalty:
        loss += _penalty(config, params.statistics.own, divergence, batch.taught, inputs.axis)
    metrics = {
        "policy_loss": -surrogate,
        "value_loss": 0.5 * error,
        "entropy": entropy,
        "approx_kl": divergence,
        "clip_fraction": (jnp.abs(ratio - 1) > (config.clip_epsilon or jnp.inf)).astype(jnp.float32),
        "ratio_deviation": jnp.abs(ratio - 1),
    }
    return unrolled.summed(batch.taught, loss, metrics, {"largest_ratio": ratio})


def _penalty(config: Config, weight: Array, divergence: Array, taught: Array, axis: types.Axis) -> Array:
    """Weighs divergences [N] or [N, T], more steeply where their mean over all devices is above the hinge.

    The hinge is the square of the excess of the mean over twice the target: its gradient is that of the divergence
    times twice the excess (Heess et al. 2017, algorithm 1).
    """
    mean = _mean(jax.lax.stop_gradient(divergence), taught, axis)
    excess = jnp.maximum(mean - _HIGH * config.kl_target, 0.0)
    return (weight + 2 * _HINGE * excess) * divergence


def _mean(x: Array, taught: Array, axis: types.Axis) -> Array:
    """Returns the mean f32 [] over the taught rows of all devices."""
    count, total = axis.sum((taught.sum(), jnp.where(taught > 0, x, 0.0).sum()))
    return total / jnp.maximum(count, 1.0)


def _standardised(advantage: Array, taught: Array, axis: types.Axis) -> Array:
    """Gives taught advantages mean 0 and deviation 1 over all devices; a single row becomes 0."""
    return _standardised_each(advantage[None], taught[None], axis)[0]


def _standardised_each(advantage: Array, taught: Array, axis: types.Axis) -> Array:
    """Standardises the taught advantages of each of M batches [M, ...] over all devices."""
    total = jax.vmap(jnp.sum)

    def spread(x: Array) -> Array:
        return x.reshape(-1, *(1,) * (advantage.ndim - 1))

    count, summed = axis.sum((total(taught), total(taught * advantage)))
    centred = advantage - spread(summed / jnp.maximum(count, 1.0))
    variance = axis.sum(total(taught * jnp.square(centred))) / jnp.maximum(count, 1.0)
    return centred / (jnp.sqrt(spread(variance)) + 1e-8)
