"""Probabilities of actions, and ε over training and over environments."""

import numpy as np


def epsilon_greedy(q: np.ndarray, epsilon: float) -> np.ndarray:
    """Probabilities [A]: with ε any action, else the first of the best (Sutton and Barto 2018, section 2.2)."""
    found = np.full(len(q), epsilon / len(q))
    found[int(np.argmax(q))] += 1 - epsilon
    return found


def schedule(progress: float, start: float, end: float, fraction: float, wait: float = 0.0) -> float:
    """ε after a share of training: as it starts, then linear, then as it ends (Mnih et al. 2015, methods)."""
    if progress < wait:
        return start
    return start + (progress - wait) / fraction * (end - start) if progress < wait + fraction else end


def ladder(index: int, count: int, base: float, exponent: float) -> float:
    """ε of one of several environments, base^(1 + α i / (N − 1)) (Horgan et al. 2018, section 4.1)."""
    return base if count == 1 else base ** (1 + exponent * index / (count - 1))
