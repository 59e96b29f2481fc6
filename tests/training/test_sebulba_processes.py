"""Faults from outside under Sebulba, on real processes: kills and signals at any time, and no child that is left."""

import pathlib
import random
import signal
import time

import conftest
import pytest
import test_faults

from jaxrl_dist.runs import checkpoint

FLAGS = ("--layout=sebulba", "--layout.num_actors=2", "--layout.policy_lag=1", "--steps=6400")
GYMNASIUM = ("--env=gymnasium:CartPole-v1", "--layout=sebulba", "--steps=10_000_000", "--layout.num_actors=2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    """Hash of the final parameters of a run that is never broken off, and its seconds."""
    folder, began_s = tmp_path_factory.mktemp("whole"), time.perf_counter()
    process = test_faults.start(folder, *FLAGS)
    _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, "")
    return test_faults.summary_of(folder)["params_sha256"], time.perf_counter() - began_s


def finish(folder: pathlib.Path, sha256: str) -> None:
    process = test_faults.start(folder, *FLAGS)
    _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, "")
    assert test_faults.summary_of(folder)["params_sha256"] == sha256
    assert not test_faults.temporary_folders(folder)


def break_off(folder: pathlib.Path, number: int, delay_s: float) -> int:
    """Starts the run, sends a signal after a delay, and returns the exit code."""
    process = test_faults.start(folder, *FLAGS)
    time.sleep(delay_s)
    process.send_signal(number)
    _, error = process.communicate(timeout=conftest.SOON_S)
    assert error == ""
    return process.returncode


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_the_last_finished_update(
    number: int, code: int, tmp_path: pathlib.Path, whole: tuple[str, float]
) -> None:
    process = test_faults.start(tmp_path, *FLAGS)
    test_faults.wait_for_checkpoints(tmp_path)
    process.send_signal(number)
    out, error = process.communicate(timeout=conftest.SOON_S)
    assert (process.returncode, error) == (code, ""), out
    stopped = test_faults.summary_of(tmp_path)
    assert checkpoint.latest(tmp_path / "checkpoints")[0].name == f"step_{stopped['env_steps']:012d}"
    finish(tmp_path, whole[0])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_at_any_time_lose_nothing(number: int, tmp_path: pathlib.Path, whole: tuple[str, float]) -> None:
    rng, broken = random.Random(number), 0
    for index in range(6):
        folder = tmp_path / str(index)
        # From when Python has set its handlers; before that a signal ends it, which loses nothing either.
        delays = (rng.uniform(1.0, whole[1]) for _ in range(2))
        codes = [break_off(folder, number, delay) for delay in delays]
        assert set(codes) <= {0, 143, -number}
        broken += sum(code != 0 for code in codes)
        finish(folder, whole[0])
    assert broken >= 4


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_of_an_environment_outlives_the_trainer(number: int, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("gymnasium")
    process = test_faults.start(tmp_path, *GYMNASIUM)
    test_faults.wait_for_checkpoints(tmp_path)
    children = test_faults._children(process.pid)
    assert len(children) >= 2
    process.send_signal(number)
    process.communicate(timeout=conftest.SOON_S)
    deadline_s = time.monotonic() + conftest.SOON_S
    while any(pathlib.Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
