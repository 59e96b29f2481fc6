"""The channel from the learner to the actor threads: published parameters, on the device of each.

Every wait ends when the channel is closed; a wait checks for that at least every `POLL_S`.
"""

import threading
from collections.abc import Iterable

import jax

from jaxrl_dist.parallel import unroll

POLL_S = 0.1


class Closed(Exception):  # noqa: N818
    """The channel was closed: nothing more will be sent or taken."""


class ParamStore:
    """The last versions of the parameters, on the device of every actor.

    Attributes:
        count: number of copies to actor devices that are not the learner's.
        num_bytes: bytes of these copies.
    """

    def __init__(self, devices: Iterable[jax.Device], keep: int) -> None:
        """Holds nothing yet.

        Args:
            devices: devices of the actors.
            keep: how many of the newest versions are kept.
        """
        self.count = self.num_bytes = 0
        self._devices = tuple(dict.fromkeys(devices))
        self._keep = keep
        self._versions: dict[int, dict[jax.Device, unroll.Published]] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def publish(self, version: int, published: unroll.Published) -> None:
        """Copies a version to each device of actors, and wakes the actors that wait for it.

        Args:
            version: one more than the last.
            published: arrays on devices, which are never donated.
        """
        placed = {device: self._place(published, device) for device in self._devices}
        with self._changed:
            self._versions[version] = placed
            for old in [v for v in self._versions if v <= version - self._keep]:
                del self._versions[old]
            self._changed.notify_all()

    def wait(self, version: int, device: jax.Device) -> tuple[int, unroll.Published]:
        """Waits until a version or a newer one is published; returns the oldest of these.

        Raises:
            Closed: nothing more will be published.
        """
        with self._changed:
            while not self._is_closed:
                found = [v for v in self._versions if v >= version]
                if found:
                    return min(found), self._versions[min(found)][device]
                self._changed.wait(POLL_S)
        raise Closed

    def newest(self) -> int:
        """Returns the newest version, -1 without one."""
        with self._changed:
            return max(self._versions, default=-1)

    def close(self) -> None:
        """Ends every wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _place(self, published: unroll.Published, device: jax.Device) -> unroll.Published:
        leaves = jax.tree.leaves(published)
        # To put what is there already takes longer than an acting step (26 arrays, 2 cores: 170 µs).
        if all(leaf.devices() == {device} for leaf in leaves):
            return published
        self.count += 1
        self.num_bytes += sum(leaf.nbytes for leaf in leaves)
        return jax.device_put(published, device)
