"""Parts of agents with bounded real actions: bounds, a policy, and critics of observations joined with actions."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import errors, networks, types
from jaxrl_dist.agents.shared import transitions
from jaxrl_dist.types import Array, ArrayTree

# Names of the parts of what a critic sees, where it is a tree.
_OBSERVATION, _ACTION = "observation", "action"


class Range(NamedTuple):
    """Centre and half of the range of actions, f32 [A]: agents choose in [-1, 1]."""

    centre: np.ndarray
    half: np.ndarray

    def scaled(self, action: Array) -> Array:
        """Returns actions in [-1, 1] scaled to the environment's range."""
        return self.centre + self.half * action

    def prepare(self, rule: transitions.Rule, policy: networks.Network, sequences: types.Unroll) -> transitions.Batch:
        """Cuts out transitions, with actions scaled to [-1, 1]."""
        batch = transitions.prepare(rule, policy, sequences)
        return batch._replace(action=(batch.action - self.centre) / self.half)


def action_range(spec: types.EnvironmentSpec) -> Range:
    """Returns the range of an environment's actions.

    Raises:
        UsageError: its actions are no bounded vector.
    """
    action = spec.action
    if action.kind != "bounded":
        what = "have no bounds" if action.kind == "unbounded" else "are discrete"
        told = errors.given("env", spec.name), f": its actions {what}, and this agent needs bounded real ones"
        raise errors.UnfitError(*told, actions=action.kind)
    assert isinstance(action, types.BoxSpace)
    if len(action.shape) != 1:
        raise errors.UsageError(
            errors.given("env", spec.name), f": agents take real actions of shape [A], not {list(action.shape)}"
        )
    return range_of(action)


def range_of(action: types.BoxSpace) -> Range:
    """Returns the range of a space with bounds, in which a component whose bounds are equal counts by its own units."""
    low, high = (np.broadcast_to(np.asarray(x, np.float32), action.shape) for x in (action.low, action.high))
    half = high / 2 - low / 2
    return Range(high / 2 + low / 2, np.where(half > 0, half, np.float32(1)))


def exploration(
    params: types.Params, env_index: Array, num_envs: int, progress: Array, *, random_share: float
) -> Array:
    """Returns f32 [B], 1 where actions are random: in the first share of training."""
    del params, num_envs
    return jnp.full(env_index.shape, progress < random_share, jnp.float32)


def explored(key: Array, action: Array, exploration: Array) -> Array:
    """Replaces actions f32 [B, A] by uniform ones in [-1, 1], where `exploration` f32 [B] is not 0."""
    drawn = jax.random.uniform(jax.random.fold_in(key, 1), action.shape, minval=-1.0, maxval=1.0)
    return jnp.where(exploration[:, None] > 0, drawn, action)


def policy_and_critic(
    spec: types.EnvironmentSpec, network: networks.Config, num_atoms: int, action_size: int, per_action: int = 1
) -> tuple[networks.Network, networks.Network]:
    """Builds a policy, and a critic of observations joined with actions.

    Args:
        spec: spec of the environment.
        network: settings of both.
        num_atoms: number of outputs of a critic.
        action_size: A.
        per_action: number of outputs of the policy for each of the A components.

    Raises:
        UsageError: the torso does not fit the observation, or the network has a memory.
    """
    of_policy = networks.Head("policy", per_action * action_size, 0.01, inputs=network.policy_inputs)
    joined, inputs = joined_spec(spec, network, action_size)
    of_critic = networks.Head("value", num_atoms, 1.0, inputs=inputs)
    policy = networks.make(network, spec, (of_policy,))
    # The names are those of the environment's leaves, which were checked for the policy.
    unnamed = dataclasses.replace(network, policy_inputs=(), value_inputs=())
    return policy, networks.make(unnamed, joined, (of_critic,))


def joined_spec(
    spec: types.EnvironmentSpec, network: networks.Config, action_size: int
) -> tuple[types.EnvironmentSpec, tuple[str, ...]]:
    """Returns the spec of what a critic sees, as `joined_with` makes it, and the names of what it sees of that.

    Raises:
        UsageError: the network has a memory.
    """
    if network.core != "identity":
        raise errors.UsageError(
            errors.given("network.core", network.core), ": this agent replays single steps; valid: identity"
        )
    action = jax.ShapeDtypeStruct((action_size,), jnp.float32)
    joined = jax.eval_shape(joined_with, jax.tree.map(_batched, spec.observation), _batched(action))
    joined = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), joined)
    categories = {f"{_OBSERVATION}/{name}".rstrip("/"): numbers for name, numbers in spec.categories.items()}
    privileged = spec.privileged and f"{_OBSERVATION}/{spec.privileged}"
    seen = tuple(f"{_OBSERVATION}/{name}" for name in network.value_inputs)
    of_both = spec._replace(observation=joined, categories=categories, privileged=privileged)
    return of_both, (*seen, _ACTION) if seen else ()


def joined_with(observation: ArrayTree, action: Array) -> ArrayTree:
    """Returns what a critic sees: reals [N, D] and an action [N, A] in one vector, of all else a tree of both.

    Integers may be categories, which are none beside an action's numbers.
    """
    if getattr(observation, "ndim", 0) == 2 and jnp.issubdtype(observation.dtype, jnp.floating):
        return jnp.concatenate([observation.astype(jnp.float32), action], -1)
    return {_ACTION: action, _OBSERVATION: observation}


def _batched(struct: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, *struct.shape), struct.dtype)


def evaluate_critics(critic: networks.Network, params: ArrayTree, observation: ArrayTree, action: Array) -> Array:
    """Returns f32 [C, N, atoms] of all critics; actions f32 [N, A] lie in [-1, 1]."""
    joined = joined_with(observation, action)
    return jax.vmap(lambda one: networks.of_rows(critic, one, joined)["value"])(params)


def init_critics(critic: networks.Network, key: Array, count: int) -> ArrayTree:
    """Returns the parameters of critics, leaves [C, ...]."""
    return jax.vmap(critic.init)(jax.random.split(key, count))
