"""MPO: loss and gradient against a loop in float64, the range of its actions, and its first multipliers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import calls
from oracles import call, differences
from oracles import mpo as oracle

from jaxrl_dist import envs, networks, types
from jaxrl_dist.agents import mpo
from jaxrl_dist.agents.shared import duals


@pytest.mark.parametrize("changes", [{"n_step": 1}, {"n_step": 3, "clip_rewards": 0.5, "reward_scale": 0.3}])
def test_loss_and_gradient_are_those_of_the_papers(changes: dict[str, Any]) -> None:
    made = call.make(
        "mpo",
        real=True,
        discount=0.9,
        num_samples=4,
        temperature_bound=0.3,
        mean_bound=0.1,
        deviation_bound=0.2,
        **changes,
    )
    s, now = made.settings, call.params(made, 1, scale=0.5)
    target = {name: call.params(made, 2, scale=0.5)[name] for name in ("policy", "critic")}
    rows = call.rows(made, seed=3, length=1 + s["n_step"], columns=10)
    weights = np.random.default_rng(0).uniform(0.2, 1.0, 10)
    found = call.learn(made, rows, now, target=target, weights=weights)
    rows["action"] = (rows["action"] - (call.HIGH + call.LOW) / 2) / ((call.HIGH - call.LOW) / 2)
    draws = found.draws
    assert [draw.shape for draw in draws] == [(4, 10, 2)] * 2
    assert np.abs(draws[0] - draws[1]).max() > 0.1

    def objective(params: dict[str, Any]) -> float:
        terms = oracle.terms(params, now, target, rows, s, draws)
        names = ("critic_loss", "policy_loss", "temperature_loss", "penalty")
        return sum(weights[b] * x for name in names for b, x in terms[name].items())

    terms = oracle.terms(now, now, target, rows, s, draws)
    errors, _ = terms.pop("td_error"), terms.pop("penalty")
    assert found.valid == len(errors) < 10
    assert found.loss == pytest.approx(objective(now), rel=1e-6)
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in terms.items()}, rel=1e-6)
    np.testing.assert_allclose(found.priorities, [errors.get(b, 0.0) for b in range(10)], rtol=1e-6)
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=2e-6, atol=2e-6)
    assert min(np.abs(part).max() for part in differences.leaves(gradient)) > 1e-3


def test_actions_are_within_bounds_and_explored_by_the_policy_s_deviation() -> None:
    made = call.make("mpo", real=True)
    agent, rows = made.agent, jnp.zeros(2000)
    params = agent.init(jax.random.key(0))
    timestep = types.TimeStep(rows.astype(jnp.int8) + 1, rows, rows + 1, jnp.zeros((2000, call.D)), ())
    action = np.asarray(calls.act(agent, params, (), timestep, jax.random.key(1)).action)
    scaled = (action - (call.HIGH + call.LOW) / 2) / ((call.HIGH - call.LOW) / 2)
    assert np.abs(scaled).max() <= 1 + 1e-6
    # Half of the range, less what the bounds cut off.
    np.testing.assert_allclose(np.quantile(scaled, [0.1587, 0.5, 0.8413], axis=0)[:, 0], [-0.5, 0, 0.5], atol=0.05)
    best = np.asarray(calls.evaluate(agent, params, (), timestep, jax.random.key(1)).action)
    assert len(np.unique(best, axis=0)) == 1


def test_each_multiplier_begins_where_its_setting_says() -> None:
    config = mpo.Config(temperature=2.0, multiplier=3.0, deviation_multiplier=500.0)
    agent = mpo.make(config, envs.make("toy:reach").spec, networks.Config(torso="mlp"))
    first = agent.init(jax.random.key(0)).network["duals"]
    assert {name: float(duals.value(x)) for name, x in first.items()} == pytest.approx(
        {"temperature": 2.0, "mean": 3.0, "deviation": 500.0}
    )


def test_no_dual_variable_falls_below_a_hundred_millionth() -> None:
    found = [float(duals.value(jnp.float32(parameter))) for parameter in (-1e4, -200.0, -30.0, 0.0, 40.0)]
    assert found == pytest.approx([1e-8, 1e-8, 1e-8, np.log(2.0), 40.0], rel=1e-4)
