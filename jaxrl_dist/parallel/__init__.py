"""Layouts: how data moves between environments, replay and learners; no layout names an agent."""

import abc
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import agents, errors
from jaxrl_dist import replay as replays
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import unroll
from jaxrl_dist.types import Array, ArrayTree, Axis


def never() -> bool:
    """Returns False: no stop is asked for."""
    return False


class Metrics(NamedTuple):
    """Sums over iterations, per seed, leaves [S, ...].

    Attributes:
        episodes: of the episodes that ended, and of the rows.
        updates: i32 [S], number of updates.
        learner: name -> f32 [S], the updates' own metrics.
        layout: name -> [S, ...], measurements of the layout itself; `unplayed_steps` counts the steps of these
            iterations that no environment made.
    """

    episodes: unroll.EpisodeSums
    updates: Array
    learner: dict[str, Array]
    layout: dict[str, Array]


class Interrupted(Exception):  # noqa: N818
    """Iterations ended early, since a stop was asked for or something failed; the finished iterations count.

    Attributes:
        state: after the last finished iteration.
        metrics: sums over the finished iterations.
        iterations: number of finished iterations.
        fault: the exception, None at a stop.
    """

    def __init__(self, state: Any, metrics: Metrics, iterations: int, fault: BaseException | None) -> None:
        super().__init__(iterations)
        self.state, self.metrics, self.iterations, self.fault = state, metrics, iterations, fault


class Stop(Exception):  # noqa: N818
    """A stop was asked for; ends a layout's wait for its threads."""


class NotRestedError(errors.EnvironmentFault):
    """Environments were lost while they were saved; others took their place, and can be saved once they have played."""


class BadRow(NamedTuple):
    """Place of the first number that is not finite or out of range.

    Attributes:
        field: of the timestep.
        seed: index.
        column: index.
        row: index.
    """

    field: str
    seed: int
    column: int
    row: int


class Failure(NamedTuple):
    """An iteration that went wrong.

    Attributes:
        iteration: its index.
        saved: tree from which it can be run again.
        source: the row that caused it, None where none did.
        looked: whether rows were looked at.
    """

    iteration: int
    saved: Any
    source: BadRow | None
    looked: bool = True


def _cannot_rebuild() -> tuple[agents.Agent, Any]:
    """Stands in for parts that were not made of settings, and cannot be made elsewhere."""
    raise ValueError("these parts were not made of settings, so no other process can make them")


class LayoutParts(NamedTuple):
    """The parts that a layout is made of.

    Attributes:
        config: the layout's settings.
        agent: acts and defines the loss.
        replay: one shard of the replay.
        learner: built with the layout's `LayoutSpec.axis`.
        environment: `envs.Environment`, or `envs.HostTask` for a layout that plays on the host.
        num_envs: environments per seed, over all devices and threads.
        mesh: devices of the learner, from `mesh.make`.
        rebuild: () -> agent and environment once more; it can be pickled, for a process on another machine.
        devices: those of the run, on which actors and workers may be; empty for all that there are.
    """

    config: Any
    agent: agents.Agent
    replay: replays.Replay
    learner: learners.Learner
    environment: Any
    num_envs: int
    mesh: Mesh
    rebuild: Callable[[], tuple[agents.Agent, Any]] = _cannot_rebuild
    devices: Sequence[jax.Device] = ()

    @property
    def num_agents(self) -> int:
        """The number of agents in each environment, A."""
        return int(self.environment.spec.num_agents)

    @property
    def num_columns(self) -> int:
        """The number of columns of rows, A for each environment."""
        return self.num_envs * self.num_agents


def check_goes_on(parts: LayoutParts, layout: str) -> None:
    """Checks that an agent's environments need not begin anew with every unroll, in a layout where they go on.

    Args:
        parts: of the run.
        layout: name of the layout.

    Raises:
        UsageError: they must.

    Example:
        >>> from types import SimpleNamespace
        >>> import jaxrl_dist
        >>> from jaxrl_dist import errors, parallel
        >>> parts = SimpleNamespace(agent=jaxrl_dist.make("es", "toy:walk").agent)
        >>> try:
        ...     parallel.check_goes_on(parts, "sebulba")
        ... except errors.UsageError as error:
        ...     print(str(error).rpartition("; ")[2])
        valid: layout=anakin
    """
    if parts.agent.fresh_episodes:
        raise errors.UsageError(
            errors.given("layout", layout),
            ": this system's environments begin anew with every unroll; valid: ",
            errors.given("layout", "anakin"),
        )


def check_unread(config: Any, names: Collection[str], *reason: errors.Worded | str) -> None:
    """Checks that settings of a layout which nothing reads are left as they are.

    Args:
        config: settings of the layout.
        names: of the fields that nothing reads.
        reason: end of the message.

    Raises:
        UsageError: one of them has another value than its default.

    Example:
        >>> from jaxrl_dist import parallel
        >>> from jaxrl_dist.parallel import anakin
        >>> parallel.check_unread(anakin.Config(num_devices=2), ["num_devices"], ": leave it out")
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: layout.num_devices=2: leave it out
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in names and value != field.default:
            raise errors.UsageError(errors.given(f"layout.{field.name}", value), *reason)


class Diagnosis(NamedTuple):
    """Finds out what went wrong in an iteration.

    Attributes:
        template: (keys [S]) -> `Failure.saved` of `jax.ShapeDtypeStruct`.
        run: (`Failure.saved`, iteration, total_iterations) -> (`LearnerState`, `Metrics`): runs it again.
        kept: () -> the `Failure` that `Layout.run` kept of its last iterations; None if it kept none, and the
            iterations since the last checkpoint must be run again to find it.
        find_source: (state before an iteration, iteration, total_iterations) -> `BadRow`, None if all rows are sound;
            None itself where a layout cannot tell.
    """

    template: Callable[[Array], Any]
    run: Callable[[Any, int, int], tuple[Any, Metrics]]
    kept: Callable[[], Failure | None] = lambda: None
    find_source: Callable[[Any, int, int], BadRow | None] | None = None


class EventLog(NamedTuple):
    """Records and repeats the order of events, for a layout where that order depends on the clock.

    Attributes:
        take: () -> the events since the last call, as `events.encode` writes them.
        count: (saved state) -> number of the run's events before it.
        follow: (worker of each event) makes the next run repeat this order.
        roll_back: (saved state, updates) -> saved state whose learner is the kept version after so many updates;
            raises a `UsageError` that names the kept versions if there is no such one.
    """

    take: Callable[[], bytes]
    count: Callable[[Any], int]
    follow: Callable[[Sequence[int]], None]
    roll_back: Callable[[Any, int], Any]


class Layout(abc.ABC):
    """A layout's programs over a mesh, and its threads, if it has any, which start in `run`.

    Attributes:
        mesh: learner's devices.
        rows_per_iteration: environment steps of one iteration and seed, over all devices.
        program: the jitted program behind `run`, for lowering and counting; `run_arguments` returns its arguments.
        diagnosis: of an iteration that went wrong.
        placement: lines that say what runs where.
        events: None where the order of events does not depend on the clock.
    """

    mesh: Mesh
    rows_per_iteration: int
    program: Any
    diagnosis: Diagnosis
    placement: tuple[str, ...] = ()
    events: EventLog | None = None

    @abc.abstractmethod
    def init(self, keys: Array) -> Any:
        """Returns the first state, of typed keys [S]; its `learner` is a `LearnerState` with leaves [S, ...]."""

    @abc.abstractmethod
    def template(self, keys: Array) -> Any:
        """Returns a saved state of `jax.ShapeDtypeStruct` with shardings, for restoring."""

    @abc.abstractmethod
    def run(
        self, state: Any, iteration: int, count: int, total: int, stopped: Callable[[], bool] = never
    ) -> tuple[Any, Metrics]:
        """Runs iterations.

        Args:
            state: from `init`, `snapshot` or the last call; not to be used again.
            iteration: index of the first iteration.
            count: number of iterations; 0 only compiles.
            total: iterations of the whole run, for schedules.
            stopped: called where iterations can be interrupted; True interrupts them.

        Returns:
            The state after them, and their sums.

        Raises:
            Interrupted: at a stop, and at a fault.
        """

    def copies_state(self, num_seeds: int) -> bool:
        """Says whether each call of `run` copies the states of so many seeds, so that few long calls are faster."""
        del num_seeds
        return False

    def run_again(self, saved: Any, iteration: int, total: int) -> tuple[learners.LearnerState, Metrics]:
        """Runs an iteration that went wrong again, from a saved state; see `Diagnosis.run`."""
        state, metrics = self.run(saved, iteration, 1, total)
        return state.learner, metrics

    @abc.abstractmethod
    def run_arguments(self, state: Any, iteration: int, count: int, total: int) -> tuple[Any, ...]:
        """Returns the arguments of `program`, of `jax.ShapeDtypeStruct` if the state is."""

    def snapshot(self, state: Any) -> Any:
        """Returns a state as a checkpoint holds it."""
        return state

    def start_from(self, state: Any, learner: learners.LearnerState) -> Any:
        """Returns the state of `init` that starts from another `LearnerState`, leaves [S, ...]."""
        return state._replace(learner=learner)

    def report(
        self, sums: Mapping[str, np.ndarray], recent: Mapping[str, np.ndarray], seconds: float
    ) -> dict[str, Any]:
        """Returns the layout's own part of a training record.

        Args:
            sums: of `Metrics.layout` by path, since the last record.
            recent: the same sums over the last `seconds`, of which rates are made.
            seconds: wall time that `recent` covers.
        """
        del sums, recent, seconds
        return {}

    def summary(self, sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the layout's own part of `summary.json`, from the sums over the whole run."""
        del sums
        return {}

    def close(self) -> None:  # noqa: B027
        """Ends threads and frees environments."""


def _shard_of_each(settings: Mapping[str, Any], num_devices: int) -> int:
    """Returns the shards of a replay: one for each of the learner's devices."""
    del settings
    return num_devices


class LayoutSpec(NamedTuple):
    """Describes a layout before a run is laid out.

    Attributes:
        name: as in `--layout`.
        summary: one line for `--list`.
        config: dataclass of its settings, `--layout.*`.
        make: (`LayoutParts`) -> `Layout`; raises a `UsageError` for parts that do not fit together.
        serves: where environments may run, `device` or `host`; the first is the layout's own.
        seeds_together: whether several seeds train in one program.
        axis: reduces over the devices of its learner.
        choose_devices: (settings, devices) -> devices to learn on.
        replay_shards: (settings, learner's devices) -> shards of a replay; by default one for each device.
    """

    name: str
    summary: str
    config: type
    make: Callable[[LayoutParts], Layout]
    serves: tuple[str, ...]
    seeds_together: bool
    axis: Axis
    choose_devices: Callable[..., list[jax.Device]]
    replay_shards: Callable[..., int] = _shard_of_each


def all_finite(tree: ArrayTree) -> Array:
    """Returns bool [], whether every real number in a tree is finite.

    Args:
        tree: tree of [...] of any types.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import parallel
        >>> print(parallel.all_finite({"a": jnp.ones(2), "b": jnp.array([1.0, jnp.inf]), "count": jnp.int32(3)}))
        False
    """
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in leaves]).all()
