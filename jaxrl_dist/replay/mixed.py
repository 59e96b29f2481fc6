"""The mixed replay: the newest unroll whole, beside unrolls drawn uniformly from a ring of earlier ones."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import replay, types
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.replay import latest, ring
from jaxrl_dist.types import Array


class Between(NamedTuple):
    """State between `add` and `update`; at other times the state is the ring alone.

    Attributes:
        newest: unrolls [T + 1, N].
        ring: ring that already holds these unrolls.
        added: i32 [B], the number of these unrolls in each column.
    """

    newest: types.Unroll
    ring: ring.RingState
    added: Array


def make(
    config: replay.MixedConfig,
    *,
    num_columns: int,
    num_devices: int,
    unroll_length: int,
    axis: types.Axis,
) -> replay.Replay:
    """Makes one device's shard, for an agent that takes whole unrolls and learns once from each batch.

    An unroll from the ring starts with its own acting state, and is closed by the row that opened the next unroll; so
    the newest unroll cannot be drawn from the ring as well. While the ring holds none, LAST rows, which teach nothing,
    take their place. A sample marks the newest unroll as fresh, so that running statistics count each row once.

    Args:
        config: settings, over all devices.
        num_columns: environments over all devices.
        num_devices: shards.
        unroll_length: T.
        axis: reduces over the shards.

    Raises:
        UsageError: sizes do not divide each other.

    Source: Espeholt et al. 2018, section 5.2.2.

    Example:
        >>> from jaxrl_dist import replay, types
        >>> from jaxrl_dist.replay import mixed
        >>> config = replay.MixedConfig(capacity=64, fraction=0.5)
        >>> made = mixed.make(config, num_columns=2, num_devices=1, unroll_length=4, axis=types.LOCAL)
        >>> made.min_rows, made.updates, made.keeps_rows
        (0, (1, 1), True)
    """
    replayed = _replayed(config.fraction, num_columns // num_devices) * num_devices
    uniform = replay.UniformConfig(
        capacity=config.capacity, min_size=1, batch_size=replayed, samples_per_insert=replayed / num_columns
    )
    rows = ring.make(
        uniform,
        replay.Windows(context=0, taught=unroll_length, lookahead=1, first_carry=None),
        num_columns=num_columns,
        num_devices=num_devices,
        unroll_length=unroll_length,
        axis=axis,
    )
    return rows._replace(
        min_rows=0,
        updates=(1, 1),
        add=functools.partial(_add, rows),
        add_again=_add_again,
        sample=functools.partial(_sample, rows, unroll_length),
        update=lambda state, indices, errors: state.ring,
    )


def _add(rows: replay.Replay, state: ring.RingState | Between, unroll: types.Unroll, columns: Array | None) -> Between:
    added = _add_again(state, unroll, columns)
    return added._replace(ring=rows.add(added.ring, unroll, columns))


def _add_again(state: ring.RingState | Between, unroll: types.Unroll, columns: Array | None) -> Between:
    before, kept, added = ((), state, jnp.zeros_like(state.head)) if isinstance(state, ring.RingState) else state
    added = added + 1 if columns is None else added.at[columns].add(1)
    return Between(latest.add(before, unroll, columns), kept, added)


def _sample(rows: replay.Replay, unroll_length: int, state: Between, key: Array, progress: Array) -> types.Sample:
    older = _without_newest(state, unroll_length)
    old = _blank_unless(_holds_any(older, unroll_length), rows.sample(older, key, progress).sequences)
    return latest.sample(latest.beside(state.newest, old), key, progress)._replace(fresh=state.newest)


def _without_newest(state: Between, unroll_length: int) -> ring.RingState:
    """Returns the ring without the newest unrolls, but for each column's last, which is not closed and never drawn."""
    held, closed = state.ring, jnp.maximum(state.added - 1, 0) * unroll_length
    rows = jax.tree.leaves(held.rows)[0].shape[1]
    return held._replace(head=(held.head - closed) % rows, filled=jnp.maximum(held.filled - closed, 0))


def _holds_any(state: ring.RingState, unroll_length: int) -> Array:
    """Says whether there is a window to draw: an unroll and the row that closes it."""
    return (state.filled > unroll_length).any()


def _blank_unless(present: Array, unroll: types.Unroll) -> types.Unroll:
    """Makes every row LAST unless `present`, so that none is learned from."""
    timestep = unroll.steps.timestep
    step_type = jnp.where(present, timestep.step_type, jnp.full_like(timestep.step_type, types.LAST))
    return unroll._replace(steps=unroll.steps._replace(timestep=timestep._replace(step_type=step_type)))


def _replayed(fraction: float, columns: int) -> int:
    """Returns the number of unrolls to draw beside `columns` new ones, to make up a fraction of the batch."""
    exact = columns * fraction / (1.0 - fraction)
    # A fraction of six digits, as the message gives it, is near enough.
    if round(exact) < 1 or abs(round(exact) / (round(exact) + columns) - fraction) > 1e-6:
        valid = [n / (n + columns) for n in range(1, 15 * columns + 1)]
        nearest = min(valid, key=lambda share: abs(share - fraction))
        raise UsageError(
            given("replay.fraction", fraction),
            f" needs {exact:g} unrolls of the replay beside {columns} new ones per device; nearest valid: "
            f"{nearest:.6g} ({round(columns * nearest / (1 - nearest))} unrolls)",
        )
    return round(exact)


def _make_mixed(config: replay.MixedConfig, windows: replay.Windows, **sizes: Any) -> replay.Replay:
    """Makes the replay; its windows are whole unrolls, so `windows` is not used."""
    del windows
    return make(config, **sizes)


MIXED = replay.Kind("mixed", replay.MixedConfig, _make_mixed, keeps_rows=True)
