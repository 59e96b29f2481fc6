"""Observations and rewards normalised by running statistics, which are frozen within an update and move after it.

An observation of one array is normalised as it is, unless it is of categories; of a tree the real numbers are, but no
truth values and integers.

Source: Engstrom et al. 2020, "Implementation matters in deep policy gradients", section 3 and appendix A.2.
"""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, types
from jaxrl_dist.networks import torsos
from jaxrl_dist.numeric import moments as statistics
from jaxrl_dist.numeric import returns, vectors
from jaxrl_dist.types import Array, ArrayTree

# Name of an observation that is one array, in `categories` of a spec.
_LONE = ""


class Settings(Protocol):
    """Settings that are read here of every agent."""

    @property
    def discount(self) -> float:
        """Discount factor γ of the running return that rewards are scaled by."""

    @property
    def normalise_observations(self) -> bool:
        """Says whether observations are normalised."""

    @property
    def clip_observations(self) -> float:
        """Bound of observations; 0 is off."""

    @property
    def scale_rewards(self) -> bool:
        """Says whether rewards are divided by the deviation of the discounted return."""

    @property
    def smallest_deviation(self) -> float:
        """Least deviation that rewards are divided by."""

    @property
    def clip_rewards(self) -> float:
        """Bound of rewards; 0 is off."""

    @property
    def reward_scale(self) -> float:
        """Factor of rewards, after any clipping."""


class Statistics(NamedTuple):
    """Running moments of observations and of discounted returns; `()` if they are switched off.

    Attributes:
        observation: moments of the observations of taught rows.
        discounted_return: moments of their discounted returns.
        own: further statistics of the agent, () without any.
    """

    observation: ArrayTree
    discounted_return: ArrayTree
    own: ArrayTree = ()


def numbers(spec: types.EnvironmentSpec, observation: ArrayTree) -> ArrayTree:
    """Returns what is normalised of an observation: the array that it is, or the list of a tree's real numbers.

    Nothing is of an array of categories.
    """
    if not types.is_tree(observation):
        return [] if _LONE in spec.categories else observation
    return [leaf for leaf in jax.tree.leaves(observation) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def with_numbers(spec: types.EnvironmentSpec, observation: ArrayTree, changed: ArrayTree) -> ArrayTree:
    """Returns an observation with others in the place of its `numbers`."""
    if not types.is_tree(observation):
        return observation if _LONE in spec.categories else changed
    rest = iter(changed)
    return jax.tree.map(lambda leaf: next(rest) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, observation)


def initial(config: Settings, spec: types.EnvironmentSpec) -> Statistics:
    """Returns the statistics before any row."""
    return Statistics(
        statistics.initial(numbers(spec, spec.observation)) if config.normalise_observations else (),
        statistics.initial(jax.ShapeDtypeStruct((), jnp.float32)) if config.scale_rewards else (),
    )


def observed(config: Settings, spec: types.EnvironmentSpec) -> types.EnvironmentSpec:
    """Returns the environment's spec with observations as the network gets them."""
    return as_real(spec) if config.normalise_observations or config.clip_observations else spec


def as_real(spec: types.EnvironmentSpec) -> types.EnvironmentSpec:
    """Returns the environment's spec with the numbers of observations as f32, as they are once normalised."""
    real = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), numbers(spec, spec.observation))
    return spec._replace(observation=with_numbers(spec, spec.observation, real))


def initial_return(config: Settings, batch_size: int) -> ArrayTree:
    """Returns the discounted return before any reward, f32 [B], or `()` where rewards are not scaled."""
    return jnp.zeros(batch_size) if config.scale_rewards else ()


def next_return(config: Settings, discounted_return: ArrayTree, timestep: types.TimeStep) -> ArrayTree:
    """Moves the discounted return on by a timestep [B]."""
    if not config.scale_rewards:
        return discounted_return
    return jnp.where(agents.is_first(timestep), 0.0, config.discount * discounted_return + timestep.reward)


def observation(
    config: Settings, spec: types.EnvironmentSpec, running: Statistics, observation: ArrayTree
) -> ArrayTree:
    """Returns observations, a tree of [..., *shape], as the network gets them."""
    seen, bound = numbers(spec, observation), config.clip_observations
    if config.normalise_observations:
        seen = statistics.normalise(seen, running.observation)
    if bound:
        # Bytes are pixels, of which a network sees 0 to 1.
        seen = jax.tree.map(lambda x: jnp.clip(torsos.as_float(x, jnp.float32), -bound, bound), seen)
    return with_numbers(spec, observation, seen)


def reward(config: Settings, running: Statistics, reward: Array) -> Array:
    """Returns rewards f32 [...] as returns are computed from them: normalised, clipped, and scaled."""
    if config.scale_rewards:
        deviation = statistics.std(running.discounted_return)
        reward = agents.apart(reward, reward / jnp.maximum(deviation, config.smallest_deviation))
    return agents.seen_reward(reward, config.clip_rewards, config.reward_scale)


def update(
    config: Settings,
    spec: types.EnvironmentSpec,
    running: Statistics,
    timestep: types.TimeStep,
    discounted_return: ArrayTree,
    axis: types.Axis,
) -> Statistics:
    """Moves the statistics by an unroll that was just learned from, each taught row once.

    Args:
        config: settings.
        spec: of the environment.
        running: statistics so far.
        timestep: [T + 1, B].
        discounted_return: f32 [B] before the first row.
        axis: reductions over all devices.
    """
    taught = agents.taught_rows(timestep.step_type[:-1]).reshape(-1)
    if config.normalise_observations:
        rows = vectors.flat(jax.tree.map(lambda x: x[:-1], numbers(spec, timestep.observation)))
        running = running._replace(observation=statistics.update(running.observation, rows, taught, axis))
    if config.scale_rewards:
        sums = jax.vmap(returns.running_returns, in_axes=(1, 1, None, 0), out_axes=1)
        # Without the barrier XLA fuses it into the sums of the moments, and compiles six times as long for a GPU.
        discounted = jax.lax.optimization_barrier(
            sums(timestep.reward, timestep.step_type, config.discount, discounted_return)
        )
        moments = statistics.update(running.discounted_return, discounted[1:].reshape(-1), taught, axis)
        running = running._replace(discounted_return=moments)
    return running
