"""Rows of the tasks that nobody tuned for: defaults without a flag, flags that are settings, and what was measured."""

import pathlib
from typing import Any

import pytest

from jaxrl_dist import systems
from jaxrl_dist.systems import catalogue

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import unseen

    return unseen


def test_own_arms_have_no_flags_and_others_have_settings(unseen: Any) -> None:
    assert {arm.partition("/")[0] for arm in unseen.rows()} == set(unseen.ARMS)
    for name, (task, flags) in unseen.rows().items():
        arm, system = name.partition("/")[0], flags[0].removeprefix("--system=")
        assert system in systems.SYSTEMS and (len(flags) == 4) == (arm == system)
        is_discrete = task in unseen.DISCRETE.values()
        family = "minatar" if "MinAtar" in task.env else "classic" if is_discrete else "continuous"
        found = catalogue.resolved(dict(flag.removeprefix("--").split("=") for flag in flags), family)
        assert found.row.layout(task.layout).seeds_together == (task.layout == "anakin")
        assert found["steps"] == task.steps and found["layout"] == task.layout


def test_a_table_has_an_arm_in_each_line_and_a_task_in_each_column(unseen: Any) -> None:
    # Without the lowest and the highest of five: (2 + 3 + 4) / 3.
    measured = {"ppo/acrobot": {"returns": [-1.0, -2.0, -3.0, -4.0, -50.0]}, "dqn/reacher": {"returns": [1.0] * 5}}
    lines = unseen.table(measured, unseen.DISCRETE).splitlines()
    assert lines[:3] == ["| | `Acrobot-v1`, 200k |", "|---|---|", "| random play | −498.8 |"]
    assert len(lines) == 4 and lines[3].startswith("| ppo | −3<br>[−")


def test_what_was_measured_stands_in_the_document(unseen: Any) -> None:
    measured, text = unseen.jsonl.read(unseen.TABLE), unseen.RESULTS.read_text(encoding="utf-8")
    assert set(measured) <= set(unseen.rows())
    for tasks in unseen.TABLES:
        assert unseen.table(measured, tasks) in text
