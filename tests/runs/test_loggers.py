"""Loggers: what reaches the file, TensorBoard and the terminal, and what happens when the disk is full."""

import io
import json
import math
import os
import pathlib
import re
import resource
import struct
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from jaxrl_dist.runs import display, loggers, metrics
from jaxrl_dist.settings import fields as declared

QUIET = loggers.Config(tensorboard=False, progress=False)
LIVE = loggers.Config(tensorboard=False)


def write(folder: pathlib.Path, *records: dict[str, Any], settings: loggers.Config = QUIET) -> None:
    with loggers.Logger(folder, settings, display=False) as logger:
        for record in records:
            logger.log(record)


def train(env_steps: int, **values: Any) -> dict[str, Any]:
    return {"kind": "train", "env_steps": env_steps, **values}


def events(folder: pathlib.Path) -> Iterator[Any]:
    """Parses TensorBoard's event files: length u64, checksum u32, bytes, checksum u32."""
    from tensorboardX.proto import event_pb2

    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            yield event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def scalars(folder: pathlib.Path) -> dict[tuple[str, int], float]:
    return {(value.tag, event.step): value.simple_value for event in events(folder) for value in event.summary.value}


@pytest.fixture
def small_files() -> Iterator[None]:
    """Makes every file of this process end at 4 kB, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_settings_are_declared_with_literals() -> None:
    fields = {field.name: field for field in declared.of(loggers.Config)}
    assert {name: field.default for name, field in fields.items()} == vars(loggers.Config())
    assert {field.tag for field in fields.values()} == {"tunable"}


def test_every_line_is_on_disk_before_the_next_one(tmp_path: pathlib.Path) -> None:
    with loggers.Logger(tmp_path, QUIET, display=False) as logger:
        for step in range(3):
            logger.log(train(step))
            assert [record["env_steps"] for record in metrics.read(tmp_path)] == list(range(step + 1))


def test_a_logger_that_is_open_already_follows_the_cut(tmp_path: pathlib.Path) -> None:
    metrics.truncate_after(tmp_path, 5)
    assert metrics.read(tmp_path) == []
    with loggers.Logger(tmp_path, QUIET, display=False) as logger:
        for step in (1, 2, 3):
            logger.log(train(step))
        metrics.truncate_after(tmp_path, 1)
        logger.log(train(2))
    assert metrics.read(tmp_path) == [train(1), train(2)]


def test_tensorboard_gets_every_number(tmp_path: pathlib.Path) -> None:
    record = train(
        7, loss=0.5, kind="train", steps_per_second=10, per_seed=[1.0, math.nan, 3.0], note="text", bad=math.inf
    )
    write(tmp_path, record, {"kind": "eval", "env_steps": 9, "eval_return": 2.0}, settings=loggers.Config())
    assert scalars(tmp_path) == {
        ("train/loss", 7): 0.5,
        ("train/steps_per_second", 7): 10.0,
        ("train/per_seed/0", 7): 1.0,
        ("train/per_seed/2", 7): 3.0,
        ("eval/eval_return", 9): 2.0,
    }


def test_tensorboard_forgets_what_a_resume_repeats(tmp_path: pathlib.Path) -> None:
    from tensorboardX.proto import event_pb2

    write(tmp_path, train(10, loss=1.0), train(20, loss=2.0), settings=loggers.Config())
    metrics.truncate_after(tmp_path, 10)
    write(tmp_path, train(20, loss=3.0), settings=loggers.Config())
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    starts = [event.step for event in events(tmp_path) if event.session_log.status == event_pb2.SessionLog.START]
    assert starts == [11]
    # The order of files, as TensorBoard reads them, is that of the sessions.
    assert [event.step for event in events(tmp_path)] == [0, 10, 20, 0, 11, 20]


def test_a_full_disk_warns_once_and_training_goes_on(tmp_path: pathlib.Path, small_files: None) -> None:
    with (
        warnings.catch_warnings(record=True) as caught,
        loggers.Logger(tmp_path, QUIET, display=False) as logger,
    ):
        warnings.simplefilter("always")
        for step in range(100):
            logger.log(train(step, text="x" * 200))
        metrics.truncate_after(tmp_path, 2)
        logger.log(train(100))
    assert [str(item.message).split(" (")[0] for item in caught] == ["metrics.jsonl failed"]
    assert "training goes on" in str(caught[0].message)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["env_steps"] for line in lines] == [0, 1, 2, 100]


def test_records_that_the_disk_may_not_hold_are_told_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError("the disk is broken")

    monkeypatch.setattr(os, "fsync", fail)
    told = pytest.warns(RuntimeWarning, match=r"^metrics\.jsonl failed \(OSError: the disk is broken\); training goes")
    with loggers.Logger(tmp_path, QUIET, display=False) as logger:
        logger.sync()
        logger.log(train(1))
        with told as caught:
            logger.sync()
            logger.sync()
    assert len(caught) == 1 and metrics.read(tmp_path) == [train(1)]


def test_a_half_written_line_is_taken_back(tmp_path: pathlib.Path, small_files: None) -> None:
    with pytest.warns(RuntimeWarning, match=r"^metrics\.jsonl "), loggers.Logger(tmp_path, QUIET) as logger:
        logger.log(train(0, text="x" * 3000))
        logger.log(train(1, text="x" * 3000))
        logger.log(train(2))
    assert [record["env_steps"] for record in metrics.read(tmp_path)] == [0, 2]


def test_tensorboard_on_a_full_disk_neither_stops_nor_hangs(tmp_path: pathlib.Path, small_files: None) -> None:
    settings = loggers.Config(progress=False)
    record = {f"loss_{i}": 1.0 for i in range(40)}
    with (
        warnings.catch_warnings(record=True) as caught,
        loggers.Logger(tmp_path, settings, display=False) as logger,
    ):
        warnings.simplefilter("always")
        for step in range(50):
            logger.log(train(step, **record))
    assert sorted(str(item.message).split(" failed")[0] for item in caught) == ["TensorBoard events", "metrics.jsonl"]


def test_a_missing_tensorboard_warns_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "tensorboardX.proto", None)
    with pytest.warns(RuntimeWarning, match="TensorBoard .*ModuleNotFoundError") as caught:
        write(tmp_path, train(0), train(1), settings=loggers.Config())
    assert len(caught) == 1
    assert metrics.read(tmp_path) == [train(0), train(1)]


def test_a_folder_that_is_gone_does_not_stop_training(tmp_path: pathlib.Path) -> None:
    with pytest.warns(RuntimeWarning) as caught:
        write(tmp_path / "gone", train(0), train(1))
    assert len(caught) == 1


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Cell(_Terminal):
    """The output of a notebook's cell, whose kernel calls it a terminal."""

    __module__ = "ipykernel.iostream"


class _ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_log_file_gets_a_plain_line_every_few_seconds(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    settings = loggers.Config(tensorboard=False)
    with loggers.Logger(tmp_path, settings, title="dqn", total_steps=40, stream=stream) as logger:
        logger.say("compiled in 2.0 s")
        for step in range(1, 41):
            now[0] += 0.25
            logger.log(train(step))
    steps = [1, 21, 40]
    assert stream.getvalue().splitlines() == ["compiled in 2.0 s", *(f"dqn · {step}/40 steps" for step in steps)]


def test_a_terminal_gets_one_line_in_place(tmp_path: pathlib.Path) -> None:
    stream = _Terminal()
    with loggers.Logger(tmp_path, loggers.Config(tensorboard=False), total_steps=9, stream=stream) as logger:
        logger.log(train(1))
        logger.say("a line [with brackets]")
        logger.show({"env_steps": 2})
        logger.log(train(3))
    text = stream.getvalue()
    assert "a line [with brackets]\n" in text.replace("\r", "").replace("\x1b[2K", "")
    assert "1/9 steps" in text and "2/9 steps" in text and text.rstrip("\x1b[?25h\n").endswith("3/9 steps")
    assert [record["env_steps"] for record in metrics.read(tmp_path)] == [1, 3]


@pytest.mark.parametrize(("columns", "has_bar"), [(90, True), (89, False)])
def test_a_wide_terminal_has_a_bar(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, columns: int, has_bar: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    stream = _Terminal()
    with loggers.Logger(tmp_path, LIVE, title="t" * 66, total_steps=4, stream=stream) as logger:
        logger.log(train(1))
        logger.log(train(2))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert ("━" in text) == has_bar and "2/4 steps" in text
    assert ("t" * 66 in text) == (not has_bar), "what has no room is left out"


def test_the_pace_is_that_of_the_later_half_of_the_session(tmp_path: pathlib.Path) -> None:
    stream = io.StringIO()
    with loggers.Logger(tmp_path, LIVE, total_steps=1000, stream=stream) as logger:
        for wall_s, env_steps in ((100.0, 0), (110.0, 10), (120.0, 20), (130.0, 220), (140.0, 420)):
            logger.show({"env_steps": env_steps, "wall_s": wall_s})
    # From 120 s to 140 s: 20 steps/s, so that 580 steps take 29 s.
    assert stream.getvalue().splitlines()[-1] == "420/1k steps · 20 steps/s · 0:29 left"


@pytest.mark.parametrize("shown", [True, False])
def test_what_gives_the_pace_of_a_long_run_stays_small(tmp_path: pathlib.Path, shown: bool) -> None:
    stream = io.StringIO()
    with loggers.Logger(tmp_path, LIVE, total_steps=1_000_000, stream=stream, display=shown) as logger:
        for second in range(10_000):
            logger.show({"env_steps": 10 * second, "wall_s": float(second)})
        assert len(logger._moments) <= (1_000 if shown else 0)
    assert ("10 steps/s" in stream.getvalue()) == shown


def test_what_a_run_waits_for_is_shown_with_its_seconds(tmp_path: pathlib.Path) -> None:
    seen = threading.Event()

    class Seen(_Cell):
        __module__ = _Cell.__module__

        def write(self, text: str) -> int:
            seen.set()
            return super().write(text)

    stream = Seen()
    with (
        loggers.Logger(tmp_path, LIVE, title="ppo", stream=stream) as logger,
        logger.waiting("compiling"),
    ):
        assert seen.wait(10)
    assert re.fullmatch(r"ppo · compiling, \d+ s", read_as_notebook(stream.getvalue())[0])
    assert not any(thread.name == "live line" for thread in threading.enumerate())


def read_as_notebook(text: str) -> list[str]:
    """Returns the lines that a cell shows: a carriage return begins a line again, and what was there stays below it."""
    shown = []
    for line in text.split("\n"):
        seen = ""
        for part in line.split("\r"):
            seen = part + seen[len(part) :]
        shown.append(seen.rstrip())
    return shown


def test_a_notebook_gets_one_line_in_place(tmp_path: pathlib.Path) -> None:
    stream = _Cell()
    with loggers.Logger(tmp_path, loggers.Config(tensorboard=False), total_steps=9, stream=stream) as logger:
        logger.say("before")
        logger.log({**train(1), "eval_return": 5.0})
        assert read_as_notebook(stream.getvalue()) == ["before", "1/9 steps · evaluated 5"]
        logger.say("a line [with brackets]")
        assert read_as_notebook(stream.getvalue())[1:] == ["a line [with brackets]", "1/9 steps · evaluated 5"]
        # A value that is unknown leaves the last one on the line.
        logger.show({"env_steps": 2, "eval_return": None})
        assert read_as_notebook(stream.getvalue())[2:] == ["2/9 steps · evaluated 5"]
        logger.log({**train(3), "eval_return": 6.0})
    assert read_as_notebook(stream.getvalue()) == ["before", "a line [with brackets]", "3/9 steps · evaluated 6", ""]
    assert "\x1b" not in stream.getvalue()


def test_without_progress_only_what_is_said_is_shown(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for shown in (True, False):
        with loggers.Logger(tmp_path, QUIET, display=shown) as logger:
            logger.say(f"shown {shown}")
            logger.log(train(1))
    assert capsys.readouterr().out == "shown True\n"


def test_a_reader_that_left_does_not_stop_training(tmp_path: pathlib.Path) -> None:
    settings = loggers.Config(tensorboard=False)
    with (
        pytest.warns(RuntimeWarning, match="display .*BrokenPipeError") as caught,
        loggers.Logger(tmp_path, settings, stream=_ClosedPipe()) as logger,
    ):
        logger.log(train(1))
        logger.log(train(2))
        logger.say("unheard")
    assert len(caught) == 1
    assert metrics.read(tmp_path) == [train(1), train(2)]
