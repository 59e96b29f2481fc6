"""Sebulba: the same numbers as Anakin, an exact lag, bit for bit after a resume, and no hop that is not counted."""

import pathlib
import re
import time
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from fakes import host

from jaxrl_dist import envs, errors, parallel, processes, types
from jaxrl_dist.envs.host import as_host
from jaxrl_dist.parallel import unroll
from jaxrl_dist.parallel.sebulba import metrics, tiers
from jaxrl_dist.runs import checkpoint
from jaxrl_dist.training import assemble, guard, policy

LSTM = {"network.core": "lstm", "network.core_size": 8, "learner.minibatches": 2}
SYSTEMS: dict[str, Any] = {"ppo": ("ppo", {}), "lstm": ("ppo", LSTM), "a2c": ("a2c", {}), "dqn": ("dqn", {})}
RANGE = {"agent.value_low": -5.0, "agent.value_high": 5.0}
PRIORITISED = {"rainbow": ("rainbow", RANGE), "r2d2": ("r2d2", {})}


def sebulba(system: str, settings: dict[str, Any], env: str = "toy:walk", num_devices: int = 1) -> conftest.Small:
    return conftest.Small(system, env, num_devices, {"layout": "sebulba", **settings})


@pytest.mark.parametrize(("system", "settings"), marks.some(SYSTEMS | PRIORITISED, fast={"ppo"}))
def test_without_lag_it_learns_what_anakin_learns(small: Any, system: str, settings: dict[str, Any]) -> None:
    one = small(system, "toy:walk", 1, settings).run(4)
    other = sebulba(system, {**settings, "layout.policy_lag": "0", "layout.num_actors": 1}).run(4)
    for x, y in zip(one.params, other.params, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
    for name in ("episodes", "episode_length", "valid_steps"):
        np.testing.assert_array_equal(getattr(one.metrics.episodes, name), getattr(other.metrics.episodes, name))
    np.testing.assert_array_equal(one.metrics.updates, other.metrics.updates)
    other.layout.close()


@pytest.mark.parametrize(("system", "settings"), marks.some(SYSTEMS, slow={"ppo", "lstm"}))
def test_an_unroll_on_the_host_is_that_on_the_device(system: str, settings: dict[str, Any]) -> None:
    flags = {"system": system, "env": "toy:walk", **conftest.SMALL[system], **settings}
    resolved, environment = assemble.resolve(flags)
    agent, length, columns = assemble.make_agent(resolved, environment.spec), 9, 4
    params, key, number = agent.init(jax.random.key(1)), jax.random.key(2), 3
    ids, env_key = jnp.arange(columns, dtype=jnp.int32), jax.random.key(5)
    exploration = agent.exploration((), ids, columns, jnp.float32(0.3))
    state, timestep = jax.vmap(environment.reset)(jax.vmap(jax.random.fold_in, (None, 0))(env_key, ids))
    actors = unroll.ActorState(state, timestep, agent.init_carry(columns))
    act_key = jax.random.split(jax.random.fold_in(key, number))[0]
    play = jax.jit(unroll.device_unroll(agent, environment, length))
    _, expected, sums = play(params, actors, act_key, exploration, jnp.int32(7))

    published = unroll.Published(params, jnp.int32(7), jnp.float32(0.3))
    on_host = as_host.AsHost(environment, columns, env_key)
    opening = on_host.reset()._replace(info=())
    programs = unroll.HostUnroll(agent, environment.spec, columns, length, 2)
    parts, rows = programs.run(published, key, number, ids, on_host, opening, agent.init_carry(columns))
    got = jax.tree.map(lambda x, y: np.concatenate([x, y], 1), parts[0].steps, parts[1].steps)
    for x, y in zip(jax.tree.leaves(expected.steps), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    for x, y in zip(sums, rows.episodes, strict=True):
        np.testing.assert_allclose(x, y[0], rtol=1e-5)
    assert sums.episodes > 0


@pytest.mark.parametrize("lag", marks.some([0, 1, 3], fast={"3"}))
def test_rows_carry_the_version_of_an_exact_lag(lag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    versions: dict[int, set[int]] = {}
    run = sebulba("ppo", {"layout.policy_lag": str(lag), "layout.num_actors": 2})
    tier = run.layout._tier
    learn = tier.learn

    def spied(state: Any, iteration: int, total: int, unrolled: Any) -> Any:
        versions[iteration] = {int(v) for one in unrolled for v in np.unique(one.unroll.steps.version)}
        return learn(state, iteration, total, unrolled)

    monkeypatch.setattr(tier, "learn", spied)
    run.run(6)
    assert versions == {i: {max(0, i - lag)} for i in range(6)}
    counts = run.metrics.layout["lag_counts"][0]
    assert counts.sum() == 12 and counts[lag] == 2 * (6 - lag)
    run.layout.close()


@pytest.mark.slow
@pytest.mark.parametrize(("system", "settings"), marks.some(SYSTEMS, fast={"dqn"}))
def test_two_devices_update_as_one(system: str, settings: dict[str, Any]) -> None:
    plain = {"learner.shuffle": False, "learner.optimizer": "sgd", "learner.minibatches": 1, "learner.epochs": 1}
    settings = {**settings, **plain, "layout.num_actors": 2}
    if system == "ppo":
        settings["agent.normalise_advantage"] = "batch"
    if system == "dqn":
        # Devices draw their own windows: all of them, many times over, have the same mean.
        settings = {**plain, "layout.num_actors": 2, "replay.batch_size": 8192, "replay.samples_per_insert": 512.0}
    one, two = (sebulba(system, settings, "toy:episode", n).run(3) for n in (1, 2))
    tolerance = 2e-2 if system == "dqn" else 1e-5
    leaves = (jax.tree.leaves(conftest.without_rounding(run.state.learner.params)) for run in (one, two))
    for x, y in zip(*leaves, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=tolerance)
    for leaf in jax.tree.leaves(two.state.learner.params):
        first, second = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        np.testing.assert_array_equal(first, second)
    for run in (one, two):
        run.layout.close()


@pytest.mark.parametrize(
    ("system", "lag"), marks.some([("ppo", 1), ("dqn", 2), ("ppo", 0), ("a2c", 0), ("r2d2", 1)], fast={"ppo-1"})
)
def test_a_resumed_run_is_the_same_bit_by_bit(system: str, lag: int, tmp_path: pathlib.Path) -> None:
    settings = {"layout.policy_lag": str(lag), "layout.num_actors": 2}
    if system == "ppo":
        settings |= LSTM
    whole = sebulba(system, settings).run(3)
    halfway = whole.metrics
    whole.run(4)
    first = sebulba(system, settings).run(3)
    saved = first.layout.snapshot(first.state)
    assert len(saved.pending) == 2 and all(len(pending) == lag + 1 for pending in saved.pending)
    checkpoint.save(tmp_path, "state", saved, {})
    first.layout.close()
    second = sebulba(system, settings)
    second.state = checkpoint.restore(tmp_path / "state", second.layout.template(second.keys))[0]
    second.iteration = 3
    second.run(4)
    for x, y in zip(whole.params, second.params, strict=True):
        np.testing.assert_array_equal(x, y)
    for x, y in zip(whole.metrics.episodes, second.metrics.episodes, strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(whole.metrics.layout["lag_counts"], second.metrics.layout["lag_counts"])
    assert halfway.episodes.valid_steps > 0
    for run in (whole, second):
        run.layout.close()


def test_all_but_the_iterations_is_summed_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "count", lambda: 2)
    # The other process says one more of everything.
    other = lambda said: [(np.asarray(x) + 1).tolist() for x in said]  # noqa: E731
    monkeypatch.setattr(processes, "exchange", lambda said, decide: decide([said, other(said)]))
    own = {"iterations": np.full(1, 3.0), "queue_depth": np.full(1, 5.0), "lag_counts": np.arange(4.0)[None]}
    learned = {"loss": np.ones(1, np.float32)}
    sums = parallel.Metrics(unroll.host_sums(2, 7.0, 9, 8), np.full(1, 6, np.int32), learned, own)
    found = metrics.over_processes(sums)
    assert found.layout["iterations"] == 3 and found.updates == 6 and found.learner == learned
    assert found.layout["queue_depth"] == 11
    np.testing.assert_array_equal(found.layout["lag_counts"], [[1, 3, 5, 7]])
    assert [float(x[0]) for x in found.episodes] == [5, 15, 19, 17, 1]


@pytest.mark.slow
def test_a_snapshot_changes_nothing() -> None:
    settings = {"layout.num_actors": 2}
    one, other = sebulba("ppo", settings).run(2), sebulba("ppo", settings).run(2)
    one.layout.snapshot(one.state)
    for x, y in zip(one.run(2).params, other.run(2).params, strict=True):
        np.testing.assert_array_equal(x, y)
    for run in (one, other):
        run.layout.close()


@pytest.mark.slow
def test_each_version_and_each_unroll_crosses_once() -> None:
    actor_devices = "cpu:1,cpu:2"
    run = sebulba("ppo", {"layout.num_actors": 4, "layout.actor_devices": actor_devices, "layout.policy_lag": "0"})
    layout: Any = run.layout
    run.run(3)
    threads = layout._threads
    params = sum(leaf.nbytes for leaf in jax.tree.leaves(run.state.learner.params))
    # Versions 0 to 3, to two devices for four actors, each with its number of updates and progress.
    assert threads.store.count == 4 * 2
    assert threads.store.num_bytes == 4 * 2 * (params + 8)
    # Without lag no actor is ahead of the learner by more than the unroll that it sends next.
    rows = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tiers.unroll_struct(layout._actors.parts)))
    assert 12 <= threads.send.count <= 16
    assert threads.send.num_bytes == threads.send.count * rows
    layout.close()


@pytest.mark.slow
def test_published_parameters_outlive_the_updates_after_them() -> None:
    run = sebulba("ppo", {"layout.policy_lag": "3", "layout.num_actors": 1})
    layout: Any = run.layout
    before = layout._published(run.state.learner, 0.0)
    expected = jax.tree.map(np.array, before.params)
    run.run(3)
    for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(before.params), strict=True):
        np.testing.assert_array_equal(x, y)
    assert not np.array_equal(jax.tree.leaves(expected)[0], run.params[0][0])
    layout.close()


def test_nothing_compiles_twice() -> None:
    run = sebulba("ppo", {"layout.num_actors": 2, "layout.actor_devices": "cpu:0"})
    layout: Any = run.layout
    run.run(3).run(2)
    programs = layout._acting.programs
    assert [program._cache_size() for program in (programs._begin, programs._act)] == [1, 1]
    assert layout.program._cache_size() == 0 and layout._is_compiled
    layout.close()


@pytest.mark.parametrize("storage", ["device", "host"])
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_the_learner_lowers_for_every_platform(platform: str, storage: str) -> None:
    run = sebulba("dqn", {"replay.storage": storage})
    arguments = run.layout.run_arguments(run.layout.template(run.keys), 0, 1, 20)
    assert "func.func" in run.layout.program.trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("storage", ["device", "host"])
@pytest.mark.parametrize(("system", "settings"), marks.some(PRIORITISED | {"dqn": ("dqn", {})}))
def test_an_update_with_one_environment_an_actor_copies_no_replay(
    system: str, settings: dict[str, Any], storage: str
) -> None:
    sizes = {"env.num_envs": 2, "layout.num_actors": 2, "replay.capacity": 2**18, "replay.storage": storage}
    run = sebulba(system, {**settings, **sizes})
    arguments = run.layout.run_arguments(run.layout.template(run.keys), 0, 1, 20)
    used: Any = run.layout.program.lower(*arguments).compile().memory_analysis()
    assert used.argument_size_in_bytes > 16 * 2**18
    assert used.temp_size_in_bytes < used.argument_size_in_bytes / 2
    run.layout.close()


def test_two_actors_of_unequal_speed_fill_the_ring_with_whole_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(walk: host.Walk) -> None:
        time.sleep(0.02 if host.in_actor(0) else 0.002)

    made: list[host.Walk] = []
    monkeypatch.setattr(envs, "make", lambda name, params=None: host.task(slow, made))
    settings = {"layout.policy_lag": "free", "layout.num_actors": 2, "replay.capacity": 4096}
    run = sebulba("dqn", settings, "fake:walk").run(40)
    ring = run.state.replay
    filled = np.asarray(ring.filled[0])
    assert len(set(filled)) == 2 and filled[-1] > 1.5 * filled[0]
    observation = np.asarray(ring.rows.timestep.observation[0])
    step_type = np.asarray(ring.rows.timestep.step_type[0])
    for column, count in enumerate(filled):
        seed, episode, step = observation[column, :count].T
        assert (seed == seed[0]).all()
        position = episode * (host.LENGTH + 1) + step
        np.testing.assert_array_equal(np.diff(position), 1)
        np.testing.assert_array_equal(step_type[column, :count] == types.FIRST, step == 0)
    assert len({float(observation[column, 0, 0]) for column in range(len(filled))}) == len(filled)
    run.layout.close()
    assert all(walk.is_closed for walk in made)


@pytest.mark.slow
@pytest.mark.parametrize(("system", "storage"), [("ppo", ""), ("dqn", "device"), ("dqn", "host")])
def test_a_learner_that_is_not_finite_is_kept_and_never_published(
    system: str, storage: str, tmp_path: pathlib.Path, train: conftest.Train
) -> None:
    settings = {"learner.learning_rate": 1e38, "learner.anneal": False}
    settings |= {"layout": "sebulba", "checkpoint.interval_s": 0, "steps": 12_800}
    settings |= {"replay.storage": storage} if storage else {}
    with pytest.raises(guard.NonFiniteError, match="gradient"):
        train(system, **settings)
    broken = policy.replay_failure(tmp_path)
    assert not np.isfinite(np.concatenate([np.ravel(value) for value in broken.values()])).all()


@pytest.mark.slow
def test_what_another_version_wrote_is_refused_in_one_line(tmp_path: pathlib.Path, train: conftest.Train) -> None:
    train(layout="sebulba")
    parts, folder = policy.assemble_run(tmp_path, {}), tmp_path / "checkpoints"
    state, meta = checkpoint.restore_latest(
        folder, parts.layout.template(assemble.seed_keys(parts.settings)), pytest.fail
    )
    by_field = unroll.ActorState(*zip(*state.actors, strict=True))
    steps = meta["iteration"] * parts.layout.rows_per_iteration
    checkpoint.save(folder, steps, state._replace(actors=by_field), meta)
    checkpoint.save(tmp_path / "failure", "state", state.learner, {"iteration": 0, "total": 1, "num_devices": 1})
    config = tmp_path / "config.json"
    config.write_text(re.sub(r"jaxrl_dist [^\"]+", "jaxrl_dist 0.1.0", config.read_text()))
    wrote = r"is absent in the checkpoint, .* in the template\); jaxrl_dist 0.1.0 wrote it, go on with that"
    with pytest.raises(
        errors.UsageError, match=rf"^the checkpoint does not fit \(.*'actors/0/.*{wrote}, or train into"
    ):
        train(layout="sebulba", steps=2560)
    with pytest.raises(errors.UsageError, match=rf"^the failure does not fit \(.*{wrote}$"):
        policy.replay_failure(tmp_path)


REFUSED = [
    ("num_seeds", 2),
    ("layout.policy_lag", "-1"),
    ("layout.policy_lag", "65"),
    ("layout.num_actors", 3),
    ("layout.actor_devices", "gpu:0"),
    ("layout.learner_devices", "cpu:0,cpu:0"),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_cannot_be_is_one_line(name: str, value: Any, train: conftest.Train) -> None:
    with conftest.refused(f"--{name}={value}"):
        train(layout="sebulba", **{name: value})


def test_evaluation_on_the_host_plays_whole_episodes_and_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[host.Walk] = []
    monkeypatch.setattr(envs, "make", lambda name, params=None: host.task(made=made))
    run = sebulba("ppo", {"evaluation.episodes": 5}, "fake:walk")
    keys = assemble.seed_keys(run.parts.settings)
    params = run.state.learner.params
    first, second = (run.parts.evaluate(params, keys, 3) for _ in range(2))
    np.testing.assert_array_equal(first, np.full((1, 5), host.LENGTH))
    np.testing.assert_array_equal(made[0].seeds, made[1].seeds)
    assert run.parts.evaluate(params, keys, 4) is not None and not np.array_equal(made[2].seeds, made[0].seeds)
    assert run.parts.evaluate(params, keys, 3, stopped=lambda: True) is None
    np.testing.assert_array_equal(first, second)
    assert all(walk.is_closed for walk in made)
