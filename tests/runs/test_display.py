"""The live line: what it names, and the time that is left."""

import math

import pytest

from jaxrl_dist.runs import display


def test_progress_line_names_everything_once() -> None:
    record = {
        "env_steps": 250_000,
        "frames": 1_000_000,
        "steps_per_second": 84_210.0,
        "episode_return": 312.44,
        "eval_return": 475.0,
        "wall_s": 30.0,
    }
    first = {"env_steps": 50_000, "wall_s": 10.0}
    line = display.progress_line(record, "ppo gymnax:CartPole-v1", 500_000, first)
    assert line.split(" · ") == [
        "ppo gymnax:CartPole-v1",
        "250k/500k steps",
        "1M frames",
        "84.21k steps/s",
        "return 312.4",
        "evaluated 475",
        "0:25 left",
    ]
    assert display.progress_line({"env_steps": 7, "frames": 7, "episode_return": math.nan}) == "7 steps"


@pytest.mark.parametrize(
    ("record", "first", "expected"),
    [
        ({"env_steps": 50, "wall_s": 10.0}, {"env_steps": 0, "wall_s": 0.0}, "0:10 left"),
        ({"env_steps": 75, "wall_s": 40.5}, {"env_steps": 50, "wall_s": 30.0}, "0:11 left"),
        ({"env_steps": 50, "wall_s": 7210.0}, {"env_steps": 49, "wall_s": 10.0}, "100:00:00 left"),
        ({"env_steps": 120, "wall_s": 7.0}, {"env_steps": 50, "wall_s": 6.0}, "0:00 left"),
        ({"env_steps": 50, "wall_s": 10.0}, {"env_steps": 50, "wall_s": 10.0}, "50/100 steps"),
        ({"env_steps": 50, "wall_s": 10.0}, {}, "50/100 steps"),
        ({"env_steps": 50}, {"env_steps": 40}, "50/100 steps"),
    ],
)
def test_time_left_follows_the_pace_of_this_session(
    record: dict[str, float], first: dict[str, float], expected: str
) -> None:
    assert display.progress_line(record, "", 100, first).split(" · ")[-1] == expected
