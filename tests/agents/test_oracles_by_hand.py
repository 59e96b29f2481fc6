"""The oracles themselves, at numbers that were worked by hand."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from oracles import (
    a2c,
    dpg,
    dqn,
    exploration,
    impala,
    learner,
    network,
    normalisation,
    policy,
    ppo,
    r2d2,
    replay,
    returns,
)

MID, LAST = 1, 2
# One column: three rewards, the last of which ends the episode; values 1, 2, 3, 9.
COLUMN = np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0, 0.0]), np.array([MID, MID, MID, LAST])
VALUE = np.array([1.0, 2.0, 3.0, 9.0])


def test_returns() -> None:
    # Errors 1 + .5·2 − 1 = 1, 2 + .5·3 − 2 = 1.5, 4 − 3 = 1; the trace halves twice.
    advantage = returns.generalised_advantage(*COLUMN, VALUE, 0.5, 0.5)
    np.testing.assert_allclose(advantage, [1 + 0.25 * (1.5 + 0.25), 1.5 + 0.25, 1])
    # 1 + .5·2 = 2 by one step, 1 + .5·2 + .25·3 = 2.75 by two, 1 + 1 + .25·4 = 3 to the end.
    mixed = returns.lambda_return(*COLUMN, VALUE, 0.5, 0.5, 0)
    assert mixed == pytest.approx(0.5 * 2 + 0.25 * 2.75 + 0.25 * 3)
    assert returns.n_step(*COLUMN, 0.5, 2, 0) == (2.0, 0.25, 2)
    assert returns.n_step(*COLUMN, 0.5, 5, 1) == (4.0, 0.0, 3)
    # Cut short, it bootstraps: 2 + .5·4 and .25 of the value at row 3.
    cut = COLUMN[0], np.ones(4), COLUMN[2]
    assert returns.n_step(*cut, 0.5, 5, 1) == (4.0, 0.25, 3)


def test_v_trace() -> None:
    s: dict[str, Any] = {"discount": 0.5, "trace_decay": 1.0, "clip_rho": 1.0, "clip_c": 1.0, "clip_policy_rho": 1.0}
    s["correction"], ratio = "vtrace", np.array([0.5, 4.0, 1.0])
    # ρδ = .5·1, 1·1.5, 1·1, and c = .5, 1: v = 1 + .5 + .5·.5·1.5 + .25·.5·1·1.
    target = np.array([impala._target(COLUMN, VALUE, ratio, s, t) for t in range(3)])
    np.testing.assert_allclose(target, [1 + 0.5 + 0.375 + 0.125, 2 + 1.5 + 0.5, 4])
    assert impala._advantage(COLUMN, VALUE, ratio, target, s, 0) == pytest.approx(0.5 * (1 + 0.5 * 4 - 1))


def test_policies() -> None:
    log_prob, entropy = policy.categorical(np.log([0.25, 0.75]), 1)
    assert (log_prob, entropy) == pytest.approx((math.log(0.75), 0.25 * math.log(4) + 0.75 * math.log(4 / 3)))
    log_density, entropy = policy.gaussian(np.zeros(1), np.array([2.0]), np.array([2.0]))
    assert (log_density, entropy) == pytest.approx(
        (-0.5 - math.log(2 * math.sqrt(2 * math.pi)), math.log(2) + 1.4189385)
    )
    # At 0 the slope of tanh is 1.
    assert policy.squashed(np.zeros(1), np.ones(1), np.zeros(1)) == pytest.approx(-0.9189385)


def _rows(ratio: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """One row in which both of two actions have probability ½ and the value is 1."""
    params = {"policy": {"kernel": np.zeros((1, 2)), "bias": np.zeros(2)}}
    params["value"] = {"kernel": np.zeros((1, 1)), "bias": np.ones(1)}
    rows: dict[str, Any] = {"observation": np.zeros((2, 1, 1)), "step_type": np.full((2, 1), MID)}
    return params, rows | {"action": np.zeros((2, 1), int), "log_prob": np.full((2, 1), math.log(0.5 / ratio))}


@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate"), [(1.5, 2, 2.4), (1.5, -2, -3.0), (0.5, 2, 1.0), (0.5, -2, -1.6), (1.1, 2, 2.2)]
)
def test_the_clipped_surrogate(ratio: float, advantage: float, surrogate: float) -> None:
    """ε = .2: what is good is rewarded up to 1.2, and what is bad punished down to .8."""
    params, rows = _rows(ratio)
    made = {"value": {(0, 0): 0.5}, "advantage": {(0, 0): advantage}, "target": {(0, 0): 1.0}}
    found = ppo.terms(params, rows, made, {"clip_epsilon": 0.2, "clip_value": 0.2})
    assert found["policy_loss"][0, 0] == pytest.approx(-surrogate)
    # The value went from .5 to its target 1, which is further than .2: the loss is that of .7.
    assert found["value_loss"][0, 0] == pytest.approx(0.5 * 0.3**2)
    assert found["approx_kl"][0, 0] == pytest.approx(ratio - 1 - math.log(ratio))
    assert found["clip_fraction"][0, 0] == (ratio != 1.1)


def test_parts_of_policy_gradients() -> None:
    found = ppo.standardised({(0, 0): 1.0, (1, 0): 3.0})
    assert list(found.values()) == pytest.approx([-1, 1])
    # A mean of .5: 2 · (3 · .5 + 50 · (.5 − .4)²).
    assert ppo.penalty({(0, 0): 0.25, (1, 0): 0.75}, 3.0, 0.2) == pytest.approx(2 * (1.5 + 0.5))
    assert [ppo.adapted(3.0, x, 1.0) for x in (2.1, 1.9, 0.6, 0.4)] == [4.5, 3, 3, 2]
    params, rows = _rows(1.0)
    made = {"advantage": {(0, 0): 2.0}, "target": {(0, 0): 3.0}}
    terms = a2c.terms(params, rows, made, {"correction_epsilon": 0.5})
    assert [x[0, 0] for x in terms.values()] == pytest.approx([0, 2, math.log(2)])


def test_parts_of_value_learning() -> None:
    assert [dqn.huber(x, 1.0) for x in (0.5, -2.0)] == [0.125, 1.5] and dqn.huber(-2.0, 0.0) == 2
    # Atoms 0, 1, 2; .5 + .5z = .5, 1, 1.5.
    projected = dqn.projection(np.arange(3.0), np.array([0.2, 0.2, 0.6]), 0.5, 0.5)
    np.testing.assert_allclose(projected, [0.1, 0.1 + 0.2 + 0.3, 0.3])
    assert dqn.divergence(np.array([1.0, 0.0]), np.log([0.25, 0.75])) == pytest.approx(math.log(4))
    np.testing.assert_allclose(network.dueling(np.array([1.0]), np.array([[2.0], [4.0]])), [[0], [2]])
    assert [r2d2.h(3.0), r2d2.h(-8.0)] == pytest.approx([1.003, -2.008])
    assert r2d2.h_inverse(1.003) == pytest.approx(3)
    assert r2d2.priority({(0, 1): 1.0, (1, 1): 3.0, (0, 0): 9.0}, 1, 0.9) == pytest.approx(0.9 * 3 + 0.1 * 2)
    noisy = {"kernel": np.ones((1, 1)), "bias": np.zeros(1), "kernel_deviation": np.full((1, 1), 0.5)}
    noisy["bias_deviation"] = np.full(1, 0.25)
    np.testing.assert_allclose(network.dense(noisy, np.array([2.0]), np.array([3.0, -1.0])), [2 * (1 - 1.5) - 0.25])
    critics = {"critic": {"value": {"kernel": np.ones((2, 2, 1)), "bias": np.array([[0.0], [-1.0]])}}}
    np.testing.assert_allclose(np.ravel(dpg.critics(critics, np.array([1.0]), np.array([0.5]))), [1.5, 0.5])


def test_replay() -> None:
    # Errors 1 and 4 at α = ½ are drawn 1 : 2; N P = 2/3 and 4/3, of which the smaller one weighs most.
    (probability,) = replay.probabilities([np.array([1.0, -4.0])], 0.5, 0.0)
    np.testing.assert_allclose(probability, [1 / 3, 2 / 3])
    np.testing.assert_allclose(replay.weights([probability], 2, 1.0), [[1, 0.5]])
    assert replay.exponent(0.5, 0.4, 1.0) == pytest.approx(0.7)
    assert replay.windows(clock=10, capacity=8, length=3, stride=1) == [2, 3, 4, 5, 6, 7]
    assert replay.windows(clock=10, capacity=8, length=3, stride=5) == [5]


def test_exploration_and_normalisation() -> None:
    np.testing.assert_allclose(exploration.epsilon_greedy(np.array([0.0, 5.0, 1.0, 1.0]), 0.4), [0.1, 0.7, 0.1, 0.1])
    assert exploration.schedule(0.3, 1.0, 0.2, 0.4, 0.1) == pytest.approx(0.6)
    assert [exploration.ladder(i, 2, 0.5, 2.0) for i in (0, 1)] == [0.5, 0.125]
    # Returns 2 and .5·2 + 3 = 4, of deviation 1; after the reset the next unroll begins at 0.
    reward, step_type = np.array([[0.0], [2.0], [3.0], [0.0], [6.0]]), np.array([[0], [1], [2], [0], [1]])
    found, deviations = normalisation.rewards(reward, step_type, 2, 0.5, 5.0, 0.0)
    np.testing.assert_allclose(np.ravel(found), [2, 3, 0, 5])
    assert deviations == pytest.approx([1, 1, np.std([2, 4, 6])])
    found, _ = normalisation.rewards(reward, step_type, 2, 0.5, 5.0, 2.0)
    np.testing.assert_allclose(np.ravel(found), [1, 1.5, 0, 3])


def test_the_learner() -> None:
    (clipped,) = learner.clipped([np.array([3.0, 4.0])], 1.0)
    np.testing.assert_allclose(clipped, [0.6, 0.8])
    assert learner.rate(0.1, 0.25, True) == pytest.approx(0.075)
    assert learner.target([np.zeros(1)], [np.ones(1)], 2, 2, 0.25)[0] == 0.25
    assert learner.updates(6, 4, 10, Fraction(3, 4)) == [0, 0, 0, 1, 1, 1]
