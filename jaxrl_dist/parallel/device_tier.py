"""A replay whole on the learner's devices: one compiled program adds unrolls and makes all updates that are due."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import learn as learning_steps
from jaxrl_dist import learner as learners
from jaxrl_dist import types
from jaxrl_dist.parallel import arrivals, learning
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.types import Array, ArrayTree


class Failing(NamedTuple):
    """What an update that went wrong began with; the replay holds its unrolls already, unless it is `latest`."""

    learner: learners.LearnerState
    key: Array
    replay: ArrayTree
    unrolls: tuple[types.Unroll, ...]
    columns: Any
    replay_began: Any


class DeviceTier:
    """See `learning.Tier`.

    Its program is (iteration, total, ready_at, credit, columns i32 [U, B / D], keys [1], learner, replay, U unrolls) ->
    `Learned`. `columns` says which of a device's columns of the replay those of each unroll are, the same on
    every device.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, setting: learning.Setting) -> None:
        """Builds the programs; compiles none."""
        self._mesh, self._num_unrolls = setting.mesh, setting.num_unrolls
        self._columns = setting.width // setting.mesh.shape["devices"]
        self._pace, replay = setting.pace, setting.replay
        self.unroll = learning.rows_struct(setting.agent, setting.spec, setting.unroll_length, setting.width)
        self._init = learning.make_init(setting, self.unroll.steps)
        self.publish = learning.make_publish()
        self.program = _make_program(setting, learning_steps.make(setting.learner, replay), False, (6, 7))
        held = replay._replace(add=replay.add_again)
        self._again = _make_program(setting, learning_steps.make(setting.learner, held), True, ())
        self._compiled: Any = None

    def init(self, keys: Array) -> tuple[learners.LearnerState, ArrayTree]:
        return self._init(keys)

    def template(self, keys: Array) -> tuple[learners.LearnerState, ArrayTree]:
        learner, replay = jax.eval_shape(self._init, keys)
        placed = functools.partial(meshes.placed, self._mesh)
        return placed(meshes.PER_SEED, learner), placed(meshes.COLUMNS, replay)

    def saved(self, replay: ArrayTree) -> ArrayTree:
        return replay

    def compile(self, clock: learning.Clock, learner: learners.LearnerState, key: Array, replay: ArrayTree) -> None:
        if self._compiled is None:
            self._compiled = self.program.lower(*self.arguments(clock, learner, key, replay)).compile()

    def check(self, clock: learning.Clock, replay: ArrayTree) -> None:
        del clock, replay

    def learn(
        self,
        clock: learning.Clock,
        learner: learners.LearnerState,
        key: Array,
        replay: ArrayTree,
        items: Sequence[arrivals.Item],
    ) -> tuple[learning.Learned, Any]:
        columns, unrolled = np.stack([item.columns for item in items]), tuple(item.unroll for item in items)
        result = self._compiled(*self._numbers(clock), columns, key, learner, replay, *unrolled)
        if np.asarray(result.sound.addressable_data(0)).all():
            return result, None
        return result, Failing(result.learner, key, result.replay, unrolled, columns, np.int32(clock.replay_began))

    def failing_template(self, keys: Array) -> Failing:
        learner, replay = self.template(keys)
        columns = jax.ShapeDtypeStruct((self._num_unrolls, self._columns), np.int32)
        key = meshes.placed(self._mesh, meshes.PER_SEED, keys)
        return Failing(learner, key, replay, self._unrolls(), columns, np.zeros((), np.int32))

    def learn_again(self, clock: learning.Clock, failing: Failing) -> learning.Learned:
        columns, clock = np.asarray(failing.columns), clock._replace(replay_began=int(failing.replay_began))
        return self._again(
            *self._numbers(clock), columns, failing.key, failing.learner, failing.replay, *failing.unrolls
        )

    def arguments(
        self, clock: learning.Clock, learner: learners.LearnerState, key: Array, replay: ArrayTree
    ) -> tuple[Any, ...]:
        columns = np.zeros((self._num_unrolls, self._columns), np.int32)
        return (*self._numbers(clock), columns, key, learner, replay, *self._unrolls())

    def report(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass

    def _numbers(self, clock: learning.Clock) -> tuple[Any, ...]:
        credit = self._pace.credit(clock.iteration - clock.replay_began)
        ready_at = clock.replay_began + self._pace.first_ready
        return np.int32(clock.iteration), np.float32(clock.total), np.int32(ready_at), np.int32(credit)

    def _unrolls(self) -> tuple[types.Unroll, ...]:
        return (meshes.placed(self._mesh, meshes.UNROLL, self.unroll),) * self._num_unrolls


def _make_program(setting: learning.Setting, step: Any, keeps_bad: bool, donate: tuple[int, ...]) -> Any:
    """Maps the learning step over the mesh."""

    def learn(
        i: Array,
        total: Array,
        ready_at: Array,
        credit: Array,
        columns: Array,
        key: Array,
        before: learners.LearnerState,
        replay_state: ArrayTree,
        *unrolled: types.Unroll,
    ) -> learning.Learned:
        pairs = [(unroll, columns[u]) for u, unroll in enumerate(unrolled)]
        after, replay_state, _, updates, metrics = step(
            before, replay_state, pairs, credit, i >= ready_at, learning.learning_key(key, i), i / total
        )
        after, sound = learning.keep_sound(before, after, metrics, keeps_bad)
        return learning.Learned(after, replay_state, sound, updates, metrics)

    shared, per_seed, by_column = meshes.SHARED, meshes.PER_SEED, meshes.COLUMNS
    out_specs: Any = learning.Learned._make((per_seed, by_column, per_seed, per_seed, per_seed))
    in_specs = (*(shared,) * 5, per_seed, per_seed, by_column, *(meshes.UNROLL,) * setting.num_unrolls)
    mapped = meshes.device_map(learn, setting.mesh, in_specs=in_specs, out_specs=out_specs)
    return meshes.program(mapped, setting.mesh, out_specs, donate=donate)
