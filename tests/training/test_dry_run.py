"""`--dry_run` tells bytes, placement, schedules, compilation and speed of a run, and writes nothing."""

import json
import pathlib
import re
import types as modules
from typing import Any

import conftest
import jax
import numpy as np
import pytest

from jaxrl_dist.parallel import memory_use
from jaxrl_dist.systems import catalogue, training_flags
from jaxrl_dist.training import assemble, dry_run, exchanges

CARTPOLE = "gymnax:CartPole-v1"


def command_of(system: str, folder: pathlib.Path, **settings: Any) -> training_flags.Command:
    given = {"system": system, "env": CARTPOLE, "out": str(folder), **conftest.SMALL[system], **settings}
    return training_flags.Command("", given, catalogue.resolved(given), dry_run=True)


def told(command: training_flags.Command) -> str:
    assert command.settings is not None
    lines = dry_run.describe(command.flags, command.settings, jax.devices()[:1], probe_s=0.01)
    return "\n".join(lines)


def test_everything_is_told_and_nothing_is_written(tmp_path: pathlib.Path) -> None:
    settings = {"evaluation.episodes": 2, "evaluation.interval_steps": 100}
    text = told(command_of("dqn", tmp_path / "run", **settings))
    assert not list(tmp_path.iterdir())
    for pattern in (
        r"^dry run of dqn on gymnax:CartPole-v1; nothing is written",
        r"\nplacement: anakin, 1 × cpu",
        r"cpu:0: .*parameters .*target network .*optimiser .*replay .*environments .*program's own",
        r"\n  training: \d+\.\d s\n.*\n  evaluation: \d+\.\d s",
        r"of 10 iterations of 32 steps\n  step size: 0\.0001, 0\.0001",
        r"\n  ε: 1, 0\.55, 0\.1, 0\.1, 0\.1",
        r"\n  learning begins after 64 steps",
        r"\n  a log line every 32 steps, an evaluation every 96\n",
        r"[\d,]+ steps/s: 320 steps take \d+ s, without evaluations; 20 updates per seed",
        r"bottleneck: (learning|environments and acting) \(environments and acting \d+%",
    ):
        assert re.search(pattern, text), pattern


def test_the_time_of_a_sweep_is_that_of_all_its_members(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "bottleneck", lambda probed: "")
    for flags, members in (({}, 1), ({"num_seeds": 2, "sweep": "learner.learning_rate=1e-3,1e-4,1e-5"}, 6)):
        command = command_of("ppo", tmp_path, **flags)
        settings, environment = assemble.resolve({**command.flags, "steps": 64_000})
        parts = assemble.assemble(settings, environment, jax.devices()[:1])
        facts = {"parts": parts, "steps_per_second": 100.0, "updates_per_iteration": 1.0, "learns": True}
        said = dry_run._speed(settings, modules.SimpleNamespace(iterations=3, seconds=1.0, **facts))
        assert f"64,000 steps take {dry_run._duration(64_000 * members / 100 / 60)}" in said[1]


def test_a_wrong_folder_is_refused_before_anything_is_compiled(tmp_path: pathlib.Path) -> None:
    command = command_of("ppo", tmp_path)
    flags = {name: value for name, value in command.flags.items() if name != "out"}
    contents = catalogue.resolved({**flags, "seed": 3}, "classic").as_json()
    (tmp_path / "config.json").write_text(json.dumps(contents))
    (tmp_path / "checkpoints" / "step_000000000128").mkdir(parents=True)
    with conftest.refused(f"--out={tmp_path}", "seed 3 -> 0"):
        told(command)


def test_parts_add_up_to_the_state(tmp_path: pathlib.Path) -> None:
    command = command_of("dqn", tmp_path)
    settings, environment = assemble.resolve(command.flags)
    layout = assemble.assemble(settings, environment, jax.devices()[:2]).layout
    template = layout.template(assemble.seed_keys(settings))
    sizes = dry_run.parts(template)
    assert set(sizes["replay"]) == {"cpu:0", "cpu:1"}
    assert sizes["replay"]["cpu:0"] == sum(memory_use.replay_parts(template.replay).values())
    state = layout.init(assemble.seed_keys(settings))
    params = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state.learner.params))
    # Parameters are whole on both devices, the target network is as large, and Adam keeps two numbers of each.
    assert sizes["parameters"] == sizes["target network"] == {"cpu:0": params, "cpu:1": params}
    assert 2 * params <= sizes["optimiser"]["cpu:0"] <= 2 * params + 8


@pytest.mark.parametrize(
    ("system", "settings", "rows"),
    [
        ("ppo", {}, {"step size": ["0.00025", "0.000188", "0.000125", "6.25e-05", "0"]}),
        ("apex_dqn", {"replay.importance_exponent_end": 0.8}, {"β of the importance weights": "0.4 0.5 0.6 0.7 0.8"}),
        ("apex_dqn", {}, {"ε": " ".join(["0.4to0.000655"] * 5)}),
        (
            "dqn",
            {
                "sweep": "learner.learning_rate=1e-3,1e-4;agent.epsilon_start=1,.5",
                **{"agent.epsilon_end": 0.1, "agent.epsilon_fraction": 1},
            },
            {"step size": ["0.001to0.0001"] * 5, "ε": "1to0.5 0.775to0.4 0.55to0.3 0.325to0.2 0.1to0.1"},
        ),
    ],
    ids=["ppo", "apex β", "apex ε", "sweep"],
)
def test_schedules(system: str, settings: dict[str, Any], rows: dict[str, Any], tmp_path: pathlib.Path) -> None:
    resolved, environment = assemble.resolve(command_of(system, tmp_path, **settings).flags)
    parts = assemble.assemble(resolved, environment, jax.devices()[:1])
    state = parts.init(assemble.seed_keys(resolved))
    found = dry_run.schedules(resolved, parts, state.learner.params)
    for name, values in rows.items():
        expected = values.split() if isinstance(values, str) else values
        assert [value.replace(" ", "") for value in found[name]] == expected


def test_learning_begins_by_the_rows_of_all_agents() -> None:
    settings, environment = assemble.resolve({"system": "dqn", "env": "toy:team", "replay.min_size": 1000})
    assert environment.spec.num_agents == 3
    parts = assemble.assemble(settings, environment, jax.devices()[:1])
    state = parts.layout.init(assemble.seed_keys(settings))
    assert "  learning begins after 334 steps" in dry_run._schedules(settings, parts, state.learner.params)


def test_the_switch_is_no_setting() -> None:
    command = training_flags.parse(["--dry_run", f"--env={CARTPOLE}"])
    assert command.dry_run and "dry_run" not in command.flags
    assert not training_flags.parse([f"--env={CARTPOLE}"]).dry_run
    assert training_flags.parse(["--dry_run=1", f"--env={CARTPOLE}"]).dry_run
    assert not training_flags.parse(["--nodry_run", f"--env={CARTPOLE}"]).dry_run


def test_a_run_of_threads_says_what_they_wait_for() -> None:
    shares = {"share_environment": 0.5, "share_inference": 0.25, "share_transfer": 0.25, "share_learning": 0.1}
    text = dry_run._of_threads({"bottleneck": "environment", **shares})
    assert text == (
        "environment (actors: environment 50%, inference 25%, transfer 25%; the learner learns 10% of its time)"
    )


def test_a_member_of_a_population_exchanges_what_one_seed_does() -> None:
    flags = {"system": "ppo", "env": "toy:walk", **conftest.SMALL["ppo"]}
    swept = {"sweep": "learner.learning_rate=1e-3,1e-4", "population": True}
    assert exchanges.of_iteration({**flags, **swept}, 1.0) == exchanges.of_iteration(flags, 1.0)


def test_what_processes_would_exchange_is_counted_without_starting_any() -> None:
    flags = {"system": "ppo", "env": "toy:walk", **conftest.SMALL["ppo"]}
    exchanged = exchanges.of_iteration(flags, 1.0)
    settings, _ = assemble.resolve(flags)
    gradient_steps = settings["learner.epochs"] * settings["learner.minibatches"]
    # Of every gradient step its gradient, and of every epoch the moments of the advantages.
    assert gradient_steps <= exchanged.reductions <= 3 * gradient_steps
    parts = assemble.assemble(*assemble.resolve(flags), jax.devices()[:1])
    params = jax.eval_shape(parts.layout.init, assemble.seed_keys(settings)).learner.params
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params.network))
    assert gradient_steps * size <= exchanged.size <= 1.5 * gradient_steps * size
    # By hand: 2 × 3 / 4 of 12.5 MB at 12.5 GB/s, and 2 × 2 steps of 20 µs.
    assert exchanges.seconds(exchanges.Exchanged(1.0, 12.5e6), 4) == pytest.approx(1.5e-3 + 80e-6)


def test_a_dry_run_of_many_processes_says_their_share(tmp_path: pathlib.Path) -> None:
    flags = {"system": "ppo", "env": "toy:walk", **conftest.SMALL["ppo"], "out": str(tmp_path / "run")}
    settings, _ = assemble.resolve(flags)
    *_, started, reduced, took = dry_run.describe(flags, settings, jax.devices()[:1], 0.1, num_processes=4)
    assert started.startswith("4 processes") and "all-reduces" in reduced and "% of the time" in took
    with conftest.refused("--env.num_envs=8", "64 "):
        list(dry_run.describe(flags, settings, jax.devices()[:1], 0.1, num_processes=64))
