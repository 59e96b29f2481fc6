"""The learner's side of Sebulba: a tier keeps a replay's observations on devices or host, and learns from them."""

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import parallel, types
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.learning import step as learning_steps
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.sebulba import queue
from jaxrl_dist.types import Array, ArrayTree


class State(NamedTuple):
    """Everything of a run that is not in a thread.

    Attributes:
        learner: `LearnerState`, leaves [1, ...].
        key: typed keys [1], constant.
        actors: where each actor of this process goes on: the closing rows of the last unroll that the learner took;
            in an exact snapshot, the state after all of `pending`, with environments and acting state.
        replay: leaves [1, B, ...].
        pending: in an exact snapshot, for each actor the unrolls that the learner has not taken, and the sums of their
            episodes.
        replay_began: i32 [] in NumPy, the iteration at which the replay was empty.
    """

    learner: learners.LearnerState
    key: Array
    actors: tuple[unrolls.ActorState, ...]
    replay: ArrayTree
    pending: tuple[tuple[tuple[types.Unroll, unrolls.EpisodeSums], ...], ...]
    replay_began: np.ndarray


class Learned(NamedTuple):
    """Results of one iteration.

    Attributes:
        learner: leaves [1, ...]; unchanged by an update that is not sound.
        replay: leaves [1, B, ...].
        sound: bool [1], whether the new learner and its metrics are finite.
        updates: i32 [1], number of updates in this iteration.
        metrics: f32 [1] each, sums over these updates.
    """

    learner: learners.LearnerState
    replay: ArrayTree
    sound: Array
    updates: Array
    metrics: dict[str, Array]


LEARNED: Any = Learned._make((meshes.PER_SEED, meshes.COLUMNS, *(meshes.PER_SEED,) * 3))


class Tier(abc.ABC):
    """Keeps the observations of a replay in one place, and learns from them; of one seed.

    Attributes:
        program: the jitted program of an update; donates the learner and the replay.
        again: the same program to repeat an update: it donates nothing, returns the learner also if it is not finite,
            and takes a replay that already holds the unrolls, unless it is `latest`.
        notes: lines that say what is kept where.
    """

    program: Any
    again: Any
    notes: tuple[str, ...] = ()

    def __init__(self, parts: parallel.LayoutParts, unroll: types.Unroll) -> None:
        """Takes one actor's unroll [T + 1, B], of all processes together, as shapes on the learner's devices."""
        num_unrolls, devices = parts.config.num_actors, parts.mesh.shape["devices"]
        self._mesh, self._schedule = parts.mesh, learning_steps.schedule(parts.replay, parts.config.unroll_length)
        self._columns = np.zeros((num_unrolls, parts.num_columns // num_unrolls // devices), np.int32)
        self._unrolls = (meshes.placed(parts.mesh, meshes.UNROLL, unroll),) * num_unrolls
        init = functools.partial(_init, parts, unrolls.step_struct(unroll.steps))
        self._init = program(init, parts.mesh, (meshes.PER_SEED,), (meshes.PER_SEED, meshes.COLUMNS))

    @abc.abstractmethod
    def init(self, keys: Array) -> tuple[learners.LearnerState, ArrayTree]:
        """Returns the state of the learner and of the replay, of keys [1]."""

    @abc.abstractmethod
    def template(self, keys: Array) -> tuple[learners.LearnerState, ArrayTree]:
        """Returns `init`'s result as `jax.ShapeDtypeStruct` with shardings, and the replay as `saved` returns it."""

    @abc.abstractmethod
    def compile(self, state: State) -> None:
        """Compiles everything; call it once."""

    @abc.abstractmethod
    def learn(
        self, state: State, iteration: int, total: int, unrolled: Sequence[queue.Unrolled]
    ) -> tuple[Learned, tuple[Any, ...] | None]:
        """Runs one iteration; the learner and the replay of the state are donated.

        Returns:
            The results, and the arguments of `again` that repeat the first unsound update, None if all were sound.
        """

    @abc.abstractmethod
    def arguments(self, state: State, iteration: int, total: int) -> tuple[Any, ...]:
        """Returns arguments of `program` and `again`, of arrays and `jax.ShapeDtypeStruct`."""

    def saved(self, replay: ArrayTree) -> ArrayTree:
        """Returns a replay as a checkpoint holds it."""
        return replay

    def check(self, state: State, iteration: int) -> None:  # noqa: B027
        """Raises an error that is to end the run before an iteration takes its unrolls, while all can be saved."""

    def report(self) -> dict[str, Any]:
        """Returns its own measurements, sums as arrays [1], by name."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Ends its threads."""


def program(
    function: Callable[..., Any],
    mesh: Mesh,
    in_specs: tuple[Any, ...],
    out_specs: Any,
    donate: Sequence[int] = (),
    **options: Any,
) -> Any:
    """Makes the program of a function of one device, over the mesh; see `mesh.device_map` and `mesh.program`."""
    return meshes.program(meshes.device_map(function, mesh, in_specs, out_specs), mesh, out_specs, donate, **options)


def _init(parts: parallel.LayoutParts, row: types.Step, key: Array) -> tuple[learners.LearnerState, ArrayTree]:
    width = parts.num_columns // parts.config.num_actors // parts.mesh.shape["devices"]
    carry = jax.eval_shape(lambda: parts.agent.init_carry(width))
    return parts.learner.init(parts.agent.init(run_keys.seed_keys(key).params)), parts.replay.init(row, carry)


def keys_struct() -> Any:
    """Returns the typed keys [1] of a run as `jax.ShapeDtypeStruct`."""
    return jax.eval_shape(lambda: jax.vmap(jax.random.key)(jnp.zeros(1, jnp.uint32)))


def learning_key(key: Array, iteration: Array) -> Array:
    """Returns this device's key for learning in an iteration; call it inside `device_map`."""
    device_key = jax.random.fold_in(run_keys.seed_keys(key).training, jax.lax.axis_index("devices"))
    return jax.random.split(jax.random.fold_in(device_key, iteration))[1]


def keep_sound(
    before: learners.LearnerState, after: learners.LearnerState, metrics: Any, keeps_bad: bool
) -> tuple[learners.LearnerState, Array]:
    """Returns the learner after an update, or that before it if the update is not finite, and whether it is."""
    sound = parallel.all_finite((after, metrics))
    if not keeps_bad:
        after = jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, before)
    return after, sound


def unroll_struct(parts: parallel.LayoutParts) -> types.Unroll:
    """Returns one actor's unroll [T + 1, B] in all processes together, of `jax.ShapeDtypeStruct`."""
    width = parts.num_columns // parts.config.num_actors
    return unrolls.rows_struct(parts.agent, parts.environment.spec, parts.config.unroll_length, width)


class DeviceTier(Tier):
    """Keeps the whole replay on the learner's devices.

    Its program is ((iteration, total, ready_at, credit), columns i32 [U, B / D], keys [1], learner, replay, U unrolls)
    -> `Learned`. `columns` are the columns of a device's replay that each unroll fills, the same on every device.
    """

    def __init__(self, parts: parallel.LayoutParts) -> None:
        """Builds the programs; compiles none."""
        super().__init__(parts, unroll_struct(parts))
        held = parts.replay._replace(add=parts.replay.add_again)
        first, again = (learning_steps.make(parts.learner, replay) for replay in (parts.replay, held))
        each = (meshes.UNROLL,) * len(self._unrolls)
        in_specs = (*(meshes.SHARED,) * 2, *(meshes.PER_SEED,) * 2, meshes.COLUMNS, each)
        # Without a replay the number of updates is known as the program is compiled.
        make = functools.partial(program, graph_loops=parts.replay.keeps_rows)
        self.program = make(functools.partial(_learn, first, False), parts.mesh, in_specs, LEARNED, (3, 4))
        self.again = make(functools.partial(_learn, again, True), parts.mesh, in_specs, LEARNED)

    def init(self, keys: Array) -> tuple[learners.LearnerState, ArrayTree]:
        return self._init(keys)

    def template(self, keys: Array) -> tuple[learners.LearnerState, ArrayTree]:
        return meshes.placed(self._mesh, (meshes.PER_SEED, meshes.COLUMNS), jax.eval_shape(self._init, keys))

    def compile(self, state: State) -> None:
        self._compiled = self.program.lower(*self.arguments(state, 0, 1)).compile()

    def learn(
        self, state: State, iteration: int, total: int, unrolled: Sequence[queue.Unrolled]
    ) -> tuple[Learned, tuple[Any, ...] | None]:
        shared = self._numbers(state, iteration, total), np.stack([one.columns for one in unrolled])
        rows = tuple(one.unroll for one in unrolled)
        learned = self._compiled(*shared, state.key, state.learner, state.replay, rows)
        if np.asarray(learned.sound.addressable_data(0)).all():
            return learned, None
        return learned, (*shared, state.key, learned.learner, learned.replay, rows)

    def arguments(self, state: State, iteration: int, total: int) -> tuple[Any, ...]:
        numbers = self._numbers(state, iteration, total)
        return numbers, self._columns, state.key, state.learner, state.replay, self._unrolls

    def _numbers(self, state: State, iteration: int, total: int) -> tuple[Any, ...]:
        began = int(state.replay_began)
        ready_at, credit = began + self._schedule.first_ready, self._schedule.credit(iteration - began)
        return np.int32(iteration), np.float32(total), np.int32(ready_at), np.int32(credit)


def _learn(
    step: Callable[..., Any],
    keeps_bad: bool,
    numbers: tuple[Array, Array, Array, Array],
    columns: Array,
    key: Array,
    before: learners.LearnerState,
    replay: ArrayTree,
    unrolled: tuple[types.Unroll, ...],
) -> Learned:
    i, total, ready_at, credit = numbers
    pairs = [(unroll, columns[u]) for u, unroll in enumerate(unrolled)]
    ready, update_key = i >= ready_at, learning_key(key, i)
    after, replay, _, updates, metrics = step(before, replay, pairs, credit, ready, update_key, i / total)
    after, sound = keep_sound(before, after, metrics, keeps_bad)
    return Learned(after, replay, sound, updates, metrics)
