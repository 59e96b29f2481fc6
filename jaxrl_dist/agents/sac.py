r"""Soft actor-critic, with a temperature that learns.

The losses of a row, of the critics, the policy and the temperature α; θ⁻ are the parameters of the target network, s'
follows after n rewards, and a', ã are new samples of the policy at s' and s:

.. math:: L_Q = \frac{1}{2} \sum_i (y - Q_i(s, a))^2

.. math:: y = \sum_{k=0}^{n-1} \gamma^k r_k
   + \gamma^n \left(\min_i Q_i(s', a'; \theta^-) - \alpha \log \pi(a' | s')\right)

.. math:: L_\pi = \alpha \log \pi(\tilde a | s) - \min_i Q_i(s, \tilde a)

.. math:: L_\alpha = -\log \alpha\, (\log \pi(\tilde a | s) + \bar H)

H̄ is `target_entropy` times the size of an action. The paper's equation 18 has α for log α.

Source: Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", equations 5, 9 and 18.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import bounded_actions, transitions
from jaxrl_dist.numeric import distributions
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("bounded",)
_LOG_STD = (-5.0, 2.0)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of SAC; defaults are the paper's."""

    discount: float = shared.discount(0.99, source="Haarnoja et al. 2018, table 1")
    n_step: int = shared.n_step(1, source="Haarnoja et al. 2018, equation 3")
    temperature: float = setting(
        1.0, "First weight of the entropy (α).", above=0.0, source="Haarnoja et al. 2018, released code"
    )
    learn_temperature: bool = setting(
        True, "Move the weight until the policy has the target entropy.", source="Haarnoja et al. 2018, section 5"
    )
    target_entropy: float = setting(
        -1.0,
        "Target of the policy's entropy for each dimension of an action.",
        source="Haarnoja et al. 2018, table 1",
        sweep=True,
    )
    random_share: float = shared.random_share(0.01, source="Haarnoja et al. 2018, released code (10,000 steps of 1M)")
    policy_learning_rate: float = shared.policy_learning_rate(0.0)
    policy_period: int = shared.policy_period(1)
    clip_rewards: float = shared.clip_rewards(0.0)
    reward_scale: float = shared.reward_scale(1.0)
    evaluation_action: str = shared.evaluation_action("mode", source="Haarnoja et al. 2018, released code (evaluation)")


class _Static(NamedTuple):
    config: Config
    policy: networks.Network
    critic: networks.Network
    size: int
    actions: bounded_actions.Range
    rule: transitions.Rule


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of policy and critics.

    Raises:
        UsageError: actions are no bounded vector, the torso does not fit, or the network has a memory.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import networks, types
        >>> from jaxrl_dist.agents import sac
        >>> observation, action = jax.ShapeDtypeStruct((3,), jnp.float32), types.BoxSpace((2,), low=-1.0, high=1.0)
        >>> spec = types.EnvironmentSpec("mine:arm", observation, action, family="continuous")
        >>> agent = sac.make(sac.Config(temperature=0.5), spec, networks.Config(torso="mlp"))
        >>> params = agent.init(jax.random.key(0))
        >>> print(jnp.exp(params.network["temperature"]["log"]).round(2))
        0.5
    """
    actions = bounded_actions.action_range(spec)
    size = len(actions.centre)
    policy, critic = bounded_actions.policy_and_critic(spec, network, 1, size, per_action=2)
    rule = transitions.Rule(0, config.n_step, config.discount, config.clip_rewards, config.reward_scale)
    static = _Static(config, policy, critic, size, actions, rule)
    return agents.Agent(
        init=functools.partial(initial, policy, critic, config.temperature),
        init_carry=policy.initial,
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=functools.partial(_prepare, static),
        loss=functools.partial(_loss, static),
        staleness="any",
        taught=1,
        lookahead=config.n_step,
        exploration=functools.partial(bounded_actions.exploration, random_share=config.random_share),
        target=agents.copy_target,
        parts={
            "policy": types.Part(config.policy_learning_rate, config.policy_period),
            "critic": types.Part(),
            "temperature": types.Part(period=int(config.learn_temperature)),
        },
        adopt=functools.partial(adopt, config.learn_temperature),
    )


def adopt(learns_temperature: bool, params: types.Params, other: types.Params) -> types.Params:
    """Returns parameters of another run; a temperature that does not learn stays as the settings have it.

    Args:
        learns_temperature: whether it learns.
        params: those of this run.
        other: those of the other.

    Example:
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.agents import sac
        >>> params, other = (types.Params({"temperature": one}, ()) for one in (0.1, 0.7))
        >>> [sac.adopt(learns, params, other).network["temperature"] for learns in (True, False)]
        [0.7, 0.1]
    """
    if learns_temperature:
        return other
    return other._replace(network={**other.network, "temperature": params.network["temperature"]})


def initial(policy: networks.Network, critic: networks.Network, temperature: float, key: Array) -> types.Params:
    """Returns first parameters of a policy, of two critics, and of the logarithm of the temperature.

    Args:
        policy: its network.
        critic: that of each critic.
        temperature: the first one.
        key: typed key [].

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import sac
        >>> net = networks.make(networks.Config(torso="mlp"), envs.make("toy:walk").spec, (networks.Head("q", 3, 1.0),))
        >>> print(sac.initial(net, net, 1.0, jax.random.key(0)).network["temperature"]["log"])
        0.0
    """
    policy_key, critic_key = jax.random.split(key)
    network = {
        "policy": policy.init(policy_key),
        "critic": bounded_actions.init_critics(critic, critic_key, 2),
        "temperature": {"log": jnp.log(jnp.float32(temperature))},
    }
    return types.Params(network, ())


def _policy(static: _Static, network: ArrayTree, observation: ArrayTree) -> distributions.TanhGaussian:
    return policy_of(static.policy, network["policy"], observation)


def policy_of(policy: networks.Network, params: ArrayTree, observation: ArrayTree) -> distributions.TanhGaussian:
    """Returns the distribution of actions [N, A] in [-1, 1]; deviations as in Kostrikov's and CleanRL's SAC.

    Args:
        policy: network with a head `policy` of twice the size of an action.
        params: its parameters.
        observation: tree of [N, ...].

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import sac
        >>> head = networks.Head("policy", size=4, gain=0.01)
        >>> policy = networks.make(networks.Config(torso="mlp"), envs.make("toy:walk").spec, (head,))
        >>> sac.policy_of(policy, policy.init(jax.random.key(0)), jnp.ones((5, 2))).mode().shape
        (5, 2)
    """
    mean, raw = jnp.split(networks.of_rows(policy, params, observation)["policy"], 2, axis=-1)
    low, high = _LOG_STD
    return distributions.TanhGaussian(mean, low + 0.5 * (high - low) * (jnp.tanh(raw) + 1))


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    observation = inputs.timestep.observation
    policy = _policy(static, params.network, observation)
    action = policy.action(policy.sample(inputs.key))
    if static.config.random_share:
        action = bounded_actions.explored(inputs.key, action, inputs.exploration)
    return types.ActOutput(static.actions.scaled(action), (), inputs.carry)


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    policy = _policy(static, params.network, inputs.timestep.observation)
    sample = distributions.choose(policy, static.config.evaluation_action, inputs.key)
    return types.ActOutput(static.actions.scaled(policy.action(sample)), (), inputs.carry)


def _prepare(static: _Static, params: types.Params, inputs: types.LossInputs) -> transitions.Batch:
    del params
    return static.actions.prepare(static.rule, static.policy, inputs.batch)


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Soft errors of both critics, the policy's objective and the temperature's (equations 5, 9 and 18)."""
    config, network = static.config, params.network
    batch: transitions.Batch = inputs.batch
    next_key, key = jax.random.split(inputs.key)
    weight = jax.lax.stop_gradient(jnp.exp(network["temperature"]["log"]))
    ahead = _policy(static, network, batch.next_inputs)
    next_sample = ahead.sample(next_key)
    bootstrap = _lowest(static, inputs.target["critic"], batch.next_inputs, ahead.action(next_sample))
    bootstrap -= weight * ahead.log_prob(next_sample)
    target = jax.lax.stop_gradient(batch.reward + batch.discount * bootstrap)
    predicted = bounded_actions.evaluate_critics(static.critic, network["critic"], batch.inputs, batch.action)[..., 0]
    policy = _policy(static, network, batch.inputs)
    sample = policy.sample(key)
    log_prob = policy.log_prob(sample)
    value = _lowest(static, jax.lax.stop_gradient(network["critic"]), batch.inputs, policy.action(sample))
    terms = Terms(predicted, target, log_prob, value)
    return losses(config, network["temperature"]["log"], static.size, batch.taught, terms)


class Terms(NamedTuple):
    """Holds the numbers that the losses of N rows are made of.

    Attributes:
        predicted: f32 [2, N], values of both critics.
        target: f32 [N], their target.
        log_prob: f32 [N], of new actions of the policy.
        value: f32 [N], of these.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents import sac
        >>> row = jnp.ones(1)
        >>> sac.Terms(predicted=jnp.ones((2, 1)), target=row, log_prob=row, value=row)._fields
        ('predicted', 'target', 'log_prob', 'value')
    """

    predicted: Array
    target: Array
    log_prob: Array
    value: Array


def losses(config: Config, log_weight: Array, size: int, taught: Array, terms: Terms) -> types.LossOutput:
    """Adds the losses of critics, policy and temperature.

    Args:
        config: settings of the agent.
        log_weight: f32 [], logarithm of the temperature.
        size: components of an action.
        taught: f32 [N], 1 where the row teaches.
        terms: of the rows.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents import sac
        >>> one = jnp.ones(1)
        >>> terms = sac.Terms(predicted=jnp.ones((2, 1)), target=3 * one, log_prob=one, value=one)
        >>> print(sac.losses(sac.Config(), jnp.zeros(()), 1, one, terms).metrics["critic_loss"])
        [4.]
    """
    predicted, target, log_prob, value = terms
    weight = jax.lax.stop_gradient(jnp.exp(log_weight))
    metrics = {
        "critic_loss": 0.5 * jnp.square(target - predicted).sum(0),
        "policy_loss": weight * log_prob - value,
        "temperature_loss": -log_weight * jax.lax.stop_gradient(log_prob + config.target_entropy * size),
        "entropy": -log_prob,
        "temperature": jnp.broadcast_to(weight, log_prob.shape),
        "q_value": predicted[0],
    }
    loss = metrics["critic_loss"] + metrics["policy_loss"]
    if config.learn_temperature:
        loss += metrics["temperature_loss"]
    priority = jnp.abs(target - predicted).mean(0)
    loss, priority, metrics = jax.tree.map(lambda x: jnp.where(taught > 0, x, 0.0), (loss, priority, metrics))
    return types.LossOutput(loss, taught, priority, metrics, {})


def _lowest(static: _Static, critics: ArrayTree, observation: ArrayTree, action: Array) -> Array:
    """Returns the lower value f32 [N] of both critics."""
    return bounded_actions.evaluate_critics(static.critic, critics, observation, action)[..., 0].min(0)
