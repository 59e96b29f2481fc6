"""IMPALA: loss and gradient under a lag against loops in float64, and SEED RL's layout."""

from typing import Any

import conftest
import numpy as np
import pytest
from oracles import actor_critic, call, differences
from oracles import impala as oracle

COSTS = {"discount": 0.9, "value_cost": 0.7, "entropy_cost": 0.2}
# Of these bounds `one_step` has the last alone, and `none` has no one.
TIGHT = {"clip_rho": 0.8, "clip_c": 0.7, "clip_policy_rho": 0.5}

CASES: dict[str, dict[str, Any]] = {
    "clipped": {},
    "wide": {"trace_decay": 0.8, "clip_rho": 1.4, "clip_c": 0.7, "clip_policy_rho": 1.2, "real": True},
    "one_step": {"correction": "one_step", "clip_rewards": 0.5, "reward_scale": 0.3, **TIGHT},
    "epsilon": {"correction": "epsilon", "correction_epsilon": 0.2, "core": "lstm"},
    "none": {"correction": "none", "core": "frame_stack", **TIGHT},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_under_a_lag_are_those_of_the_paper(name: str) -> None:
    made = call.make("impala", **{**COSTS, **CASES[name]})
    s, acted = made.settings, call.params(made, 1)
    now = differences.between(acted, call.params(made, 2), 0.3)
    rows = call.rows(made, seed=7, length=7, columns=4)
    rows["log_prob"] = actor_critic.log_probs(acted, rows)
    found = call.learn(made, rows, now, acted=acted)
    estimates = oracle.estimate(now, rows, s)
    costs = {"policy_loss": 1.0, "value_loss": s["value_cost"], "entropy": -s["entropy_cost"]}

    def objective(params: dict[str, Any]) -> float:
        terms = oracle.terms(params, rows, estimates, s)
        return sum(cost * x for key, cost in costs.items() for x in terms[key].values())

    terms = oracle.terms(now, rows, estimates, s)
    assert found.valid == len(estimates["target"]) < 6 * 4
    assert found.loss == pytest.approx(objective(now), rel=1e-6)
    weight = found.metrics.pop("importance_weight")
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in terms.items()}, rel=1e-6)
    ratio = np.exp(actor_critic.log_probs(now, rows) - rows["log_prob"])
    assert weight == pytest.approx(sum(min(1, ratio[row]) for row in estimates["target"]), rel=1e-6)
    assert max(ratio[row] for row in estimates["target"]) > 1.4 > 0.7 > min(ratio[row] for row in estimates["target"])
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=1e-6, atol=1e-6)
    assert min(np.abs(part).max() for part in differences.leaves(gradient)) > 1e-3


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


def test_minibatches_are_cut_of_whole_columns(small: type[conftest.Small]) -> None:
    """24 rows divide by 4; the 6 columns, which V-trace needs whole, do not."""
    with conftest.refused("--learner.minibatches=4", ": 2, 3, 6"):
        small(
            "impala",
            "gymnax:CartPole-v1",
            1,
            {
                "layout": "anakin",
                "env.num_envs": 6,
                "layout.unroll_length": 4,
                "learner.minibatches": 4,
            },
        )
