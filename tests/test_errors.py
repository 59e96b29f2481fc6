"""Messages of errors: how what is missing is installed."""

import importlib.metadata

import pytest
import test_packaging

from jaxrl_dist import errors

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
