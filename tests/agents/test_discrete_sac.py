"""Discrete SAC: loss and gradient against a loop in float64, illegal actions, random actions, and what is refused."""

from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from fakes import calls
from oracles import call, differences
from oracles import discrete_sac as oracle

from jaxrl_dist import envs, networks, types
from jaxrl_dist.agents import discrete_sac

NETWORK = networks.Config(torso="mlp", hidden_sizes=(8,))
SPEC = envs.make("toy:choice").spec


@pytest.mark.parametrize(
    "changes", [{}, {"learn_temperature": False, "n_step": 3, "clip_rewards": 0.5, "reward_scale": 0.3}]
)
def test_loss_and_gradient_are_those_of_the_paper(changes: dict[str, Any]) -> None:
    made = call.make("discrete_sac", discount=0.9, target_entropy=0.7, **changes)
    s, now, target = made.settings, call.params(made, 1), call.params(made, 2)["critic"]
    rows = call.rows(made, seed=3, length=1 + s["n_step"], columns=16)
    weights = np.random.default_rng(0).uniform(0.2, 1.0, 16)
    found = call.learn(made, rows, now, target=target, weights=weights)
    wanted = oracle.targets(now, target, rows, s)

    def objective(params: dict[str, Any]) -> float:
        terms = oracle.terms(params, now, rows, wanted, s)
        names = ["critic_loss", "policy_loss", *["temperature_loss"] * s["learn_temperature"]]
        return sum(weights[b] * terms[name][b] for name in names for b in wanted)

    terms = oracle.terms(now, now, rows, wanted, s)
    errors = terms.pop("td_error")
    assert found.valid == len(wanted) < 16
    assert found.loss == pytest.approx(objective(now), rel=1e-9)
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in terms.items()}, rel=1e-9)
    np.testing.assert_allclose(found.priorities, [errors.get(b, 0.0) for b in range(16)], rtol=1e-9)
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=1e-6, atol=1e-7)
    parts = {
        name: np.abs(np.concatenate([x.ravel() for x in differences.leaves(part)])) for name, part in gradient.items()
    }
    assert {name for name, part in parts.items() if part.max() > 1e-3} == {
        "policy",
        "critic",
        *["temperature"] * s["learn_temperature"],
    }


def batch_of(legal: np.ndarray) -> tuple[Any, Any, Any]:
    """Returns an agent, parameters, and windows [2, N] with masks bool [2, N, 6]; action 0 was taken."""
    agent = discrete_sac.make(discrete_sac.Config(random_share=0.5), SPEC, NETWORK)
    params = agent.init(jax.random.key(1))
    params = params._replace(network=jax.tree.map(lambda x: x + 0.3, params.network))
    rng, count = np.random.default_rng(0), legal.shape[1]
    observation = jax.tree.map(
        lambda x: jnp.asarray(rng.integers(0, 2, (2, count, *x.shape)), x.dtype), SPEC.observation
    )
    observation["action_mask"] = jnp.asarray(legal)
    row = jnp.ones((2, count))
    timestep = types.TimeStep(jnp.full((2, count), types.MID, jnp.int8), row, row, observation, ())
    steps = types.Step(timestep, jnp.zeros((2, count), jnp.int32), (), row)
    return agent, params, types.Unroll(steps, agent.init_carry(count))


def test_illegal_actions_have_no_part_in_the_loss() -> None:
    """Raised values of actions that are illegal in both states change no loss, and the entropy is of the legal ones."""
    legal = np.ones((2, 5, 6), bool)
    legal[:, :, 2:] = False
    agent, params, sequences = batch_of(legal)

    def loss(raised: float, sequences: Any) -> Any:
        network = jax.tree.map(lambda x: x, params.network)
        network["critic"]["outputs_q"]["Dense_0"]["bias"] += raised * jnp.array([0, 0, 1, 1, 1, 1.0])
        network["policy"]["outputs_policy"]["Dense_0"]["bias"] += raised * jnp.array([0, 0, 1, 1, 1, 1.0])
        now = params._replace(network=network)
        batch = calls.prepare(agent, now, sequences)
        return calls.loss(agent, now, agent.target(network), batch, jax.random.key(0))

    plain, raised = loss(0.0, sequences), loss(20.0, sequences)
    for name, number in plain.metrics.items():
        np.testing.assert_allclose(raised.metrics[name], number, rtol=1e-5, atol=1e-6, err_msg=name)
    assert (plain.metrics["entropy"] <= np.log(2) + 1e-6).all()
    # α is 1 at first, where the temperature's loss is 0 whatever the target; its slope has the target in it.
    slope = jax.grad(lambda log: _temperature_loss(agent, params, sequences, log))(0.0)
    np.testing.assert_allclose(slope, -(0.98 * 5 * np.log(2) - plain.metrics["entropy"].sum()), rtol=1e-5)
    alone = np.zeros((2, 5, 6), bool)
    alone[:, :, 0] = True
    found = loss(0.0, batch_of(alone)[2])
    assert np.isfinite(found.loss).all() and not found.metrics["entropy"].any()


def _temperature_loss(agent: Any, params: Any, sequences: Any, log: Any) -> Any:
    now = params._replace(network={**params.network, "temperature": {"log": log}})
    batch = calls.prepare(agent, now, sequences)
    output = calls.loss(agent, now, agent.target(now.network), batch, jax.random.key(0))
    return output.metrics["temperature_loss"].sum()


def test_random_actions_are_uniform_over_the_legal_ones_and_end_with_their_share() -> None:
    legal = np.ones((2, 3000, 6), bool)
    legal[:, :, [1, 4]] = False
    agent, params, sequences = batch_of(legal)
    params = params._replace(network=jax.tree.map(lambda x: 20 * x, params.network))
    timestep = jax.tree.map(lambda x: x[0], sequences.steps.timestep)

    def counts(progress: float) -> np.ndarray:
        exploration = agent.exploration(params, jnp.arange(3000), 3000, jnp.float32(progress))
        action = calls.act(agent, params, agent.init_carry(3000), timestep, jax.random.key(3), exploration).action
        return np.bincount(np.asarray(action), minlength=6)

    early, late = counts(0.49), counts(0.5)
    assert early[1] == early[4] == late[1] == late[4] == 0
    assert scipy.stats.chisquare(early[[0, 2, 3, 5]]).pvalue > 1e-3
    assert scipy.stats.chisquare(late[[0, 2, 3, 5]]).pvalue < 1e-3


def test_a_memory_is_refused() -> None:
    with conftest.refused("--network.core=lstm"):
        discrete_sac.make(discrete_sac.Config(), SPEC, networks.Config(torso="mlp", core="lstm"))
