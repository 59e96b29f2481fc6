"""A start that fails ends in one line and leaves its folder to the corrected command."""

import functools
import pathlib
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist import commands, errors
from jaxrl_dist.commands import train as train_command
from jaxrl_dist.parallel import memory_use
from jaxrl_dist.runs import checkpoint, view
from jaxrl_dist.training import assemble, guard, resume, runner, session, stop

CARTPOLE = "gymnax:CartPole-v1"


@pytest.fixture
def train(train: conftest.Train) -> conftest.Train:
    return functools.partial(train, env=CARTPOLE)


@pytest.mark.slow
def test_the_corrected_command_trains_in_the_folder_of_one_that_diverged_at_once(
    tmp_path: pathlib.Path, train: conftest.Train
) -> None:
    with pytest.raises(guard.NonFiniteError):
        train(**{"learner.learning_rate": 1e38, "learner.anneal": False})
    assert list((tmp_path / "failure").iterdir()) and (tmp_path / "config.json").exists()
    run = train()
    assert run.reason == "finished" and not (tmp_path / "failure").exists()
    assert view.read(tmp_path).state == "finished"
    with conftest.refused(f"--out={tmp_path}", "learner.learning_rate ", " -> 1e+38"):
        train(**{"learner.learning_rate": 1e38})


def test_a_run_that_was_stopped_before_its_first_step_begins_anew(
    tmp_path: pathlib.Path, train: conftest.Train
) -> None:
    token = stop.StopToken()
    token.request()
    assert train(stop=token).reason == "stopped"
    assert (tmp_path / "summary.json").exists() and not list((tmp_path / "checkpoints").glob("step_*"))
    assert train().reason == "finished"


def test_a_failure_is_forgotten_once_a_later_session_has_saved_past_it(
    tmp_path: pathlib.Path, train: conftest.Train
) -> None:
    train(steps=256)
    checkpoint.save(tmp_path / "failure", "state", (), {"iteration": 2, "total": 3, "num_devices": 1})
    guard.forget_failure(tmp_path, 2)
    assert view.read(tmp_path).state == "failed"
    train(steps=384)
    assert view.read(tmp_path).state == "finished" and not (tmp_path / "failure").exists()


def test_a_failure_that_a_kill_left_half_written_is_removed(tmp_path: pathlib.Path, train: conftest.Train) -> None:
    def leave_half() -> None:
        (tmp_path / "failure" / ".new-state").mkdir(parents=True)
        (tmp_path / "failure" / ".new-state" / "x").touch()

    train(steps=256)
    leave_half()
    guard.forget_failure(tmp_path, 0)
    assert not (tmp_path / "failure").exists()
    leave_half()
    settings, environment = assemble.resolve({**conftest.SMALL["ppo"], "system": "ppo", "env": CARTPOLE, "steps": 384})
    parts = assemble.assemble(settings, environment, jax.devices()[:1])
    assert resume.start(parts, tmp_path).resumed_from == 256
    assert not list((tmp_path / "failure").iterdir())


def test_what_is_too_large_is_said_in_one_line_and_can_be_made_smaller(
    monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    def allocate(*_: Any) -> None:
        jnp.zeros((2**20, 2**20, 2**10)).block_until_ready()

    with monkeypatch.context() as patch:
        patch.setattr(session, "run", allocate)
        with pytest.raises(memory_use.OutOfMemoryError, match=r"4194304\.00 GiB"):
            train(**{"env.num_envs": 16})
    assert train().reason == "finished"


def test_missing_memory_of_the_host_is_named_too_and_other_errors_stay_what_they_are() -> None:
    with pytest.raises(memory_use.OutOfMemoryError) as caught, memory_use.named():
        np.ones(2**60, np.uint8)
    assert "GiB" not in str(caught.value)
    with pytest.raises(ZeroDivisionError), memory_use.named():
        raise ZeroDivisionError


@pytest.mark.parametrize("kind", [errors.UsageError, FloatingPointError, MemoryError])
def test_what_could_not_be_saved_is_said_beside_the_error(
    kind: type[Exception], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        error = kind("too much")
        error.add_note("what was learned is lost:\nthe disk is full")
        # As JAX does with what passes through its functions.
        error.add_note("--------------------\nFor simplicity, JAX has removed its internal frames")
        raise error

    monkeypatch.setattr(session, "run", fail)
    monkeypatch.setattr(runner, "prepare", lambda: None)
    monkeypatch.setattr(runner, "keep_programs", lambda: None)
    small = conftest.SMALL["ppo"] | {"network.hidden_sizes": "16", "env.num_envs": 16}
    flags = [f"--{name}={value}" for name, value in {"env": CARTPOLE, **small, "out": tmp_path}.items()]
    assert commands.run(train_command.main, "train", flags) == (2 if kind is errors.UsageError else 1)
    first, second = capsys.readouterr().err.splitlines()
    assert second.endswith(": what was learned is lost: the disk is full")
    assert ": out of memory" in first if kind is MemoryError else first.endswith(": too much")


@pytest.mark.parametrize("settings", [{"layout.unroll_length": 10**9}, {"env.num_envs": 10**9}])
def test_more_rows_than_can_be_counted_are_refused(
    tmp_path: pathlib.Path, settings: dict[str, Any], train: conftest.Train
) -> None:
    with conftest.refused("2147483648"):
        train(**settings)
    assert not list(tmp_path.iterdir())
