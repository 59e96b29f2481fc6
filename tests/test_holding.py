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
    assert {name.partition("/")[0] for name in rows if "/paper/" not in name} == set(systems.SYSTEMS)
    for name, row in rows.items():
        flags = dict(flag.removeprefix("--").split("=") for flag in row.flags)
        system, *paper, _ = name.split("/")
        assert flags.get("preset") == f"{system}/paper" if paper else flags["system"] == system
        found = catalogue.resolved(flags, "continuous" if "Pendulum" in row.task.env else "classic")
        together = found.row.layout(found["layout"]).seeds_together
        fewer = system == "dreamer" or paper and system in ("rainbow", "rnd", "d4pg", "mpo")
        expected = 20 if together and not fewer else 5
        assert found.row.name == system and sum(number for _, number in row.seeds) == expected
        assert all(number == 1 for _, number in row.seeds) or together
        # Agents with a model, which take longer for a step.
        assert row.steps >= 2 * row.task.steps or name in ("muzero/cartpole", "alphazero/cartpole", "dreamer/catch")
        assert found["steps"] == row.steps >= 2 * 15_000


def test_what_was_measured_stands_in_the_document(holding: Any) -> None:
    measured = holding.jsonl.read(holding.TABLE)
    assert set(measured) <= set(holding.rows())
    assert holding.table(measured) in holding.RESULTS.read_text(encoding="utf-8")


def test_a_preset_of_a_paper_says_what_was_measured(
    holding: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, row in holding.rows().items():
        system, *paper, _ = name.split("/")
        if paper:
            text = (catalogue.PRESETS / system / "paper.flags").read_text(encoding="utf-8")
            assert (f"# Result: {row.task.env} solved by " in text) == (name in holding.jsonl.read(holding.TABLE)), name
    (tmp_path / "a2c").mkdir()
    file = tmp_path / "a2c" / "paper.flags"
    file.write_text("# A2C.\n# Result: not measured yet.\n\n--system=a2c\n", encoding="utf-8")
    monkeypatch.setattr(holding.catalogue, "PRESETS", tmp_path)
    ends = {"a2c/paper/cartpole": {"returns": [500.0, 475.0, 474.9]}, "a2c/catch": {"returns": [1.0]}}
    holding.tell(ends)
    told = "# Result: gymnax:CartPole-v1 solved by 2 of 3 seeds after 1M steps (make holding).\n"
    assert file.read_text(encoding="utf-8") == f"# A2C.\n{told}\n--system=a2c\n"


def test_the_summaries_say_how_many_rows_hold(holding: Any) -> None:
    measured = holding.jsonl.read(holding.TABLE)
    own = {name: row.task for name, row in holding.rows().items() if "/paper/" not in name}
    hold = sum(holding.share_solved(measured[name], task) >= 0.95 for name, task in own.items())
    for file in ("README.md", "docs/results.md"):
        text = (BENCHMARKS.parent / file).read_text(encoding="utf-8")
        assert f"| {hold} of {len(own)} pairs end with" in text, file


def test_a_row_that_falls_is_marked(holding: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"later": 40, "below": 3, "steps": 30_000, "wall_s": 90, "commit": "0123456789"}
    ends = {
        "td3/pendulum": [-150.0] * 19 + [-201.5],
        "a2c/catch": [1.0] * 18 + [0.9, 0.875],
        "a2c/paper/cartpole": [500.0] * 5 + [9.0] * 15,
    }
    measured = {name: {**row, "returns": returns} for name, returns in ends.items()}
    start, end = holding.MARKERS
    (tmp_path / "results.md").write_text(f"before\n{start}gone\n{end}after\n", encoding="utf-8")
    monkeypatch.setattr(holding, "RESULTS", tmp_path / "results.md")
    holding.jsonl.show(holding.RESULTS, holding.MARKERS, holding.table(measured))
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert text.startswith(f"before\n{start}\n| system |") and text.endswith(f"\n{end}after\n") and "gone" not in text
    assert "| td3 | pendulum | 30k | 19 of 20 | 7.5 % | −201.5 | 1.5 | 0123456 |" in text
    assert "| a2c | catch | 30k | 18 of 20, **short** | 7.5 % | 0.875 | 1.5 | 0123456 |" in text
    # A paper's values are there to be seen, not to hold.
    assert "| a2c/paper | cartpole | 30k | 5 of 20 | 7.5 % | 9 | 1.5 | 0123456 |" in text
    missing = text.partition("\nNot measured yet: ")[2]
    assert "`ppo/cartpole`" in missing and not any(f"`{name}`" in missing for name in ends)


def test_nothing_is_below_where_no_seed_was_solved(holding: Any) -> None:
    row = {"later": 0, "below": 0, "steps": 30_000, "wall_s": 90, "commit": "0123456789", "returns": [9.0] * 20}
    assert "| dqn/paper | cartpole | 30k | 0 of 20 | – | 9 |" in holding.table({"dqn/paper/cartpole": row})
