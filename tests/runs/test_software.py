"""Commit and versions: read, and recorded once for each session that ran with others."""

import importlib.metadata
import pathlib
import re
import shutil
import subprocess

import pytest

from jaxrl_dist.runs import software
from jaxrl_dist.systems import catalogue


def test_versions_are_those_that_count() -> None:
    lines = software.versions()
    assert len({line.split()[0] for line in lines}) == len(lines)
    assert re.fullmatch(r"python 3\.\d+\.\d+", lines[0]) and any(re.match(r"jax \d", line) for line in lines)


def test_sessions_are_recorded_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = catalogue.resolved({"system": "ppo"})
    monkeypatch.setattr(software, "commit", lambda: "first")
    first = software.record(settings.as_json(), None)
    assert software.recorded(first) == [{"commit": "first", "versions": software.versions()}]
    assert software.record(settings.as_json(), first) == first
    monkeypatch.setattr(software, "commit", lambda: "second")
    second = software.record(settings.as_json(), first)
    assert [session["commit"] for session in software.recorded(second)] == ["first", "second"]
    # Neither a resume nor a reader of the settings sees it.
    assert settings.difference(second) == ((), ())
    assert catalogue.restored(second).settings == settings.settings


def test_a_run_from_before_the_record_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "commit", lambda: "now")
    before = catalogue.resolved({"system": "ppo"}).as_json()
    assert [session["commit"] for session in software.recorded(software.record(before, before))] == ["unknown", "now"]


def test_a_commit_is_of_the_package_s_own_repository(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(software, "_PACKAGE", package)
    assert software.commit() == "unknown"
    git("init")
    (tmp_path / "other.py").touch()
    git("add", "other.py")
    git("commit", "-m", "another project's")
    assert software.commit() == "unknown"
    git("add", "package")
    git("commit", "-m", "the package")
    assert software.commit() == git("rev-parse", "HEAD")
    (package / "__init__.py").write_text("changed = True\n")
    assert software.commit() == git("rev-parse", "HEAD") + "-dirty"


def test_a_checkout_that_is_not_installed_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    assert software.version() == importlib.metadata.version("jaxrl_dist")
    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert software.version() == "from a checkout"
    assert software.versions()[1:3] == ["jaxrl_dist from a checkout", "jax not installed"]
