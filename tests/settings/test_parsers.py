"""Wrong arguments of the other commands: one line in the form of `train.py`'s, exit code 2."""

import subprocess
import sys

import conftest
import pytest


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("compare", ["--lst"], "compare.py: --lst: no such flag; did you mean --list? (--help lists them)"),
        ("plot", [], "plot.py: expected RUN, the folder of a run (--help lists the flags)"),
        (
            "plot",
            ["a", "--panels=stesp"],
            "plot.py: --panels=stesp: expected one of steps, minutes, speed, lag, inserts, shares; did you mean steps?",
        ),
        ("report", [], "report.py: expected RUN, the folder of a run (--help lists the flags)"),
        ("evaluate", [], "evaluate.py: expected --run=FOLDER, the folder of a run (--help lists the flags)"),
        (
            "evaluate",
            ["--run=a", "--checkpoint=bes"],
            "evaluate.py: --checkpoint=bes: expected one of latest, best; did you mean best?",
        ),
        ("evaluate", ["--run=a", "--video=maybe"], "evaluate.py: --video=maybe: expected true or false"),
        ("evaluate", ["--run=a", "--episodes=abc"], "evaluate.py: --episodes=abc: expected a whole number >= 0"),
        (
            "evaluate",
            ["--run=a", "--episdes=3"],
            "evaluate.py: --episdes: no such flag; did you mean --episodes? (--help lists them)",
        ),
        (
            "rollback",
            ["here"],
            "rollback.py: expected RUN UPDATES, a run folder and the updates of a version (--help says more)",
        ),
        ("rollback", ["here", "few"], "rollback.py: UPDATES=few: expected a whole number >= 0"),
        ("replay_schedule", ["here"], "replay_schedule.py: here is no run folder: it has no config.json"),
        (
            "study",
            ["--out=a", "--sampler=optna"],
            "study.py: --sampler=optna: expected one of random, optuna; did you mean optuna?",
        ),
        (
            "study",
            ["--out=a", "--system=ppo"],
            "study.py: --system: no such flag (--help lists them; those of training go after --)",
        ),
        (
            "study",
            [f"--out={__file__}"],
            f"study.py: --out={__file__} is a file; expected the folder of a study, or a new one",
        ),
    ],
)
def test_other_scripts_answer_in_one_line_too(script: str, arguments: list[str], message: str) -> None:
    command = [sys.executable, str(conftest.PACKAGE.parent / "scripts" / f"{script}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message + "\n")
