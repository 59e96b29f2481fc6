"""DreamerV3's losses in float64: the model row by row, imagination step by step, every mean and product as a loop.

A stopped gradient is a value under parameters of its own, `fixed`; a straight-through sample is the one drawn under
`fixed`, moved by the change of its probabilities. Instead of a draw the likeliest class is taken, and of real actions
what lies `SHIFT` deviations above the mean.

Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", methods, equations 1 to 7.
"""

from typing import Any, NamedTuple

import numpy as np
from oracles import returns

FIRST, LAST = 0, 2
SHIFT = 0.7


def symlog(x: Any) -> Any:
    """sgn(x) ln(|x| + 1)."""
    return np.sign(x) * np.log(np.abs(x) + 1)


def bins(count: int) -> np.ndarray:
    """symexp of even steps from −20 to 20."""
    steps = np.linspace(-20, 20, count)
    return np.sign(steps) * (np.exp(np.abs(steps)) - 1)


def two_hot(x: float, places: np.ndarray) -> np.ndarray:
    """Weights of the two neighbours of x, each by the distance of the other."""
    found, x = np.zeros(len(places)), min(max(x, places[0]), places[-1])
    k = max(i for i, place in enumerate(places[:-1]) if place <= x)
    found[k], found[k + 1] = (places[k + 1] - x), (x - places[k])
    return found / (places[k + 1] - places[k])


def cross_entropy(logits: np.ndarray, x: float, places: np.ndarray) -> float:
    """−twohot(x)ᵀ ln softmax(logits)."""
    return float(-two_hot(x, places) @ log_softmax(logits))


def mean(logits: np.ndarray, places: np.ndarray) -> float:
    """softmax(logits)ᵀ bins."""
    return float(np.exp(log_softmax(logits)) @ places)


def log_softmax(x: np.ndarray) -> np.ndarray:
    """ln softmax over the last axis."""
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def mixed(logits: np.ndarray, share: float) -> np.ndarray:
    """ln((1 − share) softmax + share / C)."""
    return np.log((1 - share) * np.exp(log_softmax(logits)) + share / logits.shape[-1])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^−x)."""
    return 1 / (1 + np.exp(-x))


def dense(p: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Wx + b."""
    return x @ p["kernel"] + p["bias"]


def normed(p: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """SiLU of x over its root mean square, times a scale."""
    x = x / np.sqrt((x**2).mean() + 1e-4) * p["scale"]
    return x * sigmoid(x)


def mlp(p: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Hidden layers, then outputs if there are any."""
    for name in sorted(one for one in p if one.startswith("Layer")):
        x = normed(p[name]["RMSNorm_0"], dense(p[name]["Dense_0"], x))
    return dense(p["Dense_0"], x) if "Dense_0" in p else x


def moved(p: dict[str, Any], h: np.ndarray, z: np.ndarray, action: np.ndarray) -> np.ndarray:
    """The recurrent state after an action: each block of a GRU sees its own part of h, and all else."""
    parts = [
        normed(p[f"enter_{i}"]["RMSNorm_0"], dense(p[f"enter_{i}"]["Dense_0"], x)) for i, x in enumerate((h, z, action))
    ]
    others, blocks = np.concatenate(parts), len(p["inner"]["kernel"])
    inner = [
        np.concatenate([own, others]) @ p["inner"]["kernel"][i] + p["inner"]["bias"][i]
        for i, own in enumerate(np.split(h, blocks))
    ]
    x = normed(p["inner_norm"], np.concatenate(inner))
    gates = [own @ p["gates"]["kernel"][i] + p["gates"]["bias"][i] for i, own in enumerate(np.split(x, blocks))]
    reset, candidate, update = (np.concatenate([np.split(gate, 3)[i] for gate in gates]) for i in range(3))
    update = sigmoid(update - 1)
    return update * np.tanh(sigmoid(reset) * candidate) + (1 - update) * h


def latents(p: dict[str, Any], x: np.ndarray, s: dict[str, Any]) -> np.ndarray:
    """Mixed log-probabilities [G, C]."""
    return mixed(mlp(p, x).reshape(s["latents"], s["classes"]), s["unimix"])


def likeliest(log_p: np.ndarray) -> np.ndarray:
    """One-hot vectors [G, C]."""
    return np.eye(log_p.shape[-1])[log_p.argmax(-1)]


class Row(NamedTuple):
    """State and distributions of a row."""

    h: np.ndarray
    z: np.ndarray
    posterior: np.ndarray
    prior: np.ndarray


def observed(
    world: dict[str, Any], rows: dict[str, Any], b: int, s: dict[str, Any], fixed: list[Row] | None = None
) -> list[Row]:
    """The rows of column b; with `fixed`, its samples, moved by the change of their probabilities."""
    h, z = rows["h"][b], rows["z"][b]
    last, found = rows["last_action"][b], []
    for t in range(len(rows["step_type"])):
        action = seen(last, s)
        if rows["step_type"][t, b] == FIRST:
            h, z, action = 0 * h, 0 * z, 0 * action
        h = moved(world, h, z, action)
        features = mlp(world["encoder"], symlog(rows["observation"][t, b]))
        posterior = latents(world["posterior_net"], np.concatenate([h, features]), s)
        drawn = likeliest(posterior)
        if fixed:
            drawn = likeliest(fixed[t].posterior) + np.exp(posterior) - np.exp(fixed[t].posterior)
        z = drawn.ravel()
        found.append(Row(h, z, posterior, latents(world["prior_net"], h, s)))
        last = rows["action"][t, b]
    return found


def seen(action: Any, s: dict[str, Any]) -> np.ndarray:
    """An action of the environment as the model sees it."""
    if s["num_actions"]:
        return np.eye(s["num_actions"])[int(action)]
    low, high = s["low"], s["high"]
    return 2 * (action - low) / (high - low) - 1


def divergence(one: np.ndarray, other: np.ndarray) -> float:
    """KL of log-probabilities [G, C], summed."""
    return float((np.exp(one) * (one - other)).sum())


def model_terms(
    world: dict[str, Any], fixed: list[Row], rows: dict[str, Any], b: int, s: dict[str, Any]
) -> dict[str, float]:
    """The terms of the model's loss, summed over the rows of column b."""
    found = dict.fromkeys(
        ("reconstruction_loss", "reward_loss", "continue_loss", "dynamics_loss", "representation_loss"), 0.0
    )
    for t, row in enumerate(observed(world, rows, b, s, fixed)):
        state, first = np.concatenate([row.h, row.z]), rows["step_type"][t, b] == FIRST
        error = mlp(world["decoder"], state) - symlog(rows["observation"][t, b])
        found["reconstruction_loss"] += float(error @ error)
        reward = 0.0 if first else rows["reward"][t, b]
        found["reward_loss"] += cross_entropy(mlp(world["reward_net"], state), reward, bins(s["num_bins"]))
        p = sigmoid(mlp(world["continue_net"], state)[0])
        found["continue_loss"] -= float(np.log(p if first or rows["discount"][t, b] else 1 - p))
        found["dynamics_loss"] += max(s["free_nats"], divergence(fixed[t].posterior, row.prior))
        found["representation_loss"] += max(s["free_nats"], divergence(row.posterior, fixed[t].prior))
    return found


class Policy(NamedTuple):
    """What a policy's outputs mean: of a discrete one log-probabilities, else mean and deviation."""

    outputs: np.ndarray
    s: dict[str, Any]

    def sample(self) -> Any:
        """The likeliest action, or that `SHIFT` deviations above the mean."""
        if self.s["num_actions"]:
            return int(self.log_p().argmax())
        middle, deviation = self.moments()
        return middle + SHIFT * deviation

    def log_p(self) -> np.ndarray:
        """Of all actions."""
        return mixed(self.outputs, self.s["unimix"])

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each component."""
        middle, deviation = np.split(self.outputs, 2)
        return np.tanh(middle), 0.1 + 0.9 * sigmoid(deviation + 2)

    def log_prob(self, action: Any) -> float:
        """Of one action."""
        if self.s["num_actions"]:
            return float(self.log_p()[action])
        middle, deviation = self.moments()
        return float((-0.5 * ((action - middle) / deviation) ** 2 - np.log(deviation * np.sqrt(2 * np.pi))).sum())

    def entropy(self) -> float:
        """Exact."""
        if self.s["num_actions"]:
            return float(-(np.exp(self.log_p()) * self.log_p()).sum())
        return float((np.log(self.moments()[1] * np.sqrt(2 * np.pi * np.e))).sum())


class Dream(NamedTuple):
    """What is imagined from one row: states, actions, and targets, values, slow values and weights of H steps."""

    states: list[np.ndarray]
    actions: list[Any]
    targets: list[float]
    values: list[float]
    slow: list[float]
    weights: list[float]


def dreamt(params: dict[str, Any], slow: dict[str, Any], row: Row, go_on: float, s: dict[str, Any]) -> Dream:
    """Imagines H steps from a row, of which `go_on` says whether the episode goes on."""
    world, places, (h, z) = params["world"], bins(s["num_bins"]), row[:2]
    states, actions, rewards, factors = [np.concatenate([h, z])], [], [0.0], [go_on]
    for _ in range(s["horizon"]):
        action = Policy(mlp(params["policy"], states[-1]), s).sample()
        actions.append(action)
        given = np.eye(s["num_actions"])[action] if s["num_actions"] else np.clip(action, -1, 1)
        h = moved(world, h, z, given)
        z = likeliest(latents(world["prior_net"], h, s)).ravel()
        states.append(np.concatenate([h, z]))
        rewards.append(mean(mlp(world["reward_net"], states[-1]), places))
        factors.append(float(sigmoid(mlp(world["continue_net"], states[-1])[0])))
    values, of_slow = ([mean(mlp(p, x), places) for x in states] for p in (params["critic"], slow))
    # R_t = r + γc((1 − λ)v + λR), from the last value backwards.
    targets = [values[-1]]
    for t in reversed(range(s["horizon"])):
        ahead = (1 - s["trace_decay"]) * values[t + 1] + s["trace_decay"] * targets[0]
        targets.insert(0, rewards[t + 1] + s["discount"] * factors[t + 1] * ahead)
    weights = [s["discount"] ** t * float(np.prod(factors[: t + 1])) for t in range(s["horizon"])]
    return Dream(states, actions, targets[:-1], values, of_slow, weights)


def behaviour_terms(
    params: dict[str, Any], dreams: list[Dream], rows: dict[str, Any], b: int, s: dict[str, Any], spread: float
) -> dict[str, float]:
    """The terms of policy and critic, summed over the rows of column b."""
    found, places = dict.fromkeys(("policy_loss", "value_loss", "entropy", "value"), 0.0), bins(s["num_bins"])
    for dream in dreams:
        for t in range(s["horizon"]):
            share = 1 / s["horizon"]
            policy = Policy(mlp(params["policy"], dream.states[t]), s)
            advantage = (dream.targets[t] - dream.values[t]) / max(1.0, spread)
            gain = policy.log_prob(dream.actions[t]) * advantage + s["entropy_cost"] * policy.entropy()
            found["policy_loss"] -= share * dream.weights[t] * gain
            found["value_loss"] += share * dream.weights[t] * critic_loss(params, dream, t, dream.targets[t], s)
            found["entropy"] += share * policy.entropy()
            found["value"] += share * dream.values[t]
    column = [rows[name][:, b] for name in ("reward", "discount", "step_type")]
    starts = np.array([dream.targets[0] for dream in dreams])
    found["replay_value_loss"] = 0.0
    for t in range(len(starts) - 1):
        if rows["step_type"][t, b] != LAST:
            target = returns.lambda_return(*column, starts, s["discount"], s["trace_decay"], t)
            found["replay_value_loss"] += critic_loss(params, dreams[t], 0, target, s)
    assert places[len(places) // 2] == 0
    return found


def critic_loss(params: dict[str, Any], dream: Dream, t: int, target: float, s: dict[str, Any]) -> float:
    """Cross-entropies for a target and for the slow copy's mean."""
    logits, places = mlp(params["critic"], dream.states[t]), bins(s["num_bins"])
    return cross_entropy(logits, target, places) + s["slow_scale"] * cross_entropy(logits, dream.slow[t], places)


def weights(s: dict[str, Any]) -> dict[str, float]:
    """The weight of each term of the loss."""
    return {
        **dict.fromkeys(("reconstruction_loss", "reward_loss", "continue_loss", "policy_loss", "value_loss"), 1.0),
        "dynamics_loss": s["dynamics_scale"],
        "representation_loss": s["representation_scale"],
        "replay_value_loss": s["replay_value_scale"],
    }
