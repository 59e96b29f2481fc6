"""Parts that PPO, A2C and IMPALA share: the outputs of a network on every row, and the rewards."""

from typing import Any

import numpy as np
from oracles import network, policy

LAST = 2


def outputs(params: dict[str, Any], rows: dict[str, Any], b: int) -> list[dict[str, np.ndarray]]:
    """Outputs of column b, one dict per row: `policy`, `value`, and the free `log_std` where there is one.

    Means and deviations of such a policy are in halves of the range of its actions, and begin at its middle.
    """
    memory = [part[b] for part in rows["memory"]] if "memory" in rows else None
    frames = rows["frames"][b] if "frames" in rows else None
    found = []
    for x in network.features(params, memory, rows["observation"][:, b], rows["step_type"][:, b], frames):
        one = {name: network.dense(params[name], x) for name in ("policy", "value")}
        if "log_std" in params:
            half = (policy.HIGH - policy.LOW) / 2
            one["policy"] = policy.LOW + half + half * one["policy"]
            one["log_std"] = params["log_std"] + np.log(half)
        found.append(one)
    return found


def values(found: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Values [L] among the outputs of a column."""
    return np.array([one["value"][0] for one in found])


def clipped(reward: np.ndarray, bound: float) -> np.ndarray:
    """Rewards within ± bound, of which 0 is none."""
    return np.array([max(-bound, min(bound, r)) for r in reward]) if bound else reward


def taught(rows: dict[str, Any]) -> list[tuple[int, int]]:
    """Rows (t, b) whose action was executed and whose next row is known."""
    length, columns = rows["step_type"].shape
    return [(t, b) for t in range(length - 1) for b in range(columns) if rows["step_type"][t, b] != LAST]


def log_probs(params: dict[str, Any], rows: dict[str, Any]) -> np.ndarray:
    """Log-probabilities [L, B] of the actions under a policy."""
    found = np.zeros(rows["step_type"].shape)
    for b in range(found.shape[1]):
        for t, one in enumerate(outputs(params, rows, b)):
            draw = np.zeros_like(rows["action"][t, b]) if rows["squashed"] else None
            found[t, b] = policy.log_prob_and_entropy(one, rows["action"][t, b], draw)[0]
    return found
