"""A run's folder: its lock, its contents, and the replacement of its files."""

import contextlib
import fcntl
import json
import os
import pathlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from jaxrl_dist import errors
from jaxrl_dist.runs import files, software
from jaxrl_dist.settings import resolve
from jaxrl_dist.settings.resolve import Resolved

LOCK_NAME = ".lock"
_OWNER_WRITES_WITHIN_S = 0.05
_FAMILY = files.Kind("text or null", lambda x: isinstance(x, str | None))


def of(settings: Resolved) -> pathlib.Path:
    """Returns the folder of a run: `--out`, or one named after system, environment and seed under `runs`."""
    task = f"{settings['system']}-{settings['env']}".replace(":", "-").replace("/", "-")
    return expanded(settings["out"] or f"runs/{task}-seed{settings['seed']}")


def expanded(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns a path that a user gave, whose ~ is the home folder, as a shell has it."""
    return pathlib.Path(path).expanduser()


def left(folder: pathlib.Path) -> list[str]:
    """Lists records and checkpoints in a run's folder, without a failure; none if the run has only begun."""
    saved = sorted(path.name for path in folder.glob("checkpoints/*") if not path.name.startswith("."))
    written = [name for name in ("metrics.jsonl", "summary.json") if _says_more_than_step_0(folder / name)]
    return [*written, *(f"checkpoints/{name}" for name in saved)]


def check_is_run(folder: str | os.PathLike[str], said: str | errors.Worded = "") -> None:
    """Checks that a folder holds a run.

    Args:
        folder: its path.
        said: how the message names it; by its path without that.

    Raises:
        UsageError: it does not; the message names runs in folders of its own.
    """
    path = pathlib.Path(folder)
    if (path / "config.json").is_file():
        return
    if not path.is_dir():
        why = "it is a file" if path.exists() else "there is no such folder"
        raise errors.UsageError(said or str(folder), f" is no run folder: {why}")
    nested = sorted(str(one.parent) for one in path.glob("*/config.json"))
    hint = f"; it holds runs: {', '.join(nested[:4])}" if nested else ""
    raise errors.UsageError(said or str(folder), f" is no run folder: it has no config.json{hint}")


def config(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the `config.json` of a run folder, empty without one.

    Raises:
        UsageError: it is not what a run writes.
    """
    path = folder / "config.json"
    contents = files.read_json(path)
    if path.exists():
        try:
            files.check(contents, {"family": _FAMILY}, ("family",))
            resolve.entries(contents)
        except ValueError as error:
            raise errors.UsageError(f"{path} is not what a run writes: {error}") from None
    return contents


def _says_more_than_step_0(path: pathlib.Path) -> bool:
    """Says whether a file has records after step 0, at which a run has only evaluated its first parameters.

    A summary is one record of several lines, which say its steps once; a run that was stopped before it began has one.
    """
    if not path.is_file():
        return False
    said = (b'"env_steps": 0,' in line for line in files.lines(path))
    return not (any(said) if path.suffix == ".json" else all(said))


def held(folder: pathlib.Path) -> dict[str, Any] | None:
    """Returns the `config.json` of the run that a folder holds, None if no run was saved or recorded there.

    Raises:
        UsageError: it is not what a run writes.
    """
    if not left(folder):
        return None
    try:
        return config(folder) or None
    except errors.UsageError as error:
        advice = "put it back or remove it: every checkpoint says whose it is"
        raise errors.UsageError(*error.args, f"; {advice}") from None


def write_config(folder: pathlib.Path, settings: resolve.Resolved) -> tuple[resolve.Change, ...]:
    """Writes every setting with its origin, and the commit and versions of each session so far.

    Returns:
        The settings that had other values in the session before.
    """
    earlier = held(folder)
    changes = () if earlier is None else settings.difference(earlier).tunable
    path = folder / "config.json"
    with named(path):
        write_json(path, software.record(settings.as_json(), earlier))
    return changes


@contextlib.contextmanager
def named(path: str | os.PathLike[str], advice: str = "mend that, and the same command goes on") -> Iterator[None]:
    """Adds to errors of the system the name of a file, which they may lack, and an advice.

    Args:
        path: the file, or a folder that contains it.
        advice: end of the message.

    Raises:
        OSError: one was raised within the context.
    """
    try:
        yield
    except OSError as error:
        place = error.filename2 or error.filename or path
        raise OSError(f"{place}: {error.strerror or error}; {advice}") from error


def write_json(path: pathlib.Path, contents: dict[str, Any]) -> None:
    """Replaces a file in one step, so that a kill leaves the old one or the new one."""
    write_text(path, json.dumps(contents, indent=1, allow_nan=False) + "\n")


def write_text(path: pathlib.Path, text: str) -> None:
    """Replaces a file in one step, as `replace` does; bytes of a name that are no text are written as \\udcXX."""
    replace(path, lambda scratch: scratch.write_text(text, encoding="utf-8", errors="backslashreplace"))


def replace(path: pathlib.Path, write: Callable[[pathlib.Path], object]) -> None:
    """Replaces a file, whole or not at all, even if power fails; `write` gets the path to write to.

    Raises:
        OSError: it cannot be written.
    """
    scratch = path.with_name(f".{path.name}.new")
    try:
        # It may be a link, or be left of a kill.
        scratch.unlink(missing_ok=True)
        write(scratch)
        sync_entry(scratch)
        os.replace(scratch, path)
        sync_entry(path.parent)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def sync_entry(path: pathlib.Path) -> None:
    """Waits until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: pathlib.Path) -> None:
    """Waits until a file, if there is one, and its name are on disk."""
    try:
        sync_entry(path)
    except FileNotFoundError:
        return
    sync_entry(path.parent)


@contextlib.contextmanager
def made(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Makes a folder if it is missing; removes the folders that it made if they are still empty at the end.

    Args:
        folder: folder to make, with those above it.

    Raises:
        OSError: it cannot be made.
    """
    path = pathlib.Path(folder)
    missing = [level for level in (path, *path.parents) if not level.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for level in missing:
            # A folder that is not empty stays.
            with contextlib.suppress(OSError):
                level.rmdir()


@contextlib.contextmanager
def lock(folder: str | os.PathLike[str]) -> Iterator[Callable[[], None]]:
    """Holds the folder for this process alone; the lock ends with the context, or if the process dies in any way.

    Args:
        folder: run folder; made if it is missing.

    Returns:
        A check that the folder is still the locked one; it raises a LockError if the folder was moved, removed or taken
        over meanwhile: nothing may then be written into the folder that has its name now.

    Raises:
        LockError: another process, or another holder in this one, has it.
        OSError: the folder cannot be written.
    """
    path = pathlib.Path(folder) / LOCK_NAME
    with contextlib.ExitStack() as stack:
        with named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = stack.enter_context(_take(path))
            # A forked worker that outlives this process would otherwise hold the lock on.
            os.register_at_fork(after_in_child=handle.close)
            handle.truncate(0)
            handle.write(f"process {os.getpid()} on {socket.gethostname()}".encode())

        def check() -> None:
            if not is_at(handle.fileno(), path):
                raise errors.LockError(
                    f"{folder} is no longer the folder that this run began in, it was moved or removed, or its "
                    f"{LOCK_NAME} was: nothing more is written; the same command goes on where its checkpoints are"
                )

        try:
            yield check
        finally:
            # The file is removed before the lock is released, so that no later owner's file is removed. A forked child
            # that gets here has no handle, and must not touch the file.
            if not handle.closed and is_at(handle.fileno(), path):
                path.unlink()


def _take(path: pathlib.Path) -> BinaryIO:
    """Opens and locks a file, which it makes if it is missing."""
    while True:
        # Not through a link, which would lead to a file of somebody else.
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        handle = os.fdopen(descriptor, "a+b", buffering=0)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The owner before may have removed the file between these two calls.
            if is_at(handle.fileno(), path):
                return handle
        except BlockingIOError:
            handle.close()
            raise errors.LockError(
                f"{path.parent} belongs to a running trainer ({_owner(path)}): wait for it or choose another folder"
            ) from None
        handle.close()


def is_at(descriptor: int, path: pathlib.Path) -> bool:
    """Says whether an open file or folder is the one at that path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _owner(path: pathlib.Path) -> str:
    """Reads who holds a lock: the owner writes its name into the file right after it has locked it."""
    time.sleep(_OWNER_WRITES_WITHIN_S)
    unknown = "its process is unknown"
    try:
        return path.read_text(errors="replace") or unknown
    except FileNotFoundError:
        return unknown
