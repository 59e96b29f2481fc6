"""Faults from outside, on real processes: kills, signals, full disks, taken folders. Nothing is lost or silent."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import conftest
import marks
import pytest
from fakes import checkpoints

from jaxrl_dist.runs import checkpoint, metrics
from jaxrl_dist.runs import folder as run_folder

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "train.py"
FLAGS = [
    *("--env.num_envs=8", "--layout.unroll_length=16", "--learner.minibatches=2", "--learner.epochs=2"),
    *("--network.hidden_sizes=16", "--steps=12800", "--log.interval_steps=1280", "--evaluation.interval_steps=2560"),
    *("--evaluation.episodes=4", "--checkpoint.interval_s=0"),
]
# The suite of CartPole takes seconds to import, and here only the process counts.
TOY, CARTPOLE = "toy:walk", "gymnax:CartPole-v1"


def start(folder: pathlib.Path, *more: str) -> subprocess.Popen[str]:
    """Starts a training process."""
    command = [sys.executable, str(SCRIPT), "--system=ppo", f"--env={TOY}", *FLAGS, f"--out={folder}", *more]
    return _popen(command)


def start_code(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Starts Python code that imports the package."""
    return _popen([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)])


def _popen(command: list[str]) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XDG_CACHE_HOME": str(ROOT / ".pytest_cache" / "xdg"),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(process: subprocess.Popen[str], text: str) -> bool:
    """Reads what a process prints until a line holds the text; False where it ends before."""
    assert process.stdout
    return any(text in line for line in process.stdout)


def wait_for_checkpoints(folder: pathlib.Path) -> None:
    """Waits until a run that keeps two has saved twice, far from its end."""
    deadline_s = time.monotonic() + 60
    while len(checkpoint.latest(folder / "checkpoints")) < 2:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def summary_of(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def temporary_folders(folder: pathlib.Path) -> list[str]:
    names = [path.name for path in folder.rglob("*") if path.is_dir()]
    return [name for name in names if name.startswith((".new", ".old", ".trash"))]


class Reference(NamedTuple):
    """An uninterrupted run.

    Attributes:
        folder: of the run.
        sha256: of its final parameters.
        whole_s: of its process.
        train_s: from the end of compiling to the end.
    """

    folder: pathlib.Path
    sha256: str
    whole_s: float
    train_s: float


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The run that is never broken off."""
    folder, began_s = tmp_path_factory.mktemp("reference") / "run", time.perf_counter()
    process = start(folder)
    assert wait_for(process, "compiled in")
    compiled_s = time.perf_counter()
    _, error = process.communicate(timeout=120)
    end_s = time.perf_counter()
    assert (process.returncode, error) == (0, "")
    return Reference(folder, summary_of(folder)["params_sha256"], end_s - began_s, end_s - compiled_s)


def assert_is_the_whole_run(folder: pathlib.Path, reference: Reference) -> None:
    """Checks that a run that was broken off and resumed is what it would have been."""
    assert summary_of(folder)["params_sha256"] == reference.sha256
    left, right = metrics.read(folder), metrics.read(reference.folder)
    names = ("kind", "env_steps", "episodes", "eval_return_per_seed", "valid_steps")
    assert [[r.get(name) for name in names] for r in left] == [[r.get(name) for name in names] for r in right]
    # Summed in float32 over chunks, whose lengths follow the machine's speed.
    returns = [[r["episode_return"] for r in records if r["kind"] == "train"] for records in (left, right)]
    assert returns[0] == pytest.approx(returns[1], rel=1e-5)
    assert not temporary_folders(folder)


def kill(folder: pathlib.Path, delay_s: float, after: str = "") -> bool:
    """Starts a run, kills it after a delay, and returns whether it was still alive."""
    process = start(folder)
    if not after or wait_for(process, after):
        time.sleep(delay_s)
    is_hit = process.poll() is None
    process.kill()
    process.communicate()
    for path in checkpoint.latest(folder / "checkpoints"):
        checkpoint.verify(path)
    return is_hit


def finish(folder: pathlib.Path, reference: Reference) -> None:
    """Gives the same command once more, and checks that the run ends as if it had not been broken off."""
    process = start(folder)
    out, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, ""), out
    assert_is_the_whole_run(folder, reference)


@pytest.mark.slow
def test_a_run_killed_three_times_ends_as_if_it_had_not_been(tmp_path: pathlib.Path, reference: Reference) -> None:
    rng = random.Random(1)
    hits = [kill(tmp_path, rng.uniform(0.0, 0.25 * reference.train_s), "compiled in") for _ in range(3)]
    assert hits[0]
    finish(tmp_path, reference)


@pytest.mark.slow
def test_twenty_kills_at_any_time_lose_nothing(tmp_path: pathlib.Path, reference: Reference) -> None:
    rng, hits, longest_s = random.Random(2), 0, reference.whole_s
    for index in range(40):
        # Two kills each, as a run that is killed late again and again is soon at its end.
        for _ in range(2):
            delay_s = rng.uniform(0.0, longest_s)
            is_hit = kill(tmp_path / str(index), delay_s)
            hits += is_hit
            # The machine may be faster now than it was for the reference.
            longest_s = longest_s if is_hit else max(delay_s, 1.5)
        finish(tmp_path / str(index), reference)
        if hits >= 20:
            return
    raise AssertionError(f"{hits} kills of 80 hit a living process")


@pytest.mark.parametrize(
    ("number", "code"),
    marks.some(
        {"terminate": (signal.SIGTERM, 143), "interrupt": (signal.SIGINT, 130), "hangup": (signal.SIGHUP, 129)},
        fast={"interrupt"},
    ),
)
def test_a_signal_saves_and_leaves_at_once(
    number: int, code: int, tmp_path: pathlib.Path, reference: Reference
) -> None:
    process = start(tmp_path)
    wait_for_checkpoints(tmp_path)
    process.send_signal(number)
    out, error = process.communicate(timeout=conftest.SOON_S)
    assert (process.returncode, error) == (code, "")
    assert "stopped and saved; the same command goes on from" in out
    assert not temporary_folders(tmp_path)
    stopped = summary_of(tmp_path)
    assert checkpoint.latest(tmp_path / "checkpoints")[0].name == f"step_{stopped['env_steps']:012d}"
    resumed = start(tmp_path)
    _, error = resumed.communicate(timeout=120)
    assert (resumed.returncode, error) == (0, "")
    assert_is_the_whole_run(tmp_path, reference)
    assert summary_of(tmp_path)["resumed_from"] == stopped["env_steps"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_compiling_does_not_wait_for_the_compiler(
    number: int, code: int, tmp_path: pathlib.Path, reference: Reference
) -> None:
    # Of a size of its own, so that the program is not in the cache.
    process = start(tmp_path, f"--network.hidden_sizes={random.randrange(20, 200)},{20 + number}")
    assert wait_for(process, "folder")
    time.sleep(0.3)
    process.send_signal(number)
    out, error = process.communicate(timeout=conftest.SOON_S)
    assert (process.returncode, error) == (code, "")
    assert "stopped while compiling; there was nothing new to save" in out


@pytest.mark.slow
def test_a_second_interrupt_aborts_at_once_and_no_child_is_left(tmp_path: pathlib.Path) -> None:
    code = """
        import sys, time
        from jaxrl_dist.runs import checkpoint
        from jaxrl_dist.commands import train
        save = checkpoint.save
        def slow(*args):
            print("saving", flush=True)
            time.sleep(120)
        checkpoint.save = slow
        flags = dict(flag.removeprefix("--").split("=") for flag in sys.argv[1:])
        sys.exit(train.train(flags))
    """
    process = start_code(code, "--system=ppo", f"--env={TOY}", *FLAGS, f"--out={tmp_path}")
    assert wait_for(process, "saving")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    children = _children(process.pid)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=conftest.SOON_S)
    assert (process.returncode, error) == (130, "")
    assert not [child for child in children if pathlib.Path(f"/proc/{child}").exists()]


def _children(pid: int) -> list[int]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def test_of_two_trainers_on_one_folder_the_second_is_refused(tmp_path: pathlib.Path) -> None:
    with run_folder.lock(tmp_path):
        process = start(tmp_path)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert error.startswith(f"train.py: --out={tmp_path} is in use by a running trainer") and error.count("\n") == 1


@pytest.mark.slow
def test_divergence_is_one_line_and_exit_code_one(tmp_path: pathlib.Path) -> None:
    process = start(tmp_path, "--learner.learning_rate=1e38", "--nolearner.anneal")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error.startswith("train.py: not finite in iteration ") and error.count("\n") == 1
    assert (tmp_path / "failure" / "state").is_dir()


@pytest.mark.slow
def test_corrupt_checkpoints_are_one_line_each_and_exit_code_one(tmp_path: pathlib.Path, reference: Reference) -> None:
    folder = tmp_path / "run"
    shutil.copytree(reference.folder, folder)
    steps = checkpoint.latest(folder / "checkpoints")
    for path in steps:
        (path / "manifest.json").write_text("{}")
    process = start(folder, "--steps=20000")
    _, error = process.communicate(timeout=60)
    lines = error.splitlines()
    assert process.returncode == 1 and len(lines) == len(steps) + 1
    assert all(line.startswith("train.py: warning: passing over a corrupt checkpoint") for line in lines[:-1])
    assert lines[-1].startswith("train.py: ") and "checkpoints are corrupt; put back a copy" in lines[-1]


@pytest.fixture
def tiny_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 1 MiB."""
    with checkpoints.small_disk(tmp_path / "disk", 1) as folder:
        yield folder


@pytest.mark.slow
def test_a_full_disk_is_loud_and_the_run_goes_on_once_there_is_room(
    tiny_disk: pathlib.Path, reference: Reference
) -> None:
    folder, filler = tiny_disk / "run", tiny_disk / "filler"
    process = start(folder)
    try:
        wait_for_checkpoints(folder)
        while process.poll() is None:
            try:
                with filler.open("ab") as file:
                    file.write(bytes(4096))
            except OSError:
                time.sleep(0.01)
    finally:
        # The disk could not be unmounted while it lives.
        process.kill()
        _, error = process.communicate()
    assert process.returncode == 1 and "No space left on device" in error.splitlines()[-1]
    assert all(line.startswith("train.py: ") for line in error.splitlines())
    whole = checkpoint.latest(folder / "checkpoints")
    assert whole
    for path in whole:
        checkpoint.verify(path)
    filler.unlink()
    resumed = start(folder)
    _, error = resumed.communicate(timeout=120)
    assert (resumed.returncode, error) == (0, "")
    assert summary_of(folder)["params_sha256"] == reference.sha256


def wait_for_handlers(process: subprocess.Popen[str]) -> None:
    """Waits until a process catches SIGTERM; Python by itself does not."""
    while process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.01)


@pytest.mark.parametrize("delay_s", [pytest.param(0.1, marks=pytest.mark.slow), 0.9])
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow), (signal.SIGINT, 130)]
)
def test_a_signal_while_libraries_are_imported_ends_the_process_silently(
    number: int, code: int, delay_s: float, tmp_path: pathlib.Path
) -> None:
    process = start(tmp_path, "--steps=10_000_000")
    wait_for_handlers(process)
    time.sleep(delay_s)
    process.send_signal(number)
    _, error = process.communicate(timeout=conftest.SOON_S)
    assert (process.returncode, error) == (code, "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", marks.some(["early", "closed"], fast={"early"}))
def test_a_run_whose_output_nobody_reads_goes_on_to_its_end(kind: str, tmp_path: pathlib.Path) -> None:
    """`train.py | head -1` and `train.py >&-`: no traceback, no other exit code."""
    if kind == "early":
        process = start(tmp_path)
        assert process.stdout and process.stdout.readline()
        process.stdout.close()
    else:
        command = [sys.executable, str(SCRIPT), "--system=ppo", f"--env={TOY}", *FLAGS, f"--out={tmp_path}"]
        process = _popen(["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command])
    assert process.stderr
    error = process.stderr.read()
    assert process.wait(timeout=120) == 0
    assert "Traceback" not in error and error.count("\n") <= 1
    assert summary_of(tmp_path)["reason"] == "finished"


@pytest.mark.slow
def test_an_evaluation_ends_silently_at_an_interrupt(reference: Reference) -> None:
    script = ROOT / "scripts" / "evaluate.py"
    for delay_s in (0.1, 0.6, 2.6):
        process = _popen([sys.executable, str(script), f"--run={reference.folder}", "--episodes=1000000"])
        wait_for_handlers(process)
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=conftest.SOON_S) == ("", "")
        assert process.returncode == 130
