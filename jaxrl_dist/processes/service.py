"""The coordination service of a run: a small process beside process 0, which outlives it to tell the others.

Were it a part of process 0, JAX would abort the others as soon as that dies, without a word of ours.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from jaxrl_dist import errors

# Seconds for which the service outlives process 0, by the last word that it gets from there: at the end of a run all
# others are about to leave it, which takes a call, and after an end by the watch they end, too.
_STAYS_S = {"over": 1.5, "left": 5.0}
# JAX's own heartbeats count as missed after so long, which is never: a client that misses them aborts its process with
# a stack of C++, and one that was stopped and goes on did so before the watch could end it with a line.
QUIET_S = 30 * 24 * 3600
# Those that this process has started.
_services: list["subprocess.Popen[str]"] = []


@contextlib.contextmanager
def started(address: str, num_processes: int, heartbeat_s: float) -> Iterator[None]:
    """Has the service within the context; it ends some seconds after this process, or after the context.

    Args:
        address: HOST:PORT to listen at.
        num_processes: number of processes that will connect.
        heartbeat_s: seconds without a sign of life after which the watch of another counts one as dead.

    Raises:
        UsageError: the address cannot be listened at.
    """
    _services.append(_start(address, num_processes, heartbeat_s))
    try:
        yield
    finally:
        _end(_services.pop())


def environ() -> dict[str, str]:
    """Returns the environment of a child that imports this package, also where it is not installed."""
    roots = [str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))}


def _start(address: str, num_processes: int, heartbeat_s: float) -> "subprocess.Popen[str]":
    # Without the current folder, a file of which could shadow a module; the package may lie in no other known folder.
    command = [sys.executable, "-P", "-m", str(__package__), address, str(num_processes), str(heartbeat_s)]
    # In a session of its own, as a terminal sends Ctrl-C to all processes of one.
    service = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=environ(),
    )
    assert service.stdout is not None
    said = service.stdout.readline().strip()
    if said != "listens":
        raise errors.UsageError(
            errors.given("coordinator", address), f" cannot be listened at: {said or 'the service has died'}"
        )
    return service


def _end(service: "subprocess.Popen[str]") -> None:
    """Ends the service, and waits for that: its port is free for the next run then."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        service.communicate("over", timeout=5.0)


def say_left() -> None:
    """Tells the service that this process ends at once."""
    for service in _services:
        assert service.stdin is not None
        service.stdin.write("left")
        service.stdin.flush()


def serve(address: str, num_processes: int, heartbeat_s: float) -> None:
    """Runs the coordination service until standard input is closed, and for as long after as the others need.

    Args:
        address: HOST:PORT to listen at, and at no other address of the machine.
        num_processes: number of processes that will connect.
        heartbeat_s: seconds after which the watch of the others sees that process 0 is dead.
    """
    from jaxlib import _jax

    listens_at = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", address)
    host, _, port = listens_at.rpartition(":")
    try:
        # The service would share the port of an earlier run's, and half of the processes would meet there.
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        print(error.strerror or error, flush=True)
        return
    # "Recoverable": it does not end the others when one dies, and so they can say why they end.
    service = _jax.get_distributed_runtime_service(
        listens_at, num_processes, heartbeat_timeout=QUIET_S, shutdown_timeout=5, recoverable=True
    )
    print("listens", flush=True)
    # Without a word process 0 was killed, and the others take as long as that to see it.
    time.sleep(_STAYS_S.get(sys.stdin.read(), heartbeat_s + 10.0))
    service.shutdown()
