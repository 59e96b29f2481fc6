"""The replay that returns the newest unroll whole."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_dist import replay, types
from jaxrl_dist.types import Array


def make() -> replay.Replay:
    """Makes the replay of on-policy learning; its state exists only between `add` and `update`.

    Example:
        >>> from jaxrl_dist.replay import latest
        >>> made = latest.make()
        >>> made.min_rows, made.updates
        (0, (1, 1))
    """
    return replay.Replay(
        min_rows=0,
        updates=(1, 1),
        init=lambda step_spec, carry_spec: (),
        add=add,
        add_again=add,
        sample=sample,
        update=lambda state, indices, priorities: (),
        keeps_rows=False,
    )


def add(state: types.Unroll | tuple[()], unroll: types.Unroll, columns: Array | None) -> types.Unroll:
    """Returns an unroll, beside the earlier ones of the same iteration.

    Args:
        state: unroll [T + 1, N] of those before, () at first.
        unroll: [T + 1, M].
        columns: i32 [M] or None, not used.

    Returns:
        Unroll [T + 1, N + M].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.replay import latest
        >>> one = types.Unroll(types.Step((), jnp.zeros((5, 2)), (), ()), jnp.zeros(2))  # the actions of an unroll
        >>> state = latest.add(latest.add((), one, jnp.arange(2)), one, jnp.arange(2, 4))
        >>> state.steps.action.shape, state.carry.shape
        ((5, 4), (4,))
    """
    del columns
    if not isinstance(state, types.Unroll):
        return unroll
    return beside(state, unroll)


def beside(first: types.Unroll, second: types.Unroll) -> types.Unroll:
    """Puts the columns of two unrolls of equal length beside each other.

    Args:
        first: unroll [T + 1, N].
        second: unroll [T + 1, M].

    Returns:
        Unroll [T + 1, N + M].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.replay import latest
        >>> one = types.Unroll(types.Step((), jnp.zeros((5, 2)), (), ()), jnp.zeros(2))  # the actions of an unroll
        >>> latest.beside(one, one).steps.action.shape
        (5, 4)
    """
    steps = jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), first.steps, second.steps)
    return types.Unroll(steps, jax.tree.map(lambda x, y: jnp.concatenate([x, y]), first.carry, second.carry))


def sample(state: types.Unroll, key: Array, progress: Array) -> types.Sample:
    """Returns the newest unrolls whole.

    Args:
        state: unroll [T + 1, N].
        key: typed key [], not used.
        progress: f32 [], not used.

    Returns:
        `types.Sample` of N sequences with weights 1.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.replay import latest
        >>> one = types.Unroll(types.Step((), jnp.zeros((5, 2)), (), jnp.zeros((5, 2), jnp.int32)), ())
        >>> print(latest.sample(one, jax.random.key(0), 0.5).weights)
        [1. 1.]
    """
    del key, progress
    return types.Sample(state, (), jnp.ones(state.steps.version.shape[1], jnp.float32))


def _make_latest(config: replay.LatestConfig, windows: replay.Windows, **sizes: Any) -> replay.Replay:
    """Makes `latest`, which has no settings and returns whole unrolls."""
    del config, windows, sizes
    return make()


LATEST = replay.Kind("latest", replay.LatestConfig, _make_latest, keeps_rows=False)
