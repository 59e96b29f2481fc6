"""Running normalisation of observations and rewards, one number after the other.

Source: Engstrom et al. 2020, section 3 and appendix A.2; as Baselines' VecNormalize, but frozen within an unroll.
"""

import numpy as np

FIRST, LAST = 0, 2


def deviation(seen: list[float]) -> float:
    """The deviation of all numbers so far; 1 of none."""
    if not seen:
        return 1.0
    mean = sum(seen) / len(seen)
    return float(np.sqrt(sum((x - mean) ** 2 for x in seen) / len(seen)))


def rewards(
    reward: np.ndarray, step_type: np.ndarray, length: int, gamma: float, clip: float, smallest: float
) -> tuple[list[np.ndarray], list[float]]:
    """Rewards [T, B] of each unroll, divided by the deviation of the discounted returns of the unrolls before it.

    The return of an environment is R = γR + r, from 0 at FIRST. A deviation below the smallest one counts as that. Also
    returns the deviation before each unroll, and after the last one.
    """
    columns = reward.shape[1]
    running, seen, found, deviations = np.zeros(columns), [], [], []
    for b in range(columns):
        running[b] = 0.0 if step_type[0, b] == FIRST else reward[0, b]
    for start in range(0, len(reward) - 1, length):
        deviations.append(deviation(seen))
        scaled = reward[start + 1 : start + length + 1] / max(smallest, deviations[-1])
        found.append(np.clip(scaled, -clip, clip))
        for t in range(start, start + length):
            for b in range(columns):
                running[b] = 0.0 if step_type[t + 1, b] == FIRST else gamma * running[b] + reward[t + 1, b]
                if step_type[t, b] != LAST:
                    seen.append(running[b])
    return found, [*deviations, deviation(seen)]


def observations(observation: np.ndarray, step_type: np.ndarray, length: int, clip: float) -> list[np.ndarray]:
    """Observations [T, B, D] of each unroll as they were acted on: by mean and deviation of those before it."""
    seen: list[np.ndarray] = []
    found = []
    for start in range(0, len(observation) - 1, length):
        rows = observation[start : start + length]
        if seen:
            mean = np.mean(seen, 0)
            scale = np.array([deviation([x[i] for x in seen]) for i in range(rows.shape[-1])])
            rows = (rows - mean) / scale
        found.append(np.clip(rows, -clip, clip))
        for t in range(start, start + length):
            seen += [x for x, kind in zip(observation[t], step_type[t], strict=True) if kind != LAST]
    return found
