"""Parts of agents with a policy and a value: heads, acting, advantages of an unroll."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents.shared import bounded_actions, normalisation
from jaxrl_dist.agents.shared import sequences as unrolled
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.numeric import distributions, returns
from jaxrl_dist.types import Array, ArrayTree


class Settings(normalisation.Settings, Protocol):
    """Settings that are read here of every agent; `estimate` reads `gae_lambda` too."""

    @property
    def evaluation_action(self) -> str:
        """`mode` or `sample`, see `distributions.choose`."""

    @property
    def distribution(self) -> str:
        """Policy over real actions, see `policy_head`."""


class Carry(NamedTuple):
    """Acting state: the network's carry, and the running discounted return f32 [B], () if rewards are not scaled."""

    core: ArrayTree
    discounted_return: ArrayTree


class Extras(NamedTuple):
    """Values that acting stores; `()` for those that are not needed.

    Attributes:
        log_prob: f32 [B], of the action.
        sample: f32 [B, A], the sample before squashing.
        observation: the numbers of the observation, [B, ...], normalised by the statistics of the policy that acted,
            which are older than the learner's if there is a lag.
    """

    log_prob: ArrayTree
    sample: ArrayTree
    observation: ArrayTree


class Batch(NamedTuple):
    """N items: single rows, leaves [N, ...], or whole sequences, leaves [N, T, ...].

    Attributes:
        inputs: tree of [N, ...], of the network.
        is_first: bool [N, T] of sequences, () of rows.
        carry: tree of [N, ...] of sequences, the memory before row 0; () of rows.
        sample: [N, ...], the actions as the policy drew them.
        log_prob: f32 [N], by the policy that acted; () where it was not stored.
        value: f32 [N], predicted by the parameters with which the update begins.
        advantage: f32 [N].
        target: f32 [N], of the value.
        taught: f32 [N], 1 where the row teaches.
    """

    inputs: ArrayTree
    is_first: ArrayTree
    carry: ArrayTree
    sample: Array
    log_prob: ArrayTree
    value: Array
    advantage: Array
    target: Array
    taught: Array


class Parts(NamedTuple):
    """Objects that the functions of one agent are bound to.

    Attributes:
        config: its settings, which have those of `Settings`.
        spec: of the environment.
        net: network with the heads of the policy and `value`.
        distribution: outputs -> distribution over actions.
    """

    config: Any
    spec: types.EnvironmentSpec
    net: networks.Network
    distribution: Callable[[dict[str, Array]], Any]


def make_agent(
    config: Settings,
    spec: types.EnvironmentSpec,
    network: networks.Config,
    *,
    staleness: str,
    act: Callable[..., types.ActOutput],
    prepare: Callable[..., ArrayTree],
    loss: Callable[..., types.LossOutput],
    adapt: Callable[..., types.Params] | None = None,
) -> agents.Agent:
    """Builds an agent that learns from whole unrolls.

    Args:
        config: settings of the agent.
        spec: spec of the environment.
        network: settings of the network.
        staleness: see `agents.Agent`.
        act: function of `agents.Agent`, with `Parts` before its arguments.
        prepare: likewise.
        loss: likewise.
        adapt: likewise; by default `move_statistics`.

    Returns:
        `agents.Agent`.

    Raises:
        UsageError: network or policy do not fit the environment.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import a2c
        >>> from jaxrl_dist.agents.shared import actor_critic, sequences
        >>> def prepare(parts, params, inputs):
        ...     return sequences.items(parts.net, actor_critic.estimate(parts, params, inputs.batch))
        >>> def loss(parts, params, inputs):
        ...     policy, value = actor_critic.policy_and_value(parts, params, inputs.batch)
        ...     error = 0.5 * jnp.square(value - inputs.batch.target)
        ...     loss = error - policy.log_prob(inputs.batch.sample) * inputs.batch.advantage
        ...     return sequences.summed(inputs.batch.taught, loss, {"value_loss": error}, {})
        >>> own = {"staleness": "none", "act": actor_critic.act, "prepare": prepare, "loss": loss}
        >>> spec, network = envs.make("toy:walk").spec, networks.Config(torso="mlp")
        >>> actor_critic.make_agent(a2c.Config(), spec, network, **own).staleness
        'none'
    """
    distribution, heads = policy_head(spec, config.distribution)
    heads = tuple(head._replace(inputs=network.policy_inputs) for head in heads)
    value = networks.Head("value", 1, 1.0, inputs=network.value_inputs)
    net = networks.make(network, normalisation.observed(config, spec), (*heads, value))
    parts = Parts(config, spec, net, distribution)
    return agents.Agent(
        init=lambda key: types.Params(net.init(key), normalisation.initial(config, spec)),
        init_carry=lambda size: Carry(net.initial(size), normalisation.initial_return(config, size)),
        act=functools.partial(act, parts),
        evaluate=functools.partial(_evaluate, parts),
        prepare=functools.partial(prepare, parts),
        loss=functools.partial(loss, parts),
        staleness=staleness,
        context=net.context,
        keeps_sequences=net.recurrent,
        adapt=functools.partial(adapt or move_statistics, parts),
    )


def act(parts: Parts, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Draws actions from the policy.

    Args:
        parts: of the agent.
        params: of the policy.
        inputs: leaves [B, ...].

    Returns:
        `types.ActOutput` with `Extras`.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs, networks, types
        >>> from jaxrl_dist.agents import a2c
        >>> from jaxrl_dist.agents.shared import actor_critic
        >>> from jaxrl_dist.parallel import unroll
        >>> spec, config = envs.make("toy:walk").spec, a2c.Config()
        >>> distribution, heads = actor_critic.policy_head(spec, config.distribution)
        >>> net = networks.make(networks.Config(torso="mlp"), spec, (*heads, networks.Head("value", 1, 1.0)))
        >>> parts = actor_critic.Parts(config, spec, net, distribution)
        >>> params, timestep = types.Params(net.init(jax.random.key(0)), ()), unroll.zero_timestep(spec, width=2)
        >>> carry = actor_critic.Carry(net.initial(2), ())
        >>> output = actor_critic.act(parts, params, types.ActInputs(timestep, carry, jax.random.key(1)))
        >>> output.action.shape, output.extras.log_prob.shape
        ((2,), (2,))
    """
    policy, carry, seen = _policy(parts, params, inputs)
    sample = policy.sample(inputs.key)
    extras = Extras(
        policy.log_prob(sample),
        sample if policy.squashes else (),
        normalisation.numbers(parts.spec, seen) if parts.config.normalise_observations else (),
    )
    return types.ActOutput(policy.action(sample), extras, carry)


def estimate(parts: Parts, params: types.Params, sequences: types.Unroll) -> Batch:
    """Estimates values, advantages and targets of an unroll.

    Values are computed here, not in acting: one pass over all rows costs a fraction of a pass per row, and actors need
    only run the policy.

    Args:
        parts: parts of the agent.
        params: parameters with which the update begins: those that acted, or newer ones if there is a lag.
        sequences: [T + 1, B].

    Returns:
        `Batch` with leaves [T, B, ...] and carry [B, ...], of which `sequences.items` makes items.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks, types
        >>> from jaxrl_dist.agents import a2c
        >>> from jaxrl_dist.agents.shared import actor_critic
        >>> from jaxrl_dist.parallel import unroll
        >>> spec, config = envs.make("toy:walk").spec, a2c.Config()
        >>> distribution, heads = actor_critic.policy_head(spec, config.distribution)
        >>> net = networks.make(networks.Config(torso="mlp"), spec, (*heads, networks.Head("value", 1, 1.0)))
        >>> parts = actor_critic.Parts(config, spec, net, distribution)
        >>> params, timestep = types.Params(net.init(jax.random.key(0)), ()), unroll.zero_timestep(spec, width=2)
        >>> carry = actor_critic.Carry(net.initial(2), ())
        >>> row = types.Step(timestep, jnp.zeros(2, int), actor_critic.Extras((), (), ()), ())
        >>> rows = types.Unroll(jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), row), carry)
        >>> actor_critic.estimate(parts, params, rows).advantage.shape
        (4, 2)
    """
    config, net = parts.config, parts.net
    timestep = sequences.steps.timestep
    rows, is_first, reward = inputs(parts, params, sequences)
    value = net.unroll(params.network, sequences.carry.core.memory, rows, is_first)[0]["value"][..., 0]
    gae = functools.partial(returns.gae, gamma=config.discount, lambda_=config.gae_lambda)
    advantage, target = jax.vmap(gae, in_axes=1, out_axes=1)(reward, timestep.discount, timestep.step_type, value)
    steps = jax.tree.map(lambda x: x[:-1], sequences.steps)
    return Batch(
        inputs=jax.tree.map(lambda x: x[:-1], rows),
        is_first=is_first[:-1],
        carry=sequences.carry.core.memory,
        sample=drawn(steps),
        log_prob=steps.extras.log_prob,
        value=value[:-1],
        advantage=advantage,
        target=target,
        taught=agents.taught_rows(steps.timestep.step_type),
    )


def inputs(parts: Parts, params: types.Params, sequences: types.Unroll) -> tuple[ArrayTree, Array, Array]:
    """Returns the network's inputs, whether an episode begins, and the rewards of an unroll, leaves [T + 1, B, ...].

    Rows whose action was taken have their observation as it was normalised for acting. Of the other rows only the value
    matters; they are normalised by the learner's statistics.
    """
    config, spec, timestep = parts.config, parts.spec, sequences.steps.timestep
    chex.assert_rank(timestep.reward, 2)
    observation = normalisation.observation(config, spec, params.statistics, timestep.observation)
    if config.normalise_observations:
        acted = agents.taught_rows(timestep.step_type).at[-1].set(0.0) > 0

        def as_acted(stored: Array, anew: Array) -> Array:
            return jnp.where(acted.reshape(*acted.shape, *(1,) * (anew.ndim - 2)), stored, anew)

        seen = jax.tree.map(as_acted, sequences.steps.extras.observation, normalisation.numbers(spec, observation))
        observation = normalisation.with_numbers(spec, observation, seen)
    is_first = agents.is_first(timestep)
    stacked = parts.net.inputs(sequences.carry.core.frames, observation, is_first)
    return stacked, is_first, normalisation.reward(config, params.statistics, timestep.reward)


def drawn(steps: types.Step) -> Array:
    """Returns the policy's samples, before squashing, of steps [T, B]."""
    sample: Array = steps.action if isinstance(steps.extras.sample, tuple) else steps.extras.sample
    return sample


def policy_and_value(parts: Parts, params: types.Params, batch: Batch) -> tuple[Any, Array]:
    """Returns the policy and the value of items.

    Args:
        parts: of the agent.
        params: of the policy.
        batch: N items.

    Returns:
        The distribution of actions, and the value f32: [N] of rows, [N, T] of sequences.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks, types
        >>> from jaxrl_dist.agents import a2c
        >>> from jaxrl_dist.agents.shared import actor_critic, sequences
        >>> from jaxrl_dist.parallel import unroll
        >>> spec, config = envs.make("toy:walk").spec, a2c.Config()
        >>> distribution, heads = actor_critic.policy_head(spec, config.distribution)
        >>> net = networks.make(networks.Config(torso="mlp"), spec, (*heads, networks.Head("value", 1, 1.0)))
        >>> parts = actor_critic.Parts(config, spec, net, distribution)
        >>> params, timestep = types.Params(net.init(jax.random.key(0)), ()), unroll.zero_timestep(spec, width=2)
        >>> carry = actor_critic.Carry(net.initial(2), ())
        >>> row = types.Step(timestep, jnp.zeros(2, int), actor_critic.Extras((), (), ()), ())
        >>> rows = types.Unroll(jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), row), carry)
        >>> batch = sequences.items(net, actor_critic.estimate(parts, params, rows))
        >>> policy, value = actor_critic.policy_and_value(parts, params, batch)
        >>> policy.mode().shape, value.shape
        ((8,), (8,))
    """
    outputs, value = outputs_and_value(parts, params, batch)
    return parts.distribution(outputs), value


def outputs_and_value(parts: Parts, params: types.Params, batch: unrolled.Inputs) -> tuple[dict[str, Array], Array]:
    """Returns the network's outputs and the value f32 of items: leaves [N, ...] of rows, [N, T, ...] of sequences."""
    outputs = unrolled.item_outputs(parts.net, params.network, batch)
    return outputs, outputs["value"][..., 0]


def move_statistics(
    parts: Parts, params: types.Params, sequences: types.Unroll, metrics: Any, aux: ArrayTree, axis: types.Axis
) -> types.Params:
    """Moves the running statistics by an unroll that was learned from."""
    del metrics, aux
    timestep, discounted_return = sequences.steps.timestep, sequences.carry.discounted_return
    running = normalisation.update(parts.config, parts.spec, params.statistics, timestep, discounted_return, axis)
    return params._replace(statistics=running)


def policy_head(
    spec: types.EnvironmentSpec, kind: str
) -> tuple[Callable[[dict[str, Array]], Any], tuple[networks.Head, ...]]:
    """Chooses the function that makes a distribution over actions from a network's outputs.

    Args:
        spec: its action space decides between a categorical policy, a product of these, and a real-valued one. Actions
            that its mask forbids have probability 0.
        kind: kind of a real-valued policy: `gaussian`, whose deviations are free parameters, or `tanh_gaussian`,
            squashed to [-1, 1] with deviations softplus(x) + 1e-3 from the network, as in Brax (Freeman et al. 2021).
            Where actions have bounds, a `gaussian` counts from their middle in halves of their range: it starts with
            the middle as its mean and half the range as its deviation, whatever the units of an action are.

    Returns:
        (outputs [..., size] by name) -> distribution, and the heads that give these outputs.

    Raises:
        UsageError: the policy cannot give such actions.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.agents.shared import actor_critic
        >>> distribution, heads = actor_critic.policy_head(envs.make("toy:walk").spec, "gaussian")
        >>> [(head.name, head.size) for head in heads]
        [('policy', 3)]
        >>> print(distribution({"policy": jnp.array([[0.0, 2.0, 1.0]])}).mode())
        [1]
    """
    action = spec.action
    if isinstance(action, types.DiscreteSpace):
        return _categorical, (_head(action.num_values),)
    if isinstance(action, types.MultiDiscreteSpace):
        return functools.partial(_categoricals, action.num_values), (_head(sum(action.num_values)),)
    if len(action.shape) != 1:
        raise UsageError(
            given("env", spec.name), f": policies give real actions of shape [A], not {list(action.shape)}"
        )
    size = action.shape[0]
    if kind == "tanh_gaussian" and not (np.all(np.equal(action.low, -1)) and np.all(np.equal(action.high, 1))):
        raise UsageError(
            given("agent.distribution", "tanh_gaussian"),
            " gives actions in [-1, 1], ",
            given("env", spec.name),
            f" takes {action.low} to {action.high}; valid: gaussian",
        )
    if kind == "gaussian":
        heads = _head(size), networks.Head("log_std", size, 0.0, depends_on_input=False)
        return functools.partial(_gaussian, _unit(action)), heads
    return _tanh_gaussian, (_head(2 * size),)


def _head(size: int) -> networks.Head:
    return networks.Head("policy", size, 0.01)


def _categorical(outputs: dict[str, Array]) -> distributions.Categorical:
    return distributions.Categorical(distributions.masked(outputs["policy"], outputs.get("mask")))


def _categoricals(sizes: Sequence[int], outputs: dict[str, Array]) -> distributions.Categoricals:
    return distributions.Categoricals.of(outputs["policy"], sizes, outputs.get("mask"))


def _unit(action: types.BoxSpace) -> bounded_actions.Range | None:
    """Returns the range in whose halves a policy counts; None where a unit of the action is one already."""
    if action.kind != "bounded":
        return None
    unit = bounded_actions.range_of(action)
    return None if np.all(unit.centre == 0) and np.all(unit.half == 1) else unit


def _gaussian(unit: bounded_actions.Range | None, outputs: dict[str, Array]) -> distributions.Gaussian:
    mean, log_std = outputs["policy"], outputs["log_std"]
    if unit is None:
        return distributions.Gaussian(mean, log_std)
    return distributions.Gaussian(unit.scaled(mean), log_std + np.log(unit.half))


def _tanh_gaussian(outputs: dict[str, Array]) -> distributions.TanhGaussian:
    mean, raw = jnp.split(outputs["policy"], 2, axis=-1)
    return distributions.TanhGaussian(mean, jnp.log(jax.nn.softplus(raw) + 1e-3))


def _policy(parts: Parts, params: types.Params, inputs: types.ActInputs) -> tuple[Any, Carry, ArrayTree]:
    """Returns the distribution of actions, the carry, and the observations as the network got them."""
    config, carry, timestep = parts.config, inputs.carry, inputs.timestep
    observation = normalisation.observation(config, parts.spec, params.statistics, timestep.observation)
    outputs, core = parts.net.step(params.network, carry.core, observation, agents.is_first(timestep))
    discounted_return = normalisation.next_return(config, carry.discounted_return, timestep)
    return parts.distribution(outputs), Carry(core, discounted_return), observation


def _evaluate(parts: Parts, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    policy, carry, _ = _policy(parts, params, inputs)
    sample = distributions.choose(policy, parts.config.evaluation_action, inputs.key)
    return types.ActOutput(policy.action(sample), (), carry)
