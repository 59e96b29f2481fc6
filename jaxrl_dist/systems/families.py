"""What kinds of task there are, which choose values of their own; the environment's spec says which one it is."""

from collections.abc import Mapping

from jaxrl_dist.settings import Cited

FAMILIES = ("classic", "minatar", "atari", "continuous", "physics")
# In the place of a family: all of them.
ANY = ""

Families = Mapping[str, Mapping[str, Cited]]
