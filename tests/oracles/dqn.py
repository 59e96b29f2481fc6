"""The DQN family's loss, window by window: double, dueling, n-step, distributions of returns, noisy layers.

Source: Mnih et al. 2015; van Hasselt et al. 2016; Wang et al. 2016; Bellemare et al. 2017; Fortunato et al. 2018;
Hessel et al. 2018 (Rainbow); Dabney et al. 2018 (QR-DQN).
"""

from typing import Any

import numpy as np
from oracles import actor_critic, munchausen, network, returns

LAST = 2


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities [K] of logits [K]."""
    weights = np.exp(logits - max(logits))
    return weights / sum(weights)


def q_values(params: dict[str, Any], x: np.ndarray, factors: np.ndarray | None, num_actions: int) -> np.ndarray:
    """Values [A, 1], or logits [A, K] of their distributions, of an input [D]; noise in the order of the heads."""
    heads = ("value", "advantage") if "value" in params else ("q",)
    found = []
    for head in heads:
        layer = params[head]
        own = None
        if factors is not None:
            count = sum(layer["kernel"].shape)
            own, factors = factors[:count], factors[count:]
        found.append(network.dense(layer, x, own))
    actions = found[-1].reshape(num_actions, -1)
    return network.dueling(found[0], actions) if len(heads) == 2 else actions


def means(q: np.ndarray, atoms: np.ndarray | None) -> np.ndarray:
    """Values [A] of [A, 1], of quantiles [A, K], or of distributions [A, K] over atoms."""
    return (
        np.array([sum(places) / len(places) for places in q])
        if atoms is None
        else np.array([softmax(logits) @ atoms for logits in q])
    )


def projection(atoms: np.ndarray, probabilities: np.ndarray, reward: float, factor: float) -> np.ndarray:
    """Φ T̂ z: what r + γ z gives to its two neighbours among the atoms (Bellemare et al. 2017, algorithm 1)."""
    found, low, gap = np.zeros(len(atoms)), atoms[0], atoms[1] - atoms[0]
    for z, p in zip(atoms, probabilities, strict=True):
        place = (min(max(reward + factor * z, low), atoms[-1]) - low) / gap
        below, above = int(np.floor(place)), int(np.ceil(place))
        if below == above:
            found[below] += p
        else:
            found[below] += p * (above - place)
            found[above] += p * (place - below)
    return found


def divergence(target: np.ndarray, logits: np.ndarray) -> float:
    """Kullback-Leibler divergence of a prediction from its target (Bellemare et al. 2017, section 4.1)."""
    prediction = softmax(logits)
    return sum(m * (np.log(m) - np.log(p)) for m, p in zip(target, prediction, strict=True) if m > 0)


def huber(error: float, clip: float) -> float:
    """Half the square up to the clip and linear beyond, as the error is clipped in its gradient (Mnih et al. 2015)."""
    if not clip or abs(error) <= clip:
        return 0.5 * error**2
    return clip * (abs(error) - 0.5 * clip)


def quantile_huber(places: np.ndarray, target: np.ndarray, clip: float, levels: np.ndarray | None = None) -> float:
    """Quantile regression of K places on the target's (Dabney et al. 2018, algorithm 1; κ of equation 10 is `clip`).

    At levels (2i − 1) / 2K, or at those that are given. Divided by κ, as in Dabney et al. 2018, "Implicit quantile
    networks", equation 3.
    """
    found = 0.0
    for i, place in enumerate(places):
        level = (2 * (i + 1) - 1) / (2 * len(places)) if levels is None else levels[i]
        for y in target:
            error = y - place
            size = huber(error, clip) / clip if clip else abs(error)
            found += abs(level - (1 if error < 0 else 0)) * size / len(target)
    return found


def targets(
    params: dict[str, Any],
    target: dict[str, Any],
    rows: dict[str, Any],
    s: dict[str, Any],
    atoms: np.ndarray | None,
    context: int = 0,
    noise: Any = (None, None, None),
) -> dict[int, Any]:
    """y of each taught window: r + γ Q'(s', a*), a* by Q' or, double, by Q; a distribution [K] with atoms, quantiles.

    Source: Mnih et al. 2015, equation 2; van Hasselt et al. 2016, equation 4. The prediction, the target and the choice
    have the draws `noise` of their own (Fortunato et al. 2018, section 3.1).
    """
    found = {}
    for b in range(rows["step_type"].shape[1]):
        step_type = rows["step_type"][:, b]
        if step_type[context] == LAST:
            continue
        reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
        column = reward, rows["discount"][:, b], step_type
        total, factor, end = returns.n_step(*column, s["discount"], s["n_step"], context)
        x = inputs(rows, b)[end]
        ahead = q_values(target, x, noise[1], s["num_actions"])
        chooser = q_values(params, x, noise[2], s["num_actions"]) if s["double"] else ahead
        best = int(np.argmax(means(chooser, atoms)))
        if s["munchausen"]:
            here = means(q_values(target, inputs(rows, b)[context], noise[1], s["num_actions"]), None)
            total += munchausen.bonus(here, rows["action"][context, b], s)
        if s["temperature"]:
            found[b] = total + factor * munchausen.soft_value(means(ahead, None), ahead, s["temperature"])
        elif atoms is None:
            found[b] = total + factor * ahead[best]
        else:
            found[b] = projection(atoms, softmax(ahead[best]), total, factor)
    return found


def terms(
    params: dict[str, Any],
    rows: dict[str, Any],
    wanted: dict[int, Any],
    s: dict[str, Any],
    atoms: np.ndarray | None,
    context: int = 0,
    factors: np.ndarray | None = None,
) -> dict[str, dict[int, float]]:
    """The loss of each taught window, its error (the priority), and the value of the action that was taken."""
    found: dict[str, dict[int, float]] = {"loss": {}, "td_error": {}, "q_value": {}}
    for b, y in wanted.items():
        q = q_values(params, inputs(rows, b)[context], factors, s["num_actions"])
        taken = rows["action"][context, b]
        found["q_value"][b] = means(q, atoms)[taken]
        if s["distribution"] == "quantile":
            found["loss"][b] = found["td_error"][b] = quantile_huber(q[taken], y, s["error_clip"])
        elif atoms is None:
            error = (y - q[taken])[0]
            found["loss"][b], found["td_error"][b] = huber(error, s["error_clip"]), abs(error)
        else:
            found["loss"][b] = found["td_error"][b] = divergence(y, q[taken])
    return found


def inputs(rows: dict[str, Any], b: int) -> np.ndarray:
    """Returns the network's inputs of the rows of a window [L, ...]."""
    frames = rows["frames"][b] if "frames" in rows else None
    return network.features({}, None, rows["observation"][:, b], rows["step_type"][:, b], frames)
