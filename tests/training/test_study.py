"""Studies with a stand-in for the training process: which cells run, what the table says, and how failures show."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import conftest
import numpy as np
import pytest
import scipy.stats

from jaxrl_dist import errors
from jaxrl_dist.runs import aggregate, folder
from jaxrl_dist.training import study

# Scores 100 · discount + seed at its end. A file named "break" stops it half-way, "fail" at once, "hang" until it is
# told to stop; each process leaves a line in "starts".
STAND_IN = """
import json, pathlib, signal, sys, time
sys.path.insert(0, {root!r})
from jaxrl_dist.runs import software
from jaxrl_dist.systems import training_flags
from jaxrl_dist.training import resume
command = training_flags.parse(sys.argv[1:])
settings, here = command.settings, pathlib.Path(__file__).parent
with resume.open_folder(command.flags, settings) as folder:
    pass
with (here / "starts").open("a") as file:
    file.write(f"{{folder.relative_to(here / 'out')}}\\n")
if (here / "fail").exists() and (here / "fail").read_text() in str(folder):
    sys.exit("Traceback\\nthe reason")
if (here / "hang").exists():
    signal.signal(signal.SIGTERM, lambda *_: ((here / "stopped").touch(), sys.exit(143)))
    (here / "hanging").touch()
    time.sleep(60)
end = settings["steps"] // 2 if (here / "break").exists() else settings["steps"]
(folder / "config.json").write_text(json.dumps(software.record(settings.as_json(), None)))
seeds = range(settings["seed"], settings["seed"] + settings["num_seeds"])
final = [100 * settings["agent.discount"] + seed for seed in seeds]
with (folder / "metrics.jsonl").open("w") as file:
    for i in range(1, 11):
        scores = [score * i / 10 for score in final]
        record = {{"kind": "eval", "env_steps": end * i // 10, "wall_s": 6.0 * i, "eval_return_per_seed": scores}}
        file.write(json.dumps(record) + "\\n")
        drift = {{"kind": "train", "env_steps": end * i // 10, "drift": [None, 2.0 * i, 3.0 * i], "still": None}}
        file.write(json.dumps(drift) + "\\n")
mean = sum(final) / len(final)
summary = {{"env": settings["env"], "env_steps": end, "wall_s": 60.0, "eval_return_mean": mean}}
summary |= {{"eval_return_per_seed": final, "device": "cpu", "num_devices": 2}}
(folder / "summary.json").write_text(json.dumps(summary))
sys.exit(143 if (here / "break").exists() else 0)
"""
SETTINGS = (study.Setting("high", ("--agent.discount=0.9",)), study.Setting("low", ("--agent.discount=0.86",)))
COMMON = ("--system=ppo", "--env=gymnax:CartPole-v1", "--steps=1000")


@pytest.fixture
def train_command(tmp_path: pathlib.Path) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(STAND_IN.format(root=str(conftest.PACKAGE.parent)))
    return [sys.executable, str(script)]


def plan(tmp_path: pathlib.Path, **changes: Any) -> study.Study:
    arguments = {"out": tmp_path / "out", "common": COMMON, "settings": SETTINGS, "num_seeds": 5, **changes}
    return study.Study(**arguments)


def starts(tmp_path: pathlib.Path) -> list[str]:
    path = tmp_path / "starts"
    return path.read_text().split() if path.exists() else []


def run(plan: study.Study, train_command: Sequence[str]) -> list[dict[str, Any]]:
    return study.run(plan, train_command, say=lambda text: None)


def soon(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + conftest.SOON_S
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert happens()


def test_the_table_holds_the_numbers_of_every_setting(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    high, low = run(plan(tmp_path), train_command)
    assert json.loads((tmp_path / "out" / "table.json").read_text()) == [high, low]
    assert [row["state"] for row in (high, low)] == ["finished", "finished"]
    scores = 90.0 + np.arange(5)
    np.testing.assert_allclose(high["eval_return_per_seed"], scores)
    np.testing.assert_allclose(high["eval_return_iqm"], scipy.stats.trim_mean(scores, 0.25))
    np.testing.assert_allclose(high["eval_return_ci95"], aggregate.interval(scores))
    summary = [high[f"eval_return_{name}"] for name in ("mean", "min", "max")]
    np.testing.assert_allclose([*summary, high["final_window_mean"]], [92.0, 90.0, 94.0, 92.0])
    assert (high["env_steps"], high["minutes"], high["seeds"]) == (1000, 1.0, 5)
    assert high["better_than_first"] is None
    # Of the 25 pairs of 86 … 90 and 90 … 94 one is a tie, and none is won.
    np.testing.assert_allclose(low["better_than_first"], 0.5 / 25)
    arguments = "--seed=0 --num_seeds=5 --out=" + str(tmp_path / "out" / "high")
    assert high["command"] == f"python scripts/train.py {' '.join(COMMON)} --agent.discount=0.9 {arguments}"
    assert any(version.startswith("jax ") for version in high["versions"])
    assert re.fullmatch(r"([0-9a-f]{40}(-dirty)?)|unknown", high["commits"][0])
    assert not list((tmp_path / "out").rglob("origin*"))


def test_the_table_names_what_every_session_ran_with(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    asked = plan(tmp_path, settings=SETTINGS[:1])
    run(asked, train_command)
    path = tmp_path / "out" / "high" / "config.json"
    contents = json.loads(path.read_text())
    sessions = [{"commit": "a" * 40, "versions": ["jax 1", "numpy 2"]}, {"commit": "b" * 40, "versions": ["jax 1"]}]
    path.write_text(json.dumps({**contents, "software": sessions}))
    (row,) = run(asked, train_command)
    assert (row["commits"], row["versions"]) == (["a" * 40, "b" * 40], ["jax 1", "numpy 2"])
    path.write_text(json.dumps({name: contents[name] for name in ("family", "settings")}))
    (row,) = run(asked, train_command)
    assert (row["commits"], row["versions"]) == (["unknown"], [])


def test_training_numbers_are_averaged_where_asked_for(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    asked = plan(tmp_path, means=("drift", "still", "drfit"))
    rows = run(asked, train_command)
    assert [row["means"] for row in rows] == [{"drift": 2.5 * 5.5, "still": None, "drfit": None}] * 2
    assert study.unrecorded(asked, rows) == (
        "--means=drfit: these runs record no such number; valid: drift, env_steps, still; did you mean drift?"
    )
    assert study.unrecorded(plan(tmp_path, means=("drift", "still")), rows) == ""
    header, rule, high, low = (tmp_path / "out" / "table.md").read_text().splitlines()[:4]
    assert len({line.count("|") for line in (header, rule, high, low)}) == 1
    column = [cell.strip() for cell in header.split("|")].index("mean drift")
    assert [cell.strip() for cell in high.split("|")][column : column + 3] == ["13.75", "–", "–"]


def test_markdown_and_plot_are_written(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    run(plan(tmp_path), train_command)
    text = (tmp_path / "out" / "table.md").read_text()
    header, rule, high, low = text.splitlines()[:4]
    assert len({line.count("|") for line in (header, rule, high, low)}) == 1
    assert [cell.strip() for cell in high.split("|")][1:4] == ["high", "5", "92"]
    assert "`python scripts/train.py --system=ppo" in text
    assert "devices: 2 × cpu" in text
    page = (tmp_path / "out" / "page.html").read_text()
    assert "<h1>ppo on gymnax:CartPole-v1</h1>" in page and "2 of 2 settings finished" in page
    for name in ("curves.png", "scores.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def test_finished_cells_are_skipped_and_interrupted_ones_go_on(
    tmp_path: pathlib.Path, train_command: list[str]
) -> None:
    (tmp_path / "break").touch()
    broken = run(plan(tmp_path, settings=SETTINGS[:1]), train_command)
    assert broken[0]["state"] == "failed"
    assert "exit code 143" in broken[0]["failures"][0]
    (tmp_path / "break").unlink()
    first = run(plan(tmp_path), train_command)
    assert starts(tmp_path) == ["high", "high", "low"]
    assert run(plan(tmp_path), train_command) == first
    assert starts(tmp_path) == ["high", "high", "low"]


def test_only_what_was_asked_for_counts_as_finished(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    asked = plan(tmp_path, settings=SETTINGS[:1])
    run(asked, train_command)
    (cell,) = study.cells(asked)
    assert study.is_finished(cell)
    # Stopped in the evaluation after its last step, which is still due.
    summary = json.loads((cell.folder / "summary.json").read_text())
    (cell.folder / "summary.json").write_text(json.dumps({**summary, "reason": "stopped"}))
    assert not study.is_finished(cell)
    (cell.folder / "summary.json").write_text(json.dumps(summary))
    longer = plan(tmp_path, settings=SETTINGS[:1], common=(*COMMON[:2], "--steps=2000"))
    assert not study.is_finished(study.cells(longer)[0])
    enough = plan(tmp_path, settings=SETTINGS[:1], common=(*COMMON[:2], "--steps=2000", "--stop_at_return=91"))
    assert study.is_finished(study.cells(enough)[0])
    other = plan(tmp_path, settings=(study.Setting("high", ("--agent.discount=0.8",)),))
    assert not study.is_finished(study.cells(other)[0])
    (cell.folder / "summary.json").write_text("{")
    assert not study.is_finished(cell)


@pytest.mark.parametrize(
    ("changed", "changes"),
    [
        ({"settings": (study.Setting("high", ("--agent.discount=0.8",)),)}, "agent.discount 0.9 -> 0.8"),
        ({"num_seeds": 3}, "num_seeds 5 -> 3"),
    ],
)
def test_folders_of_other_runs_are_refused_and_the_table_stays(
    tmp_path: pathlib.Path, train_command: list[str], changed: dict[str, Any], changes: str
) -> None:
    run(plan(tmp_path), train_command)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    with conftest.refused(f"({changes})"):
        run(plan(tmp_path, **changed), train_command)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert starts(tmp_path) == ["high", "low"]


def test_a_failed_cell_is_named_and_the_others_run(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    (tmp_path / "fail").write_text("high")
    said: list[str] = []
    high, low = study.run(plan(tmp_path), train_command, said.append)
    assert (high["state"], low["state"]) == ("failed", "finished")
    assert high["failures"] == [f"{tmp_path / 'out' / 'high'}: exit code 1: the reason"]
    assert (high["seeds"], high["eval_return_iqm"], low["better_than_first"]) == (0, None, None)
    assert "failed: " + high["failures"][0] in (tmp_path / "out" / "table.md").read_text()
    assert any("exit code 1: the reason" in line for line in said)


@pytest.mark.slow
def test_separate_seeds_are_processes_of_their_own(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    (tmp_path / "fail").write_text("seed4")
    separate = plan(tmp_path, settings=SETTINGS[:1], num_seeds=3, first_seed=3, separate_seeds=True)
    (row,) = run(separate, train_command)
    assert starts(tmp_path) == ["high/seed3", "high/seed4", "high/seed5"]
    assert row["eval_return_per_seed"] == [93.0, 95.0]
    assert (row["state"], row["seeds"], row["seeds_asked"], row["minutes"]) == ("failed", 2, 3, 2.0)
    (tmp_path / "fail").unlink()
    (row,) = run(separate, train_command)
    assert starts(tmp_path)[3:] == ["high/seed4"]
    assert (row["state"], row["eval_return_per_seed"]) == ("finished", [93.0, 94.0, 95.0])


def test_settings_of_other_environments_are_not_compared(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    other = study.Setting("catch", ("--env=gymnax:Catch-bsuite",))
    longer = study.Setting("longer", ("--env.params.max_steps_in_episode=300",))
    rows = run(plan(tmp_path, settings=(SETTINGS[0], other, longer, SETTINGS[1]), num_seeds=1), train_command)
    assert [row["better_than_first"] is None for row in rows] == [True, True, True, False]
    assert rows[2]["environments"] == [f"{rows[0]['environments'][0]} with max_steps_in_episode=300"]
    assert [row["eval_return_ci95"] for row in rows] == [None] * 4


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"common": ("--agent.discount=2",)}, ["high: --agent.discount=2: "]),
        ({"settings": (study.Setting("a", ("--agent.discont=1",)),)}, ["a: --agent.discont: ", " --agent.discount?"]),
        ({"common": ("--out=x",)}, ["--out "]),
        ({"common": ("--seed", "3")}, ["--seed "]),
        ({"common": ("--num_seeds=3",)}, ["--num_seeds "]),
        ({"common": ("--help",)}, ["high: ", "--help"]),
        ({"common": ("--dry_run",)}, ["high: ", "--dry_run"]),
        ({"common": ("--processes=2",)}, ["high: ", "--processes"]),
        ({"settings": SETTINGS[:1] * 2}, ["high, high"]),
        ({"num_seeds": 0}, ["--num_seeds=0"]),
        ({"first_seed": -1}, ["--seed=-1"]),
    ],
)
def test_wrong_flags_are_refused_before_anything_starts(
    tmp_path: pathlib.Path, train_command: list[str], changes: dict[str, Any], named: list[str]
) -> None:
    if "common" in changes:
        changes = {"settings": (study.Setting("high", ()),), **changes}
    with conftest.refused(*named):
        run(plan(tmp_path, **changes), train_command)
    assert starts(tmp_path) == [] and not (tmp_path / "out").exists()


def test_a_study_that_runs_already_is_refused(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    with folder.lock(tmp_path / "out"), pytest.raises(errors.LockError):
        run(plan(tmp_path), train_command)
    assert starts(tmp_path) == []


def test_a_stopped_study_stops_its_process_and_still_writes_the_table(
    tmp_path: pathlib.Path, train_command: list[str]
) -> None:
    (tmp_path / "hang").touch()
    code = (
        "import pathlib, signal, sys; from jaxrl_dist.training import study;"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143));"
        f"plan = study.Study(pathlib.Path({str(tmp_path / 'out')!r}), {COMMON!r}, (study.Setting('a', ()),));"
        f"study.run(plan, {train_command!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=conftest.PACKAGE.parent)
    soon(lambda: (tmp_path / "hanging").exists())
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=conftest.SOON_S) == 143
    assert (tmp_path / "stopped").exists()
    assert json.loads((tmp_path / "out" / "table.json").read_text())[0]["state"] == "0 of 10 seeds"


def test_a_study_that_is_killed_stops_its_process(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    (tmp_path / "hang").touch()
    code = (
        "import pathlib; from jaxrl_dist.training import study;"
        f"plan = study.Study(pathlib.Path({str(tmp_path / 'out')!r}), {COMMON!r}, (study.Setting('a', ()),));"
        f"study.run(plan, {train_command!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=conftest.PACKAGE.parent)
    soon(lambda: (tmp_path / "hanging").exists())
    process.kill()
    process.wait()
    soon(lambda: (tmp_path / "stopped").exists())


def test_a_cell_that_is_in_use_is_waited_for(tmp_path: pathlib.Path, train_command: list[str]) -> None:
    said: list[str] = []
    asked = plan(tmp_path, settings=SETTINGS[:1])
    (cell,) = study.cells(asked)
    with contextlib.ExitStack() as held:
        held.enter_context(folder.lock(cell.folder))

        def say(line: str) -> None:
            said.append(line)
            held.close()

        (row,) = study.run(asked, train_command, say)
    assert row["state"] == "finished" and starts(tmp_path) == ["high"]
    assert f"process {os.getpid()} " in said[0] and str(cell.folder) in said[0] and len(said) == 3
