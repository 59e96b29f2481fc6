"""A replay in two tiers: observations compressed in the host's memory, all else a ring on the learner's devices.

Windows are drawn on the devices, their observations read by a thread of the host. The batch of the next update is drawn
before the present one is learned, so that reading and learning go on at the same time; its priorities are one update
old. Which batch is drawn when follows from the iteration alone, so a run repeats bit by bit.
"""

from collections.abc import Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import replay as replays
from jaxrl_dist import types
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.learning import step
from jaxrl_dist.parallel import memory_use
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel.sebulba import channels, queue, tiers
from jaxrl_dist.replay import packed_observations
from jaxrl_dist.runs.checkpoint.arrays import AnyLength
from jaxrl_dist.types import Array, ArrayTree

_CHECK_EVERY = 64
# Iteration, number of the update and progress, where only their types matter.
_NO_NUMBERS = (np.int32(0), np.int32(0), np.float32(0))


class Failing(NamedTuple):
    """Inputs of an update that failed; the sample has its items first, number is that of the update."""

    learner: learners.LearnerState
    key: Array
    replay: ArrayTree
    sample: types.Sample
    observations: ArrayTree
    number: Any


class HostTier:
    """See `tiers.Tier`.

    Its program is (iteration, number, progress, keys [1], learner, ring, sample, observations, totals) -> `Learned`, of
    one update: samples and observations [1, N, L, ...], and `totals` the updates and metrics of the iteration so far.
    """

    def __init__(self, setting: tiers.Setting, storage: replays.HostStorage) -> None:
        """Builds the programs; compiles none."""
        self._mesh, (self._length, self._capacity, self._prefetch) = setting.mesh, storage
        self._pace, mesh = setting.pace, setting.mesh
        self.unroll = tiers.rows_struct(setting.agent, setting.spec, setting.unroll_length, setting.width)
        self._stripped = channels.strip(self.unroll)
        self._num_unrolls, self._columns = setting.num_unrolls, setting.width // mesh.shape["devices"]
        self._observations = packed_observations.Observations(setting.spec.observation, setting.unroll_length)
        self._shape = (mesh.shape["devices"], setting.num_envs // mesh.shape["devices"])
        self._places = storage.capacity // setting.num_envs // setting.unroll_length
        self._devices = list(mesh.devices.flat)
        self._init = tiers.make_init(setting, self._stripped.steps)
        self.publish = tiers.make_publish()
        parts = step.parts(setting.learner, setting.replay)
        self._insert, self._draw = _make_insert(setting, parts), _make_draw(setting, parts)
        self.program = _make_teach(setting, parts, False, (4, 5))
        self._again = _make_teach(setting, parts, True, ())
        unpacked = self._new_blocks().capacity_bytes / 2**30
        self.notes: tuple[str, ...] = (
            f"observations of the replay: compressed in the host's memory, {unpacked:.2f} GiB before that",
        )
        self._compiled: Any = None
        self._zeros: Any = None
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="reading ahead")
        self._ahead: futures.Future[Any] | None = None
        self._live: packed_observations.Blocks | None = None

    def init(self, keys: Array) -> tuple[learners.LearnerState, packed_observations.Tiered]:
        learner, rows = self._init(keys)
        drawn = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), self._sample_struct(rows))
        return learner, packed_observations.Tiered(rows, drawn, self._new_blocks().save())

    def template(self, keys: Array) -> tuple[learners.LearnerState, packed_observations.Tiered]:
        learner, rows = jax.eval_shape(self._init, keys)
        leaves = len(self._observations.leaves)
        saved = packed_observations.Saved(
            AnyLength(np.dtype(np.uint8)),
            np.zeros((*self._shape, self._places, leaves), np.int64),
            np.zeros(self._shape, np.int64),
        )
        rows = meshes.placed(self._mesh, meshes.COLUMNS, rows)
        placed = meshes.placed(self._mesh, meshes.PER_SEED, learner)
        return placed, packed_observations.Tiered(rows, self._sample_struct(rows), saved)

    def saved(self, replay: packed_observations.Tiered) -> packed_observations.Tiered:
        return (
            replay._replace(blocks=replay.blocks.save())
            if isinstance(replay.blocks, packed_observations.Blocks)
            else replay
        )

    def compile(
        self, clock: tiers.Clock, learner: learners.LearnerState, key: Array, replay: packed_observations.Tiered
    ) -> None:
        if self._compiled is not None:
            return
        columns = np.zeros((self._num_unrolls, self._columns), np.int32)
        unrolled = (meshes.placed(self._mesh, meshes.UNROLL, self._stripped),) * self._num_unrolls
        arguments = self.arguments(clock, learner, key, replay)
        self._compiled = (
            self._insert.lower(replay.ring, columns, *unrolled).compile(),
            self._draw.lower(replay.ring, key, *_numbers(clock, 0)).compile(),
            self.program.lower(*arguments).compile(),
        )
        where = meshes.sharding(self._mesh, meshes.PER_SEED)
        sums = (jax.ShapeDtypeStruct((1,), bool), *arguments[-1])
        self._zeros = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), where), sums)

    def check(self, clock: tiers.Clock, replay: packed_observations.Tiered) -> None:
        # The first iteration of a session has not unpacked its blocks yet.
        if clock.iteration % _CHECK_EVERY == 0 and isinstance(replay.blocks, packed_observations.Blocks):
            packed_observations.check(replay.blocks, memory_use.free_of_host(), self._capacity)

    def learn(
        self,
        clock: tiers.Clock,
        learner: learners.LearnerState,
        key: Array,
        replay: packed_observations.Tiered,
        items: Sequence[queue.Item],
    ) -> tuple[tiers.Learned, Any]:
        insert, draw, teach = self._compiled
        live, drawn, failing = self._open(clock, replay), replay.drawn, None
        if self._ahead is not None:
            futures.wait([self._ahead])
        columns = np.stack([item.columns for item in items])
        rows = insert(replay.ring, columns, *(item.unroll for item in items))
        for item in items:
            for device, packed in enumerate(item.packed):
                live.put(device, item.columns, packed)
        age, result = clock.iteration - clock.replay_began, tiers.Learned(learner, rows, *self._zeros)
        due, due_next = self._pace.due(age), self._pace.due(age + 1)
        for number in range(due):
            if self._ahead is None:
                drawn = draw(rows, key, *_numbers(clock, number))
                self._ahead = self._read(live, drawn)
            sample, observations = drawn, self._ahead.result()
            self._ahead, following = None, None
            if number + 1 < due:
                following = _numbers(clock, number + 1)
            elif due_next:
                following = _numbers(clock._replace(iteration=clock.iteration + 1), 0)
            if self._prefetch and following:
                drawn = draw(rows, key, *following)
                self._ahead = self._read(live, drawn)
            totals = result.updates, result.metrics
            result = teach(*_numbers(clock, number), key, result.learner, rows, sample, observations, totals)
            rows = result.replay
            if failing is None and not np.asarray(result.sound.addressable_data(0)).all():
                failing = Failing(result.learner, key, rows, sample, observations, np.int32(number))
        return result._replace(replay=packed_observations.Tiered(rows, drawn, live)), failing

    def failing_template(self, keys: Array) -> Failing:
        learner, replay = self.template(keys)
        key = meshes.placed(self._mesh, meshes.PER_SEED, keys)
        return Failing(
            learner, key, replay.ring, replay.drawn, self._windows_struct(replay.drawn), np.zeros((), np.int32)
        )

    def learn_again(self, clock: tiers.Clock, failing: Failing) -> tiers.Learned:
        numbers, totals = _numbers(clock, int(failing.number)), self._totals(failing.learner, failing.replay)
        zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), totals)
        sampled = failing.replay, failing.sample, failing.observations
        return self._again(*numbers, failing.key, failing.learner, *sampled, zeros)

    def arguments(
        self, clock: tiers.Clock, learner: learners.LearnerState, key: Array, replay: packed_observations.Tiered
    ) -> tuple[Any, ...]:
        sample = self._sample_struct(replay.ring)
        windows = self._windows_struct(sample)
        return (*_numbers(clock, 0), key, learner, replay.ring, sample, windows, self._totals(learner, replay.ring))

    def report(self) -> dict[str, Any]:
        live = self._live
        if live is None:
            return {}
        sizes = {"packed_bytes": live.added_bytes, "unpacked_bytes": live.added * self._observations.block_bytes}
        live.added = live.added_bytes = 0
        return {name: np.asarray([size], np.float64) for name, size in sizes.items()}

    def close(self) -> None:
        if self._ahead is not None:
            futures.wait([self._ahead])
        self._ahead = self._live = None

    def _open(self, clock: tiers.Clock, replay: packed_observations.Tiered) -> packed_observations.Blocks:
        """Returns the living blocks of a state, and goes on reading what was drawn ahead in it."""
        live = replay.blocks
        if not isinstance(live, packed_observations.Blocks):
            live = self._new_blocks()
            live.load(replay.blocks)
        self._live = live
        age = clock.iteration - clock.replay_began
        is_drawn = self._prefetch and age > 0 and self._pace.due(age - 1) and self._pace.due(age)
        if self._ahead is None and is_drawn:
            self._ahead = self._read(live, replay.drawn)
        return live

    def _read(self, live: packed_observations.Blocks, drawn: types.Sample) -> futures.Future[Any]:
        """Reads the windows that were drawn, in the reading thread, and sends them to their devices."""

        def read() -> ArrayTree:
            columns, starts = (np.asarray(x).reshape(self._shape[0], -1) for x in drawn.indices[:2])
            parts = [
                jax.device_put(live.read(d, columns[d], starts[d], self._length), device)
                for d, device in enumerate(self._devices)
            ]
            return jax.tree.map(self._join, *parts)

        return self._thread.submit(read)

    def _join(self, *pieces: Array) -> Array:
        shape = (1, pieces[0].shape[0] * len(pieces), *pieces[0].shape[1:])
        where = meshes.sharding(self._mesh, meshes.COLUMNS)
        return jax.make_array_from_single_device_arrays(shape, where, [piece[None] for piece in pieces])

    def _new_blocks(self) -> packed_observations.Blocks:
        return packed_observations.Blocks(self._observations, *self._shape, self._places)

    def _sample_struct(self, rows: ArrayTree) -> types.Sample:
        drawn = jax.eval_shape(self._draw, rows, tiers.keys_struct(), *_NO_NUMBERS)
        return meshes.placed(self._mesh, meshes.COLUMNS, drawn)

    def _windows_struct(self, sample: types.Sample) -> ArrayTree:
        shape = (1, sample.weights.shape[1], self._length)
        leaves = [jax.ShapeDtypeStruct((*shape, *x.shape), x.dtype) for x in self._observations.leaves]
        return meshes.placed(self._mesh, meshes.COLUMNS, jax.tree.unflatten(self._observations.structure, leaves))

    def _totals(self, learner: learners.LearnerState, rows: ArrayTree) -> Any:
        """Returns updates and metrics of `jax.ShapeDtypeStruct`."""
        sample, keys, count = self._sample_struct(rows), tiers.keys_struct(), jax.ShapeDtypeStruct((1,), np.int32)
        arguments: Any = (*_NO_NUMBERS, keys, learner, rows, sample, self._windows_struct(sample), (count, {}))
        return jax.eval_shape(self._again, *arguments)[3:]


def _numbers(clock: tiers.Clock, number: int) -> tuple[Any, ...]:
    return np.int32(clock.iteration), np.int32(number), clock.progress


def _items_first(sample: types.Sample) -> types.Sample:
    """Turns the sequences of a sample from [L, N, ...] to [N, L, ...], or back."""
    steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), sample.sequences.steps)
    return sample._replace(sequences=sample.sequences._replace(steps=steps))


def _make_insert(setting: tiers.Setting, parts: step.Parts) -> Any:
    """Makes (ring, columns i32 [U, B / D], U unrolls) -> ring; the ring is donated."""

    def insert(rows: ArrayTree, columns: Array, *unrolled: types.Unroll) -> ArrayTree:
        return parts.add(rows, [(unroll, columns[u]) for u, unroll in enumerate(unrolled)])

    by_column = meshes.COLUMNS
    in_specs = (by_column, meshes.SHARED, *(meshes.UNROLL,) * setting.num_unrolls)
    mapped = meshes.device_map(insert, setting.mesh, in_specs=in_specs, out_specs=by_column)
    return meshes.program(mapped, setting.mesh, by_column, donate=(0,))


def _make_draw(setting: tiers.Setting, parts: step.Parts) -> Any:
    """Makes (ring, keys [1], iteration, number, progress) -> sample, items first."""

    def draw(rows: ArrayTree, key: Array, i: Array, number: Array, progress: Array) -> types.Sample:
        update_key = jax.random.fold_in(tiers.learning_key(key, i), number)
        return _items_first(parts.draw(rows, update_key, progress))

    in_specs = (meshes.COLUMNS, meshes.PER_SEED, *(meshes.SHARED,) * 3)
    mapped = meshes.device_map(draw, setting.mesh, in_specs=in_specs, out_specs=meshes.COLUMNS)
    return meshes.program(mapped, setting.mesh, meshes.COLUMNS)


def _make_teach(setting: tiers.Setting, parts: step.Parts, keeps_bad: bool, donate: tuple[int, ...]) -> Any:
    """Makes the program of an update."""

    def teach(
        i: Array,
        number: Array,
        progress: Array,
        key: Array,
        before: learners.LearnerState,
        rows: ArrayTree,
        sample: types.Sample,
        observations: ArrayTree,
        totals: Any,
    ) -> tiers.Learned:
        update_key = jax.random.fold_in(tiers.learning_key(key, i), number)
        steps = sample.sequences.steps
        steps = steps._replace(timestep=steps.timestep._replace(observation=observations))
        sample = _items_first(sample._replace(sequences=sample.sequences._replace(steps=steps)))
        after, rows, metrics = parts.teach(before, rows, sample, update_key, progress)
        after, sound = tiers.keep_sound(before, after, metrics, keeps_bad)
        updates, sums = totals
        metrics = {name: sums.get(name, 0.0) + value for name, value in metrics.items()}
        return tiers.Learned(after, rows, sound, updates + 1, metrics)

    shared, per_seed, by_column = meshes.SHARED, meshes.PER_SEED, meshes.COLUMNS
    in_specs = (*(shared,) * 3, per_seed, per_seed, by_column, by_column, by_column, per_seed)
    out_specs: Any = tiers.Learned._make((per_seed, by_column, per_seed, per_seed, per_seed))
    mapped = meshes.device_map(teach, setting.mesh, in_specs=in_specs, out_specs=out_specs)
    return meshes.program(mapped, setting.mesh, out_specs, donate=donate)
