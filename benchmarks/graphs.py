"""Loops as nodes of CUDA graphs, beside XLA's own choice and no graphs: `python benchmarks/graphs.py [--works=dqn]`.

On GPUs some of our programs ask XLA to put whole loops into graphs, which no host drives (`parallel/mesh.py`); by
itself it puts the body of a loop into one. Four workers of each work take turns on one device: with loops, with those
that have no convolution, by XLA's own list, and without graphs. Prints steps/s, and how many times as fast the first is
as the others. A CPU has no graphs: `--device=any --rounds=1` only tries the command.
"""

import argparse
import contextlib
import itertools
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pairs  # noqa: E402
import rows  # noqa: E402
import run  # noqa: E402
import scaling  # noqa: E402

from jaxrl_dist.parallel import mesh  # noqa: E402

FLAG = f"--{mesh.GRAPHS}="
SIDES = {
    "loops": f"{FLAG}{mesh.OWN_GRAPHS},WHILE,CONVOLUTION",
    "no convolutions": f"{FLAG}{mesh.OWN_GRAPHS},WHILE",
    "XLA's own": f"{FLAG}{mesh.OWN_GRAPHS}",
    "none": FLAG,
}
_BREAKOUT = ("--env=gymnax:Breakout-MinAtar",)
WORKS = {
    "ppo": (*rows.LARGE, "--chunk_steps=1048576"),
    "ppo_small": (*rows.SMALL, "--chunk_steps=16384"),
    "ppo_lstm": ("--system=ppo", *_BREAKOUT, "--network.core=lstm", "--env.num_envs=1024", "--chunk_steps=1048576"),
    "dqn": ("--system=dqn", "--env=gymnax:CartPole-v1", "--chunk_steps=16384"),
    "rainbow": ("--system=rainbow", *_BREAKOUT, "--chunk_steps=4096"),
    "r2d2": ("--system=r2d2", *_BREAKOUT, "--chunk_steps=16384"),
    "sac": ("--system=sac", "--env=gymnax:Pendulum-v1", "--chunk_steps=2048"),
    "ant": (*rows.ANT, "--env.num_envs=4096", "--layout.unroll_length=5", "--chunk_steps=327680"),
}


def main(arguments: list[str]) -> int:
    """Measures and prints the table; returns the exit code."""
    options = _parser().parse_args(arguments)
    device = scaling.find_device(options.python)
    if scaling.lacks_gpu(options, device):
        print(f"not measured: no GPU ({device})")
        return 0
    names = list(SIDES)
    ratios = [f"{names[0]} ÷ {name} [95 %]" for name in names[1:]]
    columns = ["work", f"{names[0]}, steps/s", *names[1:], *ratios, "compile", "device"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    sides = [side for name in options.works for side in _find_sides(name, options)]
    with contextlib.closing(pairs.in_turn(sides, len(SIDES) * options.starts)) as workers:
        for name in options.works:
            print(_measure(name, list(itertools.islice(workers, len(SIDES))), device, options), flush=True)
    return 0


def _find_sides(name: str, options: argparse.Namespace) -> list[pairs.Side]:
    ours = run.find_side("ours", WORKS[name], options)
    return [pairs.Side(side, ours.argv, (*ours.environ, ("XLA_FLAGS", flags))) for side, flags in SIDES.items()]


def _measure(
    name: str, workers: list[pairs.Worker | pairs.WorkerError], device: str, options: argparse.Namespace
) -> str:
    """Lets the workers of one work take turns and returns the line of the table."""
    rates: list[list[float]] = [[] for _ in workers]
    try:
        for turn in range(options.rounds):
            for i in range(len(workers))[:: 1 if turn % 2 else -1]:
                chunk = pairs.alive(workers[i]).train_chunk(options.timeout_s)
                rates[i].append(chunk.steps / chunk.seconds)
        compile_s = " / ".join(f"{pairs.alive(worker).ready['compile_s']:.0f}" for worker in workers)
    except pairs.WorkerError as error:
        return f"| {name} | not measured: {' '.join(str(error).split()).replace('|', '/')[:300]} ||||||||| {device} |"
    record = {"work": name, "rates": dict(zip(SIDES, rates, strict=True)), "device": device}
    pairs.append_record(options.out / "graphs.jsonl", {**record, "machine": pairs.machine()})
    speeds = [f"{statistics.median(side):,.0f}" for side in rates]
    ratios = [pairs.bootstrap_ratio([x / y for x, y in zip(rates[0], other, strict=True)]) for other in rates[1:]]
    shown = [f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" for ratio in ratios]
    return f"| {' | '.join([name, *speeds, *shown, f'{compile_s} s', device])} |"


def _works(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in WORKS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is not one of {', '.join(WORKS)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = scaling.parser(__doc__)
    parser.add_argument("--works", type=_works, default=tuple(WORKS), help="separated by commas")
    parser.add_argument("--rounds", type=scaling.positive, default=7)
    parser.add_argument("--starts", type=scaling.positive, default=1, help="works whose programs compile at once")
    parser.add_argument("--timeout_s", type=float, default=300.0, help="for each chunk")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
