"""Unrolls on their way to the learner: sent to its devices, and queued in the order in which it takes them."""

import collections
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import types
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.sebulba import channels
from jaxrl_dist.parallel.sebulba.actors import Actors
from jaxrl_dist.replay import packed_observations
from jaxrl_dist.types import ArrayTree


class Unrolled(NamedTuple):
    """One actor's unroll on its way to the learner.

    Attributes:
        actor: index of the actor.
        number: number of the unroll among the actor's; -1 for the stand-in of a late one.
        version: version that acted, the oldest if there were several.
        unroll: `types.Unroll` on the learner's devices; until it is sent, a tuple of parts, one for each device of
            this process.
        packed: its observations, if they stay on the host: for each device of this process a block per column.
        columns: i32 [B / D], the indices of its columns on a device, the same on every device.
        timestep: `types.TimeStep` [B] in NumPy, the closing row of each environment; () if a snapshot held the unroll.
        episodes: sums in NumPy.
        seconds: the actor's seconds, by what they were spent on.
    """

    actor: int
    number: int
    version: int
    unroll: Any
    packed: tuple[Sequence[packed_observations.Block], ...]
    columns: Any
    timestep: Any
    episodes: unrolls.EpisodeSums
    seconds: dict[str, float]


class Sender:
    """Puts unrolls onto the learner's devices of this process, as arrays over all of them; any thread may call it.

    Attributes:
        count: number of unrolls that were sent.
        num_bytes: bytes of these unrolls.
    """

    def __init__(self, actors: Actors) -> None:
        """Takes the actors whose unrolls it sends."""
        parts, self.count, self.num_bytes = actors.parts, 0, 0
        self._mesh, self._devices, self._lock = parts.mesh, actors.local, threading.Lock()
        self._steps, self._carry = (meshes.sharding(self._mesh, kind) for kind in meshes.UNROLL)
        self._observations: packed_observations.Observations | None = None
        if parts.replay.host:
            row = parts.environment.spec.observation
            self._observations = packed_observations.Observations(row, parts.config.unroll_length)

    def __call__(self, unrolled: Unrolled) -> Unrolled:
        """Sends an unroll that is cut by columns into as many parts as there are devices of this process."""
        sending_s, parts = time.perf_counter(), unrolled.unroll
        if self._observations is not None:
            # The last row is left out: it comes again as the first of the next unroll.
            observed = [jax.tree.map(lambda x: x[:-1], part.steps.timestep.observation) for part in parts]
            unrolled = unrolled._replace(packed=tuple(self._observations.pack(one) for one in observed))
            parts = [strip(part) for part in parts]
        placed = [jax.device_put(part, device) for part, device in zip(parts, self._devices, strict=True)]
        steps = jax.tree.map(functools.partial(self._join, 1), *(part.steps for part in placed))
        carry = jax.tree.map(functools.partial(self._join, 0), *(part.carry for part in placed))
        with self._lock:
            self.count += 1
            self.num_bytes += sum(leaf.nbytes for leaf in jax.tree.leaves(parts))
        seconds = unrolled.seconds | {"transfer_s": time.perf_counter() - sending_s}
        return unrolled._replace(unroll=types.Unroll(steps, carry), seconds=seconds)

    def whole(self, unrolled: Unrolled) -> types.Unroll:
        """Returns an unroll with its observations, but with zeros for those of the last row; the inverse of `again`."""
        unroll = unrolled.unroll
        if self._observations is None:
            return unroll  # type: ignore[no-any-return]
        placed = []
        for device, blocks in zip(self._devices, unrolled.packed, strict=True):
            columns = zip(*(self._observations.unpack(block) for block in blocks), strict=True)
            leaves = [np.stack([*column], 1) for column in columns]
            closed = [np.concatenate([x, np.zeros_like(x[:1])]) for x in leaves]
            observed = jax.tree.unflatten(self._observations.structure, closed)
            placed.append(jax.device_put(observed, device))
        return _with_observation(unroll, jax.tree.map(functools.partial(self._join, 1), *placed))

    def again(self, unrolled: Unrolled) -> Unrolled:
        """Packs the observations of an unroll that a snapshot held."""
        if self._observations is None:
            return unrolled
        observed, packed = unrolled.unroll.steps.timestep.observation, []
        for device in range(len(self._devices)):
            shard = jax.tree.map(lambda x: np.asarray(x.addressable_shards[device].data)[:-1], observed)  # noqa: B023
            packed.append(self._observations.pack(shard))
        return unrolled._replace(unroll=strip(unrolled.unroll), packed=tuple(packed))

    def _join(self, axis: int, *pieces: jax.Array) -> jax.Array:
        shape = list(pieces[0].shape)
        shape[axis] *= self._mesh.shape["devices"]
        where = self._steps if axis else self._carry
        return jax.make_array_from_single_device_arrays(tuple(shape), where, pieces)


class UnrollQueue:
    """Unrolls in the order of their arrival, a bounded number of each actor.

    Attributes:
        dropped: how many unrolls came after the others of their number were taken.
    """

    def __init__(self, num_actors: int, size: int, first: int = 0) -> None:
        """Starts empty; holds at most `size` unrolls of each actor, and drops those with a number below `first`."""
        self.dropped = 0
        self._size, self._first = size, first
        self._waiting: list[collections.deque[tuple[int, Unrolled]]] = [collections.deque() for _ in range(num_actors)]
        self._arrivals = 0
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, unrolled: Unrolled, is_current: Callable[[], bool]) -> None:
        """Adds an unroll, or drops it if it is late; waits while the queue is full for its actor.

        Args:
            unrolled: unroll of one actor.
            is_current: () -> whether its actor still counts; the unroll of an actor that was given up is not added.

        Raises:
            channels.Closed: the queue was closed.
        """
        with self._changed:
            while not self._is_closed and is_current():
                if unrolled.number < self._first:
                    self.dropped += 1
                    return
                if len(self._waiting[unrolled.actor]) < self._size:
                    self._waiting[unrolled.actor].append((self._arrivals, unrolled))
                    self._arrivals += 1
                    self._changed.notify_all()
                    return
                self._changed.wait(channels.POLL_S)
        raise channels.Closed

    def take(self, count: int, check: Callable[[], None]) -> list[Unrolled]:
        """Takes the `count` unrolls that came first, all of them or none.

        Args:
            count: number of unrolls.
            check: called while waiting; if it raises, the exception passes through, and nothing was taken.
        """
        with self._changed:
            while sum(map(len, self._waiting)) < count:
                check()
                self._changed.wait(channels.POLL_S)
            oldest = sorted((one[0], actor) for actor, waiting in enumerate(self._waiting) for one in waiting)[:count]
            self._changed.notify_all()
            return [self._waiting[actor].popleft()[1] for _, actor in oldest]

    def take_number(self, number: int, count: int, check: Callable[[], None]) -> list[Unrolled]:
        """Takes all unrolls of a number as soon as there are `count` of them, in the order of their actors.

        Unrolls of this number that come later are dropped.

        Args:
            number: one more than at the last call.
            count: number of unrolls that suffice.
            check: as in `take`.
        """
        with self._changed:
            while len(found := [one for one in self._waiting if one and one[0][1].number == number]) < count:
                check()
                self._changed.wait(channels.POLL_S)
            self._first = number + 1
            self._changed.notify_all()
            return [waiting.popleft()[1] for waiting in found]

    def first(self) -> int:
        """Returns the lowest number that is not late."""
        with self._changed:
            return self._first

    def waiting(self, actor: int) -> list[Unrolled]:
        """Lists an actor's unrolls that wait, oldest first."""
        with self._changed:
            return [unrolled for _, unrolled in self._waiting[actor]]

    def depth(self) -> int:
        """Returns how many unrolls wait."""
        with self._changed:
            return sum(map(len, self._waiting))

    def wake(self) -> None:
        """Makes every waiting thread check its condition again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Ends every `put`, and drops the unrolls that wait."""
        with self._changed:
            self._is_closed = True
            for waiting in self._waiting:
                waiting.clear()
            self._changed.notify_all()


def strip(unroll: types.Unroll) -> types.Unroll:
    """Returns an unroll without its observations."""
    return _with_observation(unroll, ())


def _with_observation(unroll: types.Unroll, observation: ArrayTree) -> types.Unroll:
    timestep = unroll.steps.timestep._replace(observation=observation)
    return unroll._replace(steps=unroll.steps._replace(timestep=timestep))
