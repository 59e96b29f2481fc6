"""SAC: loss and gradient against a loop in float64, gradients of each part alone, and the temperature's direction."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import calls
from oracles import call, differences
from oracles import sac as oracle
from test_dpg import NETWORK, SPEC, A, D, N, batch

from jaxrl_dist import types
from jaxrl_dist.agents import sac


def build(**settings: Any) -> tuple[Any, types.Params, Any]:
    agent = sac.make(sac.Config(**settings), SPEC, NETWORK)
    noise = np.random.default_rng(0)

    def shaken(tree: Any) -> Any:
        return jax.tree.map(lambda x: x + jnp.asarray(noise.normal(size=x.shape, scale=0.3), x.dtype), tree)

    params = agent.init(jax.random.key(1))
    return agent, params._replace(network=shaken(params.network)), shaken(params.network)


def loss(agent: Any, params: types.Params, target: Any, rows: Any) -> types.LossOutput:
    return calls.loss(agent, params, target, rows, jax.random.key(4))


@pytest.mark.parametrize(
    "changes", [{}, {"learn_temperature": False, "n_step": 3, "clip_rewards": 0.5, "reward_scale": 0.3}]
)
def test_loss_and_gradient_are_those_of_the_paper(changes: dict[str, Any]) -> None:
    made = call.make("sac", real=True, discount=0.9, target_entropy=-0.7, **changes)
    s, now, target = made.settings, call.params(made, 1, scale=0.4), call.params(made, 2, scale=0.4)
    rows = call.rows(made, seed=3, length=1 + s["n_step"], columns=16)
    weights = np.random.default_rng(0).uniform(0.2, 1.0, 16)
    found = call.learn(made, rows, now, target=target, weights=weights)
    rows["action"] = (rows["action"] - (call.HIGH + call.LOW) / 2) / ((call.HIGH - call.LOW) / 2)
    ahead, here = found.draws
    assert np.abs(ahead - here).max() > 0.1
    wanted = oracle.targets(now, target, rows, s, ahead)

    def objective(params: dict[str, Any]) -> float:
        terms = oracle.terms(params, now, rows, wanted, s, here)
        names = ["critic_loss", "policy_loss", *["temperature_loss"] * s["learn_temperature"]]
        return sum(weights[b] * terms[name][b] for name in names for b in wanted)

    # Actions are f32 where they meet the critics.
    terms = oracle.terms(now, now, rows, wanted, s, here)
    errors = terms.pop("td_error")
    assert found.valid == len(wanted) < 16
    assert found.loss == pytest.approx(objective(now), rel=1e-6)
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in terms.items()}, rel=1e-6)
    np.testing.assert_allclose(found.priorities, [errors.get(b, 0.0) for b in range(16)], rtol=1e-6)
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=2e-6, atol=2e-6)
    parts = {
        name: np.abs(np.concatenate([x.ravel() for x in differences.leaves(part)])) for name, part in gradient.items()
    }
    assert {name for name, part in parts.items() if part.max() > 1e-3} == {
        "policy",
        "critic",
        *["temperature"] * s["learn_temperature"],
    }


@pytest.mark.parametrize(("target_entropy", "grows"), [(50.0, True), (-50.0, False)])
def test_the_temperature_rises_while_there_is_too_little_entropy(target_entropy: float, grows: bool) -> None:
    agent, params, target = build(target_entropy=target_entropy)

    def total(network: Any) -> jax.Array:
        return loss(agent, params._replace(network=network), target, batch()).loss.sum()

    slope = float(jax.grad(total)(params.network)["temperature"]["log"])
    assert (slope < 0) == grows
    agent, params, target = build(target_entropy=target_entropy, learn_temperature=False)
    assert float(jax.grad(total)(params.network)["temperature"]["log"]) == 0


def test_actions_are_within_bounds() -> None:
    agent, params, _ = build()
    timestep = types.TimeStep(jnp.ones(N, jnp.int8), jnp.zeros(N), jnp.ones(N), 100 * batch().inputs, ())
    key = jax.random.key(0)
    chosen = calls.act(agent, params, (), timestep, key, jnp.zeros(N)), calls.evaluate(agent, params, (), timestep, key)
    for action in (output.action for output in chosen):
        assert action.shape == (N, A) and action.min() >= -2.0 and action.max() <= 6.0


def test_the_first_share_of_training_is_random() -> None:
    agent, params, *_ = build(random_share=0.1)
    rows = jnp.zeros(512)
    timestep = types.TimeStep(rows.astype(jnp.int8) + types.MID, rows, rows + 1, jnp.zeros((512, D)), ())
    low, high = np.asarray(SPEC.action.low), np.asarray(SPEC.action.high)

    def acted(progress: float) -> np.ndarray:
        exploration = agent.exploration((), jnp.arange(512), 512, jnp.float32(progress))
        action = np.asarray(calls.act(agent, params, (), timestep, jax.random.key(2), exploration).action)
        return (action - low) / (high - low)

    quantiles = [0.05, 0.25, 0.5, 0.75, 0.95]
    np.testing.assert_allclose(np.quantile(acted(0.09), quantiles), quantiles, atol=0.05)
    assert np.abs(np.quantile(acted(0.1), quantiles) - quantiles).max() > 0.05
