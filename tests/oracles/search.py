"""Numbers as MuZero learns them, and its targets and loss, window by window, over a network of few layers.

Source: Schrittwieser et al. 2020, equations 1 to 6, appendices B, F, G and H.
"""

from typing import Any

import numpy as np
from oracles import network

LAST = 2
EPS = 1e-3


def transformed(x: float) -> float:
    """h(x) = sgn(x)(√(|x| + 1) − 1) + εx (appendix F)."""
    return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + EPS * x)


def inverted(y: float) -> float:
    """h⁻¹ (Pohlen et al. 2018, proposition A.2)."""
    root = np.sqrt(1 + 4 * EPS * (abs(y) + 1 + EPS))
    return float(np.sign(y) * (((root - 1) / (2 * EPS)) ** 2 - 1))


def atoms(s: dict[str, Any]) -> np.ndarray:
    """The support."""
    return np.array(
        [-s["value_bound"] + 2 * s["value_bound"] * i / (s["num_atoms"] - 1) for i in range(s["num_atoms"])]
    )


def two_atoms(x: float, support: np.ndarray) -> np.ndarray:
    """Probabilities of the two atoms next to h(x), whose mean it is."""
    y = min(max(transformed(x), support[0]), support[-1])
    found = np.zeros(len(support))
    above = int(np.argmax(support >= y))
    below = max(above - 1, 0)
    share = 1.0 if above == below else (y - support[below]) / (support[above] - support[below])
    found[below] += 1 - share
    found[above] += share
    return found


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities."""
    exp = np.exp(logits - logits.max())
    return exp / exp.sum()


def number(logits: np.ndarray, support: np.ndarray) -> float:
    """The number that logits stand for."""
    return inverted(float(softmax(logits) @ support))


def cross_entropy(target: np.ndarray, logits: np.ndarray) -> float:
    """−Σ p log q."""
    return float(-(target * np.log(softmax(logits))).sum())


def states(step_type: np.ndarray, discount: np.ndarray, steps: int) -> list[str]:
    """For rows 0 … K whether they are played, over (at a termination, a lost life, or behind), or unknown."""
    found, state = [], "plays"
    for k in range(steps + 1):
        if state == "plays" and k > 0 and discount[k] == 0:
            state = "over"
        elif state == "plays" and step_type[k] == LAST:
            state = "unknown"
        found.append(state)
    return found


def n_step(column: Any, gamma: float, n: int, t: int) -> float:
    """z of row t."""
    reward, discount, step_type, value = column
    total, factor = 0.0, 1.0
    for _ in range(n):
        if step_type[t] == LAST:
            break
        t += 1
        total += factor * reward[t]
        factor *= gamma * discount[t]
    return total + factor * value[t]


def targets(rows: dict[str, Any], value: np.ndarray, s: dict[str, Any], context: int, b: int) -> dict[str, Any]:
    """Targets of column b: z by row, and what teaches."""
    column = tuple(x[context:, b] for x in (rows["reward"], rows["discount"], rows["step_type"], value))
    steps = s["unroll_steps"]
    state = states(column[2], column[1], steps)
    reward = [column[0][k] if state[k - 1] == "plays" else 0.0 for k in range(1, steps + 1)]
    z = [n_step(column, s["discount"], s["n_step"], k) if state[k] == "plays" else 0.0 for k in range(steps + 1)]
    return {"state": state, "reward": reward, "value": z}


def mlp(layers: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """A head of two layers."""
    return network.dense(layers["layers_2"], np.maximum(network.dense(layers["layers_0"], x), 0))


def scaled(x: np.ndarray) -> np.ndarray:
    """To [0, 1]."""
    return (x - x.min()) / max(x.max() - x.min(), 1e-5)


def represented(params: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """s⁰ of an input."""
    return scaled(network.dense(params["representation"]["latent"], x))


def stepped(model: dict[str, Any], hidden: np.ndarray, action: int, num_actions: int) -> tuple[np.ndarray, np.ndarray]:
    """The next hidden state, and logits of the reward."""
    x = np.concatenate([hidden, np.eye(num_actions)[action]])
    x = np.maximum(network.dense(model["step_hidden"], x), 0)
    return scaled(hidden + network.dense(model["step_out"], x)), mlp(model["reward"], x)


def window(
    params: dict[str, Any], fixed: dict[str, Any], x: np.ndarray, action: Any, policy: Any, wanted: Any, s: Any
) -> dict[str, float]:
    """The loss of one window (equation 1), by parts.

    Args:
        params: that learn.
        fixed: parameters of the half of each hidden state through which no gradient passes.
        x: input of the representation.
        action: K actions.
        policy: K + 1 targets of the policy.
        wanted: from `targets`.
        s: settings.
    """
    model, steps, support = params["model"], s["unroll_steps"], atoms(s)
    hidden, still = represented(params, x), represented(fixed, x)
    found = {"policy_loss": 0.0, "value_loss": 0.0, "reward_loss": 0.0}
    for k in range(steps + 1):
        share = 1.0 if k == 0 else 1 / steps
        if k:
            hidden, reward = stepped(model, 0.5 * hidden + 0.5 * still, action[k - 1], s["num_actions"])
            still, _ = stepped(fixed["model"], still, action[k - 1], s["num_actions"])
            if wanted["state"][k - 1] != "unknown":
                found["reward_loss"] += share * cross_entropy(two_atoms(wanted["reward"][k - 1], support), reward)
        value = mlp(model["value"], hidden)
        if k == 0:
            found["value"] = number(value, support)
        if wanted["state"][k] == "plays":
            found["policy_loss"] += share * cross_entropy(policy[k], mlp(model["policy"], hidden))
        if wanted["state"][k] != "unknown":
            found["value_loss"] += share * cross_entropy(two_atoms(wanted["value"][k], support), value)
    found["td_error"] = abs(found["value"] - wanted["value"][0])
    found["loss"] = found["policy_loss"] + s["value_cost"] * found["value_loss"] + found["reward_loss"]
    return found


def row(params: dict[str, Any], x: np.ndarray, policy: np.ndarray, z: float, s: dict[str, Any]) -> dict[str, float]:
    """AlphaZero's loss of one row (Silver et al. 2018, equation 1), by parts."""
    support = atoms(s)
    logits, value = (network.dense(params[name], x) for name in ("policy", "value"))
    found = {"policy_loss": cross_entropy(policy, logits), "value_loss": cross_entropy(two_atoms(z, support), value)}
    found["value"] = number(value, support)
    found["td_error"] = abs(found["value"] - z)
    found["loss"] = found["policy_loss"] + s["value_cost"] * found["value_loss"]
    return found
