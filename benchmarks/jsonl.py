"""Committed tables of benchmarks: a JSON line per row, whose key "row" is its name; and how documents show them."""

import argparse
import json
import pathlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, TypeVar

from jaxrl_dist.runs import folder

T = TypeVar("T")

RUNS = pathlib.Path(__file__).resolve().parent.parent / "runs" / "benchmarks"


def read(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Returns name -> the rest of the row; nothing if there is no table yet."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {record.pop("row"): record for record in map(json.loads, lines)}


def put(path: pathlib.Path, names: Iterable[str], name: str, row: Mapping[str, Any]) -> None:
    """Puts a row into a table, and keeps the others; the table is in the order of the names."""
    table = read(path) | {name: dict(row)}
    lines = (json.dumps({"row": one, **table[one]}) + "\n" for one in names if one in table)
    folder.write_text(path, "".join(lines))


def chosen(rows: Mapping[str, T], beginnings: str) -> dict[str, T]:
    """Returns the rows whose names begin so, with commas between; says on standard error if there are none."""
    found = {name: row for name, row in rows.items() if name.startswith(tuple(beginnings.split(",")))}
    if not found:
        script = pathlib.Path(sys.argv[0]).name
        print(f"{script}: --rows={beginnings} begins no row; there are {', '.join(rows)}", file=sys.stderr)
    return found


def parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the flags of `fill`, which is given what they hold."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rows", default="", help="beginnings of the rows to run, with commas between")
    made.add_argument("--runs", default=RUNS, type=pathlib.Path, help="where runs of unfinished rows lie")
    made.add_argument("--minutes", type=float, default=float("inf"), help="start no row after so many")
    return made


def fill(
    path: pathlib.Path,
    rows: Mapping[str, T],
    options: argparse.Namespace,
    train: Callable[[T, pathlib.Path], Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Runs what the options name and the table lacks, and puts each row, which has "returns", into it as it ends.

    Until then a row's runs lie in `options.runs`, below the table's name, so that one that was stopped goes on.

    Args:
        path: of the table.
        rows: name -> what `train` is given, in the order of the table.
        options: of `parser`.
        train: runs one row, in a folder of its own.

    Returns:
        The whole table.
    """
    end = time.monotonic() + 60 * options.minutes
    for name, row in chosen(rows, options.rows).items():
        if name not in read(path) and time.monotonic() < end:
            runs = options.runs / path.stem / name
            found = train(row, runs)
            put(path, rows, name, found)
            shutil.rmtree(runs, ignore_errors=True)
            print(name, found["returns"], file=sys.stderr, flush=True)
    return read(path)


def short(commits: str) -> str:
    """Returns commits, with commas between, as seven digits each."""
    return ", ".join(commit[:7] for commit in commits.split(", "))


def with_minus(text: str) -> str:
    """Returns a table with the sign of minus before its numbers, which documents have in the place of a hyphen."""
    return re.sub(r"(?<=[ \[])-(?=\d)", "−", text)


def missing(names: Iterable[str], measured: Container[str]) -> str:
    """Returns a paragraph with the rows that a table lacks, "" if it has them all.

    Example:
        >>> import jsonl
        >>> jsonl.missing(["ppo/acrobot", "dqn/acrobot"], ["ppo/acrobot"])
        '\\nNot measured yet: `dqn/acrobot`.\\n'
    """
    lacking = ", ".join(f"`{name}`" for name in names if name not in measured)
    return f"\nNot measured yet: {lacking}.\n" if lacking else ""


def tell(preset: pathlib.Path, result: str) -> None:
    """Writes a result into the head of a preset's file."""
    text = preset.read_text(encoding="utf-8")
    folder.write_text(preset, re.sub(r"^# Result: .*$", f"# Result: {result}.", text, flags=re.MULTILINE))


def show(document: pathlib.Path, markers: tuple[str, str], table: str) -> None:
    """Writes a table between two lines of a document."""
    start, end = markers
    before, rest = document.read_text(encoding="utf-8").split(start)
    folder.write_text(document, f"{before}{start}\n{table}\n{end}{rest.split(end)[1]}")
