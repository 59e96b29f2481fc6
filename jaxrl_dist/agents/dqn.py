r"""Deep Q-learning; its successors' parts are switches: double, dueling, n-step, C51, quantiles, noisy, ε ladder.

The loss of a row is ℓ(y − Q(s, a; θ)), where ℓ is Huber's function (`error_clip`), θ⁻ are the parameters of the target
network, and n rewards lead to s':

.. math:: y = \sum_{k=0}^{n-1} \gamma^k r_k + \gamma^n Q(s', a^*; \theta^-)

.. math:: a^* = \operatorname{argmax}_a Q(s', a; \theta^-)

With `double`, a* is that of θ. With `num_atoms` the loss is KL(Φ y ‖ p(s, a; θ)), where Φ projects the distribution of
the target onto the atoms; or, if these are K quantiles θ_i, of which target y has as many, with κ = `error_clip`,

.. math:: \sum_{i=1}^K \frac{1}{K} \sum_{j=1}^K |\tau_i - 1_{u_{ij} < 0}| \frac{\ell_\kappa(u_{ij})}{\kappa},
   \qquad u_{ij} = y_j - \theta_i, \qquad \tau_i = \frac{2i - 1}{2K}

Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning", equation 2; van Hasselt et al.
2016, equation 4 (double); Bellemare et al. 2017, algorithm 1 (atoms); Dabney et al. 2018, "Distributional reinforcement
learning with quantile regression", algorithm 1 (QR-DQN); Hessel et al. 2018, "Rainbow"; Horgan et al. 2018,
"Distributed prioritized experience replay". Priorities belong to the replay.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import action_values, soft_values, transitions
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("discrete",)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the DQN family; defaults are DQN's for Atari."""

    discount: float = shared.discount(0.99, source="Mnih et al. 2015, extended table 1")
    n_step: int = shared.n_step(1, source="Mnih et al. 2015, equation 2")
    double: bool = shared.double(False, source="van Hasselt et al. 2016, equation 4")
    dueling: bool = shared.dueling(False, source="Wang et al. 2016, equation 9")
    num_atoms: int = shared.num_atoms(1, source="Bellemare et al. 2017, section 4")
    distribution: str = setting(
        "categorical",
        "Atoms of the distribution of returns: categorical has their places, evenly from value_low to value_high, and "
        "learns their probabilities (C51); quantile learns places of equal probabilities (QR-DQN).",
        choices=("categorical", "quantile"),
        source="Bellemare et al. 2017, section 4; Dabney et al. 2018 (QR-DQN), section 4",
    )
    value_low: float = shared.value_low(0.0, source="Bellemare et al. 2017, section 4 (V_min)")
    value_high: float = shared.value_high(0.0, source="Bellemare et al. 2017, section 4 (V_max)")
    noise: float = setting(
        0.0,
        "Explore by noisy heads with this σ₀; 0 makes them plain.",
        low=0.0,
        source="Fortunato et al. 2018, section 3.2 (.5)",
    )
    error_clip: float = setting(
        1.0,
        "Size of the error beyond which the loss grows linearly; 0 squares it everywhere, and leaves that of quantiles "
        "linear everywhere (κ). Unused with categorical atoms.",
        low=0.0,
        source="Mnih et al. 2015, methods (error term clipped to ±1)",
    )
    temperature: float = soft_values.temperature(0.0)
    munchausen: float = soft_values.munchausen(0.0)
    log_policy_low: float = soft_values.log_policy_low(-1.0)
    clip_rewards: float = shared.clip_rewards(0.0, source="Mnih et al. 2015, methods (1 on Atari)")
    reward_scale: float = shared.reward_scale(1.0)
    exploration: str = setting(
        "schedule",
        "ε of the actors: schedule (falling, the same for all) or ladder (constant, different for each environment).",
        choices=("schedule", "ladder"),
        source="Mnih et al. 2015, methods; Horgan et al. 2018, section 4.1 (ladder)",
    )
    epsilon_start: float = shared.epsilon_start(1.0, source="Mnih et al. 2015, extended table 1")
    epsilon_end: float = shared.epsilon_end(0.1, source="Mnih et al. 2015, extended table 1")
    epsilon_fraction: float = shared.epsilon_fraction(
        0.02, source="Mnih et al. 2015, extended table 1 (1M of 50M steps)"
    )
    epsilon_wait: float = shared.epsilon_wait(
        0.0, source="this project (Mnih et al. 2015, released code: the 50,000 steps before learning, .001 of 50M)"
    )
    ladder_base: float = shared.ladder_base(0.4, source="Horgan et al. 2018, section 4.1")
    ladder_exponent: float = shared.ladder_exponent(7.0, source="Horgan et al. 2018, section 4.1")
    actor_errors: bool = shared.actor_errors(False, source="Horgan et al. 2018, section 3 and algorithm 1")
    evaluation_epsilon: float = shared.evaluation_epsilon(
        0.05, source="Mnih et al. 2015, methods (evaluation procedure)"
    )


class _Static(NamedTuple):
    config: Config
    net: networks.Network
    num_actions: int
    support: Any
    rule: transitions.Rule


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of the network.

    Raises:
        UsageError: actions are real, the core is recurrent, atoms have no range, there is but one quantile, or there
            are atoms and `actor_errors`.

    Example:
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import dqn
        >>> spec, network = envs.make("toy:walk").spec, networks.Config(torso="mlp")
        >>> agent = dqn.make(dqn.Config(n_step=3, double=True), spec, network)
        >>> agent.taught, agent.lookahead
        (1, 3)
        >>> dqn.make(dqn.Config(), spec, networks.Config(torso="mlp", core="lstm"))
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: network.core=lstm: dqn replays single steps; …
    """
    num_actions = action_values.check_discrete(spec)
    _check_soft(config)
    inputs = action_values.inputs_of(network)
    heads = action_values.heads(num_actions, config.dueling, config.num_atoms, config.noise, inputs)
    net = networks.make(network, spec, heads)
    if net.recurrent:
        raise UsageError(
            given("network.core", network.core),
            ": dqn replays single steps; use identity or frame_stack, or ",
            given("system", "r2d2"),
        )
    rule = transitions.Rule(net.context, config.n_step, config.discount, config.clip_rewards, config.reward_scale)
    static = _Static(config, net, num_actions, _support(config, spec), rule)
    return agents.Agent(
        init=lambda key: types.Params(net.init(key), ()),
        init_carry=net.initial,
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=functools.partial(_prepare, static),
        loss=functools.partial(_loss, static),
        staleness="any",
        context=net.context,
        taught=1,
        lookahead=config.n_step,
        exploration=_exploration(config),
        target=agents.copy_target,
        first_error=functools.partial(transitions.seen_error, rule) if config.actor_errors else None,
    )


def _check_soft(config: Config) -> None:
    """Raises a UsageError if a soft value meets parts that it does not go with."""
    soft_values.check(config)
    if not config.temperature:
        return
    if config.num_atoms > 1 and config.distribution == "categorical":
        raise UsageError(
            given("agent.temperature", config.temperature),
            ": the mixture over actions has atoms of its own places; valid: ",
            given("agent.distribution", "quantile"),
            ", or ",
            given("agent.num_atoms", 1),
        )
    if config.actor_errors:
        raise UsageError(
            given("agent.actor_errors", "true"),
            ": actors keep the best action's value, not the soft one; valid: ",
            given("agent.actor_errors", "false"),
            ", or ",
            given("agent.temperature", 0),
        )


def _support(config: Config, spec: types.EnvironmentSpec) -> Any:
    """Returns the places of categorical atoms, None of quantiles and of values."""
    if config.distribution == "categorical":
        return transitions.support(config, spec)
    if config.num_atoms == 1:
        raise UsageError(
            given("agent.distribution", "quantile"), ": one atom is the mean; add ", given("agent.num_atoms", 32)
        )
    transitions.check_errors(config)
    return None


def _exploration(config: Config) -> Callable[..., Array]:
    """Returns the function of ε: a linear schedule, the same for every environment, or a ladder over them."""
    if config.exploration == "ladder":
        return functools.partial(action_values.epsilon_ladder, base=config.ladder_base, exponent=config.ladder_exponent)
    return action_values.scheduled(config)


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Acts ε-greedily with ε = `exploration` [B], by the values under one draw of the noise."""
    if not static.config.noise:
        return _act_by_values(static, params, inputs, None)
    key, noise_key = jax.random.split(inputs.key)
    noise = static.net.draw_noise(noise_key, inputs.exploration.shape)
    return _act_by_values(static, params, inputs._replace(key=key), noise)


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    inputs = inputs._replace(exploration=static.config.evaluation_epsilon)
    output = _act_by_values(static, params, inputs, None)
    return output._replace(extras=())


def _act_by_values(static: _Static, params: types.Params, inputs: types.ActInputs, noise: Any) -> types.ActOutput:
    timestep, net = inputs.timestep, static.net
    outputs, carry = net.step(params.network, inputs.carry, timestep.observation, agents.is_first(timestep), noise)
    q = action_values.means(action_values.join(outputs, static.num_actions), static.support, outputs)
    action = action_values.epsilon_greedy(q, inputs.key, inputs.exploration, some_illegal="mask" in outputs)
    extras: Any = ()
    if static.config.actor_errors:
        extras = action_values.Seen(action_values.of_action(q, action), q.max(-1))
    return types.ActOutput(action, extras, carry)


def _prepare(static: _Static, params: types.Params, inputs: types.LossInputs) -> transitions.Batch:
    del params
    return transitions.prepare(static.rule, static.net, inputs.batch)


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Computes the loss of the n-step error, of values or of distributions."""
    config = static.config
    batch: transitions.Batch = inputs.batch
    # Independent draws of the noise for the prediction, the target and the choice (Fortunato et al. 2018, section 3.1).
    noise = static.net.draw_noise(inputs.key, (3,)) if config.noise else (None, None, None)

    def evaluate(network: ArrayTree, rows: ArrayTree, draw: Any) -> tuple[Array, dict[str, Array]]:
        outputs = networks.of_rows(static.net, network, rows, draw)
        return action_values.join(outputs, static.num_actions), outputs

    predicted = action_values.of_action(evaluate(params.network, batch.inputs, noise[0])[0], batch.action)
    target_q = evaluate(inputs.target, batch.next_inputs, noise[1])
    if config.temperature:
        ahead = action_values.means(target_q[0], None, target_q[1])
        bootstrap = soft_values.soft_value(ahead, target_q[0], config.temperature)
    else:
        chooser, outputs = evaluate(params.network, batch.next_inputs, noise[2]) if config.double else target_q
        best = jnp.argmax(action_values.means(chooser, static.support, outputs), axis=-1)
        bootstrap = action_values.of_action(target_q[0], best)
    if config.munchausen:
        here, outputs = evaluate(inputs.target, batch.inputs, noise[1])
        here = action_values.means(here, None, outputs)
        batch = batch._replace(reward=batch.reward + soft_values.bonus(here, batch.action, config))
    loss, value, priority = _error(static, predicted, batch, bootstrap)
    loss, value, priority = (jnp.where(batch.taught > 0, x, 0.0) for x in (loss, value, priority))
    metrics: dict[str, Any] = {"td_error": priority, "q_value": value, "loss": loss}
    return types.LossOutput(loss, batch.taught, priority, metrics, {})


def _error(static: _Static, predicted: Array, batch: transitions.Batch, bootstrap: Array) -> tuple[Array, Array, Array]:
    """Returns losses, predicted values and sizes of errors, f32 [N] each; a distribution's loss is its error too."""
    clip = static.config.error_clip
    if static.support is not None:
        loss, value = transitions.divergence(static.support, predicted, batch, bootstrap)
        return loss, value, loss
    if static.config.distribution == "quantile":
        loss, value = transitions.quantile_error(clip, predicted, batch, bootstrap)
        return loss, value, loss
    error = jax.lax.stop_gradient(batch.reward + batch.discount * bootstrap) - predicted
    loss = optax.huber_loss(error, delta=clip) if clip else 0.5 * jnp.square(error)
    return loss, predicted, jnp.abs(error)
