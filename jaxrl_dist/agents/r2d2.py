r"""Recurrent replay distributed DQN: sequences with stored state and burn-in, rescaled values, n-step double targets.

The loss of a sequence is summed over its taught rows, and the learner divides it by their number, where the paper has
the sum. With h of `values.signed_hyperbolic`:

.. math:: L = \frac{1}{2} \sum_t (y_t - Q(s_t, a_t; \theta))^2

.. math:: y_t = h\left(\sum_{k=0}^{n-1} \gamma^k r_{t+k} + \gamma^n h^{-1}(Q(s_{t+n}, a^*; \theta^-))\right)

.. math:: a^* = \operatorname{argmax}_a Q(s_{t+n}, a; \theta)

Its priority is η max |δ| + (1 − η) mean |δ| of these errors; η is `max_error_share`.

Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 2.3.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import action_values
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.numeric import returns, values
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("discrete",)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of R2D2; defaults are the paper's for Atari."""

    discount: float = shared.discount(0.997, source="Kapturowski et al. 2019, table 2")
    n_step: int = shared.n_step(5, source="Kapturowski et al. 2019, section 2.3")
    burn_in: int = setting(
        40,
        "Rows before the taught ones that only bring the recurrent state up to date.",
        low=0,
        source="Kapturowski et al. 2019, section 3 (l = 40)",
    )
    taught: int = setting(
        80, "Taught rows of a sequence (m).", low=1, source="Kapturowski et al. 2019, section 2.3 (m = 80)"
    )
    stored_state: bool = setting(
        True,
        "Begin a sequence from the actor's stored state; off: from zeros.",
        source="Kapturowski et al. 2019, section 3 (stored state)",
    )
    double: bool = shared.double(True, source="van Hasselt et al. 2016, equation 4")
    dueling: bool = shared.dueling(True, source="Wang et al. 2016, equation 9")
    rescale_values: bool = setting(
        True,
        "Learn h(value), h(x) = sgn(x)(√(|x| + 1) − 1) + εx, instead of clipping rewards.",
        source="Kapturowski et al. 2019, section 2.3",
    )
    clip_rewards: float = shared.clip_rewards(0.0, source="Kapturowski et al. 2019, section 2.3 (no clipping)")
    reward_scale: float = shared.reward_scale(1.0)
    max_error_share: float = setting(
        0.9,
        "Weight of the largest error in a sequence's priority; the rest is the weight of the mean (η).",
        low=0.0,
        high=1.0,
        source="Kapturowski et al. 2019, section 2.3",
    )
    actor_errors: bool = shared.actor_errors(True, source="Horgan et al. 2018, section 3 and algorithm 1")
    ladder_base: float = shared.ladder_base(0.4, source="Horgan et al. 2018, section 4.1")
    ladder_exponent: float = shared.ladder_exponent(7.0, source="Horgan et al. 2018, section 4.1")
    evaluation_epsilon: float = shared.evaluation_epsilon(0.0, source="this project: the greedy policy is evaluated")


class Carry(NamedTuple):
    """Acting state.

    Attributes:
        core: tree of [B, ...], that of the network.
        action: i32 [B], before this timestep.
    """

    core: ArrayTree
    action: Array


class Batch(NamedTuple):
    """N sequences of L rows.

    Attributes:
        inputs: tree of [N, L, ...], of the network.
        is_first: bool [N, L].
        timestep: leaves [N, L], without observations.
        action: i32 [N, L].
        memory: tree of [N, ...], the network's before row 0.
    """

    inputs: ArrayTree
    is_first: Array
    timestep: types.TimeStep
    action: Array
    memory: ArrayTree


class _Static(NamedTuple):
    config: Config
    net: networks.Network
    num_actions: int


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of the network.

    Raises:
        UsageError: real-valued actions, or a core without memory.

    Example:
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import r2d2
        >>> spec, network = envs.make("toy:walk").spec, networks.Config(torso="mlp", core="lstm", core_size=8)
        >>> agent = r2d2.make(r2d2.Config(burn_in=4, taught=8, n_step=2), spec, network)
        >>> agent.context, agent.taught, agent.lookahead
        (4, 8, 2)
    """
    num_actions = action_values.check_discrete(spec)
    heads = action_values.heads(num_actions, config.dueling, inputs=action_values.inputs_of(network))
    net = networks.make(network, spec, heads, extra=num_actions + 1)
    if not net.recurrent:
        raise UsageError(
            given("network.core", network.core),
            ": r2d2 needs a memory; valid: lstm, gru, mingru, gtrxl, frame_stack_lstm, module:Class",
        )
    static = _Static(config, net, num_actions)
    return agents.Agent(
        init=lambda key: types.Params(net.init(key), ()),
        init_carry=lambda size: Carry(net.initial(size), jnp.zeros(size, jnp.int32)),
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=functools.partial(_prepare, static),
        loss=functools.partial(_loss, static),
        staleness="any",
        context=config.burn_in,
        taught=config.taught,
        lookahead=config.n_step,
        keeps_sequences=True,
        exploration=functools.partial(
            action_values.epsilon_ladder, base=config.ladder_base, exponent=config.ladder_exponent
        ),
        target=agents.copy_target,
        first_error=functools.partial(_first_error, static) if config.actor_errors else None,
    )


def _inputs(static: _Static, timestep: types.TimeStep, last_action: Array) -> ArrayTree:
    """Returns the observation, and the one-hot last action with its reward, which are 0 at FIRST."""
    last = jax.nn.one_hot(last_action, static.num_actions)
    extra = jnp.concatenate([last, _reward(static, timestep)[..., None]], -1)
    return timestep.observation, jnp.where(agents.is_first(timestep)[..., None], 0.0, extra)


def _reward(static: _Static, timestep: types.TimeStep) -> Array:
    return agents.seen_reward(timestep.reward, static.config.clip_rewards, static.config.reward_scale)


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Acts ε-greedily with ε = `exploration` [B]."""
    timestep, carry = inputs.timestep, inputs.carry
    seen = _inputs(static, timestep, carry.action)
    outputs, core = static.net.step(params.network, carry.core, seen, agents.is_first(timestep))
    q = action_values.join(outputs, static.num_actions)
    action = action_values.epsilon_greedy(q, inputs.key, inputs.exploration, some_illegal="mask" in outputs)
    extras: Any = ()
    if static.config.actor_errors:
        extras = action_values.Seen(action_values.of_action(q, action), q.max(-1))
    return types.ActOutput(action, extras, Carry(core, action))


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    inputs = inputs._replace(exploration=static.config.evaluation_epsilon)
    return _act(static, params, inputs)._replace(extras=())


def _prepare(static: _Static, params: types.Params, inputs: types.LossInputs) -> Batch:
    """Puts actions and rewards beside the next observations, and the axis of sequences first."""
    del params
    sequences: types.Unroll = inputs.batch
    steps, timestep = sequences.steps, sequences.steps.timestep
    last_action = jnp.concatenate([sequences.carry.action[None], steps.action[:-1]])
    core = sequences.carry.core
    if not static.config.stored_state:
        core = static.net.forget(core)
    is_first = agents.is_first(timestep)
    seen = static.net.inputs(core.frames, _inputs(static, timestep, last_action), is_first)
    rows = (seen, is_first, timestep._replace(observation=(), info=()), steps.action)
    seen, is_first, timestep, action = jax.tree.map(lambda x: x.swapaxes(0, 1), rows)
    return Batch(seen, is_first, timestep, action, core.memory)


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Half the squared n-step error of rescaled values, over the taught rows of each sequence (equation 1)."""
    config = static.config
    batch: Batch = inputs.batch
    seen, is_first, timestep, action = jax.tree.map(
        lambda x: x.swapaxes(0, 1), (batch.inputs, batch.is_first, batch.timestep, batch.action)
    )

    def unroll(network: ArrayTree) -> Array:
        split = lambda x: (x[: config.burn_in], x[config.burn_in :])  # noqa: E731
        before, after = (jax.tree.map(lambda x, i=i: split(x)[i], (seen, is_first)) for i in range(2))
        memory = batch.memory
        if config.burn_in:
            memory = jax.lax.stop_gradient(static.net.unroll(network, memory, *before)[1])
        return action_values.join(static.net.unroll(network, memory, *after)[0], static.num_actions)

    q, q_target = unroll(params.network), unroll(inputs.target)
    timestep, action = jax.tree.map(lambda x: x[config.burn_in :], (timestep, action))
    best = jnp.argmax(q if config.double else q_target, axis=-1)
    target = _targets(static, timestep, action_values.of_action(q_target, best))
    taught = agents.taught_rows(timestep.step_type[: config.taught])
    predicted = action_values.of_action(q[: config.taught], action[: config.taught])
    error = jnp.where(taught > 0, jax.lax.stop_gradient(target) - predicted, 0.0)
    size = jnp.abs(error)
    metrics = {"td_error": size, "q_value": taught * predicted, "loss": 0.5 * jnp.square(error)}
    metrics = {name: value.sum(0) for name, value in metrics.items()}
    return types.LossOutput(metrics["loss"], taught.sum(0), _priority(static, size, taught), metrics, {})


def _targets(static: _Static, timestep: types.TimeStep, value: Array) -> Array:
    """Returns h(n-step returns) f32 [m, N] of the taught rows, from the h-values f32 [m + n, N] of later rows."""
    config = static.config
    if config.rescale_values:
        value = values.signed_parabolic(value)
    n_step = functools.partial(returns.n_step_returns, gamma=config.discount, n=config.n_step)
    reward = _reward(static, timestep)
    target = jax.vmap(n_step, in_axes=1, out_axes=1)(reward, timestep.discount, timestep.step_type, value)
    target = target[: config.taught]
    return values.signed_hyperbolic(target) if config.rescale_values else target


def _priority(static: _Static, size: Array, taught: Array) -> Array:
    """Mixes the largest and the mean error f32 [m, N] of the taught rows (section 2.3, η)."""
    share = static.config.max_error_share
    size = size * taught
    return share * size.max(0) + (1 - share) * size.sum(0) / jnp.maximum(taught.sum(0), 1.0)


def _first_error(static: _Static, sequences: types.Unroll) -> Array:
    """Returns the priorities that `_loss` would return with the values that the actors computed."""
    config = static.config
    timestep, (taken, best) = jax.tree.map(
        lambda x: x[config.burn_in :], (sequences.steps.timestep, sequences.steps.extras)
    )
    taught = agents.taught_rows(timestep.step_type[: config.taught])
    size = jnp.abs(_targets(static, timestep, best) - taken[: config.taught])
    return _priority(static, size, taught)
