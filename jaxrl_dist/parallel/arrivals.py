"""Unrolls that have arrived at the learner, in the order in which it takes them.

Every wait ends when the queue is closed, and looks up at least every `channels.POLL_S`.
"""

import collections
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxrl_dist import types
from jaxrl_dist.parallel import channels


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
