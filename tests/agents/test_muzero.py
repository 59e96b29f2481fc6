"""MuZero: targets, loss and gradient against loops in float64, a new search, what actors do, and what is refused."""

import sys
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from fakes import calls
from oracles import call, differences, dqn
from oracles import search as oracle

from jaxrl_dist import networks, types
from jaxrl_dist.agents import muzero
from jaxrl_dist.agents.shared import search

D, A, B = 5, 3, 12
SPEC = types.EnvironmentSpec("toy:x", jax.ShapeDtypeStruct((D,), jnp.float32), types.DiscreteSpace(A), "classic")
NETWORK = networks.Config(torso="mlp", hidden_sizes=(8,), activation="relu")
TINY = muzero.Config(latent_size=4, model_size=5, num_atoms=11, value_bound=5.0, simulations=4)
SMALL = {"latent_size": 4, "model_size": 5, "num_atoms": 11, "value_bound": 5.0, "unroll_steps": 3, "discount": 0.9}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"n_step": 2, "value_cost": 0.5},
    "stack": {"n_step": 1, "core": "frame_stack"},
}


def _rows(made: call.Made) -> dict[str, Any]:
    s, rng = made.settings, np.random.default_rng(5)
    rows = call.rows(made, seed=3, length=made.agent.context + 1 + s["unroll_steps"] + s["n_step"], columns=B)
    shape = rows["step_type"].shape
    policy = rng.dirichlet(np.ones(call.A), shape).astype(np.float32).astype(np.float64)
    return rows | {"policy": policy, "value": 3 * rng.normal(size=shape).astype(np.float32).astype(np.float64)}


@pytest.mark.parametrize("name", marks.some(CASES.keys(), fast={"stack"}))
def test_targets_loss_and_gradient_are_those_of_the_paper(name: str) -> None:
    made = call.make("muzero", **SMALL, **CASES[name])
    s, context, now, rows = made.settings, made.agent.context, call.params(made, 1), _rows(made)
    batch, weights = call.prepare(made, rows), np.random.default_rng(0).uniform(0.2, 1.0, B)
    wanted = [oracle.targets(rows, rows["value"], s, context, b) for b in range(B)]
    states = np.array([one["state"] for one in wanted])
    assert {"plays", "over", "unknown"} == set(states[:, 1:-1].flat) and "unknown" in states[:, 0]
    plays, policy = states == "plays", rows["policy"][context:].swapaxes(0, 1)
    np.testing.assert_array_equal(batch.teaches_policy, plays)
    np.testing.assert_array_equal(batch.teaches_value, states != "unknown")
    np.testing.assert_array_equal(batch.teaches_reward, states[:, :-1] != "unknown")
    np.testing.assert_allclose(batch.value, [one["value"] for one in wanted], rtol=1e-6)
    np.testing.assert_allclose(batch.reward, [one["reward"] for one in wanted], rtol=1e-6)
    np.testing.assert_allclose(batch.policy[plays], policy[:, : plays.shape[1]][plays], rtol=1e-6)
    played, action = plays[:, :-1], rows["action"][context:].swapaxes(0, 1)[:, : s["unroll_steps"]]
    np.testing.assert_array_equal(batch.action[played], action[played])
    drawn = [call.prepare(made, rows, key=key).action[~played] for key in range(5)]
    assert set(np.concatenate(drawn)) == {0, 1, 2} and not np.array_equal(*drawn[:2])

    def terms(params: dict[str, Any]) -> dict[int, Any]:
        return {
            b: oracle.window(params, now, dqn.inputs(rows, b)[context], batch.action[b], batch.policy[b], wanted[b], s)
            for b in np.flatnonzero(plays[:, 0])
        }

    found, expected = call.learn(made, rows, now, weights=weights), terms(now)
    assert found.valid == len(expected) < B

    def objective(params: dict[str, Any]) -> float:
        return sum(weights[b] * one["loss"] for b, one in terms(params).items())

    assert found.loss == pytest.approx(objective(now), rel=1e-6)
    sums = {key: sum(one[key] for one in expected.values()) for key in found.metrics}
    assert found.metrics == pytest.approx(sums, rel=1e-5)
    np.testing.assert_allclose(found.priorities, [expected[b]["td_error"] if b in expected else 0 for b in range(B)])
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=1e-5, atol=1e-6)
    assert min(np.abs(part).max() for part in differences.leaves(gradient)) > 1e-3
    error = [abs(rows["value"][context, b] - wanted[b]["value"][0]) for b in expected]
    np.testing.assert_allclose(call.first_error(made, rows)[list(expected)], error, rtol=1e-6)


@pytest.mark.parametrize(("share", "of_values"), [(1.0, True), (0.5, True), (0.5, False)])
def test_reanalysis_takes_values_and_a_share_of_policies_from_the_target(
    share: float, of_values: bool, monkeypatch: Any
) -> None:
    def fake(config: Any, model: Any, network: Any, key: Any, root: Any, mask: Any, temperature: Any) -> Any:
        assert temperature.shape == root.value.shape and (config.temperature, mask) == (1.0, None)
        return jnp.zeros(root.value.shape, jnp.int32), search.Found(jax.nn.softmax(2 * root.logits), root.value)

    monkeypatch.setattr(search, "run", fake)
    made = call.make("muzero", **SMALL, n_step=2, target_values=of_values, reanalyse=share)
    s, rows, now = made.settings, _rows(made), call.params(made, 2)
    batch = call.prepare(made, rows, now)
    hidden = np.array([[oracle.represented(now, x) for x in dqn.inputs(rows, b)] for b in range(B)])
    value = [[oracle.number(oracle.mlp(now["model"]["value"], h), oracle.atoms(s)) for h in row] for row in hidden]
    known = np.array(value).T if of_values else rows["value"]
    wanted = [oracle.targets(rows, known, s, 0, b) for b in range(B)]
    np.testing.assert_allclose(batch.value, [one["value"] for one in wanted], rtol=1e-5)
    old = rows["policy"].swapaxes(0, 1)[:, :4]
    new = np.array([[oracle.softmax(2 * oracle.mlp(now["model"]["policy"], h)) for h in row[:4]] for row in hidden])
    plays = np.array([one["state"] for one in wanted]) == "plays"
    of_old, of_new = (
        np.array([np.allclose(batch.policy[b][plays[b]], x[b][plays[b]], rtol=1e-5) for b in range(B) if plays[b, 0]])
        for x in (old, new)
    )
    assert (of_old ^ of_new).all() and of_new.any() and of_old.any() == (share < 1)
    assert made.agent.target({"x": jnp.ones(2)})["x"].tolist() == [1, 1]
    assert muzero.make(TINY, SPEC, NETWORK).target({}) == ()


def _timestep(observation: Any) -> types.TimeStep:
    rows = jnp.zeros(jax.tree.leaves(observation)[0].shape[0])
    return types.TimeStep(rows.astype(jnp.int8), rows, rows + 1, observation, ())


@pytest.mark.parametrize("kind", marks.some(["muzero", "gumbel"], slow={"muzero"}))
def test_actors_explore_and_evaluation_does_not(kind: str) -> None:
    config = muzero.Config(**{**vars(TINY), "search": kind, "value_bound": 5.0})
    agent = muzero.make(config, SPEC, NETWORK)
    params, carry = agent.init(jax.random.key(0)), agent.init_carry(64)
    timestep = _timestep(jnp.broadcast_to(jax.random.normal(jax.random.key(1), (D,)), (64, D)))
    warm, cold = (jnp.full(64, x) for x in (1.0, 1e-3))
    acted = [calls.act(agent, params, carry, timestep, jax.random.key(seed), warm) for seed in (1, 2)]
    assert len(np.unique(acted[0].action)) == A and not np.array_equal(acted[0].action, acted[1].action)
    np.testing.assert_allclose(acted[0].extras.policy.sum(-1), 1.0, rtol=1e-5)
    if kind == "muzero":
        frozen = calls.act(agent, params, carry, timestep, jax.random.key(1), cold)
        best = frozen.extras.policy.max(-1)
        np.testing.assert_allclose(np.take_along_axis(frozen.extras.policy, frozen.action[:, None], 1)[:, 0], best)
    evaluated = [calls.evaluate(agent, params, carry, timestep, jax.random.key(seed)) for seed in (1, 2)]
    assert kind == "muzero" or len(np.unique([x.action for x in evaluated])) == 1
    assert evaluated[0].extras == ()


def test_an_illegal_action_is_never_played() -> None:
    observation = {"x": jax.ShapeDtypeStruct((D,), jnp.float32), "mask": jax.ShapeDtypeStruct((A,), bool)}
    spec = SPEC._replace(observation=observation, mask="mask")
    for kind in ("muzero", "gumbel"):
        agent = muzero.make(muzero.Config(**{**vars(TINY), "search": kind}), spec, NETWORK)
        mask = jnp.array([[True, False, True], [False, False, True], [False, False, False]] * 20)
        timestep = _timestep({"x": jnp.ones((60, D)), "mask": mask})
        params = agent.init(jax.random.key(0))
        found = calls.act(agent, params, agent.init_carry(60), timestep, jax.random.key(3), jnp.ones(60))
        by_row = found.action.reshape(20, 3)
        assert set(by_row[:, 0].tolist()) == {0, 2} and set(by_row[:, 1].tolist()) == {2}
        assert set(by_row[:, 2].tolist()) == {0, 1, 2}
        assert found.extras.policy.reshape(20, 3, A)[:, 0, 1].max() == 0


def test_temperature_falls_in_steps() -> None:
    agent = muzero.make(muzero.Config(**{**vars(TINY), "temperature": 2.0}), SPEC, NETWORK)
    found = [float(agent.exploration((), jnp.arange(2), 2, jnp.float32(x))[1]) for x in (0, 0.49, 0.5, 0.74, 0.75, 1)]
    assert found == [2, 2, 1, 1, 0.5, 0.5]


def test_the_first_end_of_a_window_says_what_is_known_behind_it() -> None:
    first, mid, last = types.FIRST, types.MID, types.LAST
    # A cut and later an end, an end and later a cut, a first row that is an end, a lost life, and none.
    kinds = [[mid, last, first, last], [mid, last, first, last], [last, first, mid, last], [mid] * 4, [mid] * 4]
    discounts = [[1, 1, 1, 0], [1, 0, 1, 1], [0, 1, 1, 0], [1, 0, 1, 1], [1, 1, 1, 1]]
    over, unknown = muzero._ends(jnp.array(kinds).T, jnp.array(discounts, jnp.float32).T)
    no, behind, always = [False] * 4, [False, True, True, True], [True] * 4
    assert np.asarray(over).T.tolist() == [no, behind, no, behind, no]
    assert np.asarray(unknown).T.tolist() == [behind, no, always, no, no]


def test_turns_of_two_players_make_the_discount_negative() -> None:
    config = muzero.Config(**{**vars(TINY), "discount": 0.5, "n_step": 2, "unroll_steps": 1})
    agent = muzero.make(config, SPEC._replace(players=2), NETWORK)
    step_type, reward = np.array([[0], [1], [1], [2]], np.int8), np.array([[0.0], [4.0], [8.0], [0.0]], np.float32)
    value = np.array([[0.0], [0.0], [16.0], [0.0]], np.float32)
    timestep = types.TimeStep(step_type, reward, np.ones_like(reward), np.zeros((4, 1, D), np.float32), ())
    found = search.Found(np.ones((4, 1, A), np.float32) / A, value)
    unroll = types.Unroll(types.Step(timestep, step_type.astype(np.int32) * 0, found, ()), agent.init_carry(1))
    # 4 of the player who moves, then 8 of the other, then the first one's value.
    assert float(calls.prepare(agent, (), unroll).value[0, 0]) == 4 - 0.5 * 8 + 0.25 * 16


def test_what_does_not_fit_is_refused(monkeypatch: Any) -> None:
    with conftest.refused("--network.core=lstm"):
        muzero.make(TINY, SPEC, networks.Config(torso="mlp", core="lstm"))
    with conftest.refused("its actions are real"):
        muzero.make(TINY, SPEC._replace(action=types.BoxSpace((2,), -1.0, 1.0)), NETWORK)
    monkeypatch.setitem(sys.modules, "mctx", None)
    with conftest.refused("--agent.search=muzero", "mctx", "pip install"):
        muzero.make(TINY, SPEC, NETWORK)
