"""Discrete SAC's losses, window by window, over linear networks.

Source: Christodoulou 2019, "Soft actor-critic for discrete action settings", equations 4, 10, 11 and 12.
"""

from typing import Any

import numpy as np
from oracles import actor_critic, dqn, network, returns

LAST = 2


def policy(params: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Probabilities [A] of an input [D]."""
    return dqn.softmax(network.dense(params["policy"]["policy"], x))


def critics(critic: dict[str, Any], x: np.ndarray) -> list[np.ndarray]:
    """Values [A] of both critics."""
    return [network.dense({name: leaf[i] for name, leaf in critic["q"].items()}, x) for i in range(2)]


def entropy(p: np.ndarray) -> float:
    """−Σ p log p."""
    return -sum(one * np.log(one) for one in p)


def targets(
    params: dict[str, Any], target: dict[str, Any], rows: dict[str, Any], s: dict[str, Any]
) -> dict[int, float]:
    """r + γ Σ π(a') (min Q'(s', a') − α log π(a')) (equations 2 and 10)."""
    found, alpha = {}, np.exp(params["temperature"]["log"])
    for b in range(rows["step_type"].shape[1]):
        step_type = rows["step_type"][:, b]
        if step_type[0] == LAST:
            continue
        reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
        total, factor, end = returns.n_step(reward, rows["discount"][:, b], step_type, s["discount"], s["n_step"], 0)
        x = rows["observation"][end, b]
        p, q = policy(params, x), np.minimum(*critics(target, x))
        found[b] = total + factor * sum(p[a] * (q[a] - alpha * np.log(p[a])) for a in range(len(p)))
    return found


def terms(
    params: dict[str, Any], fixed: dict[str, Any], rows: dict[str, Any], wanted: dict[int, float], s: dict[str, Any]
) -> dict[str, dict[int, float]]:
    """Equations 4, 11 and 12, each a function of its own part; the rest is fixed."""
    names = "critic_loss", "policy_loss", "temperature_loss", "entropy", "temperature", "q_value", "td_error"
    found: dict[str, dict[int, float]] = {name: {} for name in names}
    alpha = np.exp(fixed["temperature"]["log"])
    for b, y in wanted.items():
        x, action = rows["observation"][0, b], rows["action"][0, b]
        q = [values[action] for values in critics(params["critic"], x)]
        lowest, p, seen = np.minimum(*critics(fixed["critic"], x)), policy(params, x), policy(fixed, x)
        wanted_entropy = s["target_entropy"] * np.log(len(p))
        numbers = (
            sum(0.5 * (y - one) ** 2 for one in q),
            sum(p[a] * (alpha * np.log(p[a]) - lowest[a]) for a in range(len(p))),
            sum(seen[a] * -params["temperature"]["log"] * (np.log(seen[a]) + wanted_entropy) for a in range(len(p))),
            entropy(seen),
            alpha,
            q[0],
            sum(abs(y - one) for one in q) / len(q),
        )
        for name, number in zip(names, numbers, strict=True):
            found[name][b] = float(number)
    return found
