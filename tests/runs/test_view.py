"""A run folder is read: how its run ended, what went wrong, and folders that hold no run."""

import json
import pathlib

import conftest
import numpy as np
import pytest
from fakes import written_runs

from jaxrl_dist.analysis import curves, published
from jaxrl_dist.runs import checkpoint
from jaxrl_dist.runs import view as run_view


def test_a_run_is_read_whole(tmp_path: pathlib.Path) -> None:
    returns = written_runs.rising(3)
    view = run_view.read(written_runs.write(tmp_path / "a", returns, flags={"env.params.observe": "0,2"}), "label")
    assert (view.label, view.state, view.env_steps, view.troubles) == ("label", "finished", written_runs.TOTAL, ())
    assert view.settings["system"] == "ppo" and view.origins["system"] == "flag"
    assert view.task_params == {"observe": "0,2"}
    np.testing.assert_allclose(view.evaluation["eval_return_per_seed"], returns[-1])


def test_a_run_that_was_stopped_has_steps_behind_its_last_record(tmp_path: pathlib.Path) -> None:
    view = run_view.read(written_runs.write(tmp_path / "a", written_runs.rising(1)))
    records = [record for record in view.records if record["env_steps"] <= written_runs.TOTAL / 2]
    assert view._replace(records=records, summary={"env_steps": 7}).env_steps == records[-1]["env_steps"] > 7
    assert view._replace(records=records, summary={"env_steps": written_runs.TOTAL}).env_steps == written_runs.TOTAL
    assert view._replace(records=[], summary={}).env_steps == 0


def test_how_a_run_ended(tmp_path: pathlib.Path) -> None:
    returns = written_runs.rising(1, num_points=3)
    going = written_runs.write(tmp_path / "going", returns, reason=None, share=0.5)
    stopped = written_runs.write(tmp_path / "stopped", returns, reason="stopped", share=0.5)
    states = [run_view.read(folder).state for folder in (going, stopped)]
    # The stopped run goes on: its summary is of the session before.
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "train", "env_steps": 6000, "wall_s": 61.0}) + "\n")
    states.append(run_view.read(stopped).state)
    (stopped / "failure" / "state").mkdir(parents=True)
    failed = run_view.read(stopped)
    assert [*states, failed.state] == ["going", "stopped", "going", "failed"]
    assert failed.env_steps == 6000 and "not finite" in failed.troubles[0]


@pytest.mark.parametrize(("name", "state"), [(".new-state", "stopped"), (".old-state", "failed"), ("state", "failed")])
def test_a_failure_counts_once_it_is_whole(tmp_path: pathlib.Path, name: str, state: str) -> None:
    run = written_runs.write(tmp_path / "run", written_runs.rising(1, num_points=3), reason="stopped", share=0.5)
    (run / "failure" / name).mkdir(parents=True)
    (run / "failure" / name / "x").touch()
    view = run_view.read(run)
    assert (view.state, len(view.troubles)) == (state, state == "failed")
    # A reader of the failure finds it likewise.
    assert (checkpoint.find(run / "failure", "state") is not None) == (state == "failed")


def test_troubles_are_what_was_printed_and_counted(tmp_path: pathlib.Path) -> None:
    run = written_runs.write(tmp_path / "a", written_runs.rising(1, num_points=3), train={"dropped_unrolls": 2})
    (run / "train.log").write_text("ppo · 1k steps\ntrain.py: warning: w\nother\ntrain.py: warning: w\ntrain.py: e\n")
    assert run_view.read(run).troubles == ("warning: w", "e", "6 unrolls came too late and were dropped")


def test_marks_are_of_runs_of_one_task_only(tmp_path: pathlib.Path) -> None:
    returns = written_runs.rising(1, num_points=2)
    pong = [
        run_view.read(written_runs.write(tmp_path / system, returns, system, "envpool:Pong-v5"))
        for system in ("impala", "ppo")
    ]
    names = {curve.name for curve in published.marks_of(pong).curves}
    assert "CleanRL PPO" in names and "RLlib IMPALA, 64 workers" in names
    other = run_view.read(written_runs.write(tmp_path / "other", returns))
    assert published.marks_of([*pong, other]) == published.NO_MARKS
    # Of more threads it is the same task, of another protocol it is another.
    flags = {"env.params.num_threads": "2"}
    threads = run_view.read(written_runs.write(tmp_path / "threads", returns, "ppo", "envpool:Pong-v5", flags=flags))
    assert run_view.task_of(threads) == run_view.task_of(pong[1]) == "envpool:Pong-v5"
    assert {curve.name for curve in published.marks_of([pong[0], threads]).curves} == names
    flags = {"env.params.protocol": "revisited"}
    sticky = run_view.read(written_runs.write(tmp_path / "sticky", returns, "ppo", "envpool:Pong-v5", flags=flags))
    assert run_view.task_of(sticky) == "envpool:Pong-v5 with protocol=revisited"


@pytest.mark.parametrize(
    ("contents", "named"),
    [
        (None, ["config.json"]),
        ("{", ["config.json", "Expecting property name", "line 1 column 2"]),
        ("[]", ["config.json", "JSON"]),
        ("{}", ["config.json", "settings"]),
        ('{"settings": []}', ["config.json", "settings"]),
        ('{"settings": {"env": {"value": "x", "origin": "flag"}}}', ["config.json", "settings"]),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(tmp_path: pathlib.Path, contents: str | None, named: list[str]) -> None:
    if contents is not None:
        (tmp_path / "config.json").write_text(contents)
    with conftest.refused(str(tmp_path), *named):
        run_view.read(tmp_path)


def test_a_folder_of_runs_names_them(tmp_path: pathlib.Path) -> None:
    written_runs.write(tmp_path / "study" / "lstm", written_runs.rising(1))
    with conftest.refused("config.json", str(tmp_path / "study" / "lstm")):
        run_view.read(tmp_path / "study")


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_a_sweep_is_a_view_of_each_combination(tmp_path: pathlib.Path, num_seeds: int) -> None:
    returns = written_runs.rising(4 * num_seeds)
    sweep = "learner.learning_rate=1e-4,1e-3; agent.discount=0.9,0.99"
    folder = written_runs.write(tmp_path / "a", returns, flags={"sweep": sweep, "num_seeds": num_seeds})
    whole = run_view.read(folder, "a")
    members = run_view.members(whole)
    assert [member.label for member in members] == [
        f"a, learner.learning_rate={rate} agent.discount={discount}"
        for rate in ("0.0001", "0.001")
        for discount in (0.9, 0.99)
    ]
    assert [(m.settings["agent.discount"], m.settings["sweep"]) for m in members[:2]] == [(0.9, ""), (0.99, "")]
    assert {member.origins["agent.discount"] for member in members} == {"sweep"}
    for i, member in enumerate(members):
        own = returns[:, num_seeds * i : num_seeds * (i + 1)]
        np.testing.assert_array_equal(curves.curve([member.records]).returns, own)
        assert member.evaluation["eval_return"] == pytest.approx(own[-1].mean())
        assert (member.evaluation["eval_return_ci95"] is None) == (num_seeds == 1)
    assert sum(member.evaluation["eval_episodes"] for member in members) == whole.evaluation["eval_episodes"]
    plain = run_view.read(written_runs.write(tmp_path / "b", returns))
    assert run_view.members(plain) == [plain]


def test_combinations_that_differ_late_have_labels_of_their_own_and_one_seed_has_a_mean(tmp_path: pathlib.Path) -> None:
    flags = {"sweep": "agent.discount=0.9999991,0.9999992", "num_seeds": 1}
    members = run_view.members(run_view.read(written_runs.write(tmp_path / "a", written_runs.rising(2), flags=flags)))
    assert len({member.label for member in members}) == 2
    for member in members:
        (score,) = member.evaluation["eval_return_per_seed"]
        assert member.evaluation["eval_return_iqm"] == score and member.evaluation["eval_return_ci95"] is None
