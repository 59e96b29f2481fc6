"""Rows of the tasks that nobody tuned for: defaults without a flag, flags that are settings, and what was measured."""

import pathlib
from typing import Any

import pytest

from jaxrl_dist import systems
from jaxrl_dist.systems import catalogue

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import unseen

    return unseen


def family_of(unseen: Any, task: Any) -> str:
    named = [family for part, family in {"MinAtar": "minatar", "navix": "grid"}.items() if part in task.env]
    return (named or ["classic" if task in unseen.DISCRETE.values() else "continuous"])[0]


def test_own_arms_have_no_flags_and_others_have_settings(unseen: Any) -> None:
    assert {arm.partition("/")[0] for arm in unseen.rows()} == set(unseen.ARMS)
    for name, (task, flags) in unseen.rows().items():
        arm, system = name.partition("/")[0], flags[0].removeprefix("--system=")
        assert system in systems.SYSTEMS and (len(flags) == 4) == (arm == system)
        found = catalogue.resolved(
            dict(flag.removeprefix("--").split("=", 1) for flag in flags), family_of(unseen, task)
        )
        assert found.row.layout(task.layout).seeds_together == (task.layout == "anakin")
        assert found["steps"] == task.steps and found["layout"] == task.layout


OFF_POLICY = {"replay.batch_size": 256, "replay.min_size": 100}
# Defaults of Stable-Baselines3 2 and of PureJaxRL, on every task: no family's value may take their place.
THEIRS: dict[str, dict[str, Any]] = {
    "ppo_sb3": {
        **{"env.num_envs": 1, "layout.unroll_length": 2048, "learner.minibatches": 32, "learner.epochs": 10},
        **{"agent.clip_epsilon": 0.2, "agent.clip_value": 0.0, "learner.epsilon": 1e-5, "agent.gae_lambda": 0.95},
    },
    "a2c_sb3": {"env.num_envs": 1, "layout.unroll_length": 5, "agent.gae_lambda": 1.0, "learner.minibatches": 1},
    "dqn_sb3": {"network.activation": "relu", "learner.epsilon": 1e-8, "agent.error_clip": 1.0, "replay.min_size": 100},
    "dqn_purejaxrl": {"network.activation": "relu", "learner.epsilon": 1e-8, "agent.error_clip": 0.0},
    "ppo_purejaxrl": {
        **{"agent.normalise_observations": False, "agent.clip_observations": 0.0, "agent.scale_rewards": False},
        **{"agent.clip_value": 0.2, "agent.value_cost": 0.5, "agent.entropy_cost": 0.01, "network.activation": "tanh"},
        **{"network.hidden_sizes": (64, 64), "network.torso": "mlp", "learner.minibatches": 4, "learner.epochs": 4},
    },
    "sac_sb3": {**OFF_POLICY, "learner.epsilon": 1e-8, "network.activation": "relu"},
    "td3_sb3": {**OFF_POLICY, "learner.epsilon": 1e-8, "network.activation": "relu", "agent.exploration_noise": 0.0},
}
# The weight of the whole squared error is .5 there, of half of it here.
ON_POLICY = {
    **{"agent.value_cost": 1.0, "agent.entropy_cost": 0.0, "learner.max_grad_norm": 0.5, "learner.anneal": False},
    **{"agent.normalise_observations": False, "agent.clip_observations": 0.0, "agent.clip_rewards": 0.0},
    **{"agent.scale_rewards": False, "network.layer_norm": False, "network.hidden_sizes": (64, 64)},
    **{"network.torso": "mlp", "network.activation": "tanh", "network.shared": False},
}


@pytest.mark.parametrize("arm", THEIRS)
def test_an_arm_of_another_library_has_its_defaults_on_every_task(unseen: Any, arm: str) -> None:
    for name, (task, flags) in unseen.rows().items():
        if not name.startswith(f"{arm}/"):
            continue
        given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        found = catalogue.resolved(given, family_of(unseen, task))
        wanted = THEIRS[arm] | (ON_POLICY if arm in ("ppo_sb3", "a2c_sb3") else {})
        assert {flag: found[flag] for flag in wanted} == wanted, name
        if "replay.min_size" in wanted and "agent.random_share" in found.settings:
            assert found["agent.random_share"] * task.steps == pytest.approx(wanted["replay.min_size"], abs=1), name


def test_a_table_has_an_arm_in_each_line_and_a_task_in_each_column(unseen: Any) -> None:
    # Without the lowest and the highest of five: (2 + 3 + 4) / 3.
    measured = {"ppo/acrobot": {"returns": [-1.0, -2.0, -3.0, -4.0, -50.0]}, "dqn/reacher": {"returns": [1.0] * 5}}
    lines = unseen.table(measured, unseen.DISCRETE).splitlines()
    assert lines[:3] == ["| | `Acrobot-v1`, 200k |", "|---|---|", "| random play | −498.8 |"]
    assert len(lines) == 4 and lines[3].startswith("| ppo | −3<br>[−")
    measured["ppo/mountain_car"] = measured["dqn/acrobot"] = {"returns": [1.0] * 5}
    lines = unseen.table(measured, unseen.DISCRETE).splitlines()
    assert lines[0] == "| | `Acrobot-v1`, 200k | `MountainCar-v0`, 200k |" and "| ppo |" in lines[3]
    assert lines[4] == "| dqn | 1<br>[1, 1] | – |" and len(lines) == 5


def test_what_was_measured_stands_in_the_document(unseen: Any) -> None:
    measured, text = unseen.jsonl.read(unseen.TABLE), unseen.RESULTS.read_text(encoding="utf-8")
    assert set(measured) <= set(unseen.rows())
    for tasks in unseen.TABLES:
        assert unseen.table(measured, tasks) in text
    assert unseen.jsonl.missing(unseen.rows(), measured) in text
