"""Reads presets, `SYSTEM/TASK.flags`: files of flags in which a comment above each flag names its source.

`SYSTEM/paper` is without a task: the values that a paper has published, for any environment. The first paragraph of a
file is its head: a sentence, the command, and its result. In the others, a comment is the source of all flags below it.
So a preset is also a file for `--flagfile`.
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from jaxrl_dist import errors
from jaxrl_dist.settings.fields import Cited

_SUFFIX = ".flags"
# Stands in the place of a task.
PAPER = "paper"


class Preset(NamedTuple):
    """The name of a preset, SYSTEM/TASK or SYSTEM/paper, the lines of its head, and flag -> value with its source."""

    name: str
    head: tuple[str, ...]
    settings: Mapping[str, Cited]


NONE = Preset("", (), {})


def names(folder: pathlib.Path) -> tuple[str, ...]:
    """Returns the names of all presets below a folder."""
    return tuple(path.relative_to(folder).with_suffix("").as_posix() for path in sorted(folder.glob(f"*/*{_SUFFIX}")))


def load(name: str, folder: pathlib.Path) -> Preset:
    """Returns a preset; `NONE` for an empty name.

    Raises:
        ValueError: there is no preset of that name, or its file has another form.
    """
    if not name:
        return NONE
    valid = names(folder)
    if name not in valid:
        system, _, task = name.partition("/")
        of_system = [one for one in valid if one.startswith(f"{system}/")]
        by_task = {one.partition("/")[2]: one for one in of_system}
        like = [by_task[one] for one in errors.most_like(task, by_task, 1)]
        if not of_system:
            like = errors.most_like(name, valid, 1)
        hint = f"; did you mean {like[0]}?" if like else ""
        systems = dict.fromkeys(f"{one.partition('/')[0]}/..." for one in valid)
        raise ValueError(f"expected one of {', '.join(of_system or systems) or 'none'}{hint}")
    return _read(folder / f"{name}{_SUFFIX}", name)


@functools.cache
def _read(path: pathlib.Path, name: str) -> Preset:
    head, *paragraphs = path.read_text(encoding="utf-8").strip().split("\n\n")
    settings: dict[str, Cited] = {}
    for paragraph in paragraphs:
        source = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                source = line.lstrip("# ")
                continue
            flag, separator, value = line.removeprefix("--").partition("=")
            if not line.startswith("--") or not separator or not source or flag in settings:
                raise ValueError(f"{path}: {line!r} should be --name=value, once, below a comment with its source")
            settings[flag] = Cited(value.strip(), source)
    is_of_task = path.stem != PAPER
    if "system" not in settings or ("env" in settings) != is_of_task or not head.startswith("#"):
        raise ValueError(f"{path}: a preset has a head, --system, and --env unless it is named {PAPER}")
    return Preset(name, tuple(line.lstrip("# ") for line in head.splitlines()), settings)
