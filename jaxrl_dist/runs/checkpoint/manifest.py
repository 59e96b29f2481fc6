"""The manifest of a folder: size and digest of each of its files, so that any change of any byte is found."""

import errno
import hashlib
import json
import os
import pathlib
from collections.abc import Collection
from typing import Any

from jaxrl_dist import errors
from jaxrl_dist.runs import files
from jaxrl_dist.runs import folder as run_folder

NAME = "manifest.json"


def verify(path: str | os.PathLike[str], share: tuple[int, int] = (0, 1)) -> None:
    """Checks that a checkpoint has exactly the files that were written, with every byte; ignores hidden files.

    Args:
        path: folder of the checkpoint.
        share: (i, n) checks the bytes of every n-th file alone, from the i-th on, but the sizes of all.

    Raises:
        CheckpointError: it has not; the message names a file and its fault.
    """
    path = pathlib.Path(path)
    try:
        written = files.read_bytes(path / NAME)
        manifest = json.loads(written)
        recorded = manifest["files"]
        # Compared as bytes, so that no change of the manifest itself goes unseen.
        if encode(recorded) != written:
            raise ValueError("its form is not as written")
        sizes = {name: record["bytes"] for name, record in recorded.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise errors.CheckpointError(f"{path}: {NAME} is not readable: {one_line(error)}") from error
    try:
        present = {name: file.stat().st_size for name, file in _files(path).items()}
        for name in sorted({*sizes, *present}):
            if sizes.get(name) != present.get(name):
                was, now = (f"{n} bytes" if n is not None else "missing" for n in (sizes.get(name), present.get(name)))
                raise errors.CheckpointError(f"{path}: {name} is {now}, was {was} when written")
        found = digests(path, {*sizes} - {*sorted(sizes)[share[0] :: share[1]]})
    except OSError as error:
        raise errors.CheckpointError(f"{path}: {one_line(error)}") from error
    for name, record in found.items():
        if record != recorded[name]:
            raise errors.CheckpointError(f"{path}: {name} has other bytes than were written")


def encode(recorded: dict[str, dict[str, Any]]) -> bytes:
    """Returns the one form in which a manifest is written."""
    return json.dumps({"files": recorded, "format": 1}, indent=1, sort_keys=True).encode()


def digests(path: pathlib.Path, without: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Returns size and SHA-256 of each file below a folder, but for those whose digests are known."""
    return {name: digest(file) for name, file in _files(path).items() if name not in without}


def digest(file: pathlib.Path) -> dict[str, Any]:
    """Returns size and SHA-256 of a file."""
    with file.open("rb") as handle:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(handle, "sha256").hexdigest()}


def sync(path: pathlib.Path) -> None:
    """Waits until a file, or a folder and all below it, is on disk."""
    for entry in [*(path.rglob("*") if path.is_dir() else ()), path]:
        run_folder.sync_entry(entry)


def one_line(error: BaseException) -> str:
    """Returns the first line of an error, or its type if the text is empty."""
    # Orbax and TensorStore hide this error in a long text, under a type that does not name it.
    if os.strerror(errno.ENOSPC) in str(error):
        return os.strerror(errno.ENOSPC)
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _files(path: pathlib.Path) -> dict[str, pathlib.Path]:
    """Lists all files below a folder but the manifest, by relative name; links are refused.

    Hidden files are ignored: file systems and desktops put them anywhere, such as .nfs0001 and .DS_Store.
    """
    found = {}
    for entry in sorted(path.rglob("*")):
        name = entry.relative_to(path).as_posix()
        if "/." in f"/{name}":
            continue
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
            raise errors.CheckpointError(f"{path}: {name} is not a plain file")
        if entry.is_file() and name != NAME:
            found[name] = entry
    return found
