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
from jax.sharding import Mesh

from jaxrl_dist import agents, envs, errors, networks, parallel
from jaxrl_dist import replay as replays
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.learning import step
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.settings import resolve, setting, sweep
from jaxrl_dist.types import Array, ArrayTree

# Rows of a minibatch on each core from which two cores beat one. CartPole gained 1.3× at this size, MinAtar nothing at
# 512, and CartPole lost half at 64; a row of simulated bodies takes ten times as long, and ant gained 1.6× at 160.
_ROWS_PER_CORE = 1024
_ROWS_PER_CORE_PHYSICS = 64


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the layout."""

    unroll_length: int = setting(
        128, "Rows per environment between updates (T).", low=1, source="Schulman et al. 2017, table 5"
    )
    num_devices: int = setting(
        0,
        "Devices to use; 0 takes all accelerators, and on CPUs as many virtual devices as measured faster.",
        low=0,
    )


class State(NamedTuple):
    """Everything a run carries on the devices.

    Attributes:
        learner: `LearnerState`, leaves [S, ...].
        key: typed keys [S], constant; every use folds in what it is for and the iteration.
        actors: `ActorState`, leaves [S, B, ...].
        replay: leaves [S, B, ...].
        replay_began: i32 [] in NumPy, the iteration at which the replay was empty.
    """

    learner: learners.LearnerState
    key: Array
    actors: unrolls.ActorState
    replay: ArrayTree
    replay_began: np.ndarray


def make(
    config: Config,
    agent: agents.Agent,
    replay: replays.Replay,
    learner: learners.Learner,
    environment: envs.Environment,
    num_envs: int,
    mesh: Mesh,
) -> parallel.Layout:
    """Builds the programs.

    Args:
        config: settings.
        agent: acts and defines the loss.
        replay: one shard of it.
        learner: built with `meshes.AXIS`.
        environment: one, on the device.
        num_envs: environments per seed, over all devices.
        mesh: from `meshes.make`.

    Raises:
        UsageError: a replay that keeps observations on the host.
    """
    if replay.host:
        raise errors.UsageError(
            "--replay.storage=host: anakin's program does not leave its devices; valid: device, or --layout=sebulba"
        )
    columns = num_envs // mesh.shape["devices"]
    unroll = unrolls.device_unroll(agent, environment, config.unroll_length)
    learn, pace = step.make(learner, replay), step.pace(replay, config.unroll_length)

    def init(key: Array) -> Any:
        keys = run_keys.seed_keys(key)
        learner_state = learner.init(agent.init(keys.params))
        env_keys = jax.vmap(jax.random.fold_in, (None, 0))(keys.environment, meshes.global_columns(columns))
        actors = unrolls.ActorState(*jax.vmap(environment.reset)(env_keys), agent.init_carry(columns))
        numbers = jnp.float32(1), jnp.int32(0)
        rows = jax.eval_shape(act, key, *numbers, learner_state.params, actors, jnp.int32(0))[1]
        return learner_state, actors, replay.init(unrolls.step_struct(rows.steps), rows.carry)

    def act(device_key: Array, total: Array, i: Array, params: Any, actors: unrolls.ActorState, version: Array) -> Any:
        """Acts out iteration i; also returns the key that is left for learning."""
        act_key, learn_key = jax.random.split(jax.random.fold_in(device_key, i))
        exploration = agent.exploration(params, meshes.global_columns(columns), num_envs, i / total)
        return *unroll(params, actors, act_key, exploration, version), learn_key

    def iterate(device_key: Array, total: Array, ready_at: Array, i: Array, credit: Array, carried: Any) -> Any:
        learner_state, actors, replay_state = carried
        actors, rows, episodes, learn_key = act(
            device_key, total, i, learner_state.params, actors, learner_state.updates
        )
        unrolled = ((rows, jnp.arange(columns, dtype=jnp.int32)),)
        learner_state, replay_state, credit, updates, learned = learn(
            learner_state, replay_state, unrolled, credit, i >= ready_at, learn_key, i / total
        )
        return credit, (learner_state, actors, replay_state), parallel.Metrics(episodes, updates, learned, {})

    def device_key_of(key: Array) -> Array:
        return jax.random.fold_in(run_keys.seed_keys(key).training, jax.lax.axis_index("devices"))

    def run(start: Array, stop: Array, total: Array, ready_at: Array, credit: Array, key: Array, *carried: Any) -> Any:
        one = functools.partial(iterate, device_key_of(key), total, ready_at)
        shapes = jax.eval_shape(one, start, credit, carried)[2]
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def body(i: Array, loop: Any) -> Any:
            credit, carried, metrics = loop
            credit, carried, new = one(i, credit, carried)
            return credit, carried, jax.tree.map(jnp.add, metrics, new)

        _, carried, metrics = jax.lax.fori_loop(start, stop, body, (credit, carried, zeros))
        return *carried, metrics._replace(episodes=meshes.AXIS.sum(metrics.episodes))

    device_map = functools.partial(meshes.device_map, mesh=mesh)
    shared, per_seed, by_column = meshes.SHARED, meshes.PER_SEED, meshes.COLUMNS
    kinds = (per_seed, by_column, by_column)
    init_program = meshes.program(device_map(init, in_specs=(per_seed,), out_specs=kinds), mesh, kinds)
    # The outputs' shardings are given, not inferred: they are the next call's inputs, and must not compile anew.
    in_specs, out_specs = (*(shared,) * 5, per_seed, *kinds), (*kinds, per_seed)
    program = meshes.program(device_map(run, in_specs=in_specs, out_specs=out_specs), mesh, out_specs, donate=(6, 7, 8))

    def init_state(keys: Array) -> State:
        keys = meshes.put_keys(mesh, keys)
        learner_state, actors, replay_state = init_program(keys)
        return State(learner_state, keys, actors, replay_state, np.zeros((), np.int32))

    def template(keys: Array) -> State:
        shapes = jax.eval_shape(init_program, keys)
        learner_state, actors, replay_state = meshes.placed(mesh, kinds, shapes)
        return State(learner_state, meshes.placed(mesh, per_seed, keys), actors, replay_state, np.zeros((), np.int32))

    def run_arguments(state: State, iteration: int, num_iterations: int, total_iterations: int) -> tuple[Any, ...]:
        began = int(state.replay_began)
        bounds = (np.int32(iteration), np.int32(iteration + num_iterations))
        due = (np.int32(began + pace.first_ready), np.int32(pace.credit(iteration - began)))
        numbers = (*bounds, np.float32(total_iterations), *due)
        return (*numbers, state.key, state.learner, state.actors, state.replay)

    def run_state(
        state: State,
        iteration: int,
        num_iterations: int,
        total_iterations: int,
        stopped: Callable[[], bool] = parallel.never,
    ) -> tuple[State, parallel.Metrics]:
        del stopped
        arguments = run_arguments(state, iteration, num_iterations, total_iterations)
        learner_state, actors, replay_state, metrics = program(*arguments)
        return State(learner_state, state.key, actors, replay_state, state.replay_began), metrics

    def out_of_range(i: Array, total: Array, key: Array, learner_state: learners.LearnerState, actors: Any) -> Any:
        rows = act(device_key_of(key), total, i, learner_state.params, actors, learner_state.updates)[1]
        wrong = envs.out_of_range(environment.spec, rows.steps.timestep)
        return jax.tree.map(lambda x: x.swapaxes(0, 1), wrong)

    def find_source(state: State, iteration: int, total: int) -> parallel.BadRow | None:
        kinds = (shared, shared, per_seed, per_seed, by_column)
        find = jax.jit(device_map(out_of_range, in_specs=kinds, out_specs=by_column))
        wrong = find(np.int32(iteration), np.float32(total), state.key, state.learner, state.actors)
        found = [np.argwhere(np.asarray(rows).swapaxes(1, 2)) for rows in wrong.values()]
        first = [(tuple(rows[rows[:, 1].argmin()]), name) for rows, name in zip(found, wrong, strict=True) if len(rows)]
        if not first:
            return None
        (seed, row, column), name = min(first, key=lambda pair: pair[0][1])
        return parallel.BadRow(name, int(seed), int(column), int(row))

    def run_failure(saved: State, iteration: int, total: int) -> tuple[learners.LearnerState, parallel.Metrics]:
        state, metrics = run_state(saved, iteration, 1, total)
        return state.learner, metrics

    return parallel.Layout(
        mesh=mesh,
        rows_per_iteration=num_envs * config.unroll_length,
        init=init_state,
        template=template,
        run=run_state,
        snapshot=lambda state: state,
        kept_failure=lambda: None,
        find_source=find_source,
        failure_template=template,
        run_failure=run_failure,
        report=lambda sums, seconds: {},
        placement=(),
        close=lambda: None,
        program=program,
        run_arguments=run_arguments,
    )


def choose_devices(settings: resolve.Resolved, devices: Sequence[jax.Device], keeps_rows: bool) -> list[jax.Device]:
    """Returns the devices to train on, of those there are.

    All accelerators, or, of virtual devices of a CPU, as many as the work per update can keep busy: seeds never
    communicate and always gain; one seed gains only where a minibatch is long enough to pay for the reductions.

    Raises:
        UsageError: more devices asked for than there are.
    """
    asked = settings["layout.num_devices"]
    if asked > len(devices):
        raise errors.UsageError(f"--layout.num_devices={asked}: there are {len(devices)}; valid: 0 to {len(devices)}")
    if asked or devices[0].platform != "cpu":
        return list(devices[: asked or None])
    counts = range(len(devices), 1, -1)
    members, may_gain = sweep.num_members(settings), not keeps_rows
    count = next((n for n in counts if members % n == 0 or (may_gain and _gains(settings, n))), 1)
    return list(devices[:count])


def replay_shards(settings: resolve.Resolved, num_devices: int) -> int:
    """Returns the shards of a replay: one for each of the learner's devices."""
    del settings
    return num_devices


def _gains(settings: resolve.Resolved, num_devices: int) -> bool:
    """Says whether one seed divides over so many virtual devices of a CPU, and is faster for it."""
    num_envs, minibatches = settings["env.num_envs"], settings["learner.minibatches"]
    rows = num_envs * settings["layout.unroll_length"]
    enough = _ROWS_PER_CORE_PHYSICS if settings.family == "physics" else _ROWS_PER_CORE
    divides = (
        num_envs % (num_devices * minibatches if settings["network.core"] in networks.RECURRENT else num_devices) == 0
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
    make=make,
    serves=("device",),
    seeds_together=True,
    axis=meshes.AXIS,
    choose_devices=choose_devices,
    replay_shards=replay_shards,
)
