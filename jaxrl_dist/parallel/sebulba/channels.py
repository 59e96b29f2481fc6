"""Channels between actor threads and the learner's devices: parameters one way, unrolls the other.

Every wait ends when the channel is closed, and looks up at least every `POLL_S`.
"""

import functools
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import types
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.replay import packed_observations

POLL_S = 0.1

Packed = tuple[Sequence[packed_observations.Block], ...]


class Closed(Exception):  # noqa: N818
    """The other side has gone; there is nothing more to do."""


class Published(NamedTuple):
    """Holds the parameters that actors get from the learner.

    Attributes:
        params: to act with, on the actor's device.
        updates: i32 [], that the learner had made; the version that rows carry.
        progress: f32 [], share of training, for schedules.
    """

    params: types.Params
    updates: Any
    progress: Any


class Transfers:
    """Counts what crosses between devices in one direction; safe between threads.

    Attributes:
        count: of trees.
        num_bytes: of their leaves.
    """

    def __init__(self) -> None:
        self.count = 0
        self.num_bytes = 0
        self._lock = threading.Lock()

    def add(self, tree: Any) -> None:
        """Counts one tree of arrays."""
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
        with self._lock:
            self.count += 1
            self.num_bytes += size


class ParamStore:
    """The last versions of the parameters, on the device of every actor.

    Attributes:
        transfers: to actor devices that are not the learner's.
    """

    def __init__(self, devices: Iterable[jax.Device], keep: int) -> None:
        """Holds nothing yet.

        Args:
            devices: of the actors.
            keep: how many of the newest versions stay.
        """
        self.transfers = Transfers()
        self._devices = tuple(dict.fromkeys(devices))
        self._keep = keep
        self._versions: dict[int, dict[jax.Device, Published]] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def publish(self, version: int, published: Published) -> None:
        """Copies a version to every actor's device, once, and wakes who waits for it.

        Args:
            version: one more than the last.
            published: arrays that nobody donates.
        """
        placed = {device: self._place(published, device) for device in self._devices}
        with self._changed:
            self._versions[version] = placed
            for old in [v for v in self._versions if v <= version - self._keep]:
                del self._versions[old]
            self._changed.notify_all()

    def wait(self, version: int, device: jax.Device) -> tuple[int, Published]:
        """Waits until a version, or a newer one, was published; returns the oldest such.

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
        """Returns the newest version, -1 where there is none."""
        with self._changed:
            return max(self._versions, default=-1)

    def close(self) -> None:
        """Ends every wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _place(self, published: Published, device: jax.Device) -> Published:
        if any(leaf.devices() != {device} for leaf in jax.tree.leaves(published) if isinstance(leaf, jax.Array)):
            self.transfers.add(published)
        return jax.device_put(published, device)


class Sender:
    """Puts an unroll's parts onto the learner's devices of this process, as one array over all of them.

    Attributes:
        transfers: of whole unrolls.
    """

    def __init__(
        self, mesh: Mesh, devices: Sequence[jax.Device], observations: packed_observations.Observations | None = None
    ) -> None:
        """Takes the learner's mesh and those of its devices that are this process's own.

        Args:
            mesh: of the learner.
            devices: of this process.
            observations: how they are compressed where they stay on the host; None sends them.
        """
        self.transfers = Transfers()
        self._mesh, self._devices, self._observations = mesh, devices, observations

    def __call__(self, parts: Sequence[types.Unroll]) -> tuple[types.Unroll, Packed]:
        """Sends one unroll, cut by columns into as many parts as there are devices of this process."""
        packed: Packed = ()
        if self._observations is not None:
            # The last row comes again as the first of the next unroll.
            observed = [jax.tree.map(lambda x: x[:-1], part.steps.timestep.observation) for part in parts]
            packed = tuple(self._observations.pack(one) for one in observed)
            parts = [strip(part) for part in parts]
        placed = [jax.device_put(part, device) for part, device in zip(parts, self._devices, strict=True)]
        self.transfers.add(parts)
        return self._join_parts(placed), packed

    def whole(self, unroll: types.Unroll, packed: Packed) -> types.Unroll:
        """Returns an unroll with its observations, those of the last row zeros; the inverse of `again`."""
        if self._observations is None:
            return unroll
        placed = []
        for device, items in zip(self._devices, packed, strict=True):
            columns = zip(*(self._observations.unpack(block) for block in items), strict=True)
            leaves = [np.stack([*column], 1) for column in columns]
            closed = [np.concatenate([x, np.zeros_like(x[:1])]) for x in leaves]
            observed = jax.tree.unflatten(self._observations.structure, closed)
            placed.append(jax.device_put(observed, device))
        timestep = unroll.steps.timestep._replace(observation=jax.tree.map(functools.partial(self._join, 1), *placed))
        return unroll._replace(steps=unroll.steps._replace(timestep=timestep))

    def again(self, unroll: types.Unroll) -> tuple[types.Unroll, Packed]:
        """Takes up an unroll that a snapshot held."""
        if self._observations is None:
            return unroll, ()
        shards = [
            jax.tree.map(lambda x: np.asarray(x.addressable_shards[d].data)[:-1], unroll.steps.timestep.observation)  # noqa: B023
            for d in range(len(self._devices))
        ]
        return strip(unroll), tuple(self._observations.pack(shard) for shard in shards)

    def _join_parts(self, placed: Sequence[types.Unroll]) -> types.Unroll:
        steps = jax.tree.map(functools.partial(self._join, 1), *(part.steps for part in placed))
        return types.Unroll(steps, jax.tree.map(functools.partial(self._join, 0), *(part.carry for part in placed)))

    def _join(self, axis: int, *pieces: jax.Array) -> jax.Array:
        shape = list(pieces[0].shape)
        shape[axis] *= self._mesh.shape["devices"]
        kind: Any = meshes.UNROLL.steps if axis else meshes.UNROLL.carry
        return jax.make_array_from_single_device_arrays(tuple(shape), meshes.sharding(self._mesh, kind), list(pieces))


def strip(unroll: types.Unroll) -> types.Unroll:
    """Returns an unroll without its observations."""
    timestep = unroll.steps.timestep._replace(observation=())
    return unroll._replace(steps=unroll.steps._replace(timestep=timestep))
