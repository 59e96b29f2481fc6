r"""V-MPO: a policy that moves towards the better half of its actions, weighted by their advantages, within bounds.

The loss of a minibatch of rows D, whose half with the larger advantages is D̃; Â and G are made by the policy μ that
acted, and η, α are dual variables that learn (`shared/duals.py`):

.. math:: L = -\sum_{\tilde D} \psi \log \pi(a|s) + c_1 \frac{1}{2 |D|} \sum_D (V(s) - G)^2 + L_\eta
   + \frac{1}{|D|} \sum_D L_\alpha(\mathrm{KL}(\mu \| \pi))

.. math:: \psi = \frac{\exp(\hat A / \eta)}{\sum_{\tilde D} \exp(\hat A / \eta)}, \qquad
   L_\eta = \eta \varepsilon_\eta + \eta \log \frac{1}{|\tilde D|} \sum_{\tilde D} \exp(\hat A / \eta)

Sums over D̃ are over all devices. The learner's epochs over an unroll are the paper's steps between two copies of the
policy (T_target): μ is the policy that acted.

Source: Song et al. 2020, "V-MPO: on-policy maximum a posteriori policy optimization for discrete and continuous
control", equations 2 to 6 and section 4.1; Â by generalised advantages, of which λ = 1 is the paper's.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import actor_critic, duals
from jaxrl_dist.agents.shared import sequences as unrolled
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("discrete", "multi_discrete", "bounded", "unbounded")
_PAPER = "Song et al. 2020, appendix D"
_UNCHECKED = "from the paper's text, not checked against a copy"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of V-MPO; defaults are the paper's for Atari."""

    discount: float = shared.discount(0.99, source=f"{_PAPER}; {_UNCHECKED}")
    gae_lambda: float = setting(
        1.0,
        "Trace decay of the advantage estimate (λ).",
        low=0.0,
        high=1.0,
        source="Song et al. 2020, section 4 (returns of the whole unroll)",
        sweep=True,
    )
    value_cost: float = shared.value_cost(1.0, source="Song et al. 2020, equation 2")
    temperature: float = duals.temperature(1.0, source=f"{_PAPER}; {_UNCHECKED}")
    temperature_bound: float = duals.temperature_bound(0.1, source=f"{_PAPER}; {_UNCHECKED}")
    multiplier: float = duals.multiplier(5.0, source=f"{_PAPER}; {_UNCHECKED}")
    policy_bound: float = duals.policy_bound(0.005, source=f"{_PAPER} (drawn from .001 to .01); {_UNCHECKED}")
    mean_bound: float = duals.mean_bound(0.0075, source=f"{_PAPER} (drawn from .005 to .01); {_UNCHECKED}")
    deviation_bound: float = duals.deviation_bound(1e-5, source=f"{_PAPER} (drawn from 5e-6 to 5e-5); {_UNCHECKED}")
    dual_learning_rate: float = duals.dual_learning_rate(0.0, source=_PAPER)
    normalise_observations: bool = shared.normalise_observations(False, source=_PAPER)
    clip_observations: float = shared.clip_observations(0.0, source=_PAPER)
    scale_rewards: bool = shared.scale_rewards(False, source=f"{_PAPER} (PopArt on many tasks)")
    smallest_deviation: float = shared.smallest_deviation(0.0)
    clip_rewards: float = shared.clip_rewards(0.0, source=_PAPER)
    reward_scale: float = shared.reward_scale(1.0)
    distribution: str = shared.distribution("gaussian", source="Song et al. 2020, section 4.2")
    evaluation_action: str = shared.evaluation_action("mode")


class Batch(NamedTuple):
    """Items as in `actor_critic.Batch`, and what V-MPO has beside.

    Attributes:
        inputs: tree of [N, ...], of the network.
        is_first: bool [N, T] of sequences, () of rows.
        carry: tree of [N, ...] of sequences, the memory before row 0; () of rows.
        sample: [N, ...], the actions as the policy drew them.
        advantage: f32 [N].
        target: f32 [N], of the value.
        taught: f32 [N], 1 where the row teaches.
        old: outputs of the network that acted, leaves [N, ...].
        better: f32 [N], 1 in the half of the minibatch with the larger advantages; from `_epoch`.
        highest: f32 [N], the largest advantage of the minibatch; likewise.
    """

    inputs: ArrayTree
    is_first: ArrayTree
    carry: ArrayTree
    sample: Array
    advantage: Array
    target: Array
    taught: Array
    old: dict[str, Array]
    better: Array
    highest: Array


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of the network.

    Raises:
        UsageError: the network or the distribution of actions does not fit the environment.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import vmpo
        >>> agent = vmpo.make(vmpo.Config(), envs.make("toy:walk").spec, networks.Config(torso="mlp"))
        >>> sorted(agent.init(jax.random.key(0)).network), agent.parts["duals"].period
        (['duals', 'model'], 1)
    """
    is_real = spec.action.kind in ("bounded", "unbounded")
    agent = actor_critic.make_agent(
        config, spec, network, staleness="own", act=actor_critic.act, prepare=_prepare, loss=_loss
    )

    def init(key: Array) -> types.Params:
        params = agent.init(key)
        own = duals.init(config.temperature, dict.fromkeys(duals.kinds_of(is_real), config.multiplier))
        return params._replace(network={"model": params.network, "duals": own})

    def adapt(params: types.Params, *rest: Any) -> types.Params:
        return params._replace(statistics=agent.adapt(_model(params), *rest).statistics)

    def of_model(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda params, inputs: function(_model(params), inputs)

    return agent._replace(
        init=init,
        act=of_model(agent.act),
        evaluate=of_model(agent.evaluate),
        prepare=of_model(agent.prepare),
        adapt=adapt,
        epoch=_epoch,
        parts={"model": types.Part(), "duals": types.Part(config.dual_learning_rate)},
    )


def _model(params: types.Params) -> types.Params:
    """Returns the parameters of policy and value alone."""
    return params._replace(network=params.network["model"])


def _prepare(parts: actor_critic.Parts, params: types.Params, inputs: types.LossInputs) -> Batch:
    sequences: types.Unroll = inputs.batch
    rows = actor_critic.estimate(parts, params, sequences)
    seen, is_first, _ = actor_critic.inputs(parts, params, sequences)
    old = parts.net.unroll(params.network, sequences.carry.core.memory, seen, is_first)[0]
    shared_fields = {name: getattr(rows, name) for name in Batch._fields if name in rows._fields}
    zeros = jnp.zeros_like(rows.taught)
    batch = Batch(**shared_fields, old=jax.tree.map(lambda x: x[:-1], old), better=zeros, highest=zeros)
    made: Batch = unrolled.items(parts.net, batch)
    return made


def _epoch(batch: Batch, order: Array, axis: types.Axis) -> Batch:
    """Finds the better half of each minibatch of an epoch, over all devices.

    Args:
        batch: items.
        order: i32 [M, N / M], the items of each minibatch.
        axis: functions over all devices.
    """
    count, shape = order.shape[0], batch.advantage[order].shape
    advantage = jnp.where(batch.taught > 0, batch.advantage, -jnp.inf)[order].reshape(count, -1)
    everyone = jnp.sort(axis.gather(advantage.T), axis=0)[::-1]
    taught = (everyone > -jnp.inf).sum(0)
    # Of an odd number the larger half; of none none is as large as the last.
    last = jnp.take_along_axis(everyone, jnp.maximum(taught - taught // 2 - 1, 0)[None], axis=0)[0]
    better = (advantage >= last[:, None]) & (advantage > -jnp.inf)
    highest = jnp.broadcast_to(jnp.where(taught > 0, everyone[0], 0.0)[:, None], better.shape)

    def back(x: Array) -> Array:
        flat = x.reshape(shape).reshape(-1, *shape[2:])
        return jnp.zeros_like(batch.better).at[order.reshape(-1)].set(flat.astype(batch.better.dtype))

    return batch._replace(better=back(better), highest=back(highest))


def _loss(parts: actor_critic.Parts, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Weighted log-probabilities of the better half, errors of the value, and the losses of the duals."""
    config, batch = parts.config, inputs.batch
    policy, value = actor_critic.policy_and_value(parts, _model(params), batch)
    temperature = duals.value(params.network["duals"][duals.TEMPERATURE])
    found = duals.divergences(parts.distribution(batch.old), policy)
    bounds = {
        duals.POLICY: config.policy_bound,
        duals.MEAN: config.mean_bound,
        duals.DEVIATION: config.deviation_bound,
    }
    weights, temperature_loss = _weights(config, temperature, batch, inputs.axis)
    log_prob = policy.log_prob(batch.sample)
    policy_loss = -jnp.where(weights > 0, weights * log_prob, 0.0)
    value_loss = 0.5 * jnp.square(value - batch.target)
    penalty = duals.penalty(params.network["duals"], bounds, found)
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "temperature_loss": jnp.broadcast_to(temperature_loss, value.shape),
        "entropy": policy.entropy(inputs.key),
        "approx_kl": sum(found.values()),
        "temperature": jnp.broadcast_to(temperature, value.shape),
    }
    loss = policy_loss + config.value_cost * value_loss + temperature_loss + penalty
    return unrolled.summed(batch.taught, loss, metrics, {})


def _weights(config: Config, temperature: Array, batch: Batch, axis: types.Axis) -> tuple[Array, Array]:
    """Returns the weights of rows, whose mean over all taught rows is 1, and the temperature's loss f32 [].

    No reduction may be differentiated. The loss has its value and its slope by η all the same: with
    weights ψ, the slope of η log Σ exp(A / η) by η is that logarithm less Σ ψ A / η.
    """
    fixed = jax.lax.stop_gradient(temperature)
    raw = jnp.where(batch.better > 0, jnp.exp((batch.advantage - batch.highest) / fixed), 0.0)
    advantage = jnp.where(batch.better > 0, batch.advantage, 0.0)
    total, weighted, better, taught, highest = axis.sum(
        (raw.sum(), (raw * advantage).sum(), batch.better.sum(), batch.taught.sum(), (raw * batch.highest).sum())
    )
    total, better = jnp.maximum(total, jnp.finfo(raw.dtype).tiny), jnp.maximum(better, 1.0)
    mean, peak = weighted / total, highest / total
    slope = jnp.log(total / better) + config.temperature_bound + (peak - mean) / fixed
    return raw * taught / total, temperature * slope + mean
