"""The package outside the repository: what a wheel holds, and the command that it installs."""

import functools
import importlib
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile

import conftest
import pytest

from jaxrl_dist import __main__, commands
from jaxrl_dist.commands import train
from jaxrl_dist.systems import catalogue

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_installed_command_is_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, name = PROJECT["project"]["scripts"][commands.CONSOLE].partition(":")
    assert getattr(importlib.import_module(module), name) is __main__.main
    assert {path.stem for path in (ROOT / "scripts").glob("*.py")} == set(commands.NAMES)
    started: list[str] = []
    monkeypatch.setattr(commands, "start", started.append)
    for command in commands.NAMES:
        with pytest.raises(SystemExit):
            runpy.run_path(str(ROOT / "scripts" / f"{command}.py"), run_name="__main__")
        assert callable(importlib.import_module(f"jaxrl_dist.commands.{command}").main)
    assert started == list(commands.NAMES)


def test_messages_name_the_command_that_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for called, named, usage in (
        ("/usr/bin/jaxrl-dist", "jaxrl-dist train", "jaxrl-dist train"),
        ("scripts/train.py", "train.py", "python scripts/train.py"),
    ):
        monkeypatch.setattr(sys, "argv", [called])
        assert commands.run(train.main, "train", ["--sytem=ppo"]) == 2
        assert capsys.readouterr().err.startswith(f"{named}: --sytem: ")
        assert commands.run(train.main, "train", ["--help"]) == 0
        assert f"usage: {usage} " in capsys.readouterr().out


def test_the_package_runs_its_commands_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str) -> int:
        return commands.run(importlib.import_module(f"jaxrl_dist.commands.{name}").main, name, sys.argv[1:])

    for arguments, code in ((["trian"], 2), ([], 2), (["train", "--sytem=ppo"], 2), (["train", "--version"], 0)):
        monkeypatch.setattr(sys, "argv", ["jaxrl-dist", *arguments])
        monkeypatch.setattr(commands, "start", run)
        assert __main__.main() == code
        told = capsys.readouterr()
        assert told.err == "" if code == 0 else len(told.err.splitlines()) == 1


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_console_lists_its_commands_where_help_is_read(
    flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["jaxrl-dist", flag])
    assert __main__.main() == 0
    told = capsys.readouterr()
    assert told.err == ""
    listed = [line.split()[0] for line in told.out.splitlines() if line.startswith("  ")]
    assert listed == list(commands.NAMES)


def test_package_data_covers_all_that_is_no_module() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["jaxrl_dist"]
    covered = {path for pattern in patterns for path in conftest.PACKAGE.glob(pattern)}
    others = {path for path in conftest.PACKAGE.rglob("*.*") if path.suffix not in (".py", ".pyc")}
    files = {catalogue.PRESETS / f"{name}.flags" for name in catalogue.preset_names()}
    assert others == covered and files | {conftest.PACKAGE / "py.typed"} <= covered
    # What has no __init__.py is no package, and would be left out.
    assert all((path.parent / "__init__.py").is_file() for path in conftest.PACKAGE.rglob("*.py"))


def test_versions_agree() -> None:
    version = PROJECT["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {version} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_wheel_holds_the_package(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "jaxrl_dist", source / "jaxrl_dist", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={tmp_path}", str(source)]
    subprocess.run(pip, check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {f"jaxrl_dist/systems/presets/{name}.flags" for name in catalogue.preset_names()} <= held
    assert {"jaxrl_dist/py.typed", "jaxrl_dist/commands/train.py", "jaxrl_dist/envs/suites/gymnax.py"} <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert not any(name.startswith(("tests", "benchmarks", "scripts")) for name in held)
    check_installed(wheel, tmp_path)


def check_installed(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Installs a wheel by itself, beside this environment's other packages, and trains with its command."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=300)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # Of this environment only what was installed by copies: an editable package would bring the repository in.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    install = [sys.executable, "-m", "pip", "--python", str(tmp_path / "venv"), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--ignore-installed", str(wheel)], check=True, timeout=300)
    command = [str(tmp_path / "venv" / "bin" / commands.CONSOLE), "train"]
    elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    start = functools.partial(subprocess.run, cwd=tmp_path, env=elsewhere, capture_output=True, text=True, timeout=300)
    listed = start([*command, "--list"])
    assert listed.returncode == 0 and all(f"{name}:" in listed.stdout for name in catalogue.preset_names())
    little = ["--system=ppo", "--env=gymnax:CartPole-v1", "--steps=1", "--evaluation.episodes=1", "--out=run"]
    trained = start([*command, *little])
    assert trained.returncode == 0 and (tmp_path / "run" / "summary.json").is_file(), trained.stderr
    where = start([str(tmp_path / "venv" / "bin" / "python"), "-c", "import jaxrl_dist; print(jaxrl_dist.__file__)"])
    assert where.stdout.startswith(str(packages))
    missing = start([*command, "--log.wandb=shop"])
    wanted = PROJECT["project"]["optional-dependencies"]["wandb"][0]
    assert missing.stderr.endswith(f'--log.wandb=shop needs the package wandb: pip install "{wanted}"\n')
