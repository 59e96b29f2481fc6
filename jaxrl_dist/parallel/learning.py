"""The learner's side of layouts whose actors are apart: the program that takes unrolls and updates, over the mesh."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import learner as learners
from jaxrl_dist import replay as replays
from jaxrl_dist import types
from jaxrl_dist.agents import base as agents
from jaxrl_dist.parallel import base
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll as unrolls
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


class Programs(NamedTuple):
    """Programs over the mesh; one seed.

    Attributes:
        init: (keys [1]) -> (`LearnerState`, replay state).
        learn: (iteration, total, credit, columns i32 [U, B / D], keys [1], learner, replay, U unrolls) -> `Learned`.
            The learner and the replay that are passed are donated. `columns` says which of a device's
            columns of the replay those of each unroll are, the same on every device.
        learn_again: the same, of unrolls that the replay already holds (`latest`, which keeps none, takes them anew);
            a learner that is not finite is returned too, and nothing is donated.
        publish: (learner) -> (params, updates i32 []), copies without the seeds axis.
        credit: (iteration) -> what `learn` starts with.
        unroll: `types.Unroll` of `jax.ShapeDtypeStruct`, one actor's in all processes together.
    """

    init: Any
    learn: Any
    learn_again: Any
    publish: Any
    credit: Callable[[int], np.ndarray]
    unroll: types.Unroll


def make(
    agent: agents.Agent,
    replay: replays.Replay,
    learner: learners.Learner,
    spec: types.EnvironmentSpec,
    num_envs: int,
    num_unrolls: int,
    unroll_length: int,
    mesh: Mesh,
) -> Programs:
    """Builds the programs; compiles none.

    Args:
        agent: whose rows they are.
        replay: one shard.
        learner: built with `mesh.AXIS`.
        spec: of the environments.
        num_envs: over all unrolls of an iteration.
        num_unrolls: U, taken in one iteration.
        unroll_length: T.
        mesh: one seed's.
    """
    width = num_envs // num_unrolls
    rows = rows_struct(agent, spec, unroll_length, width)
    first_ready = max(-(-replay.min_rows // unroll_length) - 1, 0)
    kept = replay if replay.min_rows == 0 else replay._replace(add=lambda state, unroll, columns: state)

    def init(key: Array) -> Any:
        step_spec = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), rows.steps)
        carry = jax.eval_shape(lambda: agent.init_carry(width // mesh.shape["devices"]))
        return learner.init(agent.init(base.seed_keys(key).params)), replay.init(step_spec, carry)

    def learn(
        learn: Callable[..., Any],
        keeps_bad: bool,
        i: Array,
        total: Array,
        credit: Array,
        columns: Array,
        key: Array,
        before: learners.LearnerState,
        replay_state: ArrayTree,
        *unrolled: types.Unroll,
    ) -> Learned:
        device_key = jax.random.fold_in(base.seed_keys(key).training, jax.lax.axis_index("devices"))
        learn_key = jax.random.split(jax.random.fold_in(device_key, i))[1]
        pairs = [(unroll, columns[u]) for u, unroll in enumerate(unrolled)]
        after, replay_state, _, updates, metrics = learn(
            before, replay_state, pairs, credit, i >= first_ready, learn_key, i / total
        )
        sound = base.all_finite((after, metrics))
        if not keeps_bad:
            after = jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, before)
        return Learned(after, replay_state, sound, updates, metrics)

    shared, per_seed, by_column = meshes.SHARED, meshes.PER_SEED, meshes.COLUMNS
    device_map = functools.partial(meshes.device_map, mesh=mesh)
    init_kinds = (per_seed, by_column)
    out_specs: Any = Learned._make((per_seed, by_column, per_seed, per_seed, per_seed))
    in_specs = (*(shared,) * 4, per_seed, per_seed, by_column, *(meshes.UNROLL,) * num_unrolls)

    def program(replay: replays.Replay, keeps_bad: bool, donate: tuple[int, ...]) -> Any:
        local = functools.partial(learn, learners.make_learn(learner, replay), keeps_bad)
        mapped = device_map(local, in_specs=in_specs, out_specs=out_specs)
        return meshes.program(mapped, mesh, out_specs, donate=donate)

    def credit(iteration: int) -> np.ndarray:
        numerator, denominator = replay.updates
        return np.asarray(max(iteration - first_ready, 0) * numerator % denominator, np.int32)

    return Programs(
        init=meshes.program(device_map(init, in_specs=(per_seed,), out_specs=init_kinds), mesh, init_kinds),
        learn=program(replay, False, (5, 6)),
        learn_again=program(kept, True, ()),
        publish=jax.jit(lambda state: jax.tree.map(lambda x: x[0], (state.params, state.updates))),
        credit=credit,
        unroll=rows,
    )


def rows_struct(agent: agents.Agent, spec: types.EnvironmentSpec, unroll_length: int, width: int) -> types.Unroll:
    """Returns an unroll [T + 1, B] of `jax.ShapeDtypeStruct`."""

    def one() -> tuple[types.Step, ArrayTree]:
        params, carry, timestep = agent.init(jax.random.key(0)), agent.init_carry(width), zero_timestep(spec, width)
        output = agent.act(params, carry, timestep, jax.random.key(0), jnp.zeros(width))
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

    def metrics(self, own: dict[str, Any]) -> base.Metrics:
        """Returns all of it in NumPy, beside the layout's own sums."""
        updates, metrics = jax.device_get((self._updates, self._metrics))
        total: Any = functools.partial(np.sum, axis=0)
        learned = {name: total([np.zeros(1, np.float32), *values]) for name, values in metrics.items()}
        return base.Metrics(self._episodes, total([np.zeros(1, np.int32), *updates]), learned, own)
