r"""Parallelised Q-network, feed-forward and recurrent: Q(λ) on the rows just played, without replay or target network.

The loss of a row; its target is made before the first epoch, and fixed:

.. math:: L_t = \frac{1}{2} (R^\lambda_t - Q(s_t, a_t))^2

.. math:: R^\lambda_t = r_t + \gamma \left(\lambda R^\lambda_{t+1} + (1 - \lambda) \max_a Q(s_{t+1}, a)\right)

Source: Gallici et al. 2024, "Simplifying deep temporal difference learning", algorithm 1 and section 4; the returns are
those of Peng & Williams 1994 ("Incremental multi-step Q-learning"): a trace goes on past an action that was not the
best one, without a correction. Differs from the released code: a truncated episode bootstraps from its last
observation, and a recurrent network makes its targets once per update, as other networks do, not for each minibatch.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import action_values
from jaxrl_dist.agents.shared import sequences as unrolled
from jaxrl_dist.numeric import returns
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("discrete",)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of PQN; defaults are those of the released code for Atari."""

    discount: float = shared.discount(0.99, source="Gallici et al. 2024, PureJaxQL pqn_atari.yaml (GAMMA)")
    trace_decay: float = setting(
        0.65,
        "Trace decay of the returns (λ). Above 0, rows must be of the policy itself; 0 bootstraps after one step, from "
        "rows of any policy.",
        low=0.0,
        high=1.0,
        source="Gallici et al. 2024, PureJaxQL pqn_atari.yaml (LAMBDA)",
    )
    clip_rewards: float = shared.clip_rewards(0.0, source="Mnih et al. 2015, methods (1 on Atari)")
    reward_scale: float = shared.reward_scale(1.0, source="Gallici et al. 2024, PureJaxQL pqn_gymnax.py (REW_SCALE)")
    epsilon_start: float = shared.epsilon_start(1.0, source="Gallici et al. 2024, PureJaxQL pqn_atari.yaml (EPS_START)")
    epsilon_end: float = shared.epsilon_end(0.001, source="Gallici et al. 2024, PureJaxQL pqn_atari.yaml (EPS_FINISH)")
    epsilon_fraction: float = shared.epsilon_fraction(
        0.1, source="Gallici et al. 2024, PureJaxQL pqn_atari.yaml (EPS_DECAY)"
    )
    evaluation_epsilon: float = shared.evaluation_epsilon(
        0.0, source="Gallici et al. 2024, PureJaxQL pqn_atari.yaml (EPS_TEST)"
    )


class Batch(NamedTuple):
    """N items: single rows, leaves [N, ...], or whole sequences, leaves [N, T, ...].

    Attributes:
        inputs: tree of [N, ...], of the network.
        is_first: bool [N, T] of sequences, () of rows.
        carry: tree of [N, ...] of sequences, the memory before row 0; () of rows.
        action: i32 [N] or [N, T].
        target: f32 [N] or [N, T], λ-returns.
        taught: f32 [N] or [N, T], 1 where the row teaches.
    """

    inputs: ArrayTree
    is_first: ArrayTree
    carry: ArrayTree
    action: Array
    target: Array
    taught: Array


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
        UsageError: real-valued actions.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import pqn
        >>> spec, network = envs.make("toy:walk").spec, networks.Config(torso="mlp")
        >>> agent = pqn.make(pqn.Config(epsilon_end=0.25, epsilon_fraction=0.5), spec, network)
        >>> print(agent.exploration((), jnp.arange(2), 2, progress=0.5))  # ε of two environments
        [0.25 0.25]
    """
    num_actions = action_values.check_discrete(spec)
    heads = action_values.heads(num_actions, dueling=False, inputs=action_values.inputs_of(network))
    net = networks.make(network, spec, heads)
    static = _Static(config, net, num_actions)
    return agents.Agent(
        init=lambda key: types.Params(net.init(key), ()),
        init_carry=net.initial,
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=functools.partial(_prepare, static),
        loss=functools.partial(_loss, static),
        staleness="own" if config.trace_decay else "any",
        context=net.context,
        keeps_sequences=net.recurrent,
        exploration=functools.partial(
            action_values.epsilon_schedule,
            start=config.epsilon_start,
            end=config.epsilon_end,
            fraction=config.epsilon_fraction,
        ),
    )


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Acts ε-greedily with ε = `exploration` [B]."""
    timestep = inputs.timestep
    outputs, carry = static.net.step(params.network, inputs.carry, timestep.observation, agents.is_first(timestep))
    q = action_values.join(outputs, static.num_actions)
    action = action_values.epsilon_greedy(q, inputs.key, inputs.exploration, some_illegal="mask" in outputs)
    return types.ActOutput(action, (), carry)


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    inputs = inputs._replace(exploration=static.config.evaluation_epsilon)
    return _act(static, params, inputs)


def _prepare(static: _Static, params: types.Params, inputs: types.LossInputs) -> Batch:
    """Makes the targets of an unroll by the newest parameters, once for all epochs (algorithm 1)."""
    sequences: types.Unroll = inputs.batch
    config, net, steps = static.config, static.net, sequences.steps
    timestep, is_first = steps.timestep, agents.is_first(steps.timestep)
    frames, memory = sequences.carry
    seen = net.inputs(frames, timestep.observation, is_first)
    outputs = net.unroll(params.network, memory, seen, is_first)[0]
    best = action_values.join(outputs, static.num_actions).max(-1)
    reward = agents.seen_reward(timestep.reward, config.clip_rewards, config.reward_scale)
    peng = functools.partial(returns.lambda_returns, gamma=config.discount, lambda_=config.trace_decay)
    target = jax.vmap(peng, in_axes=1, out_axes=1)(reward, timestep.discount, timestep.step_type, best)
    taught = agents.taught_rows(timestep.step_type[:-1])
    seen = jax.tree.map(lambda x: x[:-1], seen)
    rows = Batch(seen, is_first[:-1], memory, steps.action[:-1], target, taught)
    batch: Batch = unrolled.items(net, rows)
    return batch


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Half the squared error of the values of the actions taken (algorithm 1)."""
    batch: Batch = inputs.batch
    q = action_values.join(unrolled.item_outputs(static.net, params.network, batch), static.num_actions)
    predicted = action_values.of_action(q, batch.action)
    error = batch.target - predicted
    loss = 0.5 * jnp.square(error)
    metrics = {"td_error": jnp.abs(error), "q_value": predicted, "loss": loss}
    return unrolled.summed(batch.taught, loss, metrics, {})
