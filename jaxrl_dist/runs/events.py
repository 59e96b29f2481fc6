"""The event log of an asynchronous run, `events.bin`: the order of gradients, with their workers, ages and verdicts.

An event has five bytes, little-endian: worker u16, age in updates u16, and the verdict's flags u8 (bit 0 stale, 1
outlier, 2 broken, 3 taken, 4 applied, 5 reverted; none for an actor's unroll). A resumed run cuts the log at the number
of events in its checkpoint. Two events have no worker: a rollback on request, whose age is the index of the version,
and an event that was lost with the end of the log.
"""

import os
import pathlib
import struct
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_dist.runs import files
from jaxrl_dist.runs import folder as run_folder

FILE_NAME = "events.bin"
ROLLBACK, LOST = 2**16 - 1, 2**16 - 2
_EVENT = struct.Struct("<HHB")
_LARGEST_AGE = 2**16 - 1


class Event(NamedTuple):
    """One event: worker, age in updates, and the flags of its verdict as bits."""

    worker: int
    age: int
    flags: int


def encode(worker: int, age: int, flags: Sequence[bool]) -> bytes:
    """Returns an event's bytes; ages are clipped to 0 to 65,535."""
    return _EVENT.pack(worker, min(max(age, 0), _LARGEST_AGE), sum(int(flag) << bit for bit, flag in enumerate(flags)))


def append(folder: str | os.PathLike[str], data: bytes) -> None:
    """Appends events to a run's log; without events it makes no file."""
    path = pathlib.Path(folder) / FILE_NAME
    if data:
        with run_folder.named(path), path.open("ab") as file:
            file.write(data)


def sync(folder: str | os.PathLike[str]) -> None:
    """Waits until a run's log, if it has one, is on disk.

    Raises:
        OSError: it cannot be written there.
    """
    path = pathlib.Path(folder) / FILE_NAME
    with run_folder.named(path):
        run_folder.sync_file(path)


def truncate(folder: str | os.PathLike[str], count: int) -> None:
    """Keeps the first `count` events of a run's log.

    If it has fewer, as on a disk that lost its last bytes, a warning says so, and events of no worker, `LOST`, take the
    place of the others: those that follow keep their numbers, by which the log's readers know the sessions.

    Raises:
        UsageError: it is no plain file of the folder.
    """
    path = pathlib.Path(folder) / FILE_NAME
    try:
        with files.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        size = 0
    kept = min(size // _EVENT.size, count)
    if size > kept * _EVENT.size:
        with run_folder.named(path):
            os.truncate(path, kept * _EVENT.size)
    if kept < count:
        append(folder, encode(LOST, 0, []) * (count - kept))
        warnings.warn(missing(path, count - kept, count), RuntimeWarning, stacklevel=2)


def missing(path: pathlib.Path, lost: int, count: int) -> str:
    """Says that a log lacks events of those before a checkpoint."""
    return (
        f"{path}: {lost:,} of the {count:,} events before the newest checkpoint are missing, so the run cannot be "
        "repeated by it"
    )


def read(folder: str | os.PathLike[str]) -> list[Event]:
    """Returns the events of a run, oldest first; a half-written last one is left out.

    Raises:
        FileNotFoundError: it has no log.
        UsageError: that is no plain file of the folder.
    """
    data = files.read_bytes(pathlib.Path(folder) / FILE_NAME)
    return [Event(*fields) for fields in _EVENT.iter_unpack(data[: len(data) // _EVENT.size * _EVENT.size])]
