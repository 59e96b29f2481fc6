"""Reads the files of a run folder, which strangers or a broken disk may have written: plain files, checked JSON."""

import errno
import json
import os
import pathlib
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from jaxrl_dist import errors

# Limits in bytes of a record, of settings or a summary, and of all records; a run writes far less.
LONGEST_LINE, _LARGEST_OBJECT, LARGEST_FILE = 1 << 24, 1 << 24, 1 << 30
# Limits of numbers: sums and products of many such numbers are finite, too; a run's measurements fit into a float32.
_LARGEST_NUMBER, _LARGEST_COUNT = 1e100, 2**63
_SHOWN = 60


class Kind(NamedTuple):
    """A kind of values: its name in words, and a test whether a value of JSON is of it."""

    words: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    # Written with `not`, so that NaN, which compares as False, is a number, too.
    return value is None or (type(value) in (int, float) and not abs(value) > _LARGEST_NUMBER)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | bool) or _is_number(value)


def list_of(kind: Kind, length: int = 0) -> Kind:
    """Returns the kind of lists of a kind; a length of 0 admits any."""
    words = f"a list{f' of {length}' if length else ''}, each {kind.words}"
    return Kind(words, lambda x: isinstance(x, list) and len(x) == (length or len(x)) and all(map(kind.holds, x)))


ANY = Kind("anything", lambda x: True)
TEXT = Kind("text", lambda x: isinstance(x, str))
COUNT = Kind("a whole number from 0", lambda x: type(x) is int and 0 <= x < _LARGEST_COUNT)
NUMBER = Kind(f"a number up to {_LARGEST_NUMBER:g} or null", _is_number)
AMOUNT = Kind(
    f"a number from 0 to {_LARGEST_NUMBER:g}", lambda x: type(x) in (int, float) and 0 <= x <= _LARGEST_NUMBER
)
VALUE = Kind(
    "a number, a text, true, false, null or a list of these",
    lambda x: all(map(_is_plain, x)) if isinstance(x, list) else _is_plain(x),
)


def check(
    contents: Mapping[str, Any], kinds: Mapping[str, Kind], required: Collection[str] = (), other: Kind = ANY
) -> None:
    """Checks the values of an object.

    Args:
        contents: contents of the object.
        kinds: kind of each name.
        required: names that it must have.
        other: kind of all other names.

    Raises:
        ValueError: a value is missing or of another kind; the message names it.
    """
    for name in required:
        if name not in contents:
            raise ValueError(f"it has no {name}")
    for name, value in contents.items():
        kind = kinds.get(name, other)
        if not kind.holds(value):
            raise ValueError(f"{name} is {shown(value)}; expected {kind.words}")


def shown(value: Any) -> str:
    """Returns a value of JSON for a message, shortened."""
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):
        return "too long to be shown"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def opened(path: pathlib.Path, folder: pathlib.Path | None = None) -> BinaryIO:
    """Opens a plain file of a folder for reading; never waits for a writer, and follows no link out of the folder.

    Args:
        path: path of the file.
        folder: folder in which it must lie, by default its own.

    Raises:
        FileNotFoundError: there is no file.
        UsageError: it is no plain file, lies elsewhere, leads nowhere, or cannot be read.
    """
    try:
        real = os.path.realpath(path, strict=True)
        if not pathlib.Path(real).is_relative_to(os.path.realpath(folder or path.parent)):
            raise errors.UsageError(f"{path} is a link to {real}, out of its folder: put the file itself there")
        if not stat.S_ISREG(os.stat(real).st_mode):
            raise errors.UsageError(f"{path} is no plain file")
        return open(real, "rb")
    except FileNotFoundError:
        if path.is_symlink():
            raise errors.UsageError(f"{path} is a link to nothing") from None
        raise
    except OSError as error:
        reason = "it is a link to itself" if error.errno == errno.ELOOP else error.strerror or error
        raise errors.UsageError(f"{path} cannot be read: {reason}") from None


def read_bytes(path: pathlib.Path, most: int = LARGEST_FILE) -> bytes:
    """Reads a plain file of a folder, as `opened`, of at most so many bytes.

    Raises:
        FileNotFoundError: there is none.
        UsageError: as `opened`, or it is larger.
    """
    with opened(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise errors.UsageError(f"{path} is not what a run writes: it is larger than {most:,} bytes")
    return data


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object; empty if there is no file.

    Raises:
        UsageError: the file holds something else.
    """
    try:
        contents = parsed(read_bytes(path, _LARGEST_OBJECT))
    except FileNotFoundError:
        return {}
    except errors.UsageError:
        raise
    except ValueError as error:
        raise errors.UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(contents, dict):
        raise errors.UsageError(f"{path} is not what a run writes: no JSON object")
    return contents


def parsed(text: bytes) -> Any:
    """Reads JSON.

    Raises:
        ValueError: it is no JSON; the message is one line.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(" ".join(str(error).split())) from None


def lines(path: pathlib.Path, most: int | None = None) -> Iterator[bytes]:
    """Yields the lines of a file with their ends; a line that is far too long comes in pieces without an end.

    Args:
        path: of the file.
        most: its largest size in bytes; None takes any, as of a run of one's own.

    Raises:
        UsageError: it is no plain file, or larger.
    """
    try:
        file = opened(path)
    except FileNotFoundError:
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise errors.UsageError(f"{path} has {size:,} bytes; at most {most:,} are read")
        while line := file.readline(LONGEST_LINE):
            yield line
