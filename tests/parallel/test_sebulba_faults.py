"""Faults under Sebulba, each made to happen: what ends the run, what is replaced; no sequence joins two lives."""

import functools
import itertools
import pathlib
import threading
import time
from typing import Any

import conftest
import jax
import numpy as np
import pytest
from fakes import host

from jaxrl_dist import envs, errors, parallel, processes, types
from jaxrl_dist.envs.host import as_host, hangs
from jaxrl_dist.parallel.sebulba import first_ready, tiers
from jaxrl_dist.parallel.sebulba import layout as layouts
from jaxrl_dist.runs import checkpoint
from jaxrl_dist.training import policy, session, stop


@pytest.fixture
def train(train: conftest.Train) -> conftest.Train:
    layout = {"layout": "sebulba", "layout.num_actors": 4}
    return functools.partial(train, system="dqn", env="fake:walk", **layout)


def raise_once(walk: host.Walk, at_step: int = 30) -> None:
    """Fails in actor 2's first life."""
    if host.in_actor(2) and walk.total_steps == at_step and not hasattr(raise_once, "done"):
        raise_once.done = True  # type: ignore[attr-defined]
        raise host.Broken("the simulator fell over")


def raise_always(walk: host.Walk) -> None:
    if host.in_actor(2) and walk.total_steps == 30:
        raise host.Broken("the simulator fell over")


def actors() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("actor")}


def test_a_raising_actor_ends_the_run_with_its_own_exception(plays: Any, train: conftest.Train) -> None:
    raised_s, before = [], actors()

    def fail(walk: host.Walk) -> None:
        if host.in_actor(2) and walk.total_steps == 30:
            raised_s.append(time.monotonic())
            raise host.Broken("the simulator fell over")

    made = plays(fail)
    with pytest.raises(host.Broken, match="the simulator fell over") as error:
        train(steps=64_000)
    assert time.monotonic() - raised_s[0] < conftest.SOON_S
    assert [entry.name for entry in error.traceback][-1] == "fail"
    assert all(walk.is_closed for walk in made) and actors() <= before
    # What was learned until then is saved, and the same command goes on from there.
    plays(lambda walk: None)
    resumed = train(steps=3_200)
    assert resumed.summary["resumed_from"] > 0


def test_what_fails_once_the_state_is_given_away_is_what_the_user_sees(
    plays: Any, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    plays(lambda walk: None)
    learn, calls = tiers.DeviceTier.learn, [0]

    def fail(*args: Any) -> Any:
        result, calls[0] = learn(*args), calls[0] + 1
        if calls[0] == 3:
            raise host.Broken("the learner fell over")
        return result

    monkeypatch.setattr(tiers.DeviceTier, "learn", fail)
    with pytest.raises(host.Broken, match="the learner fell over") as error:
        train(system="ppo")
    assert "could not be saved" in error.value.__notes__[0]


@pytest.mark.slow
def test_an_iteration_that_fails_halfway_is_not_saved_and_the_run_goes_on_before_it(
    monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    learn, calls = tiers.DeviceTier.learn, [0]

    def fail(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 5:
            raise host.Broken("the learner fell over")
        return learn(*args)

    settings = {"layout.num_actors": 2, "checkpoint.interval_s": 0.0}
    go_on = functools.partial(train, system="ppo", env="toy:walk", **settings)

    monkeypatch.setattr(session, "_CHUNK_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(tiers.DeviceTier, "learn", fail)
        with pytest.raises(host.Broken, match="the learner fell over") as error:
            go_on()
    assert "could not be saved: an iteration was cut short" in error.value.__notes__[0]
    resumed = go_on()
    assert resumed.reason == "finished" and 0 < resumed.summary["resumed_from"] < resumed.summary["env_steps"]


@pytest.mark.slow
def test_a_raising_actor_is_replaced_and_no_sequence_joins_two_lives(
    plays: Any, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    vars(raise_once).pop("done", None)
    made = plays(raise_once)
    states: list[tiers.State] = []
    original = layouts.Sebulba._iterate

    def spied(*args: Any) -> tiers.State:
        state = original(*args)
        states[:] = [state]
        return state

    monkeypatch.setattr(layouts.Sebulba, "_iterate", spied)
    with pytest.warns(RuntimeWarning, match=r"actor 2 .*1 of 1\b.*Broken: the simulator fell over"):
        run = train(steps=1600, **{"layout.max_actor_restarts": 1, "replay.capacity": 4096})
    training = [walk for walk in made if walk.num_envs == 2]
    assert run.reason == "finished" and len(training) == 5
    lives = np.concatenate([walk.seeds for walk in training])
    assert len(set(lives)) == 10
    check_ring(states[0].replay)


def check_ring(ring: Any, lost: int = 2) -> None:
    """Checks that rows of another environment, or another episode, come only after a LAST row, and open with FIRST.

    So many environments were lost, each once; one that was lost as it began leaves a single row, which is LAST.
    """
    filled = np.asarray(ring.filled[0])
    observation = np.asarray(ring.rows.timestep.observation[0])
    step_type = np.asarray(ring.rows.timestep.step_type[0])
    changes = 0
    for column, count in enumerate(filled):
        rows, kinds = observation[column, :count], step_type[column, :count]
        assert count < observation.shape[1]
        moved = (np.diff(rows[:, :2], axis=0) != 0).any(1)
        ends = np.append(np.diff(rows[:, 0]) != 0, False)
        changes += ends.sum()
        opens = (kinds == types.FIRST) | (ends & (kinds == types.LAST))
        assert (kinds[:-1][moved] == types.LAST).all() and opens[1:][moved].all()
        same = ~moved & (kinds[1:] != types.LAST)
        np.testing.assert_array_equal(np.diff(rows[:, 2])[same], 1)
    assert changes == lost


def test_one_fault_more_than_allowed_ends_the_run(plays: Any, train: conftest.Train) -> None:
    plays(raise_always)
    with pytest.warns(RuntimeWarning, match=r"\b1 of 2\b"), pytest.raises(host.Broken):
        train(steps=64_000, **{"layout.max_actor_restarts": 2})


def test_an_actor_in_the_middle_of_a_long_unroll_ends_with_the_run(
    plays: Any, train: conftest.Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hangs, "CLOSE_WITHIN_S", 0.0)
    token, before, length = stop.StopToken(), actors(), 50_000

    def play(walk: host.Walk) -> None:
        if host.in_actor(0) and walk.total_steps == 30:
            token.request()

    made = plays(play)
    run = train(system="a2c", stop=token, steps=4 * length, **{"layout.unroll_length": length, "env.num_envs": 4})
    assert run.reason == "stopped" and actors() <= before
    assert 0 < max(walk.total_steps for walk in made) < length / 2


@pytest.mark.parametrize("restarts", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_environment_that_hangs_as_it_is_made_is_named_or_replaced(
    restarts: int, plays: Any, train: conftest.Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()

    def make(seeds: np.ndarray, batch_size: int, timeout_s: float) -> Any:
        if host.in_actor(1) and not hung.is_set():
            hung.set()
            host.sleep_forever()
        return host.Walk(seeds, timeout_s, lambda walk: None)

    monkeypatch.setattr(hangs, "MAKE_S", 1.0)
    monkeypatch.setattr(hangs, "CLOSE_WITHIN_S", 0.1)
    monkeypatch.setattr(envs, "make", lambda name, params=None: envs.HostTask(host.spec(), "", make))
    settings = {"layout.timeout_s": 0.5, "layout.max_actor_restarts": restarts}
    message = r"actor 1\b.*fake:walk: .*\b1 s\b"
    if restarts:
        with pytest.warns(RuntimeWarning, match=message):
            assert train(steps=2560, **settings).reason == "finished"
    else:
        with pytest.raises(errors.EnvironmentFault, match=message):
            train(steps=2560, **settings)


def test_a_hanging_environment_is_named_within_its_timeout(
    tmp_path: pathlib.Path, plays: Any, train: conftest.Train
) -> None:
    def hang(walk: host.Walk) -> None:
        if host.in_actor(1) and walk.total_steps == 30:
            host.sleep_forever()

    plays(hang)
    started_s = time.monotonic()
    message = r"actor 1\b.*\b2: .*fake:walk .*\b1 s\b.*\b0, 1\b"
    with pytest.raises(errors.EnvironmentFault, match=message):
        train(steps=64_000, **{"layout.timeout_s": 1.0})
    assert time.monotonic() - started_s < conftest.SOON_S
    assert policy.load(tmp_path).env_steps > 0


@pytest.mark.slow
def test_an_environment_that_hangs_in_evaluation_is_named_and_what_was_learned_is_saved(
    tmp_path: pathlib.Path, plays: Any, train: conftest.Train
) -> None:
    evaluations: list[threading.Thread] = []

    def hang(walk: host.Walk) -> None:
        thread = threading.current_thread()
        if thread.name == "watched":
            evaluations.extend([thread] if thread not in evaluations else [])
            # The first evaluation is at step 0, before anything is learned.
            if len(evaluations) == 2 and walk.total_steps == 3:
                host.sleep_forever()

    plays(hang)
    started_s = time.monotonic()
    settings = {"layout.timeout_s": 1.0, "evaluation.interval_steps": 640, "checkpoint.interval_s": 10_000.0}
    with pytest.raises(errors.EnvironmentFault, match=r"^fake:walk .*\b1 s\b.*\b0, 1\b"):
        train(steps=64_000, **settings)
    assert time.monotonic() - started_s < conftest.SOON_S
    assert policy.load(tmp_path).env_steps == 640


@pytest.mark.slow
def test_a_hanging_environment_is_replaced(plays: Any, train: conftest.Train) -> None:
    hung = threading.Event()

    def hang(walk: host.Walk) -> None:
        if host.in_actor(1) and walk.total_steps == 30 and not hung.is_set():
            hung.set()
            host.sleep_forever()

    plays(hang)
    with pytest.warns(RuntimeWarning, match=r"actor 1 .*1 of 1\b.*EnvironmentFault"):
        run = train(system="ppo", steps=2560, **{"layout.timeout_s": 1.0, "layout.max_actor_restarts": 1})
    assert run.reason == "finished"


def test_a_number_that_cannot_be_names_environment_field_and_step(
    plays: Any, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    plays(lambda walk: None)
    original = host.Walk._row

    def row(self: host.Walk, env_ids: np.ndarray) -> envs.RawStep:
        raw = original(self, env_ids)
        if host.in_actor(3) and self.total_steps == 12:
            raw.observation[1, 2] = np.nan
        return raw

    monkeypatch.setattr(host.Walk, "_row", row)
    with pytest.raises(errors.EnvironmentFault, match=r"observation of fake:walk, environment 1, at its step 13\b"):
        train(steps=64_000)


def test_a_bad_number_is_found_before_the_learner_where_actors_do_not_wait(
    plays: Any, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    plays(lambda walk: None)
    monkeypatch.setattr(envs, "make", lambda name, params=None: host.paced_task(np.arange(1.0, 41.0)))
    original, learn, taken = host.Walk._row, tiers.DeviceTier.learn, []

    def row(self: host.Walk, env_ids: np.ndarray) -> envs.RawStep:
        raw = original(self, env_ids)
        if host.in_actor(0):
            raw.observation[(env_ids == 0) & (self._episode[0] == 4), 2] = np.nan
        return raw

    def spied(self: Any, *arguments: Any) -> Any:
        taken.extend(np.asarray(one.unroll.steps.timestep.observation) for one in arguments[-1])
        return learn(self, *arguments)

    monkeypatch.setattr(host.Walk, "_row", row)
    monkeypatch.setattr(tiers.DeviceTier, "learn", spied)
    ready = {"layout.policy_lag": "free", "layout.ready_envs": 2, "layout.num_actors": 1, "env.num_envs": 8}
    with pytest.raises(errors.EnvironmentFault, match=r"observation of fake:walk, environment 0, at its step 33\b"):
        train(steps=64_000, **ready)
    assert taken and all(np.isfinite(x).all() for x in taken)


@pytest.mark.parametrize("ready", [0, 2])
def test_an_action_that_is_none_reaches_no_environment_and_ends_the_run(ready: int) -> None:
    settings = {"layout": "sebulba", "layout.policy_lag": "free", "layout.ready_envs": ready}
    sent: list[int] = []
    task = host.paced_task(np.ones(8)) if ready else host.task()

    class Wrong(host.Paced if ready else host.Walk):  # type: ignore[misc]
        def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
            sent.extend(action.tolist())
            super().raw_send(action, env_ids)

    def make(seeds: np.ndarray, batch_size: int, timeout_s: float) -> Any:
        return Wrong(seeds, timeout_s, *((batch_size, np.ones(8)) if ready else (lambda walk: None,)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envs, "make", lambda name, params=None: task._replace(make=make))
        run = conftest.Small("ppo", "fake:walk", 1, settings)
        acting: Any = run.layout._acting
        agent = run.parts.agent

        def act(params: Any, inputs: Any) -> Any:
            output = agent.act(params, inputs)
            return output._replace(action=output.action + 3)

        if ready:
            acting._act = jax.jit(functools.partial(first_ready._act, agent._replace(act=act), task.spec))
        else:
            acting.programs._agent = agent._replace(act=act)
        with pytest.raises(parallel.Interrupted) as ended:
            run.run(1)
        run.layout.close()
    assert isinstance(ended.value.fault, ValueError) and "valid: 0 to 2" in str(ended.value.fault)
    assert sent and set(sent) == {0}


def test_stand_ins_of_a_process_with_a_fault_keep_what_the_last_action_led_to(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"layout": "sebulba", "layout.num_actors": 2, "layout.policy_lag": "0"}
    run = conftest.Small("dqn", "toy:walk", 1, settings).run(3)
    threads, length = run.layout._threads, conftest.SMALL["dqn"]["layout.unroll_length"]
    closing = [jax.tree.map(np.copy, one.timestep) for one in run.state.actors]
    # As in one of several processes, whose learner goes on for the others.
    with monkeypatch.context() as patch:
        patch.setattr(processes, "count", lambda: 2)
        patch.setattr(threads._players[1], "_error", host.Broken("the simulator fell over"))
        threads.check()
    assert isinstance(threads.fault, host.Broken)
    for iteration in (3, 4):
        assert threads.take(iteration, lambda: None) == []
        learned, _ = run.layout._tier.learn(threads.state, iteration, run.total, threads.filled([]))
        threads.state = layouts._advance(threads.state, learned, [])
    rows = threads.state.replay.rows.timestep
    for number, ended in enumerate(closing):
        columns = threads.actors.columns(number)
        for x, y in zip(rows[:4], ended[:4], strict=True):
            if x is not rows.step_type:
                np.testing.assert_array_equal(np.asarray(x)[0, columns, 3 * length], y)
    # Nothing is learned of what follows: a step from a row that ended an episode is none.
    assert (np.asarray(rows.step_type)[0, :, 3 * length : 5 * length] == types.LAST).all()
    assert (np.asarray(rows.step_type)[0, :, : 3 * length] != types.LAST).any()
    run.layout.close()


def test_a_fault_after_a_resume_is_kept_although_unrolls_of_the_snapshot_do_not_say_where_they_ended(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"layout": "sebulba", "layout.num_actors": 2, "layout.policy_lag": "1"}
    first, run = (conftest.Small("ppo", "toy:walk", 1, settings) for _ in range(2))
    first.run(3).handed_to(run, tmp_path)
    threads = run.run(1).layout._threads
    with monkeypatch.context() as patch:
        patch.setattr(processes, "count", lambda: 2)
        patch.setattr(threads._players[1], "_error", host.Broken("the simulator fell over"))
        threads.check()
    assert isinstance(threads.fault, host.Broken)
    rows = [one.unroll.steps.timestep.step_type for one in threads.filled([])]
    assert len(rows) == 2 and all((np.asarray(row) == types.LAST).all() for row in rows)
    for one in (first, run):
        one.layout.close()


@pytest.mark.parametrize("restarts", [0, 1])
def test_environments_that_are_lost_while_they_are_saved_are_replaced(
    restarts: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, state = itertools.count(), as_host.AsHost.state

    def lost(self: as_host.AsHost) -> Any:
        # The second actor's, in the second save.
        if next(calls) == 3:
            raise errors.EnvironmentFault("its player is lost")
        return state(self)

    monkeypatch.setattr(as_host.AsHost, "state", lost)
    settings = {"layout": "sebulba", "layout.num_actors": 2, "layout.max_actor_restarts": restarts}
    train = functools.partial(conftest.train_in, tmp_path, "ppo", "toy:walk", **settings, steps=3 * 128)
    if restarts == 0:
        with pytest.raises(errors.EnvironmentFault, match="its player is lost"):
            train(**{"checkpoint.interval_s": 0})
        return
    with pytest.warns(RuntimeWarning, match=r"actor 1 is started anew \(1 of 1\) after EnvironmentFault: its player"):
        assert train(**{"checkpoint.interval_s": 0}).reason == "finished"
    saved = [path.name for path in checkpoint.latest(tmp_path / "checkpoints")]
    assert saved[0] == "step_000000000384"


@pytest.mark.slow
def test_a_slow_learner_makes_actors_wait(plays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, before = plays(lambda walk: None), actors()
    settings = {"layout": "sebulba", "layout.policy_lag": "free", "layout.num_actors": 2}
    run = conftest.Small("ppo", "fake:walk", 1, settings).run(1)
    layout, length = run.layout, conftest.SMALL["ppo"]["layout.unroll_length"]
    time.sleep(1.0)
    taken, full = 1, 2 * 2
    # Each actor fills its share of the queue, and one more unroll waits to be put.
    assert layout._threads.queue.depth() == full
    at_rest = [walk.total_steps for walk in made]
    assert sum(at_rest) <= (2 * taken + full + 2) * length
    time.sleep(0.5)
    assert [walk.total_steps for walk in made] == at_rest
    run.layout.close()
    assert actors() <= before


@pytest.mark.slow
def test_a_resumed_run_plays_other_environments_and_joins_nothing(
    plays: Any, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    made = plays(lambda walk: None)
    token = stop.StopToken()
    states: list[tiers.State] = []
    original = layouts.Sebulba._iterate

    def stopping(self: Any, threads: Any, i: int, *args: Any) -> tiers.State:
        if i == 9 and not token.requested:
            token.request()
        state = original(self, threads, i, *args)
        states[:] = [state]
        return state

    monkeypatch.setattr(layouts.Sebulba, "_iterate", stopping)
    named = {"layout.num_actors": 2, "steps": 960}
    first = train(stop=token, **named)
    # The stop came while iteration 9 waited for its unrolls: nine were finished, and they are what was saved.
    assert first.reason == "stopped" and first.summary["env_steps"] == 9 * 32
    second = train(**named)
    assert second.reason == "finished" and second.summary["resumed_from"] == 9 * 32
    assert second.summary["env_steps"] == 960
    seeds = [float(seed) for walk in made if walk.num_envs == 4 for seed in walk.seeds]
    assert len(seeds) == len(set(seeds)) == 16
    ring = states[0].replay
    changed = np.diff(np.asarray(ring.rows.timestep.observation[0])[:, : int(ring.filled[0, 0]), 0], axis=1) != 0
    kinds = np.asarray(ring.rows.timestep.step_type[0])[:, : int(ring.filled[0, 0])]
    assert (changed.sum(1) == 1).all()
    assert (kinds[:, :-1][changed] == types.LAST).all() and (kinds[:, 1:][changed] == types.FIRST).all()
