"""Faults of a run of two processes, forced and timed: `python benchmarks/process_faults.py [--rows=kill]`.

Each row is a run of the toy environment with two virtual devices a process. In `kill` a process is killed at a random
time, in `save` inside a save; in `stop` it stands still (SIGSTOP). The same commands then end the run, whose parameters
must be those of the run in one piece, bit for bit. `term` sends SIGTERM, and resumes likewise; in `raise` an
environment of process 1 raises. Seconds are from the fault to the end of the last process that is left. A row that is
in `process_faults.jsonl` is not run again.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jsonl  # noqa: E402

from jaxrl_dist.runs import checkpoint, software  # noqa: E402

TABLE = HERE / "process_faults.jsonl"
ROWS = {
    f"{kind}_{i}": kind
    for kind, n in (("kill", 7), ("save", 3), ("stop", 3), ("term", 5), ("raise", 5))
    for i in range(n)
}
FLAGS = (
    *("--system=ppo", "--env=toy:walk", "--env.num_envs=8", "--layout.unroll_length=16", "--learner.epochs=2"),
    *("--network.hidden_sizes=64", "--log.interval_steps=1280", "--evaluation.interval_steps=2560"),
    *("--evaluation.episodes=4", "--checkpoint.interval_s=0"),
)
ANAKIN = (*FLAGS, "--layout=anakin", "--layout.num_devices=4", "--learner.minibatches=2", "--steps=51_200")
SEBULBA = (*FLAGS, "--layout=sebulba", "--layout.policy_lag=1", "--learner.minibatches=1", "--steps=100_000_000")
# Longest wait for anything here, with programs to compile on a busy machine.
_SOON_S = 240.0


def start(folder: pathlib.Path, flags: tuple[str, ...], heartbeat_s: float, fake: str = "") -> list[Any]:
    """Starts two processes; `fake` says how the environments of process 1 misbehave, see `tests/fakes`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        joining = ("--processes=2", f"--coordinator=127.0.0.1:{free.getsockname()[1]}", f"--heartbeat_s={heartbeat_s}")
    root = HERE.parent
    program = (
        (str(root / "tests" / "fakes" / "in_processes.py"), fake) if fake else (str(root / "scripts" / "train.py"),)
    )
    environment = os.environ | {
        **{"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "PYTHONUNBUFFERED": "1"},
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}",
    }
    commands = [
        [sys.executable, *program, *flags, f"--out={folder}", *joining, f"--process_index={index}"]
        for index in range(2)
    ]
    pipe: Any = subprocess.PIPE
    return [subprocess.Popen(one, stdout=pipe, stderr=pipe, text=True, env=environment) for one in commands]


def finish(folder: pathlib.Path, heartbeat_s: float) -> str:
    """Runs the commands to the end; returns the digest of the parameters."""
    for process in start(folder, ANAKIN, heartbeat_s):
        _, error = process.communicate(timeout=_SOON_S)
        assert (process.returncode, error) == (0, ""), error
    assert not unfinished(folder)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return str(summary["params_sha256"])


def unfinished(folder: pathlib.Path) -> list[str]:
    """Returns the names of checkpoints that are being written."""
    return [path.name for path in (folder / "checkpoints").glob(".new*")]


def wait(is_true: Any, process: Any, pause_s: float) -> bool:
    """Waits until something is true; False where the process ends before."""
    while not is_true():
        if process.poll() is not None:
            return False
        time.sleep(pause_s)
    return True


def measure(kind: str, number: int, heartbeat_s: float) -> dict[str, Any]:
    """Forces one fault; returns what was seen."""
    rng = random.Random(f"{kind} {number}")
    index = 1 if kind == "raise" else rng.randrange(2)
    with tempfile.TemporaryDirectory() as where:
        folder = pathlib.Path(where)
        started = start(folder, SEBULBA if kind == "raise" else ANAKIN, heartbeat_s, "raises" * (kind == "raise"))
        faulty, other = started[index], started[1 - index]
        if kind == "raise":
            wait((folder / "misbehaved").exists, other, 0.001)
            began_s = time.monotonic()
        else:
            # At a random time, with the first saves still to come or behind it.
            assert wait(lambda: (folder / "checkpoints").is_dir(), other, 0.01), "the run ended before its fault"
            time.sleep(rng.uniform(0.0, 4.0))
            if kind == "save":
                assert wait(lambda: unfinished(folder), other, 0.0002), "the run ended before its fault"
            began_s = time.monotonic()
            faulty.send_signal({"term": signal.SIGTERM, "stop": signal.SIGSTOP}.get(kind, signal.SIGKILL))
        left = [other] if kind in ("kill", "save", "stop") else started
        lines = [process.communicate(timeout=_SOON_S)[1] for process in left]
        row: dict[str, Any] = {"process": index, "seconds": round(time.monotonic() - began_s, 2)}
        row |= {"codes": [process.returncode for process in left], "lines": [line.count("\n") for line in lines]}
        if kind == "save":
            row["inside"] = bool(unfinished(folder))
        if kind == "stop":
            faulty.send_signal(signal.SIGCONT)
        faulty.communicate(timeout=_SOON_S)
        for one in checkpoint.latest(folder / "checkpoints"):
            checkpoint.verify(one)
        if kind != "raise":
            row["resumed"] = finish(folder, heartbeat_s)
        return row | {"error": lines[0].strip()[:200]}


def main() -> None:
    """Runs what is missing, and prints a line of each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="beginnings of the rows to run, with commas between")
    parser.add_argument("--heartbeat", type=float, default=4.0, help="seconds of --heartbeat_s")
    options = parser.parse_args()
    names = ["whole", *ROWS]
    if "whole" not in jsonl.read(TABLE):
        with tempfile.TemporaryDirectory() as folder:
            whole = {"resumed": finish(pathlib.Path(folder), options.heartbeat), "commit": software.commit()}
        jsonl.put(TABLE, names, "whole", whole)
    for name, kind in jsonl.chosen(ROWS, options.rows).items():
        if name not in jsonl.read(TABLE):
            jsonl.put(TABLE, names, name, measure(kind, int(name.rpartition("_")[2]), options.heartbeat))
            print(name, jsonl.read(TABLE)[name], file=sys.stderr)
    table = jsonl.read(TABLE)
    print("| fault | runs | resumed bit for bit | exit codes | seconds until all others have ended |")
    print("|---|---|---|---|---|")
    for kind in dict.fromkeys(ROWS.values()):
        found = [row for name, row in table.items() if ROWS.get(name) == kind]
        same = sum(row.get("resumed") == table["whole"]["resumed"] for row in found)
        codes = sorted({code for row in found for code in row["codes"]})
        times = [row["seconds"] for row in found] or [0.0]
        told = "–" if kind == "raise" else same
        print(f"| {kind} | {len(found)} | {told} | {codes} | {min(times)} to {max(times)} |")


if __name__ == "__main__":
    main()
