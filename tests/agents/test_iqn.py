"""IQN: loss and gradient against a loop in float64, levels that are drawn anew, masks, and what is refused."""

import dataclasses
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import calls
from oracles import call, differences
from oracles import iqn as oracle

from jaxrl_dist import networks, types
from jaxrl_dist.agents import iqn
from jaxrl_dist.networks import encoders

D, A = 5, 3
SPEC = types.EnvironmentSpec("toy:x", jax.ShapeDtypeStruct((D,), jnp.float32), types.DiscreteSpace(A), "classic")
NETWORK = networks.Config(torso="mlp", hidden_sizes=(8,), head_size=6, activation="relu")
LEVELS = {"num_levels": 3, "num_target_levels": 4, "num_policy_levels": 2, "num_cosines": 5, "discount": 0.9}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "double n-step stack": {"double": True, "n_step": 3, "core": "frame_stack", "error_clip": 0.0},
    "munchausen": {"temperature": 0.3, "munchausen": 0.9, "clip_rewards": 0.5, "reward_scale": 0.3},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_papers(name: str) -> None:
    made = call.make("iqn", **LEVELS, **CASES[name])
    s, context = made.settings, made.agent.context
    now, target = call.params(made, 1), call.params(made, 2)
    rows = call.rows(made, seed=3, length=context + 1 + s["n_step"], columns=12)
    weights = np.random.default_rng(0).uniform(0.2, 1.0, 12)
    found = call.learn(made, rows, now, target=target, weights=weights)
    draws = found.draws
    assert [x.shape for x in draws] == [(12, 3), (12, 4), (12, 2), *[(12, 2)] * bool(s["munchausen"])]
    joined = np.concatenate([x.ravel() for x in draws])
    assert joined.min() >= 0 and joined.max() < 1 and len(np.unique(joined)) == joined.size
    wanted = oracle.targets(now, target, rows, s, draws, context)

    def objective(params: dict[str, Any]) -> float:
        return sum(weights[b] * x for b, x in oracle.terms(params, rows, wanted, s, draws, context)["loss"].items())

    expected = oracle.terms(now, rows, wanted, s, draws, context)
    assert found.valid == len(wanted) < 12
    assert found.loss == pytest.approx(objective(now), rel=1e-6)
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in expected.items()}, rel=1e-6)
    np.testing.assert_allclose(found.priorities, [expected["loss"].get(b, 0.0) for b in range(12)], rtol=1e-6)
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=1e-5, atol=1e-6)
    assert min(np.abs(part).max() for part in differences.leaves(gradient)) > 1e-3


def test_each_row_and_step_draws_levels_of_its_own() -> None:
    agent = iqn.make(iqn.Config(num_policy_levels=1, evaluation_epsilon=0.0), SPEC, NETWORK)
    params = agent.init(jax.random.key(0))
    params = params._replace(network=jax.tree.map(lambda x: 3 * x, params.network))
    rows = jnp.zeros(500)
    observation = jnp.broadcast_to(jax.random.normal(jax.random.key(4), (D,)), (500, D))
    timestep = types.TimeStep(jnp.ones(500, jnp.int8), rows, rows + 1, observation, ())
    carry = networks.Carry((), ())
    first, second = (calls.act(agent, params, carry, timestep, jax.random.key(seed), rows).action for seed in (1, 2))
    assert len(np.unique(first)) > 1 and not np.array_equal(first, second)
    evaluated = [calls.evaluate(agent, params, carry, timestep, jax.random.key(seed)).action for seed in (1, 2)]
    assert len(np.unique(evaluated)) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"munchausen": 0.9}, ["--agent.munchausen=0.9", "--agent.temperature=0.03"]),
        ({"temperature": 0.1, "double": True}, ["--agent.double=true", "--agent.temperature=0"]),
        ({"temperature": 0.1, "munchausen": 0.9, "log_policy_low": 0.0}, ["--agent.log_policy_low=0"]),
    ],
)
def test_parts_that_do_not_go_together_are_refused(changes: dict[str, Any], words: list[str]) -> None:
    with conftest.refused(*words):
        iqn.make(iqn.Config(**changes), SPEC, NETWORK)


def test_a_memory_is_refused() -> None:
    with conftest.refused("--network.core=lstm"):
        iqn.make(iqn.Config(), SPEC, networks.Config(torso="mlp", core="lstm"))


def test_hidden_layers_compute_in_bfloat16_and_the_last_one_does_not() -> None:
    network = dataclasses.replace(NETWORK, compute="bfloat16")
    module = iqn._Quantiles(network, encoders.make(network, SPEC, (), last_layer=True), A, 5)
    rows, levels = jnp.ones((2, D)), jnp.full((2, 3), 0.5)
    params = module.init(jax.random.key(0), rows, levels)["params"]
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    # As a network calls it.
    rows, params["torsos_0"] = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (rows, params["torsos_0"]))
    _, seen = module.apply({"params": params}, rows, levels, capture_intermediates=True)
    found = {name: seen["intermediates"][name]["__call__"][0].dtype.name for name in ("level", "hidden", "q")}
    assert found == {"level": "bfloat16", "hidden": "bfloat16", "q": "float32"}
