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


def test_the_seconds_are_told_apart() -> None:
    found = {**EVALUATED, "eval_return_mean": None, "steps_per_second": 1234.5}
    found |= {"wall_s": 20.0, "compile_s": 8.0, "running_s": 12.0, "train_s": 4.5}
    line = next(line for line in summary.describe(pathlib.Path("x"), found).splitlines() if "steps/s" in line)
    assert [word for word in line.split() if word[0].isdigit()] == ["1,234", "20.0", "8.0", "4.5", "7.5"]


def test_a_sweep_ends_with_its_combinations_the_best_first() -> None:
    items = [
        {
            "settings": {"agent.discount": discount},
            "eval_return_mean": sum(returns) / 2,
            "eval_return_ci95": returns,
            "eval_return_per_seed": returns,
        }
        for discount, returns in [(0.8, [100.0, 200.0]), (0.9, [0.25, 0.75]), (0.99, [300.0, 301.0])]
    ]
    text = summary.describe(pathlib.Path("runs/x"), {**EVALUATED, "eval_return_mean": 1.0, "sweep": items})
    shown = [line.strip() for line in text.splitlines() if "agent.discount" in line]
    assert shown == [
        "agent.discount=0.99: 300.5 [300.0, 301.0]",
        "agent.discount=0.8: 150.0 [100.0, 200.0]",
        "agent.discount=0.9: 0.5 [0.25, 0.75]",
    ]
    assert " 2 seeds " in text
