"""Acting on whichever environments are ready first, so that a slow one delays itself only.

Every environment fills rows at its own pace. One that has T of them, and the next that closes them, gives a column; an
unroll is the first B columns that are complete, wherever they come from. The closing row is acted on once: it is the
executed first row of the column after it.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import agents, envs, types
from jaxrl_dist.parallel import unroll
from jaxrl_dist.parallel.sebulba import channels, tiers
from jaxrl_dist.types import Array, ArrayTree


class Tables(NamedTuple):
    """Keeps the rows of an actor's B environments on its device.

    Attributes:
        carry: leaves [B, ...], acting state before the next row.
        opening: leaves [B, ...], before row 0 of the column that is being filled.
        closing: leaves [B, ...], before its closing row.
        rows: `types.Step` [T + 1, B].
    """

    carry: ArrayTree
    opening: ArrayTree
    closing: ArrayTree
    rows: types.Step


class Programs(NamedTuple):
    """Programs of one actor; they run where their arguments are. M rows act together.

    Attributes:
        begin: (carry [B]) -> (`Tables`, space [T + 1, B + M] for complete columns).
        explore: (params, env_ids i32 [B], progress) -> tree of [B, ...].
        act: (published, tables, exploration, key, step, ids i32 [M], t i32 [M], timestep [M]) -> (action [M],
            tables); `t` says which row of its column each is. Donates the tables.
        collect: (tables, space, ids i32 [M], slots i32 [M]) -> (tables, space): copies columns into the slots, none
            where a slot is B + M, and opens the columns after them. Donates both.
        emit: (space) -> (parts of the first B columns, space without them).
    """

    begin: Any
    explore: Any
    act: Any
    collect: Any
    emit: Any


def make(
    agent: agents.Agent, spec: types.EnvironmentSpec, num_envs: int, length: int, width: int, ready: int, parts: int
) -> Programs:
    """Builds the programs.

    Args:
        agent: acts.
        spec: of the environments.
        num_envs: of the whole run, for the agent's exploration.
        length: T.
        width: B, environments of one actor.
        ready: M.
        parts: that an unroll's columns are cut into.
    """
    capacity = width + ready

    def begin(carry: ArrayTree) -> Any:
        rows, space = (
            jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tiers.rows_struct(agent, spec, length, columns))
            for columns in (width, capacity)
        )
        opening = jax.tree.map(jnp.copy, carry)
        return Tables(jax.tree.map(jnp.copy, carry), opening, jax.tree.map(jnp.copy, carry), rows.steps), space

    def act(
        published: channels.Published,
        tables: Tables,
        exploration: ArrayTree,
        key: Array,
        step: Array,
        ids: Array,
        t: Array,
        timestep: types.TimeStep,
    ) -> Any:
        before = jax.tree.map(lambda x: x[ids], tables.carry)
        explored = jax.tree.map(lambda x: x[ids], exploration)
        inputs = types.ActInputs(timestep, before, jax.random.fold_in(key, step), explored)
        output = agent.act(published.params, inputs)
        row = types.Step(timestep, output.action, output.extras, jnp.broadcast_to(published.updates, ids.shape))

        def keep(where: Array, table: ArrayTree) -> ArrayTree:
            chosen = jnp.where(where, ids, width)
            return jax.tree.map(lambda x, new: x.at[chosen].set(new, mode="drop"), table, before)

        return output.action, Tables(
            carry=jax.tree.map(lambda x, new: x.at[ids].set(new), tables.carry, output.carry),
            opening=keep(t == 0, tables.opening),
            closing=keep(t == length, tables.closing),
            rows=jax.tree.map(lambda x, new: x.at[t, ids].set(new), tables.rows, row),
        )

    def collect(tables: Tables, space: types.Unroll, ids: Array, slots: Array) -> Any:
        steps = jax.tree.map(lambda x, rows: x.at[:, slots].set(rows[:, ids], mode="drop"), space.steps, tables.rows)
        carry = jax.tree.map(lambda x, new: x.at[slots].set(new[ids], mode="drop"), space.carry, tables.opening)
        complete = jnp.where(slots < capacity, ids, width)
        rows = jax.tree.map(lambda x: x.at[0, complete].set(x[length, ids], mode="drop"), tables.rows)
        opening = jax.tree.map(lambda x, new: x.at[complete].set(new[ids], mode="drop"), tables.opening, tables.closing)
        return tables._replace(rows=rows, opening=opening), types.Unroll(steps, carry)

    def emit(space: types.Unroll) -> Any:
        whole = types.Unroll(
            jax.tree.map(lambda x: x[:, :width], space.steps), jax.tree.map(lambda x: x[:width], space.carry)
        )
        rest = types.Unroll(
            jax.tree.map(lambda x: jnp.roll(x, -width, 1), space.steps),
            jax.tree.map(lambda x: jnp.roll(x, -width, 0), space.carry),
        )
        return unroll.cut(whole, parts), rest

    return Programs(
        begin=jax.jit(begin),
        explore=jax.jit(lambda params, env_ids, progress: agent.exploration(params, env_ids, num_envs, progress)),
        act=jax.jit(act, donate_argnums=1),
        collect=jax.jit(collect, donate_argnums=(0, 1)),
        emit=jax.jit(emit),
    )


class Emitted(NamedTuple):
    """One unroll as it leaves.

    Attributes:
        parts: of the unroll.
        columns: i32 [B], whose environments' its columns are.
        version: the oldest that acted in it.
        timestep: leaves [B, ...] in NumPy: for each environment the row that closes what was emitted of it.
        episodes: sums since the last.
        seconds: since the last, by what they were spent on.
    """

    parts: tuple[types.Unroll, ...]
    columns: np.ndarray
    version: int
    timestep: types.TimeStep
    episodes: unroll.EpisodeSums
    seconds: dict[str, float]


def play(
    programs: Programs,
    ready: int,
    length: int,
    parameters: Callable[[], tuple[int, channels.Published]],
    key: Array,
    env_ids: Array,
    environment: envs.HostEnvironment,
    timestep: types.TimeStep | tuple[()],
    carry: ArrayTree,
) -> Iterator[Emitted]:
    """Plays for ever, and yields unrolls.

    Args:
        programs: from `make`.
        ready: M.
        length: T.
        parameters: () -> newest version and what it is; called before every M rows.
        key: typed key of this actor and start.
        env_ids: i32 [B], global indices, on the actor's device.
        environment: B environments whose `recv` returns M rows.
        timestep: leaves [B, ...], all LAST, that new environments take over from; () begins with their first.
        carry: leaves [B, ...], acting state before that.
    """
    width = environment.num_envs
    all_ids = np.arange(width, dtype=np.int32)
    chunks = all_ids.reshape(-1, ready)
    version, published = parameters()
    tables, space = programs.begin(carry)
    exploration = programs.explore(published.params, env_ids, published.progress)
    t, oldest = np.zeros(width, np.int32), np.full(width, version)
    fresh = environment.reset()._replace(info=())
    # Rows that wait to be acted on, and whether their environments then step.
    first = [(_take(fresh, ids), ids, True) for ids in chunks]
    closed = fresh
    if isinstance(timestep, types.TimeStep):
        first = [(_take(timestep, ids), ids, False) for ids in chunks] + first
        closed = timestep
    closed = jax.tree.map(np.copy, closed)
    complete: list[tuple[int, int, types.TimeStep]] = []
    sums, seconds, step = np.zeros(4), {"environment_s": 0.0, "inference_s": 0.0}, 0
    while True:
        started_s = time.perf_counter()
        if first:
            rows, ids, steps_on = first.pop(0)
        else:
            rows, ids = environment.recv()
            unroll.add_episodes(sums, rows)
            rows, steps_on = rows._replace(info=()), True
        seconds["environment_s"] += time.perf_counter() - started_s
        started_s = time.perf_counter()
        latest, published = parameters()
        if latest != version:
            version, exploration = latest, programs.explore(published.params, env_ids, published.progress)
        action, tables = programs.act(published, tables, exploration, key, np.int32(step), ids, t[ids], rows)
        oldest[ids] = np.where(t[ids] == 0, version, oldest[ids])
        sums[3] += np.count_nonzero(rows.step_type != types.LAST)
        step += 1
        if steps_on:
            environment.send(np.asarray(action), ids)
        done = t[ids] == length
        if done.any():
            slots = np.full(ready, width + ready, np.int32)
            slots[done] = len(complete) + np.arange(np.count_nonzero(done))
            tables, space = programs.collect(tables, space, ids, slots)
            for row in np.flatnonzero(done):
                complete.append((int(ids[row]), int(oldest[ids[row]]), _take(rows, row)))
            oldest[ids[done]] = version
        t[ids] = np.where(done, 1, t[ids] + 1)
        seconds["inference_s"] += time.perf_counter() - started_s
        if len(complete) >= width:
            parts, space = programs.emit(space)
            for env, _, closing in complete[:width]:
                for table, value in zip(jax.tree.leaves(closed), jax.tree.leaves(closing), strict=True):
                    table[env] = value
            columns = np.asarray([env for env, _, _ in complete[:width]], np.int32)
            lowest = min(since for _, since, _ in complete[:width])
            yield Emitted(parts, columns, lowest, jax.tree.map(np.copy, closed), unroll.host_sums(*sums), dict(seconds))
            complete = complete[width:]
            sums, seconds = np.zeros(4), dict.fromkeys(seconds, 0.0)


def _take(timestep: Any, rows: Any) -> Any:
    return jax.tree.map(lambda x: x[rows], timestep)
