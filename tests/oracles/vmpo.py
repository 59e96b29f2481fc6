"""V-MPO's objective, row by row.

Source: Song et al. 2020, "V-MPO", equations 2 to 6 and 25 to 26. Advantages and targets are `ppo.estimate`'s.
"""

from typing import Any

import numpy as np
from oracles import actor_critic, policy

Row = tuple[int, int]


def dual(parameter: np.ndarray) -> float:
    """A positive variable: softplus of its parameter, at least 1e-8."""
    return float(np.log1p(np.exp(parameter)) + 1e-8)


def better_half(advantage: dict[Row, float]) -> list[Row]:
    """The rows with the larger advantages; of an odd number one more."""
    count = len(advantage) - len(advantage) // 2
    return sorted(advantage, key=lambda row: -advantage[row])[:count]


def divergences(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> dict[str, float]:
    """KL(old ‖ new) of softmaxes; of Gaussians that by means and that by deviations."""
    if "log_std" not in old:
        p, q = (np.exp(x["policy"] - max(x["policy"])) for x in (old, new))
        p, q = p / sum(p), q / sum(q)
        return {"policy": sum(a * np.log(a / b) for a, b in zip(p, q, strict=True))}
    found = {"mean": 0.0, "deviation": 0.0}
    for a, b, s, t in zip(old["policy"], new["policy"], *(np.exp(x["log_std"]) for x in (old, new)), strict=True):
        found["mean"] += 0.5 * (b - a) ** 2 / s**2
        found["deviation"] += 0.5 * (s**2 / t**2 - 1 + 2 * np.log(t / s))
    return found


def penalty(duals: Any, fixed: Any, found: dict[str, float], held: dict[str, float], bounds: Any) -> float:
    """α (ε − sg[D]) + sg[α] D, summed over kinds of divergences."""
    return sum(dual(duals[kind]) * (bounds[kind] - held[kind]) + dual(fixed[kind]) * found[kind] for kind in found)


def terms(
    params: dict[str, Any],
    fixed: dict[str, Any],
    acted: dict[str, Any],
    rows: dict[str, Any],
    made: dict[str, dict[Row, float]],
    s: dict[str, Any],
) -> dict[str, dict[Row, float]]:
    """The terms of each taught row, whose sums are those of the paper's means times the number of rows."""
    advantage, duals = made["advantage"], params["duals"]
    better, count = better_half(advantage), len(advantage)
    eta, fixed_eta = dual(duals["temperature"]), dual(fixed["duals"]["temperature"])
    normaliser = sum(np.exp(advantage[row] / fixed_eta) for row in better)
    bounds = {"policy": s["policy_bound"], "mean": s["mean_bound"], "deviation": s["deviation_bound"]}
    mean = sum(np.exp(advantage[row] / eta) for row in better) / len(better)
    names = "policy_loss", "value_loss", "temperature_loss", "entropy", "approx_kl", "temperature", "penalty"
    found: dict[str, dict[Row, float]] = {name: {} for name in names}
    columns = range(rows["step_type"].shape[1])
    now, held, old = ([actor_critic.outputs(x["model"], rows, b) for b in columns] for x in (params, fixed, acted))
    for t, b in advantage:
        log_prob, entropy = policy.log_prob_and_entropy(now[b][t], rows["action"][t, b])
        weight = np.exp(advantage[t, b] / fixed_eta) / normaliser if (t, b) in better else 0.0
        divergence = divergences(old[b][t], now[b][t])
        numbers = (
            -count * weight * log_prob,
            0.5 * (now[b][t]["value"][0] - made["target"][t, b]) ** 2,
            eta * s["temperature_bound"] + eta * np.log(mean),
            entropy,
            sum(divergence.values()),
            eta,
            penalty(duals, fixed["duals"], divergence, divergences(old[b][t], held[b][t]), bounds),
        )
        for name, number in zip(names, numbers, strict=True):
            found[name][t, b] = float(number)
    return found
