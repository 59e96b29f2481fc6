"""Tests of the suite of external simulators: rows, what crosses, seeds, and settings that cannot be."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import conftest
import jax
import numpy as np
import pytest
from fakes import peers, simulators

from jaxrl_dist import envs, errors, simulator, types
from jaxrl_dist.envs import check


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    with peers.making(monkeypatch) as make_one:
        yield make_one


def test_the_last_observation_is_a_row_with_discount_0_where_terminated_and_1_where_truncated(make: Any) -> None:
    port = peers.free_port()
    environment = make(port)

    def play(session: simulator.Session) -> None:
        for _ in range(2):
            session.begin([1, 0])
            session.act([2, 0], 0.25)
            assert session.act([3, 0], 0.5, terminated=True) is None
            session.begin([4, 0])
            assert session.act([5, 0], 0.75, truncated=True) is None

    thread, results = peers.started(simulator.serve, play, port, wait_s=5)
    rows = [environment.reset(), *(environment.step(np.array([a])) for a in (0, 1, 2, 0, 2, 1))]
    seen = [
        (r.observation[0, 0], r.step_type[0], r.discount[0], r.reward[0], r.info.episode_length[0], r.info.game_over[0])
        for r in rows
    ]
    assert seen == [
        (1, types.FIRST, 1, 0, 0, False),
        (2, types.MID, 1, 0.25, 1, False),
        (3, types.LAST, 0, 0.5, 2, True),
        (4, types.FIRST, 1, 0, 0, False),
        (5, types.LAST, 1, 0.75, 1, False),
        (1, types.FIRST, 1, 0, 0, False),
        (2, types.MID, 1, 0.25, 1, False),
    ]
    environment.close()
    thread.join(conftest.SOON_S)
    assert not thread.is_alive() and results == [None]


def test_actions_reach_the_simulator_as_they_were_chosen(make: Any) -> None:
    port = peers.free_port()
    environment, given = make(port), []

    def play(session: simulator.Session) -> None:
        given.append(session.begin([0, 0]))
        while True:
            given.append(session.act([0, 0], 0.0))

    thread, _ = peers.started(simulator.serve, play, port, wait_s=5)
    environment.reset()
    for action in (2, 0, 1):
        environment.step(np.array([action]))
    with pytest.raises(ValueError, match=r"action 3 .*environment 0\b.*\b0 to 2\b"):
        environment.step(np.array([3]))
    environment.close()
    thread.join(conftest.SOON_S)
    assert given == [2, 0, 1] and all(type(action) is int for action in given)


def test_real_actions_and_observations_of_more_axes_cross_unchanged() -> None:
    made = peers.task(
        "fakes.simulators:real", observation="float32[2,3]", actions="float32[2,3]", low="-1", high="1,2,3,4,5,6"
    )
    assert made.spec.family == "continuous" and isinstance(made.spec.action, types.BoxSpace)
    assert made.spec.action.low.tolist() == [[-1] * 3] * 2 and made.spec.action.high.tolist() == [[1, 2, 3], [4, 5, 6]]
    with contextlib.closing(made.make(np.zeros(2, np.uint32), 2, 10.0)) as environment:
        environment.reset()
        actions = np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32)
        row = environment.step(actions)
        np.testing.assert_array_equal(row.observation, np.clip(actions, -1, [[1, 2, 3], [4, 5, 6]]))
        assert row.observation.dtype == np.float32


@pytest.mark.parametrize("kind", [dtype for dtype in simulator.DTYPES if dtype != "float32"])
def test_every_type_crosses(kind: str, make: Any) -> None:
    port = peers.free_port()
    low, high = (0, 1) if kind == "bool" else (np.iinfo(kind).min, np.iinfo(kind).max)
    environment = make(port, observation=f"{kind}[2]")

    def play(session: simulator.Session) -> None:
        session.begin(np.array([low, high], kind))

    peers.started(simulator.serve, play, port, wait_s=5)
    row = environment.reset()
    assert row.observation.dtype == kind and row.observation.tolist() == [[low, high]]


def test_each_is_told_its_purpose_its_slot_and_a_seed_of_its_own() -> None:
    before = simulators.threads()
    made = peers.task("fakes.simulators:telling", observation="int32[4]", time_limit="3")
    assert made.make_evaluation is not None
    training = made.make(np.arange(10, 13, dtype=np.uint32), 3, 10.0)
    more = made.make(np.arange(20, 22, dtype=np.uint32), 2, 10.0)
    evaluation = made.make_evaluation(np.arange(30, 32, dtype=np.uint32), 2, 10.0)
    rows = [environment.reset().observation[:, :3].tolist() for environment in (training, more, evaluation)]
    assert rows == [
        [[0, 0, 10], [0, 1, 11], [0, 2, 12]],
        [[0, 3, 20], [0, 4, 21]],
        [[1, 0, 30], [1, 1, 31]],
    ]
    for environment in (training, more, evaluation):
        environment.close()
    simulators.assert_gone(before)


def test_the_rules_of_environments_hold() -> None:
    made = peers.task("fakes.simulators:telling", observation="int32[4]", time_limit="3", reward_range="0,1")
    report = check.check(lambda: made.make(np.arange(3, dtype=np.uint32), 3, 10.0), 30)
    assert not [fact for fact in report.facts if fact.broken] and report.episodes == 21


def test_first_ready_batches_leave_a_slow_simulator_behind(make: Any) -> None:
    port, release = peers.free_port(), threading.Event()
    environment = make(port, 2, batch_size=1)

    def play(session: simulator.Session) -> None:
        session.begin([session.slot, 0])
        for step in range(1, 100):
            if session.slot == 1:
                release.wait(conftest.SOON_S)
            session.act([session.slot, step], 0.0)

    for _ in range(2):
        peers.started(simulator.serve, play, port, wait_s=5)
    environment.reset()
    environment.send(np.zeros(2, np.int32), np.arange(2))
    for step in range(1, 6):
        row, ids = environment.recv()
        assert ids.tolist() == [0] and row.observation.tolist() == [[0, step]]
        environment.send(np.zeros(1, np.int32), ids)
    assert environment.waiting_for.tolist() == [0, 1]
    release.set()
    assert {int(environment.recv()[1][0]) for _ in range(2)} == {0, 1}


def test_the_same_programs_play_training_and_one_evaluation_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_AGAIN_S", 0.5)
    port, sessions = peers.free_port(), []
    made = peers.task("game", listen=str(port), observation="int32[4]")
    assert made.make_evaluation is not None

    def play(session: simulator.Session) -> None:
        sessions.append((session.purpose, session.slot, session.seed))
        simulators.telling(session)

    programs = [peers.started(simulator.serve, play, port, wait_s=5) for _ in range(3)]
    training = made.make(np.arange(2, dtype=np.uint32), 2, 10.0)
    training.reset()
    for seed in (7, 8):
        with contextlib.closing(made.make_evaluation(np.full(1, seed, np.uint32), 1, 10.0)) as evaluation:
            assert evaluation.reset().observation.tolist() == [[1, 0, seed, 0]]
            training.step(np.zeros(2, np.int32))
    training.close()
    for thread, results in programs:
        thread.join(conftest.SOON_S)
        assert results == [None]
    assert sorted(sessions) == [("evaluation", 0, 7), ("evaluation", 0, 8), ("training", 0, 0), ("training", 1, 1)]


def test_a_reset_gives_the_environments_to_fresh_sessions_with_the_same_seeds(make: Any) -> None:
    port, seeds = peers.free_port(), []
    environment = make(port, 2, observation="int32[4]")

    def play(session: simulator.Session) -> None:
        seeds.append(session.seed)
        simulators.telling(session)

    for _ in range(2):
        peers.started(simulator.serve, play, port, wait_s=5)
    first = environment.reset()
    environment.step(np.zeros(2, np.int32))
    np.testing.assert_array_equal(environment.reset().observation, first.observation)
    assert sorted(seeds) == [5, 5, 6, 6]


@pytest.mark.parametrize(
    ("name", "params", "named"),
    [
        ("game", {"actions": "2", "listen": "5555"}, "env.params.observation"),
        ("game", {"observation": "float32[4]", "listen": "5555"}, "env.params.actions"),
        (
            "game",
            peers.TWO,
            r"=external:game: .*external:NAME .*env\.params\.listen=PORT.*external:module:",
        ),
        ("fakes.simulators:episode", {**peers.TWO, "listen": "5555"}, "listen=5555: .*external:NAME "),
        ("game", {**peers.TWO, "listen": "80"}, "listen=80: .*1024 to 65535"),
        ("game", {**peers.TWO, "listen": "port"}, "listen=port: "),
        ("game", {**peers.TWO, "lisen": "5555"}, r"lisen: external:game .* listen\?"),
        (
            "game",
            {**peers.TWO, "observation": "float64[4]"},
            r"=float64\[4\]: .* float32\?",
        ),
        ("game", {**peers.TWO, "observation": "4"}, "observation=4: .*float32"),
        ("game", {**peers.TWO, "observation": "float32[0]"}, r"observation=float32\[0\]: "),
        ("game", {**peers.TWO, "observation": "float32[999999999,9]"}, "67,108,864"),
        ("game", {**peers.TWO, "actions": "0"}, r"actions=0: .*\b1\b"),
        ("game", {**peers.TWO, "actions": "-3"}, r"actions=-3: .*\b1\b"),
        (
            "game",
            {**peers.TWO, "actions": "int32[3]"},
            r"actions=int32\[3\]: ",
        ),
        ("game", {**peers.TWO, "actions": "float32[999]"}, r"actions=float32\[999\]: .*\b256\b"),
        ("game", {**peers.TWO, "low": "0"}, "low: "),
        (
            "game",
            {**peers.TWO, "actions": "float32[3]", "low": "1,2"},
            "low=1,2: .*1 or 3",
        ),
        ("game", {**peers.TWO, "actions": "float32[3]", "low": "1", "high": "0"}, "low < high"),
        ("game", {**peers.TWO, "actions": "float32[3]", "low": "nan"}, "low=nan: .*1 or 3"),
        ("game", {**peers.TWO, "reward_range": "1"}, r"reward_range=1: .*\b2\b"),
        ("game", {**peers.TWO, "reward_range": "1,0"}, "reward_range=1,0: "),
        ("game", {**peers.TWO, "time_limit": "-1"}, r"time_limit=-1: .*\b0\b"),
        ("nowhere_at_all:play", peers.TWO, "nowhere_at_all: ModuleNotFoundError"),
        ("fakes.simulators:episod", peers.TWO, r"simulators:episod: .* episode\?"),
    ],
)
def test_bad_input_is_refused_in_one_line(name: str, params: dict[str, str], named: str) -> None:
    with pytest.raises(errors.UsageError, match=named) as error:
        envs.make(f"external:{name}", params)
    assert "\n" not in str(error.value) and str(error.value).startswith("env")


def test_a_task_says_what_its_environments_are() -> None:
    made = peers.task("game", listen="5555", time_limit="500", reward_range="0,1")
    observation = jax.ShapeDtypeStruct((2,), np.float32)
    assert made.spec == types.EnvironmentSpec(
        "external:game", observation, types.DiscreteSpace(3), "classic", (0.0, 1.0), 500
    )
    assert made.protocol == "simulators connect to 127.0.0.1:5555"
    assert peers.task("game", listen="5555", observation="uint8[84,84,3]").spec.family == "atari"
    hidden = peers.task("fakes.simulators:telling", observation="int32[4]", observe="3")
    assert hidden.make_evaluation is not None
    with contextlib.closing(hidden.make_evaluation(np.zeros(1, np.uint32), 1, 10.0)) as environment:
        assert environment.reset().observation.shape == (1, 1)
