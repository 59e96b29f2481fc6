"""R2D2's loss and priorities, sequence by sequence.

Source: Kapturowski et al. 2019, section 2.3; Pohlen et al. 2018, proposition A.2.
"""

from typing import Any

import numpy as np
from oracles import actor_critic, dqn, network, returns

FIRST, LAST = 0, 2


def h(x: float) -> float:
    """sgn(x)(√(|x| + 1) − 1) + εx, ε = 1e-3."""
    return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x


def h_inverse(x: float) -> float:
    """The inverse of h."""
    root = np.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3))
    return np.sign(x) * (((root - 1) / 2e-3) ** 2 - 1)


def inputs(rows: dict[str, Any], s: dict[str, Any], b: int) -> np.ndarray:
    """Of each row the (stacked) observation, the action before it, one-hot, and its reward; none of these at FIRST."""
    step_type, frames = rows["step_type"][:, b], rows["frames"][b] if "frames" in rows else None
    seen = network.features({}, None, rows["observation"][:, b], step_type, frames)
    reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
    found, last = [], rows["last_action"][b]
    for t, x in enumerate(seen):
        extra = np.zeros(s["num_actions"] + 1)
        if step_type[t] != FIRST:
            extra[last], extra[-1] = 1.0, reward[t]
        found.append(np.concatenate([x, extra]))
        last = rows["action"][t, b]
    return np.array(found)


def q_values(
    params: dict[str, Any], fixed: dict[str, Any], rows: dict[str, Any], s: dict[str, Any], b: int
) -> np.ndarray:
    """Values [m + n, A] of the rows after the burn-in, whose memory is that of fixed parameters."""
    memory = tuple(part[b] if s["stored_state"] else np.zeros_like(part[b]) for part in rows["memory"])
    found, first = [], rows["step_type"][:, b] == FIRST
    for t, x in enumerate(inputs(rows, s, b)):
        memory = tuple(np.zeros_like(part) if first[t] else part for part in memory)
        memory = network.lstm((fixed if t < s["burn_in"] else params)["lstm"], memory, x)
        if t >= s["burn_in"]:
            found.append(dqn.q_values(params, memory[0], None, s["num_actions"])[:, 0])
    return np.array(found)


def targets(params: dict[str, Any], target: dict[str, Any], rows: dict[str, Any], s: dict[str, Any]) -> Any:
    """y of each taught row (t, b): h(Σ γ^i r + γ^n h⁻¹(Q'(s', a*))), a* by Q (double) or by Q' (equation 1)."""
    found = {}
    for b in range(rows["step_type"].shape[1]):
        q, ahead = (q_values(one, one, rows, s, b) for one in (params, target))
        reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
        column = [x[s["burn_in"] :] for x in (reward, rows["discount"][:, b], rows["step_type"][:, b])]
        for t in range(s["taught"]):
            if column[2][t] == LAST:
                continue
            total, factor, end = returns.n_step(*column, s["discount"], s["n_step"], t)
            value = ahead[end, int(np.argmax((q if s["double"] else ahead)[end]))]
            rescales = s["rescale_values"]
            y = total + factor * (h_inverse(value) if rescales else value)
            found[t, b] = h(y) if rescales else y
    return found


def terms(
    params: dict[str, Any], fixed: dict[str, Any], rows: dict[str, Any], wanted: Any, s: dict[str, Any]
) -> dict[str, dict[tuple[int, int], float]]:
    """Half the squared error, its size, and the value of each taught row."""
    found: dict[str, Any] = {"loss": {}, "td_error": {}, "q_value": {}}
    columns = [q_values(params, fixed, rows, s, b) for b in range(rows["step_type"].shape[1])]
    for (t, b), y in wanted.items():
        q = columns[b][t, rows["action"][t + s["burn_in"], b]]
        for name, x in zip(found, (0.5 * (y - q) ** 2, abs(y - q), q), strict=True):
            found[name][t, b] = x
    return found


def priority(errors: dict[tuple[int, int], float], b: int, share: float) -> float:
    """η max |δ| + (1 − η) mean |δ| of a sequence; 0 of one that teaches nothing."""
    own = [x for (_, column), x in errors.items() if column == b]
    return share * max(own) + (1 - share) * sum(own) / len(own) if own else 0.0
