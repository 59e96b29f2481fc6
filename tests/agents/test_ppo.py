"""PPO and DPPO: loss, gradient and adaptation against loops in float64 that are written from the papers."""

from typing import Any

import numpy as np
import pytest
from oracles import actor_critic, call, differences, ppo

# γ, λ, ε and costs that are no other number's.
SETTINGS = {"discount": 0.9, "gae_lambda": 0.8, "value_cost": 0.7, "entropy_cost": 0.2}
SETTINGS |= {"clip_epsilon": 0.2, "clip_value": 0.3, "normalise_advantage": "none"}
PENALTY = {"kl_penalty": 2.0, "clip_epsilon": 0.0}
CASES: dict[str, dict[str, Any]] = {
    "clipped": {},
    "unclipped": {"clip_epsilon": 0.0, "clip_value": 0.0},
    "value not clipped": {"clip_value": 0.0, "clip_rewards": 0.5, "reward_scale": 0.3},
    "minibatch": {"normalise_advantage": "minibatch"},
    "batch on two devices": {"normalise_advantage": "batch", "devices": 2},
    "minibatch on two devices": {"normalise_advantage": "minibatch", "devices": 2, "core": "lstm"},
    "gaussian": {"real": True},
    "squashed": {"real": True, "distribution": "tanh_gaussian"},
    "stack": {"core": "frame_stack"},
    "normalised": {"normalise_observations": True, "clip_observations": 1.0},
    "penalty": {**PENALTY, "kl_target": 1e3},
    "hinge on two devices": {**PENALTY, "kl_target": 1e-3, "devices": 2},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_paper(name: str) -> None:
    """A few updates after the policy that acted, whose values, advantages and probabilities stay as they were."""
    changes = dict(CASES[name])
    devices = changes.pop("devices", 1)
    made = call.make("ppo", **{**SETTINGS, **changes})
    s, acted = made.settings, call.params(made, 1)
    now = differences.between(acted, call.params(made, 2), 0.1 if call.squashes(made) else 0.3)
    rows = call.rows(made, seed=7, length=7, columns=4)
    inputs = call.normalised(made, rows)
    rows["log_prob"] = inputs["log_prob"] = actor_critic.log_probs(acted, inputs)
    found = call.learn(made, rows, now, acted=acted, penalty=s["kl_penalty"], devices=devices)
    if inputs["squashed"]:
        inputs["draw"] = found.draws[0].reshape(6, 4, -1)
    estimates = ppo.estimate(acted, inputs, s)
    if s["normalise_advantage"] != "none":
        estimates["advantage"] = ppo.standardised(estimates["advantage"])

    def objective(params: dict[str, Any]) -> float:
        terms = ppo.terms(params, inputs, estimates, s)
        loss = ppo.total(terms, s)
        return loss + (ppo.penalty(terms["approx_kl"], s["kl_penalty"], s["kl_target"]) if s["kl_penalty"] else 0.0)

    # Observations that are normalised are f32; differences of a steep loss are good to about 1e-7.
    rtol = 1e-5 if s["normalise_observations"] else 1e-6
    terms = ppo.terms(now, inputs, estimates, s)
    ratio = terms.pop("ratio")
    assert found.valid == len(ratio) < 6 * 4
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in terms.items()}, rel=rtol, abs=rtol)
    assert found.maxima == pytest.approx({"largest_ratio": max(ratio.values())}, rel=rtol)
    if not s["kl_penalty"]:
        assert found.loss == pytest.approx(ppo.total(terms, s), rel=rtol)
    wanted = differences.gradient(objective, now)
    differences.assert_same(found.gradient, wanted, rtol=rtol, atol=rtol)
    assert min(np.abs(part).max() for part in differences.leaves(wanted)) > 1e-3
    # Every side of both clips is met: too likely and too unlikely, good and bad, a value near and far.
    sides = {(r > 1.2, r < 0.8, estimates["advantage"][row] > 0) for row, r in ratio.items()}
    assert len(sides) == 6 or name != "clipped"


def test_the_penalty_s_weight_follows_the_divergence_of_all_devices() -> None:
    """It falls below half of the target, grows above twice as much, and stays between."""
    made = call.make("ppo", **SETTINGS, kl_penalty=3.0, kl_target=0.04)
    acted, other = call.params(made, 1), call.params(made, 2)
    rows = call.rows(made, seed=7, length=7, columns=4)
    rows["log_prob"] = actor_critic.log_probs(acted, rows)
    estimates = ppo.estimate(acted, rows, made.settings)
    ended = [differences.between(acted, other, share) for share in (0.1, 0.2, 0.3, 0.5)]
    terms = [ppo.terms(params, rows, estimates, made.settings)["approx_kl"].values() for params in ended]
    wanted = [ppo.adapted(3.0, sum(each) / len(each), 0.04) for each in terms]
    assert set(wanted) == {2.0, 3.0, 4.5}
    assert call.adapt(made, rows, ended, 3.0, devices=2) == pytest.approx(wanted, rel=1e-6)
