"""Tasks, ports, threads and peers with a protocol of their own, for tests of external simulators."""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import conftest
import numpy as np
import pytest

from jaxrl_dist import envs, simulator, types

TWO = {"observation": "float32[2]", "actions": "3"}
PLAIN = {"kind": "act", "observation": "float32[2]", "reward": 0.5, "terminated": False, "truncated": False}


def task(name: str, **params: str) -> envs.HostTask:
    made = envs.make(f"external:{name}", {**TWO, **params})
    assert isinstance(made, envs.HostTask)
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
    waiting.join(conftest.SOON_S)
    assert rows[0].step_type.tolist() == [types.FIRST] * 2
    return peers


def act(peer: socket.socket, payload: bytes = bytes(8), **header: Any) -> None:
    peer.sendall(simulator.pack({**PLAIN, **header}, payload))


@contextlib.contextmanager
def making(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Makes environments on a port, (port, B, timeout_s) -> environments, and closes them in the end.

    A simulator looks for its next trainer for half a second meanwhile.
    """
    monkeypatch.setattr(simulator, "_AGAIN_S", 0.5)
    with contextlib.ExitStack() as stack:

        def made(port: int, num_envs: int = 1, timeout_s: float = 10.0, *, batch_size: int = 0, **params: str) -> Any:
            seeds = np.arange(5, 5 + num_envs, dtype=np.uint32)
            environment = task("game", listen=str(port), **params).make(seeds, batch_size or num_envs, timeout_s)
            return stack.enter_context(contextlib.closing(environment))

        yield made
