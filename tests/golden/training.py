"""Checks commits out and trains the golden runs at them; what a commit has finished is kept."""

import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKING_TREE = "."
_TIMEOUT_S = 300


class Checkout(NamedTuple):
    """The sources of a commit.

    Attributes:
        commit: its full name, or `WORKING_TREE`.
        sources: the folder of the sources.
        scratch: where runs and compiled programs are kept.
    """

    commit: str
    sources: pathlib.Path
    scratch: pathlib.Path


def check_out(name: str, scratch: pathlib.Path) -> Checkout:
    """Makes a worktree of a commit where there is none; the working tree is taken as it is."""
    if name == WORKING_TREE:
        return Checkout(name, ROOT, scratch)
    commit = _git("rev-parse", "--verify", f"{name}^{{commit}}")
    sources = scratch / "checkouts" / commit[:12]
    if not (sources / "scripts").is_dir():
        # By force, as git still knows a worktree whose folder was deleted.
        _git("worktree", "add", "--quiet", "--detach", "--force", str(sources), commit)
    return Checkout(commit, sources, scratch)


def discard(checkout: Checkout) -> None:
    """Removes the worktree of a commit; its runs are kept."""
    if checkout.commit != WORKING_TREE:
        _git("worktree", "remove", "--force", str(checkout.sources))


def is_changed() -> bool:
    """Returns if the working tree differs from the commit that it is at."""
    return bool(_git("status", "--porcelain"))


def translate(flags: Iterable[str], words: runs.Words) -> list[str]:
    """Returns the flags of a command in the words before they changed."""
    translated = [flag for flag in flags if flag.removeprefix("--").partition("=")[0] not in words.added]
    for old, new in words.flags.items():
        word = rf"(?<![\w.]){re.escape(new)}" + ("" if new.endswith(".") else r"(?![\w.])")
        translated = [re.sub(word, old, flag) for flag in translated]
    return [*translated, *words.dropped]


def train(checkout: Checkout, name: str, commands: Sequence[Sequence[str]]) -> tuple[pathlib.Path, float]:
    """Trains a run, unless a finished one of this commit and these commands is kept.

    Args:
        checkout: trains.
        name: of the run.
        commands: flags of each, without the folder, which is the same for all.

    Returns:
        The run's folder, and the seconds that it took, 0 where it was kept.
    """
    versions = [importlib.metadata.version(package) for package in ("jax", "jaxlib", "numpy")]
    key = hashlib.sha256(json.dumps([commands, versions, sys.version]).encode()).hexdigest()[:12]
    owner = "working_tree" if checkout.commit == WORKING_TREE else checkout.commit[:12]
    folder = checkout.scratch / "runs" / owner / f"{name}-{key}"
    finished = folder / "finished"
    if finished.exists() and checkout.commit != WORKING_TREE:
        return folder / "run", 0.0
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started_s = time.perf_counter()
    if all(_launch(checkout, flags, folder) for flags in commands):
        finished.touch()
    return folder / "run", time.perf_counter() - started_s


def is_finished(run: pathlib.Path) -> bool:
    """Returns if all commands of a run ended well."""
    return (run.parent / "finished").exists()


def _launch(checkout: Checkout, flags: Sequence[str], folder: pathlib.Path) -> bool:
    """Runs one command; what it prints goes to a file, and to the terminal where it fails. Returns if it ended well."""
    launcher = pathlib.Path(__file__).with_name("launch.py")
    command = [sys.executable, str(launcher), str(checkout.sources), *flags, f"--out={folder / 'run'}"]
    log = folder / "log.txt"
    with log.open("a", encoding="utf-8") as output:
        try:
            subprocess.run(
                command,
                cwd=folder,
                env=_environment(checkout),
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_TIMEOUT_S,
                check=True,
            )
            return True
        except subprocess.SubprocessError as error:
            print(f"{error}:\n{log.read_text(encoding='utf-8')[-2000:]}")
            return False


def _environment(checkout: Checkout) -> dict[str, str]:
    """Returns the variables of a training process: the checkout's package, one cache of programs, XLA as users have it.

    Scripts keep compiled programs below XDG_CACHE_HOME, whatever JAX_COMPILATION_CACHE_DIR says.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    return kept | {
        "XDG_CACHE_HOME": str(checkout.scratch / "cache"),
        "PYTHONPATH": str(checkout.sources),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
    }


def _git(*arguments: str) -> str:
    """Returns what git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
