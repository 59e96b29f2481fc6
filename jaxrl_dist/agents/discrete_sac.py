r"""Soft actor-critic over discrete actions, with exact expectations in the place of samples.

The losses of a row, of the critics, the policy and the temperature α; θ⁻ are the parameters of the target network, s'
follows after n rewards, and sums are over legal actions:

.. math:: L_Q = \frac{1}{2} \sum_i (y - Q_i(s, a))^2

.. math:: y = \sum_{k=0}^{n-1} \gamma^k r_k
   + \gamma^n \sum_{a'} \pi(a' | s') \left(\min_i Q_i(s', a'; \theta^-) - \alpha \log \pi(a' | s')\right)

.. math:: L_\pi = \sum_a \pi(a | s) \left(\alpha \log \pi(a | s) - \min_i Q_i(s, a)\right)

.. math:: L_\alpha = -\log \alpha\, \left(\bar H - H(\pi(\cdot | s))\right)

H̄ is `target_entropy` times the logarithm of the number of legal actions.

Source: Christodoulou 2019, "Soft actor-critic for discrete action settings", equations 4, 10, 11 and 12, with log α for
α in the last, as the released code of Haarnoja et al. 2018 has it.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import sac, shared
from jaxrl_dist.agents.shared import action_values, bounded_actions, transitions
from jaxrl_dist.numeric import distributions
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("discrete",)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of discrete SAC; defaults are the paper's for Atari."""

    discount: float = shared.discount(0.99, source="Christodoulou 2019, appendix B")
    n_step: int = shared.n_step(1, source="Christodoulou 2019, equation 2")
    temperature: float = setting(
        1.0, "First weight of the entropy (α).", above=0.0, source="Haarnoja et al. 2018, released code"
    )
    learn_temperature: bool = setting(
        True, "Move the weight until the policy has the target entropy.", source="Christodoulou 2019, equation 11"
    )
    target_entropy: float = setting(
        0.98,
        "Target of the policy's entropy, as a share of the largest one: the logarithm of the number of legal actions.",
        low=0.0,
        high=1.0,
        source="Christodoulou 2019, appendix B; released code SAC_Discrete.py",
        sweep=True,
    )
    random_share: float = shared.random_share(0.2, source="Christodoulou 2019, appendix B (20,000 steps of 100,000)")
    policy_learning_rate: float = shared.policy_learning_rate(0.0)
    policy_period: int = shared.policy_period(1)
    clip_rewards: float = shared.clip_rewards(0.0, source="Christodoulou 2019, appendix B (1 on Atari)")
    reward_scale: float = shared.reward_scale(1.0)
    evaluation_action: str = shared.evaluation_action("mode")


class _Static(NamedTuple):
    config: Config
    policy: networks.Network
    critic: networks.Network
    rule: transitions.Rule


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of policy and critics.

    Raises:
        UsageError: actions are real, the torso does not fit, or the core is recurrent.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import discrete_sac
        >>> spec, network = envs.make("toy:walk").spec, networks.Config(torso="mlp")
        >>> agent = discrete_sac.make(discrete_sac.Config(n_step=3), spec, network)
        >>> sorted(agent.init(jax.random.key(0)).network), agent.lookahead
        (['critic', 'policy', 'temperature'], 3)
    """
    num_actions = action_values.check_discrete(spec)
    networks.check_single_steps(network.core)
    policy, critic = (
        networks.make(network, spec, (networks.Head(name, num_actions, gain, inputs=inputs),))
        for name, gain, inputs in (("policy", 0.01, network.policy_inputs), ("q", 1.0, network.value_inputs))
    )
    rule = transitions.Rule(policy.context, config.n_step, config.discount, config.clip_rewards, config.reward_scale)
    static = _Static(config, policy, critic, rule)
    return agents.Agent(
        init=functools.partial(sac.initial, policy, critic, config.temperature),
        init_carry=policy.initial,
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=functools.partial(_prepare, static),
        loss=functools.partial(_loss, static),
        staleness="any",
        context=policy.context,
        taught=1,
        lookahead=config.n_step,
        exploration=functools.partial(bounded_actions.exploration, random_share=config.random_share),
        target=_target,
        parts={
            "policy": types.Part(config.policy_learning_rate, config.policy_period),
            "critic": types.Part(),
            "temperature": types.Part(period=int(config.learn_temperature)),
        },
        adopt=functools.partial(sac.adopt, config.learn_temperature),
    )


def _target(network: ArrayTree) -> ArrayTree:
    """Copies the critics: the policy has no target."""
    return agents.copy_target(network["critic"])


def _policy(outputs: dict[str, Array]) -> distributions.Categorical:
    return distributions.Categorical(distributions.masked(outputs["policy"], outputs.get("mask")))


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Acts by the policy, or where `exploration` [B] is not 0 by any legal action."""
    outputs, carry = _step(static, params, inputs)
    policy = _policy(outputs)
    if static.config.random_share:
        uniform = jnp.where(policy.logits > -jnp.inf, 0.0, -jnp.inf)
        policy = distributions.Categorical(jnp.where(inputs.exploration[:, None] > 0, uniform, policy.logits))
    return types.ActOutput(policy.sample(inputs.key), (), carry)


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    outputs, carry = _step(static, params, inputs)
    action = distributions.choose(_policy(outputs), static.config.evaluation_action, inputs.key)
    return types.ActOutput(action, (), carry)


def _step(static: _Static, params: types.Params, inputs: types.ActInputs) -> tuple[dict[str, Array], ArrayTree]:
    timestep = inputs.timestep
    found: tuple[dict[str, Array], ArrayTree] = static.policy.step(
        params.network["policy"], inputs.carry, timestep.observation, agents.is_first(timestep)
    )
    return found


def _prepare(static: _Static, params: types.Params, inputs: types.LossInputs) -> transitions.Batch:
    del params
    return transitions.prepare(static.rule, static.policy, inputs.batch)


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Soft errors of both critics, the policy's objective and the temperature's (equations 4, 10 to 12)."""
    config, network = static.config, params.network
    batch: transitions.Batch = inputs.batch
    log_weight = network["temperature"]["log"]
    weight = jax.lax.stop_gradient(jnp.exp(log_weight))
    ahead = _policy(networks.of_rows(static.policy, network["policy"], batch.next_inputs))
    lowest = _critics(static, inputs.target, batch.next_inputs).min(0)
    bootstrap = _expectation(ahead, lowest) + weight * ahead.entropy(inputs.key)
    target = jax.lax.stop_gradient(batch.reward + batch.discount * bootstrap)
    values = _critics(static, network["critic"], batch.inputs)
    predicted = jax.vmap(action_values.of_action, (0, None))(values, batch.action)
    policy = _policy(networks.of_rows(static.policy, network["policy"], batch.inputs))
    entropy = policy.entropy(inputs.key)
    value = _expectation(policy, jax.lax.stop_gradient(values).min(0))
    num_legal = (policy.logits > -jnp.inf).sum(-1)
    missing = config.target_entropy * jnp.log(num_legal.astype(entropy.dtype)) - jax.lax.stop_gradient(entropy)
    metrics = {
        "critic_loss": 0.5 * jnp.square(target - predicted).sum(0),
        "policy_loss": -weight * entropy - value,
        "temperature_loss": -log_weight * missing,
        "entropy": entropy,
        "temperature": jnp.broadcast_to(weight, entropy.shape),
        "q_value": predicted[0],
    }
    loss = metrics["critic_loss"] + metrics["policy_loss"]
    if config.learn_temperature:
        loss += metrics["temperature_loss"]
    priority = jnp.abs(target - predicted).mean(0)
    loss, priority, metrics = jax.tree.map(lambda x: jnp.where(batch.taught > 0, x, 0.0), (loss, priority, metrics))
    return types.LossOutput(loss, batch.taught, priority, metrics, {})


def _critics(static: _Static, params: ArrayTree, seen: ArrayTree) -> Array:
    """Returns the values f32 [2, N, A] of both critics."""
    return jax.vmap(lambda one: networks.of_rows(static.critic, one, seen)["q"])(params)


def _expectation(policy: distributions.Categorical, values: Array) -> Array:
    """Returns the mean f32 [N] of values f32 [N, A] under a policy."""
    return (jax.nn.softmax(policy.logits) * values).sum(-1)
