"""SAC's losses, window by window.

Source: Haarnoja et al. 2018, "Soft actor-critic algorithms and applications".
"""

from typing import Any

import numpy as np
from oracles import actor_critic, dpg, network, policy, returns

LAST = 2


def act(params: dict[str, Any], x: np.ndarray, draw: np.ndarray) -> tuple[np.ndarray, float]:
    """The action tanh(μ + σ ε) of a draw, and its log-density; log σ in [−5, 2] by a tanh, as in CleanRL's."""
    mean, raw = np.split(network.dense(params["policy"]["policy"], x), 2)
    std = np.exp(-5 + 0.5 * (2 + 5) * (np.tanh(raw) + 1))
    sample = mean + std * draw
    return np.tanh(sample), policy.squashed(mean, std, sample)


def lowest(params: dict[str, Any], x: np.ndarray, action: np.ndarray) -> float:
    """The lower value of both critics."""
    return min(output[0] for output in dpg.critics(params, x, action))


def targets(
    params: dict[str, Any], target: dict[str, Any], rows: dict[str, Any], s: dict[str, Any], draws: np.ndarray
) -> dict[int, float]:
    """r + γ (min Q'(s', a') − α log π(a' | s')), a' of the policy that learns (equations 2, 3 and 5)."""
    found, alpha = {}, np.exp(params["temperature"]["log"])
    for b in range(rows["step_type"].shape[1]):
        step_type = rows["step_type"][:, b]
        if step_type[0] == LAST:
            continue
        reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
        total, factor, end = returns.n_step(reward, rows["discount"][:, b], step_type, s["discount"], s["n_step"], 0)
        x = rows["observation"][end, b]
        action, log_prob = act(params, x, draws[b])
        found[b] = total + factor * (lowest(target, x, action) - alpha * log_prob)
    return found


def terms(
    params: dict[str, Any],
    fixed: dict[str, Any],
    rows: dict[str, Any],
    wanted: dict[int, float],
    s: dict[str, Any],
    draws: np.ndarray,
) -> dict[str, dict[int, float]]:
    """Equations 5 (critics), 9 (policy) and 18 (temperature), each a function of its own part; the rest is fixed.

    The temperature's is that of the released code, by log α in place of α.
    """
    names = "critic_loss", "policy_loss", "temperature_loss", "entropy", "temperature", "q_value", "td_error"
    found: dict[str, dict[int, float]] = {name: {} for name in names}
    alpha = np.exp(fixed["temperature"]["log"])
    size = rows["action"].shape[-1]
    for b, y in wanted.items():
        x = rows["observation"][0, b]
        q = [output[0] for output in dpg.critics(params, x, rows["action"][0, b])]
        action, log_prob = act(params, x, draws[b])
        seen = act(fixed, x, draws[b])[1]
        numbers = (
            sum(0.5 * (y - one) ** 2 for one in q),
            alpha * log_prob - lowest(fixed, x, action),
            -params["temperature"]["log"] * (seen + s["target_entropy"] * size),
            -seen,
            alpha,
            q[0],
            sum(abs(y - one) for one in q) / len(q),
        )
        for name, number in zip(names, numbers, strict=True):
            found[name][b] = float(number)
    return found
