"""PQN's loss, row by row.

Source: Gallici et al. 2024, algorithm 1; Peng and Williams 1994 (Q(λ) without corrections).
"""

from typing import Any

import numpy as np
from oracles import actor_critic, network, returns

Row = tuple[int, int]


def q_values(params: dict[str, Any], rows: dict[str, Any], b: int) -> np.ndarray:
    """Values [L, A] of column b."""
    memory = [part[b] for part in rows["memory"]] if "memory" in rows else None
    frames = rows["frames"][b] if "frames" in rows else None
    found = network.features(params, memory, rows["observation"][:, b], rows["step_type"][:, b], frames)
    return np.array([network.dense(params["q"], x) for x in found])


def targets(params: dict[str, Any], rows: dict[str, Any], s: dict[str, Any]) -> dict[Row, float]:
    """λ-returns of the taught rows, of the largest values of the rows arrived at."""
    found = {}
    for b in range(rows["step_type"].shape[1]):
        best = q_values(params, rows, b).max(-1)
        reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
        column = reward, rows["discount"][:, b], rows["step_type"][:, b], best, s["discount"], s["trace_decay"]
        for t, column_of_row in actor_critic.taught(rows):
            if column_of_row == b:
                found[t, b] = returns.lambda_return(*column, t)
    return found


def terms(params: dict[str, Any], rows: dict[str, Any], wanted: dict[Row, float]) -> dict[str, dict[Row, float]]:
    """Half the squared error of each taught row, its size, and the value of the action taken."""
    found: dict[str, dict[Row, float]] = {"loss": {}, "td_error": {}, "q_value": {}}
    columns = [q_values(params, rows, b) for b in range(rows["step_type"].shape[1])]
    for (t, b), y in wanted.items():
        q = columns[b][t, rows["action"][t, b]]
        for name, x in zip(found, (0.5 * (y - q) ** 2, abs(y - q), q), strict=True):
            found[name][t, b] = x
    return found
