"""Bodies that the accelerator simulates: training's speed, memory and share of raw stepping, by their number.

`python benchmarks/bodies.py [--tasks=ant,humanoid] [--sizes=256,1024,…] [--rounds=5]` trains `gpu_sim` on each task by
number of bodies, until memory is full, and steps as many with random actions alone. It prints one line per size; sizes
in `bodies.jsonl` are not measured again. With `--starts=8` so many programs compile at once and share the memory; one
at a time is timed. Without a GPU every row says so; `--device=any --sizes=64 --rounds=1 --updates=1` tries the command
on a CPU.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import pairs
import run
import scaling

HEADER = (
    "| task | bodies | training, steps/s | stepping alone, steps/s | share | bytes per body | compile | device |\n"
    "|---|---|---|---|---|---|---|---|"
)
SIZES = (256, 1024, 4096, 16384, 65536)
TASKS = ("ant", "humanoid")
UNROLL = 5


def main(arguments: list[str]) -> int:
    """Measures what is not measured yet and prints the table; returns the exit code."""
    options = _parser().parse_args(arguments)
    device = scaling.find_device(options.python)
    print(HEADER, flush=True)
    if scaling.lacks_gpu(options, device):
        for task in options.tasks:
            print(f"| {task} | {options.sizes[0]} … {options.sizes[-1]} | not measured: no GPU |||||| {device} |")
        return 0
    known = _read(options.out / "bodies.jsonl")
    for task in options.tasks:
        missing = [size for size in options.sizes if (task, options.backend, size, device) not in known]
        sides = [side for size in missing for side in _find_sides(task, size, options)]
        with contextlib.closing(pairs.in_turn(sides, options.starts, options.timeout_s)) as workers:
            for size in options.sizes:
                record = known.get((task, options.backend, size, device))
                if record is None:
                    record = {"task": task, "backend": options.backend, "size": size, "device": device}
                    record |= _measure(workers, options)
                    pairs.append_record(options.out / "bodies.jsonl", {**record, "machine": pairs.machine()})
                print(_line(record), flush=True)
                if "not_measured" in record:
                    break
    return 0


def _find_sides(task: str, size: int, options: argparse.Namespace) -> tuple[pairs.Side, pairs.Side]:
    """Returns who trains, and who steps with random actions alone."""
    chunk = f"--chunk_steps={size * UNROLL * options.updates}"
    training = ("--system=gpu_sim", f"--env=brax:{task}", f"--env.params.backend={options.backend}")
    training += (f"--env.num_envs={size}", f"--layout.unroll_length={UNROLL}", chunk)
    alone = (f"--env={task}", f"--backend={options.backend}", f"--num_envs={size}", chunk)
    return run.find_side("ours", training, options), run.find_side("raw_bodies", alone, options)


def _measure(workers: Iterator[pairs.Worker | pairs.WorkerError], options: argparse.Namespace) -> dict[str, Any]:
    """Times the next two workers one after the other."""
    try:
        trained = _time(pairs.alive(next(workers)), options)
        stepped = _time(pairs.alive(next(workers)), options)
    except pairs.WorkerError as error:
        return {"not_measured": " ".join(str(error).split())[:300]}
    return {"trained": trained, "stepped": stepped}


def _time(worker: pairs.Worker, options: argparse.Namespace) -> dict[str, Any]:
    chunks = [worker.train_chunk(options.timeout_s) for _ in range(options.rounds)]
    rates = [chunk.steps / chunk.seconds for chunk in chunks]
    return {"rates": rates, "peak_bytes": worker.peak_bytes(), **worker.ready}


def _line(record: dict[str, Any]) -> str:
    start = f"| {record['task']} | {record['size']:,} |"
    if "not_measured" in record:
        return f"{start} not measured: {record['not_measured'].replace('|', '/')} |||||| {record['device']} |"
    trained, stepped = (statistics.median(record[side]["rates"]) for side in ("trained", "stepped"))
    held = record["trained"]["peak_bytes"]
    per_body = f"{held / record['size']:,.0f}" if held else "–"
    compile_s = record["trained"]["compile_s"]
    numbers = f"{trained:,.0f} | {stepped:,.0f} | {trained / stepped:.2f} | {per_body} | {compile_s:.1f} s"
    return f"{start} {numbers} | {record['device']} |"


def _read(path: pathlib.Path) -> dict[tuple[str, str, int, str], dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    records = [record for record in map(json.loads, lines) if "not_measured" not in record]
    return {(r["task"], r["backend"], r["size"], r["device"]): r for r in records}


def _parser() -> argparse.ArgumentParser:
    parser = scaling.parser(__doc__)
    parser.add_argument("--tasks", type=lambda text: tuple(text.split(",")), default=TASKS)
    parser.add_argument("--sizes", type=lambda text: tuple(int(x) for x in text.split(",")), default=SIZES)
    parser.add_argument("--backend", choices=("generalized", "mjx", "positional", "spring"), default="spring")
    parser.add_argument("--rounds", type=scaling.positive, default=5, help="timed chunks of each side")
    parser.add_argument("--updates", type=scaling.positive, default=16, help="updates per timed chunk")
    parser.add_argument("--starts", type=scaling.positive, default=1, help="programs that compile at once")
    parser.add_argument("--timeout_s", type=float, default=900.0, help="for compiling, and for each chunk")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
