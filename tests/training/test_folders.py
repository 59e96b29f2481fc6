"""Run folders that lost something, were moved away, or hold what is in the way: nothing from zero, nobody twice."""

import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import conftest
import jax
import pytest

from jaxrl_dist.runs import checkpoint, metrics
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.training import assemble, resume, runner

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


@pytest.mark.parametrize("lost", LOST)
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
