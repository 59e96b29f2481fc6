"""Saves trees of arrays to folders that are whole or not there, and restores the newest with every byte right.

Arrays are stored by Orbax, which checks no data bytes; so each folder has a manifest of our own with the digest of
every file. Nothing in it can run code: arrays are plain bytes, everything else is JSON, and the structure comes from
the reader's own template, leaf by leaf under its path. Functions that write expect the caller to hold the folder's
lock.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from jaxrl_dist import errors, processes
from jaxrl_dist.runs import files
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.runs.checkpoint import arrays as storage
from jaxrl_dist.runs.checkpoint import manifest, pieces
from jaxrl_dist.settings import setting

verify = manifest.verify
Path = str | os.PathLike[str]
T = TypeVar("T")
_STEP = re.compile(r"step_\d{12,}")
_SLOT = re.compile(r"[a-z][a-z_]*")
_ARRAYS, _CONTENTS = "arrays", "contents.json"
# Names of a folder that is being written, replaced or deleted, and of one that was set aside as corrupt.
_NEW, _OLD, _TRASH, _CORRUPT = ".new-", ".old-", ".trash-", "corrupt_"
# File in a folder until its first step: tells a run that was killed before that from one that has lost its steps.
_UNSAVED = ".unsaved"
# A slot that is replaced so many times in a row while it is read is given up.
_READS = 5
# So long the processes of a run wait for one whose folder is slow, or away.
_WRITE_WITHIN_S = 1800.0


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of checkpoints."""

    keep: int = setting(2, "How many of the latest checkpoints are kept.", low=1, tag="tunable")
    interval_s: float = setting(60.0, "Least wall seconds between two checkpoints.", low=0.0, tag="tunable")
    replay: bool = setting(
        True,
        "Save the replay, too; off: a resumed run fills it anew before it learns, and differs from an unbroken one.",
    )


def save(
    folder: Path, name: int | str, tree: Any, meta: Mapping[str, Any], check: Callable[[], None] = lambda: None
) -> pathlib.Path:
    """Saves a tree under a step or in a slot; on return all of it is on disk, and the tree may be donated.

    A kill at any time leaves the earlier checkpoints whole; a slot's old one is deleted after the new one is there.

    Args:
        folder: folder of the checkpoints; made if it is missing.
        name: environment steps, or the name of a slot that each save replaces, such as "best".
        tree: jax or NumPy arrays of any dtype, also typed keys.
        meta: data of JSON's types.
        check: checks the lock, before anything is written and before the checkpoint gets its name.

    Returns:
        The folder of the checkpoint.

    Raises:
        ValueError: a leaf is not an array, or the name is not valid.
        TypeError: JSON cannot hold `meta`.
        CheckpointError: it cannot be written, such as on a full disk; earlier checkpoints are untouched.
        LockError: the lock is no longer held.
    """
    path = pathlib.Path(folder) / _name(name)
    leaves = storage.describe(tree)
    is_alone = processes.count() == 1
    # Of one process the arrays are copied first, so that nothing is written of a tree that cannot be.
    arrays = [storage.to_numpy(leaf) for leaf in jax.tree.leaves(tree)] if is_alone else []
    contents = {"leaves": leaves, "meta": meta}
    json.dumps(contents)
    new = path.with_name(_NEW + path.name)

    def begin_new(said: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _delete(new)
        new.mkdir()

    def finish(written: list[_Written]) -> None:
        whole = contents if is_alone else contents | {"pieces": [piece for pieces, _ in written for piece in pieces]}
        (new / _CONTENTS).write_text(json.dumps(whole, indent=1))
        digests = {name: digest for _, of_one in written for name, digest in of_one.items()}
        digests |= manifest.digests(new, set(digests))
        (new / manifest.NAME).write_bytes(manifest.encode(digests))
        manifest.sync(new)
        check()
        if not isinstance(name, str):
            (path.parent / _UNSAVED).unlink(missing_ok=True)
        _replace(new, path)

    processes.exchange(None, lambda said: check())
    try:
        processes.exchange(None, begin_new)
        with processes.alike(_WRITE_WITHIN_S):
            if is_alone:
                storage.write_arrays(new / _ARRAYS, leaves, arrays)
            own: _Written = ([], {}) if is_alone else _write_own(new, tree)
        processes.exchange(own, finish, _WRITE_WITHIN_S)
    except BaseException as error:
        if processes.is_first():
            # The folder of that name may be another trainer's by now.
            check()
            shutil.rmtree(new, ignore_errors=True)
        if not isinstance(error, Exception):
            raise
        reason = manifest.one_line(error)
        raise errors.CheckpointError(f"cannot save {path}: {reason}; earlier checkpoints are untouched") from error
    return path


# The pieces that a process has written, and the digests of its files.
_Written = tuple[list[pieces.Piece], dict[str, dict[str, Any]]]


def _write_own(new: pathlib.Path, tree: Any) -> _Written:
    """Writes what this one of several processes holds of a tree, into a folder that process 0 has made."""
    if not new.is_dir():
        raise OSError(f"{new} is not there: the processes of a run share its folder")
    written = pieces.write(new, [pieces.data_of(leaf) for leaf in jax.tree.leaves(tree)])
    name = pieces.file_of(processes.index())
    manifest.sync(new / name)
    return written, {name: manifest.digest(new / name)}


def restore(path: Path, template: Any, check: Callable[[Any], None] = lambda meta: None) -> tuple[Any, Any]:
    """Restores a checkpoint after checking every byte of it.

    Args:
        path: folder that `save` returned.
        template: tree of arrays or `jax.ShapeDtypeStruct`s with the same leaves; its containers may be of other types.
        check: (meta) checks the meta before the leaves are compared; its exceptions pass through.

    Returns:
        The tree in the template's containers and shardings (on the default device where a leaf has none; a NumPy leaf
        stays NumPy), and the meta.

    Raises:
        CheckpointError: it is missing or corrupt, or Orbax cannot read it.
        ValueError: its leaves differ from the template's; the message names the first one, with both shapes.
    """
    path = pathlib.Path(path)
    verify(path)
    return _restore(path, template, check)


def _restore(path: pathlib.Path, template: Any, check: Callable[[Any], None]) -> tuple[Any, Any]:
    """Restores a checkpoint whose bytes are checked; see `restore`."""
    leaves, meta, written = _read_contents(path)
    check(meta)
    expected = storage.describe(template)
    storage.check_match(path, leaves, expected)
    arrays: list[Any]
    try:
        arrays = [*(storage.read_arrays(path / _ARRAYS, leaves) if written is None else ())]
    except Exception as error:
        raise errors.CheckpointError(f"{path}: Orbax cannot read the arrays: {manifest.one_line(error)}") from error
    if written is not None:
        arrays = [*pieces.read(path, leaves, written)]
    stored = {leaf.path: (leaf, array) for leaf, array in zip(leaves, arrays, strict=True)}
    targets, structure = jax.tree.flatten(template)
    placed = [storage.place(*stored[leaf.path], target) for leaf, target in zip(expected, targets, strict=True)]
    return jax.tree.unflatten(structure, placed), meta


def read_meta(path: Path) -> Any:
    """Reads the meta of a checkpoint, after checking every byte of it.

    Raises:
        CheckpointError: it is missing or corrupt.
    """
    verify(path)
    return _read_contents(pathlib.Path(path))[1]


def restore_latest(
    folder: Path, template: Any, warn: Callable[[str], None], check: Callable[[Any], None] = lambda meta: None
) -> tuple[Any, Any] | None:
    """Restores the newest whole step; corrupt ones before it are reported and set aside as `corrupt_step_...`.

    Args:
        folder: folder of the checkpoints.
        template: as in `restore`.
        warn: called with one line for each corrupt checkpoint.
        check: as in `restore`.

    Returns:
        Tree and meta, or None if there is no step.

    Raises:
        CheckpointError: there are steps, but none is whole (nothing is changed then), or Orbax cannot read a whole one.
        ValueError: the leaves differ from the template's.
    """
    corrupt: list[pathlib.Path] = []

    def set_aside(said: Any) -> None:
        # Otherwise they would count among the newest, which `prune` keeps.
        for passed_over in corrupt:
            aside = passed_over.with_name(_CORRUPT + passed_over.name)
            _delete(aside)
            passed_over.rename(aside)

    for name in processes.agreed([path.name for path in latest(folder)]):
        path = pathlib.Path(folder) / name
        if error := _damage(path):
            if processes.is_first():
                warn(f"passing over a corrupt checkpoint: {error}")
            corrupt.append(path)
            continue
        with processes.alike():
            restored = _restore(path, template, check)
        processes.exchange(None, set_aside)
        return restored
    if corrupt:
        raise errors.CheckpointError(
            f"{folder}: all {len(corrupt)} checkpoints are corrupt; put back a copy, or choose another folder"
        )
    return None


def _damage(path: pathlib.Path) -> str:
    """Returns what is wrong with a checkpoint, "" if it is whole; each of several processes checks a share of it."""
    own = ""
    try:
        manifest.verify(path, (processes.index(), processes.count()))
    except errors.CheckpointError as error:
        own = str(error)
    return processes.exchange(own, lambda said: next(filter(None, said), ""))


def latest(folder: Path) -> list[pathlib.Path]:
    """Lists the steps in a folder, whole or not, and links to steps, newest first; empty without a folder."""
    named = [path for path in pathlib.Path(folder).glob("step_*") if _STEP.fullmatch(path.name)]
    # A broken link is listed, too: its disk may be missing, which must be said.
    steps = [path for path in named if path.is_dir() or path.is_symlink()]
    return sorted(steps, key=lambda path: int(path.name.removeprefix("step_")), reverse=True)


def find(folder: Path, name: int | str) -> pathlib.Path | None:
    """Finds a step or slot for reading, also one whose replacement was cut short; None if there is none."""
    path = pathlib.Path(folder) / _name(name)
    # The path is tried twice, since a running trainer may finish its replacement in between.
    candidates = (path, path.with_name(_OLD + path.name), path)
    return next((candidate for candidate in candidates if candidate.is_dir()), None)


def read_slot(folder: Path, name: str, read: Callable[[pathlib.Path], T]) -> T | None:
    """Reads a slot, and reads it again if a running trainer has replaced it meanwhile.

    Args:
        folder: folder of the checkpoints.
        name: of the slot.
        read: (path) reads it.

    Returns:
        What `read` returns, or None if there is no such slot.

    Raises:
        CheckpointError: it is replaced again and again. What `read` raises passes through if the slot stayed.
    """
    for _ in range(_READS):
        path = find(folder, name)
        if path is None:
            return None
        with _held(path) as is_still_there:
            try:
                found = read(path)
            except (OSError, errors.CheckpointError):
                if is_still_there():
                    raise
            else:
                if is_still_there():
                    return found
    raise errors.CheckpointError(f"{pathlib.Path(folder) / name}: it is replaced while it is read; try again")


@contextlib.contextmanager
def _held(path: pathlib.Path) -> Iterator[Callable[[], bool]]:
    """Gives what says whether a path still leads to the folder to which it led when the context began.

    The folder is open meanwhile: a folder that takes the place of a deleted one may get its number.
    """
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        # It went, or is no folder any more.
        yield lambda: False
        return

    try:
        yield lambda: run_folder.is_at(folder, path)
    finally:
        os.close(folder)


def begin(folder: Path) -> None:
    """Notes in a folder, which is made if it is missing, that it has no step; the first `save` removes the note."""
    note = pathlib.Path(folder) / _UNSAVED
    with run_folder.named(note.parent):
        note.parent.mkdir(exist_ok=True)
        note.write_bytes(b"")
        run_folder.sync_entry(note.parent)


def has_begun(folder: Path) -> bool:
    """Says whether a run has begun in a folder and saved no step so far; False if its steps are lost."""
    return (pathlib.Path(folder) / _UNSAVED).exists()


def prune(folder: Path, keep: int) -> None:
    """Deletes all but the newest `keep` steps; deletes those set aside as corrupt once there are that many steps.

    Raises:
        ValueError: `keep` is less than 1.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: expected >= 1")
    steps = latest(folder)
    for path in steps[keep:]:
        _delete(path)
    if len(steps) >= keep:
        for path in pathlib.Path(folder).glob(_CORRUPT + "step_*"):
            _delete(path)


def clean(folder: Path) -> None:
    """Finishes or undoes the half-done work of a killed process, and removes its temporary folders."""
    folder = pathlib.Path(folder)
    for old in folder.glob(_OLD + "*"):
        path = folder / old.name.removeprefix(_OLD)
        if not os.path.lexists(path):
            new = folder / (_NEW + path.name)
            # An old checkpoint is moved aside only after the new one is complete.
            (new if new.is_dir() else old).rename(path)
    for new in folder.glob(_NEW + "step_*"):
        path = folder / new.name.removeprefix(_NEW)
        # The note of `begin` is removed just before a complete step gets its name.
        with contextlib.suppress(errors.CheckpointError):
            verify(new)
            if not os.path.lexists(path):
                new.rename(path)
    for path in [path for prefix in (_NEW, _OLD, _TRASH) for path in folder.glob(prefix + "*")]:
        _delete(path)
    if latest(folder):
        (folder / _UNSAVED).unlink(missing_ok=True)


def check_meta(path: Path, meta: Any, kinds: Mapping[str, files.Kind]) -> None:
    """Checks what is saved beside the arrays of a checkpoint, whose digests say nothing of who wrote it.

    Args:
        path: of the checkpoint, for the message.
        meta: that it holds.
        kinds: of the values that it must have, by name.

    Raises:
        CheckpointError: it lacks one, or one is of another kind.
    """
    try:
        files.check(meta, kinds, tuple(kinds))
    except ValueError as error:
        raise errors.CheckpointError(f"{path}: {error}; no run of this version writes that") from None


def params_sha256(tree: Any) -> str:
    """Returns the hex digest of a tree's leaves in the order of their paths: path, shape, dtype and bytes."""
    digest = hashlib.sha256()
    leaves = zip(storage.describe(tree), jax.tree.leaves(tree), strict=True)
    for leaf, value in sorted(leaves, key=lambda pair: pair[0].path):
        digest.update(json.dumps([leaf.path, leaf.shape, leaf.dtype]).encode())
        digest.update(np.ascontiguousarray(storage.to_numpy(value)).tobytes())
    return digest.hexdigest()


def _read_contents(path: pathlib.Path) -> tuple[list[storage.Leaf], Any, list[pieces.Piece] | None]:
    """Reads the contents of a checkpoint without the arrays; the pieces are None if one process has written it."""
    try:
        contents = json.loads((path / _CONTENTS).read_bytes())
        if not isinstance(contents["meta"], dict):
            raise ValueError("its meta is no object")
        leaves = [storage.read_leaf(fields) for fields in contents["leaves"]]
        written = pieces.checked(contents["pieces"], leaves) if "pieces" in contents else None
        return leaves, contents["meta"], written
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise errors.CheckpointError(f"{path}: {_CONTENTS} is not readable: {manifest.one_line(error)}") from error


def _name(name: int | str) -> str:
    """Returns the name of a step's or slot's folder."""
    if isinstance(name, str):
        if not _SLOT.fullmatch(name) or name.startswith((_CORRUPT, "step_")):
            raise ValueError(
                f"checkpoint name {name!r}: expected environment steps or lower-case letters, as in 'best'"
            )
        return name
    if name < 0:
        raise ValueError(f"checkpoint of {name} steps: expected >= 0")
    return f"step_{int(name):012d}"


def _replace(new: pathlib.Path, path: pathlib.Path) -> None:
    """Puts a complete folder in its place: moves the old one aside first, and deletes it last."""
    old = path.with_name(_OLD + path.name)
    if os.path.lexists(path):
        _delete(old)
        path.rename(old)
    try:
        new.rename(path)
    except OSError:
        if os.path.lexists(old):
            old.rename(path)
        raise
    run_folder.sync_entry(path.parent)
    _delete(old)


def _delete(path: pathlib.Path) -> None:
    """Deletes a folder, or a link itself; renames it first, so that a half-deleted one is never taken for corrupt."""
    if os.path.lexists(path):
        trash = path.with_name(_TRASH + secrets.token_hex(8))
        path.rename(trash)
        if trash.is_dir() and not trash.is_symlink():
            # On a network file system a folder stays while somebody reads a file of it; `clean` tries again.
            shutil.rmtree(trash, ignore_errors=True)
        else:
            trash.unlink()
