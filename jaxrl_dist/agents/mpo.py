r"""MPO: a policy that moves, within bounds, towards its own actions weighted by their exponentiated values.

K actions a_k are drawn from the target policy π⁻ at s, and K others a'_k at s', the state that n rewards lead to. With
values of the target critic Q⁻ and dual variables η, α that learn (`shared/duals.py`), the loss of a row is

.. math:: L = \frac{1}{2} (y - Q(s, a))^2 - \sum_k q_k \left(\log \pi_\mu(a_k|s) + \log \pi_\sigma(a_k|s)\right)
   + L_\eta + L_{\alpha_\mu}(\mathrm{KL}(\pi^- \| \pi_\mu)) + L_{\alpha_\sigma}(\mathrm{KL}(\pi^- \| \pi_\sigma))

.. math:: y = \sum_{i=0}^{n-1} \gamma^i r_i + \gamma^n \frac{1}{K} \sum_k Q^-(s', a'_k), \qquad
   q_k = \frac{\exp(Q^-(s, a_k) / \eta)}{\sum_j \exp(Q^-(s, a_j) / \eta)}

.. math:: L_\eta = \eta \varepsilon + \eta \log \frac{1}{K} \sum_k \exp(Q^-(s, a_k) / \eta)

π_μ has the new means and π⁻'s deviations, π_σ the other way round.

Source: Abdolmaleki et al. 2018, "Maximum a posteriori policy optimisation", equations 6 to 9; the decoupled policies as
in Abdolmaleki et al. 2018, "Relative entropy regularized policy iteration", section 4.2; the target of the critic as
in Acme's `jax/mpo` (Hoffman et al. 2020), where the first paper has Retrace. Acme's policy learns at s and s', its
divergences are bounded in each dimension of the action, and actions beyond ±1 cost; here they are bounded as a sum, as
in the second paper.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import bounded_actions, duals, transitions
from jaxrl_dist.numeric import distributions
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("bounded",)
_ACME = "Acme jax/mpo (Hoffman et al. 2020)"
# Deviation of an untrained policy, in halves of the range of actions, and the smallest one.
_FIRST_STD, _SMALLEST_STD = 0.5, 1e-4


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of MPO; defaults are those of Acme's `MPOConfig`, some of which the system replaces."""

    discount: float = shared.discount(0.99, source=_ACME)
    n_step: int = shared.n_step(5, source=_ACME)
    num_samples: int = setting(20, "Actions that are drawn at each state (K).", low=2, source=_ACME)
    temperature: float = duals.temperature(10.0, source=_ACME)
    temperature_bound: float = duals.temperature_bound(0.1, source=_ACME)
    multiplier: float = setting(
        10.0, "First multiplier of the divergence by the policy's means (α_μ).", above=0.0, source=_ACME
    )
    deviation_multiplier: float = setting(
        1_000.0, "First multiplier of the divergence by the policy's deviations (α_Σ).", above=0.0, source=_ACME
    )
    mean_bound: float = duals.mean_bound(2.5e-3, source=_ACME)
    deviation_bound: float = duals.deviation_bound(1e-6, source=_ACME)
    policy_learning_rate: float = shared.policy_learning_rate(0.0)
    policy_period: int = shared.policy_period(1)
    dual_learning_rate: float = duals.dual_learning_rate(1e-2, source=_ACME)
    clip_rewards: float = shared.clip_rewards(0.0)
    reward_scale: float = shared.reward_scale(1.0)
    evaluation_action: str = shared.evaluation_action("mode")


class _Static(NamedTuple):
    config: Config
    policy: networks.Network
    critic: networks.Network
    actions: bounded_actions.Range
    rule: transitions.Rule


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of policy and critic.

    Raises:
        UsageError: actions are no bounded vector, the torso does not fit, or the network has a memory.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import networks, types
        >>> from jaxrl_dist.agents import mpo
        >>> observation, action = jax.ShapeDtypeStruct((3,), jnp.float32), types.BoxSpace((2,), low=-1.0, high=1.0)
        >>> spec = types.EnvironmentSpec("mine:arm", observation, action, family="continuous")
        >>> agent = mpo.make(mpo.Config(), spec, networks.Config(torso="mlp"))
        >>> sorted(agent.init(jax.random.key(0)).network), agent.parts["duals"].learning_rate
        (['critic', 'duals', 'policy'], 0.01)
    """
    actions = bounded_actions.action_range(spec)
    policy, critic = bounded_actions.policy_and_critic(spec, network, 1, len(actions.centre), per_action=2)
    rule = transitions.Rule(0, config.n_step, config.discount, config.clip_rewards, config.reward_scale)
    static = _Static(config, policy, critic, actions, rule)
    return agents.Agent(
        init=functools.partial(_init, static),
        init_carry=policy.initial,
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=functools.partial(_prepare, static),
        loss=functools.partial(_loss, static),
        staleness="any",
        taught=1,
        lookahead=config.n_step,
        target=_target,
        parts={
            "policy": types.Part(config.policy_learning_rate, config.policy_period),
            "critic": types.Part(),
            "duals": types.Part(config.dual_learning_rate),
        },
    )


def _init(static: _Static, key: Array) -> types.Params:
    policy_key, critic_key = jax.random.split(key)
    config = static.config
    network = {
        "policy": static.policy.init(policy_key),
        "critic": static.critic.init(critic_key),
        "duals": duals.init(
            config.temperature, {duals.MEAN: config.multiplier, duals.DEVIATION: config.deviation_multiplier}
        ),
    }
    return types.Params(network, ())


def _target(network: ArrayTree) -> ArrayTree:
    return agents.copy_target({name: network[name] for name in ("policy", "critic")})


def _policy(static: _Static, network: ArrayTree, observation: ArrayTree) -> distributions.Gaussian:
    """Returns the distribution of actions [N, A], of which those beyond ±1 count as ±1."""
    mean, raw = jnp.split(networks.of_rows(static.policy, network["policy"], observation)["policy"], 2, axis=-1)
    std = jax.nn.softplus(raw) * (_FIRST_STD / jax.nn.softplus(0.0)) + _SMALLEST_STD
    return distributions.Gaussian(mean, jnp.log(std))


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    policy = _policy(static, params.network, inputs.timestep.observation)
    action = jnp.clip(policy.sample(inputs.key), -1.0, 1.0)
    return types.ActOutput(static.actions.scaled(action), (), inputs.carry)


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    policy = _policy(static, params.network, inputs.timestep.observation)
    sample = distributions.choose(policy, static.config.evaluation_action, inputs.key)
    return types.ActOutput(static.actions.scaled(jnp.clip(sample, -1.0, 1.0)), (), inputs.carry)


def _prepare(static: _Static, params: types.Params, inputs: types.LossInputs) -> transitions.Batch:
    del params
    return static.actions.prepare(static.rule, static.policy, inputs.batch)


def _value(static: _Static, critic: ArrayTree, observation: ArrayTree, action: Array) -> Array:
    """Returns f32 [N], the values of actions f32 [N, A]."""
    joined = bounded_actions.joined_with(observation, jnp.clip(action, -1.0, 1.0))
    return networks.of_rows(static.critic, critic, joined)["value"][:, 0]


class _Drawn(NamedTuple):
    """The target policy at N states, K actions of it [K, N, A], and their values f32 [K, N] by the target critic."""

    policy: distributions.Gaussian
    actions: Array
    values: Array


def _drawn(static: _Static, target: ArrayTree, observation: ArrayTree, key: Array) -> _Drawn:
    """Draws actions; no gradient flows through what it returns."""
    policy = _policy(static, target, observation)
    repeated = jax.tree.map(lambda x: jnp.broadcast_to(x, (static.config.num_samples, *x.shape)), policy)
    actions = repeated.sample(key)
    values = jax.vmap(lambda action: _value(static, target["critic"], observation, action))(actions)
    return jax.lax.stop_gradient(_Drawn(policy, actions, values))


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Error of the critic, weighted log-probabilities of drawn actions, and the losses of the duals."""
    config, network, batch = static.config, params.network, inputs.batch
    key, next_key = jax.random.split(inputs.key)
    next_values = _drawn(static, inputs.target, batch.next_inputs, next_key).values
    target = batch.reward + batch.discount * next_values.mean(0)
    predicted = _value(static, network["critic"], batch.inputs, batch.action)
    old, samples, values = _drawn(static, inputs.target, batch.inputs, key)
    new = _policy(static, network, batch.inputs)
    temperature = duals.value(network["duals"][duals.TEMPERATURE])
    weights = jax.nn.softmax(values / jax.lax.stop_gradient(temperature), axis=0)
    halves = (distributions.Gaussian(new.mean, old.log_std), distributions.Gaussian(old.mean, new.log_std))
    log_prob = sum(jax.vmap(half.log_prob)(samples) for half in halves)
    bounds = {duals.MEAN: config.mean_bound, duals.DEVIATION: config.deviation_bound}
    found = duals.divergences(old, new)
    spread = jax.nn.logsumexp(values / temperature, axis=0) - jnp.log(float(config.num_samples))
    metrics = {
        "critic_loss": 0.5 * jnp.square(target - predicted),
        "policy_loss": -(weights * log_prob).sum(0),
        "temperature_loss": temperature * (spread + config.temperature_bound),
        "entropy": new.entropy(key),
        "approx_kl": sum(found.values()),
        "temperature": jnp.broadcast_to(temperature, predicted.shape),
        "q_value": predicted,
    }
    losses = metrics["critic_loss"] + metrics["policy_loss"] + metrics["temperature_loss"]
    losses += duals.penalty(network["duals"], bounds, found)
    priority = jnp.abs(target - predicted)
    loss, priority, metrics = jax.tree.map(lambda x: jnp.where(batch.taught > 0, x, 0.0), (losses, priority, metrics))
    return types.LossOutput(loss, batch.taught, priority, metrics, {})
