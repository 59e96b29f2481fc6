"""Proportional prioritisation, item by item.

Source: Schaul et al. 2016, equation 1, section 3.4 and algorithm 1; Horgan et al. 2018, algorithm 1.
"""

import numpy as np


def probabilities(errors: list[np.ndarray], alpha: float, smallest: float) -> list[np.ndarray]:
    """P(i) = p_i^α / Σ p^α, p = |δ| + ε, of the items of each shard, of which every one is drawn as often."""
    found = []
    for shard in errors:
        priority = [(abs(error) + smallest) ** alpha for error in shard]
        found.append(np.array([p / sum(priority) / len(errors) for p in priority]))
    return found


def exponent(progress: float, start: float, end: float) -> float:
    """β: from its start to its end, linearly."""
    return start * (1 - progress) + end * progress


def weights(drawn: list[np.ndarray], count: int, beta: float) -> list[np.ndarray]:
    """(N P(i))^−β of the items drawn from each shard, over the largest of all."""
    found = [np.array([(1 / (count * p)) ** beta for p in shard]) for shard in drawn]
    return [shard / max(max(each) for each in found) for shard in found]


def windows(clock: int, capacity: int, length: int, stride: int) -> list[int]:
    """First rows in time of the windows that are whole in a ring after so many rows, beginning at multiples."""
    return [start for start in range(0, clock, stride) if start >= clock - capacity and start + length <= clock]
