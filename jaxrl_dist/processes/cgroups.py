"""Limits of this process by its control groups, of version 1 or 2 (cgroups(7)); a container's are such ones."""

import math
import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

# Of Linux (proc(5), cgroups(7)).
_OWN, _ROOT = pathlib.Path("/proc/self/cgroup"), pathlib.Path("/sys/fs/cgroup")


class Folder(NamedTuple):
    """A group, and whether it is one of version 2."""

    path: pathlib.Path
    is_new: bool


def groups(controller: str) -> Iterator[Folder]:
    """Yields the groups of this process that have a controller, each before those above it; a limit of any holds.

    Args:
        controller: such as "memory" or "cpu".
    """
    try:
        memberships = [line.split(":", 2) for line in _OWN.read_text("utf-8").splitlines()]
    except OSError:
        return
    for _, controllers, path in memberships:
        if controllers and controller not in controllers.split(","):
            continue
        root = _ROOT / controller if controllers else _ROOT
        # Within a container the path may be that of the machine outside, and only the groups above it are there.
        group = pathlib.PurePosixPath(path)
        for one in (group, *group.parents):
            yield Folder(root / one.relative_to("/"), not controllers)


def num_cores() -> int:
    """Returns the cores that this process may use: those that it may run on, or a quota of their time, rounded up.

    Example:
        >>> import os
        >>> from jaxrl_dist.processes import cgroups
        >>> 1 <= cgroups.num_cores() <= len(os.sched_getaffinity(0))
        True
    """
    return min([len(os.sched_getaffinity(0)), *(max(1, math.ceil(_share(group))) for group in groups("cpu"))])


def _share(group: Folder) -> float:
    """Returns the seconds of cores that a group may take in a second, as many as it likes without a quota."""
    names = ("cpu.max",) if group.is_new else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        quota, period = map(int, " ".join((group.path / name).read_text("ascii") for name in names).split())
    except (OSError, ValueError):
        # "max" is no number.
        return float(os.cpu_count() or 1)
    return quota / period if quota > 0 else float(os.cpu_count() or 1)
