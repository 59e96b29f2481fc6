"""The losses of DDPG, D4PG and TD3, window by window.

Source: Lillicrap et al. 2016; Barth-Maron et al. 2018 (D4PG); Fujimoto et al. 2018 (TD3).
"""

from typing import Any

import numpy as np
from oracles import actor_critic, dqn, network, returns

LAST = 2


def policy(params: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """The action [A] in [−1, 1] of an observation [D]."""
    return np.tanh(network.dense(params["policy"]["policy"], x))


def critics(params: dict[str, Any], x: np.ndarray, action: np.ndarray) -> list[np.ndarray]:
    """The output [K] of each critic."""
    layers = params["critic"]["value"]
    joined = np.concatenate([x, action])
    return [network.dense({name: part[c] for name, part in layers.items()}, joined) for c in range(len(layers["bias"]))]


def mean(output: np.ndarray, atoms: np.ndarray | None) -> float:
    """The value of a critic's output."""
    return output[0] if atoms is None else dqn.softmax(output) @ atoms


def targets(
    target: dict[str, Any], rows: dict[str, Any], s: dict[str, Any], atoms: np.ndarray | None, draws: Any
) -> dict[int, Any]:
    """y of each taught window; with two critics the lower one's (Fujimoto et al. 2018, equation 10).

    The target policy's action is smoothed by noise within ± c and stays in its range (equations 14 and 15).
    """
    found = {}
    for b in range(rows["step_type"].shape[1]):
        step_type = rows["step_type"][:, b]
        if step_type[0] == LAST:
            continue
        reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
        total, factor, end = returns.n_step(reward, rows["discount"][:, b], step_type, s["discount"], s["n_step"], 0)
        x = rows["observation"][end, b]
        action = policy(target, x)
        if s["target_noise"]:
            bound = s["target_noise_clip"]
            noise = [max(-bound, min(bound, s["target_noise"] * draw)) for draw in draws[b]]
            action = np.array([max(-1.0, min(1.0, a)) for a in action + noise])
        lowest = min(critics(target, x, action), key=lambda output: mean(output, atoms))
        if atoms is None:
            found[b] = total + factor * lowest[0]
        else:
            found[b] = dqn.projection(atoms, dqn.softmax(lowest), total, factor)
    return found


def critic_terms(
    params: dict[str, Any], rows: dict[str, Any], wanted: dict[int, Any], atoms: np.ndarray | None
) -> dict[str, dict[int, float]]:
    """The critics' loss of each taught window, the mean of their errors (its priority), and the first one's value."""
    found: dict[str, dict[int, float]] = {"critic_loss": {}, "td_error": {}, "q_value": {}}
    for b, y in wanted.items():
        outputs = critics(params, rows["observation"][0, b], rows["action"][0, b])
        found["q_value"][b] = mean(outputs[0], atoms)
        if atoms is None:
            found["critic_loss"][b] = sum(0.5 * (y - output[0]) ** 2 for output in outputs)
            errors = [abs(y - output[0]) for output in outputs]
        else:
            errors = [dqn.divergence(y, output) for output in outputs]
            found["critic_loss"][b] = sum(errors)
        found["td_error"][b] = sum(errors) / len(errors)
    return found


def policy_terms(
    params: dict[str, Any], fixed: dict[str, Any], rows: dict[str, Any], wanted: dict[int, Any], atoms: Any
) -> dict[int, float]:
    """−Q₁(s, π(s)) of each taught window, whose gradient is the policy's (Lillicrap et al. 2016, equation 6)."""
    found = {}
    for b in wanted:
        x = rows["observation"][0, b]
        found[b] = -mean(critics(fixed, x, policy(params, x))[0], atoms)
    return found
