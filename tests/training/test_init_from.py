"""Runs that start from the parameters of another: what they take over, and what stays their own."""

import functools
import pathlib
from typing import Any

import conftest
import jax
import numpy as np
import pytest

from jaxrl_dist.systems import training_flags
from jaxrl_dist.training import resume

CARTPOLE = "gymnax:CartPole-v1"
SHORT = {"steps": 64, "evaluation.interval_steps": 0, "checkpoint.interval_s": 0.0}


@pytest.fixture
def train(train: conftest.Train) -> conftest.Train:
    return functools.partial(train, env=CARTPOLE, **SHORT)


def started(origin: pathlib.Path, system: str, **settings: Any) -> tuple[conftest.Small, Any, Any]:
    """Returns a run that starts from another, its first state, and the parameters of the other."""
    small = conftest.Small(system, CARTPOLE, 1, {**settings, "init_from": str(origin)})
    given, _ = resume.load_params(origin, "latest", small.layout.template(small.keys).learner.params)
    return small, resume.initial_state(small.parts, small.keys), given


def assert_equal(left: Any, right: Any) -> None:
    for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_first_weight_of_a_divergence_is_that_of_the_settings(train: conftest.Train) -> None:
    origin = train("dppo", folder="before", **{"agent.kl_penalty": 1.0, "agent.scale_rewards": True}).folder
    own = {"agent.kl_penalty": 7.0, "agent.scale_rewards": True}
    _, state, given = started(origin, "dppo", **own)
    params = state.learner.params
    assert np.asarray(params.statistics.own) == 7.0 != np.asarray(given.statistics.own)
    assert_equal(params._replace(statistics=params.statistics._replace(own=given.statistics.own)), given)


@pytest.mark.parametrize("learns", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_temperature_that_does_not_learn_is_that_of_the_settings(train: conftest.Train, learns: bool) -> None:
    first = {"agent.temperature": 3.0, "agent.learn_temperature": False}
    origin = train("discrete_sac", folder="before", **first).folder
    own = {"agent.temperature": 0.5, "agent.learn_temperature": learns}
    _, state, given = started(origin, "discrete_sac", **own)
    network = state.learner.params.network
    found = np.exp(np.asarray(network["temperature"]["log"]))
    np.testing.assert_allclose(found, 3.0 if learns else 0.5, rtol=1e-6)
    assert_equal({**network, "temperature": given.network["temperature"]}, given.network)


def test_the_noise_of_evolution_strategies_is_that_of_the_run_s_seed(train: conftest.Train) -> None:
    origin = train("es", folder="before").folder
    small, state, given = started(origin, "es", seed=1)
    params, first = state.learner.params, small.parts.init(small.keys).learner.params
    assert_equal(params.statistics.key, first.statistics.key)
    assert not np.array_equal(params.statistics.key, given.statistics.key)
    assert_equal(params._replace(statistics=params.statistics._replace(key=given.statistics.key)), given)


@pytest.mark.slow
def test_the_weight_and_the_values_stay_in_a_sweep_of_dppo(train: conftest.Train) -> None:
    origin = train("dppo", folder="before", sweep="learner.learning_rate=1e-4,1e-3").folder
    _, state, given = started(origin, "dppo", sweep="learner.learning_rate=1e-2,1e-1", **{"agent.kl_penalty": 7.0})
    statistics = state.learner.params.statistics
    np.testing.assert_array_equal(statistics.own.own, np.float32([7.0, 7.0]))
    np.testing.assert_array_equal(statistics.values["learner.learning_rate"], np.float32([1e-2, 1e-1]))
    assert_equal(state.learner.params.network, given.network)


def test_the_versions_to_go_back_to_are_of_what_was_given(train: conftest.Train) -> None:
    origin = train("dqn", folder="before").folder
    asynchronous = {"layout": "async_gradient", "layout.kept_versions": 3}
    small, state, given = started(origin, "gorila", **asynchronous)
    assert len(state.versions) == 3
    for version in state.versions:
        assert_equal(version, state.learner)
    assert small.layout.events is not None
    assert_equal(small.layout.events.roll_back(state, 0).learner.params, given)


def test_a_run_goes_on_where_the_other_is_gone(tmp_path: pathlib.Path) -> None:
    origin = f"--init_from={tmp_path / 'gone'}"
    held = tmp_path / "held"
    (held / "checkpoints" / "step_000000000064").mkdir(parents=True)
    (held / "config.json").write_text('{"family": "classic", "settings": {}}')
    begun, fresh = (
        ["--system=ppo", f"--env={CARTPOLE}", origin, f"--out={folder}"] for folder in (held, tmp_path / "new")
    )
    assert training_flags.parse(begun).settings is not None
    with conftest.refused(origin):
        training_flags.parse(fresh)
