"""PQN: loss and gradient against loops in float64, the same numbers in every layout, and whose rows it takes."""

from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import calls
from oracles import call, differences
from oracles import pqn as oracle
from test_a2c import BOX, FLAT, SPEC, A, B, T, _params, _played

from jaxrl_dist import errors, networks, types
from jaxrl_dist.agents import pqn
from jaxrl_dist.agents.shared import action_values
from jaxrl_dist.systems import catalogue

ONCE = {"learner.epochs": 1, "learner.minibatches": 1}


def played(agent: Any, params: types.Params) -> types.Unroll:
    """Plays an unroll with an episode cut short and one that terminates midway; most actions are not the best ones."""
    sequences = _played(agent, params)
    action = jnp.asarray(np.random.default_rng(2).integers(0, A, (T + 1, B)), jnp.int32)
    return sequences._replace(steps=sequences.steps._replace(action=action))


def stepped(network: networks.Config, params: types.Params, sequences: types.Unroll) -> np.ndarray:
    """Returns values of actions f64 [T + 1, B, A], one row at a time from the state before the unroll."""
    net, core, rows = networks.make(network, SPEC, action_values.heads(A, dueling=False)), sequences.carry, []
    step = jax.jit(net.step)
    for t in range(T + 1):
        now = jax.tree.map(lambda x, t=t: x[t], sequences.steps.timestep)
        outputs, core = step(params.network, core, now.observation, now.step_type == types.FIRST)
        rows.append(np.asarray(outputs["q"], np.float64))
    return np.stack(rows)


CASES: dict[str, dict[str, Any]] = {
    "own": {},
    "all": {"trace_decay": 1.0, "core": "frame_stack"},
    "none": {"trace_decay": 0.0},
    "rewards": {"clip_rewards": 0.5, "reward_scale": 0.3, "core": "lstm"},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_paper(name: str) -> None:
    """After the first minibatch the targets are still those of the parameters that acted."""
    made = call.make("pqn", **{"discount": 0.9, "trace_decay": 0.7, **CASES[name]})
    acted = call.params(made, 1)
    now = differences.between(acted, call.params(made, 2), 0.3)
    rows = call.rows(made, seed=7, length=7, columns=4)
    found = call.learn(made, rows, now, acted=acted)
    wanted = oracle.targets(acted, rows, made.settings)

    def objective(params: dict[str, Any]) -> float:
        return sum(oracle.terms(params, rows, wanted)["loss"].values())

    terms = oracle.terms(now, rows, wanted)
    assert found.valid == len(wanted) < 6 * 4
    assert found.loss == pytest.approx(objective(now), rel=1e-9)
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in terms.items()}, rel=1e-9)
    assert found.maxima == {}
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=1e-6, atol=1e-7)
    assert min(np.abs(part).max() for part in differences.leaves(gradient)) > 1e-3


def test_an_episode_cut_short_bootstraps_from_its_last_observation_and_one_that_ends_does_not() -> None:
    agent = pqn.make(pqn.Config(discount=0.9, trace_decay=0.7), SPEC, FLAT)
    params = _params(agent)
    sequences = played(agent, params)
    best = stepped(FLAT, params, sequences).max(-1)
    made = np.asarray(calls.prepare(agent, params, sequences).target).reshape(T, B)
    reward = np.asarray(sequences.steps.timestep.reward)
    assert made[3, 0] == pytest.approx(reward[4, 0] + 0.9 * best[4, 0], rel=1e-5)
    assert made[3, 1] == pytest.approx(reward[4, 1], rel=1e-5)
    # The last transition of the unroll bootstraps from the row that opens the next one.
    assert made[T - 1, 0] == pytest.approx(reward[T, 0] + 0.9 * best[T, 0], rel=1e-5)


def test_exploration_falls_in_its_share_of_training_and_evaluation_is_greedy() -> None:
    agent = pqn.make(pqn.Config(epsilon_start=0.9, epsilon_end=0.1, epsilon_fraction=0.5), SPEC, FLAT)
    for progress, epsilon in ((0.0, 0.9), (0.25, 0.5), (0.5, 0.1), (1.0, 0.1)):
        found = agent.exploration((), jnp.arange(3), 3, jnp.float32(progress))
        np.testing.assert_allclose(found, np.full(3, epsilon), rtol=1e-6)
    params, n = _params(agent), 600
    observation = jnp.asarray(np.random.default_rng(0).normal(size=(n, 4)), jnp.float32)
    timestep = types.TimeStep(jnp.ones(n, jnp.int8), jnp.zeros(n), jnp.ones(n), observation, ())
    key, carry = jax.random.key(0), networks.Carry((), ())
    greedy = calls.evaluate(agent, params, carry, timestep, key).action
    net = networks.make(FLAT, SPEC, action_values.heads(A, dueling=False))
    np.testing.assert_array_equal(greedy, networks.of_rows(net, params.network, observation)["q"].argmax(-1))
    acted = calls.act(agent, params, carry, timestep, key, jnp.full(n, 0.6)).action
    # An action drawn at random is the best one in one case of three.
    assert float((acted != greedy).mean()) == pytest.approx(0.4, abs=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("core", ["identity", "lstm"])
@pytest.mark.parametrize("layout", ["sebulba", "async_gradient"])
def test_every_layout_learns_what_anakin_learns(layout: str, core: str) -> None:
    settings: dict[str, Any] = {**ONCE, "network.core": core, "network.core_size": 8}
    own = {"layout.num_actors": 1} if layout == "sebulba" else {"layout.num_workers": 1}
    one = conftest.Small("pqn", "toy:walk", 1, settings).run(4)
    other = conftest.Small("pqn", "toy:walk", 1, {"layout": layout, **settings, **own}).run(4)
    for x, y in zip(one.params, other.params, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
    np.testing.assert_array_equal(one.metrics.updates, other.metrics.updates)
    assert one.metrics.episodes.valid_steps > 0
    other.layout.close()


def test_traces_over_the_actions_of_older_policies_are_refused(train: conftest.Train) -> None:
    for settings, flag in (
        ({"layout": "sebulba", "layout.policy_lag": "1"}, "--layout.policy_lag=1"),
        ({"layout": "sebulba", "layout.policy_lag": "free"}, "--layout.policy_lag=free"),
        ({"layout": "async_gradient"}, "--learner.epochs=2"),
    ):
        with conftest.refused(flag):
            train("pqn", **settings)
    for decay, staleness in ((0.0, "any"), (0.65, "own")):
        assert pqn.make(pqn.Config(trace_decay=decay), SPEC, FLAT).staleness == staleness
    resolved = catalogue.resolved({"system": "pqn", "layout": "sebulba"}, "classic")
    assert resolved["layout.policy_lag"] == "0" and resolved["learner.epochs"] == 4


@pytest.mark.slow
def test_returns_of_one_step_may_be_learned_from_any_policy_s_rows() -> None:
    settings = {"layout": "sebulba", "layout.policy_lag": "1", "agent.trace_decay": 0.0}
    run = conftest.Small("pqn", "toy:walk", 1, settings).run(4)
    np.testing.assert_array_equal(run.metrics.layout["lag_counts"][0, :3], [1, 3, 0])
    assert all(np.isfinite(leaf).all() for leaf in run.params)
    run.layout.close()


def test_real_actions_are_refused() -> None:
    with pytest.raises(errors.UnfitError) as caught:
        pqn.make(pqn.Config(), BOX, FLAT)
    assert caught.value.actions == BOX.action.kind
