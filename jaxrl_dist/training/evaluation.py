"""Evaluates in environments of its own, one whole episode each, with statistics frozen, on all devices."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import agents, envs, errors, parallel, processes, types
from jaxrl_dist.envs.host import episodes as host_episodes
from jaxrl_dist.envs.host import hangs
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import precision, unroll
from jaxrl_dist.types import Array, ArrayTree

# Steps until evaluation first checks for a stop; after them it knows how many take a second.
_FIRST_SLICE = 64


class _Episodes(NamedTuple):
    """One episode in each of E environments; `done` and `returns` are [E], leaves of timestep and carry [B, ...]."""

    environment: ArrayTree
    timestep: types.TimeStep
    carry: ArrayTree
    done: Array
    returns: Array


def make(
    agent: agents.Agent,
    environment: envs.Environment,
    episodes: int,
    max_steps: int,
    mesh: Mesh,
) -> Callable[..., np.ndarray | None]:
    """Makes the evaluation of one policy per seed.

    Args:
        agent: chooses actions by its `evaluate`.
        environment: one environment on the device.
        episodes: number of episodes per seed.
        max_steps: steps of an episode where the environment has no time limit.
        mesh: from `mesh.make`.

    Returns:
        (params [S, ...], keys [S], index, limit, stopped) -> f64 [S, episodes] undiscounted returns, of several agents
        their mean; equal arguments give equal returns. An episode is cut at the environment's time limit, or at
        `max_steps` if it has none, and counts with its return so far; `limit` lowers this bound (0 only compiles).
        `stopped`, () -> bool, is called about once a second; if it is True, the evaluation ends and returns None.
    """
    num_envs = -(-episodes // mesh.shape["devices"])
    by_seed, by_column = meshes.PER_SEED, meshes.COLUMNS
    reset, started = functools.partial(_reset, agent, environment, num_envs), (by_seed, by_column)
    reset = meshes.program(meshes.device_map(reset, mesh, (meshes.SHARED, by_seed), started), mesh, started)
    play_specs = (meshes.SHARED, meshes.SHARED, by_seed, by_seed, by_column)
    play = meshes.device_map(functools.partial(_play, agent, environment), mesh, play_specs, by_column)
    play = meshes.program(play, mesh, by_column, donate=(4,), graph_loops=True)
    longest = environment.spec.time_limit or max_steps

    def run(
        params: types.Params,
        keys: Array,
        index: int,
        limit: int = longest,
        stopped: Callable[[], bool] = parallel.never,
    ) -> np.ndarray | None:
        act_keys, state = reset(np.int32(index), meshes.put_keys(mesh, keys))
        done = _played_in_slices(play, params, act_keys, state, min(limit, longest), stopped)
        return None if done is None else meshes.to_host(done.returns).astype(np.float64)[:, :episodes]

    return run


def _reset(
    agent: agents.Agent, environment: envs.Environment, num_envs: int, index: Array, key: Array
) -> tuple[Array, _Episodes]:
    """Begins the episodes of this device; also returns the key for choosing actions."""
    env_key, act_key = jax.random.split(jax.random.fold_in(key, index))
    state, timestep = envs.columns(environment).reset(env_key, meshes.global_columns(num_envs))
    carry = agent.init_carry(num_envs * environment.spec.num_agents)
    done, returns = jnp.zeros(num_envs, bool), jnp.zeros(num_envs)
    return act_key, _Episodes(state, timestep, carry, done, returns)


def _play(
    agent: agents.Agent,
    environment: envs.Environment,
    start: Array,
    stop: Array,
    params: types.Params,
    act_key: Array,
    episodes: _Episodes,
) -> _Episodes:
    """Plays from one step to another, or until all episodes of this device are done."""
    act_key = jax.random.fold_in(act_key, jax.lax.axis_index("devices"))
    step, num_agents = envs.columns(environment).step, environment.spec.num_agents

    def unfinished(loop: tuple[Array, _Episodes]) -> Array:
        i, episodes = loop
        return (i < stop) & ~episodes.done.all()

    def body(loop: tuple[Array, _Episodes]) -> tuple[Array, _Episodes]:
        i, (state, timestep, carry, done, returns) = loop
        key = jax.random.fold_in(act_key, i)
        inputs = types.ActInputs(timestep._replace(info=()), carry, key, state=state)
        output = agent.evaluate(params, inputs)
        state, timestep = step(state, output.action)
        info = timestep.info
        ended, so_far, _ = envs.outcomes(num_agents, timestep.step_type, info.episode_return, info.episode_length)
        returns = jnp.where(done, returns, so_far)
        done = done | ended
        return i + 1, _Episodes(state, timestep, output.carry, done, returns)

    return jax.lax.while_loop(unfinished, body, (start, episodes))[1]


def _played_in_slices(
    play: Any, params: types.Params, act_keys: Array, episodes: _Episodes, limit: int, stopped: Callable[[], bool]
) -> _Episodes | None:
    """Plays until all episodes are done or at the limit; checks for a stop about once a second, then returns None."""
    start, length = 0, _FIRST_SLICE
    while True:
        started_s, stop = time.perf_counter(), min(start + length, limit)
        episodes = play(np.int32(start), np.int32(stop), params, act_keys, episodes)
        if processes.all_of(_all_done(episodes)) or stop == limit:
            return episodes
        if processes.any_of(stopped()):
            return None
        seconds = time.perf_counter() - started_s
        start, length = stop, processes.agreed(max(1, round(min(length / seconds, 4 * length))))


def _all_done(episodes: _Episodes) -> bool:
    """Says whether all episodes on the devices of this process are done."""
    return all(np.asarray(shard.data).all() for shard in episodes.done.addressable_shards)


def acting(agent: agents.Agent) -> Callable[..., Any]:
    """Compiles (params, carry, timestep [B], key, t, state) -> (action [B], carry), which acts as in evaluation."""

    def choose(
        params: types.Params, carry: ArrayTree, timestep: types.TimeStep, key: Array, t: Array, state: ArrayTree = ()
    ) -> Any:
        output = agent.evaluate(params, types.ActInputs(timestep, carry, jax.random.fold_in(key, t), state=state))
        return output.action, output.carry

    return jax.jit(choose)


def make_on_host(
    agent: agents.Agent, task: envs.HostTask, episodes: int, max_steps: int, timeout_s: float
) -> Callable[..., np.ndarray | None]:
    """Makes the evaluation in environments on the CPU, whose episodes are dealt to the processes in turn; see `make`.

    Args:
        agent: chooses actions by its `evaluate`.
        task: makes new environments for each evaluation, with seeds of their own.
        episodes: number of episodes per seed.
        max_steps: steps of an episode where the environment has no time limit.
        timeout_s: longest step of an environment.
    """
    act = acting(agent)
    longest = task.spec.time_limit or max_steps
    own = slice(processes.index(), episodes, processes.count())
    num_own = len(range(episodes)[own])

    def play(params: types.Params, key: Array, index: int, limit: int, stopped: Callable[[], bool]) -> Any:
        seed_key, act_key = jax.random.split(jax.random.fold_in(key, index))
        if processes.count() > 1:
            # Else a column would draw the same in every process.
            act_key = jax.random.fold_in(act_key, processes.index())
        columns = num_own * task.spec.num_agents
        carry = agent.init_carry(columns)
        if limit == 0 or num_own == 0:
            if num_own:
                timestep = unroll.zero_timestep(task.spec, columns)
                jax.block_until_ready(act(params, carry, timestep, act_key, np.int32(0)))
            return np.zeros(num_own)
        seeds = host_episodes.seeds(int(jax.random.bits(seed_key)), "evaluation", 0, 0, episodes)[own]
        as_precise, left = precision.of_this_thread(), threading.Event()

        def ends() -> bool:
            return left.is_set() or stopped()

        def work(make: Callable[[], envs.HostEnvironment]) -> np.ndarray | None:
            with as_precise(), contextlib.closing(make()) as environment:
                return _play_episodes(environment, limit, functools.partial(act, params, key=act_key), carry, ends)

        make = functools.partial(task.make_evaluation or task.make, seeds, num_own, timeout_s)
        # Also in several processes: its programs run in this one alone, so nobody else waits for their order.
        return hangs.watched(task.spec.name, make, work, stopped, left)

    def run(
        params: types.Params,
        keys: Array,
        index: int,
        limit: int = longest,
        stopped: Callable[[], bool] = parallel.never,
    ) -> np.ndarray | None:
        local = jax.tree.map(lambda x: x.addressable_data(0), params)
        seeds = range(keys.shape[0])
        with processes.alike():
            played = [play(jax.tree.map(lambda x: x[i], local), keys[i], index, limit, stopped) for i in seeds]  # noqa: B023
        whole = None if any(x is None for x in played) else np.asarray(played, np.float64)
        return _dealt(whole, len(seeds), episodes)

    return run


def _dealt(played: np.ndarray | None, num_seeds: int, episodes: int) -> np.ndarray | None:
    """Returns the returns f64 [S, episodes] of all processes, None if one of them was stopped.

    Args:
        played: f64 [S, n], of this process.
        num_seeds: S.
        episodes: number of episodes per seed, which are dealt to the processes in turn.
    """
    if processes.count() == 1:
        return played
    of_each = processes.exchange(None if played is None else played.tolist(), lambda said: said)
    if None in of_each:
        return None
    returns = np.zeros((num_seeds, episodes))
    for number, some in enumerate(of_each):
        returns[:, number :: len(of_each)] = some
    return returns


def check_finite(returns: np.ndarray, settings: Mapping[str, Any]) -> None:
    """Checks the returns of an evaluation.

    Args:
        returns: f64 [S, episodes].
        settings: settings of the run.

    Raises:
        EnvironmentFault: a return is not finite; the message names environment, episode and seed.
    """
    wrong = np.argwhere(~np.isfinite(returns))
    if len(wrong):
        member, episode = wrong[0]
        seed = settings["seed"] + member % settings["num_seeds"]
        raise errors.EnvironmentFault(
            f"the return of {settings['env']} is {returns[member, episode]} in episode {episode} of an evaluation, "
            f"seed {seed}: one of its rewards is not finite"
        )


def _play_episodes(
    environment: envs.HostEnvironment,
    limit: int,
    act: Callable[..., Any],
    carry: ArrayTree,
    stopped: Callable[[], bool],
) -> np.ndarray | None:
    """Plays one whole episode in each environment; returns f64 [episodes], None at a stop."""
    timestep = environment.reset()
    returns, done = np.zeros(environment.num_envs), np.zeros(environment.num_envs, bool)
    played, t = np.zeros(environment.num_envs, int), 0
    while not (done | (played >= limit)).all():
        if t and stopped():
            return None
        action, carry = act(carry, timestep._replace(info=()), t=np.int32(t))
        timestep, t = environment.step(np.asarray(action)), t + 1
        info = timestep.info
        ended, so_far, length = envs.outcomes(
            environment.spec.num_agents, timestep.step_type, info.episode_return, info.episode_length
        )
        counts = ~done & (played < limit)
        returns = np.where(counts, so_far, returns)
        # An episode that a fault has cut short has length 0; the next one counts instead, as a whole.
        is_first = (timestep.step_type == types.FIRST).reshape(environment.num_envs, -1).all(-1)
        played = np.where(counts, np.where(is_first | (ended & (length == 0)), 0, played + 1), played)
        done = done | (counts & ended & (length > 0))
    return returns
