"""The processes of one run: how they begin, what they agree on, and how each learns of the faults of others.

Every process runs the same program. Arrays cross between their devices inside compiled programs; the few words here
cross by JAX's coordination service, so that every wait for another process ends if that one fails or dies. With one
process everything here is an identity. Run as a program, this file is the service.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from jaxrl_dist import errors

AUTO = "auto"
# Longest wait for the other processes when a run begins: JAX's own default.
START_S = 300.0
HEARTBEAT_S = 30.0
# A fault is told to the others; a process that has not ended by itself so long after that is ended by its watch, since
# it may wait in a collective for ever. The rest of 5 s is the time between two looks, and that to end.
_GRACE_S = 3.5
_POLL_MS = 200
# Seconds for which the service outlives process 0, by the last word that it gets from there: at the end of a run all
# others are about to leave it, which takes a call, and after an end by the watch they end, too.
_STAYS_S = {"over": 1.5, "left": 5.0}
# Longest wait of process 0 for the others to leave the service: threads that hang are given up after 5 s.
_LEAVE_S = 10.0
# Libraries of collectives, which name themselves in their errors.
_COLLECTIVES = ("Gloo", "NCCL")
_LOOK_S = 0.5

# Numbers of the run in this process, and of its exchanges so far: the same in all processes.
_run = _made = 0
# The coordination service, in process 0.
_services: list["subprocess.Popen[str]"] = []

Said = TypeVar("Said")
Decided = TypeVar("Decided")


class ProcessFault(RuntimeError):
    """Another process of the run failed or died; the message names it and repeats its own."""


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
    heartbeat_s: float = HEARTBEAT_S

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
        port = self.coordinator.rpartition(":")[2]
        if self.coordinator and not (":" in self.coordinator[1:] and port.isdecimal() and 0 < int(port) < 2**16):
            raise errors.UsageError(
                errors.given("coordinator", self.coordinator), ": expected HOST:PORT, such as 127.0.0.1:4321"
            )

    @property
    def is_one(self) -> bool:
        """Says whether there is one process, which begins nothing."""
        return self.processes == "1"


class Stop(Protocol):
    """Hears that the run is to stop, see `training.stop.StopToken`."""

    exit_code: int
    leave: Callable[[int], None]

    def heed(self, signal_number: int) -> None: ...


def count() -> int:
    """Returns the number of processes of this run, without starting a backend of JAX."""
    return int(_state().num_processes) if "jax" in sys.modules else 1


def index() -> int:
    """Returns the index of this process."""
    return int(_state().process_id) if "jax" in sys.modules else 0


def is_first() -> bool:
    """Says whether this is process 0, which decides, writes and speaks."""
    return index() == 0


def by_process(devices: Iterable[Any]) -> list[list[Any]]:
    """Returns the devices of each process, in the order of processes.

    Args:
        devices: of all processes.
    """
    found: dict[int, list[Any]] = {}
    for device in devices:
        found.setdefault(device.process_index, []).append(device)
    return [found[one] for one in sorted(found)]


def exchange(said: Said, decide: Callable[[list[Said]], Decided]) -> Decided:
    """Gives all processes one decision, which process 0 makes of what each of them says.

    Every process must make the same exchanges in the same order. One process only calls the function.

    Args:
        said: by this process, of JSON's types.
        decide: (what each process says, by index) -> decision, of JSON's types; called in process 0 alone.

    Raises:
        ProcessFault: another process failed, in `decide` or on its way to this exchange; it raises its own exception.
    """
    if count() == 1:
        return decide([said])
    result: Decided = _exchange({"said": said}, decide)
    return result


def agreed(value: Decided) -> Decided:
    """Returns the value that process 0 has, of JSON's types."""
    return exchange(value, lambda said: said[0])


def any_of(value: bool) -> bool:
    """Says whether something is true in a process."""
    return exchange(bool(value), any)


def all_of(value: bool) -> bool:
    """Says whether something is true in every process."""
    return exchange(bool(value), all)


@contextlib.contextmanager
def alike() -> Iterator[None]:
    """Makes a failure within the context one of all processes; all must enter it. One process notices nothing.

    Raises:
        ProcessFault: it failed in another process.
    """
    try:
        yield
    except Exception as fault:
        # One that comes from the last exchange is known to all; the same one may be raised again later.
        if count() > 1 and getattr(fault, "shared_in", None) != (_run, _made):
            _exchange({"fault": _described(fault)}, lambda said: said, fault)
        raise
    if count() > 1:
        exchange(None, lambda said: None)


def _exchange(said: dict[str, Any], decide: Callable[[list[Any]], Any], own: BaseException | None = None) -> Any:
    """Makes one exchange; `own` is the fault that this process brings, which the caller raises."""
    global _made
    _made += 1
    client, place, fault = _state().client, f"{_run}/{_made}", own
    if not is_first():
        client.key_value_set(f"{place}/{index()}", json.dumps(said))
    else:
        others = [json.loads(_wait(f"{place}/{other}")) for other in range(1, count())]
        everyone = [said, *others]
        faults = [(number, one["fault"]) for number, one in enumerate(everyone) if "fault" in one]
        if faults:
            verdict: dict[str, Any] = {"from": faults[0][0], "fault": faults[0][1]}
        else:
            try:
                verdict = {"decided": decide([one["said"] for one in everyone])}
                json.dumps(verdict)
            except Exception as error:
                fault, verdict = error, {"from": 0, "fault": _described(error)}
        client.key_value_set(f"{place}/decided", json.dumps(verdict))
        _forget(place)
    verdict = json.loads(_wait(f"{place}/decided"))
    if fault is not None:
        fault.shared_in = _run, _made  # type: ignore[attr-defined]
        if own is None:
            raise fault
        return None
    if "fault" in verdict:
        raise _fault_of(verdict["from"], verdict["fault"])
    return verdict["decided"]


_spent: list[str] = []


def _forget(place: str) -> None:
    """Deletes the words of the exchange before, which everyone has read who has come to this one."""
    while _spent:
        _state().client.key_value_delete(_spent.pop())
    _spent.append(place)


def _wait(key: str) -> str:
    """Waits until a word is said; ends if a process has failed, and the watch ends it if one has died."""
    import jax

    client, gone = _state().client, ""
    while True:
        try:
            return str(client.blocking_key_value_get(key, _POLL_MS))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if gone:
            raise _fault_of(int(gone), ["fault", "it has ended"])
        for name, text in client.key_value_dir_get(f"{_run}/watch/"):
            *_, kind, number = name.split("/")
            if kind == "fault" and int(number) != index():
                raise _fault_of(int(number), json.loads(text))
            # Its last word may have come since this process looked for it: that looks once more.
            gone = number if kind == "over" else gone


def _described(fault: BaseException) -> list[str]:
    """Returns the kind and the line of a fault, as the others repeat it."""
    kind = "usage" if isinstance(fault, errors.UsageError) else "fault"
    line = (errors.as_typed(fault).strip() or type(fault).__name__).splitlines()[0]
    return [kind, line]


def _fault_of(number: int, described: Sequence[str]) -> Exception:
    kind, line = described
    fault: Exception = errors.UsageError(line) if kind == "usage" else ProcessFault(f"process {number}: {line}")
    fault.shared_in = _run, _made  # type: ignore[attr-defined]
    return fault


def _state() -> Any:
    # JAX offers the words of its coordination service nowhere else; Orbax reads them here, too.
    from jax._src import distributed

    return distributed.global_state


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

    The service of process 0 is a process of its own, which outlives it for long enough to tell the others: were it a
    part of process 0, the others would be aborted by JAX as soon as that dies, without a word of ours.

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
            _services.append(_start_service(place, group.heartbeat_s))
            stack.callback(lambda: _end_service(_services.pop()))
        _connect(place, group.heartbeat_s)
        stack.callback(_disconnect)
        yield


def _place(group: Group) -> Place:
    """Returns the place that the settings name, and, for what they leave open, JAX's detection of clusters."""
    from jax._src import clusters

    detect: Any = clusters.ClusterEnv.auto_detect_unset_distributed_params
    wanted: list[Any] = [
        group.coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS") or None,
        None if group.processes == AUTO else int(group.processes),
        None if group.process_index < 0 else group.process_index,
        None,
    ]
    if None in wanted[:3]:
        wanted = list(detect(*wanted, None, round(START_S)))
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


def _start_service(place: Place, heartbeat_s: float) -> "subprocess.Popen[str]":
    """Starts the coordination service; it ends some seconds after this process, or after its input is closed."""
    # Without the current folder, a file of which could shadow a module; the package may lie in no other known folder.
    command = [sys.executable, "-P", "-m", __name__, place.address, str(place.count), str(heartbeat_s)]
    roots = [str(pathlib.Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    # In a session of its own, as a terminal sends Ctrl-C to all processes of one.
    service = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))},
    )
    assert service.stdout is not None
    said = service.stdout.readline().strip()
    if said != "listens":
        raise errors.UsageError(
            errors.given("coordinator", place.address), f" cannot be listened at: {said or 'the service has died'}"
        )
    return service


def _end_service(service: "subprocess.Popen[str]") -> None:
    """Ends the service, and waits for that: its port is free for the next run then."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        service.communicate("over", timeout=5.0)


def serve(address: str, num_processes: int, heartbeat_s: float) -> None:
    """Runs the coordination service until standard input is closed, and for as long after as the others need.

    Args:
        address: HOST:PORT to listen at, and at no other address of the machine.
        num_processes: number of processes that will connect.
        heartbeat_s: seconds without a sign of life after which one counts as dead.
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
    whole_s = max(1, round(heartbeat_s))
    # "Recoverable": it does not end the others when one dies, and so they can say why they end.
    service = _jax.get_distributed_runtime_service(
        listens_at, num_processes, heartbeat_timeout=whole_s, shutdown_timeout=5, recoverable=True
    )
    print("listens", flush=True)
    # Without a word process 0 was killed, and the others take as long as that to see it.
    time.sleep(_STAYS_S.get(sys.stdin.read(), heartbeat_s + 10.0))
    service.shutdown()


def _connect(place: Place, heartbeat_s: float) -> None:
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
    state = _state()
    state.coordinator_address, state.num_processes, state.process_id = place.address, place.count, place.index
    # At its own timeout the client aborts the process with a stack of C++.
    state.client = _jax.get_distributed_runtime_client(
        place.address,
        place.index,
        init_timeout=round(START_S) + 60,
        use_compression=True,
        heartbeat_timeout=max(1, round(heartbeat_s)),
    )
    missing = f"not all {place.count} processes have begun within {START_S:.0f} s: start each of them"
    timer = threading.Timer(START_S, _leave, (missing,))
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
    state, until_s = _state(), time.monotonic() + _LEAVE_S
    if not is_first():
        state.client.key_value_set(f"left/{index()}", "")
    else:
        while len(state.client.key_value_dir_get("left/")) < count() - 1 and time.monotonic() < until_s:
            time.sleep(0.02)
    state.client.shutdown()
    state.client, state.num_processes, state.process_id = None, 1, 0


@contextlib.contextmanager
def watched(stop: Stop, heartbeat_s: float = HEARTBEAT_S) -> Iterator[None]:
    """Tells the other processes within the context that this one lives, that it is to stop, or that it failed.

    All processes must enter it. A request to stop reaches each of them within a second or two; each agrees on the
    moment by `exchange`. One that waits for a process that has failed or died is ended, with a line that says so.

    Args:
        stop: is told of the others' requests to stop.
        heartbeat_s: seconds without a sign of life after which a process counts as dead.

    Raises:
        Exception: an exception that leaves the context is told to the others.
    """
    global _run, _made
    if count() == 1:
        yield
        return
    _run, _made = _run + 1, 0
    _spent.clear()
    watch, leave = _Watch(stop, heartbeat_s), stop.leave

    def leave_with_others(exit_code: int) -> None:
        with contextlib.suppress(Exception):
            watch.say("stop", str(exit_code))
        leave(exit_code)

    stop.leave = leave_with_others
    watch.start()
    try:
        yield
    except BaseException as fault:
        if any(name in str(fault) for name in _COLLECTIVES):
            # A collective failed, most likely since a process has died: the watch will know, and end this one.
            time.sleep(heartbeat_s + 2 * _LOOK_S)
        if not hasattr(fault, "shared_in"):
            watch.say("fault", json.dumps(_described(fault)))
        raise
    finally:
        stop.leave = leave
        watch.over.set()
        watch.join()


class _Watch(threading.Thread):
    """Says that this process lives, and looks whether the others do.

    Attributes:
        over: ends it.
    """

    def __init__(self, stop: Stop, heartbeat_s: float) -> None:
        super().__init__(name="watch", daemon=True)
        self.over = threading.Event()
        self._client, self._place = _state().client, f"{_run}/watch"
        self._stop_token, self._heartbeat_s = stop, heartbeat_s
        self._has_told = False
        now_s = time.monotonic()
        # When each of the others was last seen to live, and by which word.
        self._seen = {number: ("", now_s) for number in range(count()) if number != index()}

    def say(self, kind: str, text: str) -> None:
        """Says a word under the number of this process, which all others look at."""
        self._client.key_value_set(f"{self._place}/{kind}/{index()}", text, True)

    def run(self) -> None:
        for beat in itertools.count():
            try:
                self._tell(beat)
                words = self._client.key_value_dir_get(f"{self._place}/")
            except Exception as error:
                _leave(f"the coordinator of the run is gone ({str(error).splitlines()[0]})")
            self._look({tuple(name.split("/")[-2:]): text for name, text in words})
            if self.over.wait(min(_LOOK_S, self._heartbeat_s / 4)):
                break
        with contextlib.suppress(Exception):
            self.say("over", "")

    def _tell(self, beat: int) -> None:
        self.say("beat", str(beat))
        if self._stop_token.exit_code and not self._has_told:
            self._has_told = True
            self.say("stop", str(self._stop_token.exit_code))

    def _look(self, words: dict[tuple[str, ...], str]) -> None:
        """Follows the others' words, and ends the process if one of them is dead or has failed."""
        for number, (word, since_s) in self._seen.items():
            stop, fault = words.get(("stop", str(number))), words.get(("fault", str(number)))
            if stop and not self._stop_token.exit_code:
                self._has_told = True
                self._stop_token.heed(int(stop) - 128)
            if ("over", str(number)) in words and not fault:
                continue
            beat = words.get(("beat", str(number)), "")
            if beat != word:
                self._seen[number] = beat, time.monotonic()
            elif time.monotonic() - since_s > self._heartbeat_s:
                _leave(f"process {number} is gone: no sign of life for {self._heartbeat_s:g} s")
            if fault:
                self._end_after(_fault_of(number, json.loads(fault)))

    def _end_after(self, fault: Exception) -> None:
        """Ends the process unless it ends by itself after a fault of another, as it does outside collectives."""
        if not self.over.wait(_GRACE_S):
            _leave(errors.as_typed(fault))


def _leave(reason: str) -> None:
    """Ends the process at once, with a line: it may wait in a collective, which nothing else can end."""
    line = f"process {index()}: {reason}; the same commands resume the run from its last checkpoint\n"
    with contextlib.suppress(OSError, ValueError):
        os.write(2, line.encode())
        for service in _services:
            assert service.stdin is not None
            service.stdin.write("left")
            service.stdin.flush()
    os._exit(1)


def nonce() -> str:
    """Returns a random text, the same in all processes."""
    return agreed(secrets.token_hex(8))


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
