"""Asynchronous gradients: in the synchronous limits Anakin's numbers; drops, waits, orders and faults forced to act."""

import pathlib
import threading
import time
from typing import Any

import conftest
import jax
import marks
import numpy as np
import pytest

from jaxrl_dist import parallel, types
from jaxrl_dist.parallel import unroll
from jaxrl_dist.parallel.async_gradient import dispatcher, metrics, server, worker
from jaxrl_dist.training import records

# Workers keep no running statistics.
ONCE = {"learner.epochs": 1, "learner.minibatches": 1, "agent.scale_rewards": False}
LSTM = {**ONCE, "network.core": "lstm", "network.core_size": 8}
# 32 windows per unroll of 8 × 4 rows.
DQN = {"replay.samples_per_insert": 1.0}
RANGE = {"agent.value_low": -5.0, "agent.value_high": 5.0}
SYSTEMS = {"ppo": ("ppo", ONCE), "lstm": ("ppo", LSTM), "dqn": ("dqn", DQN), "rainbow": ("rainbow", {**DQN, **RANGE})}


def make(
    system: str, settings: dict[str, Any], workers: int, env: str = "toy:walk", devices: int = 1
) -> conftest.Small:
    settings = {"layout": "async_gradient", "layout.num_workers": workers, "layout.worker_devices": "cpu:0", **settings}
    if system != "ppo":
        settings = {"replay.batch_size": 32 // workers, **settings}
    return conftest.Small(system, env, devices, settings)


def equal(one: conftest.Small, other: conftest.Small, atol: float = 0.0) -> None:
    for x, y in zip(one.params, other.params, strict=True):
        np.testing.assert_allclose(x, y, atol=atol, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("system", "settings"), marks.some(SYSTEMS, fast={"dqn"}))
def test_one_worker_learns_what_anakin_learns(system: str, settings: dict[str, Any]) -> None:
    one = conftest.Small(system, "toy:walk", 1, {"layout": "anakin", **settings}).run(6)
    other = make(system, settings, 1).run(6)
    equal(one, other, 1e-6)
    np.testing.assert_array_equal(one.metrics.updates, other.metrics.updates)
    for name in ("episodes", "episode_length", "valid_steps"):
        np.testing.assert_array_equal(getattr(one.metrics.episodes, name), getattr(other.metrics.episodes, name))
    for name, value in other.metrics.learner.items():
        np.testing.assert_allclose(value, one.metrics.learner[name], rtol=1e-4, atol=1e-5)
    other.layout.close()


LADDER = {**DQN, "agent.exploration": "ladder", "agent.ladder_base": 0.9, "agent.ladder_exponent": 40.0}


@pytest.mark.parametrize(
    ("system", "settings"),
    marks.some({"ppo": ("ppo", ONCE), "dqn": ("dqn", DQN), "ladder": ("dqn", LADDER)}, fast={"ladder"}),
)
def test_as_many_gradients_as_workers_are_synchronous_learning(system: str, settings: dict[str, Any]) -> None:
    settings = {**settings, "learner.anneal": False}
    # Advantages that a worker normalises by its own rows, and a share of training counted in gradients, are others.
    settings |= {"agent.normalise_advantage": "none"} if system == "ppo" else {"agent.epsilon_end": 1.0}
    together = conftest.Small(system, "toy:walk", 2, {"layout": "anakin", **settings}).run(5)
    apart = make(system, {**settings, "layout.gradients_per_apply": 2}, 2)
    apart.total *= 2
    apart.run(10)
    equal(together, apart, 1e-6)
    np.testing.assert_array_equal(together.metrics.updates, apart.metrics.updates)
    # None is old; of a replay that was not full enough there were two more, which are of no rows.
    ages = apart.metrics.layout["lag_counts"][0]
    assert ages[0] == ages.sum() == (10 if system == "ppo" else 8)
    apart.layout.close()


@pytest.mark.parametrize(
    ("name", "schedule", "exchange"),
    marks.some(
        [
            (name, *when)
            for name in ("lstm", "dqn")
            for when in (("round_robin", "unroll"), ("virtual", "unroll"), ("virtual", "episode"))
        ],
        fast={"dqn-virtual-unroll"},
    ),
)
def test_a_resumed_run_is_the_same_bit_by_bit(name: str, schedule: str, exchange: str, tmp_path: pathlib.Path) -> None:
    system, settings = SYSTEMS[name]
    settings = {**settings, "layout.schedule": schedule, "layout.gradients_per_apply": 2, "layout.max_gradient_age": 0}
    settings |= {"layout.durations": "1,2.5,1.3", "layout.jitter": 0.1} if schedule == "virtual" else {}
    settings |= {"layout.exchange": exchange}
    whole = make(system, settings, 4).run(9).run(8)
    second = make(system, settings, 4).run(9).handed_to(make(system, settings, 4), tmp_path).run(8)
    equal(whole, second)
    for x, y in zip(jax.tree.leaves(whole.metrics), jax.tree.leaves(second.metrics), strict=True):
        np.testing.assert_array_equal(x, y)
    assert whole.metrics.updates > 0
    for run in (whole, second):
        run.layout.close()


@pytest.mark.slow
def test_a_snapshot_changes_nothing() -> None:
    one, other = make("dqn", DQN, 4).run(6), make("dqn", DQN, 4).run(6)
    one.layout.snapshot(one.state)
    equal(one.run(6), other.run(6))
    for run in (one, other):
        run.layout.close()


@pytest.mark.slow
def test_gradients_in_turn_are_as_old_as_there_are_others() -> None:
    run = make("ppo", ONCE, 4).run(12)
    counts = run.metrics.layout["lag_counts"][0]
    # The first of each worker are of the parameters that all began with.
    np.testing.assert_array_equal(counts[:4], [1, 1, 1, 9])
    assert run.metrics.updates == 12 and run.metrics.layout["stale"] == 0
    run.layout.close()


@pytest.mark.slow
def test_old_gradients_are_dropped() -> None:
    run = make("ppo", {**ONCE, "layout.max_gradient_age": 0}, 4).run(16)
    dropped, updates = run.metrics.layout["stale"][0], run.metrics.updates[0]
    # An update makes those of the three others too old; what they send next is fresh, but for the one that comes first.
    assert dropped == 12 and updates == 4
    unchanged = make("ppo", {**ONCE, "layout.max_gradient_age": 3}, 4).run(16)
    assert unchanged.metrics.layout["stale"] == 0
    for each in (run, unchanged):
        each.layout.close()


@pytest.mark.slow
def test_the_server_may_be_spread_over_devices() -> None:
    one, four = (make("ppo", {**ONCE, "network.hidden_sizes": (16,)}, 2, devices=n).run(6) for n in (1, 4))
    equal(one, four, 1e-6)
    kernels = [x for x in jax.tree.leaves(four.layout._server.learner.params) if x.ndim == 2]
    assert any(not x.sharding.is_fully_replicated for x in kernels)
    for run in (one, four):
        run.layout.close()


@pytest.mark.slow
def test_a_stop_while_a_worker_is_waited_for_leaves_it_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    work, is_slow, asked = worker.Worker.work, threading.Event(), threading.Event()

    def slow(self: Any, *arguments: Any) -> Any:
        if is_slow.is_set() and self.number == 3 and np.asarray(self.env_ids)[0] == 6:
            asked.set()
            time.sleep(1.0)
        return work(self, *arguments)

    monkeypatch.setattr(worker.Worker, "work", slow)
    whole, broken = make("ppo", ONCE, 4).run(20), make("ppo", ONCE, 4).run(9)
    is_slow.set()
    with pytest.raises(parallel.Interrupted) as stop:
        broken.layout.run(broken.state, 9, 11, broken.total, asked.is_set)
    is_slow.clear()
    done = 9 + stop.value.iterations
    assert 9 < done < 20
    broken.state, broken.iteration = broken.layout.snapshot(stop.value.state), done
    broken.layout.close()
    broken.run(20 - done)
    equal(whole, broken)
    for run in (whole, broken):
        run.layout.close()


@pytest.mark.slow
def test_samples_count_whatever_became_of_their_gradients() -> None:
    """Sixteen unrolls of two gradients an update, and as many whose gradients are all too old."""
    for settings in ({"layout.gradients_per_apply": 2}, {"layout.max_gradient_age": 0}):
        run = make("dqn", {**DQN, **settings}, 4).run(40)
        layout = run.metrics.layout
        assert layout["gradients"][0] == layout["taken"][0] + layout["stale"][0] > run.metrics.updates[0] > 0
        run.layout.close()


def test_ages_are_counted_up_to_thousands_and_only_of_gradients() -> None:
    def event(age: int, **fate: bool) -> dispatcher.Event:
        verdict = server.Verdict(age, *[False] * 6)._replace(**fate)
        return dispatcher.Event(0, verdict, np.zeros(len(unroll.no_episodes())))

    events = [event(600, taken=True, applied=True), event(2, stale=True), *[event(0)] * 7]
    sums = records.by_path(metrics.gradients(events, 0, ()))
    report = metrics.report(sums)
    assert (report["policy_lag_p50"], report["policy_lag_p99"]) == (2, 600)
    assert (report["gradients"], report["gradients_dropped_stale"], report["param_versions_published"]) == (2, 1, 1)
    assert metrics.summary(sums, 3) == report | {"param_versions_published": 2, "workers": 3}


def test_parameters_may_be_held_for_an_episode() -> None:
    """One environment per worker: what it plays until an episode ends is of one version, and gives one gradient."""
    settings = {**DQN, "layout.exchange": "episode", "env.num_envs": 2, "replay.min_size": 4, "replay.batch_size": 4}
    settings |= {"replay.samples_per_insert": 1.0}
    run = make("dqn", settings, 2).run(40)
    state = run.layout.snapshot(run.state)
    run.layout.close()
    pushes = 0
    for ring in state.replay:
        count = int(ring.filled[0])
        stored = ring.rows.timestep.step_type, ring.rows.version
        step_type, version = (np.asarray(x)[0, :count].reshape(-1, 4) for x in stored)
        assert (version == version[:, :1]).all()
        # Row 0 of an unroll closed the one before it, whose end it may be.
        ended = (step_type[:-1, 1:] == types.LAST).any(1) | (step_type[1:, 0] == types.LAST)
        np.testing.assert_array_equal(version[1:, 0] == version[:-1, 0], ~ended)
        pushes += int(ended.sum())
        assert 0 < ended.sum() < len(ended)
    # What the workers hold has not arrived: of each the last unroll.
    assert abs(int(run.metrics.layout["taken"][0]) - pushes) <= 2
    assert run.metrics.updates == run.metrics.layout["taken"][0] > 3


@pytest.mark.slow
def test_a_rollback_ends_what_is_held_for_an_episode() -> None:
    settings = {**DQN, "layout.exchange": "episode", "env.num_envs": 2, "replay.min_size": 4, "replay.batch_size": 4}
    settings |= {"replay.samples_per_insert": 1.0, "layout.kept_versions": 3}
    run = make("dqn", settings, 2).run(40)
    state = run.layout.snapshot(run.state)
    run.layout.close()
    assert any(np.asarray(x).any() for one in state.kept for x in jax.tree.leaves(one.gradient.sums))
    assert not all(one.pushed for one in state.kept)
    back = run.layout.events.roll_back(state, int(state.versions[0].updates[0]))
    assert all(one.pushed for one in back.kept)
    assert not any(np.asarray(x).any() for one in back.kept for x in jax.tree.leaves(one.gradient))


@pytest.mark.slow
def test_an_episode_s_gradient_is_the_sum_of_its_unrolls() -> None:
    """With plain steps, and few enough of them, a sum is what several would have been."""
    plain = {**ONCE, "learner.optimizer": "sgd", "learner.reduction": "sum", "learner.max_grad_norm": 0.0}
    plain |= {"learner.learning_rate": 1e-5, "learner.anneal": False, "agent.normalise_advantage": "none"}
    plain |= {"env.num_envs": 1, "layout.unroll_length": 2}
    start, *runs = (make("ppo", plain | {"layout.exchange": kind}, 1) for kind in ("unroll", "unroll", "episode"))
    moved = []
    for run in runs:
        run.run(60)
        moved.append([y.astype(np.float64) - x for x, y in zip(start.params, run.params, strict=True)])
    assert runs[1].metrics.updates < runs[0].metrics.updates == 60
    for x, y in zip(*moved, strict=True):
        # The last unrolls ended no episode.
        assert np.abs(x - y).max() < 0.3 * np.abs(x).max()
    for run in (start, *runs):
        run.layout.close()


REFUSED = [
    ("ppo", {**ONCE, "layout.num_workers": 3}, ["--layout.num_workers=3", "--env.num_envs=8", "nearest valid: 2"]),
    ("ppo", {**ONCE, "layout.gradients_per_apply": 3}, ["--layout.gradients_per_apply=3"]),
    ("ppo", {"learner.epochs": 2}, ["--learner.epochs=2"]),
    ("ppo", {**ONCE, "agent.normalise_observations": True}, ["--agent.normalise_observations=false"]),
    ("dqn", {"replay.samples_per_insert": 2.0}, ["--replay.samples_per_insert", "0.5"]),
    ("dqn", {**DQN, "replay.storage": "host"}, ["--replay.storage=host"]),
    ("ppo", {**ONCE, "layout.schedule": "virtual", "layout.durations": "1,-1"}, ["--layout.durations=1,-1"]),
    ("ppo", {**ONCE, "layout.schedule": "virtual", "layout.durations": "1,2,3"}, ["--layout.durations=1,2,3"]),
    ("ppo", {**ONCE, "layout.durations": "1,10"}, ["--layout.durations=1,10", "--layout.schedule=virtual"]),
    ("ppo", {**ONCE, "layout.schedule": "free", "layout.jitter": 0.1}, ["--layout.jitter=0.1", "=virtual"]),
    ("ppo", {**ONCE, "layout.kept_every": 3}, ["--layout.kept_every=3", "--layout.kept_versions=2"]),
]


@pytest.mark.parametrize(("system", "settings", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_one_line(system: str, settings: dict[str, Any], words: list[str]) -> None:
    with conftest.refused(*words):
        make(system, settings, settings.pop("layout.num_workers", 2))
