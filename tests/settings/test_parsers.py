"""Wrong arguments of every command: one line on standard error and exit code 2, from the script itself."""

import subprocess
import sys

import conftest
import pytest


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("compare", ["--lst"]),
        ("plot", ["a", "--panels=stesp"]),
        ("report", []),
        ("evaluate", ["--run=a", "--checkpoint=bes"]),
        ("rollback", ["here", "few"]),
        ("replay_schedule", ["here"]),
        ("study", ["--out=a", "--sampler=optna"]),
    ],
)
def test_other_scripts_answer_in_one_line_too(script: str, arguments: list[str]) -> None:
    command = [sys.executable, str(conftest.PACKAGE.parent / "scripts" / f"{script}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{script}.py: ") and done.stderr.count("\n") == 1
