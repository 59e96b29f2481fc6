"""What published settings are made of: values with their sources."""

from collections.abc import Mapping
from typing import Any, NamedTuple

OURS = "this project"


class Setting(NamedTuple):
    """A value for a flag, and where it was published (`this project` where it was not)."""

    value: Any
    source: str


Families = Mapping[str, Mapping[str, Setting]]
ANY = ""  # in the place of a family: all of them


def cited(source: str, values: Mapping[str, Any]) -> dict[str, Setting]:
    """Gives values their common source."""
    return {name: Setting(value, source) for name, value in values.items()}
