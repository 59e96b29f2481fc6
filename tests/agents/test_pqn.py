"""PQN: its loss against a slow loop in float64, the same numbers in every layout, and whose rows it takes."""

import itertools
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from fakes import calls
from test_a2c import BOX, FLAT, LSTM, SPEC, STACK, A, B, T, _params, _played
from test_impala import moved

from jaxrl_dist import errors, networks, types
from jaxrl_dist.agents import pqn
from jaxrl_dist.agents.shared import action_values
from jaxrl_dist.systems import catalogue

ONCE = {"learner.epochs": 1, "learner.minibatches": 1}
NORMALISED = networks.Config(torso="mlp", hidden_sizes=(8,), layer_norm=True)


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


def target(settings: pqn.Config, rows: Any, best: np.ndarray, t: int) -> float:
    """Mixes the returns of 1, 2, … steps up to where the episode or the unroll ends, by (1 − λ)λ^(n − 1)."""
    step_type, reward, discount = rows
    total, factor, returns = 0.0, 1.0, []
    for i in range(t + 1, T + 1):
        total += factor * reward[i]
        factor *= settings.discount * discount[i]
        returns.append(total + factor * best[i])
        if step_type[i] == types.LAST:
            break
    weights = [(1 - settings.trace_decay) * settings.trace_decay**n for n in range(len(returns) - 1)]
    # What is left goes to the longest.
    return float(np.dot([*weights, settings.trace_decay ** (len(returns) - 1)], returns))


def oracle(settings: pqn.Config, made: np.ndarray, taught: np.ndarray, sequences: types.Unroll) -> dict[str, Any]:
    """Returns the loss and its terms f64 [T, B], NaN in rows that teach nothing.

    Args:
        settings: of the agent.
        made: values f64 [T + 1, B, A] by the parameters that make the targets.
        taught: values by the parameters that learn.
        sequences: that were played.
    """
    timestep, action = sequences.steps.timestep, np.asarray(sequences.steps.action)
    bound = settings.clip_rewards or np.inf
    reward = settings.reward_scale * np.clip(np.asarray(timestep.reward, np.float64), -bound, bound)
    step_type, discount = np.asarray(timestep.step_type), np.asarray(timestep.discount)
    found = {name: np.full((T, B), np.nan) for name in ("loss", "td_error", "q_value")}
    for b in range(B):
        for t in range(T):
            if step_type[t, b] == types.LAST:
                continue
            rows = (step_type[:, b], reward[:, b], discount[:, b])
            value = taught[t, b, action[t, b]]
            error = target(settings, rows, made[:, b].max(-1), t) - value
            for name, term in zip(found, (0.5 * error**2, abs(error), value), strict=True):
                found[name][t, b] = term
    return found


NETWORKS = {"flat": FLAT, "normalised": NORMALISED, "stack": STACK, "lstm": LSTM}
CHANGES: dict[str, dict[str, float]] = {
    "own": {},
    "all": {"trace_decay": 1.0},
    "none": {"trace_decay": 0.0},
    "rewards": {"clip_rewards": 0.5, "reward_scale": 0.3},
}


@pytest.mark.parametrize(
    ("network", "changes"),
    marks.some(
        itertools.product(NETWORKS, CHANGES),
        fast={*(f"flat-{name}" for name in CHANGES), *(f"{name}-own" for name in NETWORKS)},
    ),
)
def test_the_loss_is_that_of_a_slow_loop(network: str, changes: str) -> None:
    settings = pqn.Config(**{"discount": 0.9, **CHANGES[changes]})
    agent = pqn.make(settings, SPEC, NETWORKS[network])
    params = _params(agent)
    sequences = played(agent, params)
    batch = calls.prepare(agent, params, sequences)
    # After the first minibatch the targets are still those of the parameters that acted.
    later = moved(params)
    output = calls.loss(agent, later, (), batch, jax.random.key(0))
    expected = oracle(settings, *(stepped(NETWORKS[network], p, sequences) for p in (params, later)), sequences)
    got = {"loss": output.loss, **output.metrics}
    assert got.keys() == expected.keys() and output.maxima == {}
    for name, rows in expected.items():
        # Items are rows in the order of time, or the columns of a recurrent network.
        items = np.nansum(rows, 0) if agent.keeps_sequences else np.nan_to_num(rows).reshape(-1)
        np.testing.assert_allclose(got[name], items, rtol=2e-4, atol=2e-5, err_msg=name)
    taught = ~np.isnan(expected["loss"])
    np.testing.assert_array_equal(output.valid, taught.sum(0) if agent.keeps_sequences else taught.reshape(-1))
    assert not taught[4, :2].any() and taught[3, :2].all() and np.nanmin(expected["td_error"]) > 0


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
