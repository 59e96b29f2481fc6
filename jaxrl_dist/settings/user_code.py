"""Code of users that a flag names as `module:name`. It is imported here and nowhere else."""

import functools
import importlib
import importlib.metadata
import os
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from jaxrl_dist import errors

# Frames of Python's own imports, and of this file, say nothing of the user's code.
_MACHINERY = ("<frozen importlib", f"{os.sep}importlib{os.sep}", os.path.abspath(__file__))


def load(
    flag: errors.Worded,
    text: str,
    kind: str,
    is_one: Callable[[Any], bool],
    is_likely: Callable[[Any], bool] | None = None,
) -> Any:
    """Imports what a flag names.

    Args:
        flag: with its value, for messages.
        text: `module:name`; the module lies where Python looks, which commands widen by the folder they start in.
        kind: of what is looked for, such as "function".
        is_one: whether a value is of that kind.
        is_likely: whether the message for a wrong name names a value; by default all of the kind are named.

    Raises:
        UsageError: the text has another form, the module cannot be imported, or has nothing of that kind and name.
    """
    module_name, _, name = text.rpartition(":")
    if not module_name or not name:
        suite = flag.python.partition("=")[2].removesuffix(text)
        raise errors.UsageError(flag, f": expected {suite}module:NAME of a {kind}")
    module = imported(flag, module_name)
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
        UsageError: it cannot be imported; the message names the line.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise errors.UsageError(flag, f": importing {name}: {where(error)}") from error


def where(error: Exception) -> str:
    """Describes in one line an error, and the place in the user's code where it was raised."""
    traced = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in traced if not any(part in frame.filename for part in _MACHINERY)]
    # If all frames are of installed packages, as those of an installed jaxrl_dist are, the last of all is named.
    chosen = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    # A module that is missing has no frame of its own.
    place = f" at {os.path.basename(chosen[-1].filename)}:{chosen[-1].lineno}" if chosen else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}{place}: {text[0] if text else 'no message'}"


@functools.cache
def installed(group: str) -> Mapping[str, str]:
    """Returns what installed packages offer by an entry point: name -> `module:name`."""
    return {point.name: point.value for point in importlib.metadata.entry_points(group=group)}
