"""Records in a notebook: each is shown in one line of names and numbers, without functions."""

import pathlib
from typing import Any

import pytest

import jaxrl_dist
from jaxrl_dist import networks, systems, types
from jaxrl_dist.training import predicting, runner


def check(record: Any, *words: str) -> None:
    text = repr(record)
    assert text.startswith(f"{type(record).__name__}(") and text.endswith(")")
    assert all(word in text for word in words), text
    assert "\n" not in text and "<" not in text and len(text) < 270


@pytest.mark.parametrize(
    ("system", "env", "words"),
    [
        ("ppo", "toy:walk", {"agent": "staleness='corrected'", "replay": "keeps_rows=False"}),
        (
            "sac",
            "gymnax:Pendulum-v1",
            {"agent": "parts=['policy', 'critic', 'temperature']", "environment": "float32[3]"},
        ),
        ("r2d2", "toy:walk", {"agent": "context=10, taught=20, lookahead=5", "replay": "updates=(4, 1)"}),
    ],
)
def test_parts_are_a_line_each(system: str, env: str, words: dict[str, str]) -> None:
    parts = jaxrl_dist.make(system, env, settings={"agent.discount": 0.9})
    check(parts, f"{system} {env}", "learner")
    check(parts.settings, f"{system} {env} anakin", f"{len(parts.settings.settings)} settings, 3 of them given")
    for name in ("environment", "agent", "replay", "learner"):
        check(getattr(parts, name), "functions ", words.get(name, ""))
    check(parts.environment.spec, env, "float32[")
    predictor = predicting.make(parts.settings, parts.environment.spec)
    check(predictor, "functions init_carry, greedy, act")
    params = types.Params((), ())
    check(jaxrl_dist.Policy(parts.agent, params, parts.environment, parts.settings, 12_345, predictor), "12,345 steps")


def test_a_network_names_its_functions() -> None:
    spec = types.EnvironmentSpec(
        "toy:walk", {"a": types.BoxSpace((2, 3), 0, 1).struct}, types.DiscreteSpace(4), "classic"
    )
    assert repr(spec) == "EnvironmentSpec(toy:walk: observation {a: float32[2,3]}, actions 4, family classic)"
    made = networks.make(
        networks.Config(torso="mlp"), spec._replace(observation=spec.observation["a"]), [networks.Head("value", 1, 1.0)]
    )
    check(made, "recurrent=False, context=0; functions draw_noise, init, ")


def test_every_system_is_a_line() -> None:
    for row in systems.SYSTEMS.values():
        check(row, f"System({row.name}: ", *row.layout_names, *row.actions)


def test_a_run_says_how_it_ended(tmp_path: pathlib.Path) -> None:
    summary = {"env_steps": 100_352, "eval_return_mean": 475.0, "more": list(range(1000))}
    check(runner.Run(tmp_path, summary, "finished"), str(tmp_path), "finished at 100,352 steps, evaluated 475")
    check(runner.Run(tmp_path, {**summary, "eval_return_mean": None}, "stopped"), "stopped at 100,352 steps)")
