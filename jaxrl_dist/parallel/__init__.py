"""Layouts: how data moves between environments, replay and learners; no layout names an agent."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist.parallel import unroll
from jaxrl_dist.types import Array, ArrayTree, Axis


class Metrics(NamedTuple):
    """Sums over iterations, per seed, leaves [S, ...].

    Attributes:
        episodes: that ended, and rows.
        updates: number of them.
        learner: the updates' own metrics.
        layout: the layout's own, by name; `unplayed_steps` are those of its iterations that no environment made.
    """

    episodes: unroll.EpisodeSums
    updates: Array
    learner: dict[str, Array]
    layout: dict[str, Array]


class Interrupted(Exception):  # noqa: N818
    """Iterations ended early, at a stop that was asked for or at a fault; what was finished is kept.

    Attributes:
        state: after the last finished iteration.
        metrics: of the finished ones.
        iterations: how many of them.
        fault: what went wrong, None at a stop.
    """

    def __init__(self, state: Any, metrics: Metrics, iterations: int, fault: BaseException | None) -> None:
        super().__init__(iterations)
        self.state, self.metrics, self.iterations, self.fault = state, metrics, iterations, fault


class BadRow(NamedTuple):
    """Where the first number came from that is not finite or out of range: field, and indices of seed, column, row."""

    field: str
    seed: int
    column: int
    row: int


class Failure(NamedTuple):
    """An iteration that went wrong.

    Attributes:
        iteration: its index.
        saved: tree from which it can be run again.
        source: the row it came from, None where all rows were sound.
    """

    iteration: int
    saved: Any
    source: BadRow | None


def with_learner(state: Any, learner: Any) -> Any:
    """Returns a state with another `LearnerState`, leaves [S, ...]."""
    return state._replace(learner=learner)


def no_summary(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns nothing: there is nothing to say of the whole run."""
    del sums
    return {}


class Layout(NamedTuple):
    """A layout's programs over a mesh.

    Attributes:
        mesh: learner's devices.
        rows_per_iteration: environment steps of one iteration and seed, over all devices.
        init: (keys [S]) -> state; its `learner` is a `LearnerState` with leaves [S, ...].
        template: (keys [S]) -> saved state of `jax.ShapeDtypeStruct` with shardings, for restoring.
        run: (state, iteration, num_iterations, total_iterations, stopped) -> (state, `Metrics` of these iterations).
            The state that is passed is used up. `stopped`, () -> bool, is polled where iterations can be interrupted;
            raises `Interrupted` then, and at a fault. No iterations only compile.
        snapshot: (state) -> what a checkpoint holds of it; `run` takes either.
        kept_failure: () -> the `Failure` that `run` kept of its last iterations, None where it kept none: then these
            are run again from the last checkpoint to find it.
        find_source: (state before an iteration, iteration, total_iterations) -> `BadRow`, or None.
        failure_template: (keys [S]) -> `Failure.saved` of `jax.ShapeDtypeStruct`.
        run_failure: (saved, iteration, total_iterations) -> (`LearnerState`, `Metrics`).
        report: (sums by path, seconds) -> what a training record says of the layout itself.
        placement: lines that say what runs where.
        close: ends threads and frees environments.
        events: () -> what the event log gets of the iterations since the last call (`events.encode`).
        num_events: (state, iteration) -> events of a run up to a saved state.
        start_from: (state of `init`, `LearnerState`) -> the state that starts from this one.
        roll_back: (saved state, updates) -> saved state with the learner's version of so many updates, if it was kept;
            None where the layout keeps none.
        follow: (workers by event) makes a run repeat a log's order; None where order is not a matter of the clock.
        program: the jitted program behind `run`, and its arguments by `run_arguments`, for lowering and counting.
        summary: (sums of `Metrics.layout` over the whole run, by path) -> what `summary.json` says of the layout.
    """

    mesh: Mesh
    rows_per_iteration: int
    init: Callable[[Array], Any]
    template: Callable[[Array], Any]
    run: Callable[..., tuple[Any, Metrics]]
    snapshot: Callable[[Any], Any]
    kept_failure: Callable[[], Failure | None]
    find_source: Callable[[Any, int, int], BadRow | None]
    failure_template: Callable[[Array], Any]
    run_failure: Callable[..., tuple[Any, Metrics]]
    report: Callable[..., dict[str, Any]]
    placement: tuple[str, ...]
    close: Callable[[], None]
    program: Any
    run_arguments: Callable[..., tuple[Any, ...]]
    events: Callable[[], bytes] = bytes
    num_events: Callable[[Any, int], int] = lambda state, iteration: 0
    start_from: Callable[[Any, Any], Any] = with_learner
    roll_back: Callable[[Any, int], Any] | None = None
    follow: Callable[[Sequence[int]], None] | None = None
    summary: Callable[[Mapping[str, np.ndarray]], dict[str, Any]] = no_summary


class LayoutSpec(NamedTuple):
    """Describes a layout before a run is laid out.

    Attributes:
        name: as in `--layout`.
        summary: one line for `--list`.
        config: dataclass of its settings, `--layout.*`.
        make: (config, agent, replay, learner, environment, num_envs, mesh) -> `Layout`.
        serves: where environments may run, `device` or `host`; the first natively.
        seeds_together: whether several seeds train in one program.
        axis: by which its learner reduces over devices.
        choose_devices: (settings, devices, keeps_rows) -> devices to learn on; `keeps_rows` is that of the replay.
        replay_shards: (settings, learner's devices) -> shards of a replay.
    """

    name: str
    summary: str
    config: type
    make: Callable[..., Layout]
    serves: tuple[str, ...]
    seeds_together: bool
    axis: Axis
    choose_devices: Callable[..., list[jax.Device]]
    replay_shards: Callable[..., int]


def never() -> bool:
    """Returns False: nobody asks for a stop."""
    return False


def all_finite(tree: ArrayTree) -> Array:
    """Returns bool [], whether every real number in a tree is finite."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in leaves]).all()
