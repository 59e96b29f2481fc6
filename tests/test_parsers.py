"""Wrong arguments of the small scripts: one line in the form of `train.py`'s, exit code 2."""

import subprocess
import sys

import pytest

from jaxrl_dist import config


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (
            "compare",
            ["--lst"],
            "compare.py: unrecognized arguments: --lst; did you mean --list? (--help lists the flags)",
        ),
        ("plot", [], "plot.py: the following arguments are required: RUN (--help lists the flags)"),
        ("report", [], "report.py: the following arguments are required: RUN (--help lists the flags)"),
        ("evaluate", [], "evaluate.py: the following arguments are required: --run (--help lists the flags)"),
        (
            "evaluate",
            ["--run=a", "--checkpoint=bes"],
            "evaluate.py: --checkpoint=bes: expected one of latest, best; did you mean best? (--help lists the flags)",
        ),
        (
            "evaluate",
            ["--run=a", "--video=maybe"],
            "evaluate.py: --video=maybe: expected true or false (--help lists the flags)",
        ),
        (
            "evaluate",
            ["--run=a", "--episodes=abc"],
            "evaluate.py: --episodes=abc: expected a whole number >= 0 (--help lists the flags)",
        ),
        (
            "evaluate",
            ["--run=a", "--episdes=3"],
            "evaluate.py: unrecognized arguments: --episdes=3; did you mean --episodes? (--help lists the flags)",
        ),
        (
            "rollback",
            ["here", "-3x"],
            "rollback.py: the following arguments are required: UPDATES (--help lists the flags)",
        ),
        (
            "rollback",
            ["here", "few"],
            "rollback.py: UPDATES=few: expected a whole number >= 0 (--help lists the flags)",
        ),
        ("replay_schedule", ["here"], "replay_schedule.py: here is no run folder: it has no config.json"),
        (
            "study",
            ["--out=a", "--sampler=optna"],
            "study.py: --sampler=optna: expected one of random, optuna; did you mean optuna? "
            "(--help lists the flags; those of train.py go after --)",
        ),
        (
            "study",
            ["--out=a", "--system=ppo"],
            "study.py: unrecognized arguments: --system=ppo (--help lists the flags; those of train.py go after --)",
        ),
        (
            "study",
            [f"--out={__file__}"],
            f"study.py: --out={__file__} is a file; expected the folder of a study, or a new one",
        ),
    ],
)
def test_other_scripts_answer_in_one_line_too(script: str, arguments: list[str], message: str) -> None:
    command = [sys.executable, str(config.PACKAGE.parent / "scripts" / f"{script}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message + "\n")
