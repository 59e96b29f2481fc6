"""Networks as the oracles need them: linear heads, noisy ones, dueling, an LSTM, frames that are stacked."""

from typing import Any

import numpy as np

FIRST, LAST = 0, 2


def dense(layer: dict[str, np.ndarray], x: np.ndarray, factors: np.ndarray | None = None) -> np.ndarray:
    """A linear layer; of a noisy one, the factors f(ε) of its inputs and then of its outputs.

    Source: Fortunato et al. 2018, equations 8 (weights), 10 and 11 (factorised noise).
    """
    kernel, bias = layer["kernel"], layer["bias"]
    if factors is not None:
        of_inputs, of_outputs = factors[: len(kernel)], factors[len(kernel) :]
        kernel = kernel + layer["kernel_deviation"] * np.outer(of_inputs, of_outputs)
        bias = bias + layer["bias_deviation"] * of_outputs
    return x @ kernel + bias


def dueling(value: np.ndarray, advantage: np.ndarray) -> np.ndarray:
    """Values [A, ...] of actions from a state's value [...] and advantages [A, ...].

    Source: Wang et al. 2016, equation 9.
    """
    return np.stack([value + one - sum(advantage) / len(advantage) for one in advantage])


def lstm(layer: dict[str, np.ndarray], memory: Any, x: np.ndarray, forget_bias: float = 1.0) -> Any:
    """A step of an LSTM for one row: (hidden, cell).

    Source: Gers et al. 2000, without peepholes; gates in the order input, forget, cell, output.
    """
    hidden, cell = memory
    i, f, g, o = np.split(x @ layer["input"] + hidden @ layer["hidden"] + layer["bias"], 4)
    cell = cell / (1 + np.exp(-f - forget_bias)) + np.tanh(g) / (1 + np.exp(-i))
    return np.tanh(cell) / (1 + np.exp(-o)), cell


def features(
    params: dict[str, Any], memory: Any, x: np.ndarray, step_type: np.ndarray, frames: np.ndarray | None = None
) -> np.ndarray:
    """Returns the heads' inputs of one column [L]: inputs [L, D] themselves, stacked, or the states of an LSTM.

    Args:
        params: of the network; with an LSTM it has `lstm`.
        memory: (hidden, cell) before the first row, for an LSTM.
        x: inputs of each row.
        step_type: FIRST rows clear the memory, or fill the stack.
        frames: [k − 1, D], those before the first row, for a stack of k.
    """
    rows = []
    for t in range(len(x)):
        first = step_type[t] == FIRST
        if "lstm" in params:
            memory = tuple(np.zeros_like(part) if first else part for part in memory)
            memory = lstm(params["lstm"], memory, x[t])
            rows.append(memory[0])
        elif frames is not None:
            stack = [x[t]] * (len(frames) + 1) if first else [*frames, x[t]]
            frames = np.array(stack[1:])
            # The frames of a number stand side by side.
            rows.append(np.array(stack).T.reshape(-1))
        else:
            rows.append(x[t])
    return np.array(rows)
