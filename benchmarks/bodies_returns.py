"""Return against minutes on bodies that the accelerator simulates, ours and Brax's own PPO in turns on one machine.

`python benchmarks/bodies_returns.py [--tasks=ant,humanoid] [--seeds=5] [--steps=50_000_000] --peers=.venv-peers`
learns each task with `gpu_sim` and with Brax's trainer, seed by seed, and prints the return of each after so many
minutes of its process, with compiling and evaluations. After an interruption, the same command goes on.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import pairs
import scaling

HERE = pathlib.Path(__file__).resolve().parent
GOALS = {"ant": 4000.0, "humanoid": 5000.0}
MARKS_MINUTES = (1, 2, 4, 8, 16)
SIDES = ("ours", "Brax")


def main(arguments: list[str]) -> int:
    """Learns and prints; returns the exit code."""
    options = _parser().parse_args(arguments)
    device = scaling.find_device(options.python)
    if scaling.lacks_gpu(options, device):
        print(f"not measured: no GPU ({device})")
        return 0
    marks = " | ".join(f"{minutes} min" for minutes in MARKS_MINUTES)
    print(
        f"| task | side | seeds | {marks} | at the end | to the goal | minutes |\n|{'---|' * (len(MARKS_MINUTES) + 6)}"
    )
    for task in options.tasks:
        curves: dict[str, list[list[dict[str, float]]]] = {side: [] for side in SIDES}
        for seed in range(options.seed, options.seed + options.seeds):
            # The sides take turns in going first, since each meets the machine as the other leaves it.
            for side in SIDES if seed % 2 == 0 else SIDES[::-1]:
                folder = options.out / f"{task}_{options.steps}_{options.num_envs}" / f"{side}_{seed}"
                learn = _learn_ours if side == "ours" else _learn_brax
                curves[side].append(learn(task, seed, folder, options))
        for side in SIDES:
            print(_line(task, side, curves[side]), flush=True)
    return 0


def _learn_ours(task: str, seed: int, folder: pathlib.Path, options: argparse.Namespace) -> list[dict[str, float]]:
    flags = ["--system=gpu_sim", f"--env=brax:{task}", f"--env.params.backend={options.backend}"]
    flags += [f"--env.num_envs={options.num_envs}", f"--steps={options.steps}", f"--seed={seed}", f"--out={folder}"]
    flags += [f"--evaluation.interval_steps={options.steps // options.evaluations}"]
    started_s = time.time()
    _run([options.python, str(HERE.parent / "scripts" / "train.py"), *flags], folder)
    # The run's clock starts behind imports and the start of the device, as its config is written.
    before_s = max(0.0, (folder / "config.json").stat().st_mtime - started_s)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [record for record in records if record["kind"] == "eval"]
    return [
        {"minutes": (before_s + r["wall_s"]) / 60, "return": r["eval_return"], "steps": r["env_steps"]}
        for r in evaluations
    ]


def _learn_brax(task: str, seed: int, folder: pathlib.Path, options: argparse.Namespace) -> list[dict[str, float]]:
    """Brax's trainer keeps no checkpoints, so what was cut short begins anew."""
    curve, part = folder / "curve.jsonl", folder / "part.jsonl"
    if not curve.exists():
        part.unlink(missing_ok=True)
        python = options.peers / "brax" / "bin" / "python"
        flags = [f"--env={task}", f"--backend={options.backend}", f"--num_envs={options.num_envs}"]
        flags += [f"--steps={options.steps}", f"--evaluations={options.evaluations}", f"--seed={seed}", f"--out={part}"]
        _run([str(python), str(HERE / "peer_brax_returns.py"), *flags], folder)
        part.rename(curve)
    return [json.loads(line) for line in curve.read_text().splitlines()]


def _run(command: list[str], folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with (folder / "log.txt").open("a") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        sys.exit(f"bodies_returns.py: {folder.name} ended with code {code}; see {folder / 'log.txt'}")
    pairs.append_record(folder / "machine.jsonl", {**pairs.machine(), "seconds": time.perf_counter() - started})


def _line(task: str, side: str, curves: list[list[dict[str, float]]]) -> str:
    """Means over seeds of the last evaluation by each minute, and of the minutes to the goal where all came to it."""
    cells = []
    for mark in MARKS_MINUTES:
        reached = [[r["return"] for r in curve if r["minutes"] <= mark] for curve in curves]
        cells.append(f"{statistics.mean(x[-1] for x in reached):,.0f}" if all(reached) else "–")
    goal = GOALS.get(task, float("inf"))
    first = [next((r["minutes"] for r in curve if r["return"] >= goal), None) for curve in curves]
    hits = [minutes for minutes in first if minutes is not None]
    to_goal = f"{statistics.mean(hits):.1f} min" if len(hits) == len(curves) else f"{len(hits)} of {len(curves)} seeds"
    end = statistics.mean(curve[-1]["return"] for curve in curves)
    minutes = statistics.mean(curve[-1]["minutes"] for curve in curves)
    marks = " | ".join(cells)
    return f"| {task} | {side} | {len(curves)} | {marks} | {end:,.0f} | {goal:,.0f}: {to_goal} | {minutes:.1f} |"


def _parser() -> argparse.ArgumentParser:
    parser = scaling.parser(__doc__, "runs/bench/returns")
    parser.add_argument("--tasks", type=lambda text: tuple(text.split(",")), default=tuple(GOALS))
    parser.add_argument("--steps", type=int, default=50_000_000)
    parser.add_argument("--num_envs", type=int, default=4096)
    parser.add_argument("--evaluations", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--backend", choices=("generalized", "mjx", "positional", "spring"), default="spring")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
