"""Programs for GPUs and TPUs that are not there: they compile, fit, and start no more kernels than the table says.

What needs the compilers runs in the environment of `make compiled`.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import conftest
import jax
import pytest

from jaxrl_dist.parallel import anakin, mesh
from jaxrl_dist.systems import training_flags
from jaxrl_dist.training import compiled, hlo, targets

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
GIB = 2**30
# Of one device, less what the runtime keeps.
MEMORY = {"h200": 130 * GIB, "v5e": 15 * GIB, "v6e": 30 * GIB}


def _load() -> Any:
    """Imports benchmarks/compiled.py, whose name is also that of a module here."""
    spec = importlib.util.spec_from_file_location("compiled_table", BENCHMARKS / "compiled.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = _load()


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("h20", ["h100", "v6e", " h200?"]),
        ("cpu:2", ["cpu"]),
        ("h200:0", ["h200:8"]),
        ("h200:2x2", ["h200:8"]),
        ("v5e:4", ["v5e:2x2"]),
        ("v5e:2x0", ["v5e:2x2"]),
        ("", ["h100"]),
    ],
)
def test_what_is_no_target_is_refused(target: str, named: list[str]) -> None:
    with conftest.refused(f"--target={target}: ", *named):
        targets.make(target)


@pytest.mark.parametrize(("target", "package"), [("h200", "jax-cuda12-plugin"), ("v5e", "libtpu")])
def test_a_missing_compiler_is_named(target: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with conftest.refused(f"--target={target} ", package, "pip install "):
        targets.make(target)


def test_a_target_is_for_a_dry_run() -> None:
    command = training_flags.parse(["--env=toy:walk", "--dry_run", "--target=v5e:2x2"])
    assert command.dry_run and command.target == "v5e:2x2" and "target" not in command.flags
    with conftest.refused("--target=h200 ", "--dry_run"):
        training_flags.parse(["--env=toy:walk", "--target=h200"])


def _report(passes: int | None, launches: hlo.Launches | None) -> compiled.Report:
    speeds = hlo.Speeds(kernel_s=1e-6, bytes_per_second=1e9, flops_per_second=1e12)
    inner = hlo.Loop("gradient_step", passes, kernels=10, bytes=2_000, seconds=1e-5, collectives=[("all-reduce", 48)])
    outer = hlo.Loop("", None, kernels=5, seconds=5e-6, loops=[inner])
    target = targets.Target("h200:2", (), speeds)
    return compiled.Report(target, (1.0, 2.0), hlo.Loop("", 1, loops=[outer]), launches, 2**20, 2**21, 64, 2.5, 2)


def test_a_report_sums_passes_and_waits() -> None:
    report = _report(4, hlo.Launches(1, 2, 3))
    # The host is asked after each iteration.
    assert compiled.seconds_per_iteration(report) == pytest.approx(5e-6 + 4e-5 + 10e-6)
    text = "\n".join(compiled.describe(report))
    assert "gradient step × 4: 10 (all-reduce of 48 bytes)" in text and "in all 45 an iteration, 0.703 per" in text
    assert "1 graphs and 2 kernels" in text and "3 loops" in text
    assert compiled.bottleneck(report) == f"starting kernels takes {45e-6 / 55e-6:.0%}"
    on_tpu = _report(None, None)
    assert compiled.seconds_per_iteration(on_tpu) == pytest.approx(5e-6 + 2.5e-5) and on_tpu.total("kernels") == 30
    assert "gradient step × 2.5 due: 10" in "\n".join(compiled.describe(on_tpu))
    assert report.loop("gradient_step") is report.iteration.loops[0] and report.loop("epoch") is None


def test_a_program_of_this_machine_has_the_loops_of_its_settings() -> None:
    sizes = {"env.num_envs": 8, "layout.unroll_length": 12, "learner.epochs": 3, "learner.minibatches": 6}
    flags = {"system": "ppo", "env": "gymnax:CartPole-v1", "layout": "anakin", **sizes}
    report = compiled.compile_run(flags, targets.make("cpu"))
    passes = {scope: loop.passes for scope in compiled.SCOPES if (loop := report.loop(scope))}
    assert passes == {"rollout_step": 12, "epoch": 3, "gradient_step": 6}
    assert report.rows == 96 and report.devices == 1 and report.launches is None and report.arguments > 0
    step: Any = report.loop("gradient_step")
    # Policy and value have two layers of 64 units each, on 16 rows: forward, to the weights, and to the first layer.
    torsos = 2 * (2 * (2 * 16 * 64 * (4 + 64)) + 2 * 16 * 64 * 64)
    # Their heads have three outputs, whose products may be sums.
    assert torsos <= step.flops <= torsos + 3 * (2 * 16 * 64 * 3) and step.kernels > 5


def test_a_target_s_program_is_as_precise_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    iterate, seen = anakin.Anakin._iterate, set()

    def spied(self: Any, *arguments: Any) -> Any:
        seen.add(jax.config.jax_default_matmul_precision)
        return iterate(self, *arguments)

    monkeypatch.setattr(anakin.Anakin, "_iterate", spied)
    sizes = {"env.num_envs": 8, "layout.unroll_length": 2, "precision": "float32"}
    compiled.compile_run({"system": "a2c", "env": "toy:walk", **sizes}, targets.make("cpu"))
    assert seen == {"float32"}


def test_updates_of_a_replay_are_counted_as_they_fall_due() -> None:
    sizes = {"env.num_envs": 8, "layout.unroll_length": 2, "replay.batch_size": 32, "replay.samples_per_insert": 5}
    sizes |= {"replay.capacity": 640, "replay.min_size": 64}
    report = compiled.compile_run({"system": "dqn", "env": "toy:walk", **sizes}, targets.make("cpu"))
    assert report.updates == 16 * 5 / 32
    step: Any = report.loop("gradient_step")
    without = report.total("kernels") - 2.5 * step.total("kernels")
    assert step.passes is None and step.kernels > 5 and 0 < without < report.iteration.total("kernels")


def test_seeds_of_a_cpu_take_their_turns() -> None:
    sizes = {"env.num_envs": 4, "layout.unroll_length": 4, "learner.minibatches": 1, "learner.epochs": 1}
    flags = {"system": "ppo", "env": "toy:walk", "layout": "anakin", **sizes}
    one = compiled.compile_run(flags, targets.make("cpu"))
    three = compiled.compile_run({**flags, "num_seeds": 3, "layout.num_devices": 1}, targets.make("cpu"))
    assert (one.in_turn, three.in_turn) == (1, 3) and three.iteration.passes is None
    assert three.total("kernels") == pytest.approx(one.total("kernels"), rel=0.2)
    assert compiled.seconds_per_iteration(three) == pytest.approx(3 * compiled.seconds_per_iteration(one), rel=0.2)


def test_seeds_of_an_accelerator_learn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "vectorises_seeds", lambda mesh: True)
    sizes = {"env.num_envs": 4, "layout.unroll_length": 4, "learner.minibatches": 1, "learner.epochs": 1}
    flags = {"system": "ppo", "env": "toy:walk", "layout": "anakin", **sizes, "layout.num_devices": 1}
    report = compiled.compile_run({**flags, "num_seeds": 4}, targets.make("cpu"))
    assert (report.members, report.groups, report.in_turn, report.at_once) == (4, 1, 1, 4)


def test_speed_is_of_all_members_and_kernels_are_shared_by_those_at_once() -> None:
    report = _report(4, None)._replace(members=12, groups=2)
    seconds = compiled.seconds_per_iteration(report)
    assert seconds == pytest.approx(5e-6 + 4e-5) and report.at_once == 6
    text = "\n".join(compiled.describe(report))
    assert f"{64 * 12 / seconds:,.0f} steps/s" in text and f"{45 / 64 / 6:.3g} per environment step" in text


def test_other_layouts_are_refused() -> None:
    target = targets.Target("h200", (), hlo.Speeds(1.0, 1.0, 1.0))
    with conftest.refused("--target=h200: ", "sebulba", "--layout=anakin"):
        compiled.compile_run({"system": "ppo", "env": "toy:walk", "layout": "sebulba"}, target)


def test_the_table_has_a_row_for_every_program() -> None:
    assert list(TABLE.read()) == list(TABLE.rows())


@pytest.mark.parametrize("name", ["dqn_large", "rainbow_minatar", "r2d2", "sac"])
def test_a_program_with_a_replay_is_one_graph_of_a_gpu_in_the_table(name: str) -> None:
    assert TABLE.read()[f"{name}@h200"]["host"] == {"graphs": 1, "kernels": 0, "loops": 0}


@pytest.mark.parametrize("name", ["ppo_large", "ppo_lstm", "impala", "vmpo"])
def test_a_program_without_a_replay_has_its_loops_on_the_host_in_the_table(name: str) -> None:
    host = TABLE.read()[f"{name}@h200"]["host"]
    assert host["loops"] >= 2 and host["graphs"] > host["loops"]


def _is_installed(target: str) -> bool:
    return importlib.util.find_spec("jax_cuda12_plugin" if target.startswith("h") else "libtpu") is not None


def _measured(name: str) -> Any:
    """Measures a row in a process of its own: libtpu ends one whose XLA_FLAGS it does not know, as the tests' are."""
    environ = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    code = "import compiled, json, sys; print(json.dumps(compiled.measure(*compiled.rows()[sys.argv[1]])))"
    command = [sys.executable, "-c", code, name]
    done = subprocess.run(command, cwd=BENCHMARKS, env=environ, stdout=subprocess.PIPE, timeout=900, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE.rows())
def test_a_program_compiles_fits_and_starts_no_more_than_it_did(name: str) -> None:
    target, _ = TABLE.rows()[name]
    if not _is_installed(target):
        pytest.skip(f"no compiler for {target} here; `make compiled` installs it")
    found, before = _measured(name), TABLE.read()[name]
    assert found["arguments"] + found["temporaries"] < MEMORY[target.partition(":")[0]]
    assert found["kernels"] <= before["kernels"]
    for loop, own in zip(found["loops"], before["loops"], strict=True):
        assert loop["kernels"] <= own["kernels"], loop
    exchanged = [tuple(one) for loop in found["loops"] for one in loop.get("collectives", ())]
    # Rows stay on their device: nothing is gathered or passed on, and what is summed is gradients and numbers. V-MPO
    # gathers one number of each row.
    others = {kind: size for kind, size in exchanged if kind != "all-reduce"}
    assert others.keys() == ({"all-gather"} if name.startswith("vmpo@v") else set()), others
    assert all(size <= 16_384 for size in others.values())
    if exchanged:
        steps = [loop for loop in found["loops"] if loop["scope"] == "gradient_step"] or found["loops"][:1]
        sizes = sorted(size for loop in steps for _, size in loop.get("collectives", ()))
        # The gradient's, and at most one of a few numbers. Evolution strategies exchange members and returns alone.
        gradients, most = (0, 3) if name.startswith("es@") else (1, 2)
        assert sum(size > 4_096 for size in sizes) == gradients and len(sizes) <= most, sizes
    if found["host"]:
        assert all(found["host"][kind] <= before["host"][kind] for kind in ("graphs", "kernels", "loops"))
    made = [loop["operation"] for loop in found["loops"] if "operation" in loop]
    assert not set(made) & {"scatter", "gather"}, f"the compiler made a loop of each {made}"
