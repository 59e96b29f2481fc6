"""Munchausen's target of one transition.

Source: Vieillard et al. 2020, "Munchausen reinforcement learning", equation 2.
"""

from typing import Any

import numpy as np


def log_policy(q: np.ndarray, temperature: float) -> np.ndarray:
    """Log-probabilities [A] of softmax(q / τ)."""
    weights = np.exp((q - max(q)) / temperature)
    return np.log(weights / sum(weights))


def soft_value(q: np.ndarray, outputs: np.ndarray, temperature: float) -> Any:
    """Σ π (z − τ log π) over actions, of values [A] or quantiles [A, K]."""
    logs = log_policy(q, temperature)
    return sum(np.exp(p) * (z - temperature * p) for p, z in zip(logs, outputs, strict=True))


def bonus(q: np.ndarray, action: int, s: dict[str, Any]) -> float:
    """α [τ log π(a)] between l0 and 0."""
    scaled = s["temperature"] * log_policy(q, s["temperature"])[action]
    return s["munchausen"] * min(max(scaled, s["log_policy_low"]), 0.0)
