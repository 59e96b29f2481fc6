"""A fleet: players as actors of Ray, on whatever machines its cluster has. The only file that imports Ray.

An actor's thread stays with the learner, and waits here for what its player sends. Ray restarts nothing by itself: a
player that is lost is a fault of its actor, which is replaced as a thread is.
"""

import collections
import os
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import hangs
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.parallel.sebulba import channels, player, queue, wire
from jaxrl_dist.parallel.sebulba.actor import Actor, NoneLeftError
from jaxrl_dist.parallel.sebulba.actors import Actors
from jaxrl_dist.runs import software
from jaxrl_dist.types import Array, ArrayTree

# A player that is silent for so long is asked whether it is alive.
_BEAT_S = 1.0
# Unrolls that a player is asked for ahead: more only keep its replies waiting.
_MOST_AHEAD = 4
_REACH_WITHIN_S = 10.0
# Ray ends a process whose head has been gone for 60 s.
_LOOK_EVERY_S, _GONE_AFTER_S = 2.0, 15.0
_TOKEN = "if its head has a token, RAY_AUTH_MODE=token and the same one are needed here"
# A second thread of a player's process, which answers while the first one plays.
_ASKED = "asked"


class Crew(NamedTuple):
    """A player that was started.

    Attributes:
        handle: of Ray's actor.
        ready: reference to the answer that it is warm: the versions of its software.
    """

    handle: Any
    ready: Any


class Fleet:
    """The way in which actors play on other machines, see `actor.Acting`.

    It connects to Ray when it is first warmed up, and leaves it in `close`.
    """

    def __init__(self, actors: Actors) -> None:
        """Starts nothing.

        Raises:
            UsageError: Ray is not installed.
        """
        parts, config = actors.parts, actors.parts.config
        if not software.is_installed("ray"):
            raise errors.missing_package(errors.given("layout.fleet", config.fleet), "ray", "ray")
        self._actors, self._config, self._lock = actors, config, threading.Lock()
        spec, sizes = parts.environment.spec, (config.unroll_length, actors.num_rows)
        self.wire = wire.Wire(spec, unrolls.rows_struct(parts.agent, spec, *sizes))
        self._plan = player.Plan(parts.rebuild, parts.num_envs, actors.width, config.unroll_length, config.timeout_s)
        self._ahead = min(_MOST_AHEAD, 2 if actors.lag is None else actors.lag + 1)
        self._published: collections.OrderedDict[int, tuple[int, Any]] = collections.OrderedDict()
        self._counted = {"bytes_to_actors": 0, "bytes_from_players": 0}
        self._warm: list[Crew] = []
        self._is_open = self._is_ours = self._is_gone = False
        self._ending = threading.Lock()
        self._head, self._seen_s, self._next_look_s = "", 0.0, 0.0
        self._ray: Any = None
        self._warming: Any = None

    @property
    def placement(self) -> str:
        """Says in a line where the actors play."""
        actors, config = self._actors, self._config
        each = f"{actors.num_actors} players of {actors.width} environments, {config.fleet_cpus} CPUs each"
        return f"fleet {config.fleet}: {each}, {config.fleet_spares} spare"

    def warm_up(self, published: unrolls.Published, device: jax.Device) -> None:
        """Connects to the cluster, and starts all players with the spares; they warm up while the learner compiles.

        Raises:
            UsageError: there is no such cluster.
        """
        del device
        with self._lock:
            # Versions are counted anew where a run goes on from an earlier state.
            self._published.clear()
        if self._is_open:
            return
        self._connect()
        self._warming = self._put(jax.device_get(published))
        with self._lock:
            self._is_open = True
            self._warm += [self._start() for _ in range(self._actors.num_actors + self._config.fleet_spares)]

    def open(self, key: Array, first: int, iteration: int, life: int) -> envs.HostEnvironment:
        """Returns a warm player in the place of environments; arguments as of `Actors.make_environments`.

        Raises:
            NoneLeftError: no player could be placed.
        """
        nowhere: Any = unrolls.ActorState((), (), ())  # type: ignore[arg-type]
        start = player.Start(np.asarray(jax.random.key_data(key)), (), first, iteration, life, nowhere)
        return Remote(self, self._take(), start)  # type: ignore[return-value]

    def play(self, actor: Actor, environment: Any) -> Iterator[queue.Unrolled]:
        """Lets a player play for ever, asked for several unrolls ahead, and yields them as `in_step.InStep` does."""
        remote: Remote = environment
        number, state = actor.begin
        timestep, carry = jax.tree.map(_to_host, (state.timestep, state.carry))
        remote.begin(actor, state._replace(timestep=timestep, carry=carry))
        asked: collections.deque[tuple[int, int, int, Any]] = collections.deque()
        following = number
        while True:
            actor.at = number, unrolls.ActorState((), timestep, carry)
            while not asked or (len(asked) < self._ahead and actor.is_due(following)):
                following, version, published = actor.parameters(following)
                updates, reference = self._sent(version, published)
                asked.append((following, version, updates, remote.play(following, reference)))
                following += 1
            number, version, updates, answer = asked.popleft()
            data = remote.answer(actor, answer)
            self._count("bytes_from_players", len(data))
            played = self.wire.unpack(data, number, updates)
            _check_joined(timestep, played.steps.timestep)
            unroll = types.Unroll(played.steps, carry)
            timestep = jax.tree.map(lambda x: x[-1].copy(), played.steps.timestep)
            carry = played.carry
            parts = unrolls.cut(unroll, len(self._actors.local))
            seconds = {"environment_s": played.environment_s, "inference_s": played.inference_s}
            yield queue.Unrolled(
                actor.number, number, version, parts, (), actor.columns, timestep, played.episodes, seconds
            )
            number = asked[0][0] if asked else following

    def counted(self) -> dict[str, int]:
        """Returns the bytes that crossed since the last call.

        Those of parameters are put into Ray's store once per version, which copies them once to each machine.
        """
        with self._lock:
            grown, self._counted = self._counted, dict.fromkeys(self._counted, 0)
        return grown

    def close(self) -> None:
        """Ends all players that wait, and the cluster if it was started here."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
            warm, self._warm = self._warm, []
            self._published.clear()
        for one in warm:
            self.kill(one)
        with self._ending:
            if was_open and self._is_ours and not self._is_gone:
                self._ray.shutdown()
                self._is_ours, self._is_gone = False, True
        self._warming = None

    def kill(self, crew: Crew) -> None:
        """Ends a player's process, whatever it is doing; one without a head or connection ends by itself."""
        # A thread may outlive `close`, and Ray, once it is shut down, would begin anew at any call.
        with self._ending:
            if self._is_gone:
                return
            try:
                self._ray.kill(crew.handle)
            except Exception as error:  # The cluster itself may be gone, and with it the player.
                if not isinstance(error, self._ray.exceptions.RayError | ConnectionError | ValueError | RuntimeError):
                    raise

    def wait(self, references: list[Any], timeout_s: float) -> list[Any]:
        """Waits for the first of several answers; returns those that are there.

        Raises:
            channels.Closed: the fleet was closed.
            NoneLeftError: the head of the cluster is gone.
        """
        self._check_open()
        self._check_head()
        # That may have taken longer than `close` waits for a thread.
        self._check_open()
        found: list[Any] = self._ray.wait(references, num_returns=1, timeout=timeout_s)[0]
        return found

    def result(self, reference: Any) -> Any:
        """Returns an answer that is there.

        Raises:
            errors.EnvironmentFault: the player died, or raised an error; in one line.
            channels.Closed: the fleet was closed.
        """
        self._check_open()
        try:
            return self._ray.get(reference, timeout=self._config.timeout_s)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            # An error's own class is of the player's process; its text is all that is taken.
            raise errors.EnvironmentFault(f"its player raised {type(cause).__name__}: {_line(cause)}") from None
        except self._ray.exceptions.RayError as error:
            if "creation task" in _line(error):
                # The next one would fail likewise. Ray's message ends with the error itself.
                last = str(error).strip().splitlines()[-1]
                raise NoneLeftError(f"its player cannot be made: {errors.printable(last)}") from None
            raise _Lost(f"its player is lost: {_line(error)}") from None

    def _check_open(self) -> None:
        """Raises `channels.Closed` if the fleet was closed: Ray must not be called any more."""
        if not self._is_open:
            raise channels.Closed

    def _check_head(self) -> None:
        """Raises a NoneLeftError once the head of the cluster has been gone for a while.

        Ray would abort this process a minute later, and nothing would be saved.
        """
        now_s = time.monotonic()
        with self._lock:
            if now_s < self._next_look_s:
                return
            self._next_look_s = now_s + _LOOK_EVERY_S
        try:
            _reach(self._head)
            self._seen_s = now_s
        except OSError as error:
            if now_s - self._seen_s > _GONE_AFTER_S:
                self._is_gone = True
                raise NoneLeftError(f"the head of Ray's cluster at {self._head} is gone: {error}") from None

    def _connect(self) -> None:
        """Connects to the cluster, or starts one.

        Raises:
            UsageError: nothing answers at that address.
        """
        address = self._config.fleet
        if address == "local" and not ("ray" in sys.modules and sys.modules["ray"].is_initialized()):
            _draw_token()
        # What Ray prints of lost players stands in our own lines.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        import ray

        self._ray = ray
        if ray.is_initialized():
            self._note_connected()
            return
        options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
        if address == "local":
            cpus = (self._actors.num_actors + self._config.fleet_spares) * self._config.fleet_cpus
            options |= {"num_cpus": max(cpus, os.cpu_count() or 1), "include_dashboard": False}
        flag = errors.given("layout.fleet", address)
        if ":" in address:
            try:
                # Ray would look for a minute.
                _reach(address)
            except (OSError, OverflowError) as error:
                raise errors.UsageError(flag, f": nothing answers there: {error}") from None
        # Ray takes the signal for itself, and would end the run without saving it.
        before = signal.getsignal(signal.SIGTERM)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            hint = "" if address == "local" or "token" in str(error) else f"; {_TOKEN}"
            raise errors.UsageError(flag, f": Ray does not answer: {_line(error)}{hint}") from None
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)
        self._is_ours = True
        self._note_connected()

    def _note_connected(self) -> None:
        self._head, self._seen_s = self._ray.get_runtime_context().gcs_address, time.monotonic()
        self._is_gone = False

    def _start(self) -> Crew:
        """Starts a player, which makes itself warm; returns at once."""
        options = {
            "num_cpus": self._config.fleet_cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
            "concurrency_groups": {_ASKED: 1},
        }
        handle = self._ray.remote(**options)(player.Player).remote(self._plan)
        handle.prepare.remote()
        return Crew(handle, handle.warm_up.remote(self._warming))

    def _take(self) -> Crew:
        """Takes the player that is warm first, and starts another for it; one that is lost before costs nothing.

        Raises:
            NoneLeftError: there was none for so long as it may take to make environments.
            channels.Closed: the fleet was closed.
        """
        until_s, reason = time.monotonic() + hangs.MAKE_S, "no machine has a free CPU, or its players still start"
        while time.monotonic() < until_s:
            with self._lock:
                self._check_open()
                if not self._warm:
                    self._warm.append(self._start())
                waiting = list(self._warm)
            ready = self.wait([one.ready for one in waiting], _BEAT_S)
            crew = next((one for one in waiting if one.ready in ready), None)
            with self._lock:
                if crew is None or crew not in self._warm:
                    continue
                self._warm.remove(crew)
            try:
                _check_versions(self.result(crew.ready))
                asked = crew.handle.check.options(concurrency_group=_ASKED).remote()
                if not self.wait([asked], self._config.timeout_s):
                    raise _Lost(f"a player gave no answer for {self._config.timeout_s:g} s")
                self.result(asked)
            except _Lost as lost:
                reason = str(lost)
                self.kill(crew)
                time.sleep(_BEAT_S)
                continue
            with self._lock:
                if self._is_open and len(self._warm) < self._config.fleet_spares:
                    self._warm.append(self._start())
            return crew
        raise NoneLeftError(f"the fleet {self._config.fleet} placed no player for {hangs.MAKE_S:g} s: {reason}")

    def _put(self, host: unrolls.Published) -> Any:
        """Puts parameters in NumPy into the cluster's store; returns the reference."""
        sent = wire.rounded(host) if self._config.fleet_parameters == "bfloat16" else host
        self._counted["bytes_to_actors"] += sum(leaf.nbytes for leaf in jax.tree.leaves(sent))
        return self._ray.put(sent)

    def _count(self, name: str, num_bytes: int) -> None:
        with self._lock:
            self._counted[name] += num_bytes

    def _sent(self, version: int, published: unrolls.Published) -> tuple[int, Any]:
        """Returns the updates of a version, and where the cluster has it; it is put there once."""
        with self._lock:
            if version not in self._published:
                host = jax.device_get(published)
                self._published[version] = int(host.updates), self._put(host)
                while len(self._published) > self._actors.num_waiting + 1:
                    self._published.popitem(last=False)
            return self._published[version]


class Remote:
    """A player in the place of an actor's environments.

    Attributes:
        timeout_s: infinite, since the thread that waits for the player notices itself when it hangs.
        waiting_since: always 0.
        waiting_for: i32 [E], all environments, since the thread only waits.
    """

    timeout_s = float("inf")
    waiting_since = 0.0

    def __init__(self, fleet: Fleet, crew: Crew, start: player.Start) -> None:
        """Takes a warm player."""
        self._fleet, self._crew, self._start = fleet, crew, start
        self.waiting_for = np.arange(fleet._actors.width, dtype=np.int32)

    def begin(self, actor: Actor, state: unrolls.ActorState) -> None:
        """Has the environments of an actor made, and waits until they are."""
        key = np.asarray(jax.random.key_data(actor.key))
        reference = self._crew.handle.begin.remote(self._start._replace(actor_key=key, state=state))
        self.answer(actor, reference)

    def play(self, number: int, published: Any) -> Any:
        """Asks for an unroll; returns the reference to its bytes."""
        return self._crew.handle.play.remote(number, published)

    def answer(self, actor: Actor, reference: Any) -> Any:
        """Waits for an answer; a player that is silent is asked whether it is alive.

        Raises:
            errors.EnvironmentFault: it raised an error, died, or hangs.
            channels.Closed: the actor was given up.
        """
        fleet, timeout_s = self._fleet, self._fleet._config.timeout_s
        beat_s = min(_BEAT_S, timeout_s / 4)
        while not fleet.wait([reference], beat_s):
            actor.check_current()
            asked = self._crew.handle.check.options(concurrency_group=_ASKED).remote()
            until_s = time.monotonic() + timeout_s - beat_s
            while not (found := fleet.wait([reference, asked], beat_s)):
                actor.check_current()
                if time.monotonic() > until_s:
                    raise _Lost(f"its player gave no answer for {timeout_s:g} s")
            if asked in found:
                fleet.result(asked)
        return fleet.result(reference)

    def state(self) -> ArrayTree:
        """Returns the state of environments that can be saved, as `as_host.AsHost.state` does."""
        reference = self._crew.handle.state.remote()
        if not self._fleet.wait([reference], self._fleet._config.timeout_s):
            raise _Lost("its player did not hand over its environments")
        return self._fleet.result(reference)

    def close(self) -> None:
        """Ends the player."""
        self._fleet.kill(self._crew)


class _Lost(errors.EnvironmentFault):
    """A player is gone, and another can take its place."""


def _check_versions(theirs: list[str]) -> None:
    """Raises a NoneLeftError where a player's rows would come from other software than this process has."""
    ours = software.versions()
    wrong = [
        f"{there} there, {here} here"
        for here, there in zip(ours, theirs, strict=False)
        if here != there and not (here + there).count("not installed")
    ]
    if wrong or len(ours) != len(theirs):
        raise NoneLeftError("the machines of a fleet need the same software: " + "; ".join(wrong))


def _draw_token() -> None:
    """Lets Ray, which listens on all addresses of this machine, serve only who has a token drawn here.

    A token, or a choice of none, that the environment has stays.

    Raises:
        UsageError: Ray was imported before, and does not read the environment again.
    """
    if {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        return
    if "ray" in sys.modules:
        raise errors.UsageError(
            errors.given("layout.fleet", "local"),
            ": Ray was imported before it could be given a token; set RAY_AUTH_MODE in the environment",
        )
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _reach(address: str) -> None:
    """Raises an OSError if nobody listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _REACH_WITHIN_S).close()


def _check_joined(closing: Any, opened: types.TimeStep) -> None:
    """Raises an EnvironmentFault unless an unroll opens with the row that closed the one before."""
    if closing and not all(
        np.array_equal(ours, theirs[0]) for ours, theirs in zip(*map(jax.tree.leaves, (closing, opened)), strict=True)
    ):
        raise errors.EnvironmentFault("an unroll does not open with the row that closed the one before")


def _line(error: BaseException | None) -> str:
    """Returns the message of an error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return errors.printable(lines[0] if lines else type(error).__name__)


def _to_host(x: Any) -> Any:
    return np.asarray(x)
