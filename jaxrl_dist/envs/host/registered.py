"""One environment of Gymnasium's registry; worker processes make it.

It imports nothing of this package, since importing that would import JAX.
"""

from collections.abc import Mapping
from typing import Any


def make(argument: Mapping[str, Any]) -> Any:
    """Makes an environment of `entry`, the JSON of an entry of the registry, with the arguments `kwargs`."""
    import gymnasium
    from gymnasium.envs import registration

    return gymnasium.make(registration.EnvSpec.from_json(argument["entry"]), **argument["kwargs"])
