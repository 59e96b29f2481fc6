"""The commands of the documents run, one after the other as a reader would type them, with little training."""

import importlib.util
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import test_docs

# External simulators are two programs at a time: test_external_training.py runs them.
DOCUMENTS = [path for path in test_docs.DOCUMENTS if path.name != "external_simulators.md"]
LITTLE = ["--steps=1", "--evaluation.episodes=1", "--evaluation.max_steps=30", "--nolog.tensorboard"]
# What an example of many rows takes minutes for on a CPU.
SMALLER = {"--num_seeds=10": ["--num_seeds=2"], "--preset=impala/pong": ["--env.num_envs=4"]}
# A run as short as these has no evaluation at the steps of its reference.
MAY_FAIL = {"scripts/compare.py": 2}


def words(document: pathlib.Path) -> list[list[str]]:
    """Returns the document's commands of Python whose suites are installed, and what `make train` runs."""
    found = [made() if command == ["make", "train"] else command for command in test_docs.commands([document])]
    return [command for command in found if command[0] == "python" and is_installed(command)]


def made() -> list[str]:
    """Returns the command of the Makefile's `train`."""
    (recipe,) = re.findall(
        r"^train:.*\n\t(.*)", (test_docs.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    return shlex.split(recipe.replace("$(RUN)", "python").replace("$(STEPS)", "1"))


def is_installed(command: list[str]) -> bool:
    """Says whether the suite that a command names, if it does, is there, and what a fleet needs."""
    suite = next((word[6:].partition(":")[0] for word in command if word.startswith("--env=")), "jax")
    if any(word.startswith("--layout.fleet=") for word in command) and importlib.util.find_spec("ray") is None:
        return False
    module = {"ale": "ale_py", "playground": "mujoco_playground"}.get(suite, suite)
    return importlib.util.find_spec(module) is not None


def with_little(command: list[str]) -> list[str]:
    """Returns a command that trains for one iteration, if it trains; of a study each of its runs."""
    program, script, *rest = command
    if script not in ("scripts/train.py", "scripts/launch.py", "scripts/study.py") or {"--list", "--help"} & set(rest):
        return command
    if script == "scripts/study.py":
        fewer = {"--num_seeds": "--num_seeds=1", "--trials": "--trials=1"}
        return [program, script, *(fewer.get(word.partition("=")[0], word) for word in rest), *LITTLE]
    smaller = next((flags for flag, flags in SMALLER.items() if flag in rest), [])
    return [program, script, *rest, *LITTLE, *smaller]


@pytest.mark.slow
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if words(d)], ids=lambda path: path.name)
def test_commands_run(document: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for command in words(document):
        script, *arguments = with_little(command)[1:]
        done = subprocess.run(
            [sys.executable, str(test_docs.ROOT / script), *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )
        allowed = {0, MAY_FAIL.get(script, 0)}
        assert done.returncode in allowed, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr
