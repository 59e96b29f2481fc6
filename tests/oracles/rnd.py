"""Random network distillation, row by row: bonuses, their scale, advantages and the terms that PPO's loss gets.

Source: Burda et al. 2018, sections 2.2 to 2.4 and algorithm 1.
"""

from typing import Any, NamedTuple

import numpy as np
from oracles import actor_critic, network, normalisation, ppo

FIRST, LAST = 0, 2
Row = tuple[int, int]


class Before(NamedTuple):
    """Statistics before an unroll: the random network, observations so far, sums of bonuses so far, their mean now."""

    target: dict[str, Any]
    observations: list[np.ndarray]
    sums: list[float]
    running: float


def error(predictor: dict[str, Any], before: Before, observation: np.ndarray) -> float:
    """Mean square of the predictor's error, of an observation that is normalised and clipped to ± 5."""
    mean = np.mean(before.observations, 0)
    scale = np.array([normalisation.deviation([float(x[i]) for x in before.observations]) for i in range(len(mean))])
    x = np.clip((observation - mean) / scale, -5, 5)
    wanted, found = (network.dense(one["features"], x) for one in (before.target, predictor))
    return float(np.mean((wanted - found) ** 2))


def bonuses(
    predictor: dict[str, Any], observation: np.ndarray, step_type: np.ndarray, before: Before, gamma: float
) -> tuple[np.ndarray, list[float], float]:
    """Bonuses [L, B] for arriving, all sums so far, and the mean of the last sums of the columns that were played.

    What leaves a LAST row is a reset, which earns none.
    """
    found, sums, last = np.zeros(step_type.shape), list(before.sums), []
    for b in range(step_type.shape[1]):
        total = before.running
        for t in range(1, len(step_type)):
            if step_type[t - 1, b] != LAST:
                found[t, b] = error(predictor, before, observation[t, b])
            total = gamma * total + found[t, b]
            if step_type[t - 1, b] != LAST:
                sums.append(total)
        if any(step_type[:-1, b] != LAST):
            last.append(total)
    return found, sums, sum(last) / len(last) if last else before.running


def advantages(bonus: np.ndarray, step_type: np.ndarray, value: np.ndarray, gamma: float, decay: float) -> np.ndarray:
    """Advantages [L − 1] of a column, over the ends of episodes; a LAST row is worth γ times the row after it."""
    value = value.copy()
    for t in reversed(range(len(value) - 1)):
        if step_type[t] == LAST:
            value[t] = gamma * value[t + 1]
    delta = [bonus[t + 1] + gamma * value[t + 1] - value[t] for t in range(len(value) - 1)]
    return np.array(
        [sum((gamma * decay) ** (i - t) * delta[i] for i in range(t, len(delta))) for t in range(len(delta))]
    )


def estimate(
    acted: dict[str, Any], rows: dict[str, Any], raw: np.ndarray, before: Before, s: dict[str, Any]
) -> dict[str, dict[Row, float]]:
    """PPO's estimates of the taught rows with weighted sums of both advantages, and targets of the value of bonuses.

    Args:
        acted: parameters that acted: `agent`, `predictor`, `intrinsic_value`.
        rows: as PPO sees them.
        raw: observations [L, B, D] as the environment gave them.
        before: statistics before the unroll.
        s: settings.
    """
    found = ppo.estimate(acted["agent"], rows, s) | {"intrinsic_target": {}}
    bonus, sums, _ = bonuses(acted["predictor"], raw, rows["step_type"], before, s["intrinsic_discount"])
    bonus = bonus / normalisation.deviation(sums)
    for b in range(bonus.shape[1]):
        value = values(acted, rows, b)
        column = advantages(bonus[:, b], rows["step_type"][:, b], value, s["intrinsic_discount"], s["gae_lambda"])
        for t, own in enumerate(column):
            if (t, b) in found["advantage"]:
                weighted = s["extrinsic_weight"] * found["advantage"][t, b] + s["intrinsic_weight"] * own
                found["advantage"][t, b], found["intrinsic_target"][t, b] = weighted, value[t] + own
    return found


def values(params: dict[str, Any], rows: dict[str, Any], b: int) -> np.ndarray:
    """Values of bonuses [L] of a column, by a network without memory."""
    frames = rows["frames"][b] if "frames" in rows else None
    inputs = network.features({}, None, rows["observation"][:, b], rows["step_type"][:, b], frames)
    return np.array([network.dense(params["intrinsic_value"]["value"], x)[0] for x in inputs])


def terms(
    params: dict[str, Any], rows: dict[str, Any], raw: np.ndarray, made: dict[str, dict[Row, float]], before: Before
) -> dict[str, dict[Row, float]]:
    """The terms that are added of each taught row: half the squared error of the value of bonuses, and the bonus."""
    found: dict[str, dict[Row, float]] = {"intrinsic_value_loss": {}, "bonus": {}}
    for t, b in actor_critic.taught(rows):
        gap = values(params, rows, b)[t] - made["intrinsic_target"][t, b]
        found["intrinsic_value_loss"][t, b] = 0.5 * float(gap) ** 2
        found["bonus"][t, b] = error(params["predictor"], before, raw[t + 1, b])
    return found
