"""Independent keys of one run, by use."""

from typing import NamedTuple

import jax

from jaxrl_dist.types import Array


class SeedKeys(NamedTuple):
    """Independent keys of one run, by use."""

    params: Array
    environment: Array
    training: Array
    evaluation: Array


def seed_keys(key: Array) -> SeedKeys:
    """Splits a run's key by use."""
    return SeedKeys(*jax.random.split(key, 4))
