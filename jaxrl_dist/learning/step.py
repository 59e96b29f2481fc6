"""The learning step of an iteration: adds unrolls to the replay, then draws and learns as many batches as are due."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import replay as replays
from jaxrl_dist import types
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.types import Array, ArrayTree

Unrolls = Sequence[tuple[types.Unroll, Array]]


class Parts(NamedTuple):
    """The step in parts.

    Attributes:
        add: (replay_state, `Unrolls`) -> replay_state.
        draw: (replay_state, key, progress) -> `types.Sample`; the key is of one update, and `teach` gets it too.
        teach: (state, replay_state, sample, key, progress) -> (state, replay_state, metrics).
    """

    add: Callable[..., ArrayTree]
    draw: Callable[..., types.Sample]
    teach: Callable[..., tuple[learners.LearnerState, ArrayTree, dict[str, Array]]]


def parts(learner: learners.Learner, replay: replays.Replay) -> Parts:
    """Makes the parts; with a replay the metric `replay_age` counts updates since the sampled rows were acted."""

    def add(replay_state: ArrayTree, unrolls: Unrolls) -> ArrayTree:
        for unroll, columns in unrolls:
            replay_state = replay.add(replay_state, unroll, columns)
        return replay_state

    def draw(replay_state: ArrayTree, key: Array, progress: Array) -> types.Sample:
        return replay.sample(replay_state, jax.random.split(key)[0], progress)

    def teach(
        state: learners.LearnerState, replay_state: ArrayTree, sample: types.Sample, key: Array, progress: Array
    ) -> tuple[learners.LearnerState, ArrayTree, dict[str, Array]]:
        age = state.updates - jnp.mean(sample.sequences.steps.version, dtype=jnp.float32)
        state, priorities, metrics = learner.update(state, sample, jax.random.split(key)[1], progress)
        if replay.keeps_rows:
            metrics |= {"replay_age": age}
        return state, replay.update(replay_state, sample.indices, priorities), metrics

    return Parts(add, draw, teach)


def make(learner: learners.Learner, replay: replays.Replay) -> Callable[..., Any]:
    """Makes the whole step.

    Returns:
        (state, replay_state, unrolls, credit i32[], ready bool[], key, progress) -> (state, replay_state, credit,
        updates i32[], summed metrics). `unrolls` are pairs of an unroll [T + 1, N] and its columns i32 [N]. `credit`
        carries the fraction of an update that samples per insert leaves over; nothing is sampled, and no credit
        gathered, until `ready`. Both must not differ between vectorised seeds.
    """
    numerator, denominator = replay.updates
    add, draw, teach = parts(learner, replay)

    def once(state: learners.LearnerState, replay_state: ArrayTree, key: Array, progress: Array) -> Any:
        return teach(state, replay_state, draw(replay_state, key, progress), key, progress)

    def learn(
        state: learners.LearnerState,
        replay_state: ArrayTree,
        unrolls: Unrolls,
        credit: Array,
        ready: Array,
        key: Array,
        progress: Array,
    ) -> Any:
        replay_state = add(replay_state, unrolls)
        if not replay.min_rows:
            state, replay_state, metrics = once(state, replay_state, key, progress)
            return state, replay_state, credit, jnp.int32(1), metrics
        credit = credit + jnp.where(ready, numerator, 0)
        due = credit // denominator
        shapes = jax.eval_shape(once, state, replay_state, key, progress)[2]
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def body(i: Array, loop: Any) -> Any:
            state, replay_state, total = loop
            state, replay_state, metrics = once(state, replay_state, jax.random.fold_in(key, i), progress)
            return state, replay_state, jax.tree.map(jnp.add, total, metrics)

        state, replay_state, total = jax.lax.fori_loop(0, due, body, (state, replay_state, zeros))
        return state, replay_state, credit - due * denominator, due, total

    return learn


class Pace(NamedTuple):
    """Schedule of updates.

    Attributes:
        first_ready: iterations after an empty replay before the first that may sample.
        ratio: (numerator, denominator) of updates per iteration.
    """

    first_ready: int
    ratio: tuple[int, int]

    def credit(self, iteration: int) -> int:
        """Returns the credit that an iteration starts with, counted from an empty replay."""
        numerator, denominator = self.ratio
        return max(iteration - self.first_ready, 0) * numerator % denominator

    def due(self, iteration: int) -> int:
        """Returns the updates of an iteration."""
        numerator, denominator = self.ratio
        return (self.credit(iteration) + numerator) // denominator if iteration >= self.first_ready else 0


def pace(replay: replays.Replay, unroll_length: int) -> Pace:
    """Returns when a replay has enough rows, and how often it is learned from then."""
    return Pace(max(-(-replay.min_rows // unroll_length) - 1, 0), replay.updates)
