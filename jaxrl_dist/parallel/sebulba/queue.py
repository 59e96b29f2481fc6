"""Unrolls on their way to the learner, in the order in which it takes them."""

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import types
from jaxrl_dist.parallel.sebulba import channels
from jaxrl_dist.types import ArrayTree


class Item(NamedTuple):
    """One actor's unroll on its way to the learner.

    Attributes:
        actor: its index.
        number: of the unroll among the actor's.
        version: that acted.
        unroll: `types.Unroll` on the learner's devices.
        packed: its observations, where they stay on the host: for each of this process's devices a block per column.
        columns: i32 [B / D], which of a device's columns these are, the same on every device.
        timestep: `types.TimeStep` [B] in NumPy, of each environment the closing row.
        episodes: sums in NumPy.
        seconds: by what the actor spent them on.
    """

    actor: int
    number: int
    version: int
    unroll: types.Unroll
    packed: channels.Packed
    columns: Any
    timestep: Any
    episodes: Any
    seconds: dict[str, float]


class UnrollQueue:
    """Unrolls in the order of their arrival, and in order for each actor, at most so many of each.

    Attributes:
        dropped: how many came after others of their number were taken.
    """

    def __init__(self, num_actors: int, size: int, first: int = 0) -> None:
        """Holds nothing yet; `size` unrolls of each actor fit, none with a number below `first`."""
        self.dropped = 0
        self._size, self._first = size, first
        self._items: list[collections.deque[tuple[int, Item]]] = [collections.deque() for _ in range(num_actors)]
        self._arrivals = 0
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, item: Item, is_current: Callable[[], bool]) -> None:
        """Adds an unroll, or drops it if it is late, and waits while its actor's are full.

        Args:
            item: of one actor.
            is_current: whether its actor still counts; one that was given up adds nothing any more.

        Raises:
            channels.Closed: nobody takes it.
        """
        with self._changed:
            while not self._is_closed and is_current():
                if item.number < self._first:
                    self.dropped += 1
                    return
                if len(self._items[item.actor]) < self._size:
                    self._items[item.actor].append((self._arrivals, item))
                    self._arrivals += 1
                    self._changed.notify_all()
                    return
                self._changed.wait(channels.POLL_S)
        raise channels.Closed

    def take(self, count: int, check: Callable[[], None]) -> list[Item]:
        """Takes the `count` unrolls that came first, all of them or none.

        Args:
            count: how many.
            check: called while waiting; what it raises is raised here, and nothing was taken.
        """
        with self._changed:
            while sum(map(len, self._items)) < count:
                check()
                self._changed.wait(channels.POLL_S)
            return [self._pop_oldest() for _ in range(count)]

    def take_number(self, number: int, count: int, check: Callable[[], None]) -> list[Item]:
        """Takes every unroll of a number as soon as `count` of them are in, in the order of their actors.

        Those of this number that come later are dropped.

        Args:
            number: one more than at the last call.
            count: how many suffice.
            check: as in `take`.
        """
        with self._changed:
            while len(found := [items for items in self._items if items and items[0][1].number == number]) < count:
                check()
                self._changed.wait(channels.POLL_S)
            self._first = number + 1
            self._changed.notify_all()
            return [items.popleft()[1] for items in found]

    def first(self) -> int:
        """Returns the lowest number that is not late."""
        with self._changed:
            return self._first

    def pending(self, actor: int) -> list[Item]:
        """Lists an actor's unrolls that wait, oldest first."""
        with self._changed:
            return [item for _, item in self._items[actor]]

    def depth(self) -> int:
        """Returns how many unrolls wait."""
        with self._changed:
            return sum(map(len, self._items))

    def wake(self) -> None:
        """Lets who waits look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Ends every `put`, drops what waits, and frees it."""
        with self._changed:
            self._is_closed = True
            for items in self._items:
                items.clear()
            self._changed.notify_all()

    def _pop_oldest(self) -> Item:
        oldest = min((items for items in self._items if items), key=lambda items: items[0][0])
        self._changed.notify_all()
        return oldest.popleft()[1]


def stand_ins(
    rows: types.Unroll,
    carry: ArrayTree,
    num_actors: int,
    send: Callable[[tuple[types.Unroll, ...]], tuple[types.Unroll, channels.Packed]],
    parts: int,
) -> tuple[Item, ...]:
    """Makes what stands in for each actor's unroll; all share their arrays.

    Args:
        rows: `types.Unroll` [T + 1, B / D] of `jax.ShapeDtypeStruct`, one part.
        carry: acting state [B / D, ...].
        num_actors: of this process.
        send: (parts of an unroll) -> the unroll on the learner's devices, and what of it stays on the host.
        parts: of an unroll.
    """
    steps = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), rows.steps)
    last: Any = np.full_like(steps.timestep.step_type, types.LAST)
    steps = steps._replace(timestep=steps.timestep._replace(step_type=last))
    unroll, packed = send((types.Unroll(steps, carry),) * parts)
    columns = np.arange(num_actors * last.shape[1], dtype=np.int32).reshape(num_actors, -1)
    return tuple(Item(actor, -1, -1, unroll, packed, columns[actor], (), (), {}) for actor in range(num_actors))


def fill(items: Sequence[Item], stand_ins: Sequence[Item]) -> list[Item]:
    """Returns an item of each actor: its own where there is one, else what stands in; as they are without these."""
    if not stand_ins:
        return list(items)
    own = {item.actor: item for item in items}
    return [own.get(item.actor, item) for item in stand_ins]


def number_in_time(lag: int, store: channels.ParamStore, queue: UnrollQueue, number: int) -> int:
    """Returns the number of the unroll that an actor plays next.

    It is the one that follows, unless that is late: then the one that is acted with the newest version. An actor whose
    unroll was taken is late for the next number only when a quorum of others is in, so a quorum plays every number.

    Args:
        lag: policy lag.
        store: of the parameters.
        queue: of the unrolls.
        number: one more than that of the actor's last unroll.
    """
    first = queue.first()
    return number if number >= first else max(first, store.newest() + lag)
