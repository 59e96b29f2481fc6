"""Reads `--sweep`: settings with several values each, all combinations of which train in one program.

A member of a sweep is one seed with one combination; all seeds of the first combination come first. Imports no JAX.
"""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxrl_dist import errors
from jaxrl_dist.settings import fields
from jaxrl_dist.settings.resolve import Resolved

Values = Mapping[str, float]


def combinations(settings: Resolved) -> list[dict[str, float]]:
    """Returns the combinations of values of a sweep, the last varying fastest; a single empty one without a sweep.

    Raises:
        UsageError: the sweep is not NAME=A,B;NAME=C,D, or a name or a value is not valid.
    """
    axes: dict[str, list[float]] = {}
    for part in filter(None, settings["sweep"].split(";")):
        name, values = _axis(settings, part)
        if name in axes:
            raise errors.UsageError(errors.given("sweep", settings["sweep"]), f": {name} is given twice")
        axes[name] = values
    return _product(axes)


def read(sweep: str) -> list[dict[str, float]]:
    """Returns the combinations of values in a text, in the order of `combinations`; for "" a single empty one.

    Raises:
        ValueError: a value is no number.
    """
    return _product(_axes(sweep))


def size(sweep: str) -> int:
    """Returns the number of combinations of `read`, which may be too many to list; raises the same errors."""
    return math.prod(map(len, _axes(sweep).values()))


def check_once(settings: Resolved, flags: Collection[str]) -> None:
    """Checks that no setting of a sweep is given as a flag, too; a sweep does override presets and published values.

    Args:
        settings: resolved settings.
        flags: names of the flags that the user gave.

    Raises:
        UsageError: one is both.
    """
    for name in combinations(settings)[0]:
        if name in flags:
            raise errors.UsageError(
                errors.given(name, settings[name]),
                " is given, and in ",
                errors.given("sweep"),
                " too; leave out one of them",
            )


def num_members(settings: Resolved) -> int:
    """Returns the number of runs that the program trains: seeds × combinations."""
    return settings["num_seeds"] * len(combinations(settings))


def by_combination(settings: Resolved, per_member: Sequence[Any]) -> list[tuple[dict[str, float], list[Any]]]:
    """Groups items, one per member, by the members' combinations."""
    count = settings["num_seeds"]
    grouped = enumerate(combinations(settings))
    return [(values, list(per_member[i * count : (i + 1) * count])) for i, values in grouped]


def bounds(settings: Resolved) -> dict[str, tuple[float, float]]:
    """Returns the smallest and the largest value of each setting of a sweep."""
    found = combinations(settings)
    return {name: (min(one[name] for one in found), max(one[name] for one in found)) for name in found[0]}


def label(settings: Mapping[str, Any], values: Values) -> str:
    """Returns the label of the members of a combination: its values, after "from" in a population, which changes them.

    Args:
        settings: by flag name; those of a run from before there were populations lack `population`.
        values: of the combination.
    """
    return f"from {describe(values)}" if values and settings.get("population") else describe(values)


def describe(values: Values) -> str:
    """Returns a combination as a label."""
    return " ".join(f"{name}={value:.12g}" for name, value in values.items())


def _axes(sweep: str) -> dict[str, list[float]]:
    parts = [part.strip().partition("=") for part in filter(None, sweep.split(";"))]
    return {name: [float(value) for value in given.split(",")] for name, _, given in parts}


def _product(axes: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _axis(settings: Resolved, part: str) -> tuple[str, list[float]]:
    """Reads NAME=A,B."""
    name, separator, given = part.strip().partition("=")
    valid = [name for name, field in settings.fields.items() if field.sweep]
    if not separator:
        raise errors.UsageError(
            errors.given("sweep", part), ": expected NAME=A,B such as learner.learning_rate=1e-4,1e-3"
        )
    if name not in settings.fields:
        hint = errors.nearest(name, valid)
        raise errors.UsageError(
            errors.given("sweep", part), f": {settings['system']} has no setting {name}{hint}", errors.LISTED
        )
    if name not in valid:
        raise refused(part, name, valid)
    try:
        values = [fields.parse(settings.fields[name], value) for value in given.split(",")]
    except ValueError as error:
        raise errors.UsageError(errors.given("sweep", part), f": {error}") from None
    if len(set(values)) < len(values):
        raise errors.UsageError(errors.given("sweep", part), ": a value is given twice")
    return name, values


def refused(sweep: str, name: str, valid: Sequence[str]) -> errors.UsageError:
    """Returns an error for a setting of which one program cannot have several values."""
    return errors.UsageError(
        errors.given("sweep", sweep),
        f": {name} decides what is compiled, or the first parameters; valid here: {', '.join(valid)} "
        "(the command study takes any, with --search)",
    )
