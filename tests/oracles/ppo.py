"""PPO's and DPPO's objective, row by row.

Source: Schulman et al. 2017 (PPO); Engstrom et al. 2020 and Huang et al. 2022 (its details); Heess et al. 2017 (DPPO).
"""

from typing import Any

import numpy as np
from oracles import actor_critic, policy, returns

Row = tuple[int, int]


def estimate(params: dict[str, Any], rows: dict[str, Any], s: dict[str, Any]) -> dict[str, dict[Row, float]]:
    """Old values, advantages and targets of the taught rows, by the parameters that acted."""
    found: dict[str, dict[Row, float]] = {"value": {}, "advantage": {}, "target": {}}
    for b in range(rows["step_type"].shape[1]):
        value = actor_critic.values(actor_critic.outputs(params, rows, b))
        reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
        column = reward, rows["discount"][:, b], rows["step_type"][:, b], value
        advantage = returns.generalised_advantage(*column, s["discount"], s["gae_lambda"])
        for t in range(len(advantage)):
            if (t, b) in set(actor_critic.taught(rows)):
                found["value"][t, b], found["advantage"][t, b] = value[t], advantage[t]
                found["target"][t, b] = value[t] + advantage[t]
    return found


def standardised(advantage: dict[Row, float]) -> dict[Row, float]:
    """Mean 0 and deviation 1 over the rows that are given (Huang et al. 2022, detail 7)."""
    numbers = list(advantage.values())
    mean = sum(numbers) / len(numbers)
    variance = sum((x - mean) ** 2 for x in numbers) / len(numbers)
    return {row: (x - mean) / (np.sqrt(variance) + 1e-8) for row, x in advantage.items()}


def terms(
    params: dict[str, Any], rows: dict[str, Any], made: dict[str, dict[Row, float]], s: dict[str, Any]
) -> dict[str, dict[Row, float]]:
    """The terms of each taught row: ratio, equation 7, the clipped value error, the entropy, r − 1 − log r."""
    names = "ratio", "policy_loss", "value_loss", "entropy", "approx_kl", "ratio_deviation", "clip_fraction"
    found: dict[str, dict[Row, float]] = {name: {} for name in names}
    columns = [actor_critic.outputs(params, rows, b) for b in range(rows["step_type"].shape[1])]
    for (t, b), advantage in made["advantage"].items():
        draw = rows["draw"][t, b] if "draw" in rows else None
        log_prob, entropy = policy.log_prob_and_entropy(columns[b][t], rows["action"][t, b], draw)
        ratio, value = np.exp(log_prob - rows["log_prob"][t, b]), columns[b][t]["value"][0]
        surrogate = ratio * advantage
        low, high = 1 - s["clip_epsilon"], 1 + s["clip_epsilon"]
        if s["clip_epsilon"]:
            surrogate = min(surrogate, max(low, min(high, ratio)) * advantage)
        error = (value - made["target"][t, b]) ** 2
        if s["clip_value"]:
            old = made["value"][t, b]
            near = old + max(-s["clip_value"], min(s["clip_value"], value - old))
            error = max(error, (near - made["target"][t, b]) ** 2)
        outside = float(bool(s["clip_epsilon"]) and not low <= ratio <= high)
        numbers = ratio, -surrogate, 0.5 * error, entropy, ratio - 1 - np.log(ratio), abs(ratio - 1), outside
        for name, x in zip(names, numbers, strict=True):
            found[name][t, b] = x
    return found


def total(found: dict[str, dict[Row, float]], s: dict[str, Any]) -> float:
    """Summed over the rows, what is minimised: equation 9 with the sign changed, and without DPPO's penalty."""
    costs = {"policy_loss": 1.0, "value_loss": s["value_cost"], "entropy": -s["entropy_cost"]}
    return sum(cost * x for name, cost in costs.items() for x in found[name].values())


def penalty(divergence: dict[Row, float], weight: float, target: float) -> float:
    """DPPO's penalty times the number of rows: λ KL + 50 max(0, KL − 2 KL_target)² of the mean divergence.

    Source: Heess et al. 2017, algorithm 1 (the hinge's weight is ours).
    """
    mean = sum(divergence.values()) / len(divergence)
    return len(divergence) * (weight * mean + 50 * max(0.0, mean - 2 * target) ** 2)


def adapted(weight: float, divergence: float, target: float) -> float:
    """The penalty's weight after an update.

    Source: Heess et al. 2017, algorithm 2: α = 1.5, β_high = 2, β_low = 1/2.
    """
    if divergence > 2 * target:
        return weight * 1.5
    return weight / 1.5 if divergence < target / 2 else weight


def paced(rate: float, divergence: float, target: float) -> float:
    """The step size for a minibatch.

    Source: rsl_rl algorithms/ppo.py; rl_games common/schedulers.py, whose lower bound is 1e-6.
    """
    if divergence > 2 * target:
        return max(1e-5, rate / 1.5)
    return min(1e-2, rate * 1.5) if divergence < target / 2 else rate
