"""The Anakin layout: environments and learner in one compiled program, mapped over all devices.

Source: Hessel et al. 2021, "Podracer architectures for scalable reinforcement learning".
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, errors, networks, parallel
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.learning import step
from jaxrl_dist.numeric import vectors, words
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import placement
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.settings import resolve, setting, sweep
from jaxrl_dist.types import Array, ArrayTree

# Rows of a minibatch on each core from which two cores beat one. CartPole gained 1.3× at this size, MinAtar nothing at
# 512, and CartPole lost half at 64; a row of simulated bodies takes ten times as long, and ant gained 1.6× at 160.
_ROWS_PER_CORE = 1024
_ROWS_PER_CORE_PHYSICS = 64
# Folded into the key of environments it is no column's.
_NO_COLUMN = np.uint32(2**32 - 1)
# How the mesh holds learner, actors and replay, which a run carries.
_CARRIED = (meshes.PER_SEED, meshes.COLUMNS, meshes.COLUMNS)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the layout."""

    unroll_length: int = setting(
        128, "Rows per environment between updates (T).", low=1, source="Schulman et al. 2017, table 5"
    )
    num_devices: int = setting(
        0,
        "Devices of all processes to use; 0 takes all accelerators, and on CPUs as many virtual devices as are faster.",
        low=0,
    )


class State(NamedTuple):
    """Everything a run carries on the devices.

    Attributes:
        learner: `LearnerState`, leaves [S, ...].
        key: typed keys [S], constant; every use folds in its purpose and the iteration.
        actors: `ActorState`, leaves [S, B, ...].
        replay: leaves [S, B, ...].
        replay_began: i32 [] in NumPy, the iteration at which the replay was empty.
    """

    learner: learners.LearnerState
    key: Array
    actors: unrolls.ActorState
    replay: ArrayTree
    replay_began: np.ndarray


class _Keys(NamedTuple):
    """Keys of a seed: of one device, and, the same on all of them, of resets outside an episode's end."""

    device: Array
    resets: Array


class Anakin(parallel.Layout):
    """Acts and learns in one program; made of `parallel.LayoutParts` with an environment on the device.

    Attributes:
        updates_per_iteration: of the learner, on the average once its replay has rows enough.

    Raises:
        UsageError: a replay that keeps observations on the host.
    """

    def __init__(self, parts: parallel.LayoutParts) -> None:
        if parts.replay.host:
            raise errors.UsageError(
                errors.given("replay.storage", "host"),
                ": anakin's program does not leave its devices; valid: device, or ",
                errors.given("layout", "sebulba"),
            )
        self._parts, self.mesh = parts, parts.mesh
        length = parts.config.unroll_length
        self.rows_per_iteration = parts.num_envs * length
        self._envs = parts.num_envs // parts.mesh.shape["devices"]
        self._columns = self._envs * parts.num_agents
        # Words have one column for all leaves, and environments of several agents have fewer than their rows.
        self._packs = _packs(parts.mesh) and parts.num_agents == 1
        self._unroll = unrolls.device_unroll(parts.agent, parts.environment, length, packs=self._packs)
        self._learn, self._schedule = step.make(parts.learner, parts.replay), step.schedule(parts.replay, length)
        numerator, denominator = self._schedule.ratio
        self.updates_per_iteration = numerator / denominator if parts.replay.min_rows else 1.0
        self._init = self._program(self._begin, (meshes.PER_SEED,), _CARRIED)
        in_specs, out_specs = (*(meshes.SHARED,) * 5, meshes.PER_SEED, *_CARRIED), (*_CARRIED, meshes.PER_SEED)
        # Without a replay the number of updates is known as the program is compiled.
        loops = parts.replay.keeps_rows
        self.program = self._program(self._train, in_specs, out_specs, donate=(6, 7, 8), graph_loops=loops)
        self.diagnosis = parallel.Diagnosis(self.template, self.run_again, find_source=self._find_source)

    def init(self, keys: Array) -> State:
        keys = meshes.put_keys(self.mesh, keys)
        learner_state, actors, replay_state = self._init(keys)
        return State(learner_state, keys, actors, replay_state, np.zeros((), np.int32))

    def template(self, keys: Array) -> State:
        placed = functools.partial(meshes.placed, self.mesh)
        learner_state, actors, replay_state = placed(_CARRIED, jax.eval_shape(self._init, keys))
        return State(learner_state, placed(meshes.PER_SEED, keys), actors, replay_state, np.zeros((), np.int32))

    def run(
        self, state: State, iteration: int, count: int, total: int, stopped: Callable[[], bool] = parallel.never
    ) -> tuple[State, parallel.Metrics]:
        del stopped
        *carried, metrics = self.program(*self.run_arguments(state, iteration, count, total))
        learner_state, actors, replay_state = carried
        return State(learner_state, state.key, actors, replay_state, state.replay_began), metrics

    def copies_state(self, num_seeds: int) -> bool:
        # Seeds that run in turn are cut out of the state and put back; a replay is most of it.
        in_turn = num_seeds > self.mesh.shape["seeds"] and not meshes.vectorises_seeds(self.mesh)
        return in_turn and self._parts.replay.keeps_rows

    def run_arguments(self, state: State, iteration: int, count: int, total: int) -> tuple[Any, ...]:
        began = int(state.replay_began)
        bounds = (np.int32(iteration), np.int32(iteration + count))
        due = (np.int32(began + self._schedule.first_ready), np.int32(self._schedule.credit(iteration - began)))
        return (*bounds, np.float32(total), *due, state.key, state.learner, state.actors, state.replay)

    def _program(self, function: Any, in_specs: Any, out_specs: Any, **options: Any) -> Any:
        """Compiles a program of one seed on one device for the mesh."""
        # The outputs' shardings are given, not inferred: they are the next call's inputs, and must not compile anew.
        mapped = meshes.device_map(function, self.mesh, in_specs, out_specs)
        return meshes.program(mapped, self.mesh, out_specs, **options)

    def _begin(self, key: Array) -> Any:
        agent, environment, replay = self._parts.agent, self._parts.environment, self._parts.replay
        keys = run_keys.seed_keys(key)
        learner_state = self._parts.learner.init(agent.init(keys.params))
        columns = envs.columns(environment)
        state, timestep = columns.reset(keys.environment, meshes.global_columns(self._envs))
        actors = unrolls.ActorState(state, timestep, agent.init_carry(self._columns))
        numbers = jnp.float32(1), jnp.int32(0)
        rows = jax.eval_shape(self._act, _Keys(key, key), *numbers, learner_state.params, actors, jnp.int32(0))[1]
        return learner_state, actors, replay.init(unrolls.step_struct(rows.steps), rows.carry)

    def _act(self, keys: _Keys, total: Array, i: Array, params: Any, actors: unrolls.ActorState, version: Array) -> Any:
        """Acts out iteration i; also returns the key that is left for learning."""
        act_key, learn_key = jax.random.split(jax.random.fold_in(keys.device, i))
        column, agent = meshes.global_columns(self._columns), self._parts.agent
        exploration = agent.exploration(params, column, self._parts.num_columns, i / total)
        if agent.fresh_episodes:
            reset_key = jax.random.fold_in(keys.resets, i)
            env_index = meshes.global_columns(self._envs)
            state, timestep = envs.columns(self._parts.environment).reset(reset_key, env_index)
            actors = unrolls.ActorState(state, timestep, agent.init_carry(self._columns))
        return *self._unroll(params, actors, act_key, exploration, version), learn_key

    def _iterate(
        self, keys: _Keys, total: Array, ready_at: Array, i: Array, credit: Array, carried: Any
    ) -> tuple[Array, Any, parallel.Metrics]:
        learner_state, actors, replay_state = carried
        actors, rows, episodes, learn_key = self._act(
            keys, total, i, learner_state.params, actors, learner_state.updates
        )
        unrolled = ((rows, None),)
        learner_state, replay_state, credit, updates, learned = self._learn(
            learner_state, replay_state, unrolled, credit, i >= ready_at, learn_key, i / total
        )
        return credit, (learner_state, actors, replay_state), parallel.Metrics(episodes, updates, learned, {})

    def _train(
        self, start: Array, stop: Array, total: Array, ready_at: Array, credit: Array, key: Array, *carried: Any
    ) -> Any:
        # Traced once, for the shapes of its metrics and for the loop.
        iterate = jax.jit(self._iterate, inline=True)
        one = functools.partial(iterate, _keys(key), total, ready_at)
        shapes = jax.eval_shape(one, start, credit, carried)[2]
        zeros, split = vectors.zeros(shapes)
        # As the loop over rows does: what iterations carry is copied array by array, too.
        pack, unpack = words.packing(self._packs)

        def body(i: Array, loop: Any) -> Any:
            credit, (learner_state, actors, replay_state), sums = loop
            credit, carried, metrics = one(i, credit, (learner_state, unpack(actors), replay_state))
            learner_state, actors, replay_state = carried
            sums = jax.tree.map(jnp.add, sums, vectors.join(metrics)[0])
            return credit, (learner_state, pack(actors), replay_state), sums

        learner_state, actors, replay_state = carried
        loop = (credit, (learner_state, pack(actors), replay_state), zeros)
        _, (learner_state, actors, replay_state), sums = jax.lax.fori_loop(start, stop, body, loop)
        metrics: parallel.Metrics = split(sums)
        carried = learner_state, unpack(actors), replay_state
        return *carried, metrics._replace(episodes=meshes.AXIS.sum(metrics.episodes))

    def _out_of_range(self, i: Array, total: Array, key: Array, learner_state: Any, actors: Any) -> Any:
        rows = self._act(_keys(key), total, i, learner_state.params, actors, learner_state.updates)[1]
        wrong = envs.out_of_range(self._parts.environment.spec, rows.steps.timestep)
        return jax.tree.map(lambda x: x.swapaxes(0, 1), wrong)

    def _find_source(self, state: State, iteration: int, total: int) -> parallel.BadRow | None:
        kinds = (meshes.SHARED, meshes.SHARED, meshes.PER_SEED, meshes.PER_SEED, meshes.COLUMNS)
        find = self._program(self._out_of_range, kinds, meshes.COLUMNS)
        wrong = find(np.int32(iteration), np.float32(total), state.key, state.learner, state.actors)
        found = [np.argwhere(rows.swapaxes(1, 2)) for rows in meshes.to_host(wrong).values()]
        first = [(tuple(rows[rows[:, 1].argmin()]), name) for rows, name in zip(found, wrong, strict=True) if len(rows)]
        if not first:
            return None
        (seed, row, column), name = min(first, key=lambda pair: pair[0][1])
        return parallel.BadRow(name, int(seed), int(column), int(row))


def _packs(mesh: jax.sharding.Mesh) -> bool:
    """Says whether loops carry small leaves as words of one array; a CPU is slower by it."""
    return mesh.devices.flat[0].platform != "cpu"


def _keys(key: Array) -> _Keys:
    """Returns the keys of a seed on this device; call it inside `device_map`."""
    keys = run_keys.seed_keys(key)
    device = jax.random.fold_in(keys.training, jax.lax.axis_index("devices"))
    return _Keys(device, jax.random.fold_in(keys.environment, _NO_COLUMN))


def choose_devices(settings: resolve.Resolved, devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Chooses from the given devices those to train on.

    All accelerators, or, of virtual devices of a CPU, as many as the work per update can keep busy: seeds never
    communicate and always gain; one seed gains only where a minibatch is long enough to pay for the reductions.

    Raises:
        UsageError: the settings ask for more devices than there are, or processes have not as many each.
    """
    asked, owners = settings["layout.num_devices"], placement.by_process(devices)
    valid = range(0, len(devices) + 1, len(owners))
    if asked not in valid:
        told = f"0 to {len(devices)}" if len(owners) == 1 else ", ".join(map(str, valid))
        of_each = f", {len(owners)} processes with as many each" * (len(owners) > 1)
        raise errors.UsageError(
            errors.given("layout.num_devices", asked), f": there are {len(devices)}{of_each}; valid: {told}"
        )
    if asked or devices[0].platform != "cpu":
        return _of_each(owners, asked or len(devices))
    members, may_gain = sweep.num_members(settings), not settings.row.replay.keeps_rows
    gaining = (n for n in reversed(valid[1:]) if members % n == 0 or (may_gain and _gains(settings, n)))
    return _of_each(owners, next(gaining, len(owners)))


def _of_each(owners: Sequence[Sequence[jax.Device]], count: int) -> list[jax.Device]:
    """Returns the first devices of each process, as many of each, `count` in all."""
    return [device for own in owners for device in own[: count // len(owners)]]


def _gains(settings: resolve.Resolved, num_devices: int) -> bool:
    """Says whether one seed can be divided over so many virtual devices of a CPU, and is faster that way."""
    num_envs, minibatches = settings["env.num_envs"], settings["learner.minibatches"]
    rows = num_envs * settings["layout.unroll_length"]
    enough = _ROWS_PER_CORE_PHYSICS if settings.family == "physics" else _ROWS_PER_CORE
    divides = (
        num_envs % (num_devices * minibatches if networks.is_recurrent(settings["network.core"]) else num_devices) == 0
    )
    return (
        sweep.num_members(settings) == 1
        and divides
        and rows % (num_devices * minibatches) == 0
        and rows // (num_devices * minibatches) >= enough
    )


LAYOUT = parallel.LayoutSpec(
    name="anakin",
    summary="The Anakin layout: environments and learner in one compiled program, mapped over all devices.",
    config=Config,
    make=Anakin,
    serves=("device",),
    seeds_together=True,
    axis=meshes.AXIS,
    choose_devices=choose_devices,
)
