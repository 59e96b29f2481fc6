"""Imports code of users that a flag names as `module:name`; no other file does.

The user's own command or program may name any module. A module that only a run folder names is refused unless it is
trusted, even if it was imported before: the folder chooses the function and its arguments.
"""

import contextlib
import contextvars
import functools
import importlib
import importlib.metadata
import os
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

from jaxrl_dist import errors

# Files of frames that say nothing about the user's code: Python's own imports, and this file.
_MACHINERY = ("<frozen importlib", f"{os.sep}importlib{os.sep}", os.path.abspath(__file__))
# What it may raise; a script that lacks a guard ends the program as it is imported.
RAISED = (Exception, SystemExit)
# Names that settings from a run folder may use; None if settings come from the user.
_TRUSTED: contextvars.ContextVar[Collection[str] | None] = contextvars.ContextVar("trusted", default=None)


@contextlib.contextmanager
def trusting(names: Collection[str] | None) -> Iterator[None]:
    """Within the context, settings come from a run folder, and may use these names alone.

    Args:
        names: modules, and values of the environment's parameters, that the user gives; None if all settings are the
            user's.
    """
    before = _TRUSTED.set(names)
    try:
        yield
    finally:
        _TRUSTED.reset(before)


def check_trusted(flag: errors.Worded, name: str) -> None:
    """Checks that the user gives or trusts a name of code to run, or a value that tells other code what to run.

    Raises:
        UsageError: only a run folder names it.
    """
    trusted = _TRUSTED.get()
    if trusted is not None and name not in trusted:
        raise errors.UsageError(
            flag,
            f": only the run folder names {name}, which may run any code; if you know it, add ",
            errors.Worded(f"trust=[{name!r}]", f"--trust={name}"),
        )


def load(
    flag: errors.Worded,
    text: str,
    kind: str,
    is_one: Callable[[Any], bool],
    is_likely: Callable[[Any], bool] | None = None,
    is_offered: bool = False,
) -> Any:
    """Imports the object that a flag names.

    Args:
        flag: flag with its value, for messages.
        text: `module:name`; the module is on Python's path, to which commands add the current folder.
        kind: the object's kind in words, such as "function".
        is_one: (object) -> whether it is of that kind.
        is_likely: (object) -> whether the message for a wrong name suggests it; by default all of the kind are.
        is_offered: whether the text is an installed package's entry point, which any folder may name.

    Raises:
        UsageError: the text has another form, or the module is not trusted, cannot be imported, or has no object of
            that kind and name.
    """
    module_name, _, name = text.rpartition(":")
    if not module_name or not name:
        suite = flag.python.partition("=")[2].removesuffix(text)
        raise errors.UsageError(flag, f": expected {suite}module:NAME of a {kind}")
    module = (_import if is_offered else imported)(flag, module_name)
    found = getattr(module, name, None)
    if not is_one(found):
        names = [key for key, value in vars(module).items() if (is_likely or is_one)(value) and not key.startswith("_")]
        raise errors.UsageError(
            flag,
            f": {module_name} has no {kind} {name}; it has {', '.join(names) or 'none'}{errors.nearest(name, names)}",
        )
    return found


def imported(flag: errors.Worded, name: str) -> ModuleType:
    """Imports a module that a flag names.

    Raises:
        UsageError: it is not trusted, or cannot be imported; the message names the line.
    """
    check_trusted(flag, name)
    return _import(flag, name)


def _import(flag: errors.Worded, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except RAISED as error:
        raise errors.UsageError(flag, f": importing {name}: {where(error)}") from error


def where(error: BaseException) -> str:
    """Describes an error in one line, with the place in the user's code where it was raised."""
    traced = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in traced if not any(part in frame.filename for part in _MACHINERY)]
    # Frames of installed packages, to which an installed jaxrl_dist belongs, are used only if there are no others.
    chosen = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    # A missing module has no frame of its own.
    place = f" at {os.path.basename(chosen[-1].filename)}:{chosen[-1].lineno}" if chosen else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}{place}: {text[0] if text else 'no message'}"


@functools.cache
def installed(group: str) -> Mapping[str, str]:
    """Returns the objects that installed packages offer by an entry point, name -> `module:name`."""
    return {point.name: point.value for point in importlib.metadata.entry_points(group=group)}
