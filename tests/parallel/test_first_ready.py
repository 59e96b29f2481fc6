"""Acting on the first that are ready: every column is one environment's history, and a slow one delays itself only."""

import functools
from typing import Any

import conftest
import jax
import numpy as np
import pytest
from fakes import calls, host

from jaxrl_dist import envs, types
from jaxrl_dist.parallel.sebulba import tiers
from jaxrl_dist.training import assemble, records

SETTINGS = {"layout": "sebulba", "layout.policy_lag": "free", "layout.ready_envs": 2}
PERIODS = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 12.0])


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    monkeypatch.setattr(envs, "make", lambda name, params=None: host.paced_task(PERIODS, made))
    return made


def test_unrolls_are_whole_histories_and_go_on_where_they_closed(paced: list[Any], monkeypatch: Any) -> None:
    taken: list[Any] = []
    learn = tiers.DeviceTier.learn

    def spied(self: Any, *arguments: Any) -> Any:
        taken.extend((item.columns, jax.tree.map(np.asarray, item.unroll)) for item in arguments[-1])
        return learn(self, *arguments)

    monkeypatch.setattr(tiers.DeviceTier, "learn", spied)
    run = conftest.Small("ppo", "fake:walk", 1, SETTINGS).run(6)
    run.layout.close()
    seeds, closed, counts = paced[0].seeds, np.zeros(8), np.zeros(8, int)
    assert len(taken) == 6
    for columns, unroll in taken:
        observation, step_type = unroll.steps.timestep.observation, unroll.steps.timestep.step_type
        for place, column in enumerate(columns):
            rows = observation[:, place]
            assert (rows[:, 0] == seeds[column]).all()
            np.testing.assert_array_equal(np.diff(host.position(rows)), 1)
            np.testing.assert_array_equal(step_type[:, place] == types.FIRST, rows[:, 2] == 0)
            assert host.position(rows)[0] == closed[column]
            closed[column] = host.position(rows)[-1]
            counts[column] += 1
    # Four times the fast ones' share is not waited for: the slow one has given nothing yet, or little.
    assert counts[0] >= 6 and counts[7] <= 1 and counts.sum() == 6 * 8
    assert run.metrics.episodes.valid_steps[0] > 0


@pytest.mark.parametrize("num_actors", [1, 2])
def test_a_ring_gets_every_environment_at_its_own_pace(num_actors: int, paced: list[Any]) -> None:
    settings = {**SETTINGS, "replay.capacity": 4096, "layout.num_actors": num_actors}
    run = conftest.Small("dqn", "fake:walk", 1, settings).run(30)
    ring = run.state.replay
    filled = np.asarray(ring.filled[0])
    assert filled.sum() == 30 * 8 * 4 and (num_actors > 1 or filled[0] > 3 * filled[7] > 0)
    observation = np.asarray(ring.rows.timestep.observation[0])
    for column, count in enumerate(filled):
        rows = observation[column, :count]
        assert count and (rows[:, 0] == rows[0, 0]).all()
        np.testing.assert_array_equal(host.position(rows), np.arange(count))
    # Threads begin in any order, but each actor's environments have columns beside each other, in their order.
    seeds = observation[:, 0, 0].reshape(num_actors, -1).tolist()
    assert sorted(seeds) == sorted(one.seeds.tolist() for one in paced)
    run.layout.close()


def test_actions_and_carries_belong_to_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack of frames, kept in the carry, shows an environment's own last frames wherever it stands in a batch."""
    made: list[Any] = []
    monkeypatch.setattr(envs, "make", lambda name, params=None: host.paced_task(PERIODS, made))
    settings = {**SETTINGS, "network.core": "frame_stack", "network.num_frames": 3, "replay.capacity": 4096}
    unrolled: list[Any] = []
    learn = tiers.DeviceTier.learn

    def spied(self: Any, *arguments: Any) -> Any:
        unrolled.extend(jax.tree.map(np.asarray, item.unroll) for item in arguments[-1])
        return learn(self, *arguments)

    monkeypatch.setattr(tiers.DeviceTier, "learn", spied)
    run = conftest.Small("dqn", "fake:walk", 1, settings).run(12)
    run.layout.close()
    seen = 0
    for unroll in unrolled:
        opening = unroll.steps.timestep.observation[0]
        for frames, now in zip(unroll.carry.frames, opening, strict=True):
            if now[2] >= 2:
                np.testing.assert_array_equal(frames[:, 0], [now[0]] * 2)
                np.testing.assert_array_equal(frames[:, 2], [now[2] - 2, now[2] - 1])
                seen += 1
    assert seen > 20


# Before the slow environment has closed a column; or once it has, and again before its next one.
@pytest.mark.parametrize("fails_after", [(30,), (80, 30)])
def test_a_replaced_actor_joins_no_lives(fails_after: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    task = host.paced_task(PERIODS, made)
    recv = host.Paced.raw_recv

    def failing(self: Any) -> Any:
        life = [one is self for one in made].index(True)
        if life < len(fails_after) and self._clock > fails_after[life]:
            raise RuntimeError("fell over")
        return recv(self)

    monkeypatch.setattr(host.Paced, "raw_recv", failing)
    monkeypatch.setattr(envs, "make", lambda name, params=None: task)
    states: list[tiers.State] = []
    settings = {**SETTINGS, "replay.capacity": 4096, "layout.max_actor_restarts": len(fails_after)}
    with pytest.warns(RuntimeWarning, match="RuntimeError: fell over"):
        run = conftest.Small("dqn", "fake:walk", 1, settings).run(30 * len(fails_after))
    states.append(run.state)
    run.layout.close()
    ring = states[0].replay
    assert len(made) == 1 + len(fails_after)
    changes, timestep = 0, jax.tree.map(lambda x: np.asarray(x[0]), ring.rows.timestep)
    for column, count in enumerate(np.asarray(ring.filled[0])):
        rows, kinds = timestep.observation[column, :count], timestep.step_type[column, :count]
        moved = np.diff(rows[:, 0]) != 0
        changes += moved.sum()
        assert (kinds[:-1][moved] == types.LAST).all() and (kinds[1:][moved] == types.FIRST).all()
        # What the last action of a life led to is there; the first row may be of no life.
        ends = 1 + np.flatnonzero(moved[1:])
        np.testing.assert_array_equal(timestep.discount[column, ends], rows[ends, 2] < host.LENGTH)
        np.testing.assert_array_equal(timestep.reward[column, ends], rows[ends, 2] > 0)
        np.testing.assert_array_equal(np.diff(host.position(rows))[~moved], 1)
    assert changes >= 7


REFUSED = [
    ({"layout.policy_lag": "1"}, ["--layout.ready_envs=2", "--layout.policy_lag=free"]),
    ({"layout.ready_envs": 3}, ["--layout.ready_envs=3", "valid: 1, 2, 4, 8"]),
    ({"network.core": "lstm"}, ["--layout.ready_envs=2"]),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_cannot_act_as_it_gets_ready_is_refused(settings: Any, words: list[str]) -> None:
    with conftest.refused(*words):
        conftest.Small("ppo", "toy:walk", 1, {**SETTINGS, **settings})


@pytest.mark.parametrize("settings", [{}, {"layout.inference": "central"}])
def test_environments_that_step_together_are_refused(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = host.task()._replace(steps_together=True)
    monkeypatch.setattr(envs, "make", lambda name, params=None: task)
    with conftest.refused("--layout.ready_envs=0", "8 environments"):
        conftest.Small("ppo", "fake:walk", 1, {**SETTINGS, **settings})
    # Central inference waits for all of them unless it is told otherwise.
    conftest.Small("ppo", "fake:walk", 1, {**SETTINGS, **settings, "layout.ready_envs": 0})


def test_a_replay_over_several_devices_is_refused() -> None:
    with conftest.refused("--layout.ready_envs=", "2 devices"):
        conftest.Small("dqn", "toy:walk", 2, SETTINGS)


@pytest.mark.slow
def test_central_inference_copies_no_parameters_to_any_actor(paced: list[Any]) -> None:
    settings = {"layout": "sebulba", "layout.policy_lag": "free", "layout.learner_devices": "cpu:1"}

    def copies(**more: Any) -> tuple[int, Any]:
        parts = {**conftest.SMALL["ppo"], **settings, **more, "system": "ppo", "env": "fake:walk"}
        resolved, environment = assemble.resolve(parts)
        devices = assemble.choose_devices(resolved, jax.devices())
        layout = assemble.assemble(resolved, environment, devices).layout
        state, metrics = layout.run(layout.init(assemble.seed_keys(resolved)), 0, 4, 20)
        count = layout._threads.store.count
        device = state.learner.updates.devices()
        sums = records.by_path(metrics)
        report, summary = layout.report(sums, sums, 1.0), layout.summary(sums)
        layout.close()
        assert device == {jax.devices()[1]} and report["inference_batch_mean"] == summary["inference_batch_mean"]
        return count, summary["inference_batch_mean"]

    # Versions 0 to 4, to the only actor's device.
    assert copies(**{"layout.actor_devices": "cpu:0", "layout.ready_envs": 2}) == (5, 2)
    assert copies(**{"layout.inference": "central"}) == (0, 8)
    assert copies(**{"layout.inference": "central", "layout.ready_envs": 1}) == (0, 1)


@pytest.mark.slow
def test_central_inference_keeps_the_recurrent_state_of_each_environment(paced: list[Any]) -> None:
    settings = {**SETTINGS, "layout.inference": "central", "layout.ready_envs": 4}
    run = conftest.Small("r2d2", "fake:walk", 1, {**settings, "replay.capacity": 4096, "replay.min_size": 4096}).run(20)
    ring, agent, params = run.state.replay, run.parts.agent, jax.tree.map(lambda x: x[0], run.state.learner.params)
    filled, length = np.asarray(ring.filled[0]), 4
    assert filled[0] > 3 * filled[7] > 0
    act = jax.jit(functools.partial(calls.act, agent))
    for column in (0, 3, 6):
        rows = jax.tree.map(lambda x: x[0, column], ring.rows.timestep)  # noqa: B023
        carry = jax.tree.map(lambda x: x[0, column, :1], ring.carry)  # noqa: B023
        for t in range(int(filled[column]) - length):
            timestep = jax.tree.map(lambda x: x[t : t + 1], rows)  # noqa: B023
            core = act(params, carry, timestep, jax.random.key(0), np.zeros(1, np.float32)).carry.core
            # What was done is part of the state, chosen greedily or not.
            carry = carry._replace(core=core, action=ring.rows.action[0, column, t : t + 1])
            if (t + 1) % length == 0:
                stored = jax.tree.map(lambda x: x[0, column, (t + 1) // length], ring.carry)  # noqa: B023
                core = zip(jax.tree.leaves(carry.core), jax.tree.leaves(stored.core), strict=True)
                for mine, theirs in core:
                    np.testing.assert_allclose(np.asarray(mine)[0], theirs, atol=1e-5)
                carry = jax.tree.map(lambda x: x[None], stored)
    run.layout.close()


CENTRAL = {"layout": "sebulba", "layout.inference": "central", "layout.policy_lag": "free"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"layout.policy_lag": "1"}, ["--layout.inference=central: ", "--layout.policy_lag=free"]),
        ({"layout.num_actors": 2}, ["--layout.num_actors=1"]),
        ({"layout.actor_devices": "cpu:0"}, ["--layout.actor_devices=cpu:0"]),
        ({"network.core": "lstm"}, ["recurrent", " 0"]),
    ],
)
def test_what_central_inference_cannot_be(settings: dict[str, Any], named: list[str], paced: list[Any]) -> None:
    with conftest.refused(*named):
        conftest.Small("ppo", "fake:walk", 1, {**CENTRAL, **settings})
