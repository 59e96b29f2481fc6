r"""Random network distillation: PPO with a bonus for observations that a network cannot yet predict.

f is a network with random weights that stay, g one that learns to predict it; both see the next observation s',
normalised by running moments and clipped to ± 5. The bonus of a step is the mean square b of the numbers g(s') − f(s').
It is divided by the running deviation of its discounted sum, and has a value V_i and advantages A_i of its own, which
the end of an episode does not cut:

.. math:: A = w_e A_e + w_i A_i, \qquad
   L = L_{PPO}(A, V_e) + \frac{c_1}{2} (V_i(s) - R_i)^2 + \frac{m}{p} \, b

w_e is `extrinsic_weight`, w_i `intrinsic_weight`; m is 1 for a share p of the rows, `predictor_share`.

Source: Burda et al. 2018, "Exploration by random network distillation", sections 2.2 to 2.4 and algorithm 1, and its
code, openai/random-network-distillation. Here the sums A get mean 0 and deviation 1, as in CleanRL; V_i is a network of
its own without memory, the predictor is as deep as the random network, the first unroll's observations are not
normalised (there a random policy plays before), and the last observation of an episode has a bonus, the first none
(there the other way round: its environments reset within a step).
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import ppo, wrapping
from jaxrl_dist.agents.shared import actor_critic, normalisation
from jaxrl_dist.agents.shared import sequences as unrolled
from jaxrl_dist.numeric import moments, returns, vectors
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ppo.ACTIONS

_PAPER = "Burda et al. 2018, appendix, hyperparameters of PPO and RND"
# Burda et al. 2018, section 2.4.
_LARGEST_SEEN = 5.0


@dataclasses.dataclass(frozen=True)
class Config(ppo.Config):
    """Settings of random network distillation, and those of PPO."""

    normalise_advantage: str = setting(
        "minibatch",
        "Rows over which the weighted sums of both advantages get mean 0 and deviation 1, on all devices together.",
        choices=("none", "minibatch"),
        source="CleanRL ppo_rnd_envpool.py, norm_adv (Huang et al. 2022)",
    )
    intrinsic_weight: float = setting(
        1.0, "Weight of the advantages of bonuses.", low=0.0, source=f"{_PAPER} (intrinsic)", sweep=True
    )
    extrinsic_weight: float = setting(
        2.0, "Weight of the advantages of rewards.", low=0.0, source=f"{_PAPER} (extrinsic)", sweep=True
    )
    intrinsic_discount: float = setting(
        # By 1 the sum of bonuses, which never ends, would grow, and its deviation would divide them away.
        0.99,
        "Discount factor of future bonuses (γ_I).",
        low=0.0,
        below=1.0,
        source=_PAPER,
        sweep=True,
    )
    predictor_share: float = setting(
        0.25,
        "Share of the rows of each minibatch, drawn anew, from which the predictor learns.",
        above=0.0,
        high=1.0,
        source=f"{_PAPER}; CleanRL ppo_rnd_envpool.py (update_proportion)",
        sweep=True,
    )
    feature_size: int = setting(
        512,
        "Outputs of the random network, and of its predictor.",
        low=1,
        source="openai/random-network-distillation, policies/cnn_policy_param_matched.py (rep_size)",
    )


class Statistics(NamedTuple):
    """State that lives across updates.

    Attributes:
        agent: that of PPO.
        target: parameters of the random network, which never move.
        predictor: parameters of the predictor that the next unroll's bonuses are computed with: those after the last
            update, so that `adapt` finds the same bonuses as `prepare`.
        observation: moments of the observations.
        discounted_bonus: moments of the discounted sums of bonuses.
        running: f32 [], mean of these sums over all environments where the last unroll ended, from which the next goes
            on. (The paper keeps one for each environment.)
    """

    agent: ArrayTree
    target: ArrayTree
    predictor: ArrayTree
    observation: moments.Moments
    discounted_bonus: moments.Moments
    running: Array


class Batch(NamedTuple):
    """N items: single rows, leaves [N, ...], or whole sequences, leaves [N, T, ...].

    Attributes:
        agent: PPO's batch, whose advantages are the weighted sums of both.
        next_seen: the next observation, as the random network sees it.
        intrinsic_target: f32 [N] or [N, T], of the value of bonuses.
    """

    agent: actor_critic.Batch
    next_seen: ArrayTree
    intrinsic_target: Array


class _Parts(NamedTuple):
    """Objects that the functions are bound to.

    Attributes:
        config: settings.
        agent: PPO within the parameters of this agent.
        features: network of the target and the predictor.
        value: network of the value of bonuses, with what makes its inputs.
    """

    config: Config
    agent: agents.Agent
    features: networks.Network
    value: actor_critic.Parts


_PLACE = wrapping.Place(
    own=lambda params: types.Params(params.network["agent"], params.statistics.agent),
    put=lambda params, own: types.Params(
        {**params.network, "agent": own.network}, params.statistics._replace(agent=own.statistics)
    ),
    network=lambda network: network["agent"],
    batch=lambda batch: batch.agent,
    put_batch=lambda batch, own: batch._replace(agent=own),
)


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of all its networks.

    Raises:
        UsageError: the network or the distribution of actions does not fit the environment.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import rnd
        >>> agent = rnd.make(rnd.Config(), envs.make("toy:walk").spec, networks.Config(torso="mlp"))
        >>> agent.staleness, sorted(agent.init(jax.random.key(0)).network)
        ('corrected', ['agent', 'intrinsic_value', 'predictor'])
    """
    inner = ppo.make(config, spec, network)
    alone = dataclasses.replace(network, core="identity", policy_inputs=(), value_inputs=())
    head = networks.Head("features", config.feature_size, math.sqrt(2))
    features = networks.make(alone, normalisation.as_real(spec), (head,))
    core = "frame_stack" if network.core in networks.STACKED else "identity"
    head = networks.Head("value", 1, 1.0, inputs=network.value_inputs)
    value = networks.make(dataclasses.replace(network, core=core), normalisation.observed(config, spec), (head,))
    agent = wrapping.forwarded(inner, _PLACE, functools.partial(_init, inner, features, value, spec))
    parts = _Parts(config, agent, features, actor_critic.Parts(config, spec, value, dict))
    return agent._replace(
        prepare=functools.partial(_prepare, parts),
        loss=functools.partial(_loss, parts),
        adapt=functools.partial(_adapt, parts),
    )


def _init(
    inner: agents.Agent, features: networks.Network, value: networks.Network, spec: types.EnvironmentSpec, key: Array
) -> types.Params:
    agent_key, target_key, predictor_key, value_key = jax.random.split(key, 4)
    own, predictor = inner.init(agent_key), features.init(predictor_key)
    network = {"agent": own.network, "predictor": predictor, "intrinsic_value": value.init(value_key)}
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    statistics = Statistics(
        own.statistics,
        features.init(target_key),
        # A copy, since both are donated.
        jax.tree.map(jnp.copy, predictor),
        moments.initial(normalisation.numbers(spec, spec.observation)),
        moments.initial(scalar),
        jnp.zeros(()),
    )
    return types.Params(network, statistics)


def _prepare(parts: _Parts, params: types.Params, inputs: types.LossInputs) -> Batch:
    config, sequences, statistics = parts.config, inputs.batch, params.statistics
    batch = parts.agent.prepare(params, inputs)
    bonus, statistics = _bonuses(parts, statistics, params.network["predictor"], sequences, inputs.axis)
    rows, is_first, _ = actor_critic.inputs(parts.value, _PLACE.own(params), sequences)
    value = parts.value.net.unroll(params.network["intrinsic_value"], (), rows, is_first)[0]["value"][..., 0]
    estimate = jax.vmap(functools.partial(_estimate, config), in_axes=1, out_axes=1)
    scaled = bonus / moments.std(statistics.discounted_bonus)
    advantage, target = estimate(scaled, sequences.steps.timestep.step_type, value)
    following = jax.tree.map(lambda x: x[1:], sequences.steps.timestep.observation)
    items = unrolled.swapped if parts.agent.keeps_sequences else vectors.flat
    advantage, target, seen = items((advantage, target, _seen(parts, params.statistics, following)))
    # An advantage that teaches nothing is 0 in PPO's batch.
    advantage = jnp.where(batch.taught > 0, advantage, 0.0)
    advantage = config.extrinsic_weight * batch.advantage + config.intrinsic_weight * advantage
    return Batch(batch._replace(advantage=advantage), seen, target)


def _bonuses(
    parts: _Parts, statistics: Statistics, predictor: ArrayTree, sequences: types.Unroll, axis: types.Axis
) -> tuple[Array, Statistics]:
    """Returns bonuses f32 [T + 1, B] for arriving at each row, and their statistics moved by those of this unroll.

    No action leads to row 0, which the unroll before has counted, or to a FIRST row; they have none.
    """
    timestep = sequences.steps.timestep
    taught = agents.taught_rows(timestep.step_type[:-1])
    following = jax.tree.map(lambda x: x[1:], timestep.observation)
    bonus = taught * _errors(parts, statistics.target, predictor, _seen(parts, statistics, following), taught)

    def discounted(total: Array, bonus: Array) -> tuple[Array, Array]:
        total = parts.config.intrinsic_discount * total + bonus
        return total, total

    last, totals = jax.lax.scan(discounted, jnp.broadcast_to(statistics.running, taught.shape[1:]), bonus)
    moved = moments.update(statistics.discounted_bonus, totals.reshape(-1), taught.reshape(-1), axis)
    # Not of columns that stand in for an unroll that did not come.
    there = taught.any(0)
    count, total = axis.sum((there.sum(dtype=jnp.float32), jnp.where(there, last, 0.0).sum()))
    running = jnp.where(count > 0, total / jnp.maximum(count, 1.0), statistics.running)
    statistics = statistics._replace(discounted_bonus=moved, running=running)
    return jnp.concatenate([jnp.zeros_like(bonus[:1]), bonus]), statistics


def _estimate(config: Config, bonus: Array, step_type: Array, value: Array) -> tuple[Array, Array]:
    """Returns advantages and targets f32 [T] of bonuses [T + 1], whose sum goes on in the next episode.

    No row that is LAST teaches its value, so the value is that of the next row that is not, a step or more away; of one
    that closes the unroll it is the network's.
    """

    def worth(following: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        own, is_last = row
        value = jnp.where(is_last, config.intrinsic_discount * following, own)
        return value, value

    _, before = jax.lax.scan(worth, value[-1], (value[:-1], step_type[:-1] == types.LAST), reverse=True)
    value = jnp.concatenate([before, value[-1:]])
    endless, as_mid = jnp.ones_like(bonus), jnp.full_like(step_type, types.MID)
    return returns.gae(bonus, endless, as_mid, value, config.intrinsic_discount, config.gae_lambda)


def _loss(parts: _Parts, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Adds to PPO's loss that of the value of bonuses, and that of the predictor."""
    config, batch, network = parts.config, inputs.batch, params.network
    output, taught = parts.agent.loss(params, inputs), batch.agent.taught
    value = unrolled.item_outputs(parts.value.net, network["intrinsic_value"], batch.agent)["value"][..., 0]
    error = jnp.square(value - batch.intrinsic_target)
    bonus = _errors(parts, params.statistics.target, network["predictor"], batch.next_seen, taught)
    key = jax.random.fold_in(inputs.key, 1)
    chosen = jax.random.bernoulli(key, config.predictor_share, taught.shape) / config.predictor_share
    metrics = {"intrinsic_value_loss": 0.5 * error, "bonus": bonus}
    own = unrolled.summed(taught, config.value_cost * 0.5 * error + chosen * bonus, metrics, {})
    return output._replace(loss=output.loss + own.loss, metrics=output.metrics | own.metrics)


def _adapt(
    parts: _Parts, params: types.Params, sequences: types.Unroll, metrics: Any, aux: Any, axis: types.Axis
) -> types.Params:
    """Moves the statistics by the unroll, whose bonuses are those of the predictor before the update."""
    params = parts.agent.adapt(params, sequences, metrics, aux, axis)
    statistics: Statistics = params.statistics
    _, statistics = _bonuses(parts, statistics, statistics.predictor, sequences, axis)
    timestep = sequences.steps.timestep
    following = jax.tree.map(lambda x: x[1:], normalisation.numbers(parts.value.spec, timestep.observation))
    taught = agents.taught_rows(timestep.step_type[:-1]).reshape(-1)
    seen = moments.update(statistics.observation, vectors.flat(following), taught, axis)
    predictor = jax.tree.map(jnp.copy, params.network["predictor"])
    return params._replace(statistics=statistics._replace(observation=seen, predictor=predictor))


def _seen(parts: _Parts, statistics: Statistics, observation: ArrayTree) -> ArrayTree:
    """Returns observations as the random network sees them."""
    spec = parts.value.spec
    numbers = moments.normalise(normalisation.numbers(spec, observation), statistics.observation, _LARGEST_SEEN)
    return normalisation.with_numbers(spec, observation, numbers)


def _errors(parts: _Parts, target: ArrayTree, predictor: ArrayTree, seen: ArrayTree, like: Array) -> Array:
    """Returns mean squares of the predictor's errors, of observations with the leading axes and the shape of `like`."""
    rows = jax.tree.map(lambda x: x.reshape(like.size, *x.shape[like.ndim :]), seen)
    wanted, found = (networks.of_rows(parts.features, network, rows)["features"] for network in (target, predictor))
    return jnp.square(found - jax.lax.stop_gradient(wanted)).mean(-1).reshape(like.shape)
