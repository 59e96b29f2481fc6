"""Trains the seeds of a row in programs of train.py, which resume where an earlier call was stopped."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from jaxrl_dist.runs import view

T = TypeVar("T")

TRAIN = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "train.py"


class Trained(NamedTuple, Generic[T]):
    """Runs of a row, their seconds, the commits that trained them, and on what.

    Attributes:
        runs: what was read of each program's run.
        wall_s: seconds that they trained, with those of earlier calls.
        commit: of the checkout that trained them; with commas between, if a call went on from another commit.
        device: the kind that they trained on, such as "cpu" or "NVIDIA H200", as JAX names it.
    """

    runs: list[T]
    wall_s: float
    commit: str
    device: str

    def facts(self) -> dict[str, Any]:
        """Returns what a table keeps of them: rounded seconds, commits, and the device unless it is a CPU."""
        found = {"wall_s": round(self.wall_s), "commit": self.commit}
        return found if self.device == "cpu" else {**found, "device": self.device}


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
    found, wall_s, commits, devices = [], 0.0, dict[str, str](), set[str]()
    for first, number in seeds:
        run = folder / f"seed{first}"
        own = (f"--seed={first}", f"--num_seeds={number}", f"--out={run}")
        # The call on a run that has finished trains nothing, and is recorded as one of its sessions.
        trained_before = _commits(run)
        subprocess.run([sys.executable, TRAIN, *flags, *own], check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        wall_s += summary["wall_s"]
        devices.add(summary["device"])
        for commit in trained_before or _commits(run):
            # The table itself, which changes with each row, makes a checkout dirty.
            commits.setdefault(commit.removesuffix("-dirty"), commit)
        found.append(read(run))
    return Trained(found, wall_s, ", ".join(commits.values()), ", ".join(sorted(devices)))


def minutes(row: Mapping[str, Any]) -> str:
    """Returns the minutes of a table's row, with the device that they are of unless it is a CPU.

    Example:
        >>> import programs
        >>> programs.minutes({"wall_s": 90, "device": "NVIDIA H200"})
        '1.5 (NVIDIA H200)'
    """
    text = f"{row['wall_s'] / 60:.1f}"
    return f"{text} ({row['device']})" if "device" in row else text


def _commits(run: pathlib.Path) -> list[str]:
    """Returns the commit of each session of a run that has finished, none of another."""
    if not (run / "config.json").exists():
        return []
    found = view.read(run)
    return [session["commit"] for session in found.software] if found.state == "finished" else []
