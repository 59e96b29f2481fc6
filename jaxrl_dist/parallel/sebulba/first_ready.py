"""Acts on whichever environments are ready first, so that a slow environment delays only itself.

Every environment fills the rows of a column at its own pace. A column is complete with T rows and the row that closes
them; an unroll is the first B complete columns, of any environments. The closing row is also the first row of the
environment's next column, and is acted on once.
"""

import functools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import agents, envs, types
from jaxrl_dist.parallel import unroll
from jaxrl_dist.parallel.sebulba import queue
from jaxrl_dist.parallel.sebulba.actor import Actor
from jaxrl_dist.parallel.sebulba.actors import Actors
from jaxrl_dist.types import Array, ArrayTree


class Tables(NamedTuple):
    """Keeps the rows of an actor's B environments on its device.

    Attributes:
        carry: leaves [B, ...], acting state before the next row.
        opening: leaves [B, ...], acting state before row 0 of the column that is being filled.
        closing: leaves [B, ...], acting state before that column's closing row.
        rows: `types.Step` [T + 1, B].
    """

    carry: ArrayTree
    opening: ArrayTree
    closing: ArrayTree
    rows: types.Step


class FirstReady:
    """Acts as soon as M environments are ready, see `actor.Acting`; programs run where their arguments are."""

    def __init__(self, actors: Actors) -> None:
        """Builds the programs; compiles none."""
        parts, width, length = actors.parts, actors.width, actors.parts.config.unroll_length
        agent, spec, capacity = parts.agent, parts.environment.spec, width + actors.ready
        self._width, self._ready, self._length = width, actors.ready, length
        rows, space = (unroll.rows_struct(agent, spec, length, columns) for columns in (width, capacity))
        self._begin = jax.jit(functools.partial(_begin, rows, space))
        self._explore = jax.jit(lambda params, env_ids, p: agent.exploration(params, env_ids, parts.num_envs, p))
        self._act = jax.jit(functools.partial(_act, agent, length, width), donate_argnums=1)
        self._collect = jax.jit(functools.partial(_collect, length, width, capacity), donate_argnums=(0, 1))
        self._emit = jax.jit(functools.partial(_emit, width, len(actors.local)))

    def warm_up(self, published: unroll.Published, device: jax.Device) -> None:
        """Compiles nothing, since the programs are compiled for the first rows that come."""

    def play(self, actor: Actor, environment: envs.HostEnvironment) -> Iterator[queue.Unrolled]:
        number, (_, timestep, carry) = actor.begin
        key = jax.random.fold_in(jax.random.fold_in(actor.key, actor.life), number)
        fresh = environment.reset()._replace(info=())
        columns = _Columns(self._width, self._ready, self._length, timestep or fresh)
        tables, space = self._begin(jax.device_put(carry, actor.device))
        version, exploration, arrivals_s = -1, (), time.perf_counter()
        arrivals = _arrivals(environment, columns, self._ready, timestep, fresh)
        for step, (rows, ids, steps_on) in enumerate(arrivals):
            started_s = time.perf_counter()
            columns.seconds["environment_s"] += started_s - arrivals_s
            _, latest, published = actor.parameters(number)
            if latest != version:
                version, exploration = latest, self._explore(published.params, actor.env_ids, published.progress)
            t = columns.t[ids]
            action, tables = self._act(published, tables, exploration, key, np.int32(step), ids, t, rows)
            if steps_on:
                environment.send(np.asarray(action), ids)
            slots = columns.add(rows, ids, version)
            if slots is not None:
                tables, space = self._collect(tables, space, ids, slots)
            arrivals_s = time.perf_counter()
            columns.seconds["inference_s"] += arrivals_s - started_s
            if columns.are_enough:
                parts, space = self._emit(space)
                unrolled = columns.unrolled(actor, number, parts)
                yield unrolled
                number += 1
                actor.at = number, unroll.ActorState((), unrolled.timestep, carry)
                arrivals_s = time.perf_counter()


class _Columns:
    """Counts on the host how many rows each environment's column has, and lists complete columns.

    Attributes:
        t: i32 [B], the next row of each environment's column.
        sums: f64 [4] of the episodes since the last unroll, as `unroll.host_sums` takes them.
        seconds: seconds since the last unroll, by what they were spent on.
    """

    def __init__(self, width: int, ready: int, length: int, opening: types.TimeStep) -> None:
        """Begins every column with these timesteps [B]."""
        self.t = np.zeros(width, np.int32)
        self._width, self._ready, self._length = width, ready, length
        self._oldest = np.zeros(width, np.int64)
        self._closed = jax.tree.map(np.copy, opening)
        self._complete: list[tuple[int, int, types.TimeStep]] = []
        self._clear()

    @property
    def are_enough(self) -> bool:
        """Says whether there are enough complete columns for an unroll."""
        return len(self._complete) >= self._width

    def add(self, rows: types.TimeStep, ids: np.ndarray, version: int) -> np.ndarray | None:
        """Counts rows [M] of these environments, in which this version acted.

        Returns:
            i32 [M], the slot for the column that each row closes, B + M where it closes none; None if no row does.
        """
        t, slots = self.t[ids], None
        done = t == self._length
        self._oldest[ids] = np.where(t == 0, version, self._oldest[ids])
        self.sums[3] += np.count_nonzero(rows.step_type != types.LAST)
        if done.any():
            slots = np.full(self._ready, self._width + self._ready, np.int32)
            slots[done] = len(self._complete) + np.arange(np.count_nonzero(done))
            for row in np.flatnonzero(done):
                self._complete.append((int(ids[row]), int(self._oldest[ids[row]]), _take(rows, row)))
            self._oldest[ids[done]] = version
        self.t[ids] = np.where(done, 1, t + 1)
        return slots

    def unrolled(self, actor: Actor, number: int, parts: tuple[types.Unroll, ...]) -> queue.Unrolled:
        """Takes the first B complete columns off the list; `parts` are their rows, one part for each device."""
        taken, self._complete = self._complete[: self._width], self._complete[self._width :]
        for env, _, closing in taken:
            for table, value in zip(jax.tree.leaves(self._closed), jax.tree.leaves(closing), strict=True):
                table[env] = value
        ids = np.asarray([env for env, _, _ in taken], np.int32)
        # On one device, a replay is told the column of each environment; on several, the replay is `latest`, which has
        # no use for it.
        columns = actor.columns[0] + ids if len(parts) == 1 else actor.columns
        oldest, closed = min(version for _, version, _ in taken), jax.tree.map(np.copy, self._closed)
        episodes, seconds = unroll.host_sums(*self.sums), self.seconds
        self._clear()
        return queue.Unrolled(actor.number, number, oldest, parts, (), columns, closed, episodes, seconds)

    def _clear(self) -> None:
        self.sums, self.seconds = np.zeros(4), {"environment_s": 0.0, "inference_s": 0.0}


def _arrivals(
    environment: envs.HostEnvironment, columns: _Columns, ready: int, timestep: Any, fresh: types.TimeStep
) -> Iterator[tuple[types.TimeStep, np.ndarray, bool]]:
    """Yields rows [M] to act on, the indices of their environments, and whether these environments then step."""
    chunks = np.arange(environment.num_envs, dtype=np.int32).reshape(-1, ready)
    if timestep:
        yield from ((_take(timestep, ids), ids, False) for ids in chunks)
    yield from ((_take(fresh, ids), ids, True) for ids in chunks)
    while True:
        rows, ids = environment.recv()
        unroll.add_episodes(columns.sums, rows)
        yield rows._replace(info=()), ids, True


def _take(timestep: Any, rows: Any) -> Any:
    return jax.tree.map(lambda x: x[rows], timestep)


def _begin(rows: types.Unroll, space: types.Unroll, carry: ArrayTree) -> tuple[Tables, types.Unroll]:
    """Returns tables with the acting states `carry` [B], and zeros [T + 1, B + M] as space for complete columns."""
    steps, space = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (rows.steps, space))
    before, opening, closing = (jax.tree.map(jnp.copy, carry) for _ in range(3))
    return Tables(before, opening, closing, steps), space


def _act(
    agent: agents.Agent,
    length: int,
    width: int,
    published: unroll.Published,
    tables: Tables,
    exploration: ArrayTree,
    key: Array,
    step: Array,
    ids: Array,
    t: Array,
    timestep: types.TimeStep,
) -> tuple[Array, Tables]:
    """Chooses actions [M] for timesteps [M] of environments `ids`, each in row `t` i32 [M] of its column."""
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


def _collect(
    length: int, width: int, capacity: int, tables: Tables, space: types.Unroll, ids: Array, slots: Array
) -> tuple[Tables, types.Unroll]:
    """Copies columns into slots i32 [M] (a slot of B + M copies nothing), and opens the next columns."""
    steps = jax.tree.map(lambda x, rows: x.at[:, slots].set(rows[:, ids], mode="drop"), space.steps, tables.rows)
    carry = jax.tree.map(lambda x, new: x.at[slots].set(new[ids], mode="drop"), space.carry, tables.opening)
    complete = jnp.where(slots < capacity, ids, width)
    rows = jax.tree.map(lambda x: x.at[0, complete].set(x[length, ids], mode="drop"), tables.rows)
    opening = jax.tree.map(lambda x, new: x.at[complete].set(new[ids], mode="drop"), tables.opening, tables.closing)
    return tables._replace(rows=rows, opening=opening), types.Unroll(steps, carry)


def _emit(width: int, parts: int, space: types.Unroll) -> tuple[tuple[types.Unroll, ...], types.Unroll]:
    """Returns the first B columns in parts, and the space without them."""
    whole = types.Unroll(
        jax.tree.map(lambda x: x[:, :width], space.steps), jax.tree.map(lambda x: x[:width], space.carry)
    )
    rest = types.Unroll(
        jax.tree.map(lambda x: jnp.roll(x, -width, 1), space.steps),
        jax.tree.map(lambda x: jnp.roll(x, -width, 0), space.carry),
    )
    return unroll.cut(whole, parts), rest
