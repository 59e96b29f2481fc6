"""Tests of a simulator's own side, which needs NumPy alone: what it refuses at the door."""

import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import conftest
import numpy as np
import pytest
from fakes import peers, simulators

from jaxrl_dist import simulator


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
    ("observation", "named"),
    [
        ([1, 2, 3], r"observation: .*float32\[2\].* int64\[3\]$"),
        (np.zeros((1, 2)), r"float32\[2\].* float64\[1,2\]$"),
        ([[1, 2], [3]], r"float32\[2\].* object\[\]$"),
        (["1", "2"], r"float32\[2\].* <U1\[2\]$"),
        (None, r" object\[\]$"),
        ([True, False], r" bool\[2\]$"),
        ([0, float("nan")], "float32.* nan$"),
        ([1e300, 0], r"float32.* 1e\+300$"),
    ],
)
def test_the_session_checks_observations_at_the_door(session: Any, observation: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        session.begin(observation)
    assert session.begin([0, 0]) == 0
    with pytest.raises(ValueError, match=named):
        session.act(observation, 0.0)
    assert session.act(np.zeros(2), np.float64(1.5)) == 0


@pytest.mark.parametrize("reward", ["1", None, [1.0], float("nan"), float("inf"), 1e39, True])
def test_the_session_checks_rewards_at_the_door(session: Any, reward: Any) -> None:
    session.begin([0, 0])
    with pytest.raises(ValueError, match="^reward: "):
        session.act([0, 0], reward)


def test_integers_that_do_not_fit_their_type_are_refused() -> None:
    kind = simulator.parse_type("uint8[2]")
    assert simulator.checked("x", kind, [0, 255]).dtype == np.uint8
    for wrong in (256, -1):
        with pytest.raises(ValueError, match=f"^x: .*uint8.* {wrong}$"):
            simulator.checked("x", kind, [0, wrong])
    with pytest.raises(ValueError, match=r"^x: .*uint8\[2\].* float64\[2\]"):
        simulator.checked("x", kind, [0.5, 1.0])


def test_the_session_keeps_the_order_of_calls(session: Any) -> None:
    with pytest.raises(RuntimeError, match="^act "):
        session.act([0, 0], 0.0)
    session.begin([0, 0])
    with pytest.raises(RuntimeError, match="^begin "):
        session.begin([0, 0])
    assert session.act([0, 0], 0.0, truncated=True) is None
    with pytest.raises(RuntimeError, match="^act "):
        session.act([0, 0], 0.0)


def test_a_simulator_that_nobody_waits_for_says_so() -> None:
    port, start = peers.free_port(), time.monotonic()
    with pytest.raises(ConnectionRefusedError, match=rf"127\.0\.0\.1:{port}\b"):
        simulator.serve(simulators.episode, port, wait_s=0.3)
    assert time.monotonic() - start < conftest.SOON_S


def test_a_simulator_needs_numpy_alone(tmp_path: pathlib.Path) -> None:
    source = conftest.PACKAGE / "simulator.py"
    (tmp_path / "simulator.py").write_text(source.read_text())
    code = "import sys, simulator; assert not {'jax', 'jaxrl_dist'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=60)
