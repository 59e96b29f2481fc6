"""The errors that everybody may raise, and how a message names the nearest valid word. Imports no JAX."""

import difflib
import importlib.metadata
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

_DISTRIBUTION = "jaxrl-dist"
# Likeness that tells a slip from another thing: of "timesteps" and steps .714, of num_layers and env.num_envs .70. An
# owner that is right counts for less, as checkpoint_freq is no checkpoint.replay.
_LIKE, _OWNED = 0.71, 0.09


class Worded(NamedTuple):
    """A piece of a message in the words of Python, and in those of a command line."""

    python: str
    command: str


def given(name: str, value: Any = None) -> Worded:
    """Names a setting as it is given: `name=value` to a function, `--name=value` to a command.

    Args:
        name: of the setting, as `settings` of `train` takes it, or of an argument that has a flag of its name.
        value: as in the message; None names the setting alone.
    """
    text = name if value is None else f"{name}={value}"
    return Worded(text, f"--{text}")


# Ends the message of a setting that there is none of.
LISTED = Worded(" (docs/flags.md lists them)", " (--help lists them)")


def as_typed(error: BaseException | str) -> str:
    """Returns the message of an error in the words of a command line: a setting is named by its flag."""
    parts = error.args if isinstance(error, UsageError | EnvironmentFault) else (error,)
    text = "".join(part.command if isinstance(part, Worded) else str(part) for part in parts)
    return printable(text) if isinstance(error, UsageError) else text


def _as_called(parts: Iterable[str | Worded]) -> str:
    """Returns a message in the words of Python."""
    return "".join(part.python if isinstance(part, Worded) else str(part) for part in parts)


def printable(text: str) -> str:
    """Returns what somebody else said in one line: what a terminal would obey is written as in Python."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class UsageError(ValueError):
    """Refuses what the user asked for, in one line that names the valid values.

    The message comes in parts, of which a `Worded` names a setting, since whoever calls a function typed no flag: `str`
    is for Python, `as_typed` for a command. Another error repeats it with `*error.args`.
    """

    def __init__(self, *parts: str | Worded) -> None:
        super().__init__(*parts)

    def __str__(self) -> str:
        return printable(_as_called(self.args))


class UnfitError(UsageError):
    """An agent cannot serve an environment.

    Attributes:
        actions: kind of actions that an agent must take which can.
    """

    def __init__(self, *parts: str | Worded, actions: str) -> None:
        super().__init__(*parts)
        self.actions = actions


class EnvironmentFault(RuntimeError):
    """A CPU environment died, hung, or gave what cannot be; the message names suite, environment, field and step.

    It comes in parts, as that of a `UsageError`.
    """

    def __str__(self) -> str:
        return _as_called(self.args)


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or is not what was written; the message names it."""


class LockError(RuntimeError):
    """Another trainer holds the folder, whose process the message names, or it is no longer the one that was locked."""


def missing_package(what: str | Worded, package: str | None, extra: str) -> UsageError:
    """Explains that something needs a package, and how the packages of that extra are installed."""
    return UsageError(what, f" needs the package {package}: {install(extra, package or extra)}")


def install(extra: str, package: str) -> str:
    """Returns the command that installs what an extra of this distribution needs, as its installed metadata says.

    Neither an index nor a checkout is needed to read it; so it is right after a wheel, in a checkout and in a notebook.

    Args:
        extra: of the distribution.
        package: to install where the metadata knows no such extra, because a suite is another distribution's, or
            because this one lies on the path without being installed.
    """
    try:
        declared = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return f"pip install {_root(package)} (the version is free: {_DISTRIBUTION} is not installed, which names one)"
    of_extra = re.compile(rf"""\bextra\s*==\s*["']{re.escape(extra)}["']""")
    lines = [line.partition(";") for line in declared]
    needed = [requirement.strip() for requirement, _, marker in lines if of_extra.search(marker)]
    # A shell reads < and > in a bare version as files.
    quoted = [name if re.fullmatch(r"[\w.-]+", name) else f'"{name}"' for name in needed]
    return f"pip install {' '.join(quoted or [_root(package)])}"


def _root(package: str) -> str:
    """Returns the package of a module's full name."""
    return package.partition(".")[0]


def nearest(value: str, candidates: Iterable[str]) -> str:
    """Returns "; did you mean …?" for the candidate most like `value`, or "" where none is."""
    matches = most_like(value, candidates, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def check_divided(name: str, value: int, num_devices: int) -> None:
    """Checks that devices divide the value of a setting.

    Raises:
        UsageError: they do not; the message names the nearest that they do.
    """
    if value % num_devices:
        multiples = nearest_multiples(value, num_devices)
        raise UsageError(given(name, value), f" is not divided by {num_devices} devices; nearest valid: {multiples}")


def nearest_multiples(value: int, of: int) -> str:
    """Names the multiples below and above a value that is none."""
    below = max(value // of, 1) * of
    return f"{below} or {below + of}"


def nearest_flag(name: str, flags: Iterable[str]) -> tuple[str | Worded, ...]:
    """Returns the parts "; did you mean …?" for the flag most like a name, none where none is: a wrong one misleads.

    A name is like a flag as a whole, or, as who types it may know no owner, in what follows the owner.
    """
    best, closest = "", _LIKE
    for flag in flags:
        whole = _likeness(name.lstrip("-"), flag.lstrip("-"))
        likeness = max(whole - _OWNED, _likeness(name.lstrip("-").rpartition(".")[2], flag.rpartition(".")[2]))
        if likeness > closest:
            best, closest = flag.lstrip("-"), likeness
    return ("; did you mean ", given(best), "?") if best else ()


def _likeness(one: str, other: str) -> float:
    """Returns a number from 0 to 1, in whatever case."""
    return difflib.SequenceMatcher(None, one.casefold(), other.casefold()).ratio()


def most_like(value: str, candidates: Iterable[str], count: int) -> list[str]:
    """Returns at most so many candidates that are like `value`, in whatever case, the most like first."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(value.casefold(), list(by_folded), n=count, cutoff=0.6)
    return [by_folded[match] for match in matches]
