"""The part of the page about videos: small ones are embedded, large ones are linked."""

import base64
import os
import pathlib
import urllib.parse
from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_dist import errors
from jaxrl_dist.runs import files
from jaxrl_dist.runs import view as run_view

FOLDER = "videos"
_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".png": "image/png"}
_LINKED_ONLY = {".html"}
_LARGEST_BYTES, _LARGEST_SUM = 3 * 2**20, 24 * 2**20


class Film(NamedTuple):
    """A video or picture.

    Attributes:
        name: of its file.
        stem: the same without its suffix.
        kind: video, picture, or link where it lies beside the page.
        source: the file itself, or its address.
        size: in words.
        poster: a still, "" where there is none.
    """

    name: str
    stem: str
    kind: str
    source: str
    size: str
    poster: str


def of(views: Sequence[run_view.View], page_folder: pathlib.Path) -> list[tuple[str, list[Film], list[str]]]:
    """Lists the videos of every run, and what is wrong with files that are left out.

    Args:
        views: of the runs; videos are in the folder `videos` of each.
        page_folder: where the page will lie, for links.
    """
    made, spent = [], 0
    for view in views:
        found, wrong = _own(view.folder)
        moving, films = {path.stem for path in found if path.suffix != ".png"}, []
        for path in found:
            if path.suffix == ".png" and path.stem in moving:
                continue
            size, still = path.stat().st_size, path.with_suffix(".png")
            is_small = path.suffix in _TYPES and size <= _LARGEST_BYTES and spent + size <= _LARGEST_SUM
            spent += size if is_small else 0
            kind = _TYPES[path.suffix].partition("/")[0].replace("image", "picture") if is_small else "link"
            address = urllib.parse.quote(pathlib.Path(os.path.relpath(path, page_folder)).as_posix())
            has_still = still in found and still.stat().st_size <= _LARGEST_BYTES
            poster = _inline(still) if has_still else ""
            source, told = _inline(path) if is_small else address, f"{size / 2**20:.1f} MiB"
            films.append(Film(path.name, path.stem, kind, source, told, poster))
        made.append((view.label, films, wrong))
    return made


def _own(folder: pathlib.Path) -> tuple[list[pathlib.Path], list[str]]:
    """Lists the videos and pictures of a run, and what is wrong with those that are files of others, or no files."""
    found, wrong = [], []
    for path in sorted((folder / FOLDER).glob("*")):
        if path.suffix in {*_TYPES, *_LINKED_ONLY}:
            try:
                files.opened(path, folder).close()
                found.append(path)
            except (errors.UsageError, FileNotFoundError) as error:
                wrong.append(str(error))
    return found, wrong


def _inline(path: pathlib.Path) -> str:
    return f"data:{_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"
