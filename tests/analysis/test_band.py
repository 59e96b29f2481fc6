"""The band of a reference: worked by hand, wide where seeds differ, narrow where they agree, and rarely wrong."""

import numpy as np
import pytest
from fakes import written_runs

from jaxrl_dist.analysis import compare as band

STEPS = np.arange(1.0, 21.0)
# Of one seed beside four.
FACTOR = band.widening(4, 1)


def compare(run: np.ndarray, theirs: np.ndarray, steps: np.ndarray = STEPS) -> band.Comparison:
    return band.compare(steps, run, STEPS, theirs)


def test_widths_are_the_largest_deviation_that_a_seed_shows_times_the_factor() -> None:
    # Four seeds at 0 that end at 0, 10, 20 and 50; means of the others of each: 26.7, 23.3, 20, 10.
    theirs = np.zeros((20, 4))
    theirs[18:] = [0.0, 10.0, 20.0, 50.0]
    whole, last, farthest = compare(theirs[:, [1]], theirs).numbers
    assert last == ("last tenth", 10.0, 20.0, 20.0 - FACTOR * 40.0, 20.0 + FACTOR * 40.0)
    assert (whole.run, whole.reference, whole.low, whole.high) == pytest.approx(
        (1.0, 2.0, 2 - FACTOR * 4, 2 + FACTOR * 4)
    )
    assert farthest.name == "tenth 10, the farthest" and farthest[3:] == (20.0 - FACTOR * 40.0, 20.0 + FACTOR * 40.0)


def test_a_quarter_of_the_gain_over_random_play_is_the_least_that_is_inside() -> None:
    theirs = np.zeros((20, 4))
    theirs[18:] = [0.0, 10.0, 20.0, 50.0]
    whole, last, farthest = band.compare(STEPS, theirs[:, [1]], STEPS, theirs, -20.0).numbers
    assert last == ("last tenth", 10.0, 20.0, -20.0 + 0.25 * 40.0, 20.0 + FACTOR * 40.0)
    assert (whole.low, whole.high) == pytest.approx((2 - FACTOR * 4, 2 + FACTOR * 4))
    # In an early tenth the reference itself has gained nothing yet.
    assert farthest.low == 20.0 - FACTOR * 40.0
    # A reference that is at random play's level keeps its twentieth of the range.
    at_random = band.compare(STEPS, theirs[:, [1]], STEPS, theirs, 20.0).numbers[1]
    assert at_random.low == 20.0 - 0.05 * 50.0


def test_seeds_that_agree_leave_a_twentieth_of_the_range() -> None:
    theirs = np.repeat(np.linspace(0, 100, 20)[:, None], 4, axis=1)
    number = compare(theirs[:, :1] + 4.0, theirs).numbers[1]
    assert number.high - number.reference == pytest.approx(0.05 * (97.368 - 2.632), rel=1e-3)
    assert compare(theirs[:, :1] + 4.0, theirs).is_inside
    assert not compare(theirs[:, :1] + 6.0, theirs).is_inside and not compare(theirs[:, :1] - 6.0, theirs).is_inside


def test_more_seeds_make_narrower_bands() -> None:
    theirs = written_runs.rising(10, spread=20.0)
    widths = [[number.high - number.low for number in compare(theirs[:, :n], theirs).numbers] for n in (1, 2, 5, 10)]
    assert (np.diff(widths[:3], axis=0) < 0).all()
    assert widths[3] == widths[2]


def test_a_run_is_put_between_its_evaluations_and_compared_as_far_as_it_goes() -> None:
    theirs = np.repeat(10 * STEPS[:, None], 4, axis=1)
    sparse = np.array([1.0, 11.0])
    result = compare(10 * sparse[:, None], theirs, sparse)
    np.testing.assert_allclose(result.run, result.reference)
    np.testing.assert_allclose(result.env_steps, [2, 4, 6, 8, 10, 12])
    assert [number.name for number in result.numbers] == ["whole run", "tenth 1, the farthest"]


@pytest.mark.parametrize(
    ("first", "last", "tenths"),
    [
        (2.0, 20.0, range(1, 11)),
        # An unroll apart at either end is no miss; more is.
        (2.02, 19.9, range(1, 11)),
        (2.0, 19.7, range(1, 10)),
        (2.1, 20.0, range(2, 11)),
        (2.0, 17.0, range(1, 9)),
    ],
)
def test_a_tenth_counts_where_the_run_has_evaluations_of_it(first: float, last: float, tenths: range) -> None:
    # One evaluation at the end of each tenth, of which one is not quite there as floats have it.
    steps = np.array([2.0, 4.0, 3 * 0.1 * 20, *range(8, 21, 2)])
    assert steps[2] > 6.0
    theirs = np.repeat(np.array([[0.0, 1.0, 2.0, 3.0]]), 10, axis=0)
    found = band.compare(np.array([first, last]), np.zeros((2, 1)), steps, theirs)
    np.testing.assert_allclose(found.env_steps, 2 * np.array(tenths))
    assert ("last tenth" in [number.name for number in found.numbers]) == (10 in tenths)


def test_evaluations_that_miss_a_seed_are_left_out() -> None:
    theirs = np.repeat(10 * STEPS[:, None], 4, axis=1)
    run = theirs[:, :2].copy()
    run[5, 1] = np.nan
    np.testing.assert_allclose(compare(run, theirs).run, compare(theirs[:, :2], theirs).run)


@pytest.mark.parametrize(
    ("run", "theirs", "steps", "named"),
    [
        (np.zeros((20, 1)), np.zeros((20, 3)), STEPS, ["4 seeds", " 3"]),
        (np.full((20, 1), np.nan), np.zeros((20, 4)), STEPS, ["evaluation"]),
        (np.zeros((0, 1)), np.zeros((20, 4)), STEPS[:0], ["evaluation"]),
        (np.zeros((20, 1)), np.zeros((20, 4)), STEPS + 100, ["evaluation"]),
    ],
)
def test_what_cannot_be_compared_is_refused(
    run: np.ndarray, theirs: np.ndarray, steps: np.ndarray, named: list[str]
) -> None:
    with pytest.raises(ValueError) as error:
        compare(run, theirs, steps)
    assert all(word in str(error.value) for word in named)


@pytest.mark.parametrize(("seeds", "most"), [(5, 0.08), (10, 0.02)])
def test_false_alarms_are_rare_and_what_does_not_learn_is_always_found(seeds: int, most: float) -> None:
    outside = []
    for i in range(150):
        curves = written_runs.rising(seeds + 1, seed=i)
        outside.append(not compare(curves[:, :1], curves[:, 1:]).is_inside)
        assert not compare(0.1 * curves[:, :1], curves[:, 1:]).is_inside
    assert np.mean(outside) <= most


def test_a_seed_that_falls_is_the_one_that_would_be_outside() -> None:
    theirs = written_runs.rising(6, spread=1.0)
    theirs[16:, 2] = 20.0
    assert band.false_alarms(STEPS, theirs) == [False, False, True, False, False, False]
    assert band.false_alarms(STEPS, theirs[:, :4]) == []
