"""Tests of the suite of external simulators: rows, faults that name who failed, and both sides' end, each forced."""

import contextlib
import json
import pathlib
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import conftest
import jax
import numpy as np
import pytest
import simulators

from jaxrl_dist import config, types
from jaxrl_dist.envs import base, check, conversations, lobby, simulator

TWO = {"observation": "float32[2]", "actions": "3"}


def task(name: str, **params: str) -> base.HostTask:
    made = base.make(f"external:{name}", {**TWO, **params})
    assert isinstance(made, base.HostTask)
    return made


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def started(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[threading.Thread, list[Any]]:
    """Calls in a thread; returns it, and the list that gets what it returned or raised."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function(*args, **kwargs))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a simulator look for its next trainer for half a second."""
    monkeypatch.setattr(simulator, "_AGAIN_S", 0.5)


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """Makes environments on a port, (port, B, timeout_s, evaluation) -> environments, and closes them in the end."""
    with contextlib.ExitStack() as stack:

        def made(port: int, num_envs: int = 1, timeout_s: float = 10.0, *, batch_size: int = 0, **params: str) -> Any:
            seeds = np.arange(5, 5 + num_envs, dtype=np.uint32)
            environment = task("game", listen=str(port), **params).make(seeds, batch_size or num_envs, timeout_s)
            return stack.enter_context(contextlib.closing(environment))

        yield made


def connected(port: int, **hello: Any) -> socket.socket:
    """Connects without the library, says hello, and returns the socket."""
    peer = socket.create_connection(("127.0.0.1", port), 5)
    peer.sendall(simulator.pack({"kind": "hello", "protocol": 1, **hello}))
    return peer


def heard(peer: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Reads one message without the library."""

    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = peer.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    header, payload = struct.unpack("<II", exactly(8))
    return json.loads(exactly(header)), exactly(payload)


def begin(peer: socket.socket) -> None:
    assert heard(peer)[0]["kind"] == "welcome"
    peer.sendall(simulator.pack({"kind": "begin", "observation": "float32[2]"}, bytes(8)))


def begun(environment: Any, port: int) -> list[socket.socket]:
    """Resets two environments, and returns the peers that have begun an episode in each."""
    waiting, rows = started(environment.reset)
    peers = [connected(port, purpose="training", slot=slot, pid=70 + slot) for slot in (0, 1)]
    for peer in peers:
        begin(peer)
    waiting.join(5)
    assert rows[0].step_type.tolist() == [types.FIRST] * 2
    return peers


def act(peer: socket.socket, payload: bytes = bytes(8), **header: Any) -> None:
    plain = {"kind": "act", "observation": "float32[2]", "reward": 0.5, "terminated": False, "truncated": False}
    peer.sendall(simulator.pack({**plain, **header}, payload))


def test_the_last_observation_is_a_row_with_discount_0_where_terminated_and_1_where_truncated(make: Any) -> None:
    port = free_port()
    environment = make(port)

    def play(session: simulator.Session) -> None:
        for _ in range(2):
            session.begin([1, 0])
            session.act([2, 0], 0.25)
            assert session.act([3, 0], 0.5, terminated=True) is None
            session.begin([4, 0])
            assert session.act([5, 0], 0.75, truncated=True) is None

    thread, results = started(simulator.serve, play, port, wait_s=5)
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
    thread.join(10)
    assert not thread.is_alive() and results == [None]


def test_actions_reach_the_simulator_as_they_were_chosen(make: Any) -> None:
    port = free_port()
    environment, given = make(port), []

    def play(session: simulator.Session) -> None:
        given.append(session.begin([0, 0]))
        while True:
            given.append(session.act([0, 0], 0.0))

    thread, _ = started(simulator.serve, play, port, wait_s=5)
    environment.reset()
    for action in (2, 0, 1):
        environment.step(np.array([action]))
    with pytest.raises(ValueError, match="action 3 for environment 0; valid: 0 to 2"):
        environment.step(np.array([3]))
    environment.close()
    thread.join(10)
    assert given == [2, 0, 1] and all(type(action) is int for action in given)


def test_real_actions_and_observations_of_more_axes_cross_unchanged() -> None:
    made = task("simulators:real", observation="float32[2,3]", actions="float32[2,3]", low="-1", high="1,2,3,4,5,6")
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
    port = free_port()
    low, high = (0, 1) if kind == "bool" else (np.iinfo(kind).min, np.iinfo(kind).max)
    environment = make(port, observation=f"{kind}[2]")

    def play(session: simulator.Session) -> None:
        session.begin(np.array([low, high], kind))

    started(simulator.serve, play, port, wait_s=5)
    row = environment.reset()
    assert row.observation.dtype == kind and row.observation.tolist() == [[low, high]]


def test_each_is_told_its_purpose_its_slot_and_a_seed_of_its_own() -> None:
    before = simulators.threads()
    made = task("simulators:telling", observation="int32[4]", time_limit="3")
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
    made = task("simulators:telling", observation="int32[4]", time_limit="3", reward_range="0,1")
    report = check.check(lambda: made.make(np.arange(3, dtype=np.uint32), 3, 10.0), 30)
    assert not [fact for fact in report.facts if fact.broken] and report.episodes == 21


def test_first_ready_batches_leave_a_slow_simulator_behind(make: Any) -> None:
    port, release = free_port(), threading.Event()
    environment = make(port, 2, batch_size=1)

    def play(session: simulator.Session) -> None:
        session.begin([session.slot, 0])
        for step in range(1, 100):
            if session.slot == 1:
                release.wait(10)
            session.act([session.slot, step], 0.0)

    for _ in range(2):
        started(simulator.serve, play, port, wait_s=5)
    environment.reset()
    environment.send(np.zeros(2, np.int32), np.arange(2))
    for step in range(1, 6):
        row, ids = environment.recv()
        assert ids.tolist() == [0] and row.observation.tolist() == [[0, step]]
        environment.send(np.zeros(1, np.int32), ids)
    assert environment.waiting_for.tolist() == [0, 1]
    release.set()
    assert {int(environment.recv()[1][0]) for _ in range(2)} == {0, 1}


def test_the_same_programs_play_training_and_one_evaluation_after_the_other() -> None:
    port, sessions = free_port(), []
    made = task("game", listen=str(port), observation="int32[4]")
    assert made.make_evaluation is not None

    def play(session: simulator.Session) -> None:
        sessions.append((session.purpose, session.slot, session.seed))
        simulators.telling(session)

    programs = [started(simulator.serve, play, port, wait_s=5) for _ in range(3)]
    training = made.make(np.arange(2, dtype=np.uint32), 2, 10.0)
    training.reset()
    for seed in (7, 8):
        with contextlib.closing(made.make_evaluation(np.full(1, seed, np.uint32), 1, 10.0)) as evaluation:
            assert evaluation.reset().observation.tolist() == [[1, 0, seed, 0]]
            training.step(np.zeros(2, np.int32))
    training.close()
    for thread, results in programs:
        thread.join(10)
        assert results == [None]
    assert sorted(sessions) == [("evaluation", 0, 7), ("evaluation", 0, 8), ("training", 0, 0), ("training", 1, 1)]


def test_a_reset_gives_the_environments_to_fresh_sessions_with_the_same_seeds(make: Any) -> None:
    port, seeds = free_port(), []
    environment = make(port, 2, observation="int32[4]")

    def play(session: simulator.Session) -> None:
        seeds.append(session.seed)
        simulators.telling(session)

    for _ in range(2):
        started(simulator.serve, play, port, wait_s=5)
    first = environment.reset()
    environment.step(np.zeros(2, np.int32))
    np.testing.assert_array_equal(environment.reset().observation, first.observation)
    assert sorted(seeds) == [5, 5, 6, 6]


GARBAGE = {
    "text of another protocol": (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "header: expected 1 to 4096 bytes, given 542393671",
    ),
    "an empty header": (struct.pack("<II", 0, 0), "header: expected 1 to 4096 bytes, given 0"),
    "an oversize header": (struct.pack("<II", 4097, 0), "header: expected 1 to 4096 bytes, given 4097"),
    "an oversize payload": (struct.pack("<II", 9, 2**32 - 1), "payload: expected 0 or 8 bytes, given 4294967295"),
    "no JSON": (struct.pack("<II", 3, 0) + b"\xff\xfe{", "expected a JSON object"),
    "JSON that is no object": (simulator.pack([1, 2]), "expected a JSON object"),  # type: ignore[arg-type]
    "JSON that never ends": (struct.pack("<II", 4096, 0) + b"[" * 4096, "expected a JSON object"),
    "another kind": (simulator.pack({"kind": "__import__"}), "kind: expected act, given '__import__'"),
    "no kind": (simulator.pack({}), "kind: expected act, given None"),
    "an episode within another": (simulator.pack({"kind": "begin"}), "kind: expected act, given 'begin'"),
}
PLAIN = {"kind": "act", "observation": "float32[2]", "reward": 0.5, "terminated": False, "truncated": False}
WRONG = {
    "no observation": ({}, b"", "observation: expected float32[2] in 8 bytes, given 'float32[2]' in 0 bytes"),
    "another shape": (
        {"observation": "float32[1,2]"},
        bytes(8),
        "expected float32[2] in 8 bytes, given 'float32[1,2]'",
    ),
    "another type": ({"observation": "int32[2]"}, bytes(8), "expected float32[2] in 8 bytes, given 'int32[2]'"),
    "NaN": ({}, np.array([0, np.nan], "<f4").tobytes(), "observation: expected finite numbers of float32, given nan"),
    "an infinite one": ({}, np.array([np.inf, 0], "<f4").tobytes(), "given inf"),
    "a reward of NaN": ({"reward": float("nan")}, bytes(8), "reward: expected a finite number in -1 to 1, given nan"),
    "a reward out of range": ({"reward": 1.01}, bytes(8), "reward: expected a finite number in -1 to 1, given 1.01"),
    "a vast reward": ({"reward": 10**3000}, bytes(8), "reward: expected a finite number in -1 to 1, given 1000"),
    "a reward in words": ({"reward": "1"}, bytes(8), "reward: expected a finite number in -1 to 1, given '1'"),
    "a true reward": ({"reward": True}, bytes(8), "given True"),
    "no reward": ({"reward": None}, bytes(8), "given None"),
    "an end in words": ({"terminated": "no"}, bytes(8), "expected true or false, given ('no', False)"),
}
MESSAGES = GARBAGE | {
    name: (simulator.pack({**PLAIN, **header}, payload), message) for name, (header, payload, message) in WRONG.items()
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_cannot_be_is_a_fault_that_names_the_simulator_and_is_told_to_it(name: str, make: Any) -> None:
    port, (sent, message) = free_port(), MESSAGES[name]
    environment = make(port, 2, reward_range="-1,1")
    peers = begun(environment, port)
    stepping, results = started(environment.step, np.zeros(2, np.int32))
    for peer in peers:
        assert heard(peer) == ({"kind": "action"}, bytes(4))
    act(peers[0])
    peers[1].sendall(sent)
    header, _ = heard(peers[1])
    assert header["kind"] == "refused" and message in header["reason"]
    stepping.join(5)
    assert isinstance(results[0], base.EnvironmentFault)
    assert str(results[0]).startswith("external:game: training simulator 1 (pid 71) sent what cannot be: ")
    assert message in str(results[0])
    with pytest.raises(base.EnvironmentFault, match="training simulator 1"):
        environment.step(np.zeros(2, np.int32))
    environment.close()
    header, _ = heard(peers[0])
    assert header["kind"] == "end" and "training simulator 1 (pid 71)" in header["reason"]
    with pytest.raises(EOFError):
        heard(peers[0])


def test_garbage_of_a_stranger_is_refused_and_training_goes_on(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobby, "_HELLO_S", 0.3)
    port = free_port()
    environment = make(port)
    started(simulator.serve, simulators.episode, port, wait_s=5)
    environment.reset()
    strangers = {
        b"GET / HTTP/1.1\r\n\r\n": "header: expected 1 to 4096 bytes",
        simulator.pack({"kind": "hello", "protocol": 2}): "expected hello in protocol 1, given ('hello', 2)",
        simulator.pack({"kind": "begin"}): "expected hello in protocol 1, given ('begin', None)",
        simulator.pack({"kind": "hello", "protocol": 1}, bytes(8)): "payload: expected 0 or 0 bytes, given 8",
        simulator.pack({"kind": "hello", "protocol": 1, "purpose": "test"}): "purpose: expected training, evaluation",
        simulator.pack({"kind": "hello", "protocol": 1, "slot": 1}): "slot: expected a number from 0 beside a purpose",
        simulator.pack(
            {"kind": "hello", "protocol": 1, "slot": True, "purpose": "training"}
        ): "slot: expected a number",
        simulator.pack({"kind": "hello", "protocol": 1}) + b"x": "expected no message between hello and",
        b"\x10": "hello: expected within 0.3 s",
    }
    for sent, message in strangers.items():
        with socket.create_connection(("127.0.0.1", port), 5) as stranger:
            stranger.sendall(sent)
            header, _ = heard(stranger)
            assert header["kind"] == "refused" and message in header["reason"], sent
        environment.step(np.zeros(1, np.int32))


def test_a_second_client_for_a_taken_slot_is_refused_in_words(make: Any) -> None:
    port = free_port()
    environment = make(port, 2)
    begun(environment, port)
    with pytest.raises(simulator.Refused, match="slot: training 1 is taken by another simulator"):
        simulator.connect(port, purpose="training", slot=1)


def test_of_two_that_wait_for_one_slot_the_second_is_refused(make: Any) -> None:
    port = free_port()
    environment = make(port)
    clients = [started(simulator.connect, port, purpose="evaluation", slot=4) for _ in range(2)]
    deadline_s = time.monotonic() + 5
    while not any(results for _, results in clients) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    (refused,) = (results[0] for _, results in clients if results)
    assert isinstance(refused, simulator.Refused) and "evaluation 4 is taken" in str(refused)
    environment.close()
    for thread, results in clients:
        thread.join(5)
        assert results[0] is refused or isinstance(results[0], simulator.Ended)


def test_whoever_wants_a_slot_of_its_own_gets_it_before_those_that_take_any(make: Any) -> None:
    port = free_port()
    environment = make(port, 2)
    clients = [started(simulator.connect, port), started(simulator.connect, port, purpose="training", slot=0)]
    time.sleep(0.3)
    started(environment.reset)
    for thread, _ in clients:
        thread.join(5)
    assert [results[0].slot for _, results in clients] == [1, 0]


def test_a_disconnect_in_mid_episode_is_a_fault_within_a_second(make: Any) -> None:
    port = free_port()
    environment = make(port, 2, 60.0)
    peers = begun(environment, port)
    threading.Timer(0.2, peers[1].close).start()
    act(peers[0])
    start = time.monotonic()
    with pytest.raises(
        base.EnvironmentFault, match=r"external:game: training simulator 1 .pid 71. closed the connection"
    ):
        environment.step(np.zeros(2, np.int32))
    assert time.monotonic() - start < conftest.SOON_S


@pytest.mark.parametrize("sent", [b"", simulator.pack(PLAIN, bytes(8))[:-1]], ids=["silence", "half a message"])
def test_silence_is_a_fault_after_the_timeout(sent: bytes, make: Any) -> None:
    port = free_port()
    environment = make(port, 2, 0.5)
    peers = begun(environment, port)
    act(peers[0])
    peers[1].sendall(sent)
    start = time.monotonic()
    with pytest.raises(
        base.EnvironmentFault, match="external:game: training simulator 1 .pid 71. gave nothing for 0.5 s"
    ):
        environment.step(np.zeros(2, np.int32))
    assert 0.4 < time.monotonic() - start < conftest.SOON_S
    assert heard(peers[1])[0]["kind"] == "action"
    assert heard(peers[1])[0] == {"kind": "refused", "reason": "this simulator gave nothing for 0.5 s"}


def test_a_trainer_that_takes_its_time_is_no_fault_of_the_simulator(make: Any) -> None:
    port = free_port()
    environment = make(port, 1, 0.3)
    started(simulator.serve, simulators.episode, port, wait_s=5)
    environment.reset()
    for _ in range(3):
        environment.send(np.zeros(1, np.int32), np.zeros(1, np.int32))
        time.sleep(0.5)
        environment.recv()


def test_too_few_simulators_are_a_fault_that_says_how_many_to_start(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "CONNECT_S", 2.0)
    monkeypatch.setattr(lobby, "_NOTICE_S", 0.1)
    monkeypatch.setattr(lobby, "_POLL_S", 0.1)
    port = free_port()
    environment = make(port, 2, 0.1)
    _, results = started(simulator.connect, port, wait_s=5)
    expected = rf"external:game: 1 of 2 simulators for training connected to 127.0.0.1:{port} within 2 s; start as many"
    with (
        pytest.warns(RuntimeWarning, match=f"[01] of 2 simulators for training have connected to 127.0.0.1:{port}"),
        pytest.raises(base.EnvironmentFault, match=expected),
    ):
        environment.reset()
    assert isinstance(results[0], simulator.Session)
    environment.close()
    with pytest.raises(simulator.Ended, match="1 of 2 simulators"):
        results[0].begin([0, 0])


def test_close_while_a_client_waits_ends_both_sides_within_seconds(make: Any) -> None:
    port = free_port()
    environment = make(port, 2, 60.0)
    reached = threading.Event()

    def play(session: simulator.Session) -> None:
        session.begin([0, 0])
        if session.slot == 1:
            reached.set()
            time.sleep(1.5)
        session.act([0, 0], 0.0)

    programs = [started(simulator.serve, play, port, wait_s=5) for _ in range(3)]
    environment.reset()
    stepping, results = started(environment.step, np.zeros(2, np.int32))
    assert reached.wait(5)
    start = time.monotonic()
    # One waits for an action, one has not answered, one waits in the lobby, and a thread of the trainer for the answer.
    environment.close()
    environment.close()
    stepping.join(5)
    assert time.monotonic() - start < conftest.SOON_S
    assert isinstance(results[0], base.EnvironmentFault) and "were closed" in str(results[0])
    for thread, ended in programs:
        thread.join(10)
        assert ended == [None]
    with pytest.raises(base.EnvironmentFault, match="closed"):
        environment.reset()


def test_close_while_nobody_has_come_ends_the_wait(make: Any) -> None:
    environment = make(free_port(), 1, 60.0)
    waiting, results = started(environment.reset)
    time.sleep(0.2)
    environment.close()
    waiting.join(3)
    assert isinstance(results[0], base.EnvironmentFault) and "were closed" in str(results[0])


def test_a_trainer_that_is_killed_ends_its_simulators() -> None:
    port = free_port()
    code = (
        "import sys, time, numpy as np; from jaxrl_dist.envs import base\n"
        f"task = base.make('external:game', {{'listen': '{port}', 'observation': 'float32[2]', 'actions': '3'}})\n"
        "task.make(np.zeros(1, np.uint32), 1, 60.0).reset(); print('begun', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        thread, results = started(simulator.serve, simulators.episode, port, wait_s=30)
        assert trainer.stdout.readline() == "begun\n"
        trainer.kill()
        thread.join(10)
    assert results == [None]


def test_it_listens_on_the_loopback_interface_only_while_environments_live(make: Any) -> None:
    port = free_port()

    def listening() -> list[str]:
        lines = [pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        rows = [line.split() for line in lines[0] + lines[1]]
        return [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]

    made = task("game", listen=str(port))
    assert listening() == []
    environments = [made.make(np.zeros(1, np.uint32), 1, 10.0) for _ in range(2)]
    assert listening() == [f"0100007F:{port:04X}"]
    with pytest.raises(base.EnvironmentFault, match=f"listen={port}: cannot listen on .*: Address already in use"):
        make(port)
    environments[0].close()
    assert listening()
    environments[1].close()
    assert listening() == []
    again = made.make(np.zeros(1, np.uint32), 1, 10.0)
    assert listening()
    again.close()


def test_nothing_listens_for_functions() -> None:
    before = {thread.name for thread in threading.enumerate()}
    with contextlib.closing(task("simulators:episode").make(np.zeros(2, np.uint32), 2, 10.0)) as environment:
        environment.reset()
        assert "lobby" not in {thread.name for thread in threading.enumerate()} - before


def test_what_a_function_raises_is_the_cause_of_the_fault() -> None:
    with contextlib.closing(task("simulators:broken").make(np.zeros(2, np.uint32), 2, 10.0)) as environment:
        environment.reset()
        environment.step(np.zeros(2, np.int32))
        environment.step(np.zeros(2, np.int32))
        with pytest.raises(
            base.EnvironmentFault, match="training simulator 1 stopped with ZeroDivisionError: the wo"
        ) as e:
            environment.step(np.zeros(2, np.int32))
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_a_function_that_hangs_is_a_fault_and_is_left_behind() -> None:
    start = time.monotonic()
    with contextlib.closing(task("simulators:silent").make(np.zeros(1, np.uint32), 1, 0.3)) as environment:
        environment.reset()
        with pytest.raises(base.EnvironmentFault, match="training simulator 0 gave nothing for 0.3 s"):
            environment.step(np.zeros(1, np.int32))
    assert time.monotonic() - start < conftest.SOON_S


def test_an_episode_beyond_the_time_limit_is_a_fault() -> None:
    made = task("simulators:episode", time_limit="5")
    assert made.spec.time_limit == 5
    with contextlib.closing(made.make(np.zeros(1, np.uint32), 1, 10.0)) as environment:
        environment.reset()
        for _ in range(4):
            environment.step(np.zeros(1, np.int32))
        with pytest.raises(base.EnvironmentFault, match="training simulator 0 went on after step 5 of an episode"):
            environment.step(np.zeros(1, np.int32))


@pytest.fixture
def session() -> Iterator[simulator.Session]:
    """A session whose trainer has said welcome and does not answer."""
    ours, theirs = socket.socketpair()
    terms = {"seed": 3, "observation": "float32[2]", "action": "int32[]"}
    ours.sendall(simulator.pack({"kind": "welcome", "purpose": "training", "slot": 0, **terms}))
    ours.sendall(simulator.pack({"kind": "action"}, bytes(4)) * 2)
    with simulator.Session(theirs) as made:
        yield made
    ours.close()


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ([1, 2, 3], r"observation: expected float32\[2\], given int64\[3\]$"),
        (np.zeros((1, 2)), r"expected float32\[2\], given float64\[1,2\]$"),
        ([[1, 2], [3]], r"expected float32\[2\], given object\[\]$"),
        (["1", "2"], r"expected float32\[2\], given <U1\[2\]$"),
        (None, r"given object\[\]$"),
        ([True, False], r"given bool\[2\]$"),
        ([0, float("nan")], "expected finite numbers of float32, given nan$"),
        ([1e300, 0], r"expected finite numbers of float32, given 1e\+300$"),
    ],
)
def test_the_session_checks_observations_at_the_door(session: Any, observation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        session.begin(observation)
    assert session.begin([0, 0]) == 0
    with pytest.raises(ValueError, match=message):
        session.act(observation, 0.0)
    assert session.act(np.zeros(2), np.float64(1.5)) == 0


@pytest.mark.parametrize("reward", ["1", None, [1.0], float("nan"), float("inf"), 1e39, True])
def test_the_session_checks_rewards_at_the_door(session: Any, reward: Any) -> None:
    session.begin([0, 0])
    with pytest.raises(ValueError, match="reward: expected f"):
        session.act([0, 0], reward)


def test_integers_that_do_not_fit_their_type_are_refused() -> None:
    kind = simulator.parse_type("uint8[2]")
    assert simulator.checked("x", kind, [0, 255]).dtype == np.uint8
    for wrong in (256, -1):
        with pytest.raises(ValueError, match=f"x: expected finite numbers of uint8, given {wrong}"):
            simulator.checked("x", kind, [0, wrong])
    with pytest.raises(ValueError, match=r"x: expected uint8\[2\], given float64\[2\]"):
        simulator.checked("x", kind, [0.5, 1.0])


def test_the_session_keeps_the_order_of_calls(session: Any) -> None:
    with pytest.raises(RuntimeError, match="act outside an episode"):
        session.act([0, 0], 0.0)
    session.begin([0, 0])
    with pytest.raises(RuntimeError, match="begin within an episode"):
        session.begin([0, 0])
    assert session.act([0, 0], 0.0, truncated=True) is None
    with pytest.raises(RuntimeError, match="act outside an episode"):
        session.act([0, 0], 0.0)


def test_a_simulator_that_nobody_waits_for_says_so() -> None:
    port, start = free_port(), time.monotonic()
    with pytest.raises(ConnectionRefusedError, match=f"no trainer listens on 127.0.0.1:{port}"):
        simulator.serve(simulators.episode, port, wait_s=0.3)
    assert time.monotonic() - start < conftest.SOON_S


def test_a_simulator_needs_numpy_alone(tmp_path: pathlib.Path) -> None:
    source = config.PACKAGE / "envs" / "simulator.py"
    (tmp_path / "simulator.py").write_text(source.read_text())
    code = "import sys, simulator; assert not {'jax', 'jaxrl_dist'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=60)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("game", {"actions": "2", "listen": "5555"}, "needs --env.params.observation, such as float32"),
        ("game", {"observation": "float32[4]", "listen": "5555"}, "needs --env.params.actions, such as 2 or"),
        ("game", TWO, r"=external:game: expected external:NAME with --env.params.listen=PORT, or external:module:fu"),
        ("simulators:episode", {**TWO, "listen": "5555"}, "listen=5555: expected external:NAME with"),
        ("game", {**TWO, "listen": "80"}, "listen=80: expected a port from 1024 to 65535"),
        ("game", {**TWO, "listen": "port"}, "listen=port: not a valid int"),
        ("game", {**TWO, "lisen": "5555"}, "lisen: external:game takes .*; did you mean listen"),
        ("game", {**TWO, "observation": "float64[4]"}, r"=float64\[4\]: expected a type .*; did you mean float32\?"),
        ("game", {**TWO, "observation": "4"}, "observation=4: expected a type and a shape such as float32"),
        ("game", {**TWO, "observation": "float32[0]"}, "expected a type and a shape"),
        ("game", {**TWO, "observation": "float32[999999999,9]"}, "bytes; expected at most 67,108,864"),
        ("game", {**TWO, "actions": "0"}, "actions=0: expected at least 1"),
        ("game", {**TWO, "actions": "-3"}, "actions=-3: expected at least 1"),
        (
            "game",
            {**TWO, "actions": "int32[3]"},
            r"actions=int32\[3\]: expected a number of actions such as 2, or real",
        ),
        ("game", {**TWO, "actions": "float32[999]"}, "at most 256"),
        ("game", {**TWO, "low": "0"}, "low: bounds are for real actions"),
        ("game", {**TWO, "actions": "float32[3]", "low": "1,2"}, r"low=1,2: expected 1 or 3 number\(s\) separated"),
        ("game", {**TWO, "actions": "float32[3]", "low": "1", "high": "0"}, "expected low < high everywhere"),
        ("game", {**TWO, "actions": "float32[3]", "low": "nan"}, "low=nan: expected 1 or 3"),
        ("game", {**TWO, "reward_range": "1"}, r"reward_range=1: expected 2 number\(s\) separated by commas"),
        ("game", {**TWO, "reward_range": "1,0"}, "reward_range=1,0: expected the lowest first"),
        ("game", {**TWO, "time_limit": "-1"}, r"time_limit=-1: expected at least 0 \(none\)"),
        ("nowhere_at_all:play", TWO, "importing nowhere_at_all: ModuleNotFoundError"),
        ("simulators:episod", TWO, r"simulators has no function episod; did you mean episode\?"),
    ],
)
def test_bad_input_is_refused_in_one_line(name: str, params: dict[str, str], message: str) -> None:
    with pytest.raises(config.UsageError, match=message) as error:
        base.make(f"external:{name}", params)
    assert "\n" not in str(error.value) and str(error.value).startswith("--env")


def test_a_task_says_what_its_environments_are() -> None:
    made = task("game", listen="5555", time_limit="500", reward_range="0,1")
    observation = jax.ShapeDtypeStruct((2,), np.float32)
    assert made.spec == types.EnvironmentSpec(
        "external:game", observation, types.DiscreteSpace(3), "classic", (0.0, 1.0), 500
    )
    assert made.protocol == "simulators connect to 127.0.0.1:5555"
    assert task("game", listen="5555", observation="uint8[84,84,3]").spec.family == "atari"
    hidden = task("simulators:telling", observation="int32[4]", observe="3")
    assert hidden.make_evaluation is not None
    with contextlib.closing(hidden.make_evaluation(np.zeros(1, np.uint32), 1, 10.0)) as environment:
        assert environment.reset().observation.shape == (1, 1)
