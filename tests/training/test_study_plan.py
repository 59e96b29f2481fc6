"""A study before anything starts: its settings as text, its folders, and commands that are refused."""

import pathlib
import subprocess
import sys

import conftest
import pytest
from test_study import SETTINGS, plan

from jaxrl_dist.training import study


def test_settings_are_read_from_text() -> None:
    assert study.parse_setting("lstm: --network.core=lstm") == study.Setting("lstm", ("--network.core=lstm",))
    assert study.parse_setting("all:") == study.Setting("all", ())
    quoted = study.parse_setting("two words: --a='b c' --d=e:f")
    assert quoted == study.Setting("two words", ("--a=b c", "--d=e:f"))
    for wrong in ("--a=b", "a/b: --c", ": --c", "../a:", "a: --b='c"):
        with conftest.refused(f"--setting={wrong}"):
            study.parse_setting(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out=x", "--", "--system=ppoo"], "study.py: all: --system=ppoo"),
        (["--out=x", "--setting=nonsense"], "study.py: --setting=nonsense"),
        (["--", "--system=ppo"], "study.py: "),
        (["--out=x", "--system=ppo"], "--system: "),
    ],
)
def test_the_script_refuses_wrong_commands(tmp_path: pathlib.Path, arguments: list[str], message: str) -> None:
    script = conftest.PACKAGE.parent / "scripts" / "study.py"
    result = subprocess.run([sys.executable, script, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2
    assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert list(tmp_path.iterdir()) == []


def test_seeds_are_apart_where_the_layout_trains_one_at_a_time(tmp_path: pathlib.Path) -> None:
    sebulba = study.Setting("sebulba", ("--layout=sebulba",))
    planned = study.cells(plan(tmp_path, settings=(SETTINGS[0], sebulba), num_seeds=2))
    assert [str(cell.folder.relative_to(tmp_path / "out")) for cell in planned] == [
        "high",
        "sebulba/seed0",
        "sebulba/seed1",
    ]
