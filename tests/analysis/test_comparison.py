"""Reference curves: written and read back, found by system and task, and the two answers of compare.py, forced."""

import itertools
import json
import pathlib
import re
from typing import Any

import conftest
import numpy as np
import pytest
from fakes import written_runs

from jaxrl_dist.analysis import compare, published, reference
from jaxrl_dist.commands import compare as compare_command
from jaxrl_dist.runs import view

STORED = conftest.PACKAGE.parent / "benchmarks" / "reference"
COMPARE, WRITE = "scripts/compare.py", "benchmarks/write_reference.py"


def stored_run(
    folder: pathlib.Path, name: str, seeds: slice, factor: float = 1.0, flags: dict[str, Any] | None = None
) -> pathlib.Path:
    """Writes seeds of a stored reference as a run of its system."""
    one = next(one for one in reference.read_all(STORED) if one.name == name)
    returns, facts = factor * one.returns[:, seeds], one.facts
    run = written_runs.write(folder, returns, facts["system"], facts["env"], flags=flags or {})
    lines = (run / "metrics.jsonl").read_text().splitlines()
    moved = [json.loads(line) for line in lines]
    for i, record in enumerate(moved):
        record["env_steps"] = int(one.env_steps[i // 2])
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in moved))
    return run


def test_what_is_written_is_read_back(tmp_path: pathlib.Path) -> None:
    returns = written_runs.rising(6)
    folders = [
        written_runs.write(tmp_path / f"seed{i}", returns[:, 2 * i : 2 * i + 2], flags={"seed": 2 * i})
        for i in range(3)
    ]
    reference.write(tmp_path / "references", "study", [view.read(folder) for folder in folders])
    (one,) = reference.read_all(tmp_path / "references")
    np.testing.assert_allclose(one.returns, returns, rtol=1e-4)
    np.testing.assert_array_equal(one.env_steps, np.linspace(0, written_runs.TOTAL, 21)[1:])
    assert one.facts["seeds"] == list(range(6)) and "out" not in one.facts["settings"]
    assert one.facts["software"][0]["versions"]
    rows = (tmp_path / "references" / "study.csv").read_text().splitlines()
    assert rows[0] == "seed,env_steps,minutes,return" and rows[1].startswith("0,500,0.083,")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"reason": "stopped", "share": 0.5}, ["/b ", "stopped"]),
        ({"flags": {"seed": 4, "agent.discount": 0.9}}, ["/b ", "/a ", "agent.discount"]),
        ({"flags": {"seed": 3}}, ["0, 1, 2, 3, 3, 4, 5, 6"]),
    ],
)
def test_what_is_no_study_is_refused(tmp_path: pathlib.Path, changes: dict, named: list[str]) -> None:
    first = written_runs.write(tmp_path / "a", written_runs.rising(4))
    other = written_runs.write(tmp_path / "b", written_runs.rising(4), **changes)
    with conftest.refused(*named):
        reference.write(tmp_path / "references", "study", [view.read(first), view.read(other)])


@pytest.mark.parametrize(
    ("name", "message"),
    [("few", "few: a reference needs 4 seeds or more, not 3"), ("a/b", "--name=a/b: expected letters, digits and .*")],
)
def test_too_few_seeds_and_a_wrong_name_are_refused_in_one_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    run = written_runs.write(tmp_path / "a", written_runs.rising(3))
    assert written_runs.script(WRITE)([str(run), f"--name={name}", f"--out={tmp_path}"]) == 2
    assert re.fullmatch(f"write_reference.py: {message}\n", capsys.readouterr().err)


def test_the_nearest_settings_are_taken_and_named(tmp_path: pathlib.Path) -> None:
    references = reference.read_all(STORED)
    core = {"env.params.observe": "0,2", "network.core": "lstm", "network.core_size": 64, "steps": 1_000_000}
    run = written_runs.write(tmp_path / "a", written_runs.rising(1, top=400.0), flags=core)
    verdict = compare.judge(references, [view.read(run)])
    assert verdict.reference.name == "hidden_velocities_lstm"
    assert {"learner.learning_rate", "env.num_envs"} <= {change.name for change in verdict.changes}
    assert "seed" not in {change.name for change in verdict.changes}


def test_a_seed_that_was_left_out_is_inside(tmp_path: pathlib.Path) -> None:
    whole = next(one for one in reference.read_all(STORED) if one.name == "cartpole_ppo")
    for i in range(whole.returns.shape[1]):
        rest = np.delete(whole.returns, i, axis=1)
        assert compare.compare(whole.env_steps, whole.returns[:, [i]], whole.env_steps, rest).is_inside


def known_levels() -> list[tuple[reference.Reference, float]]:
    found = [(one, published.random_play(one.facts["env"], reference.task_params(one.facts["settings"])))
             for one in reference.read_all(STORED)]  # fmt: skip
    return [(one, level) for one, level in found if np.isfinite(level)]


def test_what_plays_at_random_leaves_the_band_of_every_reference() -> None:
    known = known_levels()
    assert {one.facts["env"].partition(":")[2] for one, _ in known} >= {
        *("CartPole-v1", "Acrobot-v1", "Catch-bsuite", "Breakout-MinAtar", "HalfCheetah-v4", "Pendulum-v1")
    }
    for one, level in known:
        for share in (1.0, 0.5):
            steps = one.env_steps[one.env_steps <= share * one.env_steps[-1]]
            for num_seeds in (1, 3):
                returns = np.full((len(steps), num_seeds), level)
                assert not compare.compare(steps, returns, one.env_steps, one.returns, level).is_inside, one.name


def test_the_level_of_random_play_makes_hardly_an_alarm_of_a_seed_that_had_none() -> None:
    added = []
    for one, level in known_levels():
        without = compare.false_alarms(one.env_steps, one.returns)
        alarms = compare.false_alarms(one.env_steps, one.returns, level)
        assert all(after for before, after in zip(without, alarms, strict=True) if before), one.name
        added += [after and not before for before, after in zip(without, alarms, strict=True)]
    text = (STORED / "README.md").read_text(encoding="utf-8")
    assert len(added) > 80 and np.mean(added) < 0.01
    assert f"| {sum(added)} of {len(added)} more |" in text


def test_what_was_evaluated_before_its_first_update_alone_is_not_judged() -> None:
    steps, returns = np.array([0.0, 100.0, 200.0]), np.tile(np.arange(5.0), (3, 1))
    with pytest.raises(ValueError, match="after 0: the first is at 100"):
        compare.compare(np.array([0.0, 50.0]), np.ones((2, 1)), steps, returns)
    assert compare.compare(np.array([0.0, 100.0]), np.ones((2, 1)), steps, returns).env_steps.tolist()


def test_a_run_at_the_level_of_random_play_is_judged_outside(tmp_path: pathlib.Path) -> None:
    # Without the level the seeds of this one differ too much for that.
    one = next(one for one, _ in known_levels() if one.name == "cartpole_a3c")
    run = stored_run(tmp_path / "a", one.name, slice(0, 1), 0.0)
    records = (
        (run / "metrics.jsonl").read_text().replace('eval_return_per_seed": [0.0]', 'eval_return_per_seed": [22.1]')
    )
    (run / "metrics.jsonl").write_text(records)
    assert not compare.judge([one], [view.read(run)]).result.is_inside


def test_of_all_stored_seeds_few_would_be_outside_of_the_others() -> None:
    alarms = [alarm for one in reference.read_all(STORED) for alarm in compare.false_alarms(one.env_steps, one.returns)]
    text = (STORED / "README.md").read_text(encoding="utf-8")
    assert len(alarms) > 80 and np.mean(alarms) < 0.06
    assert f"| {sum(alarms)} of {len(alarms)} |" in text


@pytest.mark.parametrize(("reference_seeds", "run_seeds"), [(4, 1), (4, 3), (5, 1), (8, 1)])
def test_of_seeds_that_differ_normally_one_in_fifty_is_outside_by_each_number(
    reference_seeds: int, run_seeds: int
) -> None:
    generator = np.random.default_rng(7)
    factor, outside, trials = compare.widening(reference_seeds, run_seeds), 0, 3_000
    for _ in range(trials):
        others = generator.normal(5.0, 3.0, reference_seeds)
        run = generator.normal(5.0, 3.0, run_seeds)
        largest = 0.0
        for group in itertools.combinations(range(reference_seeds), min(run_seeds, reference_seeds // 2)):
            rest = [i for i in range(reference_seeds) if i not in group]
            largest = max(largest, abs(others[list(group)].mean() - others[rest].mean()))
        outside += abs(run.mean() - others.mean()) > factor * largest
    # Six standard deviations of the count: as much again comes from the draws of the quantile.
    error = 6 * (0.02 * 0.98 / trials) ** 0.5
    assert outside / trials < 0.02 + error
    assert outside / trials > 0.02 - error or factor == compare.LEAST_WIDENING


def test_fewer_seeds_of_a_reference_need_a_larger_factor() -> None:
    factors = [compare.widening(seeds, 1) for seeds in (4, 5, 6, 8, 20)]
    assert factors == sorted(factors, reverse=True) and factors[0] > 2.5 and factors[3:] == [2.0, 2.0]


def test_a_band_is_the_factor_times_the_largest_deviation() -> None:
    steps, reference = np.array([1.0, 2.0]), np.array([[0.0, 1.0, 2.0, 3.0, 14.0]] * 2)
    whole, last, _ = compare.compare(steps, np.array([[4.0], [4.0]]), steps, reference).numbers
    # The seed at 14 is 12.5 from the mean of the others, 1.5.
    width = 12.5 * compare.widening(5, 1)
    np.testing.assert_allclose([whole.low, whole.high, last.low, last.high], [4 - width, 4 + width] * 2)


def test_the_script_finds_a_run_that_learns_inside_and_one_that_does_not_outside(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = written_runs.script(COMPARE)
    assert main([str(stored_run(tmp_path / "good", "cartpole_ppo", slice(0, 3)))]) == 0
    text = capsys.readouterr().out
    assert "beside cartpole_ppo: ppo on gymnax:CartPole-v1" in text and "\ninside the band" in text
    assert main([str(stored_run(tmp_path / "bad", "cartpole_ppo", slice(0, 3), 0.2))]) == 1
    text = capsys.readouterr().out
    assert "OUTSIDE the band (for scale: of the reference's own 10 seeds, 0 " in text
    assert text.count(" below\n") == 3


def test_several_folders_are_the_seeds_of_one_run(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(seed: int, name: str = "", **flags: Any) -> str:
        of_seed = slice(seed, seed + 1)
        return str(stored_run(tmp_path / f"{seed}{name}", "catch_dqn", of_seed, flags={"seed": seed, **flags}))

    first = run(0)
    assert written_runs.script(COMPARE)([first, run(1), run(2)]) == 0
    assert ": 3 seeds, " in capsys.readouterr().out
    assert written_runs.script(COMPARE)([first, run(1, "other", **{"agent.discount": 0.5})]) == 2
    assert "agent.discount" in capsys.readouterr().err
    assert written_runs.script(COMPARE)([first, run(0, "again")]) == 2
    assert "seeds in common" in capsys.readouterr().err


def test_a_wheel_has_no_references_and_names_the_flag(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare_command, "_REFERENCES", tmp_path / "site-packages" / "benchmarks" / "reference")
    assert written_runs.script(COMPARE)(["--list"]) == 2
    told = capsys.readouterr().err
    assert "--references" in told and str(tmp_path) not in told
    assert written_runs.script(COMPARE)(["--list", f"--references={STORED}"]) == 0


def test_a_table_without_its_settings_is_named(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "half.csv").write_text((STORED / "catch_dqn.csv").read_text())
    assert written_runs.script(COMPARE)(["--list", f"--references={tmp_path}"]) == 2
    told = capsys.readouterr().err
    assert "half.csv is no reference curve" in told and "half.json" in told


def test_the_list_names_every_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert written_runs.script(COMPARE)(["--list"]) == 0
    names = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == sorted(path.stem for path in STORED.glob("*.csv"))
