"""Tests of who may join and when both sides end: strangers, slots that are taken, trainers that go."""

import contextlib
import errno
import os
import pathlib
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import conftest
import numpy as np
import pytest
from fakes import peers, simulators

from jaxrl_dist import errors, simulator
from jaxrl_dist.envs.simulators import server, waiting_room


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    with peers.making(monkeypatch) as make_one:
        yield make_one


@pytest.fixture
def hellos(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Returns what waits until so many more simulators are in the waiting room."""
    said, read = threading.Semaphore(0), waiting_room.Listener._read_hello

    def heard(listener: waiting_room.Listener, header: Any) -> Any:
        said.release()
        return read(listener, header)

    def wait_for(count: int) -> None:
        assert all(said.acquire(timeout=conftest.SOON_S) for _ in range(count))

    monkeypatch.setattr(waiting_room.Listener, "_read_hello", heard)
    return wait_for


def test_garbage_of_a_stranger_is_refused_and_training_goes_on(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "_HELLO_S", 0.3)
    port = peers.free_port()
    environment = make(port)
    peers.started(simulator.serve, simulators.episode, port, wait_s=5)
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
            header, _ = peers.heard(stranger)
            assert header["kind"] == "refused" and message in header["reason"], sent
        environment.step(np.zeros(1, np.int32))


def test_a_second_client_for_a_taken_slot_is_refused_in_words(make: Any) -> None:
    port = peers.free_port()
    environment = make(port, 2)
    peers.begun(environment, port)
    with pytest.raises(simulator.Refused, match="^slot: training 1 "):
        simulator.connect(port, purpose="training", slot=1)


def test_of_two_that_wait_for_one_slot_the_second_is_refused(make: Any) -> None:
    port = peers.free_port()
    environment = make(port)
    clients = [peers.started(simulator.connect, port, purpose="evaluation", slot=4) for _ in range(2)]
    deadline_s = time.monotonic() + conftest.SOON_S
    while not any(results for _, results in clients) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    (refused,) = (results[0] for _, results in clients if results)
    assert isinstance(refused, simulator.Refused) and "evaluation 4 is taken" in str(refused)
    environment.close()
    for thread, results in clients:
        thread.join(conftest.SOON_S)
        assert results[0] is refused or isinstance(results[0], simulator.Ended)


def test_whoever_wants_a_slot_of_its_own_gets_it_before_those_that_take_any(
    make: Any, hellos: Callable[[int], None]
) -> None:
    port = peers.free_port()
    environment = make(port, 2)
    clients = [
        peers.started(simulator.connect, port),
        peers.started(simulator.connect, port, purpose="training", slot=0),
    ]
    hellos(2)
    peers.started(environment.reset)
    for thread, _ in clients:
        thread.join(conftest.SOON_S)
    assert [results[0].slot for _, results in clients] == [1, 0]


def test_too_few_simulators_are_a_fault_that_says_how_many_to_start(
    make: Any, hellos: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECT_S", 2.0)
    monkeypatch.setattr(waiting_room, "_NOTICE_S", 0.1)
    monkeypatch.setattr(waiting_room, "_POLL_S", 0.1)
    port = peers.free_port()
    environment = make(port, 2, 0.1)
    _, results = peers.started(simulator.connect, port, wait_s=5)
    hellos(1)
    expected = rf"external:game: 1 of 2 .*127\.0\.0\.1:{port} .*\b2 s\b"
    with (
        pytest.warns(RuntimeWarning, match=rf"[01] of 2 .*127\.0\.0\.1:{port}"),
        pytest.raises(errors.EnvironmentFault, match=expected),
    ):
        environment.reset()
    assert isinstance(results[0], simulator.Session)
    environment.close()
    with pytest.raises(simulator.Ended, match=r"\b1 of 2\b"):
        results[0].begin([0, 0])


def test_close_while_a_client_waits_ends_both_sides_within_seconds(make: Any, hellos: Callable[[int], None]) -> None:
    port = peers.free_port()
    environment = make(port, 2, 60.0)
    reached = threading.Event()

    def play(session: simulator.Session) -> None:
        session.begin([0, 0])
        if session.slot == 1:
            reached.set()
            time.sleep(1.5)
        session.act([0, 0], 0.0)

    programs = [peers.started(simulator.serve, play, port, wait_s=5) for _ in range(3)]
    hellos(3)
    environment.reset()
    stepping, results = peers.started(environment.step, np.zeros(2, np.int32))
    assert reached.wait(conftest.SOON_S)
    start = time.monotonic()
    # One waits for an action, one has not answered, one is in the waiting room, one thread of the trainer waits too.
    environment.close()
    environment.close()
    stepping.join(conftest.SOON_S)
    assert time.monotonic() - start < conftest.SOON_S
    assert isinstance(results[0], errors.EnvironmentFault) and "were closed" in str(results[0])
    for thread, ended in programs:
        thread.join(conftest.SOON_S)
        assert ended == [None]
    with pytest.raises(errors.EnvironmentFault, match="closed"):
        environment.reset()


def test_close_while_nobody_has_come_ends_the_wait(make: Any) -> None:
    environment = make(peers.free_port(), 1, 60.0)
    waiting, results = peers.started(environment.reset)
    time.sleep(0.2)
    environment.close()
    waiting.join(conftest.SOON_S)
    assert isinstance(results[0], errors.EnvironmentFault) and "were closed" in str(results[0])


def test_a_trainer_that_is_killed_ends_its_simulators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_AGAIN_S", 0.5)
    port = peers.free_port()
    code = (
        "import sys, time, numpy as np; from jaxrl_dist import envs as base\n"
        f"task = base.make('external:game', {{'listen': '{port}', 'observation': 'float32[2]', 'actions': '3'}})\n"
        "task.make(np.zeros(1, np.uint32), 1, 60.0).reset(); print('begun', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        thread, results = peers.started(simulator.serve, simulators.episode, port, wait_s=120)
        assert trainer.stdout.readline() == "begun\n"
        trainer.kill()
        thread.join(conftest.SOON_S)
    assert results == [None]


def test_it_listens_on_the_loopback_interface_only_while_environments_live(make: Any) -> None:
    port = peers.free_port()

    def listening() -> list[str]:
        lines = [pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        rows = [line.split() for line in lines[0] + lines[1]]
        return [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]

    made = peers.task("game", listen=str(port))
    assert listening() == []
    environments = [made.make(np.zeros(1, np.uint32), 1, 10.0) for _ in range(2)]
    assert listening() == [f"0100007F:{port:04X}"]
    with pytest.raises(errors.EnvironmentFault, match=f"listen={port}: .*{os.strerror(errno.EADDRINUSE)}"):
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
    with contextlib.closing(
        peers.task("fakes.simulators:episode").make(np.zeros(2, np.uint32), 2, 10.0)
    ) as environment:
        environment.reset()
        assert "waiting room" not in {thread.name for thread in threading.enumerate()} - before


def until(holds: Callable[[], bool]) -> None:
    """Waits until something holds."""
    end_s = time.monotonic() + conftest.SOON_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_room_that_is_full_keeps_whom_it_has_and_later_lets_one_in_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_room, "_MOST_WAITING", 4)
    monkeypatch.setattr(waiting_room, "_GIVES_WAY_S", conftest.SOON_S)
    port = peers.free_port()
    listener = waiting_room.Listener(port)
    listener.open()
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        crowd = [stack.enter_context(peers.connected(port, purpose="training")) for _ in range(8)]

        def waiting() -> list[bool]:
            return [len(listener._candidates) == 4, all(one.is_heard for one in listener._candidates)]

        until(lambda: all(waiting()))
        time.sleep(3 * waiting_room._POLL_S)
        assert all(waiting()) and not select.select(crowd, [], [], 0)[0]
        # From the first four on, whoever waits longest is told to come again.
        monkeypatch.setattr(waiting_room, "_GIVES_WAY_S", 0.0)
        until(lambda: len(select.select(crowd[:4], [], [], 0)[0]) == 4)
        assert all(waiting()) and not select.select(crowd[4:], [], [], 0)[0]


# A trainer that may open few files plays one environment, and then an evaluation.
CROWDED = """
import contextlib, os, resource, sys, threading
import numpy as np
from jaxrl_dist import envs as base
from jaxrl_dist.envs.simulators import waiting_room
most, port = int(sys.argv[1]), sys.argv[2]
waiting_room._GIVES_WAY_S = 0.5
task = base.make("external:game", {"listen": port, "observation": "float32[2]", "actions": "3"})
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
training = task.make(np.zeros(1, np.uint32), 1, 60.0)
training.reset()
print("begun", flush=True)
sys.stdin.readline()
for _ in range(5):
    training.step(np.zeros(1, np.int32))
evaluation, held = task.make_evaluation(np.zeros(1, np.uint32), 1, 60.0), []
while sys.argv[3] == "files" and len(held) < most:
    with contextlib.suppress(OSError):
        held.append(os.dup(0))
        continue
    threading.Timer(1.0, lambda: [os.close(one) for one in held]).start()
    break
print("waits", flush=True)
evaluation.reset()
print("evaluated", flush=True)
"""


@pytest.mark.parametrize("what", ["crowd", "files"])
def test_neither_a_crowd_nor_too_many_open_files_keep_a_simulator_out(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(simulator, "_AGAIN_S", 0.5)
    port, most = peers.free_port(), 100
    command = [sys.executable, "-c", CROWDED, str(most), str(port), what]
    with contextlib.ExitStack() as stack:
        trainer = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        assert trainer.stdout is not None and trainer.stdin is not None and trainer.stderr is not None
        peers.started(simulator.serve, simulators.episode, port, purpose="training", wait_s=conftest.SOON_S)
        assert trainer.stdout.readline() == "begun\n"
        for _ in range(2 * most if what == "crowd" else 0):
            stack.enter_context(peers.connected(port, purpose="training"))
        assert len(os.listdir(f"/proc/{trainer.pid}/fd")) < most
        trainer.stdin.write("\n")
        trainer.stdin.flush()
        assert trainer.stdout.readline() == "waits\n"
        time.sleep(0.5)
        peers.started(simulator.serve, simulators.episode, port, purpose="evaluation", wait_s=5)
        assert trainer.stdout.readline() == "evaluated\n", trainer.stderr.read()
        assert trainer.wait(conftest.SOON_S) == 0
