"""Do two processes learn what one learns? `python benchmarks/process_learning.py [--rows=cartpole]`

Each row is a run of one seed, in one process or in two that are launched on this machine, with the same flags; under
Sebulba each of two processes has its own actors, half of all, and the players of its own fleet where it is one. A row
that is in `process_learning.jsonl` is not run again. The end prints a table of all rows.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jsonl  # noqa: E402

from jaxrl_dist.runs import software  # noqa: E402

TABLE = HERE / "process_learning.jsonl"
_SHORT = "--steps=150_000"
_CARTPOLE = ("--system=ppo", "--env=gymnax:CartPole-v1", "--layout=anakin", _SHORT)
_FLEET = ("--layout.fleet=local", "--layout.timeout_s=120")
_CHEETAH = ("--preset=ppo/halfcheetah", "--layout.policy_lag=1", "--steps=300_000")
# Of each task: seeds, flags of every run, and those of the runs in one process and in two. At a lag of 1 players teach
# what as many threads do, bit for bit.
TASKS = {
    "cartpole": (5, _CARTPOLE, (), ()),
    "cartpole_fleet": (
        *(5, ("--system=ppo", "--env=envpool:CartPole-v1", "--layout=sebulba", "--layout.policy_lag=1", _SHORT)),
        *(("--layout.num_actors=4",), ("--layout.num_actors=2", *_FLEET)),
    ),
    "halfcheetah": (10, _CHEETAH, ("--layout.num_actors=4",), ("--layout.num_actors=2",)),
    "halfcheetah_fleet": (3, _CHEETAH, ("--layout.num_actors=4", *_FLEET), ("--layout.num_actors=2", *_FLEET)),
}


def rows() -> dict[str, tuple[int, tuple[str, ...]]]:
    """Returns name -> number of processes and flags of each run."""
    return {
        f"{task}_{processes}_{seed}": (processes, (*flags, *own, f"--seed={seed}"))
        for task, (seeds, flags, *of_each) in TASKS.items()
        for seed in range(seeds)
        for processes, own in zip((1, 2), of_each, strict=True)
    }


def train(processes: int, flags: tuple[str, ...]) -> dict[str, Any]:
    """Trains in so many processes; returns what the summary says."""
    with tempfile.TemporaryDirectory() as folder:
        command = [f"--processes={processes}", "--", "train", *flags, f"--out={folder}/run"]
        script = HERE.parent / "scripts" / "launch.py"
        subprocess.run([sys.executable, script, *command], check=True, stdout=subprocess.DEVNULL)
        summary = json.loads(pathlib.Path(folder, "run", "summary.json").read_text(encoding="utf-8"))
    kept = ("eval_return_mean", "best_return", "env_steps", "train_s", "num_devices")
    return {name: summary[name] for name in kept} | {"commit": software.commit()}


def main() -> None:
    """Runs what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="beginnings of the rows to run, with commas between")
    arguments = parser.parse_args()
    for name, (processes, flags) in jsonl.chosen(rows(), arguments.rows).items():
        if name not in jsonl.read(TABLE):
            jsonl.put(TABLE, rows(), name, train(processes, flags))
            print(name, jsonl.read(TABLE)[name]["eval_return_mean"], file=sys.stderr)
    table = jsonl.read(TABLE)
    print("| task | processes | evaluation return of each seed | mean | best of each seed | training, s |")
    print("|---|---|---|---|---|---|")
    for task in TASKS:
        for processes in (1, 2):
            found = [row for name, row in table.items() if name.rpartition("_")[0] == f"{task}_{processes}"]
            if found:
                ends, bests = ([row[key] for row in found] for key in ("eval_return_mean", "best_return"))
                cells = (
                    *(task, processes, " ".join(f"{end:.0f}" for end in ends), f"{statistics.fmean(ends):.0f}"),
                    " ".join(f"{best:.0f}" for best in bests),
                    f"{statistics.median(row['train_s'] for row in found):.0f}",
                )
                print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
