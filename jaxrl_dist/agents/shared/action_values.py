"""Parts of agents that learn values of actions: heads, dueling, ε-greedy choice, schedule and ladder of ε."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import errors, networks, types
from jaxrl_dist.types import Array


class Seen(NamedTuple):
    """Values that an actor computed.

    Attributes:
        taken: f32 [B], value of the action that it took; [B, C] for C critics.
        best: f32 [B], value of the best action; for several critics the lowest.
    """

    taken: Array
    best: Array


def check_discrete(spec: types.EnvironmentSpec) -> int:
    """Returns the number of actions A.

    Raises:
        UsageError: actions are real-valued.
    """
    if not isinstance(spec.action, types.DiscreteSpace):
        told = errors.given("env", spec.name), ": its actions are real, and this agent needs discrete ones"
        raise errors.UnfitError(*told, actions=spec.action.kind)
    return spec.action.num_values


def heads(num_actions: int, dueling: bool, num_atoms: int = 1, noise: float = 0.0) -> tuple[networks.Head, ...]:
    """Returns the heads whose outputs `join` takes.

    Args:
        num_actions: A.
        dueling: whether value and advantages have a head each.
        num_atoms: atoms of a distribution, whose logits are the outputs; 1 for plain values.
        noise: σ₀ of noisy layers; 0 for plain ones.
    """
    sizes = {"value": num_atoms, "advantage": num_actions * num_atoms} if dueling else {"q": num_actions * num_atoms}
    return tuple(networks.Head(name, size, 1.0, noise=noise) for name, size in sizes.items())


def join(outputs: dict[str, Array], num_actions: int) -> Array:
    """Returns values f32 [..., A], or logits f32 [..., A, atoms] if heads have more than one atom.

    Source: Wang et al. 2016, "Dueling network architectures for deep reinforcement learning", equation 9; over
        distributions: Hessel et al. 2018, section "Rainbow".
    """
    first = outputs["q"] if "q" in outputs else outputs["advantage"]
    q = first.reshape(*first.shape[:-1], num_actions, -1)
    if "value" in outputs:
        q = outputs["value"][..., None, :] + q - q.mean(-2, keepdims=True)
    return q[..., 0] if q.shape[-1] == 1 else q


def of_action(q: Array, action: Array) -> Array:
    """Selects by actions i32 [...]: f32 [...] of values [..., A], or [..., atoms] of logits [..., A, atoms]."""
    axis = action.ndim
    index = action.reshape(*action.shape, *(1,) * (q.ndim - axis))
    return jnp.take_along_axis(q, index, axis=axis).squeeze(axis)


def epsilon_greedy(q: Array, key: Array, epsilon: Array) -> Array:
    """Returns actions i32 [B]: the best by values [B, A], or with probability ε f32 [B] any at random."""
    greedy = jnp.argmax(q, axis=-1).astype(jnp.int32)
    uniform = jax.random.uniform(key, (2, *greedy.shape))
    random = jnp.minimum((uniform[0] * q.shape[-1]).astype(jnp.int32), q.shape[-1] - 1)
    return jnp.where(uniform[1] < epsilon, random, greedy)


def epsilon_schedule(
    params: types.Params,
    env_index: Array,
    num_envs: int,
    progress: Array,
    *,
    start: float,
    end: float,
    fraction: float,
    wait: float = 0.0,
) -> Array:
    """Returns ε f32 [B], the same for every environment: it falls linearly from start to end.

    It falls in the share `fraction` of training, after the share `wait` in which it stays at its start.
    """
    del params, num_envs
    share = jnp.clip((progress - wait) / fraction, 0.0, 1.0)
    return jnp.broadcast_to(start + share * (end - start), env_index.shape).astype(jnp.float32)


def epsilon_ladder(
    params: types.Params, env_index: Array, num_envs: int, progress: Array, *, base: float, exponent: float
) -> Array:
    """Returns ε f32 [B], constant but different for each environment: base^(1 + exponent · i / (N − 1)).

    Source: Horgan et al. 2018, "Distributed prioritized experience replay", section 4.1.
    """
    del params, progress
    return (base ** (1 + exponent * env_index / max(num_envs - 1, 1))).astype(jnp.float32)
