"""Joins a process to the others of a run, as a command line names them, or as a cluster does."""

import contextlib
import dataclasses
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from jaxrl_dist import errors
from jaxrl_dist.processes import agreement, service, watch

AUTO = "auto"
# Longest wait for the other processes when a run begins: JAX's own default.
START_S = 300.0
# Longest wait of process 0 for the others to leave the service: threads that hang are given up after 5 s.
_LEAVE_S = 10.0
# Variable that JAX itself reads for the address of process 0.
_ADDRESS = "JAX_COORDINATOR_ADDRESS"
# Processes on each machine: "8" in Open MPI, which SLURM may have started; "8(x4)" in SLURM, of four machines.
_PER_MACHINE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE")


@dataclasses.dataclass(frozen=True)
class Group:
    """The processes of a run, as a command line names them.

    Attributes:
        processes: number of processes, or `auto` for what the cluster says.
        process_index: index of this one, -1 if the cluster says it.
        coordinator: HOST:PORT at which process 0 listens for the others, empty if the cluster says it.
        heartbeat_s: seconds without a sign of life after which a process counts as dead.
    """

    processes: str = "1"
    process_index: int = -1
    coordinator: str = ""
    heartbeat_s: float = watch.HEARTBEAT_S

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            UsageError: one is not valid, or another is missing.
        """
        if self.processes != AUTO and not (self.processes.isdecimal() and int(self.processes) >= 1):
            raise errors.UsageError(
                errors.given("processes", self.processes), ": expected a whole number >= 1, or auto"
            )
        count = 0 if self.processes == AUTO else int(self.processes)
        if count and self.process_index >= count:
            raise errors.UsageError(
                errors.given("process_index", self.process_index),
                ": of ",
                errors.given("processes", count),
                f", valid: 0 to {count - 1}",
            )
        _check_address(self.coordinator, errors.given("coordinator", self.coordinator))

    @property
    def is_one(self) -> bool:
        """Says whether there is one process, which begins nothing."""
        return self.processes == "1"


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of this process among all.

    Attributes:
        address: HOST:PORT of the service.
        count: number of processes.
        index: of this one.
        local_devices: indices of the accelerators that it may see, None for all of its machine.
    """

    address: str
    count: int
    index: int
    local_devices: Sequence[int] | None


@contextlib.contextmanager
def begun(group: Group) -> Iterator[None]:
    """Joins this process to the others of a run, within the context, before JAX has a backend; one process does not.

    Raises:
        UsageError: nothing says how many processes there are or where they meet, or the address cannot be listened at.
    """
    if group.is_one:
        yield
        return
    place = _place(group)
    if place.count == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        if place.index == 0:
            stack.enter_context(service.started(place.address, place.count, group.heartbeat_s))
        _connect(place)
        stack.callback(_disconnect)
        yield


def _check_address(address: str, given: Any) -> None:
    """Checks an address, "" for none; an error begins with what gave it."""
    port = address.rpartition(":")[2]
    if address and not (":" in address[1:] and port.isdecimal() and 0 < int(port) < 2**16):
        raise errors.UsageError(given, ": expected HOST:PORT, such as 127.0.0.1:4321")


def _place(group: Group) -> Place:
    """Returns the place that the settings name, and, for what they leave open, JAX's detection of clusters."""
    from jax._src import clusters

    detect: Any = clusters.ClusterEnv.auto_detect_unset_distributed_params
    inherited = os.environ.get(_ADDRESS, "")
    _check_address(inherited, f"{_ADDRESS}={inherited}")
    wanted: list[Any] = [
        group.coordinator or inherited or None,
        None if group.processes == AUTO else int(group.processes),
        None if group.process_index < 0 else group.process_index,
        None,
    ]
    if None in wanted[:3]:
        wanted = list(detect(*wanted, None, round(START_S)))
        if _is_alone_on_its_machine():
            # JAX takes for granted that launchers which count processes start one for each accelerator.
            wanted[3] = None
    names = ("coordinator", "processes", "process_index")
    for name, value in zip(names, wanted, strict=False):
        if value is None:
            raise errors.UsageError(
                errors.given(name),
                " is missing, and no cluster of SLURM, Open MPI, Kubernetes, GKE or Cloud TPU is found that says it; "
                "valid, for each of two processes: ",
                errors.given("processes", 2),
                " ",
                errors.given("process_index", "0|1"),
                " ",
                errors.given("coordinator", "HOST:PORT"),
            )
    return Place(*wanted)


def _is_alone_on_its_machine() -> bool:
    """Says whether a launcher tells that it started one process on each machine."""
    said = next((os.environ[name] for name in _PER_MACHINE if name in os.environ), "")
    return re.fullmatch(r"1(\(x\d+\))?", said) is not None


def _connect(place: Place) -> None:
    """Connects to the service, and waits for all processes to do so.

    As `jax.distributed.initialize` does, but for the service, and for JAX's handler of SIGTERM, which would replace
    ours.
    """
    import jax
    from jaxlib import _jax

    _await_service(place)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if place.local_devices:
        visible = ",".join(map(str, place.local_devices))
        jax.config.update("jax_cuda_visible_devices", visible)
        jax.config.update("jax_rocm_visible_devices", visible)
    state = agreement.state()
    state.coordinator_address, state.num_processes, state.process_id = place.address, place.count, place.index
    state.client = _jax.get_distributed_runtime_client(
        place.address,
        place.index,
        init_timeout=round(START_S) + 60,
        use_compression=True,
        heartbeat_timeout=service.QUIET_S,
    )
    missing = f"not all {place.count} processes have begun within {START_S:.0f} s: start each of them"
    timer = threading.Timer(START_S, watch.leave_at_once, (missing,))
    timer.daemon = True
    timer.start()
    state.client.connect()
    timer.cancel()


def _await_service(place: Place) -> None:
    """Waits until something listens at the address of process 0."""
    host, _, port = place.address.rpartition(":")
    until_s = time.monotonic() + START_S
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0):
                return
        except OSError as error:
            if time.monotonic() > until_s:
                raise errors.UsageError(
                    errors.given("coordinator", place.address),
                    f": nothing answers within {START_S:.0f} s ({error.strerror or error}): start process 0 there",
                ) from error
        time.sleep(0.2)


def _disconnect() -> None:
    """Leaves the service; process 0 waits until the others have, which its end would abort."""
    state, until_s = agreement.state(), time.monotonic() + _LEAVE_S
    if not agreement.is_first():
        state.client.key_value_set(f"left/{agreement.index()}", "")
    else:
        while len(state.client.key_value_dir_get("left/")) < agreement.count() - 1 and time.monotonic() < until_s:
            time.sleep(0.02)
    state.client.shutdown()
    state.client, state.num_processes, state.process_id = None, 1, 0
