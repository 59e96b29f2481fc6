"""The ring: one device's shard of a replay that is sampled uniformly or by priority, in windows of rows.

It is stored column by column, [B, C, ...], with a write head per column. So a window is one contiguous read, and actors
that finish at different times never mix their trajectories. Windows begin at every row or, if they need the acting
state, at every unroll.
"""

import fractions
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import types
from jaxrl_dist.errors import UsageError, check_divided, given, nearest_multiples
from jaxrl_dist.numeric import permutations, vectors
from jaxrl_dist.replay import HostStorage, Kind, PrioritisedConfig, Replay, UniformConfig, Windows, sum_tree
from jaxrl_dist.types import Array, ArrayTree

_FEW_COLUMNS = 256
_TINY = 1e-30
_MOST_ROWS = 2**30


class RingState(NamedTuple):
    """Contents of a shard.

    Attributes:
        rows: [B, C, ...].
        carry: the acting state before each unroll, [B, C / T, ...]; `()` if windows need none.
        head: i32 [B], rows written so far, modulo `_Shard.span`, a whole number of laps; the next row is written at its
            remainder by C.
        filled: i32 [B], rows that have been written, at most C.
        priorities: `Priorities`; `()` if windows are drawn uniformly.
    """

    rows: types.Step
    carry: ArrayTree
    head: Array
    filled: Array
    priorities: ArrayTree


class Priorities(NamedTuple):
    """Priorities of the windows of a shard.

    Attributes:
        tree: of each window by the place where it begins, 0 without a window; leaves f32 [B, P].
        largest: f32 [B], the largest so far, the same for every column: of this shard, and of the others up to the
            update before.
    """

    tree: sum_tree.Tree
    largest: Array


class Drawn(NamedTuple):
    """The windows of a sample.

    Attributes:
        column: i32 [N].
        start: i32 [N], first row.
        head: i32 [N], the column's `RingState.head` when it was drawn.
        largest: f32 [N], the largest priority so far of all shards, the same for every window; `()` without priorities.
    """

    column: Array
    start: Array
    head: Array
    largest: ArrayTree


class _Shard(NamedTuple):
    """Settings and sizes of a shard.

    Attributes:
        config: settings, over all devices.
        windows: describes the windows.
        axis: reduces over the shards.
        columns: B.
        rows: C.
        unroll_length: T.
        items: N, windows of a sample.
    """

    config: UniformConfig
    windows: Windows
    axis: types.Axis
    columns: int
    rows: int
    unroll_length: int
    items: int

    @property
    def stride(self) -> int:
        """The number of rows from one place where a window may begin to the next."""
        return 1 if self.windows.first_carry else self.unroll_length

    @property
    def places(self) -> int:
        """The number of places in a column where a window may begin."""
        return self.rows // self.stride

    @property
    def span(self) -> int:
        """The number of rows after which a head begins again at 0: as many laps as fit an i32."""
        return self.rows * max(_MOST_ROWS // self.rows, 1)

    @property
    def prioritised(self) -> bool:
        """Says whether windows have priorities."""
        return isinstance(self.config, PrioritisedConfig)


def make(
    config: UniformConfig,
    windows: Windows,
    *,
    num_columns: int,
    num_devices: int,
    unroll_length: int,
    axis: types.Axis,
) -> Replay:
    """Makes one device's shard.

    Args:
        config: settings, over all devices; a `PrioritisedConfig` keeps priorities.
        windows: describes the windows.
        num_columns: environments over all devices.
        num_devices: shards.
        unroll_length: rows that one `add` writes per column.
        axis: reduces over the shards.

    Returns:
        `Replay`, pure functions of a `RingState`.

    Raises:
        UsageError: sizes do not divide each other, a window is longer than the ring, or nothing reads a setting.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import replay, types
        >>> from jaxrl_dist.replay import ring
        >>> config = replay.UniformConfig(capacity=16, min_size=8, batch_size=3, samples_per_insert=1.0)
        >>> windows = replay.Windows(context=0, taught=1, lookahead=1, first_carry=lambda batch_size: ())
        >>> sizes = {"num_columns": 2, "num_devices": 1, "unroll_length": 4, "axis": types.LOCAL}
        >>> made = ring.make(config, windows, **sizes)
        >>> rows = types.Step((), jnp.zeros((5, 2)), (), ())  # actions [T + 1, B] alone
        >>> state = made.init(types.Step((), jnp.zeros(()), (), ()), ())
        >>> state = made.add(state, types.Unroll(rows, ()), jnp.arange(2))
        >>> sample = made.sample(state, jax.random.key(0), 0.0)
        >>> sample.sequences.steps.action.shape, sample.weights.shape
        ((2, 3), (3,))
    """
    _check(config, num_columns, num_devices, unroll_length, windows.length)
    shard = _Shard(
        config=config,
        windows=windows,
        axis=axis,
        columns=num_columns // num_devices,
        rows=config.capacity // num_columns,
        unroll_length=unroll_length,
        items=config.batch_size // num_devices,
    )
    on_host = config.storage == "host"
    return Replay(
        min_rows=max(windows.length, -(-config.min_size // num_columns)),
        updates=_updates_per_unroll(config, num_columns * unroll_length, windows.taught),
        init=functools.partial(_init, shard),
        add=functools.partial(_add, shard),
        add_again=lambda state, unroll, columns: state,
        sample=functools.partial(_sample, shard),
        update=functools.partial(_update, shard),
        keeps_rows=True,
        choose=None if shard.prioritised else functools.partial(_draw_uniformly, shard),
        read=functools.partial(_read_windows, shard),
        host=HostStorage(windows.length, config.capacity, config.prefetch) if on_host else None,
    )


def _init(shard: _Shard, step_spec: ArrayTree, carry_spec: ArrayTree) -> RingState:
    columns = shard.columns
    storage = jax.tree.map(lambda s: jnp.zeros((columns, shard.rows, *s.shape), s.dtype), step_spec)
    carry: Any = ()
    if not shard.windows.first_carry:
        carry = jax.tree.map(lambda s: jnp.zeros((columns, shard.places, *s.shape[1:]), s.dtype), carry_spec)
    kept = Priorities(sum_tree.init(columns, shard.places), jnp.ones(columns)) if shard.prioritised else ()
    # Two arrays, as one buffer cannot be donated twice.
    return RingState(storage, carry, jnp.zeros(columns, jnp.int32), jnp.zeros(columns, jnp.int32), kept)


def _add(shard: _Shard, state: RingState, unroll: types.Unroll, chosen: Array | None) -> RingState:
    """Writes rows 0 … T − 1; the closing row is written as row 0 of the next unroll."""
    if chosen is None:
        return _add_to_all(shard, state, unroll)
    earlier = jnp.tril(chosen[:, None] == chosen[None], -1).sum(-1, dtype=jnp.int32)
    start = (state.head[chosen] + earlier * shard.unroll_length) % shard.rows

    def write(storage: Array, new: Array, place: Array) -> Array:
        index = jnp.stack([chosen, place], -1)
        if len(chosen) == 1:
            # XLA's CPU compiler makes one block an update of a slice, repeats that for each reader of the ring, and
            # copies the whole ring for it; the same block twice is written by a loop, in place.
            index, new = (jnp.concatenate([x, x]) for x in (index, new))
        # An unroll divides the ring, so no block wraps.
        numbers = jax.lax.ScatterDimensionNumbers(tuple(range(1, new.ndim)), (0,), (0, 1))
        return jax.lax.scatter(storage, index, new, numbers, mode=jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS)

    storage = jax.tree.map(lambda x, new: write(x, jnp.moveaxis(new[:-1], 0, 1), start), state.rows, unroll.steps)
    head = state.head.at[chosen].add(shard.unroll_length) % shard.span
    filled = jnp.minimum(state.filled.at[chosen].add(shard.unroll_length), shard.rows)
    carry = state.carry
    if not shard.windows.first_carry:
        carry = jax.tree.map(lambda x, new: write(x, new[:, None], start // shard.stride), carry, unroll.carry)
    return _entered(shard, RingState(storage, carry, head, filled, state.priorities), chosen, start)


def _add_to_all(shard: _Shard, state: RingState, unroll: types.Unroll) -> RingState:
    """Adds to all columns, whose heads are equal: a leaf is one block, where a scatter may be a loop over columns."""
    start = state.head[0] % shard.rows

    def write(storage: Array, rows: Array, place: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(storage, rows, place, axis=1)

    storage = jax.tree.map(lambda x, new: write(x, jnp.moveaxis(new[:-1], 0, 1), start), state.rows, unroll.steps)
    carry = state.carry
    if not shard.windows.first_carry:
        carry = jax.tree.map(lambda x, new: write(x, new[:, None], start // shard.stride), carry, unroll.carry)
    head = (state.head + shard.unroll_length) % shard.span
    filled = jnp.minimum(state.filled + shard.unroll_length, shard.rows)
    everyone = jnp.arange(shard.columns, dtype=jnp.int32)
    starts = jnp.broadcast_to(start, everyone.shape)
    return _entered(shard, RingState(storage, carry, head, filled, state.priorities), everyone, starts)


def _entered(shard: _Shard, state: RingState, chosen: Array, start: Array) -> RingState:
    """Gives the windows of new unrolls, which begin at rows [N] of columns [N], their priorities."""
    return state._replace(priorities=_enter(shard, state, chosen, start)) if shard.prioritised else state


def _enter(shard: _Shard, state: RingState, chosen: Array, start: Array) -> Priorities:
    """Sets the first priority of windows that an unroll [T] completes, and 0 for those that it overwrites."""
    (tree, largest), windows, stride = state.priorities, shard.windows, shard.stride
    count, overwritten = shard.unroll_length // stride, start // stride
    completed = (overwritten - (-(-windows.length // stride)) + 1) % shard.places
    began = (completed[:, None] + jnp.arange(count)) % shard.places * stride
    column = jnp.broadcast_to(chosen[:, None], began.shape)
    # Rows written since the window began: it is whole if all of its rows are written and none is overwritten.
    age = (state.head[chosen][:, None] - began - 1) % shard.rows + 1
    whole = (age >= windows.length) & (age <= state.filled[chosen][:, None])
    steps = state.rows._replace(timestep=state.rows.timestep._replace(observation=()))
    flat = column.reshape(-1), began.reshape(-1)
    sequences = types.Unroll(jax.tree.map(lambda x: _read(x, *flat, windows.length), steps), ())
    taught = sequences.steps.timestep.step_type[windows.context : windows.context + windows.taught]
    teaches = (taught != types.LAST).any(0).reshape(began.shape)
    value: Any = largest[chosen][:, None]
    if windows.first_error:
        error = windows.first_error(sequences).reshape(began.shape)
        value = jnp.where(jnp.isfinite(error), _priority(shard.config, error), value)
    value = jnp.where(whole & teaches, value, 0.0)
    blocks = [(overwritten, jnp.zeros_like(value)), (completed, value)]
    return Priorities(sum_tree.put_blocks(tree, shard.places, chosen, blocks), largest)


def _sample(shard: _Shard, state: RingState, key: Array, progress: Array) -> types.Sample:
    draw = _draw_by_priority if shard.prioritised else _draw_uniformly
    return _read_windows(shard, state, draw(shard, state, key, progress))


def _read_windows(shard: _Shard, state: RingState, drawn: tuple[Array, Array, ArrayTree, Array]) -> types.Sample:
    """Reads the windows that were drawn: their column, first row, largest priority and weight [N]."""
    column, start, largest, weights = drawn
    steps = jax.tree.map(lambda x: _read(x, column, start, shard.windows.length), state.rows)
    if shard.windows.first_carry:
        carry = shard.windows.first_carry(shard.items)
    else:
        carry = jax.tree.map(lambda x: x[column, start // shard.stride], state.carry)
    return types.Sample(types.Unroll(steps, carry), Drawn(column, start, state.head[column], largest), weights)


def _draw_by_priority(
    shard: _Shard, state: RingState, key: Array, progress: Array
) -> tuple[Array, Array, ArrayTree, Array]:
    """Draws windows in proportion to their priorities; returns column, first row, largest priority and weight [N]."""
    tree, largest = state.priorities
    column, item, priority = sum_tree.draw(tree, sum_tree.stratified(key, shard.items))
    share = priority / jnp.maximum(sum_tree.totals(tree).sum(), _TINY)
    # One reduction over devices serves both: what is waited for is the exchange, not its few numbers.
    negated, largest = shard.axis.max(jnp.stack([-jnp.where(share > 0, share, jnp.inf).min(), largest.max()]))
    weights = importance_weights(shard.config, share, progress, -negated)
    return column, item * shard.stride, jnp.broadcast_to(largest, column.shape), weights


def _draw_uniformly(
    shard: _Shard, state: RingState, key: Array, progress: Array
) -> tuple[Array, Array, ArrayTree, Array]:
    """Draws among all whole windows; returns column, first row, `()` and weight [N]."""
    del progress
    counts = jnp.maximum((state.filled - shard.windows.length) // shard.stride + 1, 0)
    ends = jnp.cumsum(counts)
    number = permutations.integers(key, shard.items, jnp.maximum(ends[-1], 1))
    # With few columns, comparing with each of them is faster on a CPU than a loop of small steps.
    method = "compare_all" if shard.columns <= _FEW_COLUMNS else "scan"
    column = jnp.searchsorted(ends, number, side="right", method=method).astype(jnp.int32)
    offset = number - (ends - counts)[column]
    oldest = (state.head - state.filled)[column]
    return column, (oldest + offset * shard.stride) % shard.rows, (), jnp.ones(shard.items, jnp.float32)


def _update(shard: _Shard, state: RingState, drawn: Drawn, errors: Array) -> RingState:
    if not shard.prioritised:
        return state
    (tree, largest), (column, start, head, of_all) = state.priorities, drawn
    item, rows = start // shard.stride, shard.rows
    # Three kinds of items keep their priority: an item from a shard without any priority is no window, an item that was
    # overwritten since is another window, and a NaN would spoil every later draw.
    overwritten = (start - head) % rows < (state.head[column] - head) % shard.span
    present = sum_tree.get(tree, column, item)
    is_known = (present > 0) & ~overwritten & jnp.isfinite(errors)
    value = jnp.where(is_known, _priority(shard.config, errors), present)
    largest_error = jnp.where(is_known, jnp.abs(errors), 0.0).max()
    largest = jnp.maximum(jnp.maximum(largest, of_all.max()), _priority(shard.config, largest_error))
    return state._replace(priorities=Priorities(sum_tree.put(tree, column, item, value), largest))


def importance_weights(config: Any, share: Array, progress: Array, smallest: Array) -> Array:
    """Weighs items that were drawn with unequal probability: w = (1 / P)^β, divided by the largest w of all shards.

    Every shard draws the same number of items, so P is the item's share of its shard's priorities, divided by the
    number of shards; this number, and the number of all items, cancel.

    Args:
        config: `PrioritisedConfig`.
        share: f32 [N], the priority of each item over the sum of its shard.
        progress: f32 [], share of training, which moves β from its start to its end.
        smallest: f32 [], the smallest positive share of all shards, which has the largest weight.

    Returns:
        f32 [N] in [0, 1]; 0 where the share is 0.

    Source: Schaul et al. 2016, section 3.4.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import replay
        >>> from jaxrl_dist.replay import ring
        >>> config = replay.PrioritisedConfig(importance_exponent=0.0, importance_exponent_end=1.0)
        >>> share = jnp.array([0.125, 0.25, 0.5])
        >>> print(ring.importance_weights(config, share, jnp.float32(0.0), share.min()))
        [1. 1. 1.]
        >>> print(ring.importance_weights(config, share, jnp.float32(1.0), share.min()))
        [1.   0.5  0.25]
    """
    beta = config.importance_exponent + progress * (config.importance_exponent_end - config.importance_exponent)
    return jnp.where(share > 0, (smallest / jnp.maximum(share, _TINY)) ** beta, 0.0)


def _priority(config: Any, errors: Array) -> Array:
    """Turns errors into priorities, (|δ| + ε)^α (Schaul et al. 2016, equation 1)."""
    return (jnp.abs(errors) + config.smallest_error) ** config.priority_exponent


def _read(storage: Array, column: Array, start: Array, length: int) -> Array:
    """Reads windows [L, N, ...] of rows [B, C, ...]; a window may wrap around the end of the ring."""
    index = (start[None] + jnp.arange(length, dtype=jnp.int32)[:, None]) % storage.shape[1]
    # One number per row: a pair would be put together by a kernel of its own.
    return vectors.flat(storage)[column[None] * storage.shape[1] + index]


def _updates_per_unroll(config: UniformConfig, inserted: int, taught: int) -> tuple[int, int]:
    """Returns updates per unroll as a fraction of numbers below 2³⁰, so that the credit fits an i32."""
    if taught < 1:
        raise UsageError(
            f"this agent says taught={taught}: one that learns from a replay teaches 1 row of a window or more"
        )
    exact = fractions.Fraction(str(config.samples_per_insert)) * inserted / (config.batch_size * taught)
    ratio = exact.limit_denominator(1_000_000)
    if not 0 < ratio < 1000:
        one = config.batch_size * taught / inserted
        raise UsageError(
            given("replay.samples_per_insert", config.samples_per_insert),
            f" makes {float(exact):g} updates per unroll of {inserted} rows; valid: {one / 1e6:g} to "
            f"{one * 999:g} (one update: {one:g})",
        )
    return ratio.numerator, ratio.denominator


def _check(config: UniformConfig, num_columns: int, num_devices: int, unroll_length: int, length: int) -> None:
    block = num_columns * unroll_length
    if config.capacity % block or config.capacity < block:
        raise UsageError(
            given("replay.capacity", config.capacity),
            f" is no multiple of {num_columns} environments × {unroll_length} rows per unroll; nearest valid: "
            f"{nearest_multiples(config.capacity, block)}",
        )
    check_divided("replay.batch_size", config.batch_size, num_devices)
    if length > config.capacity // num_columns:
        raise UsageError(
            given("replay.capacity", config.capacity),
            f" keeps {config.capacity // num_columns} rows per environment, fewer than a window of {length}; nearest "
            f"valid: {-(-length // unroll_length) * block}",
        )
    if config.min_size > config.capacity:
        raise UsageError(
            given("replay.min_size", config.min_size),
            " is larger than ",
            given("replay.capacity", config.capacity),
            f": learning would never start; nearest valid: {config.capacity}",
        )
    if config.storage == "device" and config.prefetch != UniformConfig.prefetch:
        raise UsageError(
            given("replay.prefetch", config.prefetch),
            ": nothing reads it; leave it out, or give ",
            given("replay.storage", "host"),
        )


UNIFORM = Kind("uniform", UniformConfig, make, keeps_rows=True)
PRIORITISED = Kind("prioritised", PrioritisedConfig, make, keeps_rows=True)
