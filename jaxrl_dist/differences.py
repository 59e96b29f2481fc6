"""Says which settings differ between two configurations, and which of them make another run; it knows no setting."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple


class Change(NamedTuple):
    """A setting that differs between two configurations; `None` where one of them lacks it."""

    name: str
    old: Any
    new: Any


class Difference(NamedTuple):
    """Settings that changed: those that make another run, and those that a resumed run may change."""

    identity: tuple[Change, ...]
    tunable: tuple[Change, ...]


def between(
    before: Mapping[str, Any], after: Mapping[str, Any], defaults: Mapping[str, Any], tunable: Collection[str]
) -> Difference:
    """Compares two configurations.

    Args:
        before: value by name; one that is missing had its default.
        after: value by name; one that is missing is None.
        defaults: by name.
        tunable: names of settings that a resumed run may change.
    """
    names = dict.fromkeys((*after, *before))
    pairs = [Change(name, before.get(name, defaults.get(name)), after.get(name)) for name in names]
    changes = [change for change in pairs if change.old != change.new]
    return Difference(
        tuple(change for change in changes if change.name not in tunable),
        tuple(change for change in changes if change.name in tunable),
    )


def describe(changes: Sequence[Change], limit: int = 6) -> str:
    """Lists changes in words, such as "seed 0 -> 1, agent.discount 0.99 -> 0.9"."""
    words = [f"{change.name} {change.old} -> {change.new}" for change in changes[:limit]]
    more = [f"and {len(changes) - limit} more"] if len(changes) > limit else []
    return ", ".join(words + more)
