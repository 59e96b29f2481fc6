"""Trains the seeds of a row in programs of train.py, which resume where an earlier call was stopped."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

TRAIN = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "train.py"


def train(
    flags: Iterable[str], seeds: Iterable[tuple[int, int]], folder: pathlib.Path, read: Callable[[pathlib.Path], T]
) -> tuple[list[T], float]:
    """Runs train.py once for each (first seed, number of seeds), one after the other.

    Args:
        flags: flags of every program.
        seeds: what each program trains.
        folder: of the row, with a run folder for each program; those of an earlier call go on.
        read: is given the run folder of each program.

    Returns:
        What `read` returned for each program, and the seconds that they trained, with those of earlier calls.

    Raises:
        subprocess.CalledProcessError: if a program fails; the message of train.py is on standard error.
    """
    found, wall_s = [], 0.0
    for first, number in seeds:
        run = folder / f"seed{first}"
        own = (f"--seed={first}", f"--num_seeds={number}", f"--out={run}")
        subprocess.run([sys.executable, TRAIN, *flags, *own], check=True, stdout=subprocess.DEVNULL)
        wall_s += json.loads((run / "summary.json").read_text(encoding="utf-8"))["wall_s"]
        found.append(read(run))
    return found, wall_s
