"""Records of a run: what is written, read back, and cut on a resume."""

import contextlib
import json
import math
import pathlib
import subprocess
import sys
from typing import Any

import conftest
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from jaxrl_dist import errors
from jaxrl_dist.runs import metrics

PLAIN = strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats(-1e100, 1e100)
PLAIN |= strategies.sampled_from([math.nan, math.inf, -math.inf]) | strategies.text()
JSON_VALUES = PLAIN | strategies.lists(PLAIN, max_size=4)
# Without those of a kind, such as wall_s, which hypothesis finds among the code's constants.
NAMES = strategies.text(min_size=1).filter(lambda name: name not in metrics._KINDS)


def write(folder: pathlib.Path, *records: dict[str, Any]) -> None:
    for record in records:
        metrics.append(folder, metrics.plain(record))


def train(env_steps: int, **values: Any) -> dict[str, Any]:
    return {"kind": "train", "env_steps": env_steps, **values}


def test_a_line_is_valid_json_with_sorted_keys(tmp_path: pathlib.Path) -> None:
    record = train(8, loss=np.float32(0.5), bad=math.nan, worse=[1.0, math.inf], z=np.arange(2), a=np.int64(3), b=True)
    write(tmp_path, record)
    line = (tmp_path / "metrics.jsonl").read_text()
    expected = '"a": 3, "b": true, "bad": null, "env_steps": 8, "kind": "train", "loss": 0.5, '
    assert line == "{" + expected + '"worse": [1.0, null], "z": [0, 1]}\n'


@hypothesis.settings(max_examples=40)
@hypothesis.given(strategies.dictionaries(NAMES, JSON_VALUES, max_size=5))
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
    with pytest.warns(RuntimeWarning, match="line 5") if half.endswith(b"\n") else contextlib.nullcontext():
        assert len(metrics.read(tmp_path)) == 4
    metrics.truncate_after(tmp_path, step)
    write(tmp_path, train(40))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["env_steps"] for line in lines] == [*kept, 40]


def test_a_resume_cuts_an_evaluation_that_it_makes_again(tmp_path: pathlib.Path) -> None:
    """A stop during an evaluation saves its step without it; what a session after that wrote is from no checkpoint."""
    records = [train(10), {"kind": "eval", "env_steps": 10}, train(20), {"kind": "eval", "env_steps": 20}]
    write(tmp_path, *records)
    metrics.truncate_after(tmp_path, 20, 20)
    assert metrics.read(tmp_path) == records
    metrics.truncate_after(tmp_path, 20, 10)
    assert metrics.read(tmp_path) == records[:3]
    metrics.truncate_after(tmp_path, 10, -5)
    assert metrics.read(tmp_path) == records[:1]


def test_records_of_any_size_are_a_run_s_own_and_a_stranger_s_up_to_a_limit(tmp_path: pathlib.Path) -> None:
    write(tmp_path, train(10), train(20))
    size = (tmp_path / "metrics.jsonl").stat().st_size
    assert len(metrics.read(tmp_path)) == len(metrics.read(tmp_path, most=size)) == 2
    with pytest.raises(errors.UsageError, match=f"has {size:,} bytes"):
        metrics.read(tmp_path, most=size - 1)


def test_importing_is_light() -> None:
    imports = "import sys; from jaxrl_dist.runs import aggregate, loggers, metrics"
    code = f"{imports}; print([m for m in sys.modules if m in %r])"
    heavy = ("jax", "rich", "tensorboardX", "scipy", "matplotlib")
    command = [sys.executable, "-c", code % (heavy,)]
    result = subprocess.run(command, cwd=conftest.PACKAGE.parent, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
