"""Memory: computes a replay's size on its devices before it is allocated, and keeps a process from growing."""

import collections
import contextlib
import ctypes
import math
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from jaxrl_dist import errors
from jaxrl_dist.processes import cgroups
from jaxrl_dist.replay import packed_observations, ring
from jaxrl_dist.settings import resolve

_GIB = 2**30
# Names of glibc's parameters (malloc.h), and their values here.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGE, _ARENAS = 2**24, 2
# Of Linux (proc(5), cgroups(7)).
_MEMORY = pathlib.Path("/proc/meminfo")
# Files of a group's limit and use, and the entry of memory.stat for files that the kernel can drop.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
# Advice to who trains a run, and to who reads one, whose settings stay as they are.
_SMALLER = "take smaller env.num_envs, num_seeds, layout.unroll_length or batches (a dry run lists what takes how much)"
MORE = "free some, or run this where there is more"


class OutOfMemoryError(MemoryError):
    """A device, or the host, has not enough memory; said in one line."""


@contextlib.contextmanager
def named(advice: str = _SMALLER) -> Iterator[None]:
    """Turns errors of JAX and NumPy about missing memory, which are long, into one line.

    Args:
        advice: end of the line.

    Raises:
        OutOfMemoryError: in their place.
    """
    try:
        yield
    except OutOfMemoryError:
        raise
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        wanted = re.search(r"allocat\w* (\d+) bytes", str(error))
        size = f": {readable(int(wanted[1]))} more were wanted" if wanted else ""
        shortage = OutOfMemoryError(f"out of memory{size}; {advice}")
        for note in getattr(error, "__notes__", ()):
            shortage.add_note(note)
        raise shortage from error


def keep_flat() -> bool:
    """Makes the C library give freed blocks of 16 MiB or more back at once, and keep others; before threads start.

    Unrolls are made by one thread and freed by another. Left alone, glibc keeps their memory in an arena for each, in
    ever larger blocks: Pong's frames grew a process by 9 % in six minutes, and now by nothing. A program on the CPU
    takes a block for its temporaries in each call: those of an update of SAC, 8 MiB, took as long to get back from the
    system as the update.

    Returns:
        Whether the C library has these parameters.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    values = {_TRIM_THRESHOLD: 2 * _LARGE, _MMAP_THRESHOLD: _LARGE, _ARENA_MAX: _ARENAS}
    return all(mallopt(name, value) for name, value in values.items())


def replay_parts(state: Any) -> dict[str, int]:
    """Returns the bytes per device of each part of a replay, without empty parts.

    Args:
        state: state of a replay, of `jax.ShapeDtypeStruct` with shardings or of arrays; or a tuple of the states of
            workers, of which the device that holds the most is taken.
    """
    if type(state) is tuple:
        by_device: dict[Any, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for one in state:
            by_device[_place_of(one)].update(replay_parts(one))
        return dict(max(by_device.values(), key=lambda sizes: sizes.total(), default={}))
    found = _ring_of(state)
    if found is None:
        return {}
    timestep = found.rows.timestep
    rest = found.rows._replace(timestep=timestep._replace(observation=()))
    parts = {
        "observations": timestep.observation,
        "other rows": (rest, found.head, found.filled),
        "recurrent states": found.carry,
        "priorities": found.priorities,
    }
    sizes = {name: sum(_bytes_on_one(leaf) for leaf in jax.tree.leaves(part)) for name, part in parts.items()}
    return {name: size for name, size in sizes.items() if size}


def _ring_of(state: Any) -> ring.RingState | None:
    """Returns the ring of a replay's state, None for a replay that keeps no rows."""
    state = state.ring if isinstance(state, packed_observations.Tiered) else state
    return state if isinstance(state, ring.RingState) else None


def devices_of(state: Any) -> list[jax.Device]:
    """Returns this process's devices that hold a part of a replay, or, of a tuple, of some worker's."""
    leaves = jax.tree.leaves([_ring_of(one) for one in (state if type(state) is tuple else (state,))])
    found = {device for leaf in leaves for device in leaf.sharding.device_set}
    return sorted(found & set(jax.local_devices()), key=lambda device: int(device.id))


def places(tree: Any) -> dict[str, int]:
    """Returns the bytes of a tree on each of this process's devices by name, and on the "host" those on no device.

    Args:
        tree: of arrays, or of `jax.ShapeDtypeStruct` with shardings.
    """
    sizes: collections.Counter[str] = collections.Counter()
    for leaf in jax.tree.leaves(tree):
        where = getattr(leaf, "sharding", None)
        if where is None:
            # A leaf whose length only the checkpoint knows (-1) counts as empty.
            sizes["host"] += max(math.prod(leaf.shape), 0) * leaf.dtype.itemsize
            continue
        for device in where.addressable_devices:
            sizes[f"{device.platform}:{device.id}"] += _bytes_on_one(leaf)
    return dict(sizes)


def describe(parts: Mapping[str, int]) -> str:
    """Says in one line how much memory a replay takes on each device; "" without a replay."""
    if not parts:
        return ""
    listed = ", ".join(f"{name} {readable(size)}" for name, size in parts.items())
    return f"replay: {readable(sum(parts.values()))} per device ({listed})"


def check(settings: resolve.Resolved, state: Any, num_agents: int = 1) -> None:
    """Refuses a replay that its devices cannot hold.

    Args:
        settings: the settings that chose its capacity.
        state: as in `replay_parts`.
        num_agents: agents in each environment.

    Raises:
        UsageError: it does not fit; the message has its bytes, the free ones, and the largest capacity that fits.
    """
    needed, devices = sum(replay_parts(state).values()), devices_of(state)
    free = free_on_one(devices) if devices else math.inf
    if needed <= free:
        return
    block = settings["env.num_envs"] * num_agents * settings["layout.unroll_length"]
    fits = math.floor(settings["replay.capacity"] * (free / needed) / block) * block
    fix = f"a capacity of at most {fits} fits" if fits else "no capacity fits, take fewer or smaller environments"
    raise errors.UsageError(
        errors.given("replay.capacity", settings["replay.capacity"]),
        f" takes {readable(needed)} of each device's memory, {readable(int(free))} are free; {fix}",
    )


def _place_of(state: Any) -> Any:
    """Returns the device of a worker's replay, None for a replay that holds nothing."""
    return next((leaf.sharding for leaf in jax.tree.leaves(state)), None)


def _bytes_on_one(leaf: Any) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def free_on_one(devices: Sequence[jax.Device]) -> float:
    """Returns the bytes that are free on each of the devices; virtual devices of a CPU share its memory."""
    if devices[0].platform == "cpu":
        return free_of_host() / len(devices)
    stats = [device.memory_stats() or {} for device in devices]
    return min((s["bytes_limit"] - s["bytes_in_use"] for s in stats if "bytes_limit" in s), default=math.inf)


def free_of_host() -> float:
    """Returns the bytes that this process can get without swapping; infinity where the operating system does not say.

    A container has a limit of its own, which may be far below the memory of its machine.
    """
    try:
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text("ascii").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024.0
    except (OSError, KeyError, ValueError):
        free = math.inf
    return min(free, _left_to_groups())


def _left_to_groups() -> float:
    """Returns the bytes that the control groups of this process, of version 1 or 2, may still take."""
    left = math.inf
    for group in cgroups.groups("memory"):
        left = min(left, _left_to_group(group.path, *(_VERSION_2 if group.is_new else _VERSION_1)))
    return left


def _left_to_group(folder: pathlib.Path, limit: str, used: str, cached: str) -> float:
    """Returns the limit of a group less what it uses, but for files in the cache, which make room; infinity without."""
    try:
        stats = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
        most, now = (int((folder / name).read_text("ascii")) for name in (limit, used))
        return float(max(most - now + int(stats[cached]), 0))
    except (OSError, KeyError, ValueError):
        # "max" is no number.
        return math.inf


def readable(size: float) -> str:
    """Writes a number of bytes."""
    if size < 2**20 // 10:
        return f"{size / 2**10:.1f} KiB"
    return f"{size / _GIB:.2f} GiB" if size >= _GIB // 10 else f"{size / 2**20:.1f} MiB"
