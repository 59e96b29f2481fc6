"""The errors that everybody may raise, and how a message names the nearest valid word. Imports no JAX."""

import difflib
import importlib.metadata
import re
from collections.abc import Iterable

_DISTRIBUTION = "jaxrl-dist"


class UsageError(ValueError):
    """Refuses what the user asked for, in one line that names the valid values."""


class UnfitError(UsageError):
    """An agent cannot serve an environment.

    Attributes:
        actions: kind of actions that an agent must take which can.
    """

    def __init__(self, message: str, actions: str) -> None:
        super().__init__(message)
        self.actions = actions


class EnvironmentFault(RuntimeError):
    """A CPU environment died, hung, or gave what cannot be; the message names suite, environment, field and step."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or is not what was written; the message names it."""


class LockError(RuntimeError):
    """Another trainer holds the folder; the message names its process."""


def missing_package(what: str, package: str | None, extra: str) -> UsageError:
    """Explains that something needs a package, and how the packages of that extra are installed."""
    return UsageError(f"{what} needs the package {package}: {install(extra, package or extra)}")


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


def nearest_flag(name: str, flags: Iterable[str]) -> str:
    """Returns "; did you mean …?" for the flag most like a name; dashes are no likeness."""
    matches = most_like(name.lstrip("-"), [flag.lstrip("-") for flag in flags], 1)
    return f"; did you mean --{matches[0]}?" if matches else ""


def most_like(value: str, candidates: Iterable[str], count: int) -> list[str]:
    """Returns at most so many candidates that are like `value`, in whatever case, the most like first."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(value.casefold(), list(by_folded), n=count, cutoff=0.5)
    return [by_folded[match] for match in matches]
