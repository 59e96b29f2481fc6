"""Trains the seeds of a row in programs of train.py, which resume where an earlier call was stopped."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from jaxrl_dist.runs import view

T = TypeVar("T")

TRAIN = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "train.py"


class Trained(NamedTuple, Generic[T]):
    """Runs of a row, their seconds, and the commits that trained them.

    Attributes:
        runs: what was read of each program's run.
        wall_s: seconds that they trained, with those of earlier calls.
        commit: of the checkout that trained them; with commas between, if a call went on from another commit.
    """

    runs: list[T]
    wall_s: float
    commit: str


def train(
    flags: Iterable[str], seeds: Iterable[tuple[int, int]], folder: pathlib.Path, read: Callable[[pathlib.Path], T]
) -> Trained[T]:
    """Runs train.py once for each (first seed, number of seeds), one after the other.

    Args:
        flags: flags of every program.
        seeds: what each program trains.
        folder: of the row, with a run folder for each program; those of an earlier call go on.
        read: is given the run folder of each program.

    Raises:
        subprocess.CalledProcessError: if a program fails; the message of train.py is on standard error.
    """
    found, wall_s, commits = [], 0.0, dict[str, str]()
    for first, number in seeds:
        run = folder / f"seed{first}"
        own = (f"--seed={first}", f"--num_seeds={number}", f"--out={run}")
        # The call on a run that has finished trains nothing, and is recorded as one of its sessions.
        trained_before = _commits(run)
        subprocess.run([sys.executable, TRAIN, *flags, *own], check=True, stdout=subprocess.DEVNULL)
        wall_s += json.loads((run / "summary.json").read_text(encoding="utf-8"))["wall_s"]
        for commit in trained_before or _commits(run):
            # The table itself, which changes with each row, makes a checkout dirty.
            commits.setdefault(commit.removesuffix("-dirty"), commit)
        found.append(read(run))
    return Trained(found, wall_s, ", ".join(commits.values()))


def _commits(run: pathlib.Path) -> list[str]:
    """Returns the commit of each session of a run that has finished, none of another."""
    if not (run / "config.json").exists():
        return []
    found = view.read(run)
    return [session["commit"] for session in found.software] if found.state == "finished" else []
