"""The event log of an asynchronous run, `events.bin`: the order of gradients, with their workers, ages and verdicts.

An event has five bytes, little-endian: worker u16, age in updates u16, and the verdict's flags u8 (bit 0 stale, 1
outlier, 2 broken, 3 taken, 4 applied, 5 reverted; none for an actor's unroll). A resumed run cuts the log at the number
of events in its checkpoint. A rollback on request is an event of no worker, whose age is the index of the version.
"""

import os
import pathlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_dist.runs import files
from jaxrl_dist.runs import folder as run_folder

FILE_NAME = "events.bin"
ROLLBACK = 2**16 - 1
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


def truncate(folder: str | os.PathLike[str], count: int) -> None:
    """Keeps the first `count` events of a run's log, if it has one.

    Raises:
        UsageError: it is no plain file of the folder.
    """
    path = pathlib.Path(folder) / FILE_NAME
    try:
        with files.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return
    if size > count * _EVENT.size:
        with run_folder.named(path):
            os.truncate(path, count * _EVENT.size)


def read(folder: str | os.PathLike[str]) -> list[Event]:
    """Returns the events of a run, oldest first; a half-written last one is left out.

    Raises:
        FileNotFoundError: it has no log.
        UsageError: that is no plain file of the folder.
    """
    data = files.read_bytes(pathlib.Path(folder) / FILE_NAME)
    return [Event(*fields) for fields in _EVENT.iter_unpack(data[: len(data) // _EVENT.size * _EVENT.size])]
