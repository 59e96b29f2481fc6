"""Parts of agents with bounded real actions: bounds, a policy, and critics of observations joined with actions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import errors, networks, types
from jaxrl_dist.agents.shared import transitions
from jaxrl_dist.types import Array, ArrayTree


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
        what = "are discrete" if action.kind == "discrete" else "have no bounds"
        told = errors.given("env", spec.name), f": its actions {what}, and this agent needs bounded real ones"
        raise errors.UnfitError(*told, actions=action.kind)
    assert isinstance(action, types.BoxSpace)
    if len(action.shape) != 1:
        raise errors.UsageError(
            errors.given("env", spec.name), f": agents take real actions of shape [A], not {list(action.shape)}"
        )
    low, high = (np.broadcast_to(np.asarray(x, np.float32), action.shape) for x in (action.low, action.high))
    return Range((high + low) / 2, (high - low) / 2)


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
        UsageError: observations are no vector, or the network has a memory.
    """
    observation = spec.observation
    if not isinstance(observation, jax.ShapeDtypeStruct) or len(observation.shape) != 1:
        told = errors.given("env", spec.name), ": this agent takes observations that are vectors"
        raise errors.UnfitError(*told, actions="unbounded")
    if network.core != "identity":
        raise errors.UsageError(
            errors.given("network.core", network.core), ": this agent replays single steps; valid: identity"
        )
    joined = jax.ShapeDtypeStruct((observation.shape[0] + action_size,), jnp.float32)
    policy = networks.make(network, spec, (networks.Head("policy", per_action * action_size, 0.01),))
    critic = networks.make(network, spec._replace(observation=joined), (networks.Head("value", num_atoms, 1.0),))
    return policy, critic


def evaluate_critics(critic: networks.Network, params: ArrayTree, observation: Array, action: Array) -> Array:
    """Returns f32 [C, N, atoms] of all critics; actions f32 [N, A] lie in [-1, 1]."""
    joined = jnp.concatenate([observation.astype(jnp.float32), action], -1)
    return jax.vmap(lambda one: networks.of_rows(critic, one, joined)["value"])(params)


def init_critics(critic: networks.Network, key: Array, count: int) -> ArrayTree:
    """Returns the parameters of critics, leaves [C, ...]."""
    return jax.vmap(critic.init)(jax.random.split(key, count))
