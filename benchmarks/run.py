"""Runs the benchmark table: `python benchmarks/run.py [--rows=cartpole,dqn] [--rounds=7] [--peers=DIR] [--clones=DIR]`.

Each row is printed as it is measured, appended to `results.jsonl`, and the table is written to `table.md` of `--out`. A
row whose peer is missing or whose worker fails says `not measured` and why. PureJaxRL is no package: `--clones` is the
folder that holds a clone of it, `purejaxrl`. `make bench PEERS=FOLDER` runs all rows, with FOLDER for `--clones`.
"""

import argparse
import datetime
import pathlib
import statistics
import sys
from typing import Any

import first_line
import pairs
import rows

HERE = pathlib.Path(__file__).resolve().parent
_CLONE = "--clones=FOLDER (make bench PEERS=FOLDER) names the folder where github.com/luchris429/purejaxrl was cloned"
HEADER = (
    "| work | reference | ours, steps/s | reference, steps/s | ours ÷ reference [95 %] | wanted | compile ours / "
    "reference | note |\n|---|---|---|---|---|---|---|---|"
)
EXTRA_ROWS = ("cartpole_threshold", "first_line")
_PEERS = {name: f"peer_{name}.py" for name in ("rejax", "brax", "sbx", "purejaxrl", "skrl")}


def main(arguments: list[str]) -> int:
    """Measures the rows that are asked for; returns the exit code."""
    options = _parser().parse_args(arguments)
    names = [*(row.name for row in rows.ROWS), *EXTRA_ROWS]
    prefixes = options.rows.split(",") if options.rows else [""]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            print(f"run.py: --rows={prefix} begins no row; the rows are {', '.join(names)}", file=sys.stderr)
            return 2
    if options.rounds < 1:
        print(f"run.py: --rounds={options.rounds} must be at least 1; claims need 7", file=sys.stderr)
        return 2
    hidden = [row.name for row in rows.ROWS if row.on_request and not options.rows]
    chosen = [name for name in names if name.startswith(tuple(prefixes)) and name not in hidden]
    print(HEADER, flush=True)
    lines = []
    for name in chosen:
        record, line = _measure(name, options)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        pairs.append_record(options.out / "results.jsonl", {"row": name, "time": now, **record})
        lines.append(line)
        print(line, flush=True)
    (options.out / "table.md").write_text("\n".join([HEADER, *lines]) + "\n")
    return 0


def _measure(name: str, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Measures one row.

    Returns:
        The JSON record and the line of the table.
    """
    machine = pairs.machine()
    row = next((row for row in rows.ROWS if row.name == name), None)
    try:
        if row is not None:
            record, line = _measure_pair(row, options)
        elif name == "first_line":
            record, line = _measure_first_line(options)
        else:
            record, line = _measure_threshold(options)
    except pairs.WorkerError as error:
        reason = str(error)
        title = row.title if row else name
        reference = row.reference if row else ""
        short = " ".join(reason.split()).replace("|", "/")[:300]
        record, line = {"not_measured": reason}, _line(title, reference, "not measured", "", "", "", "", short)
    return {"machine": machine, **record}, line


def _measure_pair(row: rows.Row, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    ours = find_side("ours", row.ours, options)
    reference = find_side(row.reference, row.reference_flags, options)
    result = pairs.compare(ours, reference, options.rounds)
    low, high = result.ratio.low, result.ratio.high
    ratio = f"{result.ratio.median:.2f} [{low:.2f}, {high:.2f}]"
    compile_ours, compile_reference = result.ready_a["compile_s"], result.ready_b["compile_s"]
    wanted = [f"≥ {row.target:.2f}: {_verdict(result.ratio.median >= row.target)}"] if row.target else []
    if row.compile_limit_s:
        wanted.append(f"compile ≤ {row.compile_limit_s:g} s: {_verdict(compile_ours <= row.compile_limit_s)}")
    line = _line(
        row.title,
        row.reference,
        f"{result.rate_a:,.0f}",
        f"{result.rate_b:,.0f}",
        ratio,
        "; ".join(wanted) or "–",
        f"{compile_ours:.1f} / {compile_reference:.1f} s",
        row.note,
    )
    record = {**result._asdict(), "ratio": result.ratio._asdict(), "target": row.target, "rounds": options.rounds}
    return {**record, "argv_a": ours.argv, "argv_b": reference.argv}, line


def _measure_first_line(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Ours: process start to the first metrics line. References: process start to the end of a first short chunk."""
    count = min(options.rounds, 3)
    ours = [first_line.measure(options.python, rows.FIRST_LINE) for _ in range(count)]
    median = first_line.FirstLine(*(statistics.median(column) for column in zip(*ours, strict=True)))
    beyond_s = median.warm_s - median.import_s
    references: dict[str, Any] = {}
    for name in ("baseline", "rejax"):
        try:
            side = find_side(name, (*rows.PPO_SMALL, "--chunk_steps=8192"), options)
            references[name] = statistics.median(_start(side) for _ in range(count))
        except pairs.WorkerError as error:
            references[name] = f"not measured: {' '.join(str(error).split())[:100]}"
    shown = ", ".join(f"{k} {v:.1f} s" if isinstance(v, float) else f"{k} {v}" for k, v in references.items())
    line = _line(
        "first log line, PPO CartPole",
        "cold start of others",
        f"cold {median.cold_s:.1f} s; warm {median.warm_s:.1f} s, of it imports {median.import_s:.1f} s",
        shown,
        "–",
        f"cold ≤ 10 s: {_verdict(median.cold_s <= 10.0)}; warm ≤ imports + 5 s: {_verdict(beyond_s <= 5.0)}",
        "–",
        f"medians of {count} starts; others: process start to the end of 8192 steps",
    )
    return {"ours": [entry._asdict() for entry in ours], "references": references}, line


def _measure_threshold(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Seconds of training, without compiling and evaluating, to evaluation returns of 475 on CartPole."""
    count = min(options.rounds, 5)
    flags = {
        "ours": rows.THRESHOLD_OURS,
        "baseline": ("--algo=ppo", *rows.PPO_SMALL, "--chunk_steps=8192"),
        "rejax": ("--algo=ppo", *rows.PPO_SMALL, "--chunk_steps=8192"),
    }
    reached: dict[str, list[Any]] = {}
    shown: dict[str, str] = {}
    for name, side_flags in flags.items():
        try:
            reached[name] = [
                pairs.seconds_to(find_side(name, (*side_flags, f"--seed={seed}"), options), 475.0, 1_000_000)
                for seed in range(count)
            ]
            finished = [entry for entry in reached[name] if entry]
            seconds, steps = (
                (statistics.median(column) for column in zip(*finished, strict=True)) if finished else (0, 0)
            )
            shown[name] = f"{seconds:.1f} s, {steps / 1000:.0f}k steps ({len(finished)} of {count} seeds)"
            if not finished:
                shown[name] = f"not within 1M steps (0 of {count} seeds)"
        except pairs.WorkerError as error:
            shown[name] = f"not measured: {' '.join(str(error).split())[:100]}"
    line = _line(
        "PPO CartPole 4×128, seconds of training to evaluation returns ≥ 475",
        "baseline, rejax",
        shown["ours"],
        f"baseline {shown['baseline']}; rejax {shown['rejax']}",
        "–",
        "–",
        "–",
        f"medians over {count} seeds; three in a row, greedy, one every 8192 steps; compiling not counted",
    )
    return {"reached": reached, "shown": shown}, line


def _start(side: pairs.Side) -> float:
    with pairs.Worker(side) as worker:
        return worker.ready["ready_s"]


def find_side(name: str, flags: tuple[str, ...], options: argparse.Namespace) -> pairs.Side:
    """Finds the interpreter and the script of a worker; compile times are cold, so the persistent cache is off.

    Raises:
        pairs.WorkerError: the environment of the peer is not installed, or its clone is not there.
    """
    python, script = options.python, HERE / f"{name}.py"
    if name in _PEERS:
        python, script = str(options.peers / name / "bin" / "python"), HERE / _PEERS[name]
        if not (options.peers / name / "installed.txt").exists():
            raise pairs.WorkerError(f"no {name} in {options.peers}; run benchmarks/setup_peers.sh {options.peers}")
    if name == "purejaxrl":
        flags = (f"--clone={_find_clone(options.clones)}", *flags)
    if not script.exists():
        raise pairs.WorkerError(f"{script} does not exist")
    environ = (("JAX_ENABLE_COMPILATION_CACHE", "false"), ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"))
    return pairs.Side(name, (python, str(script), *flags), environ)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def _find_clone(clones: str) -> pathlib.Path:
    clone = pathlib.Path(clones, "purejaxrl").absolute()
    if not clones:
        raise pairs.WorkerError(f"no clone of PureJaxRL: {_CLONE}")
    if not (clone / "purejaxrl" / "ppo.py").exists():
        raise pairs.WorkerError(f"no clone of PureJaxRL in {clones}: {_CLONE}")
    return clone


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="beginnings of row names, separated by commas; empty is all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", type=pathlib.Path, default=pathlib.Path(".venv-peers"), help="see setup_peers.sh")
    parser.add_argument("--clones", default="", metavar="FOLDER", help="with a clone of PureJaxRL, `purejaxrl`")
    parser.add_argument("--python", default=sys.executable, help="interpreter of ours and of the baseline")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/bench"))
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
