"""IQN's loss, window by window, over a network whose torso is the identity.

Source: Dabney et al. 2018, "Implicit quantile networks for distributional reinforcement learning", equations 3 and 4.
"""

from typing import Any

import numpy as np
from oracles import actor_critic, dqn, munchausen, network, returns

LAST = 2


def quantiles(params: dict[str, Any], x: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Z [A, K] of an input [D] at levels [K] (equation 4)."""
    found = []
    for level in levels:
        cosines = np.array([np.cos(np.pi * i * level) for i in range(len(params["level"]["kernel"]))])
        embedded = np.maximum(network.dense(params["level"], cosines), 0)
        found.append(network.dense(params["q"], x * embedded))
    return np.array(found).T


def targets(
    params: dict[str, Any], target: dict[str, Any], rows: dict[str, Any], s: dict[str, Any], draws: Any, context: int
) -> dict[int, Any]:
    """r + γ Z'(s', a*) at the levels of draw 1, a* by the mean at those of draw 2; with τ the soft value of all."""
    found = {}
    for b in range(rows["step_type"].shape[1]):
        step_type = rows["step_type"][:, b]
        if step_type[context] == LAST:
            continue
        reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
        column = reward, rows["discount"][:, b], step_type
        total, factor, end = returns.n_step(*column, s["discount"], s["n_step"], context)
        x = dqn.inputs(rows, b)
        ahead = quantiles(target, x[end], draws[1][b])
        chosen_by = quantiles(params if s["double"] else target, x[end], draws[2][b]).mean(1)
        if s["temperature"]:
            value = munchausen.soft_value(chosen_by, ahead, s["temperature"])
        else:
            value = ahead[int(np.argmax(chosen_by))]
        if s["munchausen"]:
            here = quantiles(target, x[context], draws[3][b]).mean(1)
            total += munchausen.bonus(here, rows["action"][context, b], s)
        found[b] = total + factor * value
    return found


def terms(
    params: dict[str, Any], rows: dict[str, Any], wanted: dict[int, Any], s: dict[str, Any], draws: Any, context: int
) -> dict[str, dict[int, float]]:
    """The loss of each taught window at the levels of draw 0, and the mean of the prediction (equation 3)."""
    found: dict[str, dict[int, float]] = {"loss": {}, "q_value": {}}
    for b, y in wanted.items():
        places = quantiles(params, dqn.inputs(rows, b)[context], draws[0][b])[rows["action"][context, b]]
        found["q_value"][b] = places.mean()
        found["loss"][b] = dqn.quantile_huber(places, y, s["error_clip"], draws[0][b])
    found["td_error"] = dict(found["loss"])
    return found
