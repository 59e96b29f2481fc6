"""`make holding` counts seeds that end with the task solved, and evaluations after a fall."""

import pathlib
from typing import Any

import numpy as np
import pytest

from jaxrl_dist import systems
from jaxrl_dist.analysis import curves
from jaxrl_dist.systems import catalogue

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"
NAN = float("nan")


@pytest.fixture
def holding(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import holding

    return holding


def test_falls_are_counted_after_the_first_solved_evaluation(holding: Any) -> None:
    # The floor is 10 + .9 × (100 - 10) = 91. Columns: one that falls and comes back, one that stays, one that never
    # solves, one that was solved before training, and one whose evaluations are at other steps.
    returns = [
        [0.0, 0.0, 0.0, 100.0, NAN],
        [90.0, 100.0, 99.0, 0.0, NAN],
        [100.0, 91.0, 99.0, 0.0, 100.0],
        [90.9, 99.0, 50.0, 0.0, NAN],
        [100.0, 100.0, 90.0, 99.9, 0.0],
    ]
    steps = np.array([0.0, 10.0, 20.0, 30.0, 40.0])
    found = holding.held(curves.Curve(steps, steps, np.array(returns)), holding.Task("", 100.0, 10.0, 0))
    assert found["solved_at"] == [20, 10, None, None, 20]
    # Two evaluations of the first seed, three of the second, and one of the last.
    assert (found["later"], found["below"]) == (2 + 3 + 1, 1 + 0 + 1)
    assert found["returns"] == [100.0, 100.0, 90.0, 99.9, 0.0]
    assert holding.share_solved(found, holding.Task("", 100.0, 10.0, 0)) == 2 / 5


def test_every_system_of_small_tasks_has_a_row(holding: Any) -> None:
    rows = holding.rows()
    assert {name.partition("/")[0] for name in rows} == set(systems.SYSTEMS)
    for row in rows.values():
        flags = dict(flag.removeprefix("--").split("=") for flag in row.flags)
        found = catalogue.resolved(flags, "continuous" if "Pendulum" in row.task.env else "classic")
        together = found.row.layout(found["layout"]).seeds_together
        assert sum(number for _, number in row.seeds) == (20 if together else 5)
        assert all(number == 1 for _, number in row.seeds) or together
        assert found["steps"] == row.steps >= 2 * row.task.steps
