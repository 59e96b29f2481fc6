"""Tests of simulators that fail: each fault names who failed, and how."""

import contextlib
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import conftest
import numpy as np
import pytest
from fakes import peers, simulators

from jaxrl_dist import errors, simulator


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    with peers.making(monkeypatch) as make_one:
        yield make_one


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
    name: (simulator.pack({**peers.PLAIN, **header}, payload), message)
    for name, (header, payload, message) in WRONG.items()
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_cannot_be_is_a_fault_that_names_the_simulator_and_is_told_to_it(name: str, make: Any) -> None:
    port, (sent, message) = peers.free_port(), MESSAGES[name]
    environment = make(port, 2, reward_range="-1,1")
    others = peers.begun(environment, port)
    stepping, results = peers.started(environment.step, np.zeros(2, np.int32))
    for peer in others:
        assert peers.heard(peer) == ({"kind": "action"}, bytes(4))
    peers.act(others[0])
    others[1].sendall(sent)
    header, _ = peers.heard(others[1])
    assert header["kind"] == "refused" and message in header["reason"]
    stepping.join(conftest.SOON_S)
    assert isinstance(results[0], errors.EnvironmentFault)
    assert str(results[0]).startswith("external:game: training simulator 1 (pid 71) sent an invalid message: ")
    assert message in str(results[0])
    with pytest.raises(errors.EnvironmentFault, match=r"simulator 1\b"):
        environment.step(np.zeros(2, np.int32))
    environment.close()
    header, _ = peers.heard(others[0])
    assert header["kind"] == "end" and "training simulator 1 (pid 71)" in header["reason"]
    with pytest.raises(EOFError):
        peers.heard(others[0])


def test_a_disconnect_in_mid_episode_is_a_fault_within_a_second(make: Any) -> None:
    port = peers.free_port()
    environment = make(port, 2, 60.0)
    others = peers.begun(environment, port)
    threading.Timer(0.2, others[1].close).start()
    peers.act(others[0])
    start = time.monotonic()
    with pytest.raises(errors.EnvironmentFault, match=r"external:game: .*simulator 1 .pid 71.*closed"):
        environment.step(np.zeros(2, np.int32))
    assert time.monotonic() - start < conftest.SOON_S


@pytest.mark.parametrize("sent", [b"", simulator.pack(peers.PLAIN, bytes(8))[:-1]], ids=["silence", "half a message"])
def test_silence_is_a_fault_after_the_timeout(sent: bytes, make: Any) -> None:
    port = peers.free_port()
    environment = make(port, 2, 0.5)
    others = peers.begun(environment, port)
    peers.act(others[0])
    others[1].sendall(sent)
    start = time.monotonic()
    with pytest.raises(errors.EnvironmentFault, match=r"external:game: .*simulator 1 .pid 71.*\b0\.5 s\b"):
        environment.step(np.zeros(2, np.int32))
    assert 0.4 < time.monotonic() - start < conftest.SOON_S
    assert peers.heard(others[1])[0]["kind"] == "action"
    assert peers.heard(others[1])[0] == {"kind": "refused", "reason": "this simulator gave nothing for 0.5 s"}


def test_a_trainer_that_takes_its_time_is_no_fault_of_the_simulator(make: Any) -> None:
    port = peers.free_port()
    environment = make(port, 1, 0.3)
    peers.started(simulator.serve, simulators.episode, port, wait_s=5)
    environment.reset()
    for _ in range(3):
        environment.send(np.zeros(1, np.int32), np.zeros(1, np.int32))
        time.sleep(0.5)
        environment.recv()


def test_what_a_function_raises_is_the_cause_of_the_fault() -> None:
    with contextlib.closing(peers.task("fakes.simulators:broken").make(np.zeros(2, np.uint32), 2, 10.0)) as environment:
        environment.reset()
        environment.step(np.zeros(2, np.int32))
        environment.step(np.zeros(2, np.int32))
        with pytest.raises(errors.EnvironmentFault, match="simulator 1 .*ZeroDivisionError: the wo") as e:
            environment.step(np.zeros(2, np.int32))
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_what_a_simulator_says_is_one_line_of_plain_characters(make: Any) -> None:
    port = peers.free_port()
    environment = make(port, 1)
    waiting, results = peers.started(environment.reset)
    with contextlib.closing(peers.connected(port, pid=10**3000)) as peer:
        assert peers.heard(peer)[0]["kind"] == "welcome"
        peer.sendall(simulator.pack({"kind": "error", "reason": "\x1b[2Jfire\ntrain.py: all is well \u202e\ud800"}))
        waiting.join(conftest.SOON_S)
    text = str(results[0])
    assert isinstance(results[0], errors.EnvironmentFault) and text.isprintable() and len(text) < 200
    assert "\\x1b[2Jfire\\ntrain.py: all is well \\u202e\\ud800" in text


def test_a_function_that_hangs_is_a_fault_and_is_left_behind() -> None:
    start = time.monotonic()
    with contextlib.closing(peers.task("fakes.simulators:silent").make(np.zeros(1, np.uint32), 1, 0.3)) as environment:
        environment.reset()
        with pytest.raises(errors.EnvironmentFault, match=r"simulator 0 .*\b0\.3 s\b"):
            environment.step(np.zeros(1, np.int32))
    assert time.monotonic() - start < conftest.SOON_S


def test_an_episode_beyond_the_time_limit_is_a_fault() -> None:
    made = peers.task("fakes.simulators:episode", time_limit="5")
    assert made.spec.time_limit == 5
    with contextlib.closing(made.make(np.zeros(1, np.uint32), 1, 10.0)) as environment:
        environment.reset()
        for _ in range(4):
            environment.step(np.zeros(1, np.int32))
        with pytest.raises(errors.EnvironmentFault, match=r"simulator 0 .*step 5\b"):
            environment.step(np.zeros(1, np.int32))
