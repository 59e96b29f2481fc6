"""The parameter server: takes gradients one by one, drops those it should not trust, and applies the others.

Source: Nair et al. 2015, "Massively parallel methods for deep reinforcement learning"
(Gorila), section 4: gradients that are too old, and those whose loss is far from its running mean, are dropped.
"""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_dist import parallel, types
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.types import Array

_LOSSES_BEFORE_OUTLIERS = 100
_DECAY = 0.99
# For each worker: so many gradients in a row that are not finite are a fault.
_BROKEN_IN_A_ROW = 10
# Its square is finite.
_LARGEST_LOSS = 1e18


class Verdict(NamedTuple):
    """The verdict on a gradient: bool [] but for the age, and all False for a gradient of no taught rows.

    Attributes:
        age: i32 [], updates that were made since the gradient's parameters.
        stale: the gradient is dropped for its age, or since its parameters were rolled back.
        outlier: the gradient is dropped for its loss.
        broken: the gradient is dropped since it is not finite.
        taken: the gradient is part of the next update.
        applied: this update was made.
        reverted: this update was not finite and is undone.
    """

    age: Array
    stale: Array
    outlier: Array
    broken: Array
    taken: Array
    applied: Array
    reverted: Array


class Losses(NamedTuple):
    """Running mean and mean square of the loss per taught row, f32 [], and the number of losses, i32 []."""

    mean: Array
    square: Array
    number: Array


class Server(NamedTuple):
    """State of the server, beside that of the learner.

    Attributes:
        gradient: sum of the gradients that wait for others to make an update.
        number: i32 [], number of these gradients.
        losses: of the gradients that were neither broken nor stale.
    """

    gradient: types.Gradient
    number: Array
    losses: Losses


def init(gradient: types.Gradient) -> Server:
    """Returns the state before the first gradient; `gradient` gives the shapes, as arrays or `jax.ShapeDtypeStruct`."""
    # Separate arrays, since one array may not be donated twice.
    losses = Losses(jnp.zeros(()), jnp.zeros(()), jnp.zeros((), jnp.int32))
    return Server(jax.tree.map(jnp.zeros_like, gradient), jnp.zeros((), jnp.int32), losses)


def emptied(server: Server) -> Server:
    """Returns the state without the gradients that waited for others."""
    return init(server.gradient)._replace(losses=server.losses)


def step(
    learner: learners.Learner,
    config: Any,
    state: learners.LearnerState,
    server: Server,
    gradient: types.Gradient,
    given: Array,
    progress: Array,
) -> tuple[learners.LearnerState, Server, Verdict, dict[str, Array]]:
    """Drops a gradient or takes it, and makes the update that is due; undoes an update that is not finite.

    Args:
        learner: built with `types.LOCAL`, since a gradient is already that of all rows of its worker.
        config: settings of the layout.
        state: state of the learner.
        server: state of the server.
        gradient: without priorities.
        given: i32 [], number of updates of the gradient's parameters.
        progress: share of training.

    Returns:
        Both states, the verdict, and the metrics of the update, 0 where there was none.
    """
    loss, age = gradient.loss / jnp.maximum(gradient.valid, 1.0), state.updates - given
    taught = gradient.valid > 0
    broken = taught & ~parallel.all_finite((gradient.sums, gradient.loss))
    # A negative age: the gradient's parameters were rolled back.
    is_old = age > config.max_gradient_age if config.max_gradient_age >= 0 else False
    stale = taught & ~broken & ((age < 0) | is_old)
    arrived = taught & ~broken & ~stale
    usual = largest_usual(server.losses, config.outlier_deviations)
    outlier = arrived & (loss > usual)
    taken = arrived & ~outlier
    counted = _count(server.losses, jnp.minimum(loss, usual))
    losses = jax.tree.map(lambda new, old: jnp.where(arrived, new, old), counted, server.losses)
    total, number = add(server.gradient, gradient), server.number + taken
    total = jax.tree.map(lambda new, old: jnp.where(taken, new, old), total, server.gradient)
    due = number >= config.gradients_per_apply
    state, metrics, sound = _update(learner, state, total, progress, due)
    total, number = jax.tree.map(lambda x: jnp.where(due, jnp.zeros_like(x), x), (total, number))
    verdict = Verdict(age, stale, outlier, broken, taken, due & sound, due & ~sound)
    return state, Server(total, number, losses), verdict, metrics


def pack(verdict: Verdict, episodes: unrolls.EpisodeSums | None, metrics: dict[str, Array]) -> Array:
    """Returns verdict, sums of episodes and metrics, by name, as one f32 [K], which crosses to the host at once."""
    played = unrolls.no_episodes() if episodes is None else episodes
    rows = jax.tree.leaves((verdict, played, metrics))
    return jnp.stack([jnp.asarray(row, jnp.float32).reshape(()) for row in rows])


@jax.jit
def pack_episodes(episodes: unrolls.EpisodeSums) -> Array:
    """Packs the episodes of an unroll that came without a gradient, as `pack` does."""
    none: Any = (0,) * len(Verdict._fields)
    return pack(Verdict(*none), episodes, {})


def unpack(packed: Any) -> tuple[Verdict, np.ndarray]:
    """Returns the verdict in NumPy, and the numbers that `pack` put behind it, f64."""
    numbers = np.asarray(packed, np.float64)
    count = len(Verdict._fields)
    age, *flags = numbers[:count]
    return Verdict(int(age), *(bool(flag) for flag in flags)), numbers[count:]  # type: ignore[arg-type]


def largest_usual(losses: Losses, deviations: float) -> Array:
    """Returns f32 [], the largest loss that is no outlier; infinite if `deviations` is 0, and for the first losses.

    The running mean counts an outlier as this loss: a huge one then does not hide the next outliers, and the bound can
    still grow.
    """
    if not deviations:
        return jnp.full((), jnp.inf)
    deviation = jnp.sqrt(jnp.maximum(losses.square - jnp.square(losses.mean), 0.0))
    is_known = (losses.number >= _LOSSES_BEFORE_OUTLIERS) & (deviation > 0)
    return jnp.where(is_known, losses.mean + deviations * deviation, jnp.inf)


def _count(losses: Losses, loss: Array) -> Losses:
    """Moves mean and mean square towards a loss: as plain averages at first, by a hundredth later."""
    loss = jnp.clip(loss, -_LARGEST_LOSS, _LARGEST_LOSS)
    rate = jnp.maximum(1 - _DECAY, 1 / (losses.number + 1.0))
    mean = losses.mean + rate * (loss - losses.mean)
    square = losses.square + rate * (jnp.square(loss) - losses.square)
    return Losses(mean, square, losses.number + 1)


def _update(
    learner: learners.Learner, state: learners.LearnerState, gradient: types.Gradient, progress: Array, due: Array
) -> tuple[learners.LearnerState, dict[str, Array], Array]:
    """Makes the update if it is `due`, and undoes it if it is not finite; returns state, metrics, and if it was."""

    def moved(state: learners.LearnerState, gradient: types.Gradient) -> Any:
        after, metrics = learner.apply(state, gradient, progress)
        return learner.advance(after), metrics | gradient.maxima

    none = jax.tree.map(jnp.zeros_like, jax.eval_shape(moved, state, gradient)[1])

    def update(state: learners.LearnerState, gradient: types.Gradient) -> Any:
        after = moved(state, gradient)
        sound = parallel.all_finite(after)
        return *jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, (state, none)), sound

    return jax.lax.cond(due, update, lambda state, _: (state, none, jnp.ones((), bool)), state, gradient)  # type: ignore[no-any-return]


def add(one: types.Gradient, other: types.Gradient) -> types.Gradient:
    """Returns the gradient of the rows of both; priorities must be ()."""
    total = jax.tree.map(jnp.add, one._replace(maxima={}), other._replace(maxima={}))
    return total._replace(maxima=jax.tree.map(jnp.maximum, one.maxima, other.maxima))


def without_priorities(gradient: types.Gradient) -> types.Gradient:
    """Returns the gradient that a worker sends to the server, which has no use for priorities."""
    return gradient._replace(priorities=())  # type: ignore[arg-type]


def sharding(mesh: Mesh, leaf: Any) -> NamedSharding:
    """Spreads a leaf over the server's devices along the first axis that they divide; else each device has it whole."""
    count, ndim = mesh.shape["devices"], len(leaf.shape)
    axis = next((i for i in range(ndim) if leaf.shape[i] and leaf.shape[i] % count == 0), ndim)
    return NamedSharding(mesh, PartitionSpec(*("devices" if i == axis else None for i in range(ndim))))


class ParameterServer:
    """The server at work.

    Attributes:
        learner: `LearnerState`, leaves [...], spread over the server's devices.
        state: state of the server, beside that of the learner.
        versions: earlier states of the learner to go back to, oldest first.
        broken: number of gradients in a row that were not finite.
        answers_at_once: whether members are answered without a wait for the verdict, since each gradient is an update.
    """

    def __init__(self, config: Any, step: Callable[..., Any], mesh: Mesh) -> None:
        """Takes the settings of the layout, `step` of a learner, and the server's mesh; call `load` before any use."""
        self.answers_at_once = config.gradients_per_apply == 1 and not config.kept_versions
        self._config, self._step, self._mesh = config, step, mesh
        self._program: Any = None

    def load(self, learner: Any, state: Server, versions: Sequence[Any], broken: int) -> None:
        """Takes over a saved state; learner and versions have leaves [1, ...]."""
        each = [jax.tree.map(lambda x: x[0], one) for one in (learner, *versions)]
        self._spread = jax.tree.map(functools.partial(sharding, self._mesh), each[0])
        self.learner, *others = (jax.device_put(one, self._spread) for one in each)
        self.versions = collections.deque(others, maxlen=len(others))
        self.state, self.broken = state, broken

    def saved(self, learner: learners.LearnerState) -> learners.LearnerState:
        """Returns the learner, or a version of it, as saved states hold it, leaves [1, ...]."""
        where = meshes.sharding(self._mesh, meshes.PER_SEED)
        return jax.device_put(jax.tree.map(lambda x: x[None], learner), where)  # type: ignore[no-any-return]

    def receive(self, work: Any, progress: Any) -> Array:
        """Takes the gradient of a member's work, and returns the packed verdict; donates nothing that members hold."""
        sent = work.gradient, work.given, work.episodes
        shared = meshes.sharding(self._mesh, meshes.SHARED)
        if self._program is None:
            self._program = jax.jit(self._receive, out_shardings=(self._spread, shared, shared))
        if work.gradient.valid.devices() != set(self._mesh.devices.flat):
            sent = jax.device_put(sent, shared)
        self.learner, self.state, packed = self._program(self.learner, self.state, *sent, progress)
        return packed  # type: ignore[no-any-return]

    def settle(self, verdict: Verdict, worker: int) -> bool:
        """Keeps the version that an update made, or goes back to the oldest and drops the others.

        Args:
            verdict: in NumPy.
            worker: index of the worker that sent the gradient.

        Returns:
            Whether it went back, after too many gradients in a row that were not finite.

        Raises:
            FloatingPointError: there were too many, but no version to go back to, or the learner is at it already.
        """
        # A gradient of no rows has no verdict.
        if not any(verdict[1:]):
            return False
        if verdict.applied and self.versions and int(self.learner.updates) % self._config.kept_every == 0:
            self.versions.append(self.learner)
        self.broken = self.broken + 1 if verdict.broken or verdict.reverted else 0
        if self.broken < _BROKEN_IN_A_ROW * self._config.num_workers:
            return False
        if not self.versions or int(self.versions[0].updates) == int(self.learner.updates):
            raise FloatingPointError(
                f"{self.broken} gradients in a row were not finite, the last of worker {worker}; a smaller "
                "learner.learning_rate may help"
            )
        self.versions.extend([self.versions[0]] * len(self.versions))
        self.learner, self.state, self.broken = self.versions[0], emptied(self.state), 0
        return True

    def _receive(
        self, learner: Any, state: Server, gradient: types.Gradient, given: Array, episodes: Any, progress: Array
    ) -> Any:
        learner, state, verdict, metrics = self._step(learner, state, gradient, given, progress)
        return learner, state, pack(verdict, episodes, metrics)
