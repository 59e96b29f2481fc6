"""The parameter server: takes gradients one by one, drops those it should not trust, and applies the others.

Pure functions of one seed. Source: Nair et al. 2015, "Massively parallel methods for deep reinforcement learning"
(Gorila), section 4: gradients that are too old, and those whose loss is far from its running mean, are dropped.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_dist import parallel, types
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.types import Array

_LOSSES_BEFORE_OUTLIERS = 100
_DECAY = 0.99
# Its square is finite.
_LARGEST_LOSS = 1e18


class Verdict(NamedTuple):
    """The verdict on a gradient, bool [] each but the age; all False where it had no taught rows.

    Attributes:
        age: i32 [], updates since its parameters.
        stale: dropped for its age, or as its parameters were rolled back.
        outlier: dropped for its loss.
        broken: dropped, as it is not finite.
        taken: added to those that make the next update.
        applied: which was made.
        reverted: which was not finite, and is undone.
    """

    age: Array
    stale: Array
    outlier: Array
    broken: Array
    taken: Array
    applied: Array
    reverted: Array


class Losses(NamedTuple):
    """Running mean and mean square of the loss per taught row, f32 [], and how many were counted, i32 []."""

    mean: Array
    square: Array
    number: Array


class Accumulated(NamedTuple):
    """Gradients that wait for others: their sum, as of one gradient, and how many they are, i32 []."""

    gradient: learners.Gradient
    number: Array


class Server(NamedTuple):
    """State of the server beside the learner's.

    Attributes:
        accumulated: since the last update.
        losses: of what arrived.
    """

    accumulated: Accumulated
    losses: Losses


def init(gradient: learners.Gradient) -> Server:
    """Returns the state before the first gradient; those will look like this one (arrays or their shapes)."""
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), gradient)
    # An array each: what is donated may not be one.
    losses = Losses(jnp.zeros(()), jnp.zeros(()), jnp.zeros((), jnp.int32))
    return Server(Accumulated(zeros, jnp.zeros((), jnp.int32)), losses)


def emptied(server: Server) -> Server:
    """Returns the state without the gradients that waited for others."""
    return server._replace(accumulated=jax.tree.map(jnp.zeros_like, server.accumulated))


def make(
    learner: learners.Learner, per_apply: int, max_age: int, outlier_deviations: float
) -> Callable[..., tuple[learners.LearnerState, Server, Verdict, dict[str, Array]]]:
    """Makes the server's step.

    Args:
        learner: built with `types.LOCAL`; a worker's gradient is of all its rows.
        per_apply: gradients that make an update.
        max_age: updates since a gradient's parameters above which it is dropped; negative for no limit.
        outlier_deviations: running deviations from the running mean above which a loss makes its gradient an outlier;
            0 is off.

    Returns:
        (learner_state, server, gradient without priorities, given i32 [], progress) -> (learner_state, server, verdict,
        metrics of the update, 0 where there was none). `given` are the updates that its parameters had had. An update
        that is not finite is reverted.
    """

    def receive(
        state: learners.LearnerState, server: Server, gradient: learners.Gradient, given: Array, progress: Array
    ) -> tuple[learners.LearnerState, Server, Verdict, dict[str, Array]]:
        loss, age = gradient.loss / jnp.maximum(gradient.valid, 1.0), state.updates - given
        taught = gradient.valid > 0
        broken = taught & ~parallel.all_finite((gradient.sums, gradient.loss))
        # After a rollback there are gradients of parameters that are no more.
        stale = taught & ~broken & ((age < 0) | (age > max_age if max_age >= 0 else False))
        arrived = taught & ~broken & ~stale
        usual = largest_usual(server.losses, outlier_deviations)
        outlier = arrived & (loss > usual)
        taken = arrived & ~outlier
        counted = _count(server.losses, jnp.minimum(loss, usual))
        losses = jax.tree.map(lambda new, old: jnp.where(arrived, new, old), counted, server.losses)
        accumulated = _accumulate(server.accumulated, gradient, taken)
        due = accumulated.number >= per_apply

        def update(state: learners.LearnerState, gradient: learners.Gradient) -> Any:
            after, metrics = learner.apply(state, gradient, progress)
            after, metrics = learner.advance(after), metrics | gradient.maxima
            sound = parallel.all_finite((after, metrics))
            return jax.tree.map(lambda new, old: jnp.where(sound, new, old), (after, metrics), (state, zeros)), sound

        shapes = jax.eval_shape(lambda s, g: learner.apply(s, g, progress)[1] | g.maxima, state, accumulated.gradient)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        (state, metrics), sound = jax.lax.cond(
            due, update, lambda state, gradient: ((state, zeros), jnp.ones((), bool)), state, accumulated.gradient
        )
        left = jax.tree.map(lambda x: jnp.where(due, jnp.zeros_like(x), x), accumulated)
        verdict = Verdict(age, stale, outlier, broken, taken, due & sound, due & ~sound)
        return state, Server(left, losses), verdict, metrics

    return receive


def pack(verdict: Verdict, episodes: Any, metrics: dict[str, Array]) -> Array:
    """Returns verdict, sums of episodes and metrics, by name, as one f32 [K], which crosses to the host at once."""
    rows = [*verdict, *jax.tree.leaves(episodes), *(metrics[name] for name in sorted(metrics))]
    return jnp.stack([jnp.asarray(row, jnp.float32).reshape(()) for row in rows])


@jax.jit
def pack_episodes(episodes: Any) -> Array:
    """Returns the sums of episodes as one f32 [K], for what comes without a gradient."""
    return jnp.stack([jnp.asarray(row, jnp.float32).reshape(()) for row in jax.tree.leaves(episodes)])


def unpack(packed: Any) -> tuple[Verdict, np.ndarray]:
    """Returns the verdict in NumPy, and what `pack` put after it, f64."""
    numbers = np.asarray(packed, np.float64)
    count = len(Verdict._fields)
    age, *flags = numbers[:count]
    return Verdict(int(age), *(bool(flag) for flag in flags)), numbers[count:]  # type: ignore[arg-type]


def largest_usual(losses: Losses, deviations: float) -> Array:
    """Returns f32 [], the largest loss that is no outlier: infinite without `deviations`, and while little is known.

    An outlier is counted as so large, so that one of any size hides no other, and what is usual may still grow.
    """
    if not deviations:
        return jnp.full((), jnp.inf)
    deviation = jnp.sqrt(jnp.maximum(losses.square - jnp.square(losses.mean), 0.0))
    is_known = (losses.number >= _LOSSES_BEFORE_OUTLIERS) & (deviation > 0)
    return jnp.where(is_known, losses.mean + deviations * deviation, jnp.inf)


def _count(losses: Losses, loss: Array) -> Losses:
    """Counts a loss: averages at first, and moves by a hundredth later."""
    loss = jnp.clip(loss, -_LARGEST_LOSS, _LARGEST_LOSS)
    rate = jnp.maximum(1 - _DECAY, 1 / (losses.number + 1.0))
    mean = losses.mean + rate * (loss - losses.mean)
    square = losses.square + rate * (jnp.square(loss) - losses.square)
    return Losses(mean, square, losses.number + 1)


def _accumulate(accumulated: Accumulated, gradient: learners.Gradient, taken: Array) -> Accumulated:
    total = jax.tree.map(
        lambda new, old: jnp.where(taken, new, old), add(accumulated.gradient, gradient), accumulated.gradient
    )
    return Accumulated(total, accumulated.number + taken)


def add(one: learners.Gradient, other: learners.Gradient) -> learners.Gradient:
    """Returns the gradient of the rows of both; priorities must be ()."""
    total = jax.tree.map(jnp.add, one._replace(maxima={}), other._replace(maxima={}))
    return total._replace(maxima=jax.tree.map(jnp.maximum, one.maxima, other.maxima))


def without_priorities(gradient: learners.Gradient) -> learners.Gradient:
    """Returns what a worker sends: its replay keeps the priorities."""
    return gradient._replace(priorities=())  # type: ignore[arg-type]


def sharding(mesh: Mesh, leaf: Any) -> NamedSharding:
    """Spreads a leaf over the server's devices by the first axis that they divide, or has it on each."""
    count, ndim = mesh.shape["devices"], len(leaf.shape)
    axis = next((i for i in range(ndim) if leaf.shape[i] and leaf.shape[i] % count == 0), ndim)
    return NamedSharding(mesh, PartitionSpec(*("devices" if i == axis else None for i in range(ndim))))


def make_receive(judge: Callable[..., Any], mesh: Mesh, learner: learners.LearnerState) -> Callable[..., Any]:
    """Compiles the server's step with its state spread over its devices; workers may hold what it is given.

    Args:
        judge: from `make`.
        mesh: of the server's devices.
        learner: leaves [...], for their shapes.

    Returns:
        (learner, server, `programs.Sent`, progress) -> (learner, server, what `pack` returns).
    """
    where = jax.tree.map(lambda x: sharding(mesh, x), learner)
    shared = NamedSharding(mesh, PartitionSpec())

    def step(state: Any, served: Any, sent: Any, progress: Array) -> Any:
        state, served, verdict, metrics = judge(state, served, sent.gradient, sent.given, progress)
        return state, served, pack(verdict, sent.episodes, metrics)

    program = jax.jit(step, out_shardings=(where, shared, shared))

    def receive(state: Any, served: Any, sent: Any, progress: Any) -> Any:
        if sent.gradient.valid.devices() != set(mesh.devices.flat):
            sent = jax.device_put(sent, shared)
        return program(state, served, sent, progress)

    return receive


def no_statistics(params: types.Params) -> bool:
    """Says whether parameters hold nothing that every learned row would have to move on the server."""
    return not jax.tree.leaves(params.statistics)


class Versions:
    """The last few states of the server, oldest first, to roll back to; with none it does nothing."""

    def __init__(self, kept: Sequence[learners.LearnerState], every: int) -> None:
        """Takes up versions that were kept; from now on those after each `every` updates replace the oldest."""
        self.kept = collections.deque(kept, maxlen=len(kept))
        self._every = every

    def add(self, learner: learners.LearnerState) -> None:
        """Keeps a state if it is its turn."""
        if self.kept and int(learner.updates) % self._every == 0:
            self.kept.append(learner)

    def back(self) -> learners.LearnerState:
        """Returns the oldest, which is all that is kept from now on."""
        oldest = self.kept[0]
        self.kept.extend([oldest] * len(self.kept))
        return oldest
