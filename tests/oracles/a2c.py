"""The objective of A2C and A3C, and GA3C's, row by row.

Source: Mnih et al. 2016, algorithm S3 and section 4; Babaeizadeh et al. 2017 (GA3C), section 5.2.
"""

from typing import Any

import numpy as np
from oracles import actor_critic, policy, ppo

Row = tuple[int, int]


def estimate(params: dict[str, Any], rows: dict[str, Any], s: dict[str, Any]) -> dict[str, dict[Row, float]]:
    """Advantages and targets of the taught rows; with λ = 1 the advantage is R − V(s) of algorithm S3."""
    return ppo.estimate(params, rows, s)


def terms(
    params: dict[str, Any], rows: dict[str, Any], made: dict[str, dict[Row, float]], s: dict[str, Any]
) -> dict[str, dict[Row, float]]:
    """−A log(π + ε), half the squared value error, and the entropy of each taught row."""
    found: dict[str, dict[Row, float]] = {"policy_loss": {}, "value_loss": {}, "entropy": {}}
    columns = [actor_critic.outputs(params, rows, b) for b in range(rows["step_type"].shape[1])]
    for (t, b), advantage in made["advantage"].items():
        draw = rows["draw"][t, b] if "draw" in rows else None
        log_prob, entropy = policy.log_prob_and_entropy(columns[b][t], rows["action"][t, b], draw)
        found["policy_loss"][t, b] = -advantage * np.log(np.exp(log_prob) + s["correction_epsilon"])
        found["value_loss"][t, b] = 0.5 * (made["target"][t, b] - columns[b][t]["value"][0]) ** 2
        found["entropy"][t, b] = entropy
    return found
