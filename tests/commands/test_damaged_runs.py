"""Run folders that are damaged, or made to do harm: a line each, no traceback, no wait, and nothing from outside."""

import base64
import errno
import io
import os
import pathlib
import time
import warnings
from collections.abc import Sequence
from typing import Any

import conftest
import pytest
from fakes import damage, written_runs

from jaxrl_dist import commands
from jaxrl_dist.runs import folder, metrics
from jaxrl_dist.training import study

SECRET = "SECRET-of-another-user"
# Of the reference curves of this system and task.
STEPS = {"steps": 500_000}


@pytest.fixture
def secret(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "secret"
    path.write_text(f"train.py: {SECRET}\n")
    return path


def runs(root: pathlib.Path) -> list[pathlib.Path]:
    """Writes runs of several kinds, small ones."""
    shares = {"share_environment": 0.5, "share_inference": 0.3, "share_transfer": 0.2, "share_learning": 0.4}
    measured = shares | {"policy_lag_p50": 1, "policy_lag_p99": 3, "bottleneck": "inference", "dropped_unrolls": 1}
    sweep = STEPS | {"sweep": "agent.discount=0.9,0.99", "num_seeds": 1}
    made = [
        written_runs.write(root / "one", written_runs.rising(1, num_points=3), flags=STEPS, train=measured),
        written_runs.write(root / "two", written_runs.rising(2, num_points=10), flags=STEPS),
        written_runs.write(root / "sweep", written_runs.rising(2, num_points=3), flags=sweep),
    ]
    for run in made:
        (run / "videos").mkdir()
        (run / "videos" / "a.png").write_bytes(b"\x89PNG" + bytes(50))
        (run / "train.log").write_text("train.py: warning: w\n")
    return made


def told(command: str, arguments: list[Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Runs a command in this process; returns its exit code, and the lines of its errors and warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code = written_runs.script(f"scripts/{command}.py")([str(argument) for argument in arguments])
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith(f"{command}.py: ") for line in lines), lines
    assert all(one.category is RuntimeWarning and "\n" not in str(one.message) for one in caught), caught
    return code, [*lines, *(str(one.message) for one in caught)]


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 200), marks=pytest.mark.slow)], ids=["40", "all others"]
)
def test_two_hundred_damaged_folders_are_a_line_each(
    seeds: range,
    tmp_path: pathlib.Path,
    secret: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from matplotlib import figure

    save = figure.Figure.savefig

    def save_some(picture: figure.Figure, file: Any, **given: Any) -> None:
        # All is drawn; to write it as a picture takes most of the time.
        if seed % 20 == 0:
            save(picture, file, **given)
        elif isinstance(file, io.BytesIO):
            file.write(b'<svg viewBox="0 0 1 1"/>')
        else:
            pathlib.Path(file).touch()

    monkeypatch.setattr(figure.Figure, "savefig", save_some)
    whole, page = runs(tmp_path / "whole"), tmp_path / "page.html"
    secrets = SECRET, base64.b64encode(secret.read_bytes()).decode()
    for seed in seeds:
        run = tmp_path / f"damaged{seed}"
        what, started = f"{seed}: {damage.copy(whole[seed % 3], run, secret, seed)}", time.monotonic()
        try:
            code, lines = told("report", [whole[0], run, f"--out={page}"], capsys)
            text = page.read_text()
            assert code == 0 or (code == 1 and len(lines) == 1 and str(run) in lines[0]), lines
            assert not any(word in text for word in secrets)
            for command, out in (("plot", [f"--out={tmp_path / 'a.png'}"]), ("compare", [])):
                code, lines = told(command, [run, *out], capsys)
                assert code in (0, 1) or (code == 2 and str(run) in lines[0]), lines
        except BaseException as error:
            error.add_note(what)
            raise
        assert time.monotonic() - started < conftest.SOON_S, what


def test_a_page_goes_on_without_the_runs_that_cannot_be_read(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, _ = runs(tmp_path)
    (bad / "metrics.jsonl").unlink()
    os.mkfifo(bad / "metrics.jsonl")
    page = tmp_path / "page.html"
    code, lines = told("report", [good, bad, tmp_path / "none", f"--out={page}"], capsys)
    assert code == 1 and [line.split(": ")[1] for line in lines] == ["left out"] * 2
    assert str(bad / "metrics.jsonl") in lines[0] and str(tmp_path / "none") in lines[1]
    assert all(line.partition("left out: ")[2] in page.read_text() for line in lines)
    page.unlink()
    code, lines = told("report", [bad, f"--out={page}"], capsys)
    assert (code, len(lines), page.exists()) == (2, 1, False)


def test_records_of_other_types_are_left_out_and_the_first_is_named(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page = runs(tmp_path)[0], tmp_path / "page.html"
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 1}\n{"kind": "eval", "env_steps": 2, "eval_return_per_seed": "zz"}\n')
        file.write('{"kind": "eval", "env_steps": ' + "9" * 4000 + "}\n" + "[" * 200_000 + "\n")
        file.write('{"kind": "eval", "env_steps": 2, "eval_return_per_seed": [1, 2]}\n')
    code, lines = told("report", [run, f"--out={page}"], capsys)
    assert code == 0 and len(lines) == 1
    assert f"{run / 'metrics.jsonl'}: 5 of its lines" in lines[0] and "line 7: it has no kind" in lines[0]
    assert lines[0] in page.read_text()


def test_a_picture_from_outside_of_the_run_stays_there(
    tmp_path: pathlib.Path, secret: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page = runs(tmp_path)[0], tmp_path / "page.html"
    videos = run / "videos"
    (videos / "a.png").rename(videos / "b.png")
    (videos / "a.png").symlink_to(secret)
    (videos / "c.mp4").write_bytes(b"film")
    # A still, and a link that stays inside.
    (videos / "c.png").symlink_to(secret)
    (videos / "d.png").symlink_to("b.png")
    os.mkfifo(videos / "e.gif")
    assert told("report", [run, f"--out={page}"], capsys) == (0, [])
    text = page.read_text()
    assert base64.b64encode(secret.read_bytes()).decode() not in text and "poster" not in text
    assert text.count("data:image/png") == 2 and "3 left out: " in text and str(videos / "a.png") in text


@pytest.mark.parametrize("size", [101, 10_000])
def test_what_is_far_from_records_is_refused_at_once(tmp_path: pathlib.Path, size: int) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\n" * size)
    for read in (metrics.read, lambda folder: metrics.truncate_after(folder, 5)):
        with conftest.refused(str(tmp_path / "metrics.jsonl"), "100 lines"):
            read(tmp_path)
    assert (tmp_path / "metrics.jsonl").stat().st_size == size


def test_a_damaged_folder_is_not_resumed_and_stays(tmp_path: pathlib.Path) -> None:
    run = runs(tmp_path)[0]
    (run / "config.json").write_text('{"family": "classic", "settings": ' + "[" * 200_000)
    with conftest.refused(str(run / "config.json")):
        folder.held(run)
    before = sorted((path.name, path.stat().st_size) for path in run.iterdir())
    (run / "metrics.jsonl").rename(tmp_path / "aside")
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink(tmp_path / "aside", path)):
        make(run / "metrics.jsonl")
        with conftest.refused(str(run / "metrics.jsonl")):
            metrics.truncate_after(run, -1)
        path = run / "metrics.jsonl"
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "aside").rename(run / "metrics.jsonl")
    assert sorted((path.name, path.stat().st_size) for path in run.iterdir()) == before


@pytest.mark.filterwarnings("ignore:.*left out:RuntimeWarning")
def test_damage_never_makes_a_cell_of_a_study_finished_nor_ends_it(
    tmp_path: pathlib.Path, secret: pathlib.Path
) -> None:
    plan = study.Study(tmp_path / "out", ("--steps=500000",), (study.Setting("a", ()),), num_seeds=1)
    (cell,) = study.cells(plan)
    whole = runs(tmp_path / "whole")[0]
    states = set()
    for seed in range(60):
        run = tmp_path / f"out{seed}"
        what = damage.copy(whole, run, secret, seed)
        try:
            row, _ = study.row(plan, "a", [cell._replace(folder=run)], {})
        except BaseException as error:
            error.add_note(f"{seed}: {what}")
            raise
        states.add(row["state"])
    assert states == {"finished", "failed", "0 of 1 seeds"}


@pytest.mark.parametrize("command", ["evaluate", "plot", "report", "compare", "rollback", "replay_schedule", "study"])
def test_a_path_that_the_system_refuses_is_a_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = "a" * 5_000
    arguments = {
        "evaluate": [f"--run={path}"],
        "rollback": [path, "1"],
        "study": [f"--out={path}", "--num_seeds=1", "--", "--env=toy:walk"],
    }.get(command, [path])
    code, lines = told(command, arguments, capsys)
    assert code == 2 and len(lines) == 1 and path in lines[0] and os.strerror(errno.ENAMETOOLONG) in lines[0]


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def write(arguments: Sequence[str]) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert commands.run(write, "export", []) == 1
    assert capsys.readouterr().err == f"export.py: {os.strerror(errno.ENOSPC)}\n"
