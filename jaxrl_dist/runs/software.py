"""The commit and the versions that a result depends on, as `--version` prints them and a run folder records them.

Imports no JAX: versions are read from the metadata of installed packages.
"""

import importlib.metadata
import importlib.util
import pathlib
import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from jaxrl_dist import errors
from jaxrl_dist.runs import files
from jaxrl_dist.settings import resolve

_DISTRIBUTIONS = (
    *("jaxrl_dist", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"),
    *("gymnax", "brax", "envpool", "gymnasium", "ale-py", "craftax", "navix", "jumanji", "pgx", "playground"),
    *("jaxmarl", "pettingzoo"),
)
# Services to which records may be sent, by package.
TRACKERS = {"wandb": "Weights & Biases", "mlflow": "MLflow"}
_KEY = "software"
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
_UNKNOWN: dict[str, Any] = {"commit": "unknown", "versions": []}
_VERSIONS = files.list_of(files.TEXT)
_SESSIONS = files.list_of(
    files.Kind(
        "a commit with versions",
        lambda x: isinstance(x, dict) and files.TEXT.holds(x.get("commit")) and _VERSIONS.holds(x.get("versions")),
    )
)


def version() -> str:
    """Returns the version of this package, "from a checkout" where it is not installed."""
    try:
        return importlib.metadata.version(_DISTRIBUTIONS[0])
    except importlib.metadata.PackageNotFoundError:
        return "from a checkout"


def versions() -> list[str]:
    """Lists the versions that a result depends on, such as "jax 0.10.2"."""
    lines = [f"python {platform.python_version()}", f"{_DISTRIBUTIONS[0]} {version()}"]
    for name in _DISTRIBUTIONS[1:]:
        try:
            lines.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{name} not installed")
    return lines


def is_installed(package: str) -> bool:
    """Says whether a package can be imported; a mere folder of its name, left by some program, is none."""
    if package in sys.modules:
        return sys.modules[package] is not None
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def check_trackers(settings: Mapping[str, Any] | resolve.Resolved) -> None:
    """Checks that the packages of the settings' trackers are installed, without importing them.

    Raises:
        UsageError: one is missing; the message names the extra to install.
    """
    for name in TRACKERS:
        destination = settings[f"log.{name}"]
        if destination and not is_installed(name):
            raise errors.missing_package(errors.given(f"log.{name}", destination), name, name)


def commit() -> str:
    """Returns the commit of the package's checkout, marked where tracked files differ from it, or "unknown"."""
    # An installed package may lie in another project's repository, whose commit says nothing about it.
    if not _git("ls-files", "__init__.py"):
        return _UNKNOWN["commit"]
    return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or _UNKNOWN["commit"]


def recorded(contents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns commit and versions of a run's sessions, from its `config.json`; unknown if it has none."""
    sessions = contents.get(_KEY)
    return sessions if sessions and _SESSIONS.holds(sessions) else [_UNKNOWN]


def other_version(contents: Mapping[str, Any]) -> str:
    """Returns the version of this package that last wrote a run's `config.json`, "" if it is the present one."""
    ours = f"{_DISTRIBUTIONS[0]} "
    then, now = (
        next((one.removeprefix(ours) for one in listed if one.startswith(ours)), "")
        for listed in (recorded(contents)[-1]["versions"], versions())
    )
    return "" if then == now else then


def record(contents: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Adds commit and versions of this process to the contents of a `config.json`.

    Args:
        contents: contents to write.
        earlier: present contents of the file, whose sessions are kept; None without a file.
    """
    now = {"commit": commit(), "versions": versions()}
    before = [] if earlier is None else recorded(earlier)
    return {**contents, _KEY: before if now in before else [*before, now]}


def _git(*arguments: str) -> str:
    """Returns the output of git in the folder of the package, "" if it fails."""
    try:
        result = subprocess.run(
            ["git", "-C", str(_PACKAGE), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip()
