"""Acts on whichever environments are ready first, so that a slow environment delays only itself.

Every environment fills the rows of a column at its own pace. A column is complete with T rows and the row that closes
them; an unroll is the first B complete columns, of any environments. The closing row is also the first row of the
environment's next column, and is acted on once.
"""

import functools
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import agents, envs, types
from jaxrl_dist.envs.host import episodes
from jaxrl_dist.parallel import unroll
from jaxrl_dist.parallel.sebulba import queue
from jaxrl_dist.parallel.sebulba.actor import Actor
from jaxrl_dist.parallel.sebulba.actors import Actors
from jaxrl_dist.types import Array, ArrayTree


class FirstReady:
    """Acts as soon as M environments are ready, see `actor.Acting`; the program runs where the parameters are."""

    def __init__(self, actors: Actors) -> None:
        """Builds the programs; compiles none."""
        parts, self._actors, self.open = actors.parts, actors, actors.make_environments
        agent, spec = parts.agent, parts.environment.spec
        self._explore = jax.jit(lambda params, env_ids, p: agent.exploration(params, env_ids, parts.num_envs, p))
        self._act = jax.jit(functools.partial(_act, agent, spec), donate_argnums=1)

    def warm_up(self, published: unroll.Published, device: jax.Device) -> None:
        """Compiles nothing, since the programs are compiled for the first rows that come."""

    def play(self, actor: Actor, environment: envs.HostEnvironment) -> Iterator[queue.Unrolled]:
        number, (_, timestep, carry) = actor.begin
        # `fold_in` of numbers gives the bits of `split`, and this actor's other draws begin with them.
        own = jax.random.split(actor.key)[0]
        key = jax.random.fold_in(jax.random.fold_in(own, actor.life), number)
        length, ready, parts = self._actors.parts.config.unroll_length, self._actors.ready, len(self._actors.local)
        columns = _Columns(environment, length, ready, carry, timestep)
        acting = jax.tree.map(jnp.copy, jax.device_put(carry, actor.device))
        version, exploration, arrivals_s = -1, (), time.perf_counter()
        updates = np.zeros((), np.int32)
        for step, (raw, ids, steps_on) in enumerate(_arrivals(environment, ready, timestep)):
            started_s = time.perf_counter()
            columns.seconds["environment_s"] += started_s - arrivals_s
            _, latest, published = actor.parameters(number)
            if latest != version:
                version, exploration = latest, self._explore(published.params, actor.env_ids, published.progress)
                updates = np.asarray(published.updates)
            arguments = published.params, acting, exploration, key, np.int32(step), ids, raw
            sent, acted, before, acting = self._act(*arguments)
            if steps_on:
                environment.raw_send(np.asarray(sent), ids)
            columns.add((raw, acted, np.broadcast_to(updates, ids.shape)), ids, version, before)
            arrivals_s = time.perf_counter()
            columns.seconds["inference_s"] += arrivals_s - started_s
            if columns.are_enough:
                unrolled = columns.unrolled(actor, number, parts)
                yield unrolled
                number += 1
                actor.at = number, unroll.ActorState((), unrolled.timestep, carry)
                arrivals_s = time.perf_counter()


class _Columns:
    """Keeps the rows of each environment's column on the host, and the complete columns.

    Attributes:
        seconds: seconds since the last unroll, by what they were spent on.
    """

    def __init__(
        self, environment: envs.HostEnvironment, length: int, ready: int, carry: ArrayTree, timestep: Any
    ) -> None:
        """Begins every column; M environments are added at a time, whose acting states are like these [B, ...].

        A timestep [B] from which new environments take over closes, for them, the columns before.
        """
        self._environment, self._length, self._width = environment, length, environment.num_envs
        self._t = np.zeros(self._width, np.int32)
        self._oldest = np.zeros(self._width, np.int64)
        self._capacity = self._width + ready
        self._rows, self._complete_rows = unroll.Rows(length), unroll.Rows(length)
        self._opening = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), carry)
        self._complete_opening = self._carries()
        self._complete: list[tuple[int, int]] = []
        self._closed: Any = jax.tree.map(np.array, timestep) if timestep else None
        self.seconds = _no_seconds()

    @property
    def are_enough(self) -> bool:
        """Says whether there are enough complete columns for an unroll."""
        return len(self._complete) >= self._width

    def add(self, row: ArrayTree, ids: np.ndarray, version: int, before: ArrayTree) -> None:
        """Adds rows [M] of these environments, in which this version acted, with the acting states before them."""
        t = self._t[ids]
        if not self._rows.leaves:
            self._rows.allocate(row, self._width)
            self._complete_rows.allocate(row, self._capacity)
        self._rows.write((t, ids), row)
        opens, closes = t == 0, t == self._length
        if opens.any():
            self._oldest[ids[opens]] = version
            _keep(self._opening, ids[opens], before, opens)
        if closes.any():
            done = ids[closes]
            slots = len(self._complete) + np.arange(len(done))
            for table, complete in zip(self._rows.leaves, self._complete_rows.leaves, strict=True):
                complete[:, slots] = table[:, done]
                # The row that closes a column opens the next one.
                table[0, done] = table[self._length, done]
            _keep(self._complete_opening, slots, self._opening, done)
            _keep(self._opening, done, before, closes)
            self._complete += [(int(env), int(self._oldest[env])) for env in done]
            self._oldest[done] = version
        self._t[ids] = np.where(closes, 1, t + 1)

    def unrolled(self, actor: Actor, number: int, parts: int) -> queue.Unrolled:
        """Takes the first B complete columns off the list, checks them, and cuts them into parts for the devices."""
        width, rest = self._width, slice(self._width, len(self._complete))
        taken, self._complete = self._complete[:width], self._complete[width:]
        ids, oldest = np.asarray([env for env, _ in taken], np.int32), min(version for _, version in taken)
        tables, opening = self._complete_rows, self._complete_opening
        self._complete_rows, self._complete_opening = tables.emptied(), self._carries()
        for new, old in zip(self._complete_rows.leaves, tables.leaves, strict=True):
            new[:, : len(self._complete)] = old[:, rest]
        _keep(self._complete_opening, slice(len(self._complete)), opening, rest)
        raw, acted, version = jax.tree.map(lambda x: x[:, :width], tables.tree())
        steps, sums = unroll.finished(self._environment, (raw, acted), version, ids)
        closing = jax.tree.map(lambda x: x[-1], steps.timestep)
        if self._closed is None:
            self._closed = jax.tree.map(np.zeros_like, closing)
        for place, env in enumerate(ids):
            # One by one, as an environment may have closed several.
            jax.tree.map(lambda table, x: table.__setitem__(env, x[place]), self._closed, closing)  # noqa: B023
        # On one device, a replay is told the column of each environment; on several, the replay is `latest`, which has
        # no use for it.
        columns = actor.columns[0] + ids if parts == 1 else actor.columns
        cut = unroll.cut(types.Unroll(steps, jax.tree.map(lambda x: x[:width], opening)), parts)
        closed, seconds, self.seconds = jax.tree.map(np.copy, self._closed), self.seconds, _no_seconds()
        return queue.Unrolled(actor.number, number, oldest, cut, (), columns, closed, sums, seconds)

    def _carries(self) -> ArrayTree:
        """Returns space for the acting states of complete columns."""
        return jax.tree.map(lambda x: np.zeros((self._capacity, *x.shape[1:]), x.dtype), self._opening)


def _no_seconds() -> dict[str, float]:
    return {"environment_s": 0.0, "inference_s": 0.0}


def _keep(table: ArrayTree, places: Any, values: ArrayTree, rows: Any) -> None:
    """Copies some rows of a tree to places in a table in NumPy."""
    for kept, new in zip(jax.tree.leaves(table), jax.tree.leaves(values), strict=True):
        kept[places] = np.asarray(new)[rows]


def _arrivals(
    environment: envs.HostEnvironment, ready: int, timestep: Any
) -> Iterator[tuple[envs.RawStep, np.ndarray, bool]]:
    """Yields rows [M] to act on, the indices of their environments, and whether these environments then step."""
    chunks = np.arange(environment.num_envs, dtype=np.int32).reshape(-1, ready)
    if timestep:
        # New environments take over from the last rows of others; the reset is a row like any other.
        lost, fresh = episodes.raw_step(timestep), environment.raw_reset()
        yield from ((_take(lost, ids), ids, False) for ids in chunks)
    else:
        fresh = episodes.raw_step(environment.reset())
    yield from ((_take(fresh, ids), ids, True) for ids in chunks)
    while True:
        raw, ids = environment.raw_recv()
        yield raw, ids, True


def _take(raw: Any, rows: Any) -> Any:
    return jax.tree.map(lambda x: x[rows], raw)


def _act(
    agent: agents.Agent,
    spec: types.EnvironmentSpec,
    params: types.Params,
    carry: ArrayTree,
    exploration: ArrayTree,
    key: Array,
    step: Array,
    ids: Array,
    raw: envs.RawStep,
) -> tuple[Array, tuple[Array, ArrayTree], ArrayTree, ArrayTree]:
    """Acts in rows [M] of environments `ids`; `carry` [B, ...] has all acting states.

    Returns:
        Actions that are safe to send, the agent's own actions and extras, the acting states before them, all [M, ...],
        and all acting states after them.
    """
    before, explored = (jax.tree.map(lambda x: x[ids], tree) for tree in (carry, exploration))
    inputs = types.ActInputs(episodes.timestep(raw), before, jax.random.fold_in(key, step), explored)
    output = agent.act(params, inputs)
    after = jax.tree.map(lambda x, new: x.at[ids].set(new), carry, output.carry)
    return episodes.safe_action(spec, output.action), (output.action, output.extras), before, after
