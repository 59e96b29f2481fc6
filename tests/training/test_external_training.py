"""Training and evaluation with external simulators: whole runs, over a port and in threads, and what ends them."""

import contextlib
import functools
import importlib
import pathlib
import subprocess
import sys
import threading
import time

import conftest
import jax
import pytest
from fakes import peers, simulators

from jaxrl_dist import errors, simulator
from jaxrl_dist.runs import metrics
from jaxrl_dist.training import assemble, policy

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "external_simulator.py"
CARTPOLE = {
    "env.params.observation": "float32[4]",
    "env.params.actions": "2",
    "env.params.reward_range": "0,1",
    "env.params.time_limit": "500",
}


@pytest.fixture
def train(train: conftest.Train) -> conftest.Train:
    small = {"env.num_envs": 2, "evaluation.episodes": 2, "steps": 256}
    return functools.partial(train, "ppo", **small, **CARTPOLE)


def at(port: int) -> dict[str, str]:
    return {"env.params.listen": str(port)}


def start_program(port: int, count: int) -> subprocess.Popen[bytes]:
    """Starts a process of so many simulators."""
    return subprocess.Popen([sys.executable, str(EXAMPLE), f"--port={port}", f"--count={count}"])


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the example be imported, as from its own folder."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    monkeypatch.setattr(simulator, "_AGAIN_S", 0.5)


@pytest.mark.slow
def test_programs_and_functions_train_the_same_policy_which_can_be_evaluated(
    tmp_path: pathlib.Path, example: None, train: conftest.Train
) -> None:
    before, port = simulators.threads(), peers.free_port()
    started = [start_program(port, 2) for _ in range(2)]
    over_port = train("external:cartpole", folder="port", **at(port))
    digests = [over_port.summary["params_sha256"]]
    for program in started:
        assert program.wait(conftest.SOON_S) == 0
    in_threads = train("external:external_simulator:play", folder="threads")
    digests.append(in_threads.summary["params_sha256"])
    assert digests[0] == digests[1]
    assert over_port.summary["eval_return_mean"] == in_threads.summary["eval_return_mean"] > 5
    results = [
        policy.evaluate(tmp_path / "threads", 3, 1, "latest", {}, trust=["external_simulator"]) for _ in range(2)
    ]
    assert results[0] == results[1] and results[0]["eval_episodes"] == 3
    simulators.assert_gone(before)


@pytest.mark.slow
def test_cartpole_is_learned(example: None, train: conftest.Train) -> None:
    settings = {"layout.unroll_length": 64, "learner.epochs": 4, "learner.learning_rate": 3e-3}
    often = {"evaluation.interval_steps": 1_280, "evaluation.episodes": 8}
    run = train("external:external_simulator:play", steps=3_840, **settings, **often)
    # Random play gives 22.
    assert run.summary["best_return"] > 100


@pytest.mark.slow
def test_a_fault_ends_the_run_which_is_saved_and_resumed(tmp_path: pathlib.Path, train: conftest.Train) -> None:
    port, killed_s = peers.free_port(), []
    program = start_program(port, 2)

    def kill_once_it_learns() -> None:
        while not any(record["kind"] == "train" for record in metrics.read(tmp_path)):
            time.sleep(0.05)
        program.kill()
        killed_s.append(time.monotonic())

    threading.Thread(target=kill_once_it_learns, daemon=True).start()
    settings = {"log.interval_steps": 32, "evaluation.interval_steps": 10_000_000}
    with pytest.raises(errors.EnvironmentFault, match=rf"external:cartpole: .*{program.pid}\b"):
        train("external:cartpole", steps=10_000_000, **at(port), **settings)
    assert time.monotonic() - killed_s[0] < conftest.SOON_S
    program.wait()
    with start_program(port, 4) as program:
        run = train("external:cartpole", steps=64, **at(port), **settings)
        assert run.reason == "finished" and run.summary["resumed_from"] > 0
        assert program.wait(conftest.SOON_S) == 0


@pytest.mark.slow
def test_an_actor_is_replaced_with_the_simulators_that_wait(example: None, train: conftest.Train) -> None:
    port, failures = peers.free_port(), []
    external_simulator = importlib.import_module("external_simulator")

    def fail_once(session: simulator.Session) -> None:
        if session.purpose == "training" and not failures:
            failures.append(session.slot)
            session.begin([0] * 4)
            for _ in range(20):
                session.act([0] * 4, 1.0)
            raise ZeroDivisionError("the world fell over")
        external_simulator.play(session)

    def serve() -> None:
        with contextlib.suppress(ZeroDivisionError):
            simulator.serve(fail_once, port)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(5)]
    for thread in threads:
        thread.start()
    settings = {"layout.max_actor_restarts": 1}
    with pytest.warns(RuntimeWarning, match=r"actor 0 .*1 of 1\b.*ZeroDivisionError: the world fell over"):
        run = train("external:cartpole", **at(port), **settings)
    assert run.reason == "finished" and len(failures) == 1
    for thread in threads:
        thread.join(conftest.SOON_S)
        assert not thread.is_alive()


def test_a_stop_ends_an_evaluation_that_waits_for_simulators() -> None:
    flags = {"system": "ppo", "env": "external:cartpole", **conftest.SMALL["ppo"], **CARTPOLE}
    resolved, environment = assemble.resolve({**flags, "env.params.listen": str(peers.free_port())})
    parts = assemble.assemble(resolved, environment, jax.devices()[:1], episodes=2)
    keys = assemble.seed_keys(resolved)
    params = parts.layout.init(keys).learner.params
    start = time.monotonic()
    assert parts.evaluate(params, keys, 0, stopped=lambda: time.monotonic() > start + 0.3) is None
    assert time.monotonic() - start < conftest.SOON_S
