"""The interface of a replay, and the settings of each kind."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxrl_dist import types
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree


@dataclasses.dataclass(frozen=True)
class LatestConfig:
    """Settings of on-policy learning: none, since each unroll is learned from once."""


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
    storage: str = setting(
        "device",
        "Where observations are kept: on the learner's devices, or compressed in the host's memory (sebulba).",
        choices=("device", "host"),
    )
    prefetch: int = setting(
        1,
        "Batches drawn ahead if observations are on the host, so that they are read while the learner learns; "
        "priorities are then one update old.",
        low=0,
        high=1,
    )


@dataclasses.dataclass(frozen=True)
class PrioritisedConfig(UniformConfig):
    """Settings of the ring that is sampled in proportion to priorities."""

    priority_exponent: float = setting(
        0.6,
        "Power of the error that is an item's priority (α); 0 samples uniformly.",
        low=0.0,
        high=1.0,
        source="Schaul et al. 2016, table 3 (proportional: .6)",
    )
    importance_exponent: float = setting(
        0.4,
        "Power of the importance weights at the start (β); 1 corrects fully, 0 not at all.",
        low=0.0,
        high=1.0,
        source="Schaul et al. 2016, table 3 (proportional: .4)",
    )
    importance_exponent_end: float = setting(
        1.0,
        "Power of the importance weights at the end, approached linearly.",
        low=0.0,
        high=1.0,
        source="Schaul et al. 2016, table 3 (proportional: to 1)",
    )
    smallest_error: float = setting(
        1e-6,
        "Added to every error, so that every item can be drawn again (ε).",
        above=0.0,
        source="Schaul et al. 2016, section 3.3 (a small positive constant)",
    )


@dataclasses.dataclass(frozen=True)
class MixedConfig:
    """Settings of on-policy learning beside a ring of older unrolls."""

    capacity: int = setting(
        204_800,
        "Rows kept, over all environments and devices (10,240 unrolls of 20).",
        low=1,
        source="this project, about the 10,000 unrolls of Espeholt et al. 2018",
    )
    fraction: float = setting(
        0.5,
        "Share of a batch that is drawn from the replay; the rest is new.",
        above=0.0,
        high=0.9375,
        source="Espeholt et al. 2018, section 5.2.2",
    )


class HostStorage(NamedTuple):
    """Sizes of a storage on the host.

    Attributes:
        length: rows of a window.
        capacity: rows over all columns.
        prefetch: batches drawn ahead.
    """

    length: int
    capacity: int
    prefetch: int


class Replay(NamedTuple):
    """Pure functions of one shard.

    Attributes:
        min_rows: rows that columns need on the average before `sample`; 0 samples at once.
        updates: updates per inserted unroll, as (numerator, denominator).
        init: (`types.Step` of the shapes and dtypes of a row of one column, as `unroll.step_struct` gives it; carry of
            shapes [B, ...]) -> state, leaves [B, ...].
        add: (state, unroll [T + 1, N], columns) -> state. `columns` i32 [N] are the indices of the unroll's columns
            among the B; if one comes twice, the second has the later rows. None means all B in their order, which is
            faster; then no call may name columns, as all must have equally many rows.
        add_again: `add` for an update that is repeated from a state that already holds the rows of its unrolls.
        sample: (state, key, progress f32 []) -> `types.Sample`.
        update: (state, indices, errors [N]) -> state; `errors` are the priorities that the loss returns.
        keeps_rows: whether rows outlive the iteration that added them; then each unroll of a column must begin where
            the one before ended.
        choose: (state, key, progress) -> which windows `sample` returns, if no update changes that: then the windows of
            all updates of an iteration are chosen at once. None where priorities decide.
        read: (state, windows) -> `types.Sample` of what `choose` returned.
        host: sizes of the storage if the layout keeps observations on the host, so that unrolls and samples have none;
            None if the state holds them.
    """

    min_rows: int
    updates: tuple[int, int]
    init: Callable[..., Any]
    add: Callable[..., Any]
    add_again: Callable[..., Any]
    sample: Callable[..., types.Sample]
    update: Callable[..., Any]
    keeps_rows: bool
    choose: Callable[..., Any] | None = None
    read: Callable[..., types.Sample] | None = None
    host: HostStorage | None = None

    def __repr__(self) -> str:
        return types.short_repr(self)


class Windows(NamedTuple):
    """Describes the windows that a replay returns.

    Attributes:
        context: rows before the taught ones.
        taught: taught rows, at least 1 in a ring.
        lookahead: rows after them.
        first_carry: (batch_size) -> the carry that every window starts from; None if each starts from the acting state
            before its first row, so that windows begin only where unrolls do.
        first_error: (`types.Unroll` [L, N] without observations and carry) -> f32 [N], the error of new windows that
            were not learned from yet; None gives them the largest priority so far.

    Example:
        >>> from jaxrl_dist import replay
        >>> replay.Windows(context=3, taught=1, lookahead=5, first_carry=lambda batch_size: ()).length
        9
    """

    context: int
    taught: int
    lookahead: int
    first_carry: Callable[[int], ArrayTree] | None
    first_error: Callable[[types.Unroll], Array] | None = None

    @property
    def length(self) -> int:
        """Rows of a window."""
        return self.context + self.taught + self.lookahead


class Kind(NamedTuple):
    """Describes a replay before it is made.

    Attributes:
        name: name of the kind.
        config: dataclass of its settings, `--replay.*`.
        make: (config, `Windows`, num_columns, num_devices, unroll_length, axis) -> `Replay`, one shard.
        keeps_rows: whether rows are kept for later updates.
    """

    name: str
    config: type
    make: Callable[..., Replay]
    keeps_rows: bool
