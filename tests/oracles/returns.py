"""Returns of one column of rows, each estimate followed from its row to its end.

Row t holds the reward for arriving there, the discount (0 where the environment ended) and a value; the transition that
leaves a LAST row is a reset and teaches nothing.
"""

import numpy as np

LAST = 2


def generalised_advantage(
    reward: np.ndarray, discount: np.ndarray, step_type: np.ndarray, value: np.ndarray, gamma: float, decay: float
) -> np.ndarray:
    """Advantages [L − 1], 0 where nothing is taught.

    Source: Schulman et al. 2016, equation 16: Σ (γλ)^l δ_{t+l}, up to the end of the episode or of the rows.
    """
    found = np.zeros(len(reward) - 1)
    for t in range(len(found)):
        weight, i = 1.0, t
        while i < len(found) and step_type[i] != LAST:
            factor = gamma * discount[i + 1]
            found[t] += weight * (reward[i + 1] + factor * value[i + 1] - value[i])
            weight *= factor * decay
            i += 1
    return found


def lambda_return(
    reward: np.ndarray,
    discount: np.ndarray,
    step_type: np.ndarray,
    value: np.ndarray,
    gamma: float,
    decay: float,
    t: int,
) -> float:
    """Mixture of the returns of 1, 2, … steps from row t, by (1 − λ)λ^(n − 1); what is left goes to the longest.

    Source: Sutton and Barto 2018, equation 12.3; with maxima as values, Peng and Williams 1996, equation 8.
    """
    total, factor, found = 0.0, 1.0, []
    for i in range(t + 1, len(reward)):
        total += factor * reward[i]
        factor *= gamma * discount[i]
        found.append(total + factor * value[i])
        if step_type[i] == LAST:
            break
    return sum((1 - decay) * decay**n * x for n, x in enumerate(found[:-1])) + decay ** (len(found) - 1) * found[-1]


def n_step(
    reward: np.ndarray, discount: np.ndarray, step_type: np.ndarray, gamma: float, n: int, t: int
) -> tuple[float, float, int]:
    """Σ γ^i r, the factor of the bootstrap value, and the row k ≤ n steps on that it is taken from.

    Source: Sutton 1988; Hessel et al. 2018, section "Multi-step learning". It stops at the end of the episode.
    """
    total, factor, end = 0.0, 1.0, t
    while end < t + n and step_type[end] != LAST:
        end += 1
        total += factor * reward[end]
        factor *= gamma * discount[end]
    return total, factor, end
