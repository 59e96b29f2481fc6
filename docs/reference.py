"""Turns docstrings into the reference for Sphinx: fields of records, settings, sources, and links between names."""

import dataclasses
import functools
import inspect
import pathlib
import re
import sys
import types
from typing import Any

from sphinx.application import Sphinx

import jaxrl_dist
from jaxrl_dist.settings import OURS, fields

PAGES = pathlib.Path(__file__).resolve().parent / "api"
_NAME = re.compile(r"[A-Za-z_][\w.]*")


@functools.cache
def documented() -> list[str]:
    """Returns the names of the modules that the reference lists whole."""
    return _directives("module")


@functools.cache
def listed() -> list[str]:
    """Returns the full names that it lists of other modules."""
    return _directives("function|class")


def _directives(kinds: str) -> list[str]:
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    return re.findall(rf"auto(?:{kinds}):: (\S+)", pages)


def is_record(value: Any) -> bool:
    """Says whether an object is a NamedTuple's class."""
    return inspect.isclass(value) and issubclass(value, tuple) and hasattr(value, "_fields")


def is_settings(value: Any) -> bool:
    """Says whether an object is a Config: a dataclass whose fields are declared with `setting`."""
    if not inspect.isclass(value) or not dataclasses.is_dataclass(value):
        return False
    return all("help" in field.metadata for field in dataclasses.fields(value))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects what follows to autodoc; what rewrites a docstring comes before napoleon, which reads its sections."""
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _shorten)
    app.connect("autodoc-process-docstring", _render, priority=400)
    return {"parallel_read_safe": True}


def _skip(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool:
    """Leaves out the fields of records, whose docstrings list them with what they mean."""
    return skip or type(member).__name__ == "_tuplegetter"


def _shorten(app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, returns: str) -> Any:
    """Writes a record's fields without their types, which its attributes tell, and a Config's below it alone."""
    if is_settings(value) or getattr(value, "_is_protocol", False):
        return "", None
    if not is_record(value):
        return None
    given = value._field_defaults
    shown = [f"{field}={_default(given[field])}" if field in given else field for field in value._fields]
    return f"({', '.join(shown)})", None


def _default(value: Any) -> str:
    """Writes a default; a function by its name."""
    if inspect.isfunction(value):
        return "..." if value.__name__ == "<lambda>" else value.__name__
    return repr(value)


def _render(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Rewrites a docstring in place: text is escaped and linked, examples and equations stay as they are."""
    module = sys.modules.get(name) if what == "module" else inspect.getmodule(value)
    is_inside, indent = False, 0
    for i, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        if is_inside and line.strip() and depth <= indent:
            is_inside = False
        if line.lstrip().startswith(">>>"):
            # An example ends with the first line that is further left.
            is_inside, indent = True, depth - 1
        elif line.lstrip().startswith(".. "):
            is_inside, indent = True, depth
        elif not is_inside:
            lines[i] = _written(line, module, value)
            if what != "module" and line.startswith("Source: "):
                lines[i] = f":Source: {lines[i].removeprefix('Source: ')}"
    if is_record(value):
        # Without the line that every record's constructor has.
        lines[:] = [line for line in lines if not line.startswith(f"Create new instance of {value.__name__}(")]
    if is_settings(value):
        lines += _settings(value)


def _written(line: str, module: Any, value: Any) -> str:
    """Escapes what reStructuredText would read as markup, and links names between backquotes."""
    # A letter and a full stop alone would begin a list.
    line = re.sub(r"^(\s+\w+: [A-Z])\.$", r"\1\\.", line)
    parts = re.split(r"(`[^`]*`)", line)
    written = [re.sub(r"(?<!\\)([*|])", r"\\\1", part) for part in parts]
    for i in range(1, len(parts), 2):
        target = _target(parts[i][1:-1], module, value)
        quoted = f":py:obj:`{parts[i][1:-1]} <{target}>`" if target else f"`{parts[i]}`"
        # Markup ends where a word does: `Agent`s has a letter behind it.
        written[i] = quoted + ("\\ " if re.match(r"\w", parts[i + 1]) else "")
    return "".join(written)


def _target(text: str, module: Any, value: Any) -> str | None:
    """Returns the full name that a docstring of a module means, None where the reference has none."""
    if not _NAME.fullmatch(text) or module is None:
        return None
    first, *rest = text.split(".")
    if is_record(value) and first in value._fields:
        return None
    found: Any = vars(module).get(first)
    if found is None and rest:
        # The last part of a module's name, as code that imports it has it.
        found = next((sys.modules.get(name) for name in documented() if name.endswith(f".{first}")), None)
    for i, name in enumerate(rest):
        if is_record(found) and name in found._fields:
            # Fields are lines of their record.
            return None if i + 1 < len(rest) else _documented(found)
        found = getattr(found, name, None)
    return None if found is value else _documented(found)


def _documented(value: Any) -> str | None:
    """Returns the full name of an object that the reference has."""
    if isinstance(value, types.ModuleType):
        return value.__name__ if value.__name__ in documented() else None
    home, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if not callable(value) or re.search(r"(^|\.)_", name) or "<" in name:
        return None
    if home in documented() or f"{home}.{name}" in listed():
        return f"{home}.{name}"
    # Names of the package lie in rooms that are not listed.
    return f"jaxrl_dist.{name}" if getattr(jaxrl_dist, name, None) is value else None


def _settings(config: type) -> list[str]:
    """Writes the settings of a Config: type, default, what each is, its range and the source of its default."""
    lines = [""]
    for field in fields.of(config):
        source = field.source or OURS
        about = [field.help, f"Valid: {fields.valid_values(field)}."] if field.kind != "bool" else [field.help]
        about.append(f"Default from {source.removesuffix('.')}.")
        text = re.sub(r"([*|`\\])", r"\\\1", " ".join(about))
        text = re.sub(r"--[\w.=]+", r"``\g<0>``", text)
        lines += [f".. py:attribute:: {field.name}", f"   :type: {field.kind}", f"   :value: {field.default!r}", ""]
        lines += [f"   {text}", ""]
    return lines
