"""Messages of errors: how what is missing is installed, and how settings are named."""

import ast
import importlib.metadata
import re

import conftest
import pytest
import test_packaging

from jaxrl_dist import commands, errors

DECLARED = [
    "numpy>=2.0",
    'gymnax==1.0.1; extra == "gymnax"',
    "six ; extra == 'gymnax'",
    'lz4[all]<5,>=4; python_version >= "3.11" and extra == "packed"',
    'other; extra == "gymnax2"',
]


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("gymnax", 'pip install "gymnax==1.0.1" six'),
        ("packed", 'pip install "lz4[all]<5,>=4"'),
        ("gymnax2", "pip install other"),
        # A suite of another distribution.
        ("elsewhere", "pip install package"),
    ],
)
def test_what_is_missing_is_installed_as_the_metadata_says(
    extra: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", {"jaxrl-dist": DECLARED}.__getitem__)
    assert str(errors.missing_package("--env=a:b", "package.part", extra)) == (
        f"--env=a:b needs the package package.part: {command}"
    )


@pytest.mark.parametrize("extra", sorted(set(test_packaging.PROJECT["project"]["optional-dependencies"])))
def test_the_command_of_each_extra_is_that_of_the_installed_metadata(extra: str) -> None:
    declared = test_packaging.PROJECT["project"]["optional-dependencies"][extra]
    command = errors.install(extra, "package")
    assert command.startswith("pip install ")
    assert [text.strip('"') for text in command.removeprefix("pip install ").split()] == declared


def test_a_package_that_is_not_installed_itself_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    assert errors.install("gymnax", "gymnax.environments").startswith("pip install gymnax (")


def test_without_any_requirement_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: None)
    assert errors.install("gymnax", "gymnax") == "pip install gymnax"


def test_a_setting_is_named_as_it_is_given() -> None:
    error = errors.UsageError(errors.given("a.b", 3), ": use ", errors.given("c"), errors.LISTED)
    assert str(error) == "a.b=3: use c (docs/flags.md lists them)"
    assert errors.as_typed(error) == "--a.b=3: use --c (--help lists them)"
    again = errors.UnfitError("run 1: ", *error.args, actions="discrete")
    assert errors.as_typed(again) == f"run 1: {errors.as_typed(error)}" and str(again) == f"run 1: {error}"
    fault = errors.EnvironmentFault("at most ", errors.given("env.params.workers"))
    assert (str(fault), errors.as_typed(fault)) == ("at most env.params.workers", "at most --env.params.workers")
    assert str(errors.given("a.b", None)) != str(errors.given("a.b")) and errors.given("a.b", None).python == "a.b=None"
    assert errors.as_typed(OSError(2, "No such file")) == "[Errno 2] No such file"
    assert errors.as_typed("--flag") == "--flag"


@pytest.mark.parametrize("room", ["numeric", "networks", "replay", "envs", "agents", "learning", "parallel"])
def test_a_room_that_reads_no_command_line_names_no_flag(room: str) -> None:
    flags = []
    for path in (conftest.PACKAGE / room).rglob("*.py"):
        # This one is a command.
        if path.relative_to(conftest.PACKAGE).as_posix() == "envs/check.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        docs = [ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)]
        texts = [str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        # Those of pip are not ours.
        ours = [text for text in texts if text not in docs and not text.startswith("pip install ")]
        flags += [f"{path.name}: {text}" for text in ours if re.search("--[a-z]", text)]
    assert not flags


def test_what_a_file_or_a_command_gives_is_one_line_without_control_codes() -> None:
    error = errors.UsageError(errors.given("env", "a\nb\x1b[2J\ud800é"), ": no")
    assert str(error) == "env=a\\nb\\x1b[2J\\ud800é: no" and errors.as_typed(error) == f"--{error}"


def test_what_others_say_is_shown_in_plain_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.printable("ä 空 \x1b[2J\n\x7f\u2028\ud800") == r"ä 空 \x1b[2J\n\x7f\u2028\ud800"
    # A line that begins like ours is ours.
    commands.complain("train", "it raised:\n\x1b]0;\ntrain.py: all is well")
    commands.refuse("train", "one\rtrain.py: two\x9b")
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("train.py: ") for line in lines] == [True, False, False, True]
    assert all(line.isprintable() for line in lines)
