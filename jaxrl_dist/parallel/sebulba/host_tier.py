"""A replay in two tiers: observations compressed in the host's memory, everything else in a ring on the devices.

Windows are drawn on the devices, and a thread of the host reads their observations. The batch of the next update is
drawn before the present update begins, so that reading and learning overlap; its priorities are one update old. The
iteration alone decides when a batch is drawn, so a run repeats bit for bit.
"""

import functools
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import parallel, types
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.learning import step
from jaxrl_dist.parallel import memory_use
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel.sebulba import queue, tiers
from jaxrl_dist.replay import packed_observations
from jaxrl_dist.runs.checkpoint.arrays import AnyLength
from jaxrl_dist.types import Array, ArrayTree

_CHECK_EVERY = 64


class HostTier(tiers.Tier):
    """Keeps a replay's observations compressed in the host's memory, and everything else on the learner's devices.

    Its program makes one update: ((iteration, number, progress), keys [1], learner, ring, sample, observations, totals)
    -> `Learned`. Sample and observations are [1, N, L, ...]; `totals` are the iteration's updates and metrics so far.
    """

    def __init__(self, parts: parallel.LayoutParts) -> None:
        """Builds the programs; compiles none."""
        super().__init__(parts, queue.strip(tiers.unroll_struct(parts)))
        mesh, storage, length = parts.mesh, parts.replay.host, parts.config.unroll_length
        assert storage is not None
        (self._length, self._capacity, self._prefetch), self._devices = storage, list(mesh.devices.flat)
        self._observations = packed_observations.Observations(parts.environment.spec.observation, length)
        self._shape = (mesh.shape["devices"], parts.num_columns // mesh.shape["devices"])
        self._places = storage.capacity // parts.num_columns // length
        steps = step.parts(parts.learner, parts.replay)
        shared, per_seed, by_column = meshes.SHARED, meshes.PER_SEED, meshes.COLUMNS
        insert_specs = (by_column, shared, (meshes.UNROLL,) * len(self._unrolls))
        self._insert = tiers.program(functools.partial(_insert, steps), mesh, insert_specs, by_column, (0,))
        draw_specs = (by_column, per_seed, shared)
        self._draw = tiers.program(functools.partial(_draw, steps), mesh, draw_specs, by_column)
        specs = (shared, *(per_seed,) * 2, *(by_column,) * 3, per_seed)
        self.program = tiers.program(functools.partial(_teach, steps, False), mesh, specs, tiers.LEARNED, (2, 3))
        self.again = tiers.program(functools.partial(_teach, steps, True), mesh, specs, tiers.LEARNED)
        unpacked = self._new_blocks().capacity_bytes / 2**30
        self.notes: tuple[str, ...] = (
            f"observations of the replay: compressed in the host's memory, {unpacked:.2f} GiB before that",
        )
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="reading ahead")
        self._ahead: futures.Future[Any] | None = None
        self._live: packed_observations.Blocks | None = None

    def init(self, keys: Array) -> tuple[learners.LearnerState, packed_observations.Tiered]:
        learner, rows = self._init(keys)
        return learner, packed_observations.Tiered(rows, _zeros(self._sample_struct(rows)), self._new_blocks().save())

    def template(self, keys: Array) -> tuple[learners.LearnerState, packed_observations.Tiered]:
        kinds = meshes.PER_SEED, meshes.COLUMNS
        learner, rows = meshes.placed(self._mesh, kinds, jax.eval_shape(self._init, keys))
        leaves = len(self._observations.leaves)
        saved = packed_observations.Saved(
            AnyLength(np.dtype(np.uint8)),
            np.zeros((*self._shape, self._places, leaves), np.int64),
            np.zeros(self._shape, np.int64),
        )
        return learner, packed_observations.Tiered(rows, self._sample_struct(rows), saved)

    def saved(self, replay: packed_observations.Tiered) -> packed_observations.Tiered:
        live = isinstance(replay.blocks, packed_observations.Blocks)
        return replay._replace(blocks=replay.blocks.save()) if live else replay

    def compile(self, state: tiers.State) -> None:
        arguments = self.arguments(state, 0, 1)
        self._compiled = (
            self._insert.lower(state.replay.ring, self._columns, self._unrolls).compile(),
            self._draw.lower(state.replay.ring, state.key, arguments[0]).compile(),
            self.program.lower(*arguments).compile(),
        )
        self._nothing = jnp.ones(1, bool), *_zeros(arguments[-1])

    def check(self, state: tiers.State, iteration: int) -> None:
        # In the first iteration of a session the blocks are still packed.
        blocks = state.replay.blocks
        if iteration % _CHECK_EVERY == 0 and isinstance(blocks, packed_observations.Blocks):
            packed_observations.check(blocks, memory_use.free_of_host(), self._capacity)

    def learn(
        self, state: tiers.State, iteration: int, total: int, unrolled: Sequence[queue.Unrolled]
    ) -> tuple[tiers.Learned, tuple[Any, ...] | None]:
        insert, draw, teach = self._compiled
        age, drawn, failing = iteration - int(state.replay_began), state.replay.drawn, None
        live = self._open(state.replay, age)
        if self._ahead is not None:
            futures.wait([self._ahead])
        columns = np.stack([one.columns for one in unrolled])
        rows = insert(state.replay.ring, columns, tuple(one.unroll for one in unrolled))
        for one in unrolled:
            for device, packed in enumerate(one.packed):
                live.put(device, one.columns, packed)
        learned = tiers.Learned(state.learner, rows, *self._nothing)
        updates = [_numbers(iteration, number, total) for number in range(self._schedule.due(age))]
        # The first batch of the next iteration is drawn in this one.
        following = updates[1:] + [_numbers(iteration + 1, 0, total)] * (self._schedule.due(age + 1) > 0)
        for number, numbers in enumerate(updates):
            if self._ahead is None:
                drawn = draw(rows, state.key, numbers)
                self._ahead = self._thread.submit(self._windows, live, drawn)
            sampled, self._ahead = (drawn, self._ahead.result()), None
            if self._prefetch and number < len(following):
                drawn = draw(rows, state.key, following[number])
                self._ahead = self._thread.submit(self._windows, live, drawn)
            totals = learned.updates, learned.metrics
            learned = teach(numbers, state.key, learned.learner, rows, *sampled, totals)
            rows = learned.replay
            if not np.asarray(learned.sound.addressable_data(0)).all():
                # Keep these arguments: the next update would donate the learner and the rows after this one.
                failing = (numbers, state.key, learned.learner, rows, *sampled, self._nothing[1:])
                break
        return learned._replace(replay=packed_observations.Tiered(rows, drawn, live)), failing

    def arguments(self, state: tiers.State, iteration: int, total: int) -> tuple[Any, ...]:
        ring = state.replay.ring
        sample = self._sample_struct(ring)
        sampled = ring, sample, self._windows_struct(sample)
        update = _numbers(iteration, 0, total), state.key, state.learner, *sampled
        totals = jax.eval_shape(self.again, *update, (jax.ShapeDtypeStruct((1,), np.int32), {}))[3:]
        return (*update, meshes.placed(self._mesh, meshes.PER_SEED, totals))

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

    def _open(self, replay: packed_observations.Tiered, age: int) -> packed_observations.Blocks:
        """Returns a state's blocks, unpacked if it was saved, and starts reading the batch that it had drawn ahead."""
        live = replay.blocks
        if not isinstance(live, packed_observations.Blocks):
            live = self._new_blocks()
            live.load(replay.blocks)
        self._live = live
        is_drawn = self._prefetch and age > 0 and self._schedule.due(age - 1) and self._schedule.due(age)
        if self._ahead is None and is_drawn:
            self._ahead = self._thread.submit(self._windows, live, replay.drawn)
        return live

    def _windows(self, live: packed_observations.Blocks, drawn: types.Sample) -> ArrayTree:
        """Reads the observations of a drawn sample, and sends them to their devices."""
        columns, starts = (np.asarray(x).reshape(self._shape[0], -1) for x in drawn.indices[:2])
        parts = [
            jax.device_put(live.read(d, columns[d], starts[d], self._length), device)
            for d, device in enumerate(self._devices)
        ]
        return jax.tree.map(self._join, *parts)

    def _join(self, *pieces: Array) -> Array:
        shape = (1, pieces[0].shape[0] * len(pieces), *pieces[0].shape[1:])
        where = meshes.sharding(self._mesh, meshes.COLUMNS)
        return jax.make_array_from_single_device_arrays(shape, where, [piece[None] for piece in pieces])

    def _new_blocks(self) -> packed_observations.Blocks:
        return packed_observations.Blocks(self._observations, *self._shape, self._places)

    def _sample_struct(self, rows: ArrayTree) -> types.Sample:
        drawn = jax.eval_shape(self._draw, rows, tiers.keys_struct(), _numbers(0, 0, 1))
        return meshes.placed(self._mesh, meshes.COLUMNS, drawn)

    def _windows_struct(self, sample: types.Sample) -> ArrayTree:
        shape = (1, sample.weights.shape[1], self._length)
        leaves = [jax.ShapeDtypeStruct((*shape, *x.shape), x.dtype) for x in self._observations.leaves]
        return meshes.placed(self._mesh, meshes.COLUMNS, jax.tree.unflatten(self._observations.structure, leaves))


def _numbers(iteration: int, number: int, total: int) -> tuple[Any, ...]:
    """Returns the numbers of an update: the iteration, its index in the iteration, and the share of training."""
    return np.int32(iteration), np.int32(number), np.float32(iteration) / np.float32(total)


def _zeros(struct: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), struct)


def _items_first(sample: types.Sample) -> types.Sample:
    """Turns the sequences of a sample from [L, N, ...] to [N, L, ...], or back."""
    steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), sample.sequences.steps)
    return sample._replace(sequences=sample.sequences._replace(steps=steps))


def _insert(steps: step.Parts, rows: ArrayTree, columns: Array, unrolled: tuple[types.Unroll, ...]) -> ArrayTree:
    return steps.add(rows, [(unroll, columns[u]) for u, unroll in enumerate(unrolled)])


def _draw(steps: step.Parts, rows: ArrayTree, key: Array, numbers: tuple[Array, Array, Array]) -> types.Sample:
    i, number, progress = numbers
    update_key = jax.random.fold_in(tiers.learning_key(key, i), number)
    return _items_first(steps.draw(rows, update_key, progress))


def _teach(
    steps: step.Parts,
    keeps_bad: bool,
    numbers: tuple[Array, Array, Array],
    key: Array,
    before: learners.LearnerState,
    rows: ArrayTree,
    sample: types.Sample,
    observations: ArrayTree,
    totals: Any,
) -> tiers.Learned:
    i, number, progress = numbers
    update_key = jax.random.fold_in(tiers.learning_key(key, i), number)
    drawn = sample.sequences.steps
    drawn = drawn._replace(timestep=drawn.timestep._replace(observation=observations))
    sample = _items_first(sample._replace(sequences=sample.sequences._replace(steps=drawn)))
    after, rows, metrics = steps.teach(before, rows, sample, update_key, progress)
    after, sound = tiers.keep_sound(before, after, metrics, keeps_bad)
    updates, sums = totals
    metrics = {name: sums.get(name, 0.0) + value for name, value in metrics.items()}
    return tiers.Learned(after, rows, sound, updates + 1, metrics)
