"""Compares two commits: `python benchmarks/commits.py --base=COMMIT [--head=COMMIT] [--rows=ant,dqn] [--rounds=9]`.

Each row is what `ours` runs in the `rows.py` of each commit, with this interpreter and its packages; without `--head`
that of the working tree. Left out are rows that one of them lacks, and those whose `ours` is that of a row before. Each
row is printed as it is measured, and appended to `commits.jsonl`.
"""

import argparse
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import pairs

HERE = pathlib.Path(__file__).resolve().parent
HEADER = "| row | head, steps/s | base, steps/s | head ÷ base [95 %] | compile head / base |\n|---|---|---|---|---|"


def main(arguments: list[str]) -> int:
    """Measures the rows that are asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="commit to compare with")
    parser.add_argument("--head", default="", help="commit to compare; the working tree by default")
    parser.add_argument("--rows", default="", help="names of rows, or their beginnings, with commas between")
    parser.add_argument("--rounds", type=int, default=9, help="chunks of each side; 7 or more for a claim")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/commits"), help="folder of the records")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            base = _files(options.base, pathlib.Path(scratch) / "base")
            head = _files(options.head, pathlib.Path(scratch) / "head") if options.head else HERE.parent
        except subprocess.CalledProcessError as error:
            print(f"commits.py: {error.stderr.decode().strip()}", file=sys.stderr)
            return 2
        before, after = _rows(base), _rows(head)
        names = [name for name in after if name in before and name.startswith(tuple(options.rows.split(",")))]
        if not names:
            print(f"commits.py: --rows={options.rows} begins no row; there are {', '.join(after)}", file=sys.stderr)
            return 2
        print(HEADER, flush=True)
        for name in names:
            record, line = _measure(name, (head, after[name]), (base, before[name]), options.rounds)
            facts = {"row": name, "base": options.base, "head": options.head, "machine": pairs.machine()}
            pairs.append_record(options.out / "commits.jsonl", facts | record)
            print(line, flush=True)
    return 0


def _files(commit: str, folder: pathlib.Path) -> pathlib.Path:
    """Writes the files of a commit into a folder."""
    command = ["git", "archive", commit]
    archive = subprocess.run(command, cwd=HERE.parent, check=True, capture_output=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True, capture_output=True)
    return folder


def _rows(root: pathlib.Path) -> dict[str, tuple[str, ...]]:
    """Returns the flags of `ours` in the rows of a commit that no one must ask for."""
    spec = importlib.util.spec_from_file_location(f"rows_of_{root.name}", root / "benchmarks" / "rows.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The dataclass in it looks its own module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    first: dict[tuple[str, ...], str] = {}
    for row in module.ROWS:
        first.setdefault(row.ours, row.name)
    return {row.name: row.ours for row in module.ROWS if not row.on_request and first[row.ours] == row.name}


def _measure(
    name: str, head: tuple[pathlib.Path, tuple[str, ...]], base: tuple[pathlib.Path, tuple[str, ...]], rounds: int
) -> tuple[dict[str, Any], str]:
    """Measures a row; returns its record and its line of the table."""
    sides = [
        pairs.Side(side, (sys.executable, str(root / "benchmarks" / "ours.py"), *flags), (("PYTHONPATH", str(root)),))
        for side, (root, flags) in (("head", head), ("base", base))
    ]
    try:
        result = pairs.compare(sides[0], sides[1], rounds)
    except pairs.WorkerError as error:
        return {"not_measured": str(error)}, f"| {name} | not measured: {' '.join(str(error).split())[:200]} | | | |"
    ratio = result.ratio
    compiled = " / ".join(f"{ready['compile_s']:.1f}" for ready in (result.ready_a, result.ready_b))
    line = (
        f"| {name} | {result.rate_a:,.0f} | {result.rate_b:,.0f} | "
        f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] | {compiled} s |"
    )
    return {**result._asdict(), "ratio": ratio._asdict(), "rounds": rounds}, line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
