"""Names the families of tasks, which choose values of their own; an environment's spec names its family."""

from collections.abc import Mapping

from jaxrl_dist.settings import Cited

FAMILIES = ("classic", "long", "grid", "minatar", "board", "atari", "continuous", "physics")
# In the place of a family: all of them.
ANY = ""
# Family -> the one beneath, whose values it starts from.
BENEATH = {"long": "classic", "grid": "classic", "board": "minatar"}

Families = Mapping[str, Mapping[str, Cited]]


def lineage(family: str) -> tuple[str, ...]:
    """Returns a family after the one whose values it starts from, if there is one."""
    return (BENEATH[family], family) if family in BENEATH else (family,)
