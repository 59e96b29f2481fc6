"""The errors that every file may raise, and the parts of their messages. Imports no JAX."""

import difflib
import importlib.metadata
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_DISTRIBUTION = "jaxrl-dist"
# Likeness that tells a slip from another thing: of "timesteps" and steps .714, of num_layers and env.num_envs .70. An
# owner that is right counts for less, as checkpoint_freq is no checkpoint.replay.
_LIKE, _OWNED = 0.71, 0.09
_ALONE = object()  # a setting that is named without a value


class Worded(NamedTuple):
    """A piece of a message in the words of Python, and in those of a command line.

    Attributes:
        python: such as `agent.discount=2`.
        command: such as `--agent.discount=2`.
    """

    python: str
    command: str


def given(name: str, value: Any = _ALONE) -> Worded:
    """Names a setting as the caller gave it: `name=value` to a function, `--name=value` to a command.

    Args:
        name: name of the setting, or of an argument that has a flag of its name.
        value: value in the message, also None; without it the setting is named alone.

    Returns:
        A part of the message of a `UsageError`.

    Example:
        >>> from jaxrl_dist import errors
        >>> error = errors.UsageError(errors.given("agent.discount", 2), ": expected a number <= 1")
        >>> print(error)
        agent.discount=2: expected a number <= 1
        >>> print(errors.as_typed(error))
        --agent.discount=2: expected a number <= 1
    """
    text = name if value is _ALONE else f"{name}={value}"
    return Worded(text, f"--{text}")


# End of the message for an unknown setting.
LISTED = Worded(" (docs/flags.md lists them)", " (--help lists them)")


def as_typed(error: BaseException | str) -> str:
    """Returns the message of an error in the words of a command line: a setting is named by its flag.

    Args:
        error: an error of this project, any other, or a text.

    Example:
        >>> from jaxrl_dist import errors
        >>> print(errors.as_typed(errors.UsageError(errors.given("steps", 0), ": expected a whole number >= 1")))
        --steps=0: expected a whole number >= 1
    """
    parts = error.args if isinstance(error, UsageError | EnvironmentFault) else (error,)
    text = "".join(part.command if isinstance(part, Worded) else str(part) for part in parts)
    return printable(text) if isinstance(error, UsageError) else text


def _as_called(parts: Iterable[str | Worded]) -> str:
    """Returns a message in the words of Python."""
    return "".join(part.python if isinstance(part, Worded) else str(part) for part in parts)


def printable(text: str) -> str:
    """Returns text of others with control characters escaped as in Python, so that no terminal obeys them."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class UsageError(ValueError):
    """Refuses a request of the user, in one line that names the valid values.

    The message comes in parts; a `Worded` part names a setting, since the caller of a function has typed no flag. `str`
    gives the message for Python, `as_typed` that for a command. Another error repeats it with `*error.args`.
    """

    def __init__(self, *parts: str | Worded) -> None:
        super().__init__(*parts)

    def __str__(self) -> str:
        return printable(_as_called(self.args))


class UnfitError(UsageError):
    """An agent cannot serve an environment.

    Attributes:
        actions: kind of actions that an agent must take to serve it.
    """

    def __init__(self, *parts: str | Worded, actions: str) -> None:
        super().__init__(*parts)
        self.actions = actions


class EnvironmentFault(RuntimeError):
    """A CPU environment died, hung, or returned an impossible value; the message names it, the field and the step.

    The message comes in parts, like that of a `UsageError`.
    """

    def __str__(self) -> str:
        return _as_called(self.args)


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or its bytes have changed; the message names it."""


class LockError(RuntimeError):
    """Another trainer, which the message names, holds the folder; or the folder is not the locked one any more."""


def missing_package(what: str | Worded, package: str | None, extra: str) -> UsageError:
    """Makes an error for a missing package, which says how the packages of that extra are installed.

    Args:
        what: needs it.
        package: its name; None takes that of the extra.
        extra: of this distribution.

    Returns:
        The error, to be raised.

    Example:
        >>> from jaxrl_dist import errors
        >>> error = errors.missing_package(errors.given("env", "brax:ant"), "brax", "brax")
        >>> isinstance(error, errors.UsageError), "pip install" in str(error)
        (True, True)
    """
    return UsageError(what, f" needs the package {package}: {install(extra, package or extra)}")


def install(extra: str, package: str) -> str:
    """Returns the command that installs the packages of an extra, read from this distribution's installed metadata.

    Reading it needs neither an index nor a checkout, so the command is right after a wheel, in a checkout and in a
    notebook.

    Args:
        extra: extra of the distribution.
        package: package to name if the metadata has no such extra, since the suite is another distribution's, or this
            one is on the path without being installed.

    Example:
        >>> from jaxrl_dist import errors
        >>> errors.install("brax", "brax").startswith("pip install ")
        True
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
    """Returns "; did you mean …?" for the candidate most like `value`, or "" if none is like it.

    Args:
        value: as it was given.
        candidates: valid ones.

    Example:
        >>> from jaxrl_dist import errors
        >>> errors.nearest("tahn", ["tanh", "relu", "swish"])
        '; did you mean tanh?'
    """
    matches = most_like(value, candidates, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def check_divided(name: str, value: int, num_devices: int) -> None:
    """Checks that devices divide the value of a setting.

    Args:
        name: of the setting.
        value: of the setting.
        num_devices: number of devices.

    Raises:
        UsageError: they do not; the message names the nearest values that they divide.

    Example:
        >>> from jaxrl_dist import errors
        >>> errors.check_divided("env.num_envs", 64, 8)
        >>> errors.check_divided("env.num_envs", 60, 8)
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: env.num_envs=60 is not divided by 8 devices; nearest valid: 56 or 64
    """
    if value % num_devices:
        multiples = nearest_multiples(value, num_devices)
        raise UsageError(given(name, value), f" is not divided by {num_devices} devices; nearest valid: {multiples}")


def nearest_multiples(value: int, of: int) -> str:
    """Names the multiples of `of` below and above a value.

    Args:
        value: at least 1.
        of: whose multiples are named.

    Example:
        >>> from jaxrl_dist import errors
        >>> errors.nearest_multiples(60, of=8)
        '56 or 64'
    """
    below = max(value // of, 1) * of
    return f"{below} or {below + of}"


def nearest_flag(name: str, flags: Iterable[str]) -> tuple[str | Worded, ...]:
    """Returns the parts "; did you mean …?" for the flag most like a name, none without one; ignores dashes.

    A name is like a flag as a whole, or in what follows the owner, which a user may not know. Weak likeness counts for
    nothing, since a wrong hint misleads.

    Args:
        name: as it was given, with dashes or without.
        flags: valid ones, likewise.

    Example:
        >>> from jaxrl_dist import errors
        >>> print(errors.UsageError("no such flag", *errors.nearest_flag("--agent.discont", ["agent.discount", "env"])))
        no such flag; did you mean agent.discount?
    """
    best, closest = "", _LIKE
    for flag in flags:
        whole = _likeness(name.lstrip("-"), flag.lstrip("-"))
        likeness = max(whole - _OWNED, _likeness(name.lstrip("-").rpartition(".")[2], flag.rpartition(".")[2]))
        if likeness > closest:
            best, closest = flag.lstrip("-"), likeness
    return meant([best] if best else [])


def meant(flags: Sequence[str]) -> tuple[str | Worded, ...]:
    """Returns the parts "; did you mean …, … or …?" for the first four flags, none without one.

    Args:
        flags: without dashes, the likeliest first.

    Example:
        >>> from jaxrl_dist import errors
        >>> print(errors.UsageError("no such flag", *errors.meant(["learner.epsilon", "agent.epsilon_end"])))
        no such flag; did you mean learner.epsilon or agent.epsilon_end?
    """
    parts: list[str | Worded] = []
    for i, flag in enumerate(flags[:4]):
        parts += ["; did you mean " if i == 0 else " or " if i == len(flags[:4]) - 1 else ", ", given(flag)]
    return (*parts, "?") if parts else ()


def _likeness(one: str, other: str) -> float:
    """Returns a number from 0 to 1, in whatever case."""
    return difflib.SequenceMatcher(None, one.casefold(), other.casefold()).ratio()


def most_like(value: str, candidates: Iterable[str], count: int) -> list[str]:
    """Returns the candidates that are like a value, in any case, the most like first.

    Args:
        value: as it was given.
        candidates: valid ones.
        count: returns at most so many.

    Example:
        >>> from jaxrl_dist import errors
        >>> errors.most_like("PPO2", ["ppo", "dppo", "dqn"], count=1)
        ['ppo']
    """
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(value.casefold(), list(by_folded), n=count, cutoff=0.6)
    return [by_folded[match] for match in matches]
