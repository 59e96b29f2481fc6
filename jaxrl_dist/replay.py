"""Replay as pure state on one device: `latest` returns the newest unroll whole, `uniform` draws windows of a ring.

The ring is stored column by column, [B, C, ...], with a write head per column, so that actors that finish at different
times never join different trajectories, and a window is one contiguous read.
"""

import dataclasses
import fractions
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import types
from jaxrl_dist.config import UsageError, setting
from jaxrl_dist.types import Array, ArrayTree

_FEW_COLUMNS = 256


@dataclasses.dataclass(frozen=True)
class LatestConfig:
    """Settings of on-policy learning: there are none, each unroll is learned from once."""


@dataclasses.dataclass(frozen=True)
class UniformConfig:
    """Settings of the ring that is sampled uniformly."""

    capacity: int = setting(
        1_000_000, "Rows kept, over all environments and devices.", low=1, source="Mnih et al. 2015, extended table 1"
    )
    min_size: int = setting(
        50_000, "Rows needed before learning starts.", low=1, source="Mnih et al. 2015, extended table 1"
    )
    batch_size: int = setting(
        32, "Windows per update, over all devices.", low=1, source="Mnih et al. 2015, extended table 1"
    )
    samples_per_insert: float = setting(
        8.0,
        "Taught rows per inserted row (32 rows every 4 steps are 8).",
        above=0.0,
        source="Mnih et al. 2015, extended table 1 (update frequency 4)",
    )


class Replay(NamedTuple):
    """Pure functions of one shard.

    Attributes:
        min_rows: rows that every column needs before `sample`; 0 samples at once.
        updates: (numerator, denominator) of updates per inserted unroll.
        init: (step_spec, carry_spec) -> state, leaves [B, ...].
        add: (state, unroll [T + 1, N], columns i32 [N]) -> state; `columns` says which of the B each is, and a column
            that comes twice brings the later rows second.
        sample: (state, key) -> `types.Sample`.
        update: (state, indices, priorities [N]) -> state.
    """

    min_rows: int
    updates: tuple[int, int]
    init: Callable[..., Any]
    add: Callable[..., Any]
    sample: Callable[..., types.Sample]
    update: Callable[..., Any]


class RingState(NamedTuple):
    """Rows [B, C, ...], and per column the next row to write and the number of rows filled, i32 [B]."""

    rows: types.Step
    head: Array
    filled: Array


def latest() -> Replay:
    """Makes the replay of on-policy learning; its state exists only between `add` and `update`."""

    def add(state: types.Unroll | tuple[()], unroll: types.Unroll, columns: Array) -> types.Unroll:
        del columns
        if not isinstance(state, types.Unroll):
            return unroll
        steps = jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), state.steps, unroll.steps)
        return types.Unroll(steps, jax.tree.map(lambda x, y: jnp.concatenate([x, y]), state.carry, unroll.carry))

    def sample(state: types.Unroll, key: Array) -> types.Sample:
        del key
        return types.Sample(state, (), jnp.ones(state.steps.version.shape[1], jnp.float32))

    return Replay(
        min_rows=0,
        updates=(1, 1),
        init=lambda step_spec, carry_spec: (),
        add=add,
        sample=sample,
        update=lambda state, indices, priorities: (),
    )


def uniform(
    config: UniformConfig,
    *,
    num_columns: int,
    num_devices: int,
    unroll_length: int,
    context: int,
    taught: int,
    lookahead: int,
    init_carry: Callable[[int], ArrayTree],
) -> Replay:
    """Makes one device's shard of a ring in time.

    Args:
        config: settings, over all devices.
        num_columns: environments over all devices.
        num_devices: shards.
        unroll_length: rows that one `add` writes per column.
        context: rows of a window before its taught ones.
        taught: taught rows of a window.
        lookahead: rows of a window after its taught ones.
        init_carry: (batch_size) -> the carry that a window starts from.

    Raises:
        UsageError: sizes that do not divide, or a window longer than the ring.
    """
    columns = num_columns // num_devices
    rows = config.capacity // num_columns
    length = context + taught + lookahead
    _check_ring(config, num_columns, num_devices, unroll_length, length)
    min_rows = max(length, -(-config.min_size // num_columns))
    ratio = _updates_per_unroll(config, num_columns * unroll_length, taught)
    items = config.batch_size // num_devices

    def init(step_spec: ArrayTree, carry_spec: ArrayTree) -> RingState:
        del carry_spec
        storage = jax.tree.map(lambda s: jnp.zeros((columns, rows, *s.shape), s.dtype), step_spec)
        counts = jnp.zeros(columns, jnp.int32)
        return RingState(storage, counts, counts)

    def add(state: RingState, unroll: types.Unroll, chosen: Array) -> RingState:
        """Writes rows 0 … T − 1; the closing row comes as row 0 of the next unroll."""
        earlier = jnp.tril(chosen[:, None] == chosen[None], -1).sum(-1, dtype=jnp.int32)
        start = (state.head[chosen] + earlier * unroll_length) % rows

        def write(storage: Array, new: Array) -> Array:
            # An unroll divides the ring, so no block wraps.
            numbers = jax.lax.ScatterDimensionNumbers(tuple(range(1, new.ndim)), (0,), (0, 1))
            index = jnp.stack([chosen, start], -1)
            return jax.lax.scatter(
                storage, index, jnp.moveaxis(new[:-1], 0, 1), numbers, mode=jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
            )

        storage = jax.tree.map(write, state.rows, unroll.steps)
        head = state.head.at[chosen].add(unroll_length) % rows
        return RingState(storage, head, jnp.minimum(state.filled.at[chosen].add(unroll_length), rows))

    def sample(state: RingState, key: Array) -> types.Sample:
        windows = jnp.maximum(state.filled - length + 1, 0)
        ends = jnp.cumsum(windows)
        draw = _integers(key, items, jnp.maximum(ends[-1], 1))
        # Loops of small steps cost more on a CPU than comparing with every column, while these are few.
        method = "compare_all" if columns <= _FEW_COLUMNS else "scan"
        column = jnp.searchsorted(ends, draw, side="right", method=method).astype(jnp.int32)
        offset = draw - (ends - windows)[column]
        oldest = (state.head - state.filled)[column]
        start = (oldest + offset) % rows
        steps = jax.tree.map(lambda x: _read(x, column, start, length), state.rows)
        return types.Sample(types.Unroll(steps, init_carry(items)), (), jnp.ones(items, jnp.float32))

    return Replay(min_rows, ratio, init, add, sample, lambda state, indices, priorities: state)


def _integers(key: Array, count: int, bound: Array) -> Array:
    """Draws i32 [count] uniformly from 0 … bound − 1, bound i32 [] positive, from 32 random bits each.

    The upper word of bits × bound: a number's probability is off by less than bound · 2⁻³² of itself (Lemire 2019), and
    `jax.random.randint` draws twice as many bits, which takes longer than all else here.
    """
    bits, bound = jax.random.bits(key, (count,), jnp.uint32), bound.astype(jnp.uint32)
    low, high, bound_low, bound_high = bits & 0xFFFF, bits >> 16, bound & 0xFFFF, bound >> 16
    middle = high * bound_low + (low * bound_low >> 16)
    carried = low * bound_high + (middle & 0xFFFF)
    return (high * bound_high + (middle >> 16) + (carried >> 16)).astype(jnp.int32)


def _read(storage: Array, column: Array, start: Array, length: int) -> Array:
    """Reads windows [L, N, ...] of rows [B, C, ...]; a window may wrap around the end of the ring."""
    index = (start[None] + jnp.arange(length, dtype=jnp.int32)[:, None]) % storage.shape[1]
    return storage[column[None], index]


def _updates_per_unroll(config: UniformConfig, inserted: int, taught: int) -> tuple[int, int]:
    """Returns updates per unroll as a fraction of numbers below 2³⁰, so that the credit fits an i32."""
    exact = fractions.Fraction(str(config.samples_per_insert)) * inserted / (config.batch_size * taught)
    ratio = exact.limit_denominator(1_000_000)
    if not 0 < ratio < 1000:
        one = config.batch_size * taught / inserted
        raise UsageError(
            f"--replay.samples_per_insert={config.samples_per_insert} makes {float(exact):g} updates per unroll of "
            f"{inserted} rows; valid: {one / 1e6:g} to {one * 999:g} (one update: {one:g})"
        )
    return ratio.numerator, ratio.denominator


def _check_ring(config: UniformConfig, num_columns: int, num_devices: int, unroll_length: int, length: int) -> None:
    block = num_columns * unroll_length
    if config.capacity % block or config.capacity < block:
        below = max(config.capacity // block, 1) * block
        raise UsageError(
            f"--replay.capacity={config.capacity} is no multiple of {num_columns} environments × "
            f"{unroll_length} rows per unroll; nearest valid: {below} or {below + block}"
        )
    if config.batch_size % num_devices:
        below = max(config.batch_size // num_devices, 1) * num_devices
        raise UsageError(
            f"--replay.batch_size={config.batch_size} is not divided by {num_devices} devices; "
            f"nearest valid: {below} or {below + num_devices}"
        )
    if length > config.capacity // num_columns:
        raise UsageError(
            f"--replay.capacity={config.capacity} keeps {config.capacity // num_columns} rows per environment, "
            f"fewer than a window of {length}; nearest valid: {-(-length // unroll_length) * block}"
        )
    if config.min_size > config.capacity:
        raise UsageError(
            f"--replay.min_size={config.min_size} is larger than --replay.capacity={config.capacity}: "
            f"learning would never start; nearest valid: {config.capacity}"
        )
