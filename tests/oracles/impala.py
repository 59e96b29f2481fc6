"""IMPALA's objective, row by row, with the corrections that it was compared with.

Source: Espeholt et al. 2018, equation 1, remark 2, sections 4.2 and 5.2.2.
"""

from typing import Any

import numpy as np
from oracles import actor_critic, policy

LAST = 2
Row = tuple[int, int]


def estimate(params: dict[str, Any], rows: dict[str, Any], s: dict[str, Any]) -> dict[str, dict[Row, float]]:
    """V-trace's targets v_s, and the policy gradient's factors ρ_s (r_s + γ v_{s+1} − V(x_s)), of the taught rows.

    With λ < 1 the factor bootstraps from V(x_{s+1}) + λ (v_{s+1} − V(x_{s+1})).
    """
    found: dict[str, dict[Row, float]] = {"target": {}, "advantage": {}}
    for b in range(rows["step_type"].shape[1]):
        outputs = actor_critic.outputs(params, rows, b)
        reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
        column = reward, rows["discount"][:, b], rows["step_type"][:, b]
        length, value = len(reward) - 1, actor_critic.values(outputs)
        log_prob = [policy.log_prob_and_entropy(outputs[t], rows["action"][t, b])[0] for t in range(length)]
        ratio = np.exp(np.array(log_prob) - rows["log_prob"][:length, b])
        target = np.array([_target(column, value, ratio, s, t) for t in range(length)])
        for t in range(length):
            if column[2][t] != LAST:
                found["target"][t, b] = target[t]
                found["advantage"][t, b] = _advantage(column, value, ratio, target, s, t)
    return found


def _target(column: Any, value: np.ndarray, ratio: np.ndarray, s: dict[str, Any], start: int) -> float:
    """Equation 1: V(x_s) + Σ_t γ^{t−s} (Π_{i<t} c_i) δ_t V."""
    reward, discount, step_type = column
    total, factor = value[start], 1.0
    for t in range(start, len(reward) - 1):
        if step_type[t] == LAST:
            break
        corrects = s["correction"] == "vtrace"
        rho, c = (min(s["clip_rho"], ratio[t]), min(s["clip_c"], ratio[t])) if corrects else (1.0, 1.0)
        gamma = s["discount"] * discount[t + 1]
        total += factor * rho * (reward[t + 1] + gamma * value[t + 1] - value[t])
        factor *= gamma * s["trace_decay"] * c
    return total


def _advantage(
    column: Any, value: np.ndarray, ratio: np.ndarray, target: np.ndarray, s: dict[str, Any], t: int
) -> float:
    reward, discount, step_type = column
    ahead = value[t + 1]
    if t + 1 < len(target) and step_type[t + 1] != LAST:
        ahead += s["trace_decay"] * (target[t + 1] - value[t + 1])
    weight = min(s["clip_policy_rho"], ratio[t]) if s["correction"] in ("vtrace", "one_step") else 1.0
    return weight * (reward[t + 1] + s["discount"] * discount[t + 1] * ahead - value[t])


def terms(
    params: dict[str, Any], rows: dict[str, Any], made: dict[str, dict[Row, float]], s: dict[str, Any]
) -> dict[str, dict[Row, float]]:
    """Terms of each taught row (section 4.2); `epsilon` adds a small number to probabilities (section 5.2.2)."""
    found: dict[str, dict[Row, float]] = {"policy_loss": {}, "value_loss": {}, "entropy": {}}
    columns = [actor_critic.outputs(params, rows, b) for b in range(rows["step_type"].shape[1])]
    for (t, b), advantage in made["advantage"].items():
        log_prob, entropy = policy.log_prob_and_entropy(columns[b][t], rows["action"][t, b])
        if s["correction"] == "epsilon":
            log_prob = np.log(np.exp(log_prob) + s["correction_epsilon"])
        found["policy_loss"][t, b] = -advantage * log_prob
        found["value_loss"][t, b] = 0.5 * (made["target"][t, b] - columns[b][t]["value"][0]) ** 2
        found["entropy"][t, b] = entropy
    return found
