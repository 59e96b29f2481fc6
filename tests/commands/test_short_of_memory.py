"""Commands that read a run say in one line that memory does not suffice, as training does."""

import pathlib
from typing import Any

import jax
import pytest
from fakes import written_runs

from jaxrl_dist.training import event_replay, policy

# Command -> what it calls, its arguments beside the run's folder, and its exit code.
CALLS: dict[str, tuple[Any, str, list[str], int]] = {
    "export": (policy, "load", ["--run={run}"], 1),
    "rollback": (event_replay, "roll_back", ["{run}", "4"], 1),
    "replay_schedule": (event_replay, "replay_schedule", ["{run}"], 2),
}
FULL = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes.\nin a long\ntext")


@pytest.mark.parametrize(
    ("error", "words"), [(MemoryError("no\nroom"), ": out of memory; "), (FULL, ": out of memory: 4.00 GiB more")]
)
@pytest.mark.parametrize("name", CALLS)
def test_what_does_not_fit_is_one_line(
    name: str,
    error: Exception,
    words: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    owner, called, arguments, code = CALLS[name]
    run = written_runs.write(tmp_path / "run", written_runs.rising(1, num_points=2))
    monkeypatch.setattr(owner, called, fail)
    call = written_runs.script(f"scripts/{name}.py")
    assert call([argument.format(run=run) for argument in arguments]) == code
    line = capsys.readouterr().err
    assert words in line and line.count("\n") == 1
    # These settings are the run's, and cannot be made smaller.
    assert "env.num_envs" not in line


@pytest.mark.parametrize("name", CALLS)
def test_other_faults_of_jax_pass(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: a fault")

    owner, called, arguments, _ = CALLS[name]
    run = written_runs.write(tmp_path / "run", written_runs.rising(1, num_points=2))
    monkeypatch.setattr(owner, called, fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        written_runs.script(f"scripts/{name}.py")([argument.format(run=run) for argument in arguments])
