"""Compares predicted and measured seconds of an iteration on a core: `python benchmarks/predicted.py [--rows=ppo]`.

A prediction is read from the CPU's own compiled program, as for devices that are not there; then the same program runs.
Both are of one core: the process keeps to one, and what is measured is processor time, so that others on the machine
disturb it little. With `--write` the numbers replace those of `predicted.jsonl`.
"""

import argparse
import math
import os
import pathlib
import statistics
import sys
import time
from typing import Any

# Before JAX counts the cores.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ["JAX_PLATFORMS"] = "cpu"
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import compiled as compiled_table  # noqa: E402
import jax  # noqa: E402
import jsonl  # noqa: E402
import rows as pairs  # noqa: E402

from jaxrl_dist.runs import software  # noqa: E402
from jaxrl_dist.training import assemble, compiled, targets  # noqa: E402

TABLE = HERE / "predicted.jsonl"
ROUNDS = 5
ROUND_S = 0.4


def rows() -> dict[str, dict[str, Any]]:
    """Returns the flags of every program: those of `compiled.py` that a core runs in seconds, and those of pairs."""
    found = {name: flags for name, flags in compiled_table.programs().items() if name not in compiled_table.NAMED}
    for name in ("ppo_large", "dqn_large"):
        found[name] = compiled_table.NAMED[name]
    for name, row in (
        ("ppo_small", "cartpole_small_baseline"),
        ("ppo_ten_seeds", "ten_seeds"),
        ("ppo_breakout", "minatar_baseline"),
        ("ppo_breakout_cnn", "minatar_cnn_baseline"),
        ("dqn_ten", "dqn_rejax"),
        ("ppo_ant_small", "ant_brax"),
    ):
        flags = next(one.ours for one in pairs.ROWS if one.name == row)
        found[name] = dict(one.removeprefix("--").split("=", 1) for one in flags if not one.startswith("--chunk"))
    lstm = compiled_table.NAMED["ppo_lstm"]
    found["ppo_lstm_small"] = {**lstm, "env.num_envs": 16}
    return {name: {**flags, "layout": "anakin", "layout.num_devices": 1} for name, flags in found.items()}


def measure(flags: dict[str, Any]) -> float:
    """Returns the processor seconds of an iteration, the median of rounds after warm-up."""
    settings, environment = assemble.resolve(flags)
    parts = assemble.assemble(settings, environment, jax.devices()[:1])
    layout = parts.layout
    total, iteration, state = 10_000_000, 0, layout.init(assemble.seed_keys(settings))
    # Until a replay has rows enough, and once more for the first use of what is learned.
    warm = 2 + -(-settings.settings.get("replay.min_size", 0) // layout.rows_per_iteration)

    def run(count: int) -> float:
        nonlocal state, iteration
        started_s = time.process_time()
        state, _ = layout.run(state, iteration, count, total)
        jax.block_until_ready(state)
        iteration += count
        return time.process_time() - started_s

    run(warm)
    count = max(1, round(ROUND_S / max(run(1), 1e-6)))
    count = max(1, round(ROUND_S * count / run(count)))
    return statistics.median(run(count) / count for _ in range(ROUNDS))


def predict(flags: dict[str, Any]) -> float:
    """Returns the seconds of an iteration that the target `cpu` predicts."""
    return compiled.seconds_per_iteration(compiled.compile_run(flags, targets.make("cpu")))


def main(arguments: list[str]) -> int:
    """Predicts and measures the rows that are asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="beginnings of rows, with commas between")
    parser.add_argument("--write", action="store_true", help="put the numbers into predicted.jsonl")
    options = parser.parse_args(arguments)
    chosen = jsonl.chosen(rows(), options.rows)
    if not chosen:
        return 2
    print("| program, one core | predicted | measured | predicted ÷ measured |\n|---|---|---|---|")
    for name, flags in chosen.items():
        found = {"predicted_s": predict(flags), "measured_s": measure(flags), "commit": software.commit()}
        print(_line(name, found), flush=True)
        if options.write:
            jsonl.put(TABLE, rows(), name, found)
    return 0


def _line(name: str, found: dict[str, Any]) -> str:
    ratio = found["predicted_s"] / found["measured_s"]
    return (
        f"| {name} | {found['predicted_s'] * 1e3:.3g} ms | {found['measured_s'] * 1e3:.3g} ms | "
        f"{ratio:.2f}{'' if abs(math.log2(ratio)) <= 1 else ', beyond 2'} |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
