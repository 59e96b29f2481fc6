"""The suite of the user's own device environments: made from a function, and refused in one line."""

import pathlib

import conftest
import jax
import pytest

from jaxrl_dist import envs

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

def swapped():
    bare = make()
    return bare._replace(reset=lambda key: bare.reset(key)[::-1])

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
    ("name", "params", "named"),
    [
        ("own_world:makes", {}, ["--env=custom:own_world:makes: ", "make, fails, nothing, swapped", " make?"]),
        ("own_world", {}, ["--env=custom:own_world: ", "custom:module:NAME"]),
        ("nowhere:make", {}, ["--env=custom:nowhere:make: ", "ModuleNotFoundError", "'nowhere'"]),
        ("broken_world:make", {}, ["ModuleNotFoundError", "broken_world.py:1: ", "'no_such_library'"]),
        ("own_world:fails", {}, ["--env=custom:own_world:fails: ", "ZeroDivisionError", "own_world.py:10: "]),
        ("own_world:swapped", {}, ["--env=custom:own_world:swapped: ", "ValueError at ", "(state, observation)"]),
        ("own_world:nothing", {}, ["--env=custom:own_world:nothing: ", " int,", "BareEnvironment", " Environment"]),
        ("own_world:make", {"lenght": "3"}, ["--env.params.lenght: ", "length, wraps, observe", " length?"]),
        ("own_world:make", {"length": "long"}, ["--env.params.length=long: "]),
    ],
)
def test_what_is_no_environment_is_refused_in_one_line(
    module: str, name: str, params: dict[str, str], named: list[str]
) -> None:
    with conftest.refused(*named):
        envs.make(f"custom:{name}", params)
