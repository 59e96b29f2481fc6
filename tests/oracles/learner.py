"""A learner's step, number by number: the mean over rows, the clip of the norm, the step size, the target network."""

import math
from fractions import Fraction

import numpy as np


def clipped(gradient: list[np.ndarray], largest: float) -> list[np.ndarray]:
    """Gradients scaled so that their common norm is at most so large (Pascanu et al. 2013, algorithm 1); 0 is off."""
    norm = np.sqrt(sum(x**2 for part in gradient for x in part.ravel()))
    return [part * largest / norm for part in gradient] if largest and norm > largest else gradient


def clipped_by_ratio(gradient: list[np.ndarray], params: list[np.ndarray], ratio: float) -> list[np.ndarray]:
    """Each array scaled so that its norm is at most this share of its parameters' norm, or of 1e-3; 0 is off.

    Brock et al. 2021, equation 3, for arrays as a whole.
    """
    found = []
    for part, own in zip(gradient, params, strict=True):
        norm, most = np.linalg.norm(part.ravel()), ratio * max(np.linalg.norm(own.ravel()), 1e-3)
        found.append(part * most / norm if ratio and norm > most else part)
    return found


def rate(
    first: float, progress: float, anneal: bool, schedule: str = "linear", end: float = 0.0, warmup: float = 0.0
) -> float:
    """The step size: a rise from 0, then a fall to a share of it along a line or half a cosine.

    Schulman et al. 2017, table 5 (α); Loshchilov & Hutter 2017, equation 5; Goyal et al. 2017, section 2.2.
    """
    if progress < warmup:
        return first * progress / warmup
    if not anneal:
        return first
    past = (progress - warmup) / (1 - warmup)
    if schedule == "linear":
        return first * (1 - past * (1 - end))
    return first * end + 0.5 * (first - first * end) * (1 + math.cos(math.pi * past))


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
