"""Checkpoints under every kind of damage, killed or out of space in a save, and with code where data should be."""

import errno
import functools
import gc
import json
import logging
import os
import pathlib
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fakes import checkpoints

from jaxrl_dist import errors
from jaxrl_dist.runs import checkpoint
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.runs.checkpoint import arrays, manifest


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """One checkpoint with packed and large leaves, to be copied and damaged."""
    tree = {**checkpoints.small(3), "large": np.random.default_rng(0).integers(0, 255, 1_100_000).astype(np.uint8)}
    return checkpoint.save(tmp_path_factory.mktemp("saved"), 3, tree, checkpoints.META)


def damages(path: pathlib.Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields ways to damage a checkpoint: in each file some bits, its end, more, and all of it; and what is added."""
    rng = random.Random(0)
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        name, whole = str(file.relative_to(path)), file.read_bytes()
        positions = {0, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(6))}
        if file.name == "manifest.json":
            positions |= set(range(0, len(whole), 7))
        for position in sorted(positions):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << rng.randrange(8)
            yield f"{name}: bit of byte {position}", functools.partial(file.write_bytes, bytes(flipped))
        for size in sorted({0, len(whole) // 2, len(whole) - 1}):
            yield f"{name}: {size} bytes left", functools.partial(file.write_bytes, whole[:size])
        yield f"{name}: a byte more", functools.partial(file.write_bytes, whole + b" ")
        yield f"{name}: deleted", file.unlink
        yield f"{name}: zeros", functools.partial(file.write_bytes, bytes(len(whole)))
    yield "an extra file", (path / "arrays" / "extra").touch
    yield "an extra link", functools.partial((path / "arrays" / "link").symlink_to, "/etc/hostname")
    yield "all gone", functools.partial(shutil.rmtree, path)


def test_every_damage_is_found(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / saved.name
    shutil.copytree(saved, path)
    checkpoint.verify(path)
    before = checkpoints.contents(path)
    missed, count = [], 0
    for name, damage in list(damages(path)):
        damage()
        count += 1
        try:
            checkpoint.verify(path)
            missed.append(name)
        except errors.CheckpointError as error:
            assert "\n" not in str(error) and str(path) in str(error)
        for extra in ("extra", "link"):
            (path / "arrays" / extra).unlink(missing_ok=True)
        for file, whole in before.items():
            if name.startswith((f"{file}:", "all gone")):
                (path / file).parent.mkdir(parents=True, exist_ok=True)
                (path / file).write_bytes(whole)
    checkpoint.verify(path)
    assert count > 150
    assert missed == []


def test_a_link_to_the_right_bytes_is_refused(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / saved.name
    shutil.copytree(saved, path)
    (path / "contents.json").unlink()
    (path / "contents.json").symlink_to(saved / "contents.json")
    with pytest.raises(errors.CheckpointError, match=r"contents\.json\b"):
        checkpoint.verify(path)


def flip(path: pathlib.Path) -> None:
    """Flips one bit of the largest data file."""
    file = max((path / "arrays").rglob("*"), key=lambda file: file.stat().st_size if file.is_file() else 0)
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)


def test_walk_back_warns_in_one_line_and_sets_the_corrupt_ones_aside(tmp_path: pathlib.Path) -> None:
    for step in (100, 200, 300):
        checkpoint.save(tmp_path, step, checkpoints.small(step), {"step": step})
    for step in (200, 300):
        flip(tmp_path / f"step_{step:012d}")
    lines: list[str] = []
    found = checkpoint.restore_latest(tmp_path, checkpoints.small(0), lines.append)
    assert found is not None and found[1] == {"step": 100}
    checkpoints.assert_same(found[0], checkpoints.small(100))
    assert ["step_000000000300" in lines[0], "step_000000000200" in lines[1], len(lines)] == [True, True, 2]
    assert not any("\n" in line for line in lines)
    # The next saves must not drop the whole one in favour of those.
    checkpoint.save(tmp_path, 250, checkpoints.small(250), {})
    checkpoint.prune(tmp_path, 3)
    assert [path.name[-3:] for path in checkpoint.latest(tmp_path)] == ["250", "100"]
    assert len(list(tmp_path.glob("corrupt_step_*"))) == 2
    checkpoint.prune(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["step_000000000100", "step_000000000250"]
    assert checkpoint.restore_latest(tmp_path, checkpoints.small(0), checkpoints.no_warning) is not None


def test_all_bad_is_an_error_and_changes_nothing(tmp_path: pathlib.Path) -> None:
    checkpoint.save(tmp_path, "best", checkpoints.small(5), {})
    for step in (100, 200):
        flip(checkpoint.save(tmp_path, step, checkpoints.small(step), {}))
    before, lines = checkpoints.contents(tmp_path), list[str]()
    with pytest.raises(errors.CheckpointError, match=r"\b2 checkpoints"):
        checkpoint.restore_latest(tmp_path, checkpoints.small(0), lines.append)
    assert checkpoints.contents(tmp_path) == before
    assert len(lines) == 2


@pytest.mark.parametrize("killed_at", range(1, 5))
def test_a_replacement_cut_short_leaves_a_whole_best(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    folder = tmp_path / "run"
    checkpoint.save(folder, "best", checkpoints.small(1), {})
    calls = 0
    rename, rmtree = pathlib.Path.rename, shutil.rmtree

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if ".trash" not in str(args[0]) or function is rename or args[0].exists():
                calls += 1
            if calls >= killed_at:
                # As kill -9 would: nothing that comes after has an effect.
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return call

    # Steps of a replacement: the old one aside, the new one in, the old one renamed, the old one deleted.
    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "rename", dying(rename))
        patch.setattr(shutil, "rmtree", dying(rmtree))
        patch.setattr(arrays, "write_arrays", lambda path, *rest: path.mkdir())
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(folder, "best", checkpoints.small(1), {"new": True})
    found = checkpoint.find(folder, "best")
    assert found is not None
    checkpoint.verify(found)
    checkpoint.clean(folder)
    assert os.listdir(folder) == ["best"]
    checkpoint.verify(folder / "best")
    is_new = json.loads((folder / "best" / "contents.json").read_text())["meta"] == {"new": True}
    assert is_new == (killed_at >= 2)


@pytest.mark.parametrize("saves_per_read", [1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_a_slot_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: pathlib.Path, fails: bool, saves_per_read: int
) -> None:
    checkpoint.save(tmp_path, "best", checkpoints.small(0), {"save": 0})
    saves = 0

    def read(path: pathlib.Path) -> Any:
        nonlocal saves
        began = checkpoint.read_meta(path)
        if saves < 2 * saves_per_read:
            for _ in range(saves_per_read):
                saves += 1
                checkpoint.save(tmp_path, "best", checkpoints.small(saves), {"save": saves})
            if fails:
                raise FileNotFoundError(path)
        return began

    # After the first of several saves another folder may have the number of the one that is read.
    assert checkpoint.read_slot(tmp_path, "best", read) == {"save": saves} and saves == 2 * saves_per_read
    assert checkpoint.read_slot(tmp_path, "latest", read) is None


def test_a_slot_that_goes_before_it_is_read_is_looked_for_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, "best", checkpoints.small(0), {"save": 0})
    found = iter((tmp_path / ".old-best", tmp_path / "best"))
    monkeypatch.setattr(checkpoint, "find", lambda folder, name: next(found))
    assert checkpoint.read_slot(tmp_path, "best", checkpoint.read_meta) == {"save": 0}


def test_a_slot_that_is_always_replaced_is_given_up(tmp_path: pathlib.Path) -> None:
    checkpoint.save(tmp_path, "best", checkpoints.small(0), {})
    with pytest.raises(errors.CheckpointError, match="best"):
        checkpoint.read_slot(tmp_path, "best", lambda path: checkpoint.save(tmp_path, "best", checkpoints.small(0), {}))


def test_a_slot_that_stays_and_is_corrupt_is_read_once(tmp_path: pathlib.Path) -> None:
    flip(checkpoint.save(tmp_path, "best", checkpoints.small(0), {}))
    paths = []

    def read(path: pathlib.Path) -> None:
        paths.append(path)
        checkpoint.verify(path)

    with pytest.raises(errors.CheckpointError, match="other bytes"):
        checkpoint.read_slot(tmp_path, "best", read)
    assert paths == [tmp_path / "best"]


def moved(path: pathlib.Path, elsewhere: pathlib.Path) -> pathlib.Path:
    """Moves a checkpoint, such as to another disk, and leaves a link in its place; returns where it went."""
    elsewhere.mkdir(exist_ok=True)
    target = path.rename(elsewhere / path.name)
    path.symlink_to(target)
    return target


def test_a_step_behind_a_link_is_read_pruned_and_replaced_but_never_deleted(tmp_path: pathlib.Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for name in (1, 2, 3, "best"):
        checkpoint.save(folder, name, checkpoints.small(1), {"name": name})
    targets = [moved(path, elsewhere) for path in [*checkpoint.latest(folder), folder / "best"]]
    before = checkpoints.contents(elsewhere)
    checkpoint.clean(folder)
    found = checkpoint.restore_latest(folder, checkpoints.small(0), checkpoints.no_warning)
    assert found is not None and found[1] == {"name": 3}
    checkpoint.save(folder, 3, checkpoints.small(2), {"name": "new"})
    checkpoint.save(folder, "best", checkpoints.small(2), {"name": "new"})
    assert not (folder / "best").is_symlink() and checkpoint.read_meta(folder / "best") == {"name": "new"}
    checkpoint.prune(folder, 1)
    assert sorted(os.listdir(folder)) == ["best", "step_000000000003"]
    assert checkpoints.contents(elsewhere) == before and all(target.is_dir() for target in targets)


def test_a_link_to_nothing_is_passed_over_with_a_warning(tmp_path: pathlib.Path) -> None:
    folder, lines = tmp_path / "run", list[str]()
    for step in (1, 2):
        checkpoint.save(folder, step, checkpoints.small(1), {"step": step})
    shutil.rmtree(moved(checkpoint.latest(folder)[0], tmp_path / "elsewhere"))
    found = checkpoint.restore_latest(folder, checkpoints.small(0), lines.append)
    assert found is not None and found[1] == {"step": 1}
    assert len(lines) == 1 and "step_000000000002" in lines[0]
    checkpoint.prune(folder, 1)
    assert os.listdir(folder) == ["step_000000000001"]


STRAY = ("step_999999999999", ".new-step_000000000009", ".old-step_000000000009", ".trash-step_000000000009", "notes")


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_what_else_lies_beside_checkpoints_does_no_harm(tmp_path: pathlib.Path, kind: str) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    checkpoint.save(other, 1, checkpoints.small(7), {})
    before = checkpoints.contents(other)
    checkpoint.save(folder, 1, checkpoints.small(1), {"step": 1})
    # A link that has the name of a step is one.
    for name in STRAY if kind == "file" else STRAY[1:]:
        if kind == "file":
            (folder / name).write_text("stray")
        else:
            (folder / name).symlink_to(other if kind == "link" else "nowhere")
    checkpoint.clean(folder)
    for step in (2, 9):
        checkpoint.save(folder, step, checkpoints.small(step), {"step": step})
        checkpoint.prune(folder, 1)
    found = checkpoint.restore_latest(folder, checkpoints.small(0), checkpoints.no_warning)
    assert found is not None and found[1] == {"step": 9}
    assert {"notes", "step_000000000009"} <= set(os.listdir(folder))
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
    assert checkpoints.contents(other) == before


def test_files_that_systems_hide_in_a_checkpoint_are_none_of_it(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / saved.name
    shutil.copytree(saved, path)
    (path / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (path / "arrays" / "d" / ".nfs0001").touch()
    (path / ".AppleDouble").mkdir()
    (path / ".AppleDouble" / "contents.json").touch()
    checkpoint.verify(path)
    template = {**checkpoints.small(3), "large": np.zeros(1_100_000, np.uint8)}
    assert checkpoint.restore(path, template)[1] == checkpoints.META


def test_a_folder_that_a_reader_keeps_from_going_ends_no_save(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system a file that is open leaves a hidden one behind, and its folder stays."""
    rmdir = os.rmdir

    def busy(path: Any, **place: Any) -> None:
        if str(path).endswith("arrays"):
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        rmdir(path, **place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", busy)
        for step in range(1, 5):
            checkpoint.save(tmp_path, step, checkpoints.small(step), {"step": step})
            checkpoint.save(tmp_path, "latest", checkpoints.small(step), {"step": step})
            checkpoint.prune(tmp_path, 1)
        assert checkpoint.read_meta(tmp_path / "latest") == {"step": 4}
    checkpoint.clean(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step_000000000004"]


KILLED_CODE = """
    import itertools, os, pathlib, signal, sys, time
    import numpy as np, orbax.checkpoint
    from jaxrl_dist.runs import checkpoint
    from jaxrl_dist.runs.checkpoint import arrays, manifest

    def work(folder, pipe):
        rng = np.random.default_rng(0)
        noise = rng.integers(0, 255, 2_000_000).astype(np.uint8)
        for step in itertools.count(1):
            tree = {"step": np.full((3,), step, np.int32), "large": noise + np.uint8(step % 100)}
            checkpoint.save(folder, step, tree, {"step": step})
            checkpoint.save(folder, "best", tree, {"step": step})
            checkpoint.prune(folder, 2)
            os.write(pipe, b"%d\\n" % step)

    for index, delay in enumerate(map(float, sys.argv[2:])):
        folder = pathlib.Path(sys.argv[1]) / str(index)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                work(folder, writer)
            finally:
                os._exit(1)
        os.close(writer)
        lines = os.read(reader, 100)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9
        while more := os.read(reader, 100):
            lines += more
        print(int(lines.split()[-1]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_time_a_whole_checkpoint_is_left(tmp_path: pathlib.Path) -> None:
    rng = random.Random(0)
    result = checkpoints.run(KILLED_CODE, tmp_path, *(rng.uniform(0.0, 1.5) for _ in range(5)))
    finished = [int(line) for line in result.stdout.split()]
    assert len(finished) == 5, result.stderr
    template = {"step": np.zeros((3,), np.int32), "large": np.zeros(2_000_000, np.uint8)}
    for index, step in enumerate(finished):
        folder = tmp_path / str(index)
        found = checkpoint.find(folder, "best")
        assert found is not None
        checkpoint.verify(found)
        checkpoint.clean(folder)
        assert all(name == "best" or name.startswith("step_") for name in os.listdir(folder))
        restored = checkpoint.restore_latest(folder, template, checkpoints.no_warning)
        assert restored is not None
        (tree, meta), best = restored, checkpoint.restore(folder / "best", template)
        assert step <= meta["step"] <= step + 1 and step <= best[1]["step"] <= step + 1
        assert tree["step"].tolist() == [meta["step"]] * 3 and best[0]["step"].tolist() == [best[1]["step"]] * 3


@pytest.fixture
def tiny_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 3 MiB."""
    with checkpoints.small_disk(tmp_path / "disk", 3) as folder:
        yield folder


def test_a_full_disk_is_loud_and_older_checkpoints_stay_whole(
    tiny_disk: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, 4_000_000).astype(np.uint8)
    checkpoint.save(tiny_disk, 1, checkpoints.small(1), {})
    checkpoint.save(tiny_disk, "best", checkpoints.small(1), {})
    before = checkpoints.contents(tiny_disk)
    for name in (2, "best"):
        for tree in ({"large": noise}, {str(index): part for index, part in enumerate(np.split(noise, 100))}):
            with pytest.raises(errors.CheckpointError, match=f": {os.strerror(errno.ENOSPC)}"):
                checkpoint.save(tiny_disk, name, tree, {})
            assert checkpoints.contents(tiny_disk) == before
            assert sorted(os.listdir(tiny_disk)) == ["best", "step_000000000001"]
    # The error says it; Orbax would log the same with a traceback of each of its threads. Of a write that fails while
    # the loop of its tasks closes, asyncio may say so, at a time of its own.
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and record.name != "asyncio"]
    checkpoint.save(tiny_disk, 2, checkpoints.small(2), {})


@pytest.mark.parametrize(
    ("module", "fails"),
    [(arrays, "write_arrays"), (manifest, "encode"), (manifest, "sync"), (run_folder, "sync_entry")],
)
def test_a_failing_write_leaves_the_older_ones(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, module: Any, fails: str
) -> None:
    checkpoint.save(tmp_path, 1, checkpoints.small(1), {})
    before = checkpoints.contents(tmp_path)

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, fails, fail)
        with pytest.raises(errors.CheckpointError, match=f": {os.strerror(errno.ENOSPC)}"):
            checkpoint.save(tmp_path, 2, checkpoints.small(2), {})
    assert checkpoints.contents(tmp_path) == before


def test_a_read_only_folder_is_loud(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.CheckpointError, match=os.strerror(errno.ENOTDIR)):
        checkpoint.save(tmp_path / "file" / "folder", 1, checkpoints.small(1), {})


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.target,)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_pickle_in_any_file_never_runs(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    trace, path = tmp_path / "fired", tmp_path / saved.name
    bomb = pickle.dumps(Bomb(str(trace)))
    pickle.loads(bomb)
    trace.rmdir()
    template = {**checkpoints.small(3), "large": np.zeros(1_100_000, np.uint8)}
    for name in checkpoints.contents(saved):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(saved, path)
        (path / name).write_bytes(bomb)
        if name != "manifest.json":
            # An attacker writes a manifest that fits, too.
            (path / "manifest.json").write_bytes(manifest.encode(manifest.digests(path)))
        # Some files of Orbax are not needed for reading; what counts is that the bomb is not run.
        try:
            restored, _ = checkpoint.restore(path, template)
            checkpoints.assert_same(restored, {**template, **checkpoints.small(3), "large": restored["large"]})
        except errors.CheckpointError:
            pass
        assert not trace.exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"leaves": 3, "meta": {}}', '{"leaves": [[1, 2]], "meta": {}}', "[" * 100_000, '{"leaves": []}'],
)
def test_contents_of_another_form_are_refused(saved: pathlib.Path, tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / saved.name
    shutil.copytree(saved, path)
    (path / "contents.json").write_text(text)
    (path / "manifest.json").write_bytes(manifest.encode(manifest.digests(path)))
    # What is nested too deeply is read to the bottom of the stack, where no finaliser of another test may run.
    gc.disable()
    try:
        with pytest.raises(errors.CheckpointError, match=r"contents\.json\b"):
            checkpoint.restore(path, checkpoints.small(0))
    finally:
        gc.enable()
