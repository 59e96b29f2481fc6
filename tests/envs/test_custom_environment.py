"""The suite of the user's own device environments: made from a function, and refused in one line."""

import pathlib

import jax
import pytest

from jaxrl_dist import envs, errors

MODULE = """
from jaxrl_dist.envs.suites import toy
from jaxrl_dist.envs import wrappers

def make(length=3, wraps=False):
    bare = toy.bare("episode", length)
    return wrappers.auto_reset(bare) if wraps else bare

def fails():
    return 1 / 0

def nothing():
    return 7

_hidden = make
"""


@pytest.fixture
def module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_world.py").write_text(MODULE)
    (tmp_path / "broken_world.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(tmp_path)
    return "own_world"


@pytest.mark.parametrize("wraps", ["false", "true"])
def test_a_function_makes_an_environment(module: str, wraps: str) -> None:
    environment = envs.make(f"custom:{module}:make", {"length": "2", "wraps": wraps})
    assert isinstance(environment, envs.Environment)
    assert environment.spec.name == "custom:own_world:make" and environment.spec.time_limit == 2
    state, timestep = environment.reset(jax.random.key(0))
    kinds = [int(timestep.step_type)]
    for _ in range(3):
        state, timestep = environment.step(state, 1)
        kinds.append(int(timestep.step_type))
    assert kinds == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("own_world:makes", {}, r"own_world has no function makes; it has make, fails, nothing; did you mean make\?"),
        ("own_world", {}, "expected custom:module:NAME of a function"),
        ("nowhere:make", {}, "importing nowhere: ModuleNotFoundError: No module named 'nowhere'"),
        ("broken_world:make", {}, "ModuleNotFoundError at broken_world.py:1: No module named 'no_such_library'"),
        ("own_world:fails", {}, r"ZeroDivisionError at own_world.py:10"),
        ("own_world:nothing", {}, "returned a int, expected a BareEnvironment or Environment"),
        ("own_world:make", {"lenght": "3"}, r"takes length, wraps, observe; did you mean length\?"),
        ("own_world:make", {"length": "long"}, "expected a whole number"),
    ],
)
def test_what_is_no_environment_is_refused_in_one_line(
    module: str, name: str, params: dict[str, str], message: str
) -> None:
    with pytest.raises(errors.UsageError, match=message) as error:
        envs.make(f"custom:{name}", params)
    assert "\n" not in str(error.value)
