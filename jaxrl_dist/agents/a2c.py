r"""Advantage actor-critic, feed-forward and recurrent: one gradient per unroll, by the policy that acted.

The loss of a row, with advantages A and targets R = A + V of `returns.gae`, which are fixed:

.. math:: L_t = -\log \pi(a_t | s_t)\, A_t + \frac{c_v}{2} (R_t - V(s_t))^2 - \beta\, H(\pi(\cdot | s_t))

c_v is `value_cost`, β `entropy_cost`; with λ = 1, A is that of the paper.

Source: Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning", algorithm S3 and section 4 (entropy),
made synchronous as by OpenAI Baselines a2c (2017). The workers of A3C use the same agent: there the gradient is old,
not the rows. With a correction by ε it may learn from rows of older policies (Babaeizadeh et al. 2017, GA3C).
"""

import dataclasses

import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import actor_critic, sequences
from jaxrl_dist.settings import setting

ACTIONS = ("discrete", "multi_discrete", "bounded", "unbounded")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of A2C; defaults are those of the paper and of Baselines for Atari."""

    discount: float = shared.discount(0.99, source="Mnih et al. 2016, supplement (experimental setup)")
    gae_lambda: float = setting(
        1.0,
        "Trace decay of the advantage estimate (λ); 1 sums all rewards up to the end of the unroll.",
        low=0.0,
        high=1.0,
        source="Mnih et al. 2016, algorithm S3",
        sweep=True,
    )
    value_cost: float = shared.value_cost(0.5, source="OpenAI Baselines a2c.py, first release (2017)")
    entropy_cost: float = shared.entropy_cost(0.01, source="Mnih et al. 2016, supplement (experimental setup)")
    correction_epsilon: float = setting(
        0.0,
        "Added to the probability of an action before its logarithm (ε): it bounds the gradient of actions that the "
        "policy no longer takes, so that rows may be of an older policy; 0 is off, and needs the policy's own rows.",
        low=0.0,
        source="Babaeizadeh et al. 2017 (GA3C), section 5.2",
    )
    normalise_observations: bool = shared.normalise_observations(
        False, source="OpenAI Baselines run.py (VecNormalize, for MuJoCo only)"
    )
    clip_observations: float = shared.clip_observations(
        0.0, source="OpenAI Baselines vec_normalize.py (10, for MuJoCo only)"
    )
    scale_rewards: bool = shared.scale_rewards(False, source="OpenAI Baselines run.py (VecNormalize, for MuJoCo only)")
    smallest_deviation: float = shared.smallest_deviation(0.0)
    clip_rewards: float = shared.clip_rewards(0.0, source="Mnih et al. 2015, methods (1 on Atari)")
    reward_scale: float = shared.reward_scale(1.0)
    distribution: str = shared.distribution(
        "gaussian", source="OpenAI Baselines distributions.py; Freeman et al. 2021 (Brax)"
    )
    evaluation_action: str = shared.evaluation_action("mode", source="Stable-Baselines3 evaluation.py (deterministic)")


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
        >>> from jaxrl_dist.agents import a2c
        >>> spec, network = envs.make("toy:walk").spec, networks.Config(torso="mlp")
        >>> a2c.make(a2c.Config(), spec, network).staleness
        'none'
        >>> a2c.make(a2c.Config(correction_epsilon=1e-6), spec, network).staleness
        'corrected'
    """
    staleness = "corrected" if config.correction_epsilon else "none"
    return actor_critic.make_agent(config, spec, network, staleness=staleness, act=_act, prepare=_prepare, loss=_loss)


def _act(parts: actor_critic.Parts, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Acts without storing log-probabilities, as the loss needs none."""
    output = actor_critic.act(parts, params, inputs)
    return output._replace(extras=output.extras._replace(log_prob=()))


def _prepare(parts: actor_critic.Parts, params: types.Params, inputs: types.LossInputs) -> actor_critic.Batch:
    return sequences.items(parts.net, actor_critic.estimate(parts, params, inputs.batch))


def _loss(parts: actor_critic.Parts, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Policy gradient with entropy bonus, and value error (algorithm S3, section 4)."""
    config: Config = parts.config
    batch: actor_critic.Batch = inputs.batch
    policy, value = actor_critic.policy_and_value(parts, params, batch)
    log_prob = policy.log_prob(batch.sample)
    if config.correction_epsilon:
        log_prob = jnp.logaddexp(log_prob, jnp.log(config.correction_epsilon))
    metrics = {
        "policy_loss": -log_prob * batch.advantage,
        "value_loss": 0.5 * jnp.square(value - batch.target),
        "entropy": policy.entropy(inputs.key),
    }
    loss = metrics["policy_loss"] + config.value_cost * metrics["value_loss"] - config.entropy_cost * metrics["entropy"]
    return sequences.summed(batch.taught, loss, metrics, {})
