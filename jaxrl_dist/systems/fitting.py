"""Fits the sizes that nobody gave to those that a user gave: a replay's rows, minibatches and actors to environments.

A paper's replay of 96,000 rows is as good a choice with 96,256, where 256 environments need a multiple of 256 × 8.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from jaxrl_dist import networks, systems
from jaxrl_dist.settings.resolve import FLAG, Resolved

_ENVS, _LENGTH = "env.num_envs", "layout.unroll_length"
# Settings whose sum is at least the rows of a window beside its last one.
_WINDOW = ("agent.burn_in", "agent.taught", "agent.unroll_steps", "agent.n_step", "network.num_frames")
# Parts of an iteration's environments, each with as many as the others.
_PLAYERS = ("layout.num_actors", "layout.num_workers")


def fit(found: Resolved) -> Resolved:
    """Returns settings whose sizes fit together wherever one of them was not given by a flag.

    The capacity of a replay grows to the next multiple of what an iteration adds, and to a window for each environment;
    learning starts at the latest when the replay is full; minibatches and actors are the largest number that divides,
    up to the one that stood there. What devices must divide is not known here; assembling a run checks it.

    Args:
        found: settings of a system, with origins.

    Example:
        >>> import jaxrl_dist
        >>> settings = jaxrl_dist.make("dqn", "toy:walk", settings={"env.num_envs": 256}).settings
        >>> settings["replay.capacity"], settings.origins["replay.capacity"]
        (10240, 'family classic: PureJaxRL dqn.py (Lu et al. 2022); 10000 fitted to env.num_envs=256')
    """
    origins = dict(found.origins)
    for name, value in _sizes(found):
        if origins.get(name, FLAG) != FLAG and value != found[name]:
            origins[name] = f"{origins[name]}; {found[name]} fitted to {_ENVS}={found[_ENVS]}"
            found = found.replaced({name: value})
    return dataclasses.replace(found, origins=origins)


def _sizes(found: Resolved) -> Iterator[tuple[str, int]]:
    """Yields name -> value of every size that depends on the environments."""
    settings: Any = found.settings
    if _ENVS not in settings or _LENGTH not in settings:
        return
    num_envs = settings[_ENVS]
    block = num_envs * settings[_LENGTH]
    if "replay.capacity" in settings:
        window = 1 + sum(settings.get(name, 0) for name in _WINDOW)
        capacity = settings["replay.capacity"]
        if found.origins["replay.capacity"] != FLAG:
            capacity = -(-max(capacity, num_envs * window) // block) * block
        yield "replay.capacity", capacity
        if "replay.min_size" in settings:
            yield "replay.min_size", min(settings["replay.min_size"], capacity)
    if not found.row.replay.keeps_rows:
        yield "learner.minibatches", _divisor(_items(found.row, settings), settings["learner.minibatches"])
    for name in _PLAYERS:
        # 0 stands for another setting's number.
        if settings.get(name, 0):
            yield name, _divisor(num_envs, settings[name])


def _items(system: systems.System, settings: Any) -> int:
    """Returns how many items an iteration has: whole columns for a memory, else rows."""
    is_columns = system.sequences or networks.is_recurrent(settings["network.core"])
    return settings[_ENVS] if is_columns else settings[_ENVS] * settings[_LENGTH]


def _divisor(total: int, wanted: int) -> int:
    """Returns the largest divisor of a number up to another."""
    return next(one for one in range(min(wanted, total), 0, -1) if total % one == 0)
