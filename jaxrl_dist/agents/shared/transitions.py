"""Parts of agents that replay transitions of up to n steps: a batch cut out of windows, losses of distributions."""

import functools
import math
from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.numeric import returns, values
from jaxrl_dist.types import Array, ArrayTree


class Batch(NamedTuple):
    """N transitions of up to n steps.

    Attributes:
        inputs: tree of [N, ...], of the network.
        action: [N, ...].
        reward: f32 [N], the discounted sum of k ≤ n rewards.
        discount: f32 [N], γ^k·∏discount, the factor of the bootstrap value.
        next_inputs: tree of [N, ...], k steps on.
        taught: f32 [N], 1 where the transition teaches.
    """

    inputs: ArrayTree
    action: Array
    reward: Array
    discount: Array
    next_inputs: ArrayTree
    taught: Array


class Settings(Protocol):
    """Settings of an agent's distribution of returns."""

    @property
    def discount(self) -> float:
        """Discount factor γ."""

    @property
    def clip_rewards(self) -> float:
        """Bound of rewards; 0 is off."""

    @property
    def reward_scale(self) -> float:
        """Factor of rewards, after any clipping."""

    @property
    def num_atoms(self) -> int:
        """Atoms; 1 is no distribution."""

    @property
    def actor_errors(self) -> bool:
        """Says whether new windows get the error that the actor saw."""

    @property
    def value_low(self) -> float:
        """Lowest atom; equal to the highest if both are to follow from the rewards."""

    @property
    def value_high(self) -> float:
        """Highest atom."""


class Rule(NamedTuple):
    """Describes the transitions that are made.

    Attributes:
        context: rows of a window before the taught one.
        n_step: n.
        discount: γ.
        clip_rewards: bound of rewards; 0 is off.
        reward_scale: factor of rewards, after any clipping.
    """

    context: int
    n_step: int
    discount: float
    clip_rewards: float
    reward_scale: float = 1.0


def join(rule: Rule, timestep: types.TimeStep) -> returns.Transitions:
    """Joins n steps from the taught row of each window.

    Args:
        rule: describes the transitions.
        timestep: leaves [context + 1 + n, N].

    Returns:
        `returns.Transitions`, leaves [N].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.agents.shared import transitions
        >>> rule, row = transitions.Rule(context=0, n_step=2, discount=0.5, clip_rewards=0.0), jnp.ones((3, 1))
        >>> timestep = types.TimeStep(jnp.full((3, 1), types.MID), row, row, (), ())
        >>> joined = transitions.join(rule, timestep)
        >>> print(joined.reward, joined.offset, joined.discount)
        [1.5] [2] [0.25]
    """
    chex.assert_axis_dimension(timestep.reward, 0, rule.context + 1 + rule.n_step)
    reward = agents.seen_reward(timestep.reward, rule.clip_rewards, rule.reward_scale)
    rows = jax.tree.map(lambda x: x[rule.context :], (reward, timestep.discount, timestep.step_type))

    def joined(reward: Array, discount: Array, step_type: Array) -> Any:
        return returns.n_step_transitions(reward, discount, step_type, rule.discount, rule.n_step)

    return jax.tree.map(lambda x: x[0], jax.vmap(joined, in_axes=1, out_axes=1)(*rows))


def prepare(rule: Rule, net: networks.Network, sequences: types.Unroll) -> Batch:
    """Cuts the taught row and its bootstrap row out of each window of `context + 1 + n` rows.

    Args:
        rule: describes the transitions.
        net: network without a memory that makes inputs of the observations.
        sequences: windows [context + 1 + n, N].

    Returns:
        `Batch`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import dqn
        >>> from jaxrl_dist.agents.shared import transitions
        >>> from jaxrl_dist.parallel import unroll
        >>> spec, network = envs.make("toy:walk").spec, networks.Config(torso="mlp")
        >>> struct = unroll.rows_struct(dqn.make(dqn.Config(), spec, network), spec, unroll_length=3, width=5)
        >>> windows = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), struct)
        >>> net = networks.make(network, spec, [networks.Head("q", 3, 1.0)])
        >>> rule = transitions.Rule(context=0, n_step=3, discount=0.5, clip_rewards=0.0)
        >>> batch = transitions.prepare(rule, net, windows)
        >>> batch.inputs.shape, batch.next_inputs.shape
        ((5, 2), (5, 2))
    """
    timestep = sequences.steps.timestep
    reward, offset, discount = join(rule, timestep)
    inputs = net.inputs(sequences.carry.frames, timestep.observation, agents.is_first(timestep))
    inputs = jax.tree.map(lambda x: x[rule.context :], inputs)

    def ahead(x: Array) -> Array:
        if rule.n_step == 1:
            return x[1]
        return jnp.take_along_axis(x, offset.reshape(1, -1, *(1,) * (x.ndim - 2)), axis=0)[0]

    return Batch(
        jax.tree.map(lambda x: x[0], inputs),
        sequences.steps.action[rule.context],
        reward,
        discount,
        jax.tree.map(ahead, inputs),
        agents.taught_rows(timestep.step_type[rule.context]),
    )


def seen_error(rule: Rule, sequences: types.Unroll) -> Array:
    """Returns the errors of the taught rows, computed from the actors' values.

    For several critics it is the mean of their errors, as in the learner.

    Args:
        rule: describes the transitions.
        sequences: windows [context + 1 + n, N] whose extras are `action_values.Seen`.

    Returns:
        |δ| f32 [N].

    Source: Horgan et al. 2018, algorithm 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.agents.shared import action_values, transitions
        >>> row, rule = jnp.ones((2, 1)), transitions.Rule(context=0, n_step=1, discount=0.5, clip_rewards=0.0)
        >>> timestep = types.TimeStep(jnp.full((2, 1), types.MID), row, row, (), ())
        >>> seen = action_values.Seen(taken=4 * row, best=8 * row)  # the error is 1 + .5 · 8 − 4
        >>> print(transitions.seen_error(rule, types.Unroll(types.Step(timestep, row, seen, ()), ())))
        [1.]
    """
    taken, best = sequences.steps.extras
    reward, offset, discount = join(rule, sequences.steps.timestep)
    target = reward + discount * jnp.take_along_axis(best[rule.context :], offset[None], axis=0)[0]
    taken = taken[rule.context].reshape(*target.shape, -1)
    return jnp.abs(target[:, None] - taken).mean(-1)


def support(config: Settings, spec: types.EnvironmentSpec) -> Any:
    """Places the atoms.

    If the settings give no range, it is from the discounted sum of the lowest reward to that of the highest.

    Args:
        config: settings of the agent.
        spec: of the environment.

    Returns:
        f32 [atoms], None of one atom.

    Raises:
        UsageError: the range is empty or infinite; or `actor_errors` is on, although actors compute differences of
            means and the learner divergences.

    Example:
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.agents import dqn
        >>> from jaxrl_dist.agents.shared import transitions
        >>> config = dqn.Config(num_atoms=3, value_low=-1.0, value_high=1.0)
        >>> print(transitions.support(config, envs.make("toy:walk").spec))
        [-1.  0.  1.]
    """
    if config.num_atoms == 1:
        return None
    check_errors(config)
    low, high = config.value_low, config.value_high
    if low == high:
        bound = config.clip_rewards or math.inf
        rewards = [config.reward_scale * min(max(reward, -bound), bound) for reward in spec.reward_range]
        # An episode may end at any step, so 0 is always in the range. A truncated episode bootstraps from its last
        # value, so a time limit bounds no return; it is used only if nothing else gives a bound.
        horizon = 1 / (1 - config.discount) if config.discount < 1 else float(spec.time_limit or math.inf)
        # Without any bound on the horizon 0 · ∞ is NaN, so 0 stays 0.
        low, high = (reward * horizon if reward else 0.0 for reward in (min(rewards[0], 0.0), max(rewards[1], 0.0)))
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(
            given("agent.num_atoms", config.num_atoms),
            f": atoms cannot lie from {low:g} to {high:g}; give ",
            given("agent.value_low"),
            " < ",
            given("agent.value_high"),
            " (equal, both follow from the rewards of ",
            given("env", spec.name),
            ")",
        )
    return values.support(low, high, config.num_atoms)


def check_errors(config: Settings) -> None:
    """Checks that actors compute the errors that the learner has.

    Args:
        config: settings of the agent.

    Raises:
        UsageError: `actor_errors` is on, and a distribution is learned, whose errors no actor computes.

    Example:
        >>> from jaxrl_dist.agents import dqn
        >>> from jaxrl_dist.agents.shared import transitions
        >>> transitions.check_errors(dqn.Config(num_atoms=1, actor_errors=True))
        >>> transitions.check_errors(dqn.Config(num_atoms=3, actor_errors=True))
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: agent.actor_errors=true: with agent.num_atoms=3 the learner's errors are …
    """
    if config.actor_errors and config.num_atoms > 1:
        raise UsageError(
            given("agent.actor_errors", "true"),
            ": with ",
            given("agent.num_atoms", config.num_atoms),
            " the learner's errors are divergences and the actors' are not; valid: ",
            given("agent.num_atoms", "1"),
            ", or ",
            given("agent.actor_errors", "false"),
        )


def divergence(atoms: Array, predicted: Array, batch: Batch, bootstrap: Array) -> tuple[Array, Array]:
    """Returns the Kullback-Leibler divergence of the projected target from the prediction.

    Args:
        atoms: f32 [atoms].
        predicted: logits f32 [N, atoms].
        batch: transitions, whose rewards and discounts make the target.
        bootstrap: logits f32 [N, atoms].

    Returns:
        The divergence f32 [N], and the mean f32 [N] of the prediction.

    Source: Bellemare et al. 2017, algorithm 1; the divergence as priority: Hessel et al. 2018, section "Rainbow".

    Example:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from jaxrl_dist.agents.shared import transitions
        >>> atoms, zero, logits = jnp.array([0.0, 1.0]), jnp.zeros(1), jnp.array([[0.0, 0.0]])
        >>> batch = transitions.Batch((), (), reward=zero + 1, discount=zero, next_inputs=(), taught=zero + 1)
        >>> divergence, mean = transitions.divergence(atoms, logits, batch, bootstrap=logits)
        >>> print(np.asarray(divergence).round(3), mean)  # log 2: the target is surely 1
        [0.693] [0.5]
    """
    targets = batch.reward[:, None] + batch.discount[:, None] * atoms
    project = jax.vmap(values.categorical_projection, in_axes=(0, 0, None))
    target = jax.lax.stop_gradient(project(targets, jax.nn.softmax(bootstrap), atoms))
    log_prob = jax.nn.log_softmax(predicted)
    loss = (jax.scipy.special.xlogy(target, target) - target * log_prob).sum(-1)
    return jnp.maximum(loss, 0.0), jax.lax.stop_gradient(values.mean_of_atoms(predicted, atoms))


def quantile_error(clip: float, predicted: Array, batch: Batch, bootstrap: Array) -> tuple[Array, Array]:
    """Returns the quantile Huber loss of evenly spread quantiles.

    Args:
        clip: κ, as in `values.quantile_loss`.
        predicted: quantiles f32 [N, K].
        batch: transitions, whose rewards and discounts make the target.
        bootstrap: quantiles f32 [N, K'].

    Returns:
        The loss f32 [N], and the mean f32 [N] of the prediction.

    Source: Dabney et al. 2018, "Distributional reinforcement learning with quantile regression", algorithm 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import transitions
        >>> row, quantiles = jnp.ones(1), jnp.array([[0.0, 2.0]])
        >>> batch = transitions.Batch((), (), reward=row, discount=0 * row, next_inputs=(), taught=row)
        >>> loss, mean = transitions.quantile_error(0.0, quantiles, batch, bootstrap=quantiles)
        >>> print(loss, mean)  # all of the target is at 1
        [0.5] [1.]
    """
    target = jax.lax.stop_gradient(batch.reward[:, None] + batch.discount[:, None] * bootstrap)
    levels = values.quantile_levels(predicted.shape[1])
    of_rows = jax.vmap(functools.partial(values.quantile_loss, clip=clip), in_axes=(0, None, 0))
    return of_rows(predicted, levels, target), jax.lax.stop_gradient(predicted.mean(-1))
