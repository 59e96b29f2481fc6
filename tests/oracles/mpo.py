"""MPO's losses, window by window, over linear networks.

Source: Abdolmaleki et al. 2018, "Maximum a posteriori policy optimisation", equations 6 to 9; Abdolmaleki et al. 2018,
"Relative entropy regularized policy iteration", section 4.2.2; Acme's `jax/mpo` for the critic's target.
"""

from typing import Any

import numpy as np
from oracles import actor_critic, network, policy, returns, vmpo

LAST = 2


def outputs(params: dict[str, Any], x: np.ndarray) -> dict[str, np.ndarray]:
    """Mean and logarithm of the deviation of a policy whose raw output of 0 is a deviation of half."""
    mean, raw = np.split(network.dense(params["policy"]["policy"], x), 2)
    return {"policy": mean, "log_std": np.log(np.log(1 + np.exp(raw)) * 0.5 / np.log(2) + 1e-4)}


def value(critic: dict[str, Any], x: np.ndarray, action: np.ndarray) -> float:
    """Q of an action, of which a component beyond ±1 counts as ±1."""
    return network.dense(critic["value"], np.concatenate([x, np.maximum(-1, np.minimum(1, action))]))[0]


def drawn(target: dict[str, Any], x: np.ndarray, draws: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Actions of the target policy at a state, and their values by the target critic."""
    at = outputs(target, x)
    samples = [at["policy"] + np.exp(at["log_std"]) * draw for draw in draws]
    return samples, np.array([value(target["critic"], x, sample) for sample in samples])


def terms(
    params: dict[str, Any], fixed: dict[str, Any], target: dict[str, Any], rows: dict[str, Any], s: Any, draws: Any
) -> dict[str, dict[int, float]]:
    """The terms of each taught window; `draws` are the normal numbers [K, N, A] of the actions at s' and s."""
    names = "critic_loss", "policy_loss", "temperature_loss", "entropy", "approx_kl", "temperature", "q_value"
    found: dict[str, dict[int, float]] = {name: {} for name in (*names, "td_error", "penalty")}
    eta, fixed_eta = vmpo.dual(params["duals"]["temperature"]), vmpo.dual(fixed["duals"]["temperature"])
    bounds = {"mean": s["mean_bound"], "deviation": s["deviation_bound"]}
    for b in range(rows["step_type"].shape[1]):
        if rows["step_type"][0, b] == LAST:
            continue
        reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
        column = reward, rows["discount"][:, b], rows["step_type"][:, b]
        total, factor, end = returns.n_step(*column, s["discount"], s["n_step"], 0)
        x, later = rows["observation"][0, b], rows["observation"][end, b]
        _, next_q = drawn(target, later, draws[0][:, b])
        samples, q = drawn(target, x, draws[1][:, b])
        old, new, held = outputs(target, x), outputs(params, x), outputs(fixed, x)
        weights = np.exp((q - max(q)) / fixed_eta)
        weights /= sum(weights)
        y = total + factor * sum(next_q) / len(next_q)
        predicted = value(params["critic"], x, rows["action"][0, b])
        log_probs = [
            policy.gaussian(new["policy"], np.exp(old["log_std"]), sample)[0]
            + policy.gaussian(old["policy"], np.exp(new["log_std"]), sample)[0]
            for sample in samples
        ]
        divergence = vmpo.divergences(old, new)
        numbers = (
            0.5 * (y - predicted) ** 2,
            -sum(w * x for w, x in zip(weights, log_probs, strict=True)),
            eta * s["temperature_bound"] + eta * np.log(sum(np.exp(q / eta)) / len(q)),
            policy.gaussian(new["policy"], np.exp(new["log_std"]), new["policy"])[1],
            sum(divergence.values()),
            eta,
            predicted,
            abs(y - predicted),
            vmpo.penalty(params["duals"], fixed["duals"], divergence, vmpo.divergences(old, held), bounds),
        )
        for name, number in zip(found, numbers, strict=True):
            found[name][b] = float(number)
    return found
