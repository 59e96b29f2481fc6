"""Names the families of tasks, which choose values of their own; an environment's spec names its family."""

from collections.abc import Mapping

from jaxrl_dist.settings import Cited

FAMILIES = ("classic", "minatar", "atari", "continuous", "physics")
# In the place of a family: all of them.
ANY = ""

Families = Mapping[str, Mapping[str, Cited]]
