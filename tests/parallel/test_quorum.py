"""A quorum: late unrolls are waited for by nobody, are in no batch and in every count; the rest is as without them."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import conftest
import jax
import marks
import numpy as np
import pytest
from fakes import host

from jaxrl_dist import envs, parallel, types
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import sebulba
from jaxrl_dist.parallel.sebulba import queue as queues
from jaxrl_dist.parallel.sebulba import tiers
from jaxrl_dist.replay import latest
from jaxrl_dist.training import session, stop

LENGTH = conftest.SMALL["ppo"]["layout.unroll_length"]
SETTINGS = {"layout": "sebulba", "layout.num_actors": 4, "layout.quorum": 3, "layout.policy_lag": "0"}
PLAIN = {
    "learner.optimizer": "sgd",
    "learner.learning_rate": 0.5,
    "learner.minibatches": 1,
    "learner.epochs": 1,
    "agent.normalise_advantage": "batch",
}
LSTM = {"network.core": "lstm", "network.core_size": 8}


class Gates:
    """Holds steps of actors back: `held[actor]` says whether its next step, the number of which is given, waits."""

    def __init__(self) -> None:
        self.held: dict[int, Callable[[int], bool]] = {}
        self.are_open = threading.Event()

    def __call__(self, walk: host.Walk) -> None:
        name = threading.current_thread().name
        while self._is_held(name, walk.total_steps) and not self.are_open.wait(0.001):
            pass

    def _is_held(self, name: str, step: int) -> bool:
        return any(name == f"actor {actor}" and waits(step) for actor, waits in list(self.held.items()))


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gates]:
    made = Gates()
    monkeypatch.setattr(envs, "make", lambda name, params=None: host.task(made))
    yield made
    made.are_open.set()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Of each iteration what the learner was given: (number, learner before, key, unrolls, learner after), in NumPy."""
    calls: list[Any] = []
    learn = tiers.DeviceTier.learn

    def spied(self: Any, state: Any, iteration: int, total: int, unrolled: Any) -> Any:
        before = jax.tree.map(np.array, state.learner)
        learned, failing = learn(self, state, iteration, total, unrolled)
        calls.append((iteration, before, state.key, list(unrolled), jax.tree.map(np.array, learned.learner)))
        return learned, failing

    monkeypatch.setattr(tiers.DeviceTier, "learn", spied)
    return calls


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[queues.Unrolled]]:
    """Every unroll that an actor handed over, by actor."""
    items: dict[int, list[queues.Unrolled]] = {actor: [] for actor in range(4)}
    put = queues.UnrollQueue.put

    def spied(self: Any, item: queues.Unrolled, is_current: Any) -> None:
        items[item.actor].append(item)
        put(self, item, is_current)

    monkeypatch.setattr(queues.UnrollQueue, "put", spied)
    return items


def small(**settings: Any) -> conftest.Small:
    return conftest.Small("ppo", "fake:walk", 1, {**SETTINGS, **settings})


def own(items: list[queues.Unrolled]) -> list[queues.Unrolled]:
    """The items that an actor played; checks that the others teach nothing."""
    for item in items:
        assert item.number >= 0 or (np.asarray(item.unroll.steps.timestep.step_type) == types.LAST).all()
    return [item for item in items if item.number >= 0]


@pytest.mark.parametrize("lag", marks.some([0, 2], slow={"2"}))
def test_late_unrolls_are_dropped_and_their_actor_goes_on(lag: int, gates: Gates, taken: Any, played: Any) -> None:
    # One plays at a fifth of the learner's own pace, neither faster nor slower: without a quorum nothing would go on.
    gates.held[0] = lambda step: len(taken) < 5 * step / LENGTH
    gates.held[1] = lambda step: len(taken) > 5 * (len(played[0]) + 1)
    run = small(**{"layout.policy_lag": str(lag)}).run(21)
    slow_steps, first = 21 / 5 * LENGTH, run.metrics
    late = len(played[0])
    # Now another is slow, and the one that was is in time again.
    gates.held = {1: lambda step: time.sleep(0.02) is not None}
    run.run(12)
    gates.are_open.set()
    run.layout.close()

    assert [iteration for iteration, *_ in taken] == list(range(33))
    for iteration, _, _, items, _ in taken:
        assert [item.actor for item in items] == [0, 1, 2, 3] and len(own(items)) >= 3
        for item in own(items):
            assert item.number == iteration
            assert (np.asarray(item.unroll.steps.version) == max(0, item.number - lag)).all()
    assert all(0 not in [item.actor for item in own(items)] for *_, items, _ in taken[:21])
    assert all(0 in [item.actor for item in own(items)] for *_, items, _ in taken[-3:])
    # All that actor 0 played is one history, what was dropped of it as well.
    numbers, closed = [item.number for item in played[0]], None
    for item in played[0]:
        rows = np.asarray(item.unroll.steps.timestep.observation)
        assert (np.diff(host.position(rows), axis=0) == 1).all()
        assert closed is None or (rows[0] == closed).all()
        closed = rows[-1]
    assert 3 <= late <= slow_steps / LENGTH and (np.diff(numbers[:late]) > 1).all()
    dropped = first.layout["dropped_unrolls"][0]
    # The last of them may have come between the count and the look at it.
    assert late - 1 <= dropped <= late
    missing = sum(4 - len(own(items)) for *_, items, _ in taken[:21])
    assert first.layout["unplayed_steps"][0] == (missing - dropped) * 2 * LENGTH
    assert first.layout["lag_counts"][0][lag] == sum(
        len(own(items)) for iteration, _, _, items, _ in taken[:21] if iteration >= lag
    )


@pytest.mark.slow
def test_a_quorum_of_all_is_none_bit_for_bit() -> None:
    settings = {**SETTINGS, "layout.policy_lag": "1"}
    one, other = (conftest.Small("ppo", "toy:walk", 1, {**settings, "layout.quorum": k}).run(4) for k in (0, 4))
    for x, y in zip(one.params, other.params, strict=True):
        np.testing.assert_array_equal(x, y)
    assert other.metrics.layout["dropped_unrolls"] == other.metrics.layout["unplayed_steps"] == 0
    # What repeats is saved whole.
    assert len(other.layout.snapshot(other.state).pending) == 4
    for run in (one, other):
        run.layout.close()


@pytest.mark.parametrize(
    ("num_devices", "core"), marks.some({"one": (1, {}), "two": (2, {}), "lstm": (1, LSTM)}, fast={"two"})
)
def test_updates_are_means_over_what_is_in(num_devices: int, core: Any, gates: Gates, taken: Any) -> None:
    gates.held[1] = lambda step: True
    run = conftest.Small("ppo", "fake:walk", num_devices, {**SETTINGS, **PLAIN, **core}).run(2)
    gates.are_open.set()
    run.layout.close()
    parts = run.parts
    learner = learners.make(parts.settings.group("learner", learners.Config), parts.agent, meshes.AXIS)
    config, mesh = dataclasses.replace(parts.settings.group("layout", sebulba.Config), num_actors=3), parts.layout.mesh
    three = tiers.DeviceTier(
        parallel.LayoutParts(config, parts.agent, latest.make(), learner, parts.environment, 6, mesh)
    )
    iteration, before, key, items, after = taken[1]
    assert [item.actor for item in own(items)] == [0, 2, 3]
    _, empty = three.init(run.keys)
    placed = jax.device_put(before, meshes.sharding(mesh, meshes.PER_SEED))
    state = tiers.State(placed, key, (), empty, (), np.zeros((), np.int32))
    three.compile(state)
    # The spied tier is the same class: its record of this call is not looked at.
    expected = three.learn(state, iteration, run.total, own(items))[0].learner
    changed = 0.0
    for old, x, y in zip(*map(jax.tree.leaves, (before.params, expected.params, after.params)), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
        changed += np.abs(old - y).max()
    assert changed > 1e-3


@pytest.mark.slow
def test_an_actor_that_raises_ends_the_run_though_a_quorum_is_left(gates: Gates, train: conftest.Train) -> None:
    raised_s = []

    def fail(step: int) -> bool:
        if step == 40:
            raised_s.append(time.monotonic())
            raise OverflowError("the simulator fell over")
        return False

    gates.held[2] = fail
    with pytest.raises(OverflowError, match="the simulator fell over"):
        train(env="fake:walk", steps=10_000_000, **SETTINGS)
    assert time.monotonic() - raised_s[0] < conftest.SOON_S


@pytest.mark.slow
def test_a_stop_waits_for_no_late_actor_and_the_summary_counts_all_sessions(
    gates: Gates, taken: Any, train: conftest.Train
) -> None:
    token, asked_s = stop.StopToken(), []

    def slow(step: int) -> bool:
        if len(taken) >= 12 and not asked_s:
            asked_s.append(time.monotonic())
            token.request()
        # Held for good once it is to stop, and then let go as a slow step ends.
        return len(taken) < 5 * step / LENGTH and not (asked_s and time.monotonic() > asked_s[0] + 1)

    gates.held[3] = slow
    named = {"env": "fake:walk", **SETTINGS, "steps": 24 * 8 * LENGTH, "layout.policy_lag": "1"}
    first = train(stop=token, **named)
    assert first.reason == session.STOPPED and time.monotonic() - asked_s[0] < conftest.SOON_S
    assert first.summary["dropped_unrolls"] >= 1
    iterations = first.summary["env_steps"] // (8 * LENGTH)
    assert first.summary["param_versions_published"] == iterations + 1 < 25
    gates.held = {}
    second = train(**named)
    summary = second.summary
    assert second.reason == session.FINISHED and summary["resumed_from"] == first.summary["env_steps"]
    assert summary["env_steps"] == 24 * 8 * LENGTH and summary["param_versions_published"] == 25
    assert summary["dropped_unrolls"] >= first.summary["dropped_unrolls"]
    assert (summary["workers"], summary["policy_lag_p50"], summary["policy_lag_p99"]) == (4, 1, 1)


def test_new_environments_after_a_resume_are_others() -> None:
    run = conftest.Small("ppo", "toy:walk", 1, SETTINGS)
    actors, key = run.layout._actors, run_keys.seed_keys(run.keys[0]).environment
    assert run.layout.snapshot(run.state).pending == ()

    def keys(iteration: int, life: int) -> Any:
        return jax.random.key_data(actors.make_environments(key, 0, iteration, life)._env_key)

    made = [keys(*which) for which in ((0, 0), (5, 0), (9, 0), (5, 1), (0, 1))]
    assert len({x.tobytes() for x in map(np.asarray, made)}) == 5
    np.testing.assert_array_equal(made[0], keys(0, 0))


def test_the_queue_takes_a_number_in_the_order_of_actors_and_drops_what_is_late() -> None:
    queue = queues.UnrollQueue(3, 2, first=4)

    def item(actor: int, number: int) -> queues.Unrolled:
        return queues.Unrolled(actor, number, 0, (), (), (), (), (), {})  # type: ignore[arg-type]

    for actor, number in ((2, 4), (2, 5), (0, 4), (1, 3)):
        queue.put(item(actor, number), lambda: True)
    assert (queue.dropped, queue.first(), queue.depth()) == (1, 4, 3)
    assert [one.actor for one in queue.take_number(4, 2, lambda: None)] == [0, 2]
    queue.put(item(1, 4), lambda: True)
    assert (queue.dropped, queue.first(), queue.depth()) == (2, 5, 1)

    def give_up() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        queue.take_number(5, 2, give_up)
    assert queue.first() == 5 and queue.depth() == 1


REFUSED = [
    ("ppo", {"layout.quorum": 5}, ["--layout.quorum=5", "nearest: 4"]),
    ("ppo", {"layout.quorum": -1}, ["--layout.quorum=-1"]),
    ("ppo", {"layout.policy_lag": "free"}, ["--layout.quorum=3", "--layout.policy_lag=free"]),
    ("ppo", {"layout.ready_envs": 2}, ["--layout.quorum=3", "--layout.ready_envs=2"]),
    ("dqn", {}, ["--layout.quorum=3", "nearest: 4"]),
]


@pytest.mark.parametrize(("system", "settings", "words"), REFUSED, ids=lambda value: str(value)[:30])
def test_a_quorum_that_cannot_be_is_one_line(
    system: str, settings: dict[str, Any], words: list[str], train: conftest.Train
) -> None:
    with conftest.refused(*words):
        train(system, **{**SETTINGS, **settings})
