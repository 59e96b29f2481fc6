"""Distributions of actions, one row at a time: log-probabilities and entropies from their definitions."""

from typing import Any

import numpy as np

# Bounds of real actions that no policy squashes.
LOW, HIGH = np.array([-1.0, -2.0]), np.array([1.0, 6.0])


def categorical(logits: np.ndarray, action: int) -> tuple[float, float]:
    """Log-probability of an action and entropy of a softmax over logits [A]."""
    weights = np.exp(logits - max(logits))
    probabilities = weights / sum(weights)
    return np.log(probabilities[action]), -sum(p * np.log(p) for p in probabilities)


def gaussian(mean: np.ndarray, std: np.ndarray, action: np.ndarray) -> tuple[float, float]:
    """Log-density of an action [A] and entropy of independent normal distributions."""
    log_density = entropy = 0.0
    for m, s, x in zip(mean, std, action, strict=True):
        log_density += -0.5 * ((x - m) / s) ** 2 - np.log(s * np.sqrt(2 * np.pi))
        entropy += 0.5 * np.log(2 * np.pi * np.e * s**2)
    return log_density, entropy


def squashed(mean: np.ndarray, std: np.ndarray, sample: np.ndarray) -> float:
    """Log-density of tanh(sample) [A].

    Source: Haarnoja et al. 2018, appendix C, equation 26 (21 in the first version): the change of variables.
    """
    base = gaussian(mean, std, sample)[0]
    return base - sum(np.log(1 - np.tanh(x) ** 2) for x in sample)


def log_prob_and_entropy(
    outputs: dict[str, np.ndarray], action: Any, draw: np.ndarray | None = None
) -> tuple[float, float]:
    """Of one row: a softmax, a Gaussian with free deviations (`log_std`), or one that is squashed (`draw`).

    Args:
        outputs: `policy`, and `log_std` for a Gaussian.
        action: the action, or the sample before it is squashed.
        draw: standard normal [A], from which a squashed policy's entropy is estimated; its deviations are
            softplus + 1e-3, as in Brax.
    """
    if draw is not None:
        mean, raw = np.split(outputs["policy"], 2)
        std = np.log(1 + np.exp(raw)) + 1e-3
        sample = mean + std * draw
        base = gaussian(mean, std, sample)[1]
        return squashed(mean, std, action), base + sum(np.log(1 - np.tanh(x) ** 2) for x in sample)
    if "log_std" in outputs:
        return gaussian(outputs["policy"], np.exp(outputs["log_std"]), action)
    return categorical(outputs["policy"], action)
