"""Records of a run: what is written, read back, cut on a resume, shown, and what happens when the disk is full."""

import io
import json
import math
import pathlib
import resource
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from jaxrl_dist import config, declarations, display, metrics

QUIET = metrics.Config(tensorboard=False, progress=False)
JSON_VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text(),
    lambda inner: strategies.lists(inner, max_size=4),
    max_leaves=8,
)


def write(folder: pathlib.Path, *records: dict[str, Any], settings: metrics.Config = QUIET) -> None:
    with metrics.Logger(folder, settings, display=False) as logger:
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
    fields = {field.name: field for field in declarations.read(config.PACKAGE / "metrics.py")}
    assert {name: field.default for name, field in fields.items()} == vars(metrics.Config())
    assert {field.tag for field in fields.values()} == {"tunable"}


def test_a_line_is_valid_json_with_sorted_keys(tmp_path: pathlib.Path) -> None:
    record = train(8, loss=np.float32(0.5), bad=math.nan, worse=[1.0, math.inf], z=np.arange(2), a=np.int64(3), b=True)
    write(tmp_path, record)
    line = (tmp_path / "metrics.jsonl").read_text()
    expected = '"a": 3, "b": true, "bad": null, "env_steps": 8, "kind": "train", "loss": 0.5, '
    assert line == "{" + expected + '"worse": [1.0, null], "z": [0, 1]}\n'


@hypothesis.settings(max_examples=40)
@hypothesis.given(strategies.dictionaries(strategies.text(min_size=1), JSON_VALUES, max_size=5))
def test_records_are_read_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("run")
    write(folder, {**values, **train(1)}, train(2))
    first, second = metrics.read(folder)
    assert second == train(2)

    def same(old: Any, new: Any) -> bool:
        if isinstance(old, list):
            return isinstance(new, list) and len(old) == len(new) and all(map(same, old, new))
        if old is None or (isinstance(old, float) and not math.isfinite(old)):
            return isinstance(new, float) and math.isnan(new)
        return type(old) is type(new) and old == new

    assert all(same(value, first[name]) for name, value in {**values, **train(1)}.items())


def test_every_line_is_on_disk_before_the_next_one(tmp_path: pathlib.Path) -> None:
    with metrics.Logger(tmp_path, QUIET, display=False) as logger:
        for step in range(3):
            logger.log(train(step))
            assert [record["env_steps"] for record in metrics.read(tmp_path)] == list(range(step + 1))


def test_column_collects_numbers_and_lists() -> None:
    records = [
        train(1, loss=2.0),
        {"kind": "eval", "env_steps": 1, "eval_return_per_seed": [1.0, 2.0]},
        train(2),
        {"kind": "eval", "env_steps": 2},
    ]
    np.testing.assert_array_equal(metrics.column(records, "train", "loss"), [2.0, np.nan])
    expected = [[1.0, 2.0], [np.nan, np.nan]]
    np.testing.assert_array_equal(metrics.column(records, "eval", "eval_return_per_seed"), expected)
    assert metrics.column(records, "eval", "unknown").shape == (2,)
    assert metrics.column([], "eval", "eval_return").shape == (0,)


@pytest.mark.parametrize("half", [b"", b'{"kind": "tr', b'{"kind": "train", "env_steps": 99}', b"\0\0\0\n", b"7\n"])
@pytest.mark.parametrize(
    ("step", "kept"), [(-1, []), (0, []), (10, [10, 10]), (25, [10, 10, 20]), (99, [10, 10, 20, 30])]
)
def test_a_resume_cuts_what_is_past_its_step(tmp_path: pathlib.Path, half: bytes, step: int, kept: list[int]) -> None:
    write(tmp_path, train(10), {"kind": "eval", "env_steps": 10}, train(20), train(30))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(half)
    assert len(metrics.read(tmp_path)) == 4
    metrics.truncate_after(tmp_path, step)
    write(tmp_path, train(40))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["env_steps"] for line in lines] == [*kept, 40]


def test_a_logger_that_is_open_already_follows_the_cut(tmp_path: pathlib.Path) -> None:
    metrics.truncate_after(tmp_path, 5)
    assert metrics.read(tmp_path) == []
    with metrics.Logger(tmp_path, QUIET, display=False) as logger:
        for step in (1, 2, 3):
            logger.log(train(step))
        metrics.truncate_after(tmp_path, 1)
        logger.log(train(2))
    assert metrics.read(tmp_path) == [train(1), train(2)]


def test_tensorboard_gets_every_number(tmp_path: pathlib.Path) -> None:
    record = train(
        7, loss=0.5, kind="train", steps_per_second=10, per_seed=[1.0, math.nan, 3.0], note="text", bad=math.inf
    )
    write(tmp_path, record, {"kind": "eval", "env_steps": 9, "eval_return": 2.0}, settings=metrics.Config())
    assert scalars(tmp_path) == {
        ("train/loss", 7): 0.5,
        ("train/steps_per_second", 7): 10.0,
        ("train/per_seed/0", 7): 1.0,
        ("train/per_seed/2", 7): 3.0,
        ("eval/eval_return", 9): 2.0,
    }


def test_tensorboard_forgets_what_a_resume_repeats(tmp_path: pathlib.Path) -> None:
    from tensorboardX.proto import event_pb2

    write(tmp_path, train(10, loss=1.0), train(20, loss=2.0), settings=metrics.Config())
    metrics.truncate_after(tmp_path, 10)
    write(tmp_path, train(20, loss=3.0), settings=metrics.Config())
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    starts = [event.step for event in events(tmp_path) if event.session_log.status == event_pb2.SessionLog.START]
    assert starts == [11]
    # The order of files, as TensorBoard reads them, is that of the sessions.
    assert [event.step for event in events(tmp_path)] == [0, 10, 20, 0, 11, 20]


def test_a_full_disk_warns_once_and_training_goes_on(tmp_path: pathlib.Path, small_files: None) -> None:
    with (
        warnings.catch_warnings(record=True) as caught,
        metrics.Logger(tmp_path, QUIET, display=False) as logger,
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


def test_a_half_written_line_is_taken_back(tmp_path: pathlib.Path, small_files: None) -> None:
    with pytest.warns(RuntimeWarning, match=r"metrics\.jsonl failed"), metrics.Logger(tmp_path, QUIET) as logger:
        logger.log(train(0, text="x" * 3000))
        logger.log(train(1, text="x" * 3000))
        logger.log(train(2))
    assert [record["env_steps"] for record in metrics.read(tmp_path)] == [0, 2]


def test_tensorboard_on_a_full_disk_neither_stops_nor_hangs(tmp_path: pathlib.Path, small_files: None) -> None:
    settings = metrics.Config(progress=False)
    record = {f"loss_{i}": 1.0 for i in range(40)}
    with (
        warnings.catch_warnings(record=True) as caught,
        metrics.Logger(tmp_path, settings, display=False) as logger,
    ):
        warnings.simplefilter("always")
        for step in range(50):
            logger.log(train(step, **record))
    assert sorted(str(item.message).split(" failed")[0] for item in caught) == ["TensorBoard events", "metrics.jsonl"]


def test_a_missing_tensorboard_warns_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "tensorboardX.proto", None)
    with pytest.warns(RuntimeWarning, match="TensorBoard events failed") as caught:
        write(tmp_path, train(0), train(1), settings=metrics.Config())
    assert len(caught) == 1
    assert metrics.read(tmp_path) == [train(0), train(1)]


def test_a_folder_that_is_gone_does_not_stop_training(tmp_path: pathlib.Path) -> None:
    with pytest.warns(RuntimeWarning) as caught:
        write(tmp_path / "gone", train(0), train(1))
    assert len(caught) == 1


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_progress_line_names_everything_once() -> None:
    record = {
        "env_steps": 250_000,
        "frames": 1_000_000,
        "steps_per_second": 84_210.0,
        "episode_return": 312.44,
        "eval_return": 475.0,
        "wall_s": 30.0,
    }
    first = {"env_steps": 50_000, "wall_s": 10.0}
    line = display.progress_line(record, "ppo gymnax:CartPole-v1", 500_000, first)
    assert line.split(" · ") == [
        "ppo gymnax:CartPole-v1",
        "250k/500k steps",
        "1M frames",
        "84.21k steps/s",
        "return 312.4",
        "evaluated 475",
        "0:25 left",
    ]
    assert display.progress_line({"env_steps": 7, "frames": 7, "episode_return": math.nan}) == "7 steps"


@pytest.mark.parametrize(
    ("record", "first", "expected"),
    [
        ({"env_steps": 50, "wall_s": 10.0}, {"env_steps": 0, "wall_s": 0.0}, "0:10 left"),
        ({"env_steps": 75, "wall_s": 40.5}, {"env_steps": 50, "wall_s": 30.0}, "0:11 left"),
        ({"env_steps": 50, "wall_s": 7210.0}, {"env_steps": 49, "wall_s": 10.0}, "100:00:00 left"),
        ({"env_steps": 120, "wall_s": 7.0}, {"env_steps": 50, "wall_s": 6.0}, "0:00 left"),
        ({"env_steps": 50, "wall_s": 10.0}, {"env_steps": 50, "wall_s": 10.0}, "50/100 steps"),
        ({"env_steps": 50, "wall_s": 10.0}, {}, "50/100 steps"),
        ({"env_steps": 50}, {"env_steps": 40}, "50/100 steps"),
    ],
)
def test_time_left_follows_the_pace_of_this_session(
    record: dict[str, float], first: dict[str, float], expected: str
) -> None:
    assert display.progress_line(record, "", 100, first).split(" · ")[-1] == expected


def test_a_log_file_gets_a_plain_line_every_few_seconds(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    settings = metrics.Config(tensorboard=False)
    with metrics.Logger(tmp_path, settings, title="dqn", total_steps=40, stream=stream) as logger:
        logger.say("compiled in 2.0 s")
        for step in range(1, 41):
            now[0] += 0.25
            logger.log(train(step))
    steps = [1, 21, 40]
    assert stream.getvalue().splitlines() == ["compiled in 2.0 s", *(f"dqn · {step}/40 steps" for step in steps)]


def test_a_terminal_gets_one_line_in_place(tmp_path: pathlib.Path) -> None:
    stream = _Terminal()
    with metrics.Logger(tmp_path, metrics.Config(tensorboard=False), total_steps=9, stream=stream) as logger:
        logger.log(train(1))
        logger.say("a line [with brackets]")
        logger.show({"env_steps": 2})
        logger.log(train(3))
    text = stream.getvalue()
    assert "a line [with brackets]\n" in text.replace("\r", "").replace("\x1b[2K", "")
    assert "1/9 steps" in text and "2/9 steps" in text and text.rstrip("\x1b[?25h\n").endswith("3/9 steps")
    assert [record["env_steps"] for record in metrics.read(tmp_path)] == [1, 3]


def test_without_progress_only_what_is_said_is_shown(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for shown in (True, False):
        with metrics.Logger(tmp_path, QUIET, display=shown) as logger:
            logger.say(f"shown {shown}")
            logger.log(train(1))
    assert capsys.readouterr().out == "shown True\n"


def test_a_reader_that_left_does_not_stop_training(tmp_path: pathlib.Path) -> None:
    settings = metrics.Config(tensorboard=False)
    with (
        pytest.warns(RuntimeWarning, match="the live display failed") as caught,
        metrics.Logger(tmp_path, settings, stream=_ClosedPipe()) as logger,
    ):
        logger.log(train(1))
        logger.log(train(2))
        logger.say("unheard")
    assert len(caught) == 1
    assert metrics.read(tmp_path) == [train(1), train(2)]


def test_importing_is_light() -> None:
    code = "import sys; from jaxrl_dist import aggregate, metrics; print([m for m in sys.modules if m in %r])"
    heavy = ("jax", "rich", "tensorboardX", "scipy", "matplotlib")
    command = [sys.executable, "-c", code % (heavy,)]
    result = subprocess.run(command, cwd=config.PACKAGE.parent, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
