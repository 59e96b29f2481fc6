"""The launcher with stand-ins for its processes: a signal while they start reaches them all, and a kill ends them."""

import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import conftest
import pytest
from fakes import lives

from jaxrl_dist import commands
from jaxrl_dist.commands import launch
from jaxrl_dist.processes import service

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Launches two processes that sleep, and note their numbers; makes a file once both are watched.
LAUNCHER = """
import pathlib, sys, time
from jaxrl_dist import commands
from jaxrl_dist.commands import launch
here, sleep = pathlib.Path(sys.argv[1]), time.sleep
commands.command_of = lambda name: ["sh", "-c", f"echo $$ >> {here}/numbers; exec sleep 60"]
time.sleep = lambda seconds: ((here / "watched").touch(), sleep(seconds))
launch.run(2, [])
"""


@pytest.fixture
def sleepers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The processes that the launcher starts, which sleep; SIGTERM comes as the second has begun."""
    made = list[Any]()

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            made.append(self)
            if len(made) == 2:
                signal.raise_signal(signal.SIGTERM)

    before = [signal.getsignal(number) for number in SIGNALS]
    monkeypatch.setattr(commands, "command_of", lambda name: ["sh", "-c", "exec sleep 20"])
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    yield made
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)
    for process in made:
        process.kill()
        process.wait()


def test_a_signal_while_processes_start_reaches_all_of_them(sleepers: list[Any]) -> None:
    assert launch.run(4, []) == 128 + signal.SIGTERM
    # The others, which would only join them, are not started any more.
    assert [process.returncode for process in sleepers] == [-signal.SIGTERM] * 2


def test_who_fails_first_says_the_code_and_the_others_are_ended(
    sleepers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = iter(["exec sleep 20", "sleep 0.5; exit 3", "exec sleep 20"])
    monkeypatch.setattr(commands, "command_of", lambda name: ["sh", "-c", next(codes)])
    monkeypatch.setattr(launch, "_END_OTHERS_S", 0.1)
    # No signal comes here.
    monkeypatch.setattr(signal, "raise_signal", lambda number: None)
    assert launch.run(3, []) == 3
    assert [process.returncode for process in sleepers] == [-signal.SIGTERM, 3, -signal.SIGTERM]


@pytest.mark.parametrize("count", [1, 2])
def test_flags_of_several_processes_go_to_each(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[tuple[int, list[str]]]()
    monkeypatch.setattr(launch, "run", lambda count, flags: ran.append((count, flags)) or 0)
    arguments = [f"--processes={count}", "--", "train", "--env=toy:walk", "--heartbeat_s=20"]
    if count == 1:
        with conftest.refused("--heartbeat_s=20", "--processes"):
            launch.main(arguments)
    else:
        assert launch.main(arguments) == 0
    assert ran == [(2, ["--env=toy:walk", "--heartbeat_s=20"])] * (count == 2)


def test_after_a_signal_who_still_saves_gets_no_other(sleepers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    saves = "n=0; trap 'n=$((n+1)); test $n = 1 || exit 9' TERM; for i in $(seq 20); do sleep 0.1; done"
    codes = iter([saves, "exec sleep 20"])
    monkeypatch.setattr(commands, "command_of", lambda name: ["sh", "-c", next(codes)])
    monkeypatch.setattr(launch, "_END_OTHERS_S", 0.1)
    assert launch.run(2, []) == 128 + signal.SIGTERM
    assert [process.returncode for process in sleepers] == [0, -signal.SIGTERM]


def test_a_child_imports_nothing_from_the_folder_where_it_is_started(tmp_path: pathlib.Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    command = [*commands.command_of("train"), "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=service.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_hangup_that_nohup_ignores_stays_ignored(sleepers: list[Any]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    launch.run(2, [])
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_processes_end_with_a_launcher_that_is_killed(tmp_path: pathlib.Path) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)], cwd=conftest.PACKAGE.parent)
    numbers, until_s = tmp_path / "numbers", time.monotonic() + 2 * conftest.SOON_S
    while time.monotonic() < until_s and not (
        (tmp_path / "watched").exists() and numbers.exists() and numbers.read_text().count("\n") == 2
    ):
        time.sleep(0.05)
    launcher.kill()
    launcher.wait()
    started = [int(number) for number in numbers.read_text().split()]
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s and any(map(lives.is_alive, started)):
        time.sleep(0.05)
    assert [lives.is_alive(number) for number in started] == [False, False]


@pytest.mark.parametrize(
    ("named", "files", "expected"),
    [
        (None, 4, ["0,2", "1,3"]),
        (None, 1, [None, None]),
        (None, 0, [None, None]),
        ("5,6,7", 4, ["5", "6"]),
        ("5,6,7,8,9", 4, ["5,7", "6,8"]),
        ("", 4, [None, None]),
    ],
)
def test_processes_share_the_gpus_that_are_named_or_there(
    named: str | None, files: int, expected: list[str | None], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{i}" for i in range(files))):
        (tmp_path / name).touch()
    monkeypatch.setattr(launch, "_DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    found = launch._gpus()
    assert [launch._accelerators(found, index, 2).get("CUDA_VISIBLE_DEVICES") for index in range(2)] == expected
    gpus = named.split(",") if named else [str(i) for i in range(files)]
    given = {gpu for one in expected if one for gpu in one.split(",")}
    # Without enough for all, every process sees every one.
    assert list(launch._idle(found, 2)) == [gpu for gpu in gpus if given and gpu not in given]


def test_a_child_finds_the_package_where_it_is_not_installed(tmp_path: pathlib.Path) -> None:
    # Without the folder of installed packages, from elsewhere: only what the environment names.
    command = [sys.executable, "-S", "-c", "import jaxrl_dist.errors; print(jaxrl_dist.errors.__file__)"]
    for environ, code in ((service.environ(), 0), ({**service.environ(), "PYTHONPATH": ""}, 1)):
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == code
