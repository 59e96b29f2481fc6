"""Strangers' files beside the arrays of a checkpoint, and event logs: refused in one line, digests or not."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from typing import Any

import conftest
import jax
import numpy as np
import pytest

import jaxrl_dist
from jaxrl_dist import errors
from jaxrl_dist.runs import checkpoint, events, folder
from jaxrl_dist.runs.checkpoint import manifest
from jaxrl_dist.training import assemble, event_replay, policy, records, resume

SETTINGS = {
    **{"system": "a3c", "env": "toy:walk", "steps": 80, "layout.num_workers": 2, "layout.schedule": "free"},
    **{"layout.kept_versions": 2, "evaluation.episodes": 2},
}
STEP, EVENTS = 40, 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An asynchronous run with a step, parameters, a failure and a log, as one that has just begun would have them."""
    run = tmp_path_factory.mktemp("whole")
    settings, environment = assemble.resolve(SETTINGS)
    parts = assemble.assemble(settings, environment, jax.devices()[:1])
    state = parts.init(assemble.seed_keys(settings))
    saved = resume.snapshot(parts, state)._replace(events=np.asarray(EVENTS))
    meta = resume.meta_of(parts, records.Progress(iteration=4, total=8, sessions=[(0, 8)]))
    folder.write_json(run / "config.json", settings.as_json())
    checkpoint.save(run / "checkpoints", STEP, saved, meta)
    checkpoint.save(run / "checkpoints", "latest", state.learner.params, {"env_steps": STEP})
    checkpoint.save(run / "failure", "state", {}, {"iteration": 0, "total": 1, "num_devices": 1})
    events.append(run, events.encode(0, 0, []))
    parts.layout.close()
    return run


@pytest.fixture
def run(whole: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of it to damage."""
    return pathlib.Path(shutil.copytree(whole, tmp_path / "run"))


class Waited(BaseException):
    """The time is over; no error that a reader may take for one of the file."""


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """Interrupts what waits for ever."""

    def ring(*_: object) -> None:
        raise Waited

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(int(conftest.SOON_S))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def change(path: pathlib.Path, changed: Callable[[Any], Any]) -> None:
    """Changes the meta of a checkpoint, digests included."""
    contents = json.loads((path / "contents.json").read_text())
    contents["meta"] = changed(contents["meta"])
    (path / "contents.json").write_text(json.dumps(contents))
    (path / manifest.NAME).write_bytes(manifest.encode(manifest.digests(path)))


def refused(read: Callable[[], Any]) -> str:
    """Returns the one line of a refusal."""
    with soon(), pytest.raises((errors.UsageError, errors.CheckpointError)) as raised:
        read()
    line = errors.as_typed(raised.value)
    assert line.isprintable()
    return line


READERS: list[Callable[[pathlib.Path], Any]] = [
    event_replay.replay_schedule,
    lambda run: event_replay.roll_back(run, 0),
]


OF_STATE: list[dict[str, Any]] = [
    *({"sessions": value} for value in (None, [], [[5, 7]], [[0, "x"]], [["a", 7]], [[0, -5]], [[0]], [[0, 10**30]])),
    *({"iteration": value} for value in ("x", -1, 10**30, 1.5, None, True)),
    *({"pending": value} for value in (None, {"a": 1}, [], {"sums": 1, "seconds": 0, "iterations": 0})),
    *({"wall_s": "x"}, {"evaluated": -2}, {"layout_sums": [1]}, {"best_return": "x"}, {"total": []}),
]


@pytest.mark.parametrize("values", OF_STATE, ids=str)
def test_the_meta_of_a_state_is_checked(values: dict[str, Any], run: pathlib.Path) -> None:
    change(run / "checkpoints" / f"step_{STEP:012}", lambda meta: {**meta, **values})
    for read in READERS:
        assert next(iter(values)) in refused(lambda read=read: read(run))  # type: ignore[misc]


@pytest.mark.parametrize("meta", [None, [], {}, {"config": None}, {"config": {}}], ids=str)
def test_a_state_without_its_meta_is_refused(meta: Any, run: pathlib.Path) -> None:
    change(run / "checkpoints" / f"step_{STEP:012}", lambda _: meta)
    for read in READERS:
        refused(lambda read=read: read(run))  # type: ignore[misc]


@pytest.mark.parametrize("meta", [None, [], {}, {"env_steps": "x"}, {"env_steps": -1}, {"env_steps": True}], ids=str)
def test_the_meta_of_parameters_is_checked(meta: Any, run: pathlib.Path) -> None:
    change(run / "checkpoints" / "latest", lambda _: meta)
    assert "latest" in refused(lambda: policy.load(run))


@pytest.mark.parametrize(
    "meta",
    [None, {}, {"iteration": 0, "total": 1, "num_devices": "1"}, {"iteration": -1, "total": 1, "num_devices": 1}],
)
def test_the_meta_of_a_failure_is_checked(meta: Any, run: pathlib.Path) -> None:
    change(run / "failure" / "state", lambda _: meta)
    assert "failure" in refused(lambda: jaxrl_dist.replay_failure(run))


@pytest.mark.parametrize("name", ["manifest.json", "contents.json"])
@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_plain_file_in_a_checkpoint_is_never_waited_for(
    name: str, put: Callable[[pathlib.Path], None], run: pathlib.Path
) -> None:
    (run / "checkpoints" / "latest" / name).unlink()
    put(run / "checkpoints" / "latest" / name)
    assert name in refused(lambda: policy.load(run))


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_log_that_is_no_plain_file_is_never_waited_for(
    put: Callable[[pathlib.Path], None], run: pathlib.Path
) -> None:
    (run / events.FILE_NAME).unlink()
    put(run / events.FILE_NAME)
    for read in (events.read, lambda run: events.truncate(run, 0)):
        assert events.FILE_NAME in refused(lambda read=read: read(run))  # type: ignore[misc]


@pytest.mark.parametrize("event", [(60_000, 0, 0), (events.ROLLBACK, 60_000, 0)])
def test_a_log_of_another_run_is_refused(event: tuple[int, int, int], run: pathlib.Path) -> None:
    (run / events.FILE_NAME).write_bytes(struct.pack("<HHB", *event) * EVENTS)
    assert "another run" in refused(lambda: event_replay.replay_schedule(run))


def test_a_log_that_is_too_short_stops_no_run_and_is_not_repeated(run: pathlib.Path) -> None:
    settings, environment = assemble.resolve(SETTINGS)
    parts = assemble.assemble(settings, environment, jax.devices()[:1])
    words = f"{EVENTS - 1} of the {EVENTS} events"
    assert words in refused(lambda: event_replay.replay_schedule(run))
    with pytest.warns(RuntimeWarning, match=words):
        assert resume.start(parts, run).resumed_from
    parts.layout.close()
    assert [event.worker for event in events.read(run)] == [0] + [events.LOST] * (EVENTS - 1)
    assert words in refused(lambda: event_replay.replay_schedule(run))
    (run / events.FILE_NAME).unlink()
    assert f"{EVENTS} of the {EVENTS} events" in refused(lambda: event_replay.replay_schedule(run))


def test_nothing_outside_of_the_folder_is_written_through_a_link(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious" * 9)
    for name in (folder.LOCK_NAME, events.FILE_NAME, ".config.json.new"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(victim)
    with pytest.raises(OSError, match=folder.LOCK_NAME), folder.lock(run):
        pass
    assert events.FILE_NAME in refused(lambda: events.truncate(run, 1))
    folder.write_json(run / "config.json", {})
    assert victim.read_text() == "precious" * 9 and not (run / "config.json").is_symlink()
    (run / events.FILE_NAME).unlink()
    (run / events.FILE_NAME).symlink_to(tmp_path / "nowhere")
    assert events.FILE_NAME in refused(lambda: events.truncate(run, 1))


def test_a_repetition_that_fails_closes_its_layout(run: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, assemble_run = list[str](), policy.assemble_run

    def assembled(*arguments: Any, **more: Any) -> assemble.Assembly:
        parts = assemble_run(*arguments, **more)
        monkeypatch.setattr(parts.layout, "close", lambda: calls.append("close"))
        return parts

    def fail(*arguments: Any) -> None:
        calls.append("fail")
        raise FloatingPointError

    monkeypatch.setattr(policy, "assemble_run", assembled)
    monkeypatch.setattr(event_replay, "_log_of", lambda folder, count: [])
    monkeypatch.setattr(event_replay, "_repeat", fail)
    with pytest.raises(FloatingPointError):
        event_replay.replay_schedule(run)
    assert calls[-2:] == ["fail", "close"]


def test_a_run_may_have_more_iterations_ahead_than_a_program_counts(run: pathlib.Path) -> None:
    state = run / "checkpoints" / f"step_{STEP:012}"
    change(state, lambda meta: {**meta, "total": 25 * 10**12, "sessions": [[0, 25 * 10**12]]})
    checkpoint.check_meta(state, checkpoint.read_meta(state), records.META)


def test_a_rollback_needs_no_latest_parameters_and_writes_those_of_its_version(run: pathlib.Path) -> None:
    checkpoints, newest = run / "checkpoints", policy.load(run).params
    shutil.rmtree(checkpoints / "latest")
    (run / events.FILE_NAME).write_bytes(events.encode(0, 0, []) * EVENTS)
    done = event_replay.roll_back(run, 0)
    assert done["updates"] == 0 and len(events.read(run)) == EVENTS + 1
    assert checkpoint.read_meta(checkpoints / "latest") == {"env_steps": done["env_steps"]}
    jax.tree.map(np.testing.assert_array_equal, policy.load(run).params, newest)
