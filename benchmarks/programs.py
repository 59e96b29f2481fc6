"""Trains the seeds of a row in programs of train.py, whose folders are read and deleted."""

import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

TRAIN = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "train.py"


def train(
    flags: Iterable[str], seeds: Iterable[tuple[int, int]], read: Callable[[pathlib.Path], T]
) -> tuple[list[T], float]:
    """Runs train.py once for each (first seed, number of seeds), one after the other.

    Args:
        flags: flags of every program.
        seeds: what each program trains.
        read: is given the run folder of each program, which is gone afterwards.

    Returns:
        What `read` returned for each program, and the seconds that the programs took.

    Raises:
        subprocess.CalledProcessError: if a program fails; the message of train.py is on standard error.
    """
    found, wall_s = [], 0.0
    for first, number in seeds:
        with tempfile.TemporaryDirectory() as folder:
            own = (f"--seed={first}", f"--num_seeds={number}", f"--out={folder}/run")
            start = time.monotonic()
            subprocess.run([sys.executable, TRAIN, *flags, *own], check=True, stdout=subprocess.DEVNULL)
            wall_s += time.monotonic() - start
            found.append(read(pathlib.Path(folder, "run")))
    return found, wall_s
