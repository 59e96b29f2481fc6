"""Agents: one file each, a `Config` and a `make(config, spec, network) -> Agent` of pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import types
from jaxrl_dist.types import Array, ArrayTree


class Agent(NamedTuple):
    """Pure functions of one agent. B environments, L rows per window, N items.

    Attributes:
        context: rows before a window's taught rows (k − 1 for a stack of k frames, the burn-in of a recurrent core).
        taught: taught rows of a window that a replay cuts; 0 takes the unroll whole.
        keeps_sequences: whether `prepare` keeps whole sequences (a recurrent core): items are columns, not rows.
        lookahead: rows after the taught ones that the targets need (n of n-step returns).
        staleness: how old a policy's rows may be; a layout that breaks it is refused. `none`: the policy's own, learned
            from once; `own`: likewise, and then again, by targets that are made once; `corrected` or `any`: older ones.
        init: (key) -> `types.Params`.
        init_carry: (batch_size) -> acting state, leaves [B, ...].
        exploration: (env_index i32[B], num_envs, progress f32[]) -> f32[B].
        act: (params, carry, timestep [B], key, exploration [B]) -> `types.ActOutput`.
        evaluate: (params, carry, timestep [B], key) -> `types.ActOutput`, greedy or mode.
        prepare: (params, sequences: `types.Unroll` [L, N], axis) -> batch, leaves [N', ...].
        loss: (params, target_network, batch, key, progress, axis) -> `types.LossOutput`, leaves f32 [N'].
        adapt: (params, sequences, metrics, axis) -> params; changes `params.statistics` only, once per update.
        target: (network) -> target network; `()` for an agent without one.
        first_error: (`types.Unroll` [L, N] without observations and carry) -> f32 [N], the error of new windows by
            what acting remembers of them; None leaves it to the replay.
        parts: keys of the network, a dict, whose values have an optimiser each; none have one for all. `policy` must be
            one of them, and has a step size and a period of its own (`learner.Config`).
        adopt: (params, params of another run), leaves [S, ...] -> params that start from the other's; what the settings
            say of the first ones stays.
    """

    context: int
    taught: int
    lookahead: int
    keeps_sequences: bool
    staleness: str
    init: Callable[[Array], types.Params]
    init_carry: Callable[[int], ArrayTree]
    exploration: Callable[..., Array]
    act: Callable[..., types.ActOutput]
    evaluate: Callable[..., types.ActOutput]
    prepare: Callable[..., ArrayTree]
    loss: Callable[..., types.LossOutput]
    adapt: Callable[..., types.Params]
    target: Callable[[ArrayTree], ArrayTree]
    first_error: Callable[[types.Unroll], Array] | None = None
    parts: tuple[str, ...] = ()
    adopt: Callable[[types.Params, types.Params], types.Params] = lambda params, other: other


def no_exploration(env_index: Array, num_envs: int, progress: Array) -> Array:
    """Returns zeros f32 [B], for agents whose policy explores by itself."""
    del num_envs, progress
    return jnp.zeros(env_index.shape, jnp.float32)


def no_adaptation(params: types.Params, sequences: types.Unroll, metrics: Any, axis: types.Axis) -> types.Params:
    """Returns the parameters unchanged, for agents without statistics."""
    del sequences, metrics, axis
    return params


def no_target(network: ArrayTree) -> ArrayTree:
    """Returns `()`, for agents without a target network."""
    del network
    return ()


def copy_target(network: ArrayTree) -> ArrayTree:
    """Copies the network, so that both may be donated."""
    return jax.tree.map(jnp.copy, network)


def is_first(timestep: types.TimeStep) -> Array:
    """Returns bool, whether each timestep opens an episode."""
    return timestep.step_type == types.FIRST


def taught_rows(step_type: Array) -> Array:
    """Returns f32, 1 where the row's action was executed; the row that leaves a LAST step teaches nothing."""
    return (step_type != types.LAST).astype(jnp.float32)


def clip(x: Array, bound: float) -> Array:
    """Clips to ± `bound`; 0 leaves all as it is."""
    return jnp.clip(x, -bound, bound) if bound else x
