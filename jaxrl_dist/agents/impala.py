r"""IMPALA, feed-forward and recurrent: an actor-critic that corrects for the older policies that acted.

The loss of a row, with the targets v of `returns.vtrace`, which are fixed; ρ is π / μ of the policy μ that acted, at
most `clip_policy_rho`:

.. math:: L_s = -\rho_s \log \pi(a_s | x_s)\, (r_s + \gamma v_{s+1} - V(x_s))
   + \frac{c_v}{2} (v_s - V(x_s))^2 - \beta\, H(\pi(\cdot | x_s))

c_v is `value_cost`, β `entropy_cost`. With λ < 1, `returns.vtrace` says what takes the place of v at s + 1;
`correction` chooses other corrections.

Source: Espeholt et al. 2018, "IMPALA: scalable distributed deep-RL with importance weighted actor-learner
architectures", equation 1 (v) and section 4.2.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import actor_critic
from jaxrl_dist.agents.shared import sequences as unrolled
from jaxrl_dist.numeric import returns
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("discrete", "multi_discrete", "bounded", "unbounded")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of IMPALA; defaults are the paper's for Atari."""

    discount: float = shared.discount(0.99, source="Espeholt et al. 2018, appendix")
    trace_decay: float = setting(
        1.0,
        "Trace decay of the returns (λ).",
        low=0.0,
        high=1.0,
        source="Espeholt et al. 2018, remark 2",
        sweep=True,
    )
    correction: str = setting(
        "vtrace",
        "Correction for rows of an older policy: V-trace; its weight on the policy gradient alone, with uncorrected "
        "returns (one_step); a small number added to the probabilities of actions (epsilon); or none.",
        choices=("vtrace", "one_step", "epsilon", "none"),
        source="Espeholt et al. 2018, section 5.2.2",
    )
    clip_rho: float = setting(
        1.0,
        "Upper limit of the weight of a temporal difference (ρ̄).",
        above=0.0,
        source="Espeholt et al. 2018, appendix",
        sweep=True,
    )
    clip_c: float = setting(
        1.0,
        "Upper limit of the weight of a trace (c̄).",
        above=0.0,
        source="Espeholt et al. 2018, appendix",
        sweep=True,
    )
    clip_policy_rho: float = setting(
        1.0,
        "Upper limit of the weight of the policy gradient.",
        above=0.0,
        source="Espeholt et al. 2018, section 4.2; released code (clip_pg_rho_threshold)",
        sweep=True,
    )
    correction_epsilon: float = setting(
        1e-6,
        "Number that the correction by epsilon adds (ε).",
        above=0.0,
        source="Espeholt et al. 2018, section 5.2.2",
        sweep=True,
    )
    value_cost: float = shared.value_cost(0.5, source="Espeholt et al. 2018, appendix")
    entropy_cost: float = shared.entropy_cost(0.01, source="Espeholt et al. 2018, appendix")
    normalise_observations: bool = shared.normalise_observations(False)
    clip_observations: float = shared.clip_observations(0.0)
    scale_rewards: bool = shared.scale_rewards(False)
    smallest_deviation: float = shared.smallest_deviation(0.0)
    clip_rewards: float = shared.clip_rewards(0.0, source="Espeholt et al. 2018, appendix (1 on Atari)")
    reward_scale: float = shared.reward_scale(1.0)
    distribution: str = shared.distribution(
        "gaussian", source="OpenAI Baselines distributions.py; Freeman et al. 2021 (Brax)"
    )
    evaluation_action: str = shared.evaluation_action("mode")


class Batch(NamedTuple):
    """N unrolls of T rows.

    Attributes:
        inputs: tree of [N, T + 1, ...], of the network.
        is_first: bool [N, T + 1].
        carry: tree of [N, ...], the network's memory before row 0.
        sample: [N, T, ...], the actions as the policy drew them.
        log_prob: f32 [N, T], by the policy that acted.
        reward: f32 [N, T + 1].
        discount: f32 [N, T + 1].
        step_type: i8 [N, T + 1].
    """

    inputs: ArrayTree
    is_first: Array
    carry: ArrayTree
    sample: Array
    log_prob: Array
    reward: Array
    discount: Array
    step_type: Array


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
        >>> from jaxrl_dist.agents import impala
        >>> spec, network = envs.make("toy:walk").spec, networks.Config(torso="mlp")
        >>> agent = impala.make(impala.Config(clip_rho=2.0), spec, network)
        >>> agent.staleness, agent.keeps_sequences
        ('any', True)
    """
    agent = actor_critic.make_agent(
        config, spec, network, staleness="any", act=actor_critic.act, prepare=_prepare, loss=_loss
    )
    return agent._replace(keeps_sequences=True)


def _prepare(parts: actor_critic.Parts, params: types.Params, inputs: types.LossInputs) -> Batch:
    """Gathers the columns; the loss computes values and probabilities, once."""
    sequences: types.Unroll = inputs.batch
    steps, timestep = sequences.steps, sequences.steps.timestep
    seen, is_first, reward = actor_critic.inputs(parts, params, sequences)
    acted = jax.tree.map(lambda x: x[:-1], (actor_critic.drawn(steps), steps.extras.log_prob))
    rows = (seen, is_first, *acted, reward, timestep.discount, timestep.step_type)
    seen, is_first, sample, log_prob, *rest = unrolled.swapped(rows)
    return Batch(seen, is_first, sequences.carry.core.memory, sample, log_prob, *rest)


def _loss(parts: actor_critic.Parts, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Policy gradient with corrected advantages, value error and entropy bonus (section 4.2)."""
    config: Config = parts.config
    batch: Batch = inputs.batch
    outputs, value = actor_critic.outputs_and_value(parts, params, batch)
    policy = parts.distribution(jax.tree.map(lambda x: x[:, :-1], outputs))
    log_prob = policy.log_prob(batch.sample)
    estimate = functools.partial(_estimate, config)
    fixed = jax.lax.stop_gradient((value, log_prob - batch.log_prob))
    target, advantage = jax.vmap(estimate)(batch.reward, batch.discount, batch.step_type, *fixed)
    if config.correction == "epsilon":
        log_prob = jnp.logaddexp(log_prob, jnp.log(config.correction_epsilon))
    metrics = {
        "policy_loss": -log_prob * advantage,
        "value_loss": 0.5 * jnp.square(value[:, :-1] - target),
        "entropy": policy.entropy(inputs.key),
        "importance_weight": jnp.exp(jnp.minimum(fixed[1], 0.0)),
    }
    loss = metrics["policy_loss"] + config.value_cost * metrics["value_loss"] - config.entropy_cost * metrics["entropy"]
    return unrolled.summed(agents.taught_rows(batch.step_type[:, :-1]), loss, metrics, {})


def _estimate(
    config: Config, reward: Array, discount: Array, step_type: Array, value: Array, log_rho: Array
) -> tuple[Array, Array]:
    """Returns value targets and advantages f32 [T] of one sequence; `log_rho` [T] is log π − log μ of the actions."""
    corrects = config.correction == "vtrace"
    bounds = (config.clip_rho, config.clip_c, config.clip_policy_rho) if corrects else (1.0, 1.0, 1.0)
    found = returns.vtrace(
        reward,
        discount,
        step_type,
        value,
        log_rho if corrects else jnp.zeros_like(log_rho),
        config.discount,
        config.trace_decay,
        *bounds,
    )
    advantage = found.advantage
    if config.correction == "one_step":
        advantage = advantage * jnp.minimum(jnp.exp(log_rho), config.clip_policy_rho)
    return found.target, advantage
