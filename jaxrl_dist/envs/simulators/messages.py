"""Reads and checks the messages of simulators, trusting no sender."""

from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import simulator
from jaxrl_dist.envs.simulators import sources

_LARGEST = float(np.finfo(np.float32).max)


class Row(NamedTuple):
    """A row that a simulator has sent."""

    observation: np.ndarray
    reward: float
    terminated: bool
    truncated: bool


def read(
    frame: simulator.Frame, expected: str, observation: simulator.ArrayType, reward_range: tuple[float, float]
) -> Row:
    """Reads the row in a message.

    Args:
        frame: the message.
        expected: "begin", which opens an episode and has no reward, or "act".
        observation: type of the observation.
        reward_range: lowest and highest reward; rounding to f32 may lead a little beyond.

    Raises:
        ValueError: the message is not valid; the error names the field, the expected and the given value.
    """
    header = frame.header
    if header.get("kind") != expected:
        raise ValueError(f"kind: expected {expected}, given {sources.shown(header.get('kind'))}")
    if header.get("observation") != str(observation) or len(frame.payload) != observation.num_bytes:
        given = f"{sources.shown(header.get('observation'))} in {len(frame.payload)} bytes"
        raise ValueError(f"observation: expected {observation} in {observation.num_bytes} bytes, given {given}")
    observed = simulator.checked("observation", observation, observation.read(frame.payload))
    if expected == "begin":
        return Row(observed, 0.0, False, False)
    reward: Any = header.get("reward")
    terminated, truncated = header.get("terminated"), header.get("truncated")
    low, high = reward_range
    is_number = type(reward) in (int, float) and abs(reward) <= _LARGEST
    if not is_number or not low - _slack(low) <= reward <= high + _slack(high):
        raise ValueError(f"reward: expected a finite number in {low:g} to {high:g}, given {sources.shown(reward)}")
    if not isinstance(terminated, bool) or not isinstance(truncated, bool):
        given = sources.shown((terminated, truncated))
        raise ValueError(f"terminated and truncated: expected true or false, given {given}")
    return Row(observed, float(reward), terminated, truncated)


def _slack(bound: float) -> float:
    """Returns how far rounding to f32 may take a reward beyond a bound."""
    return 1e-5 * (1 + abs(bound))
