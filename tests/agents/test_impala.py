"""IMPALA: its loss under a lag against a slow loop in float64, A2C's gradient without one, and SEED RL's layout."""

from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from fakes import calls
from test_a2c import BOX, FLAT, LSTM, SPEC, STACK, _log_prob_and_entropy, _params, _played, _stepped

from jaxrl_dist import networks, types
from jaxrl_dist.agents import a2c, impala
from jaxrl_dist.learning import learner

COSTS = {"discount": 0.9, "value_cost": 0.7, "entropy_cost": 0.2}


def moved(params: types.Params) -> types.Params:
    """Returns the parameters some updates later."""
    noise = np.random.default_rng(9)
    network = jax.tree.map(lambda x: x + jnp.asarray(noise.normal(size=x.shape, scale=0.2), x.dtype), params.network)
    return params._replace(network=network)


def gradients(agent: Any, params: types.Params, sequences: types.Unroll) -> learner.Gradient:
    batch = calls.prepare(agent, params, sequences)
    rules = learner.make(learner.Config(), agent, types.LOCAL)
    weights = jnp.ones(jax.tree.leaves(batch)[0].shape[0])
    inputs = types.LossInputs(batch, (), jax.random.key(0), jnp.float32(0), types.LOCAL)
    return rules.gradients(params, inputs, weights)


def slow(config: impala.Config, rows: Any, value: np.ndarray, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns targets and advantages [T] of a column: equation 1, summed over every later step of the episode."""
    step_type, reward, discount = rows
    length, weight = len(reward) - 1, ratio if config.correction == "vtrace" else np.ones_like(ratio)
    target, advantage = value[:-1].copy(), np.zeros(length)
    delta = [
        min(config.clip_rho, weight[t]) * (reward[t + 1] + config.discount * discount[t + 1] * value[t + 1] - value[t])
        for t in range(length)
    ]
    for s in range(length):
        factor = 1.0
        for t in range(s, length):
            if step_type[t] == types.LAST:
                break
            target[s] += factor * delta[t]
            factor *= config.discount * discount[t + 1] * config.trace_decay * min(config.clip_c, weight[t])
    for s in range(length):
        if step_type[s] == types.LAST:
            continue
        goes_on = s + 1 < length and step_type[s + 1] != types.LAST
        later = target[s + 1] - value[s + 1] if goes_on else 0.0
        bootstrap = value[s + 1] + config.trace_decay * later
        estimate = reward[s + 1] + config.discount * discount[s + 1] * bootstrap
        limit = min(config.clip_policy_rho, ratio[s]) if config.correction in ("vtrace", "one_step") else 1.0
        advantage[s] = limit * (estimate - value[s])
    return target, advantage


CHANGES: list[dict[str, Any]] = [
    {},
    {"trace_decay": 0.8, "clip_rho": 1.4, "clip_c": 0.7, "clip_policy_rho": 2.0},
    {"correction": "one_step"},
    {"correction": "epsilon", "correction_epsilon": 0.2},
    {"correction": "none"},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: changes.get("correction", f"vtrace {len(changes)}"))
@pytest.mark.parametrize(
    ("network", "spec"), [(FLAT, SPEC), (LSTM, SPEC), (STACK, BOX)], ids=["flat", "lstm", "stack of a box"]
)
def test_the_loss_under_a_lag_is_that_of_a_slow_loop(network: networks.Config, spec: Any, changes: Any) -> None:
    config = impala.Config(**{**COSTS, **changes})
    agent = impala.make(config, spec, network)
    acted = _params(agent)
    sequences, params = _played(agent, acted), moved(acted)
    before, now = (_stepped(network, spec, one, sequences) for one in (acted, params))
    timestep, action = sequences.steps.timestep, np.asarray(sequences.steps.action)
    step_type = np.asarray(timestep.step_type)
    reward, discount = (np.asarray(x, np.float64) for x in (timestep.reward, timestep.discount))
    batch = calls.prepare(agent, params, sequences)
    output = calls.loss(agent, params, (), batch, jax.random.key(0))
    for b in range(action.shape[1]):
        length = action.shape[0] - 1
        terms = np.array(
            [
                [_log_prob_and_entropy({k: v[t, b] for k, v in one.items()}, action[t, b])[i] for t in range(length)]
                for one, i in ((now, 0), (before, 0), (now, 1))
            ]
        )
        log_prob, log_mu, entropy = terms
        value = now["value"][:, b, 0]
        target, advantage = slow(
            config, (step_type[:, b], reward[:, b], discount[:, b]), value, np.exp(log_prob - log_mu)
        )
        taught = step_type[:-1, b] != types.LAST
        if config.correction == "epsilon":
            log_prob = np.log(np.exp(log_prob) + config.correction_epsilon)
        parts = {
            "policy_loss": -log_prob * advantage,
            "value_loss": 0.5 * (value[:-1] - target) ** 2,
            "entropy": entropy,
        }
        for name, part in parts.items():
            np.testing.assert_allclose(output.metrics[name][b], part[taught].sum(), rtol=2e-3, atol=2e-3, err_msg=name)
        loss = parts["policy_loss"] + config.value_cost * parts["value_loss"] - config.entropy_cost * entropy
        np.testing.assert_allclose(output.loss[b], loss[taught].sum(), rtol=2e-3, atol=2e-3)
        assert output.valid[b] == taught.sum()


@pytest.mark.parametrize("correction", ["vtrace", "one_step", "none"])
@pytest.mark.parametrize(
    ("network", "spec"),
    marks.some({"flat": (FLAT, SPEC), "lstm": (LSTM, SPEC), "flat-box": (FLAT, BOX)}, fast={"flat-box"}),
)
def test_without_a_lag_the_gradient_is_that_of_a2c(network: networks.Config, spec: Any, correction: str) -> None:
    """Ratios are 1, V-trace with λ = 1 is the sum of all rewards, and no gradient flows through the weights."""
    agents = [
        impala.make(impala.Config(**COSTS, correction=correction), spec, network),
        a2c.make(a2c.Config(**COSTS, gae_lambda=1.0), spec, network),
    ]
    params = _params(agents[0])
    found = [gradients(agent, params, _played(agent, params)) for agent in agents]
    np.testing.assert_array_equal(found[0].valid, found[1].valid)
    for a, b in zip(*(jax.tree.leaves(gradient.sums) for gradient in found), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-4, atol=3e-5)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(found[0].sums)) > 0.1


def test_rows_of_four_versions_before_are_weighed(train: conftest.Train) -> None:
    run = train("impala", layout="sebulba", **{"layout.policy_lag": "4"})
    assert run.summary["policy_lag_p99"] == 4 and run.summary["learner_steps"] == 10


@pytest.mark.slow
@pytest.mark.parametrize("core", ["identity", "lstm"])
def test_seed_acts_on_what_is_ready_also_with_a_memory(core: str, train: conftest.Train) -> None:
    run = train("seed_impala", **{"layout.ready_envs": 2, "network.core": core, "network.core_size": 8})
    assert run.summary["inference_batch_mean"] == 2 and run.summary["learner_steps"] == 10


@pytest.mark.slow
def test_seed_r2d2_trains(train: conftest.Train) -> None:
    run = train("seed_r2d2", **{"layout.ready_envs": 2})
    assert run.summary["inference_batch_mean"] == 2 and run.summary["learner_steps"] > 0
