"""DPPO's penalty: its weight's rule, and that it holds the divergence; its gradient is in `test_ppo.py`."""

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import calls
from test_a2c import FLAT, SPEC, _params, _played

from jaxrl_dist import types
from jaxrl_dist.agents import ppo
from jaxrl_dist.learning import learner


@pytest.mark.parametrize(("divergence", "factor"), [(0.0021, 1.5), (0.0019, 1.0), (0.00051, 1.0), (0.00049, 1 / 1.5)])
def test_the_weight_follows_the_divergence(divergence: float, factor: float) -> None:
    changed = ppo._adapted(ppo.Config(kl_target=1e-3), jnp.float32(3.0), jnp.float32(divergence))
    np.testing.assert_allclose(changed, 3.0 * factor, rtol=1e-6)


@pytest.mark.slow
def test_a_large_step_is_held_back() -> None:
    settings = {"learner.learning_rate": 0.02, "learner.anneal": False, "learner.epochs": 8}
    found = []
    for weight in (1e-4, 30.0):
        run = conftest.Small("dppo", "toy:walk", 1, {**settings, "agent.kl_penalty": weight}).run(8)
        found.append(float(run.metrics.learner["approx_kl"][0]))
        own = float(run.state.learner.params.statistics.own[0])
        assert own != pytest.approx(weight)
    assert found[1] < 0.5 * found[0]


@pytest.mark.parametrize(
    ("epochs", "minibatches", "step"), [pytest.param(1, 1, 0.05, marks=pytest.mark.slow), (3, 3, 0.01)]
)
def test_the_weight_follows_the_policy_that_the_update_ended_with(epochs: int, minibatches: int, step: float) -> None:
    """Means over minibatches, each before its step, are 0 of a single one and too small of many."""
    agent = ppo.make(ppo.Config(kl_penalty=0.01, kl_target=5e-4), SPEC, FLAT)
    rule = learner.Config(learning_rate=step, anneal=False, epochs=epochs, minibatches=minibatches)
    learn = learner.make(rule, agent, types.LOCAL)
    params = _params(agent)
    sequences = _played(agent, params)
    sample = types.Sample(sequences, (), jnp.ones(sequences.steps.action.shape[1]))
    state, _, metrics = learn.update(learn.init(params), sample, jax.random.key(5), jnp.float32(0))
    batch = calls.prepare(agent, params, sequences)
    output = calls.loss(agent, state.params, (), batch, jax.random.key(0))
    divergence = float(output.metrics["approx_kl"].sum() / output.valid.sum())
    assert divergence > 1.2 * float(metrics["approx_kl"]) and divergence > 2 * 5e-4
    np.testing.assert_allclose(state.params.statistics.own, 0.015, rtol=1e-6)
    # With a target between what the update ended with and what its minibatches saw, the two rules differ.
    between = ppo.Config(kl_penalty=0.01, kl_target=2.2 * divergence)
    after = ppo.make(between, SPEC, FLAT).adapt(state.params, sequences, metrics, (), types.LOCAL)
    np.testing.assert_allclose(after.statistics.own, 0.01, rtol=1e-6)
    held = ppo.Config(kl_penalty=0.01, kl_target=1.8 * divergence)
    after = ppo.make(held, SPEC, FLAT).adapt(state.params, sequences, metrics, (), types.LOCAL)
    np.testing.assert_allclose(after.statistics.own, 0.015, rtol=1e-6)
