"""The learner's side of layouts whose actors are apart: what its tiers share, and what one iteration of them gives."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import agents, parallel, types
from jaxrl_dist import replay as replays
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.learning import step as learning_steps
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.sebulba import queue
from jaxrl_dist.types import Array, ArrayTree


class Learned(NamedTuple):
    """Results of one iteration.

    Attributes:
        learner: leaves [1, ...]; as before where the update was not sound.
        replay: leaves [1, B, ...].
        sound: bool [1], all of the new learner and its metrics is finite.
        updates: i32 [1], made in this iteration.
        metrics: f32 [1] each, their sums.
    """

    learner: learners.LearnerState
    replay: ArrayTree
    sound: Array
    updates: Array
    metrics: dict[str, Array]


class Clock(NamedTuple):
    """The place of a run: the iteration, that of its end, and that at which its replay was empty."""

    iteration: int
    total: int
    replay_began: int

    @property
    def progress(self) -> np.float32:
        """Share of training."""
        return np.float32(self.iteration) / np.float32(self.total)


class Tier(Protocol):
    """Keeps the observations of a replay in one place, and learns from them; of one seed.

    Attributes:
        program: the jitted program of an update.
        publish: (learner) -> (params, updates i32 []), copies without the seeds axis.
        unroll: `types.Unroll` of `jax.ShapeDtypeStruct`, one actor's in all processes together.
        notes: lines that say what it keeps where.
    """

    program: Any
    publish: Any
    unroll: types.Unroll
    notes: tuple[str, ...]

    def init(self, keys: Array) -> tuple[learners.LearnerState, ArrayTree]:
        """Returns the state of the learner and of the replay, of keys [1]."""

    def template(self, keys: Array) -> tuple[learners.LearnerState, ArrayTree]:
        """Returns what `init` does of `jax.ShapeDtypeStruct` with shardings; the replay as `saved` returns it."""

    def saved(self, replay: ArrayTree) -> ArrayTree:
        """Returns what a checkpoint holds of a replay."""

    def compile(self, clock: Clock, learner: learners.LearnerState, key: Array, replay: ArrayTree) -> None:
        """Compiles everything, once."""

    def check(self, clock: Clock, replay: ArrayTree) -> None:
        """Raises what ends a run before it takes the unrolls of an iteration, so that all until then can be saved."""

    def learn(
        self,
        clock: Clock,
        learner: learners.LearnerState,
        key: Array,
        replay: ArrayTree,
        items: Sequence[queue.Item],
    ) -> tuple[Learned, Any]:
        """Runs one iteration, and returns what an unsound one began with, None of a sound one.

        The learner and the replay that are passed are donated.
        """

    def failing_template(self, keys: Array) -> Any:
        """Returns what an unsound iteration began with, of `jax.ShapeDtypeStruct`."""

    def learn_again(self, clock: Clock, failing: Any) -> Learned:
        """Runs an unsound iteration again; a learner that is not finite is returned too."""

    def arguments(self, clock: Clock, learner: learners.LearnerState, key: Array, replay: ArrayTree) -> tuple[Any, ...]:
        """Returns arguments of `program`, of arrays and `jax.ShapeDtypeStruct`."""

    def report(self) -> dict[str, Any]:
        """Returns sums of its own as arrays [1] by name."""

    def close(self) -> None:
        """Ends its threads."""


class Setting(NamedTuple):
    """The parts from which every tier is built.

    Attributes:
        agent: whose rows they are.
        replay: one shard.
        learner: built with `meshes.AXIS`.
        spec: of the environments.
        num_envs: over all unrolls of an iteration.
        num_unrolls: U, taken in one iteration.
        unroll_length: T.
        mesh: one seed's.
    """

    agent: agents.Agent
    replay: replays.Replay
    learner: learners.Learner
    spec: types.EnvironmentSpec
    num_envs: int
    num_unrolls: int
    unroll_length: int
    mesh: Mesh

    @property
    def width(self) -> int:
        """Environments of one unroll."""
        return self.num_envs // self.num_unrolls

    @property
    def pace(self) -> learning_steps.Pace:
        """The schedule of updates."""
        return learning_steps.pace(self.replay, self.unroll_length)


def make_init(setting: Setting, steps: types.Step) -> Any:
    """Makes the program (keys [1]) -> (`LearnerState`, replay state) of rows like `steps` [T + 1, B]."""
    agent, mesh = setting.agent, setting.mesh

    def init(key: Array) -> Any:
        step_spec = unrolls.step_struct(steps)
        carry = jax.eval_shape(lambda: agent.init_carry(setting.width // mesh.shape["devices"]))
        return setting.learner.init(agent.init(run_keys.seed_keys(key).params)), setting.replay.init(step_spec, carry)

    kinds = (meshes.PER_SEED, meshes.COLUMNS)
    return meshes.program(meshes.device_map(init, mesh, (meshes.PER_SEED,), kinds), mesh, kinds)


def make_publish() -> Any:
    """Makes the program (learner) -> (params, updates i32 []), copies without the seeds axis."""
    return jax.jit(lambda state: jax.tree.map(lambda x: x[0], (state.params, state.updates)))


def keys_struct() -> Any:
    """Returns the typed keys [1] of a run as `jax.ShapeDtypeStruct`."""
    return jax.eval_shape(lambda: jax.vmap(jax.random.key)(jnp.zeros(1, jnp.uint32)))


def learning_key(key: Array, iteration: Array) -> Array:
    """Returns this device's key for what is learned in an iteration; call it inside `device_map`."""
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


def rows_struct(agent: agents.Agent, spec: types.EnvironmentSpec, unroll_length: int, width: int) -> types.Unroll:
    """Returns an unroll [T + 1, B] of `jax.ShapeDtypeStruct`."""

    def one() -> tuple[types.Step, ArrayTree]:
        params, carry, timestep = agent.init(jax.random.key(0)), agent.init_carry(width), zero_timestep(spec, width)
        exploration = agent.exploration(params, jnp.arange(width), width, jnp.float32(0))
        output = agent.act(params, types.ActInputs(timestep, carry, jax.random.key(0), exploration))
        version = jnp.zeros(width, jnp.int32)
        return types.Step(timestep, output.action, output.extras, version), carry

    step, carry = jax.eval_shape(one)
    steps = jax.tree.map(lambda x: jax.ShapeDtypeStruct((unroll_length + 1, *x.shape), x.dtype), step)
    return types.Unroll(steps, carry)


def zero_timestep(spec: types.EnvironmentSpec, width: int) -> Any:
    """Returns a timestep [B] in NumPy that ends an episode at zeros: before anything was played."""
    zeros: Any = np.zeros(width, np.float32)
    last: Any = np.full(width, types.LAST, np.int8)
    observation = jax.tree.map(lambda x: np.zeros((width, *x.shape), x.dtype), spec.observation)
    return types.TimeStep(last, zeros, zeros, observation, ())


class Sums:
    """Sums of a call's iterations; the learner's own stay on the devices until asked for."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Starts at zero; `names` are those of the learner's metrics."""
        self._episodes = unrolls.no_episodes()
        self._updates: list[Array] = []
        self._metrics: dict[str, list[Array]] = {name: [] for name in names}

    def add(self, episodes: Sequence[unrolls.EpisodeSums], result: Learned) -> None:
        """Adds an iteration: the sums of its unrolls' episodes, and what the learner gave."""
        for one in episodes:
            self._episodes = jax.tree.map(np.add, self._episodes, one)
        self._updates.append(result.updates.addressable_data(0))
        for name, values in self._metrics.items():
            values.append(result.metrics[name].addressable_data(0))

    def metrics(self, own: dict[str, Any]) -> parallel.Metrics:
        """Returns all of it in NumPy, beside the layout's own sums."""
        updates, metrics = jax.device_get((self._updates, self._metrics))
        total: Callable[[Any], Any] = functools.partial(np.sum, axis=0)
        learned = {name: total([np.zeros(1, np.float32), *values]) for name, values in metrics.items()}
        return parallel.Metrics(self._episodes, total([np.zeros(1, np.int32), *updates]), learned, own)


class Failing(NamedTuple):
    """Inputs of an update that failed; the replay holds its unrolls already, unless it is `latest`."""

    learner: learners.LearnerState
    key: Array
    replay: ArrayTree
    unrolls: tuple[types.Unroll, ...]
    columns: Any
    replay_began: Any


class DeviceTier:
    """See `Tier`.

    Its program is (iteration, total, ready_at, credit, columns i32 [U, B / D], keys [1], learner, replay, U unrolls) ->
    `Learned`. `columns` says which of a device's columns of the replay those of each unroll are, the same on
    every device.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, setting: Setting) -> None:
        """Builds the programs; compiles none."""
        self._mesh, self._num_unrolls = setting.mesh, setting.num_unrolls
        self._columns = setting.width // setting.mesh.shape["devices"]
        self._pace, replay = setting.pace, setting.replay
        self.unroll = rows_struct(setting.agent, setting.spec, setting.unroll_length, setting.width)
        self._init = make_init(setting, self.unroll.steps)
        self.publish = make_publish()
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

    def compile(self, clock: Clock, learner: learners.LearnerState, key: Array, replay: ArrayTree) -> None:
        if self._compiled is None:
            self._compiled = self.program.lower(*self.arguments(clock, learner, key, replay)).compile()

    def check(self, clock: Clock, replay: ArrayTree) -> None:
        del clock, replay

    def learn(
        self,
        clock: Clock,
        learner: learners.LearnerState,
        key: Array,
        replay: ArrayTree,
        items: Sequence[queue.Item],
    ) -> tuple[Learned, Any]:
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

    def learn_again(self, clock: Clock, failing: Failing) -> Learned:
        columns, clock = np.asarray(failing.columns), clock._replace(replay_began=int(failing.replay_began))
        return self._again(
            *self._numbers(clock), columns, failing.key, failing.learner, failing.replay, *failing.unrolls
        )

    def arguments(self, clock: Clock, learner: learners.LearnerState, key: Array, replay: ArrayTree) -> tuple[Any, ...]:
        columns = np.zeros((self._num_unrolls, self._columns), np.int32)
        return (*self._numbers(clock), columns, key, learner, replay, *self._unrolls())

    def report(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass

    def _numbers(self, clock: Clock) -> tuple[Any, ...]:
        credit = self._pace.credit(clock.iteration - clock.replay_began)
        ready_at = clock.replay_began + self._pace.first_ready
        return np.int32(clock.iteration), np.float32(clock.total), np.int32(ready_at), np.int32(credit)

    def _unrolls(self) -> tuple[types.Unroll, ...]:
        return (meshes.placed(self._mesh, meshes.UNROLL, self.unroll),) * self._num_unrolls


def _make_program(setting: Setting, step: Any, keeps_bad: bool, donate: tuple[int, ...]) -> Any:
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
    ) -> Learned:
        pairs = [(unroll, columns[u]) for u, unroll in enumerate(unrolled)]
        after, replay_state, _, updates, metrics = step(
            before, replay_state, pairs, credit, i >= ready_at, learning_key(key, i), i / total
        )
        after, sound = keep_sound(before, after, metrics, keeps_bad)
        return Learned(after, replay_state, sound, updates, metrics)

    shared, per_seed, by_column = meshes.SHARED, meshes.PER_SEED, meshes.COLUMNS
    out_specs: Any = Learned._make((per_seed, by_column, per_seed, per_seed, per_seed))
    in_specs = (*(shared,) * 5, per_seed, per_seed, by_column, *(meshes.UNROLL,) * setting.num_unrolls)
    mapped = meshes.device_map(learn, setting.mesh, in_specs=in_specs, out_specs=out_specs)
    return meshes.program(mapped, setting.mesh, out_specs, donate=donate)
