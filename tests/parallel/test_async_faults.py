"""Faults under asynchronous gradients, each made to happen: what ends the run, and in which time."""

import functools
import pathlib
import subprocess
import sys
import threading
import time
from typing import Any

import conftest
import jax
import numpy as np
import pytest
from fakes import host

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import hangs
from jaxrl_dist.parallel.async_gradient import worker

ONCE = {"learner.epochs": 1, "learner.minibatches": 1}


@pytest.fixture
def train(train: conftest.Train) -> conftest.Train:
    layout = {"layout": "async_gradient", "layout.num_workers": 4}
    return functools.partial(train, env="fake:walk", **ONCE, **layout)


def training(walk: host.Walk) -> bool:
    return threading.current_thread().name.startswith("worker")


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["round_robin", "free"])
def test_a_raising_environment_ends_the_run_with_its_own_exception(
    schedule: str, plays: Any, train: conftest.Train
) -> None:
    raised_s = []

    def fail(walk: host.Walk) -> None:
        if training(walk) and walk.total_steps == 50 and not raised_s:
            raised_s.append(time.monotonic())
            raise host.Broken("the simulator fell over")

    made = plays(fail)
    with pytest.raises(host.Broken, match="the simulator fell over"):
        train(steps=64_000, **{"layout.schedule": schedule})
    assert time.monotonic() - raised_s[0] < conftest.SOON_S
    assert all(walk.is_closed for walk in made)
    # What was learned until then is saved, and the same command goes on from there.
    plays(lambda walk: None)
    assert train(steps=3_200, **{"layout.schedule": schedule}).summary["resumed_from"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "schedule"), [(1, "round_robin"), (4, "round_robin"), (4, "free")])
def test_a_hanging_environment_is_named_within_its_timeout(
    workers: int, schedule: str, plays: Any, train: conftest.Train
) -> None:
    hung_s, settings = [], {"layout.timeout_s": 1.0, "layout.num_workers": workers, "layout.schedule": schedule}

    def hang(walk: host.Walk) -> None:
        if training(walk) and walk.total_steps == 50 and not hung_s:
            hung_s.append(time.monotonic())
            host.sleep_forever()

    plays(hang)
    with pytest.raises(errors.EnvironmentFault, match=r"fake:walk .*\b1 s\b"):
        train(steps=64_000, **settings)
    assert time.monotonic() - hung_s[0] < conftest.SOON_S
    plays(lambda walk: None)
    resumed = train(steps=3_200, **settings)
    assert resumed.summary["resumed_from"] > 0 and resumed.summary["gradients"] > 0


def test_an_environment_that_hangs_as_a_worker_makes_it_is_named(
    train: conftest.Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(seeds: np.ndarray, batch_size: int, timeout_s: float) -> Any:
        if threading.current_thread().name == "worker 1":
            host.sleep_forever()
        return host.Walk(seeds, timeout_s, lambda walk: None)

    monkeypatch.setattr(hangs, "MAKE_S", 1.0)
    monkeypatch.setattr(hangs, "CLOSE_WITHIN_S", 0.1)
    monkeypatch.setattr(envs, "make", lambda name, params=None: envs.HostTask(host.spec(), "", make))
    with pytest.raises(errors.EnvironmentFault, match=r"fake:walk: .*\b1 s\b"):
        train(steps=64_000, **{"layout.timeout_s": 0.5, "layout.num_workers": 2})


@pytest.mark.slow
def test_gradients_that_go_on_being_broken_end_the_run_in_one_line(tmp_path: pathlib.Path) -> None:
    script = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "train.py"
    flags = ["--system=a3c", "--env=gymnax:CartPole-v1", "--steps=64_000", f"--out={tmp_path / 'run'}"]
    flags += ["--learner.learning_rate=1e38", "--learner.anneal=false", "--layout.num_workers=2"]
    done = subprocess.run(
        [sys.executable, str(script), *flags], capture_output=True, text=True, timeout=120, check=False
    )
    error = done.stderr.strip().splitlines()
    assert done.returncode == 1 and "gradients in a row were not finite" in error[-1]
    assert "learner.learning_rate" in error[-1] and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_resumed_run_joins_no_lives(plays: Any, monkeypatch: pytest.MonkeyPatch, train: conftest.Train) -> None:
    unrolls: list[types.Unroll] = []
    play = worker.Worker._play_on_host

    def spied(self: Any, *arguments: Any) -> Any:
        actors, unroll, episodes = play(self, *arguments)
        unrolls.append(jax.tree.map(np.asarray, unroll))
        return actors, unroll, episodes

    monkeypatch.setattr(worker.Worker, "_play_on_host", spied)
    plays(lambda walk: None)
    train(steps=640)
    before = len(unrolls)
    train(steps=1_280)
    assert 0 < before < len(unrolls)
    for unroll in unrolls:
        seed, _, step = np.moveaxis(unroll.steps.timestep.observation, -1, 0)
        step_type = unroll.steps.timestep.step_type
        goes_on = step_type[:-1] != types.LAST
        assert (seed[1:] == seed[:-1])[goes_on].all()
        np.testing.assert_array_equal((step[1:] - step[:-1])[goes_on], 1)
        np.testing.assert_array_equal(step_type[1:][~goes_on], types.FIRST)


@pytest.mark.slow
def test_workers_and_actors_are_as_precise_as_asked(tmp_path: pathlib.Path, plays: Any) -> None:
    seen = set()

    def look(walk: host.Walk) -> None:
        name = threading.current_thread().name
        seen.add((name.rstrip("0123456789 "), jax.config.jax_default_matmul_precision))

    plays(look)
    for layout in ("async_gradient", "sebulba"):
        conftest.train_in(tmp_path / layout, env="fake:walk", layout=layout, steps=640, precision="float32", **ONCE)
    assert {precision for name, precision in seen if name in ("worker", "actor")} == {"float32"}
    assert {"worker", "actor"} <= {name for name, _ in seen}


@pytest.mark.slow
@pytest.mark.parametrize(("system", "samples"), [("apex_dqn", 2.0), ("r2d2", 3.0)])
def test_after_a_rollback_a_prioritised_replay_is_learned_from(system: str, samples: float) -> None:
    """Broken gradients come with broken errors, which are the replay's priorities."""
    settings = {"layout": "async_gradient", "layout.worker_devices": "cpu:0", "layout.num_workers": 2}
    settings |= {"layout.kept_versions": 3, "learner.anneal": False, "replay.samples_per_insert": samples}
    run = conftest.Small(system, "toy:walk", 1, settings)
    run.total = 1000
    state = run.run(20).layout.snapshot(run.state)
    run.layout.close()
    params = state.learner.params
    broken = jax.tree.map(lambda x: x * np.float32(np.nan), params.network)
    run.state = state._replace(learner=state.learner._replace(params=params._replace(network=broken)))
    run.run(24)
    assert run.metrics.layout["rollbacks"] == 1 and run.metrics.layout["broken"] > 15
    before = run.params
    run.run(20)
    assert run.metrics.layout["broken"] == 0 and run.metrics.updates > 15
    assert run.metrics.learner["gradient_norm"][0] > 0
    assert max(np.abs(x - y).max() for x, y in zip(before, run.params, strict=True)) > 0
    run.layout.close()
