"""Trains PPO for 100,000 steps on tasks with trees, masks or vectors of choices, with the settings of their family.

    python benchmarks/first_steps.py [--rows=jumanji,pgx] [--steps=100000]

The table `first_steps.jsonl` has for each task its observation and actions, the mean return of the first evaluation and
of the last, and seconds; rows that it has are left as they are. A task whose package is not installed is skipped.
"""

import argparse
import datetime
import importlib.util
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jsonl  # noqa: E402

import jaxrl_dist  # noqa: E402
from jaxrl_dist import envs, types  # noqa: E402
from jaxrl_dist.runs import software  # noqa: E402

TABLE = HERE / "first_steps.jsonl"
# Task -> parameters of the environment.
TASKS: dict[str, dict[str, str]] = {
    "gymnasium:Blackjack-v1": {},
    "envpool:CartpoleSwingup-v1": {},
    "envpool:CheetahRun-v1": {},
    "jumanji:Game2048-v1": {},
    "jumanji:Snake-v1": {},
    "jumanji:Maze-v0": {},
    "jumanji:Tetris-v0": {},
    "jumanji:Minesweeper-v0": {},
    "jumanji:GraphColoring-v1": {},
    "jumanji:Knapsack-v1": {},
    "jumanji:RubiksCube-partly-scrambled-v0": {},
    "jumanji:SlidingTilePuzzle-v0": {},
    "jumanji:Cleaner-v0": {},
    "jumanji:RobotWarehouse-v0": {},
    "pgx:tic_tac_toe": {},
    "pgx:connect_four": {},
    "pgx:2048": {},
    "pgx:othello": {},
    "pgx:kuhn_poker": {},
    "pgx:leduc_holdem": {},
    "xminigrid:MiniGrid-Empty-5x5": {},
    "xminigrid:MiniGrid-DoorKey-5x5": {},
    "xminigrid:MiniGrid-MemoryS8": {},
}


def described(spec: types.EnvironmentSpec) -> dict[str, Any]:
    """Returns what is seen and chosen: number of leaves, their numbers together, kind of action, and the mask."""
    leaves = types.named_leaves(spec.observation)
    action = spec.action
    choices = str(action.num_values) if not isinstance(action, types.BoxSpace) else f"f32{list(action.shape)}"
    return {"leaves": len(leaves), "numbers": sum(leaf.size for leaf in leaves.values()), "actions": choices} | {
        "mask": spec.mask,
        "categories": sorted(spec.categories),
    }


def trained(task: str, steps: int) -> dict[str, Any]:
    """Trains PPO, and returns a row."""
    settings = {f"env.params.{name}": value for name, value in TASKS[task].items()}
    settings |= {"evaluation.interval_steps": steps // 2, "evaluation.episodes": 32}
    start, records = time.monotonic(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        arguments: dict[str, Any] = {"settings": settings, "callbacks": [records.append]}
        run = jaxrl_dist.train("ppo", task, steps=steps, out=f"{folder}/run", **arguments)
    wall_s = round(time.monotonic() - start, 1)
    returns = [round(float(record["eval_return"]), 3) for record in records if record["kind"] == "eval"]
    return {"first": returns[0], "last": returns[-1], "env_steps": run.summary["env_steps"], "wall_s": wall_s}


def main() -> None:
    """Runs the tasks that the table does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="beginnings of names of tasks, separated by commas")
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    for task in jsonl.chosen(TASKS, options.rows):
        if task in jsonl.read(TABLE) or importlib.util.find_spec(task.partition(":")[0]) is None:
            continue
        row = described(envs.make(task, TASKS[task]).spec) | trained(task, options.steps)
        row |= {"commit": software.commit(), "date": datetime.date.today().isoformat()}
        jsonl.put(TABLE, TASKS, task, row)
        print(task, row, flush=True)


if __name__ == "__main__":
    main()
