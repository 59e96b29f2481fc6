"""Wrong arguments of every command: one line on standard error and exit code 2, from the script itself."""

import os
import pathlib
import subprocess
import sys
from typing import Any

import conftest
import jax.numpy as jnp
import numpy as np
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
        ("study", ["--out=a"]),
        ("plot", ["a", "a"]),
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


@pytest.mark.parametrize("platform", ["cuda", "cpux"])
def test_devices_that_are_not_there_are_one_line(platform: str, tmp_path: pathlib.Path) -> None:
    script, environment = conftest.PACKAGE.parent / "scripts" / "train.py", {**os.environ, "JAX_PLATFORMS": platform}
    command = [sys.executable, str(script), "--env=toy:walk", "--steps=100", "--out=run"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 2 and f"JAX_PLATFORMS={platform!r}" in done.stderr
    assert done.stderr.count("\n") == 1 and "JAX_PLATFORMS=cpu" in done.stderr


def test_what_a_terminal_cannot_show_is_escaped(tmp_path: pathlib.Path) -> None:
    script, environment = conftest.PACKAGE.parent / "scripts" / "train.py", {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, str(script), "--env=ü"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 2 and "--env=\\xfc" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [np.float32(0.5), np.array(0.5), jnp.float32(0.5)])
def test_arrays_without_axes_are_numbers(number: Any) -> None:
    assert catalogue.resolved({"system": "ppo", "agent.discount": number})["agent.discount"] == 0.5
    with conftest.refused("--agent.discount"):
        catalogue.resolved({"system": "ppo", "agent.discount": np.full(1, 0.5)})
    whole = catalogue.resolved({"system": "ppo", "learner.epochs": jnp.int32(3)})["learner.epochs"]
    assert whole == 3 and type(whole) is int
