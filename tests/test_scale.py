"""The simulation of many hosts: periods and lags of cases that are worked by hand."""

import pathlib
from typing import Any

import pytest

from jaxrl_dist.training import exchanges

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"
NOTHING = exchanges.Exchanged(0.0, 0.0)


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scale

    # All unrolls take their mean time.
    monkeypatch.setattr(scale, "_SPREAD", 0.0)
    return scale


def period(scale: Any, result: Any, hosts: int = 1) -> float:
    return hosts * scale.ACTORS * 10 / result.steps_per_s


@pytest.mark.parametrize(
    ("play_s", "handle_s", "learn_s", "expected"),
    [
        # Actors are the limit, and learning hides behind them.
        (1.0, 0.0, 0.25, 1.0),
        # The learner is.
        (0.25, 0.0, 1.0, 1.0),
        # Neither: unroll n begins at version n - 1, so two updates take an unroll, its 64 hand-overs and one update.
        (0.5, 0.5 / 64, 0.7, (0.5 + 0.5 + 0.7) / 2),
    ],
)
def test_periods_at_a_lag_of_one(scale: Any, play_s: float, handle_s: float, learn_s: float, expected: float) -> None:
    result = scale.simulate(scale.Scenario("", "", 1, 10, play_s, handle_s, learn_s), 1, NOTHING)
    assert period(scale, result) == pytest.approx(expected)
    assert set(result.lags) == {1}


def test_a_free_lag_is_that_of_the_newest_parameters(scale: Any) -> None:
    # An update ends after the next unroll has begun: that acts with the parameters before it.
    result = scale.simulate(scale.Scenario("", "", None, 10, 1.0, 0.0, 0.25), 1, NOTHING)
    assert period(scale, result) == pytest.approx(1.0)
    assert set(result.lags) == {1}


def test_a_slow_learner_at_a_free_lag_lets_unrolls_wait(scale: Any) -> None:
    # Four times as many unrolls come as are taken, so those of update n are n / 4 old, and their parameters with them.
    result = scale.simulate(scale.Scenario("", "", None, 10, 0.25, 0.0, 1.0), 1, NOTHING)
    assert period(scale, result) == pytest.approx(1.0)
    assert result.lags.max() > 20


def test_unrolls_that_wait_are_bounded_and_hold_up_their_actors(scale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "ACTORS", 4)
    result = scale.simulate(scale.Scenario("", "", None, 10, 0.25, 0.0, 1.0), 1, NOTHING)
    assert period(scale, result) == pytest.approx(1.0)
    # Four of each actor wait, and one more is held up.
    assert result.lags.max() == 5


def test_unrolls_are_taken_in_one_after_the_other(scale: Any) -> None:
    result = scale.simulate(scale.Scenario("", "", None, 10, 0.25, 2.0 / 64, 0.5), 1, NOTHING)
    assert period(scale, result) == pytest.approx(2.0)


def test_what_crosses_is_a_part_of_every_update(scale: Any) -> None:
    exchanged = exchanges.Exchanged(10.0, 1e9)
    result = scale.simulate(scale.Scenario("", "", 1, 10, 0.25, 0.0, 1.0), 4, exchanged)
    assert period(scale, result, 4) == pytest.approx(1.0 + exchanges.seconds(exchanged, 4))


def test_all_wait_for_the_slowest_host(scale: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "_SPREAD", 0.3)
    scenario = scale.Scenario("", "", 1, 10, 1.0, 0.0, 0.25)
    one, eight = (period(scale, scale.simulate(scenario, hosts, NOTHING), hosts) for hosts in (1, 8))
    assert 1.0 < one < eight
