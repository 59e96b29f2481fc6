"""Run folders that lost something, were moved away, or hold what is in the way: nothing from zero, nobody twice."""

import contextlib
import errno
import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import conftest
import jax
import marks
import pytest
from fakes import checkpoints

from jaxrl_dist import commands, errors
from jaxrl_dist.commands import train as train_command
from jaxrl_dist.runs import checkpoint, metrics
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.training import assemble, resume, runner, session

RUN = {"log.interval_steps": 256, "evaluation.interval_steps": 256, "evaluation.episodes": 2}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> runner.Run:
    """The whole small run."""
    return conftest.train_in(tmp_path_factory.mktemp("reference"), **RUN)


@pytest.fixture
def finished(reference: runner.Run, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of it that may be altered."""
    return pathlib.Path(shutil.copytree(reference.folder, tmp_path / "finished"))


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns every file below a folder but the lock, which ends with whoever holds it."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != run_folder.LOCK_NAME]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def delete(path: pathlib.Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


# What is taken from a finished run -> a word for what is left.
LOST: dict[str, tuple[tuple[str, ...], str]] = {
    "steps": (("checkpoints/step_*",), "checkpoints/latest"),
    "checkpoints": (("checkpoints",), "metrics.jsonl"),
    "all but the best": (("checkpoints/step_*", "checkpoints/latest", "*.*"), "checkpoints/best"),
    "all but the records": (("[!m]*",), "metrics.jsonl"),
    "all but the summary": (("[!s]*",), "summary.json"),
}


@pytest.mark.parametrize("lost", marks.some(list(LOST), fast={"steps", "all but the best"}))
def test_a_run_that_lost_its_steps_is_not_begun_anew(lost: str, finished: pathlib.Path, train: conftest.Train) -> None:
    patterns, left = LOST[lost]
    for path in [path for pattern in patterns for path in finished.glob(pattern)]:
        delete(path)
    before = contents(finished)
    assert before
    with conftest.refused(f"--out={finished}", left, "checkpoints/step_*"):
        train(folder=finished, **RUN)
    assert contents(finished) == before
    if lost == "steps":
        # The message says what to do.
        for path in finished.iterdir():
            delete(path)
        assert train(folder=finished, **RUN).summary["resumed_from"] is None


def interrupted(monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path, copies: pathlib.Path) -> None:
    """Copies a folder before and after each change of its names and each record: as a kill would leave it."""
    busy, seen = [False], list[Any]([[]])

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if busy[0]:
                return original(*args, **more)
            busy[0] = True
            try:
                copy()
                answer = original(*args, **more)
                copy()
            finally:
                busy[0] = False
            return answer

        return call

    def copy() -> None:
        names = sorted((str(path), path.stat().st_size) for path in folder.rglob("*"))
        if names not in seen:
            seen.append(names)
            shutil.copytree(folder, copies / f"{len(seen):04d}")

    copies.mkdir()
    for owner, name in (
        *((pathlib.Path, name) for name in ("mkdir", "rename", "unlink", "touch", "write_bytes", "write_text")),
        (shutil, "rmtree"),
        (metrics, "append"),
        (metrics, "truncate_after"),
    ):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))


def test_a_kill_at_any_time_leaves_a_run_that_goes_on_and_lost_steps_never_do(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    folder, copies = tmp_path / "run", tmp_path / "copies"
    with monkeypatch.context() as patch:
        interrupted(patch, folder, copies)
        train(folder=folder, **RUN, steps=512, **{"checkpoint.interval_s": 0.0, "log.tensorboard": False})
    named = {"system": "ppo", "env": "toy:walk", **conftest.SMALL["ppo"], **RUN}
    settings, environment = assemble.resolve(named)
    parts = assemble.assemble(settings, environment, jax.devices()[:1])
    fresh = resumed = 0
    for copy in sorted(copies.iterdir()):
        steps = checkpoint.latest(copy / "checkpoints")
        if steps:
            # A whole one that only lacks its name is not lost.
            bare = shutil.copytree(copy, tmp_path / "bare", ignore=shutil.ignore_patterns("step_*", ".new-*"))
            with conftest.refused(f"--out={bare}"):
                resume.start(parts, bare)
            shutil.rmtree(bare)
        started = resume.start(parts, copy)
        fresh, resumed = fresh + (not started.progress.iteration), resumed + (started.progress.iteration > 0)
        assert started.progress.iteration or not steps
    assert fresh > 5 and resumed > 5


def go_away(folder: pathlib.Path, kind: str) -> None:
    """Takes a run's folder, or the lock in it, away."""
    if kind == "renamed":
        folder.rename(folder.with_name("elsewhere"))
    elif kind == "removed":
        shutil.rmtree(folder)
    else:
        (folder / run_folder.LOCK_NAME).unlink()


@pytest.mark.parametrize(
    ("kind", "occasion"),
    marks.some(
        [
            ("renamed", "record"),
            ("removed", "record"),
            ("unlocked", "record"),
            ("renamed", "save"),
            ("removed", "save"),
        ],
        fast={"unlocked-record", "removed-save"},
    ),
)
def test_a_run_whose_folder_went_away_ends_and_writes_nothing_more(
    kind: str, occasion: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    folder, rest, calls = tmp_path / "run", set[str](), list[int]()

    def leave(*_: Any) -> None:
        calls.append(1)
        # Past the first save, which is of several.
        if len(calls) == 5:
            go_away(folder, kind)
            rest.update(contents(folder))

    write_arrays = checkpoint.storage.write_arrays

    def leave_and_write(*args: Any) -> None:
        leave()
        # Orbax makes the folders again that it writes to.
        write_arrays(*args)

    with monkeypatch.context() as patch:
        if occasion == "save":
            patch.setattr(checkpoint.storage, "write_arrays", leave_and_write)
        callbacks = [leave] if occasion == "record" else []
        with pytest.raises(errors.LockError) as caught:
            train(folder=folder, callbacks=callbacks, **RUN, **{"checkpoint.interval_s": 0.0})
    assert str(folder) in str(caught.value) and not getattr(caught.value, "__notes__", [])
    assert not [name for name in contents(folder).keys() - rest if "/.new-" not in name]


@pytest.mark.slow
def test_of_two_trainers_one_is_left_where_the_folder_was_taken_over(
    tmp_path: pathlib.Path, reference: runner.Run, train: conftest.Train
) -> None:
    folder, moved, taken = tmp_path / "run", tmp_path / "moved", list[dict[str, bytes]]()

    def take_over(record: dict[str, Any]) -> None:
        if record["env_steps"] == 768 and not moved.exists():
            folder.rename(moved)
            assert train(folder=folder, **RUN).summary["params_sha256"] == reference.summary["params_sha256"]
            taken.append(contents(folder))

    with pytest.raises(errors.LockError):
        train(folder=folder, callbacks=[take_over], **RUN, **{"checkpoint.interval_s": 0.0})
    assert taken == [contents(folder)]
    # The first goes on where its folder went.
    run = train(folder=moved, **RUN)
    assert 0 < run.summary["resumed_from"] <= 768
    assert run.summary["params_sha256"] == reference.summary["params_sha256"]
    steps = [(record["kind"], record["env_steps"]) for record in metrics.read(moved)]
    assert len(steps) == len(set(steps))


def test_a_folder_that_went_away_is_one_line_and_exit_code_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, save = tmp_path / "run", checkpoint.save

    def save_and_leave(*args: Any, **more: Any) -> pathlib.Path:
        path = save(*args, **more)
        shutil.rmtree(folder)
        return path

    monkeypatch.setattr(checkpoint, "save", save_and_leave)
    monkeypatch.setattr(runner, "prepare", lambda: None)
    monkeypatch.setattr(runner, "keep_programs", lambda: None)
    small = {
        **conftest.SMALL["ppo"],
        "network.hidden_sizes": 16,
        "out": folder,
        "env": "toy:walk",
        "log.progress": False,
    }
    flags = [f"--{name}={value}" for name, value in small.items()]
    assert commands.run(train_command.main, "train", flags) == 1
    assert capsys.readouterr().err.count("\n") == 1 and not folder.exists()


def test_a_run_that_was_stopped_before_it_began_is_not_called_saved(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def drive(*args: Any, **more: Any) -> runner.Run:
        return runner.Run(tmp_path, {"env_steps": 0}, session.STOPPED)

    monkeypatch.setattr(runner, "drive", drive)
    monkeypatch.setattr(runner, "prepare", lambda: None)
    monkeypatch.setattr(runner, "keep_programs", lambda: None)
    commands.run(train_command.main, "train", ["--env=toy:walk", f"--out={tmp_path}"])
    assert "nothing was saved" in capsys.readouterr().out
    (tmp_path / "checkpoints" / "step_000000000008").mkdir(parents=True)
    commands.run(train_command.main, "train", ["--env=toy:walk", f"--out={tmp_path}"])
    assert "stopped and saved" in capsys.readouterr().out


def test_a_run_whose_epsilon_waits_for_rows_can_be_made_longer_and_shorter(train: conftest.Train) -> None:
    more = {"agent.epsilon_fraction": 0.01, "replay.min_size": 64}
    waits = []
    for steps in (128, 256, 192):
        run = train("dqn", steps=steps, **more)
        waits.append(run_folder.config(run.folder)["settings"]["agent.epsilon_wait"]["value"])
    # The last asks for fewer steps than the run has, and changes nothing.
    assert waits == [64 / 128, 64 / 256, 64 / 256] and run.summary["env_steps"] == 256


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"agent.discount": 0.5}, "(agent.discount 0.99 -> 0.5)"),
        ({"network.hidden_sizes": (8,)}, "network.hidden_sizes "),
    ],
)
def test_without_config_json_the_checkpoint_says_whose_run_it_is(
    changed: dict[str, Any], named: str, finished: pathlib.Path, train: conftest.Train
) -> None:
    (finished / "config.json").unlink()
    before = contents(finished)
    with conftest.refused(f"--out={finished}", named):
        train(folder=finished, **RUN | changed)
    assert contents(finished) == before


@pytest.mark.parametrize("damage", ["", "{", '{"settings": 3}', "[" * 100_000])
def test_a_damaged_config_json_is_put_back_or_removed(
    damage: str, finished: pathlib.Path, reference: runner.Run, train: conftest.Train
) -> None:
    path = finished / "config.json"
    path.write_text(damage)
    with conftest.refused(str(path), "remove it"):
        train(folder=finished, **RUN)
    if not damage:
        path.unlink()
        # What may change between sessions still may.
        run = train(folder=finished, **RUN, **{"log.tensorboard": False})
        assert run.summary["params_sha256"] == reference.summary["params_sha256"]
        assert (run.summary["resumed_from"], path.exists()) == (1280, True)


def test_a_checkpoint_without_settings_is_refused_in_one_line(finished: pathlib.Path, train: conftest.Train) -> None:
    folder = finished / "checkpoints"
    path = checkpoint.latest(folder)[0]
    stored = json.loads((path / "contents.json").read_text())
    del stored["meta"]["config"]
    (path / "contents.json").write_text(json.dumps(stored))
    (path / "manifest.json").write_bytes(checkpoint.manifest.encode(checkpoint.manifest.digests(path)))
    with conftest.refused(str(folder), "--out"):
        train(folder=finished, **RUN)


def test_a_file_that_is_replaced_is_on_disk_before_and_after(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = tmp_path / "config.json", list[Any]()
    fsync, replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    def swap(*names: Any) -> None:
        replace(*names)
        done.append("replaced")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", swap)
    run_folder.write_json(path, {"a": 1})
    assert done == [".config.json.new", "replaced", tmp_path.name]


@pytest.mark.parametrize(
    "name",
    marks.some(
        ["metrics.jsonl", "config.json", "checkpoints", "checkpoints/.unsaved", ".lock"], fast={"config.json", ".lock"}
    ),
)
def test_what_is_in_the_way_of_a_run_is_named_before_it_trains(
    name: str, tmp_path: pathlib.Path, train: conftest.Train
) -> None:
    folder = tmp_path / "run"
    if name == "checkpoints":
        folder.mkdir()
        (folder / name).touch()
    else:
        (folder / name).mkdir(parents=True)
    with pytest.raises((OSError, errors.UsageError)) as caught:
        train(folder=folder, **RUN)
    text = str(caught.value)
    assert str(folder / name) in text and "[Errno" not in text and "\n" not in text
    assert not list(folder.rglob("step_*"))
    delete(folder / name)
    assert train(folder=folder, **RUN).reason == "finished"


@pytest.mark.parametrize("free_bytes", marks.some([0, 4096, 8192], fast={"4096"}))
def test_a_start_on_a_full_disk_names_the_file(free_bytes: int, tmp_path: pathlib.Path, train: conftest.Train) -> None:
    with checkpoints.small_disk(tmp_path / "disk", 1) as disk:
        filler, folder = disk / "filler", disk / "run"
        folder.mkdir()
        with contextlib.suppress(OSError):
            filler.write_bytes(bytes(2**21))
        os.truncate(filler, filler.stat().st_size - free_bytes)
        with pytest.raises((OSError, errors.UsageError)) as caught:
            train(folder=folder, **RUN)
        text = str(caught.value)
        assert str(folder / "") in text and os.strerror(errno.ENOSPC) in text and "[Errno" not in text
