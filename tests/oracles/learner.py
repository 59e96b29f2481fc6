"""A learner's step, number by number: the mean over rows, the clip of the norm, the step size, the target network."""

import math
from fractions import Fraction

import numpy as np


def clipped(gradient: list[np.ndarray], largest: float) -> list[np.ndarray]:
    """Gradients scaled so that their common norm is at most so large (Pascanu et al. 2013, algorithm 1); 0 is off."""
    norm = np.sqrt(sum(x**2 for part in gradient for x in part.ravel()))
    return [part * largest / norm for part in gradient] if largest and norm > largest else gradient


def rate(first: float, progress: float, anneal: bool) -> float:
    """The step size, which falls linearly to 0 (Schulman et al. 2017, table 5, α)."""
    return first * (1 - progress) if anneal else first


def moved(params: list[np.ndarray], gradient: list[np.ndarray], rate: float) -> list[np.ndarray]:
    """Steepest descent."""
    return [p - rate * g for p, g in zip(params, gradient, strict=True)]


def target(
    old: list[np.ndarray], params: list[np.ndarray], updates: int, period: int, share: float
) -> list[np.ndarray]:
    """The target network after so many updates: τ of the way in every period-th (Lillicrap et al. 2016, section 3)."""
    if updates % period:
        return old
    return [(1 - share) * a + share * b for a, b in zip(old, params, strict=True)]


def updates(iterations: int, unroll_length: int, min_rows: int, ratio: Fraction) -> list[int]:
    """Updates of each iteration: none before so many rows, then so many per unroll, what is left over being saved."""
    found, saved = [], Fraction(0)
    for iteration in range(iterations):
        if (iteration + 1) * unroll_length >= min_rows:
            saved += ratio
        found.append(math.floor(saved))
        saved -= found[-1]
    return found
