"""Published numbers are shown for the same task, system and protocol only, each with a source."""

import csv
import math

import numpy as np
import pytest

from jaxrl_dist import systems
from jaxrl_dist.analysis import published


def names(found: published.Marks) -> tuple[set[str], set[str]]:
    return {level.name for level in found.levels}, {curve.name for curve in found.curves}


def test_pong_under_either_protocol() -> None:
    without, sticky = (published.marks("impala", "envpool:Pong-v5", x) for x in ({}, {"protocol": "machado"}))
    assert names(without)[0] == {"random play", "human"} and not names(sticky)[0]
    assert {level.name: level.value for level in without.levels} == {"random play": -20.7, "human": 14.6}
    assert all(name.startswith("RLlib IMPALA") for name in names(without)[1]) and len(without.curves) == 3
    assert names(sticky)[1] == {"Cleanba IMPALA, A100 and 10 cores"}
    assert names(published.marks("impala", "ale:pong", {})) == names(without)
    assert names(published.marks("ppo", "gymnasium:ALE/Pong-v5", {})) == (set(), set())


def test_points_of_a_curve_rise_and_times_that_were_not_published_are_nan() -> None:
    curve = next(x for x in published.marks("impala", "envpool:Pong-v5", {}).curves if "64" in x.name)
    assert (np.diff(curve.env_steps) > 0).all() and (np.diff(curve.minutes) > 0).all()
    assert curve.returns[-1] == pytest.approx(19.81)
    (final,) = published.marks("ppo", "envpool:Breakout-v5", {}).curves
    assert math.isnan(final.minutes[0]) and (final.env_steps[0], final.returns[0]) == (10_000_000, 430.09)


@pytest.mark.parametrize(
    ("system", "env", "params", "expected"),
    [
        ("ppo", "gymnax:CartPole-v1", {"observe": "0,2"}, ({"solved", "random play"}, set())),
        ("ppo", "gymnax:CartPole-v1", {"max_steps_in_episode": "1000"}, (set(), set())),
        ("ppo", "gymnax:Breakout-MinAtar", {}, ({"random play"}, set())),
        ("ppo", "gymnax:Pong-misc", {}, (set(), set())),
        ("dqn", "envpool:Pong-v5", {}, ({"random play", "human"}, set())),
        ("ppo", "envpool:Pong-v5", {"repeat_action_probability": "0.1"}, (set(), set())),
        ("ppo", "envpool:HalfCheetah-v4", {}, ({"solved", "random play"}, set())),
        ("ppo", "brax:hopper", {}, (set(), set())),
    ],
)
def test_only_what_is_of_the_same_task(
    system: str, env: str, params: dict[str, str], expected: tuple[set[str], set[str]]
) -> None:
    assert names(published.marks(system, env, params)) == expected


def test_every_fact_is_whole_and_has_a_source() -> None:
    for name in ("levels", "curves"):
        with (published.FACTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows and {row["source"] for row in rows} <= set(published.SOURCES)
        assert all(math.isfinite(float(row["return"])) for row in rows)
        assert {row["system"] for row in rows if "system" in row} <= set(systems.SYSTEMS)
    assert sum(row["task"].startswith("atari:") for row in published._rows("levels")) == 2 * 57


def test_one_line_names_all_that_is_of_one_source() -> None:
    lines = published.marks("impala", "envpool:Pong-v5", {}).sources
    assert len(lines) == 2 and lines[0].startswith("random play; human: Wang et al. 2016")


def test_what_is_known_of_one_task_is_joined_and_of_two_tasks_is_nothing() -> None:
    impala, dqn, other = (
        published.marks(system, f"envpool:{game}-v5", {})
        for system, game in (("impala", "Pong"), ("dqn", "Pong"), ("impala", "Breakout"))
    )
    assert published.of_all([impala, dqn]) == impala and impala.random_play == -20.7
    assert published.of_all([impala, other]) == published.of_all([]) == published.NO_MARKS
    assert published.NO_MARKS.random_play == published.random_play("gymnax:Pong-misc", {}) == -math.inf
