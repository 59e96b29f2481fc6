"""The event log: what is written is read, a resume cuts it, and a free run repeats by it bit for bit."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import conftest
import marks
import pytest
from fakes import written_runs

from jaxrl_dist.parallel.async_gradient import server
from jaxrl_dist.runs import checkpoint, events, folder, metrics
from jaxrl_dist.training import event_replay

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOGS = (events.FILE_NAME, metrics.FILE_NAME)
SETTINGS = {"layout": "async_gradient", "layout.num_workers": 4, "layout.schedule": "free", "evaluation.episodes": 2}


OWN = {
    "ppo": {"learner.epochs": 1, "learner.minibatches": 1},
    "dqn": {"replay.samples_per_insert": 1.0, "replay.batch_size": 8},
}


@pytest.fixture
def train(train: conftest.Train) -> conftest.Train:
    return lambda system, **settings: train(system, **{**SETTINGS, **OWN[system], **settings})


def test_what_is_written_is_read(tmp_path: pathlib.Path) -> None:
    flags = [False, True, False, False, True, False]
    events.append(tmp_path, events.encode(3, 70_000, flags) + events.encode(65_535, 0, [True]))
    events.append(tmp_path, b"")
    assert events.read(tmp_path) == [events.Event(3, 65_535, 0b10010), events.Event(65_535, 0, 1)]
    assert (tmp_path / events.FILE_NAME).stat().st_size == 10
    events.append(tmp_path, b"\x01")
    assert len(events.read(tmp_path)) == 2
    events.truncate(tmp_path, 1)
    assert events.read(tmp_path) == [events.Event(3, 65_535, 0b10010)]
    events.truncate(tmp_path, 1)
    assert len(events.read(tmp_path)) == 1


def test_a_log_that_is_too_short_is_told_and_later_events_keep_their_place(tmp_path: pathlib.Path) -> None:
    first, later = events.encode(3, 1, [True]), events.encode(2, 0, [True])
    events.append(tmp_path, first + later[:2])
    with pytest.warns(RuntimeWarning, match=r"events\.bin: 2 of the 3 events") as told:
        events.truncate(tmp_path, 3)
    assert len(told) == 1 and "\n" not in str(told[0].message)
    events.append(tmp_path, later)
    lost = events.Event(events.LOST, 0, 0)
    assert events.read(tmp_path) == [events.Event(3, 1, 1), lost, lost, events.Event(2, 0, 1)]
    # It is told once: the place of what was lost is taken.
    events.truncate(tmp_path, 4)


def test_a_log_that_is_gone_is_told_unless_nothing_was_in_it(tmp_path: pathlib.Path) -> None:
    events.truncate(tmp_path, 0)
    assert not list(tmp_path.iterdir())
    with pytest.warns(RuntimeWarning, match="2 of the 2 events"):
        events.truncate(tmp_path, 2)
    assert events.read(tmp_path) == [events.Event(events.LOST, 0, 0)] * 2


def test_events_and_records_are_on_disk_before_the_checkpoint_that_counts_on_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layout without a log is quicker; a callback adds an event to one with each record."""
    fsync, save = os.fsync, checkpoint.save
    on_disk, synced, saved = dict[str, int](), list[str](), list[int]()

    def noted_sync(descriptor: int) -> None:
        fsync(descriptor)
        path = pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append(path.name)
        on_disk[path.name] = path.stat().st_size

    def checked_save(folder: Any, name: Any, *rest: Any) -> Any:
        if isinstance(name, int):
            saved.append(name)
            for log in LOGS:
                assert on_disk[log] == (tmp_path / log).stat().st_size > 0
                # A new file lasts once its folder is on disk, too.
                assert tmp_path.name in synced[synced.index(log) :]
        return save(folder, name, *rest)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(checkpoint, "save", checked_save)

    def add_event(record: dict[str, Any]) -> None:
        events.append(tmp_path, events.encode(0, 0, []))

    conftest.train_in(tmp_path, steps=640, callbacks=[add_event], **{"checkpoint.interval_s": 0.0})
    assert len(saved) > 1
    assert [synced.count(log) for log in LOGS] == [len(saved)] * 2


@pytest.mark.slow
def test_a_run_whose_log_is_too_short_goes_on_and_is_not_repeated(
    tmp_path: pathlib.Path, train: conftest.Train
) -> None:
    train("ppo", steps=128)
    path = tmp_path / events.FILE_NAME
    whole = path.stat().st_size // 5
    os.truncate(path, path.stat().st_size - 7)
    words = f"2 of the {whole} events"
    with conftest.refused(words, events.FILE_NAME):
        event_replay.replay_schedule(tmp_path)
    with pytest.warns(RuntimeWarning, match=words):
        assert train("ppo", steps=256).reason == "finished"
    log = events.read(tmp_path)
    assert [event.worker == events.LOST for event in log] == [False] * (whole - 2) + [True] * 2 + [False] * whole
    with conftest.refused(f"2 of the {2 * whole} events", events.FILE_NAME):
        event_replay.replay_schedule(tmp_path)
    path.unlink()
    with conftest.refused(f"{2 * whole} of the {2 * whole} events", events.FILE_NAME):
        event_replay.replay_schedule(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "schedule"),
    [("ppo", "free"), ("ppo", "round_robin"), ("dqn", "free")],
)
def test_a_run_repeats_by_its_log(system: str, schedule: str, tmp_path: pathlib.Path, train: conftest.Train) -> None:
    settings = {"layout.max_gradient_age": 2, "layout.gradients_per_apply": 2, "layout.schedule": schedule}
    train(system, **settings)
    log = events.read(tmp_path)
    assert {event.worker for event in log} == set(range(4))
    record = event_replay.replay_schedule(tmp_path)
    assert record["match"] and record["events"] == len(log) > 20
    # In another order something else comes out.
    other = [event._replace(worker=i % 4) for i, event in enumerate(log)]
    turns = b"".join(events.encode(event.worker, event.age, []) for event in other)
    (tmp_path / events.FILE_NAME).write_bytes(turns)
    if schedule == "free" and [event.worker for event in other] != [event.worker for event in log]:
        try:
            assert not event_replay.replay_schedule(tmp_path)["match"]
        except ValueError as error:
            assert "was not at work" in str(error)


@pytest.mark.slow
def test_a_run_from_given_parameters_repeats_up_to_its_checkpoint(
    tmp_path: pathlib.Path, train: conftest.Train
) -> None:
    train("ppo", folder="before", steps=640)
    train("ppo", folder="after", steps=640, init_from=str(tmp_path / "before"))
    whole = len(events.read(tmp_path / "after"))
    # As a run leaves it that was killed after its last checkpoint.
    events.append(tmp_path / "after", events.encode(0, 3, [True]) * 5)
    record = event_replay.replay_schedule(tmp_path / "after")
    assert record["match"] and record["events"] == whole


@pytest.mark.slow
def test_a_resumed_run_repeats_too(tmp_path: pathlib.Path, train: conftest.Train) -> None:
    """Its step size falls towards another end since."""
    train("ppo", steps=640)
    first = (tmp_path / events.FILE_NAME).read_bytes()
    train("ppo", steps=1280)
    assert (tmp_path / events.FILE_NAME).read_bytes().startswith(first)
    command = [sys.executable, str(ROOT / "scripts" / "replay_schedule.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["match"]


@pytest.mark.slow
def test_a_run_that_was_resumed_without_its_replay_repeats(tmp_path: pathlib.Path, train: conftest.Train) -> None:
    settings = {"checkpoint.replay": False, "agent.epsilon_end": 0.5}
    for steps in (640, 1280, 1600):
        train("dqn", steps=steps, **settings)
    record = event_replay.replay_schedule(tmp_path)
    assert record["match"] and record["events"] == len(events.read(tmp_path)) == 1600 // 8


@pytest.mark.slow
def test_a_run_that_was_rolled_back_goes_on_and_repeats(tmp_path: pathlib.Path, train: conftest.Train) -> None:
    def rollback(*arguments: str) -> Any:
        command = [sys.executable, str(ROOT / "scripts" / "rollback.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    settings = {"learner.anneal": False, "layout.kept_versions": 3, "layout.kept_every": 2}
    train("ppo", steps=640, **settings)
    refused = rollback(str(tmp_path), "7")
    assert refused.returncode == 2 and "version 7 is not kept; valid: 16, 18, 20" in refused.stderr
    done = rollback(str(tmp_path), "16")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["updates_before"], record["updates"]) == (20, 16)
    assert event_replay.replay_schedule(tmp_path)["match"]
    train("ppo", steps=1280, **settings)
    log = events.read(tmp_path)
    assert [event.age for event in log if event.worker == events.ROLLBACK] == [0]
    record = event_replay.replay_schedule(tmp_path)
    assert record["match"] and record["events"] == len(log)


APPLIED, NOT_FINITE = 0b11000, 0b100
BROKEN = {
    "learner.learning_rate": 1e38,
    "learner.anneal": False,
    "layout.num_workers": 2,
    "layout.kept_versions": 2,
    "layout.schedule": "round_robin",
}


@pytest.mark.slow
def test_a_run_that_ended_with_broken_gradients_repeats_to_that_end(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], train: conftest.Train
) -> None:
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="gradients in a row were not finite"):
            train("ppo", steps=12_800, **BROKEN)
    assert written_runs.script("scripts/replay_schedule.py")([str(tmp_path)]) == 0
    record, log = json.loads(capsys.readouterr().out), events.read(tmp_path)
    assert record["match"] and record["events"] == len(log)
    # Two updates break the parameters. Ten broken gradients of each worker take the server back to the first one, ten
    # more end the first session, and one ends the session that goes on from there.
    assert [event.flags for event in log] == [APPLIED] * 2 + [NOT_FINITE] * 41


@pytest.mark.slow
def test_a_repetition_whose_gradients_break_before_the_log_ends_is_one_line(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    train: conftest.Train,
) -> None:
    with pytest.raises(FloatingPointError):
        train("ppo", steps=12_800, **BROKEN)
    monkeypatch.setattr(server, "_BROKEN_IN_A_ROW", 5)
    assert written_runs.script("scripts/replay_schedule.py")([str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and not said.out
    # Five of each worker, twice.
    assert ": event 21: the repetition ends here" in said.err and "10 gradients in a row were not finite" in said.err


@pytest.mark.parametrize(("arguments", "message"), [([], "RUN UPDATES"), (["here", "1"], "here")])
def test_a_wrong_rollback_is_one_line(arguments: list[str], message: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "rollback.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("script", marks.some(["rollback.py", "replay_schedule.py"], slow={"rollback.py"}))
def test_corrupt_checkpoints_and_folders_that_are_in_use_are_one_line(
    script: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], train: conftest.Train
) -> None:
    train("ppo", steps=128)
    call, arguments = written_runs.script(f"scripts/{script}"), [str(tmp_path), *["0"] * (script == "rollback.py")]
    with folder.lock(tmp_path):
        assert call(arguments) == 2
    for path in (tmp_path / "checkpoints").rglob("*"):
        if path.is_file() and path.stat().st_size:
            path.write_bytes(b"")
    assert call(arguments) in (1, 2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith(f"{script}: ") for line in lines)
    assert "is in use" in lines[0] or "another" in lines[0]


@pytest.mark.slow
def test_runs_without_a_log_are_refused(tmp_path: pathlib.Path) -> None:
    conftest.train_in(tmp_path, steps=128, **{"evaluation.episodes": 2})
    with conftest.refused(str(tmp_path), "anakin"):
        event_replay.replay_schedule(tmp_path)
