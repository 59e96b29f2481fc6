"""The last words of a run: returns with as many digits as tell them apart."""

import pathlib
from typing import Any

import pytest

from jaxrl_dist.training import summary

EVALUATED: dict[str, Any] = {
    "system": "ppo",
    "env": "toy:walk",
    "protocol": "",
    "env_steps": 1_000,
    "frames": 1_000,
    "reason": "finished",
    "eval_episodes": 32,
    "steps_per_second": 0.0,
    "num_seeds": 1,
}


@pytest.mark.parametrize(
    ("mean", "low", "high", "words"),
    [
        (0.95691, 0.94, 0.9701, ("return 0.9569 ", "0.94 to 0.9701 over 32 episodes of one seed")),
        (476.25, 428.6, 500.0, ("return 476.2 ", "428.6 to 500.0 ")),
        (-0.125, -12.5, 1234.56, ("return -0.125 ", "-12.5 to 1234.6 ")),
    ],
)
def test_small_returns_are_told_apart(mean: float, low: float, high: float, words: tuple[str, ...]) -> None:
    found = {
        **EVALUATED,
        "eval_return_mean": mean,
        "eval_return_iqm": mean,
        "eval_return_ci95": [low, high],
        "eval_return_per_seed": [mean],
    }
    text = summary.describe(pathlib.Path("runs/x"), found)
    assert all(word in text for word in words), text
