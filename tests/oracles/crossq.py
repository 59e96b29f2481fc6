"""CrossQ's losses: SAC's, with critics that normalise the joined batch.

Source: Bhatt et al. 2024, "CrossQ", figure 3; Ioffe 2017, "Batch renormalization", algorithm 1.
"""

from typing import Any

import numpy as np
from oracles import actor_critic, network, policy, returns

LAST, EPSILON = 2, 1e-3


def act(params: dict[str, Any], x: np.ndarray, draw: np.ndarray) -> tuple[np.ndarray, float]:
    """The action of a draw and its log-density, of a policy with one hidden layer of tanh."""
    hidden = np.tanh(network.dense(params["policy"]["torsos_0"]["Dense_0"], x))
    mean, raw = np.split(network.dense(params["policy"]["policy"], hidden), 2)
    std = np.exp(-5 + 0.5 * (2 + 5) * (np.tanh(raw) + 1))
    sample = mean + std * draw
    return np.tanh(sample), policy.squashed(mean, std, sample)


def values(
    critic: dict[str, Any], rows: list[np.ndarray], running: Any, fixed: Any, corrects: bool
) -> tuple[list[float], list[Any]]:
    """Values of rows by one critic, and the moments of its two layers' inputs.

    Args:
        critic: its parameters.
        rows: all of which teach.
        running: (mean, variance) of each layer's inputs.
        fixed: rows whose moments give r and d, which are no functions of parameters; None normalises by the running
            moments alone.
        corrects: whether there is a correction.
    """
    found, kept = rows, fixed
    moments = []
    for i in range(2):
        mean, variance = running[i]
        if fixed is None:
            normal = [(x - mean) / np.sqrt(variance + EPSILON) for x in found]
        else:
            own, seen = (sum(x) / len(x) for x in (found, kept))
            spread, seen_spread = (
                sum((one - middle) ** 2 for one in x) / len(x) for x, middle in ((found, own), (kept, seen))
            )
            moments.append((own, spread))
            sigma = np.sqrt(variance + EPSILON)
            r = np.clip(np.sqrt(seen_spread + EPSILON) / sigma, 1 / 3, 3) if corrects else 1.0
            d = np.clip((seen - mean) / sigma, -5, 5) if corrects else 0.0
            normal = [(x - own) / np.sqrt(spread + EPSILON) * r + d for x in found]
            kept = [(x - seen) / np.sqrt(seen_spread + EPSILON) * r + d for x in kept]
        scale, bias = critic[f"norm_{i}_scale"], critic[f"norm_{i}_bias"]
        found = [scale * x + bias for x in normal]
        kept = None if fixed is None else [scale * x + bias for x in kept]
        if i == 0:
            found = [np.tanh(network.dense(critic["layer_0"], x)) for x in found]
            kept = None if fixed is None else [np.tanh(network.dense(critic["layer_0"], x)) for x in kept]
    return [network.dense(critic["value"], x)[0] for x in found], moments


def one(tree: Any, i: int) -> Any:
    """Critic i of a dict of stacked arrays."""
    return {name: one(part, i) for name, part in tree.items()} if isinstance(tree, dict) else tree[i]


def terms(
    params: dict[str, Any], fixed: dict[str, Any], rows: dict[str, Any], running: Any, s: dict[str, Any], draws: Any
) -> tuple[dict[str, list[float]], list[Any]]:
    """Losses of the taught windows in their order, each a function of its own part, and each critic's moments."""
    taught = [b for b in range(rows["step_type"].shape[1]) if rows["step_type"][0, b] != LAST]
    alpha = np.exp(fixed["temperature"]["log"])
    here, ahead, rewards, factors, entropies = [], [], [], [], []
    for b in taught:
        reward = s["reward_scale"] * actor_critic.clipped(rows["reward"][:, b], s["clip_rewards"])
        column = reward, rows["discount"][:, b], rows["step_type"][:, b]
        total, factor, end = returns.n_step(*column, s["discount"], s["n_step"], 0)
        action, log_prob = act(fixed, rows["observation"][end, b], draws[0][b])
        here.append(np.concatenate([rows["observation"][0, b], rows["action"][0, b]]))
        ahead.append(np.concatenate([rows["observation"][end, b], action]))
        rewards.append(total)
        factors.append(factor)
        entropies.append(-log_prob)
    both, count = here + ahead, len(taught)
    mine, theirs, moments = [], [], []
    for i in range(2):
        of_critic = [(mean[i], variance[i]) for mean, variance in running]
        # The moments that correct are those of the fixed parameters; so is the target.
        found, seen = values(one(params["critic"], i), both, of_critic, both, s["corrects"])
        mine.append(found[:count])
        theirs.append(values(one(fixed["critic"], i), both, of_critic, both, s["corrects"])[0][count:])
        moments.append(seen)
    found = {name: [] for name in ("critic_loss", "policy_loss", "temperature_loss", "q_value")}
    for n, b in enumerate(taught):
        y = rewards[n] + factors[n] * (min(theirs[0][n], theirs[1][n]) + alpha * entropies[n])
        found["critic_loss"].append(sum(0.5 * (y - q[n]) ** 2 for q in mine))
        action, log_prob = act(params, rows["observation"][0, b], draws[1][b])
        pair = [np.concatenate([rows["observation"][0, b], action])]
        of_both = [
            values(one(fixed["critic"], i), pair, [(m[i], v[i]) for m, v in running], None, False)[0][0]
            for i in range(2)
        ]
        found["policy_loss"].append(alpha * log_prob - min(of_both))
        seen = act(fixed, rows["observation"][0, b], draws[1][b])[1]
        found["temperature_loss"].append(-params["temperature"]["log"] * (seen + s["target_entropy"] * len(action)))
        found["q_value"].append(mine[0][n])
    return found, moments
