"""Does Ape-X gain from more actors at equal minutes? `python benchmarks/more_actors.py [--seconds=60] [--seeds=3]`

Every actor has 8 environments with ε of their own, and the learner makes equally many updates per iteration for any
number of actors, so rows are replayed less often if they come faster. Runs are stopped after so many seconds of
training, as by Ctrl-C, and their last evaluation counts. A run that is in the folder is not run again.
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import numpy as np  # noqa: E402

from jaxrl_dist.runs import aggregate  # noqa: E402

_POLL_S = 0.5


def run(folder: pathlib.Path, actors: int, seed: int, seconds: float, flags: list[str]) -> None:
    """Trains for so many seconds after the first record."""
    ratio = 8.0 / actors
    command = [
        sys.executable, str(HERE.parent / "scripts" / "train.py"), "--system=apex_dqn", "--env=envpool:CartPole-v1",
        f"--layout.num_actors={actors}", f"--env.num_envs={8 * actors}", f"--replay.samples_per_insert={ratio}",
        "--replay.capacity=51200", "--layout.policy_lag=free", f"--seed={seed}", "--steps=100_000_000",
        "--log.interval_steps=2000", f"--evaluation.interval_steps={10_000 * actors}", f"--out={folder}", *flags,
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        began_s = None
        while process.poll() is None and (began_s is None or time.monotonic() - began_s < seconds):
            time.sleep(_POLL_S)
            if began_s is None and records(folder):
                began_s = time.monotonic()
        process.send_signal(signal.SIGINT)


def records(folder: pathlib.Path) -> list[dict]:
    """Returns the records of a run, none where it has not begun."""
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Runs what is missing and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", default="1,2,4,8")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/more_actors"))
    options, flags = parser.parse_known_args()
    print("| actors | return, IQM [95 %] | steps | updates |\n| --- | --- | --- | --- |")
    for actors in map(int, options.actors.split(",")):
        returns, steps, updates = [], [], []
        for seed in range(options.seeds):
            folder = options.out / f"actors{actors}" / f"seed{seed}"
            if not any(record["kind"] == "eval" for record in records(folder)):
                run(folder, actors, seed, options.seconds, flags)
            done = records(folder)
            last = [record for record in done if record["kind"] == "eval"][-1]
            returns.append(last["eval_return"])
            steps.append(done[-1]["env_steps"])
            updates.append(done[-1]["learner_steps"])
        low, high = aggregate.interval(np.asarray(returns))
        score = f"{aggregate.interquartile_mean(np.asarray(returns)):.1f} [{low:.1f}, {high:.1f}]"
        print(f"| {actors} | {score} | {np.median(steps):,.0f} | {np.median(updates):,.0f} |", flush=True)


if __name__ == "__main__":
    main()
