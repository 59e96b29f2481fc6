"""The part of the page about videos: small ones are embedded, large ones are linked."""

import base64
import os
import pathlib
import urllib.parse
from collections.abc import Sequence

from jaxrl_dist import errors
from jaxrl_dist.analysis.report.markup import Markup, element, joined
from jaxrl_dist.runs import files
from jaxrl_dist.runs import view as run_view

FOLDER = "videos"
_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".png": "image/png"}
_LINKED_ONLY = {".html"}
_LARGEST_BYTES, _LARGEST_SUM = 3 * 2**20, 24 * 2**20


def section(views: Sequence[run_view.View], page_folder: pathlib.Path) -> Markup | None:
    """Shows the videos of every run.

    Args:
        views: runs; the videos of each are in its folder `videos`.
        page_folder: folder of the page, for links.
    """
    parts, spent = [], 0
    for view in views:
        found, wrong = _own(view.folder)
        moving = {path.stem for path in found if path.suffix != ".png"}
        figures = []
        for path in found:
            if path.suffix == ".png" and path.stem in moving:
                continue
            size, still = path.stat().st_size, path.with_suffix(".png")
            is_small = path.suffix in _TYPES and size <= _LARGEST_BYTES and spent + size <= _LARGEST_SUM
            spent += size if is_small else 0
            has_still = still in found and still.stat().st_size <= _LARGEST_BYTES
            poster = _inline(still) if has_still else ""
            figures.append(_embedded(path, poster) if is_small else _linked(path, page_folder, size, poster))
        parts += [element("h3", view.label)] if figures or wrong else []
        parts += [element("div", *figures, class_="videos")] if figures else []
        parts += [element("p", f"{len(wrong)} left out: {wrong[0]}", class_="soft")] if wrong else []
    return joined(parts) if parts else None


def _own(folder: pathlib.Path) -> tuple[list[pathlib.Path], list[str]]:
    """Lists the videos and pictures of a run, and a line for each that lies outside its folder or is no file."""
    found, wrong = [], []
    for path in sorted((folder / FOLDER).glob("*")):
        if path.suffix in {*_TYPES, *_LINKED_ONLY}:
            try:
                files.opened(path, folder).close()
                found.append(path)
            except (errors.UsageError, FileNotFoundError) as error:
                wrong.append(str(error))
    return found, wrong


def _embedded(path: pathlib.Path, poster: str) -> Markup:
    """Puts a video or a picture into the page."""
    source = _inline(path)
    if path.suffix in (".mp4", ".webm"):
        shown = element(
            "video", src=source, controls=True, loop=True, muted=True, playsinline=True, poster=poster or False
        )
    else:
        shown = element("img", src=source, alt=path.stem)
    return element("figure", shown, element("figcaption", path.name))


def _linked(path: pathlib.Path, page_folder: pathlib.Path, size: int, poster: str) -> Markup:
    """Links a file from the folder of the page, with its still if there is one."""
    address = urllib.parse.quote(pathlib.Path(os.path.relpath(path, page_folder)).as_posix())
    shown = element("img", src=poster, alt=path.stem) if poster else ""
    link = element("a", f"{path.name} ({size / 2**20:.1f} MiB)", href=address)
    return element("figure", shown, element("figcaption", link))


def _inline(path: pathlib.Path) -> str:
    return f"data:{_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"
