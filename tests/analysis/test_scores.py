"""Pictures of scores: which evaluation counts at a step or a time, and what is drawn of settings that have none."""

import pathlib

import numpy as np
import pytest

from jaxrl_dist.analysis import curves, plots

# The second seed was not evaluated after 200 steps.
CURVE = curves.Curve(
    env_steps=np.array([100.0, 200.0, 300.0]),
    wall_s=np.array([10.0, 15.0, 40.0]),
    returns=np.array([[1.0, 3.0], [2.0, np.nan], [8.0, 10.0]]),
)


# The first seed was solved after 20 steps, and stopped.
STOPPED = curves.Curve(
    env_steps=np.array([10.0, 20.0, 100.0]),
    wall_s=np.array([1.0, 2.0, 9.0]),
    returns=np.array([[50.0, 40.0], [475.0, 100.0], [np.nan, 470.0]]),
)


@pytest.mark.parametrize(("steps", "returns"), [(98, []), (100, [1, 3]), (297, [2, 3]), (298, [8, 10]), (300, [8, 10])])
def test_the_last_evaluation_of_each_seed_counts(steps: float, returns: list[float]) -> None:
    score = curves.at_steps(CURVE, steps)
    np.testing.assert_array_equal(score.returns, returns)
    if returns:
        assert score.centre == np.mean(returns) and score.low <= score.centre <= score.high
    else:
        assert np.isnan(score.centre)


def test_time_is_what_has_passed_on_the_wall() -> None:
    np.testing.assert_array_equal(curves.at_seconds(CURVE, 39.0).returns, [2, 3])
    np.testing.assert_array_equal(curves.at_seconds(CURVE, 40.0).returns, [8, 10])


def test_settings_are_beside_each_other_at_steps_that_every_seed_came_to(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = dict[str, list[list[float]]]()

    def scores(title: str, rows: dict[str, curves.Score]) -> str:
        drawn[title] = [list(score.returns) for score in rows.values()]
        return title

    monkeypatch.setattr(plots, "_scores", scores)
    monkeypatch.setattr(plots, "write", lambda path, panels, **more: None)
    plots.draw_scores({"stopped": STOPPED, "in one program": CURVE}, "scores.png")
    at_steps, at_time = drawn
    assert at_steps == "after 20 steps" and drawn[at_steps] == [[475, 100], []]
    # By the end of the one that ends between them.
    assert at_time.startswith("after 24.5 s") and drawn[at_time] == [[475, 470], [2, 3]]
    assert [curves.common_steps(curve) for curve in (STOPPED, CURVE)] == [20, 300]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_picture_is_drawn_also_where_a_setting_was_not_evaluated(tmp_path: pathlib.Path, number: int) -> None:
    none = curves.Curve(np.empty(0), np.empty(0), np.empty((0, 1)))
    made = {f"setting {i} of $1": CURVE for i in range(number)} | {"nothing yet": none}
    plots.draw_scores(made, tmp_path / "scores.png")
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
