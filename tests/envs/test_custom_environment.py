"""The suite of the user's own device environments: made from a function, and refused in one line."""

import pathlib

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist import envs
from jaxrl_dist.runs import metrics

MODULE = """
import jax.numpy as jnp
from jaxrl_dist import envs, types
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

def shaped(reward=0, terminated=0, truncated=0, agents=1):
    def give(number, axes):
        return jnp.full((1,) * axes, number)

    def reset(key):
        return jnp.int32(0), jnp.zeros(2)

    def step(key, state, action):
        numbers = give(1.0, reward), give(state > 3, terminated), give(False, truncated)
        return envs.Transition(state + 1, jnp.zeros(2), *numbers)

    spec = types.EnvironmentSpec("", (), types.DiscreteSpace(2), "classic", num_agents=agents)
    return envs.BareEnvironment(reset, step, spec)

def spec(facts=""):
    def reset(key):
        return jnp.int32(0), {"seen": jnp.zeros(2), "codes": jnp.zeros(3, jnp.int8), "all": {"map": jnp.zeros(4)}}

    def step(key, state, action):
        return envs.Transition(state + 1, reset(key)[1], 1.0, state > 3, False)

    known = types.EnvironmentSpec("", (), types.DiscreteSpace(2), "classic")
    return envs.BareEnvironment(reset, step, eval(f"known._replace({facts})", {"types": types, "known": known}))

def masked():
    def reset(key):
        return jnp.int32(0), {"mask": jnp.ones(2, bool)}

    def step(key, state, action):
        return envs.Transition(state + 1, reset(key)[1], 1.0, state > 3, False)

    spec = types.EnvironmentSpec("", (), types.DiscreteSpace(2), "classic", mask="mask")
    return envs.BareEnvironment(reset, step, spec)

def bounded():
    def step(key, state, action):
        return envs.Transition(state, action, action[0], False, False)

    space = types.BoxSpace((3,), low=(0.0, -5.0, 100.0), high=(1.0, 20.0, 1000.0))
    spec = types.EnvironmentSpec("", (), space, "continuous", time_limit=9)
    return envs.BareEnvironment(lambda key: (0, jnp.zeros(3)), step, spec)

def sized(count: int, rate: float, name="x", *, loud: bool):
    assert (type(count), type(rate), type(loud)) == (int, float, bool)
    return toy.bare("episode", count)

import gymnasium

class Stepped(gymnasium.Env):
    pass

def stepped():
    return Stepped()

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
        (
            "own_world:makes",
            {},
            [
                "--env=custom:own_world:makes: ",
                "make, fails, nothing, swapped, shaped, spec, masked, bounded, sized, stepped",
                " make?",
            ],
        ),
        ("own_world", {}, ["--env=custom:own_world: ", "custom:module:NAME"]),
        ("nowhere:make", {}, ["--env=custom:nowhere:make: ", "ModuleNotFoundError", "'nowhere'"]),
        ("broken_world:make", {}, ["ModuleNotFoundError", "broken_world.py:1: ", "'no_such_library'"]),
        ("own_world:fails", {}, ["--env=custom:own_world:fails: ", "ZeroDivisionError", "own_world.py:12: "]),
        ("own_world:swapped", {}, ["--env=custom:own_world:swapped: ", "ValueError at ", "(state, observation)"]),
        ("own_world:nothing", {}, ["--env=custom:own_world:nothing: ", " int,", "BareEnvironment", " Environment"]),
        ("own_world:Stepped", {}, ["--env=custom:own_world:Stepped: ", "valid: --env=gymnasium:own_world:Stepped"]),
        ("own_world:stepped", {}, ["--env=custom:own_world:stepped: ", "valid: --env=gymnasium:own_world:stepped"]),
        ("own_world:make", {"lenght": "3"}, ["--env.params.lenght: ", "length, wraps, observe", " length?"]),
        ("own_world:make", {"length": "long"}, ["--env.params.length=long: "]),
    ],
)
def test_what_is_no_environment_is_refused_in_one_line(
    module: str, name: str, params: dict[str, str], named: list[str]
) -> None:
    with conftest.refused(*named):
        envs.make(f"custom:{name}", params)


def test_a_mask_alone_makes_no_vector(module: str) -> None:
    with conftest.refused("--env.params.flatten", f"custom:{module}:masked"):
        envs.make(f"custom:{module}:masked", {"flatten": "true"})


def test_bounds_of_actions_may_be_listed(module: str) -> None:
    environment = envs.make(f"custom:{module}:bounded")
    state, _ = environment.reset(jax.random.key(0))
    _, timestep = environment.step(state, jnp.array([-1.0, 30.0, 500.0]))
    np.testing.assert_array_equal(timestep.observation, [0.0, 20.0, 500.0])


def test_arguments_without_a_default_are_given_by_their_annotations(module: str) -> None:
    given = {"count": "2", "rate": "1", "loud": "true"}
    assert envs.make(f"custom:{module}:sized", given).spec.time_limit == 2
    with conftest.refused("'count'"):
        envs.make(f"custom:{module}:sized", {"rate": "1", "loud": "true"})
    with conftest.refused("--env.params.count=two"):
        envs.make(f"custom:{module}:sized", given | {"count": "two"})


@pytest.mark.parametrize("fact", ["reward", "terminated", "truncated"])
def test_a_step_returns_numbers(module: str, fact: str) -> None:
    envs.make(f"custom:{module}:shaped")
    with conftest.refused(f"--env=custom:{module}:shaped: ", f"returns {fact} of shape [1], expected one number;"):
        envs.make(f"custom:{module}:shaped", {fact: "1"})
    with conftest.refused(f"returns {fact} of shape [1, 1], expected one number or one for each agent"):
        envs.make(f"custom:{module}:shaped", {fact: "2", "agents": "2"})


def test_an_observation_of_several_agents_has_their_axis(module: str) -> None:
    envs.make(f"custom:{module}:shaped", {"agents": "2"})
    with conftest.refused(f"--env=custom:{module}:shaped: ", "shape [2]", "3 agents"):
        envs.make(f"custom:{module}:shaped", {"agents": "3"})


@pytest.mark.parametrize(
    "facts",
    [
        "",
        "mask='seen', categories={'codes': (5,)}, privileged='all', reward_range=(0.0, 0.0)",
        "mask='codes', action=types.MultiDiscreteSpace((2, 1)), categories={'codes': (2, 3, 1)}",
        "privileged='all/map', action=types.BoxSpace((2,), -1.0, (1.0, -1.0))",
        "action=types.BoxSpace((2, 1), float('-inf'), float('inf'))",
    ],
)
def test_a_spec_that_fits_its_observation_is_taken(module: str, facts: str) -> None:
    assert envs.make(f"custom:{module}:spec", {"facts": facts}).spec.family == "classic"


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ("mask='sen'", ["mask of 'sen'", "all/map, codes, seen", " seen?"]),
        ("mask='codes'", ["mask='codes'", " 3;", " 2 choices"]),
        ("mask='seen', action=types.BoxSpace((2,), -1.0, 1.0)", ["mask='seen'", " 0 choices"]),
        ("mask='seen', action=types.MultiDiscreteSpace((2, 1))", ["mask='seen'", " 3 choices"]),
        ("privileged='al'", ["privileged='al'", "all/map, codes, seen"]),
        ("categories={'code': (3,)}", ["categories of 'code'", " codes?"]),
        ("categories={'': (3,)}", ["categories of ''", "all/map, codes, seen"]),
        ("categories={'seen': (3,)}", ["'seen'", "float32", "whole numbers"]),
        ("categories={'codes': (3, 3)}", ["2 categories of 'codes'", "[3]"]),
        ("categories={'codes': (3, 0, 3)}", ["(3, 0, 3)", "at least 1"]),
        ("categories={'codes': ()}", ["0 categories of 'codes'"]),
        ("action=types.DiscreteSpace(0)", ["num_values=0", "at least 1"]),
        ("action=types.MultiDiscreteSpace((3, 0))", ["num_values=(3, 0)", "at least 1"]),
        ("action=types.MultiDiscreteSpace(())", ["num_values=()", "at least 1"]),
        ("action=types.BoxSpace((2,), 1.0, -1.0)", [" from 1.0 to -1.0", "low <= high"]),
        ("action=types.BoxSpace((2,), -1.0, (1.0, -2.0))", ["low <= high"]),
        ("action=types.BoxSpace((2,), -1.0, (1.0, 1.0, 1.0))", ["bounds", "[2]"]),
        ("reward_range=(1.0, 0.0)", ["reward_range=(1.0, 0.0)"]),
        ("reward_range=(float('nan'), 0.0)", ["reward_range=(nan, 0.0)"]),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(module: str, facts: str, named: list[str]) -> None:
    with conftest.refused(f"--env=custom:{module}:spec: its spec has ", *named):
        envs.make(f"custom:{module}:spec", {"facts": facts})


@pytest.mark.parametrize("system", ["ppo", "dqn", "r2d2"])
def test_an_empty_leaf_beside_others_is_played_and_learned(system: str, train: conftest.Train) -> None:
    summary = train(system, "custom:fakes.own:make", layout="anakin").summary
    assert summary["env_steps"] > 0 and summary["eval_return_mean"] == 5


def test_an_environment_with_a_state_of_its_own_resumes_on_the_host(train: conftest.Train) -> None:
    settings = {"layout": "sebulba", "layout.policy_lag": "0", "learner.anneal": False, "log.interval_steps": 128}
    whole = train("a2c", "custom:fakes.own:make", folder="whole", **settings)
    train("a2c", "custom:fakes.own:make", folder="cut", steps=640, **settings)
    cut = train("a2c", "custom:fakes.own:make", folder="cut", **settings)
    assert cut.summary["params_sha256"] == whole.summary["params_sha256"]
    # An unroll of 16 rows cuts an episode of 6.
    names = ("env_steps", "episodes", "episode_return", "episode_length")
    one, other = ([[row.get(name) for name in names] for row in metrics.read(run.folder)] for run in (whole, cut))
    assert [640, 24, 5, 5] in one and one[-1][0] == 1280
    assert [row for row in other if row[0] > 640] == [row for row in one if row[0] > 640]
