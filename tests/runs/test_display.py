"""The live line: what it names, and the time that is left."""

import math

import pytest

from jaxrl_dist.runs import display


def test_the_line_names_everything_once_and_adds_up() -> None:
    record = {
        "env_steps": 250_000,
        "frames": 1_000_000,
        "steps_per_second": 1.0,
        "bottleneck": "inference",
        "episode_return": 312.44,
        "eval_return": 475.0,
        "wall_s": 30.0,
    }
    since = {"env_steps": 50_000, "wall_s": 10.0}
    line = display.progress_line(record, "ppo gymnax:CartPole-v1", 500_000, since)
    assert line.text().split(" · ") == [
        "ppo gymnax:CartPole-v1",
        "250k/500k steps",
        "1M frames",
        "10k steps/s",
        "waits for inference",
        "return 312.4",
        "evaluated 475",
        "0:25 left",
    ]
    assert line.share == 0.5
    unknown = display.progress_line({"env_steps": 7, "frames": 7, "episode_return": math.nan})
    assert unknown.text() == "7 steps" and unknown.share is None


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (0.00012345, "0.0001234"),
        (-9999.4, "-9999"),
        (123456.7, "123457"),
        (-999999999.4, "-999999999"),
        (3e30, "3e+30"),
    ],
)
def test_a_return_is_never_longer_than_a_name(score: float, text: str) -> None:
    assert display.progress_line({"env_steps": 1, "episode_return": score}).text() == f"1 steps · return {text}"


def test_steps_and_pace_of_several_seeds_add_up() -> None:
    record, since = {"env_steps": 60, "wall_s": 3.0}, {"env_steps": 20, "wall_s": 1.0}
    line = display.progress_line(record, "", 100, since, members=3)
    assert line.text() == "3 × 60/100 steps · 60 steps/s · 0:02 left"


def test_a_narrow_line_keeps_return_and_time_left() -> None:
    line = display.Line((("title", 7), ("steps", 3), ("pace", 4), ("return", 1), ("score", 2), ("left", 0)))
    whole = line.text()
    for width, kept in (
        (len(whole), whole),
        (len(whole) - 1, "steps · pace · return · score · left"),
        (30, "steps · return · score · left"),
        (28, "return · score · left"),
        (20, "return · left"),
        (5, "left"),
        (1, "left"),
    ):
        assert line.text(width) == kept


@pytest.mark.parametrize(
    ("record", "since", "expected"),
    [
        ({"env_steps": 50, "wall_s": 10.0}, {"env_steps": 0, "wall_s": 0.0}, "0:10 left"),
        ({"env_steps": 75, "wall_s": 40.5}, {"env_steps": 50, "wall_s": 30.0}, "0:11 left"),
        ({"env_steps": 50, "wall_s": 7210.0}, {"env_steps": 49, "wall_s": 10.0}, "100:00:00 left"),
        ({"env_steps": 120, "wall_s": 7.0}, {"env_steps": 50, "wall_s": 6.0}, "0:00 left"),
        ({"env_steps": 50, "wall_s": 10.0}, {"env_steps": 50, "wall_s": 10.0}, "50/100 steps"),
        ({"env_steps": 50, "wall_s": 11.0}, {"env_steps": 50, "wall_s": 10.0}, "50/100 steps"),
        ({"env_steps": 50, "wall_s": 10.0}, {}, "50/100 steps"),
        ({"env_steps": 50}, {"env_steps": 40}, "50/100 steps"),
    ],
)
def test_time_left_follows_the_pace_since_a_moment(
    record: dict[str, float], since: dict[str, float], expected: str
) -> None:
    assert display.progress_line(record, "", 100, since).text().split(" · ")[-1] == expected
