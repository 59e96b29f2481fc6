"""The learning step of an iteration: adds unrolls to the replay, then draws and learns as many batches as are due."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import replay as replays
from jaxrl_dist import types
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.numeric import vectors
from jaxrl_dist.types import Array, ArrayTree

Unrolls = Sequence[tuple[types.Unroll, Array | None]]


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
    """Makes the parts; with a replay the metric `replay_age` counts updates since the sampled rows were acted.

    Args:
        learner: of the agent.
        replay: of which the learner's samples are drawn.

    Returns:
        `Parts`, for layouts that draw and teach at different times.

    Example:
        >>> import jaxrl_dist
        >>> from jaxrl_dist.learning import step
        >>> made = jaxrl_dist.make("a2c", "toy:walk")
        >>> step.parts(made.learner, made.replay)._fields
        ('add', 'draw', 'teach')
    """

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

    Args:
        learner: of the agent.
        replay: of which the learner's samples are drawn.

    Returns:
        (state, replay_state, unrolls, credit i32[], ready bool[], key, progress) -> (state, replay_state, credit,
        updates i32[], summed metrics). `unrolls` are pairs of an unroll [T + 1, N] and its columns, as
        `Replay.add` takes them. `credit` carries the fraction of an update that samples per insert leaves over; nothing
        is sampled, and no credit gathered, until `ready`. Both must not differ between vectorised seeds.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxrl_dist
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.learning import step
        >>> from jaxrl_dist.parallel import unroll
        >>> sizes = {"replay.capacity": 64, "replay.min_size": 4, "replay.batch_size": 4, "env.num_envs": 2}
        >>> sizes |= {"layout.unroll_length": 4, "replay.samples_per_insert": 1.0}
        >>> _, environment, agent, replay, learner, _ = jaxrl_dist.make("dqn", "toy:walk", settings=sizes)
        >>> learn = step.make(learner, replay)
        >>> keys, columns = jax.random.split(jax.random.key(0), 4), jnp.arange(2)
        >>> state = learner.init(agent.init(keys[0]))
        >>> actors = unroll.ActorState(*envs.columns(environment).reset(keys[1], columns), agent.init_carry(2))
        >>> play = unroll.device_unroll(agent, environment, length=4)
        >>> _, rows, _ = play(state.params, actors, keys[2], jnp.ones(2), state.updates)
        >>> memory = replay.init(unroll.step_struct(rows.steps), rows.carry)
        >>> state, memory, credit, updates, metrics = learn(
        ...     state, memory, [(rows, columns)], jnp.int32(0), jnp.bool_(True), keys[3], jnp.float32(0.0)
        ... )
        >>> print(updates, credit)  # 8 rows came, 4 are taught per update
        2 0
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
        drawn = _drawn_ahead(replay, draw, replay_state, key, progress)

        def one(state: learners.LearnerState, replay_state: ArrayTree, i: Array) -> Any:
            own_key = jax.random.fold_in(key, i)
            return teach(state, replay_state, drawn(replay_state, own_key, i), own_key, progress)

        shapes = jax.eval_shape(one, state, replay_state, jnp.int32(0))[2]
        zeros, split = vectors.zeros(shapes)

        first = state.updates

        def body(i: Array, loop: Any) -> Any:
            state, replay_state, total = loop
            # The loop counts; a second counter would be written by a kernel of its own.
            state, replay_state, metrics = one(state._replace(updates=first + i), replay_state, i)
            return state._replace(updates=first), replay_state, jax.tree.map(jnp.add, total, vectors.join(metrics)[0])

        with jax.named_scope(learners.GRADIENT_STEP):
            state, replay_state, total = jax.lax.fori_loop(0, due, body, (state, replay_state, zeros))
        state = state._replace(updates=first + due)
        return state, replay_state, credit - due * denominator, due, split(total)

    return learn


def _drawn_ahead(
    replay: replays.Replay, draw: Callable[..., types.Sample], state: ArrayTree, key: Array, progress: Array
) -> Callable[[ArrayTree, Array, Array], types.Sample]:
    """Returns what draws the sample of an update by state, key and number; if it can, all windows are chosen here."""
    if replay.choose is None or replay.read is None:
        return lambda state, key, i: draw(state, key, progress)
    choose, read, (numerator, denominator) = replay.choose, replay.read, replay.updates
    most = (denominator - 1 + numerator) // denominator

    def windows(i: Array) -> Any:
        return choose(state, jax.random.split(jax.random.fold_in(key, i))[0], progress)

    chosen = jax.vmap(windows)(jnp.arange(most))
    return lambda state, key, i: read(state, jax.tree.map(lambda x: x[i], chosen))


class Schedule(NamedTuple):
    """Says when an iteration updates, and how often.

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


def schedule(replay: replays.Replay, unroll_length: int) -> Schedule:
    """Returns when a replay has enough rows, and how often it is learned from then.

    Args:
        replay: one shard.
        unroll_length: rows that each column gets in an iteration.

    Example:
        >>> import jaxrl_dist
        >>> from jaxrl_dist.learning import step
        >>> sizes = {"replay.capacity": 640, "replay.min_size": 320, "replay.batch_size": 32, "env.num_envs": 8}
        >>> sizes |= {"layout.unroll_length": 4, "replay.samples_per_insert": 0.5}
        >>> made = jaxrl_dist.make("dqn", "toy:walk", settings=sizes)
        >>> schedule = step.schedule(made.replay, unroll_length=4)
        >>> schedule, [schedule.due(iteration) for iteration in range(8, 13)]
        (Schedule(first_ready=9, ratio=(1, 2)), [0, 0, 1, 0, 1])
    """
    return Schedule(max(-(-replay.min_rows // unroll_length) - 1, 0), replay.updates)
