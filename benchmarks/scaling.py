"""Speed against the number of environments on a GPU: `python benchmarks/scaling.py [--works=cartpole,minatar,ant]`.

Without a GPU every row says so. `--device=any --sizes=64,128 --rounds=1` tries the command on a CPU. With `--starts=8`
so many programs compile at once; one at a time is timed.
"""

import argparse
import dataclasses
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pairs
import rows
import run

HEADER = "| work | environments | steps/s | compile | device |\n|---|---|---|---|---|"


@dataclasses.dataclass(frozen=True)
class Work:
    """Speed against the number of environments, for an accelerator: flags of `ours.py` without the number."""

    name: str
    ours: tuple[str, ...]
    rows_per_env: int
    sizes: tuple[int, ...]


WORKS = (
    Work(
        "cartpole",
        (*rows.CARTPOLE, *rows.MLP, "--layout.unroll_length=32", "--learner.minibatches=32"),
        32,
        (64, 512, 4096, 32768, 131072),
    ),
    Work(
        "minatar",
        (
            *("--system=ppo", "--env=gymnax:Breakout-MinAtar", "--layout.unroll_length=32", "--learner.epochs=4"),
            *("--learner.minibatches=8", "--network.torso=minatar_cnn"),
        ),
        32,
        (64, 512, 4096, 16384),
    ),
    Work(
        "ant",
        tuple(flag for flag in rows.ANT if not flag.startswith(("--env.num_envs", "--layout.")))
        + ("--layout.unroll_length=5",),
        5,
        (256, 1024, 4096, 16384),
    ),
)


def main(arguments: list[str]) -> int:
    """Measures and prints the table; returns the exit code."""
    options = _parser().parse_args(arguments)
    names = [work.name for work in WORKS]
    works = options.works.split(",") if options.works else names
    unknown = sorted(set(works) - set(names))
    if unknown:
        print(f"scaling.py: --works={unknown[0]} is not one of {', '.join(names)}", file=sys.stderr)
        return 2
    device = find_device(options.python)
    missing = "no GPU" if lacks_gpu(options, device) else ""
    lines = [HEADER]
    print(HEADER, flush=True)
    cells = [(work, size) for work in WORKS if work.name in works for size in options.sizes or work.sizes]
    for line in _measure(cells, device, missing, options):
        lines.append(line)
        print(line, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scaling.md").write_text("\n".join(lines) + "\n")
    return 0


def _measure(
    cells: Sequence[tuple[Work, int]], device: str, missing: str, options: argparse.Namespace
) -> Iterator[str]:
    """Trains chunks of about 16 updates with so many environments and yields the lines of the table."""
    if missing:
        for work, size in cells:
            yield f"| {work.name} | {size} | not measured: {missing} | – | {device} |"
        return
    sides = [_find_side(work, size, options) for work, size in cells]
    for (work, size), started in zip(cells, pairs.in_turn(sides, options.starts), strict=True):
        try:
            worker = pairs.alive(started)
            chunks = [worker.train_chunk() for _ in range(options.rounds)]
            compile_s = worker.ready["compile_s"]
        except pairs.WorkerError as error:
            reason = " ".join(str(error).split())[:200]
            yield f"| {work.name} | {size} | not measured: {reason} | – | {device} |"
            continue
        rates = [chunk.steps / chunk.seconds for chunk in chunks]
        record = {"work": work.name, "num_envs": size, "rates": rates, "compile_s": compile_s, "device": device}
        pairs.append_record(options.out / "scaling.jsonl", {**record, "machine": pairs.machine()})
        yield f"| {work.name} | {size} | {statistics.median(rates):,.0f} | {compile_s:.1f} s | {device} |"


def _find_side(work: Work, size: int, options: argparse.Namespace) -> pairs.Side:
    flags = (*work.ours, f"--env.num_envs={size}", f"--chunk_steps={size * work.rows_per_env * options.updates}")
    return run.find_side("ours", flags, options)


def find_device(python: str) -> str:
    """Asks JAX in a process of its own which device it would use, as `gpu: NVIDIA …`."""
    program = "import jax; print(jax.default_backend() + ': ' + jax.devices()[0].device_kind)"
    process = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    return process.stdout.strip().splitlines()[-1] if process.returncode == 0 else "none: JAX does not start"


def lacks_gpu(options: argparse.Namespace, device: str) -> bool:
    """Says whether a GPU is wanted and the device of `find_device` is none."""
    return options.device == "gpu" and not device.startswith("gpu")


def parser(description: str | None, out: str = "runs/bench") -> argparse.ArgumentParser:
    """Returns a parser of the flags that all benchmarks of an accelerator have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", choices=("gpu", "any"), default="gpu")
    made.add_argument("--python", default=sys.executable)
    made.add_argument("--peers", type=pathlib.Path, default=pathlib.Path(".venv-peers"))
    made.add_argument("--out", type=pathlib.Path, default=pathlib.Path(out))
    return made


def positive(text: str) -> int:
    """Reads a number of rounds, updates or starts."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.add_argument("--works", default="", help="cartpole, minatar, ant, separated by commas; empty is all")
    made.add_argument("--sizes", type=lambda text: tuple(int(x) for x in text.split(",")), default=())
    made.add_argument("--rounds", type=positive, default=5)
    made.add_argument("--updates", type=positive, default=16, help="updates per timed chunk")
    made.add_argument("--starts", type=positive, default=1, help="programs that compile at once")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
