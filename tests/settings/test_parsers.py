"""Wrong arguments of every command: one line on standard error and exit code 2, from the script itself."""

import pathlib
import subprocess
import sys
from typing import Any

import conftest
import pytest

from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.systems import catalogue, training_flags


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
        # Quoted, with a space in the place of "=".
        ("train", ["--env=toy:walk", "--env.params.length 5"]),
        ("evaluate", ["--run=a", "--agent.evaluation_action sample"]),
    ],
)
def test_other_scripts_answer_in_one_line_too(script: str, arguments: list[str]) -> None:
    command = [sys.executable, str(conftest.PACKAGE.parent / "scripts" / f"{script}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{script}.py: ") and done.stderr.count("\n") == 1


def test_a_home_folder_is_found_behind_a_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = training_flags.parse(("--env=toy:walk", "--out=~/runs/a", "--init_from=")).settings
    assert settings is not None
    assert settings["out"] == f"{tmp_path}/runs/a"
    asked = catalogue.resolved({"system": "ppo", "out": "~/runs/a"})
    assert run_folder.of(asked) == tmp_path / "runs" / "a"


@pytest.mark.parametrize("name", ["learner.target_period", "evaluation.episodes", "replay.capacity", "agent.n_step"])
def test_programs_count_in_32_bits(name: str) -> None:
    def found(value: str) -> Any:
        return catalogue.resolved({"system": "dqn", name: value})[name]

    assert found("2147483647") == 2**31 - 1
    for too_large in ("2147483648", "9223372036854775807", "1e19", "1e300"):
        with conftest.refused(name, "2147483647"):
            found(too_large)
    with conftest.refused(name, "whole number >= "):
        found("-1e19")


@pytest.mark.parametrize("name", ["steps", "evaluation.interval_steps", "log.interval_steps"])
def test_steps_may_be_more_than_a_program_counts(name: str) -> None:
    assert catalogue.resolved({"system": "dqn", name: "1e15"})[name] == 10**15
    with conftest.refused(name, str(10**18 - 1)):
        catalogue.resolved({"system": "dqn", name: 10**18})


def test_parts_of_a_list_are_read_as_single_values_are() -> None:
    flags = ["--env=toy:walk", "--network.hidden_sizes=64, 32", "--network.policy_inputs=a, b"]
    settings = training_flags.parse(flags).settings
    assert settings is not None
    assert (settings["network.hidden_sizes"], settings["network.policy_inputs"]) == ((64, 32), ("a", "b"))
    with conftest.refused("--network.hidden_sizes=64,3000000000", "2147483647"):
        training_flags.parse(["--env=toy:walk", "--network.hidden_sizes=64,3000000000"])


def test_a_number_that_programs_round_to_0_is_not_above_0() -> None:
    assert catalogue.resolved({"system": "dqn", "learner.epsilon": "1e-20"})["learner.epsilon"] == 1e-20
    assert catalogue.resolved({"system": "dqn", "learner.epsilon": 2.0**-126})["learner.epsilon"] == 2.0**-126
    for value in ("1e-46", 1e-39):
        with conftest.refused("learner.epsilon", "1.17549e-38"):
            catalogue.resolved({"system": "dqn", "learner.epsilon": value})
    with conftest.refused("learner.epsilon=0", "> 0"):
        catalogue.resolved({"system": "dqn", "learner.epsilon": 0})


def test_bonuses_of_rnd_end() -> None:
    with conftest.refused("agent.intrinsic_discount=1", "< 1"):
        catalogue.resolved({"system": "rnd", "agent.intrinsic_discount": 1})
