r"""Deterministic policy gradients, with the parts of D4PG and TD3 as switches: n-step, atoms, two critics, smoothing.

The loss of a row moves the critics by the first term, and the policy μ by the second; θ⁻ are the parameters of the
target network, and n rewards lead to s':

.. math:: L = \frac{1}{2} \sum_i (y - Q_i(s, a; \theta))^2 - Q_1(s, \mu(s; \theta))

.. math:: y = \sum_{k=0}^{n-1} \gamma^k r_k + \gamma^n \min_i Q_i(s', \mu(s'; \theta^-) + \xi; \theta^-)

ξ is 0, or noise clipped to ± `target_noise_clip` (TD3). With `num_atoms` the first term is KL(Φ y ‖ p(s, a; θ)), where
Φ projects the distribution of the target onto the atoms (D4PG).

Source: Lillicrap et al. 2016, "Continuous control with deep reinforcement learning" (DDPG), equations 5 and 6;
Barth-Maron et al. 2018, "Distributed distributional deterministic policy gradients" (D4PG), algorithm 1; Fujimoto et
al. 2018, "Addressing function approximation error in actor-critic methods" (TD3), sections 4.2 and 5.3. The replay
has the priorities (Horgan et al. 2018), and the learner the step sizes of the parts. Differs from TD3's released code:
critics and policy move by one gradient, so the policy's gradient goes through the critic before its step in the same
update; in TD3's code it goes through the critic after it.
Acme's D4PG (`jax/d4pg/learning.py`) takes both gradients at the same parameters, as here.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import action_values, bounded_actions, transitions
from jaxrl_dist.numeric import values
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("bounded",)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the family; defaults are DDPG's."""

    discount: float = shared.discount(0.99, source="Lillicrap et al. 2016, section 7")
    n_step: int = shared.n_step(1, source="Lillicrap et al. 2016, equation 5")
    num_atoms: int = shared.num_atoms(1, source="Lillicrap et al. 2016 (1)")
    value_low: float = shared.value_low(0.0)
    value_high: float = shared.value_high(0.0)
    num_critics: int = setting(
        1,
        "Number of critics; with two the lower value is the target.",
        low=1,
        high=2,
        source="Fujimoto et al. 2018, section 4.2",
    )
    exploration_noise: float = setting(
        0.2,
        "Deviation of the noise on actions, in halves of their range.",
        low=0.0,
        source="Lillicrap et al. 2016",
        sweep=True,
    )
    random_share: float = shared.random_share(0.0, source="Lillicrap et al. 2016 (none)")
    target_noise: float = setting(
        0.0,
        "Deviation of the noise on the target policy's actions, in halves of their range; 0 is off.",
        low=0.0,
        source="Fujimoto et al. 2018, section 5.3 (.2)",
    )
    target_noise_clip: float = setting(
        0.5, "Bound of the target noise.", low=0.0, source="Fujimoto et al. 2018, section 5.3 (c)"
    )
    policy_learning_rate: float = shared.policy_learning_rate(
        0.0, source="Lillicrap et al. 2016, section 7 (1e-4 beside 1e-3)"
    )
    policy_period: int = shared.policy_period(1, source="Fujimoto et al. 2018, section 5.2 (d = 2)")
    actor_errors: bool = shared.actor_errors(False, source="Horgan et al. 2018, section 3 and algorithm 1")
    clip_rewards: float = shared.clip_rewards(0.0)
    reward_scale: float = shared.reward_scale(1.0)


class _Static(NamedTuple):
    config: Config
    policy: networks.Network
    critic: networks.Network
    actions: bounded_actions.Range
    support: Any
    rule: transitions.Rule


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of policy and critics.

    Raises:
        UsageError: actions are no bounded vector, the torso does not fit, the network has a memory, atoms have no
            range, or there are atoms and `actor_errors`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import networks, types
        >>> from jaxrl_dist.agents import dpg
        >>> observation, action = jax.ShapeDtypeStruct((3,), jnp.float32), types.BoxSpace((2,), low=-1.0, high=1.0)
        >>> spec = types.EnvironmentSpec("mine:arm", observation, action, family="continuous")
        >>> agent = dpg.make(dpg.Config(num_critics=2, policy_period=2), spec, networks.Config(torso="mlp"))
        >>> agent.parts["policy"], sorted(agent.init(jax.random.key(0)).network)
        (Part(learning_rate=0.0, period=2), ['critic', 'policy'])
    """
    actions = bounded_actions.action_range(spec)
    size = len(actions.centre)
    policy, critic = bounded_actions.policy_and_critic(spec, network, config.num_atoms, size)
    rule = transitions.Rule(0, config.n_step, config.discount, config.clip_rewards, config.reward_scale)
    static = _Static(config, policy, critic, actions, transitions.support(config, spec), rule)
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
        exploration=functools.partial(bounded_actions.exploration, random_share=config.random_share),
        target=agents.copy_target,
        first_error=functools.partial(transitions.seen_error, rule) if config.actor_errors else None,
        parts={"policy": types.Part(config.policy_learning_rate, config.policy_period), "critic": types.Part()},
    )


def _init(static: _Static, key: Array) -> types.Params:
    policy_key, critic_key = jax.random.split(key)
    critics = bounded_actions.init_critics(static.critic, critic_key, static.config.num_critics)
    return types.Params({"policy": static.policy.init(policy_key), "critic": critics}, ())


def _policy(static: _Static, network: ArrayTree, observation: ArrayTree) -> Array:
    """Returns actions f32 [N, A] in [-1, 1]."""
    return jnp.tanh(networks.of_rows(static.policy, network["policy"], observation)["policy"])


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    observation = inputs.timestep.observation
    best = _policy(static, params.network, observation)
    noise = static.config.exploration_noise * jax.random.normal(inputs.key, best.shape)
    action = jnp.clip(best + noise, -1.0, 1.0)
    if static.config.random_share:
        action = bounded_actions.explored(inputs.key, action, inputs.exploration)
    extras: Any = ()
    if static.config.actor_errors:
        taken, greedy = (_values(static, params.network, observation, x) for x in (action, best))
        extras = action_values.Seen(taken.T if static.config.num_critics > 1 else taken[0], greedy.min(0))
    return types.ActOutput(static.actions.scaled(action), extras, inputs.carry)


def _values(static: _Static, network: ArrayTree, observation: ArrayTree, action: Array) -> Array:
    """Returns f32 [C, N], the values of all critics; called with `actor_errors`, so without atoms."""
    return bounded_actions.evaluate_critics(static.critic, network["critic"], observation, action)[..., 0]


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    action = _policy(static, params.network, inputs.timestep.observation)
    return types.ActOutput(static.actions.scaled(action), (), inputs.carry)


def _prepare(static: _Static, params: types.Params, inputs: types.LossInputs) -> transitions.Batch:
    del params
    return static.actions.prepare(static.rule, static.policy, inputs.batch)


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Adds the critics' errors and the negative value of the policy's actions; each moves its own part of the network.

    Importance weights are the critics' alone (Barth-Maron et al. 2018, algorithm 1).
    """
    config, network = static.config, params.network
    batch: transitions.Batch = inputs.batch
    next_action = _policy(static, inputs.target, batch.next_inputs)
    if config.target_noise:
        noise = config.target_noise * jax.random.normal(inputs.key, next_action.shape)
        bound = config.target_noise_clip
        next_action = jnp.clip(next_action + jnp.clip(noise, -bound, bound), -1.0, 1.0)
    ahead = bounded_actions.evaluate_critics(static.critic, inputs.target["critic"], batch.next_inputs, next_action)
    bootstrap = _lowest(static, ahead)
    predicted = bounded_actions.evaluate_critics(static.critic, network["critic"], batch.inputs, batch.action)
    critic_loss, value, priority = _critic_loss(static, predicted, batch, bootstrap)
    # Of several critics the policy follows the first (Fujimoto et al. 2018, algorithm 1).
    first = jax.tree.map(lambda x: jax.lax.stop_gradient(x[:1]), network["critic"])
    done = _policy(static, network, batch.inputs)
    policy_loss = -_mean(static, bounded_actions.evaluate_critics(static.critic, first, batch.inputs, done)[0])
    metrics = {"critic_loss": critic_loss, "policy_loss": policy_loss, "q_value": value, "td_error": priority}
    parts = critic_loss, policy_loss, priority, metrics
    loss, unweighted, priority, metrics = jax.tree.map(lambda x: jnp.where(batch.taught > 0, x, 0.0), parts)
    return types.LossOutput(loss, batch.taught, priority, metrics, {}, unweighted)


def _critic_loss(
    static: _Static, predicted: Array, batch: transitions.Batch, bootstrap: Array
) -> tuple[Array, Array, Array]:
    """Returns the loss f32 [N] summed over critics [C, N, atoms], the first one's value, and the priority."""
    if static.support is None:
        target = jax.lax.stop_gradient(batch.reward + batch.discount * bootstrap[..., 0])
        error = target - predicted[..., 0]
        return 0.5 * jnp.square(error).sum(0), predicted[0, :, 0], jnp.abs(error).mean(0)
    losses, means = jax.vmap(lambda logits: transitions.divergence(static.support, logits, batch, bootstrap))(predicted)
    return losses.sum(0), means[0], losses.mean(0)


def _mean(static: _Static, predicted: Array) -> Array:
    """Returns the mean f32 [...] of values [..., 1], or of a distribution's logits [..., atoms]."""
    return predicted[..., 0] if static.support is None else values.mean_of_atoms(predicted, static.support)


def _lowest(static: _Static, predicted: Array) -> Array:
    """Returns [N, atoms]: for each row the output with the lower mean, of critics [C, N, atoms]."""
    index = jnp.argmin(_mean(static, predicted), axis=0)
    return jnp.take_along_axis(predicted, index[None, :, None], axis=0)[0]
