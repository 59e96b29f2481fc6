"""Puts B simulators, which ask for actions, behind `envs.HostEnvironment`, which is asked for timesteps.

A simulator speaks first: it sends a row, and gets the action as the answer. A row that ends an episode gets no answer:
the simulator resets, and the action that the agent chooses for this row is dropped.
"""

import collections
import math
import select
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist import envs, errors, simulator, types
from jaxrl_dist.envs.host import checked, hangs
from jaxrl_dist.envs.simulators import messages, sources

# Connecting and making a world take longer than a step may.
CONNECT_S = 60.0
_CHECK_S, _POLL_S = 0.1, 0.5


class Plan(NamedTuple):
    """Describes the task of simulators.

    Attributes:
        spec: spec of one environment.
        source: provides the simulators.
        terms: facts that every simulator is told.
        observation: type in which observations are sent.
        action: type in which actions are sent.
    """

    spec: types.EnvironmentSpec
    source: sources.Source
    terms: Mapping[str, Any]
    observation: simulator.ArrayType
    action: simulator.ArrayType


class Conversations(checked.Checked):
    """B environments, each played by a simulator of its own; see `envs.HostEnvironment`.

    A simulator that sends an invalid message, goes away, or is silent for too long causes a fault that names it; after
    a fault nothing but `close` works.

    Attributes:
        timeout_s: longest step.
        waiting_since: always 0, since waits end by themselves.
    """

    waiting_since = 0.0

    def __init__(self, plan: Plan, purpose: str, seeds: np.ndarray, batch_size: int, timeout_s: float) -> None:
        """Prepares the environments; asks for no simulators yet.

        Args:
            plan: the task.
            purpose: `sources.TRAINING` or `sources.EVALUATION`.
            seeds: u32 [B] of 31 bits.
            batch_size: number of environments that `recv` returns at a time.
            timeout_s: longest step; connecting and the first observation may take `CONNECT_S`, if that is longer.

        Raises:
            errors.EnvironmentFault: the port is taken.
            ValueError: a number is out of range.
        """
        super().__init__(plan.spec, len(seeds), batch_size)
        self.timeout_s = timeout_s
        if not 1 <= batch_size <= self.num_envs or timeout_s <= 0:
            expected = f"expected 1 to {self.num_envs}, and more than 0"
            raise ValueError(f"{plan.spec.name}: batch_size={batch_size} and timeout_s={timeout_s}, {expected}")
        self._plan, self._purpose = plan, purpose
        self._terms = [{**plan.terms, "seed": int(seed)} for seed in seeds]
        # An environment is busy from `send` to `recv`, and pending until its simulator has sent a row.
        self._pending, self._ended = np.zeros(self.num_envs, bool), np.ones(self.num_envs, bool)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._since_s = np.zeros(self.num_envs)
        self._limit_s = np.full(self.num_envs, timeout_s)
        self._rows: dict[int, messages.Row] = {}
        self._ready: collections.deque[int] = collections.deque()
        self._next_check_s = 0.0
        self._lock = threading.Lock()
        self._claim: sources.Claim | None = None
        self._is_closed = False
        plan.source.open()

    def raw_reset(self) -> envs.RawStep:
        """Waits for a new simulator for each environment, and for their first observations."""
        self._check_usable()
        if self._claim is not None:
            self._claim.close("the trainer begins anew")
        with self._lock:
            if not self._is_closed:
                self._claim = self._plan.source.claim(self._purpose, self._terms)
        self._check_usable()
        assert self._claim is not None
        patience_s = max(self.timeout_s, CONNECT_S)
        try:
            self._peers = self._claim.wait(patience_s)
        except errors.EnvironmentFault as error:
            raise self._failed(str(error)) from error
        self._readers = [
            simulator.Reader(peer.connection, simulator.ASKING_BYTES, self._plan.observation.num_bytes)
            for peer in self._peers
        ]
        # Kept as numbers, since another thread may close the connections at any time.
        self._descriptors = [peer.connection.fileno() for peer in self._peers]
        if min(self._descriptors) < 0:
            raise self._failed("the connections are gone")
        self._poll = select.poll()
        self._rows.clear()
        self._ready.clear()
        self._ended[:] = self._busy[:] = True
        self._limit_s[:] = patience_s
        self._await(self._all)
        return self._receive(self.num_envs)[0]

    def raw_send(self, action: np.ndarray, env_ids: np.ndarray) -> None:
        """Answers some simulators."""
        self._check_started()
        self._busy[env_ids] = True
        payloads = action.astype(self._plan.action.little_endian, copy=False)
        for env, payload in zip(env_ids.tolist(), payloads, strict=True):
            if not self._ended[env]:
                self._answer(env, payload.tobytes())
        self._limit_s[env_ids] = self.timeout_s
        self._await(env_ids)

    def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
        """Waits for the first `batch_size` simulators that have spoken, in the order in which they did.

        If `batch_size` is B, they are in the order of their indices.
        """
        self._check_started()
        return self._receive(self.batch_size)

    def close(self) -> None:
        """Tells the simulators that their sessions have ended, and frees the seats; further calls do nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._claim is not None:
            self._claim.close(str(self._fault or "") or f"{self._purpose} needs this simulator no more")
        self._plan.source.close()

    def _check_usable(self) -> None:
        super()._check_usable()
        if self._is_closed:
            raise errors.EnvironmentFault(f"{self.spec.name}: these environments were closed")

    def _check_started(self) -> None:
        self._check_usable()
        if self._claim is None:
            raise RuntimeError(f"{self.spec.name}: reset the environments first")

    def _failed(self, what: str) -> errors.EnvironmentFault:
        if self._is_closed:
            what = "these environments were closed"
        self._fault = errors.EnvironmentFault(f"{self.spec.name}: {what}")
        return self._fault

    def _await(self, ids: np.ndarray) -> None:
        """Notes that each of the environments i32 [N] owes a message from now on."""
        self._since_s[ids] = hangs.now()
        self._pending[ids] = True
        for env in ids.tolist():
            self._poll.register(self._descriptors[env], select.POLLIN)

    def _answer(self, env: int, payload: bytes) -> None:
        message = simulator.pack({"kind": "action"}, payload)
        try:
            is_sent = self._peers[env].connection.send(message) == len(message)
        except BlockingIOError:
            is_sent = False
        except OSError:
            # The simulator has gone, but a message that it sent before may still be unread.
            return
        if not is_sent:
            raise self._failed(f"{self._peers[env].name} does not read the actions that it is sent")

    def _receive(self, count: int) -> tuple[envs.RawStep, np.ndarray]:
        # Checked even if enough are ready, since the others go on while one hangs.
        if time.monotonic() >= self._next_check_s:
            self._listen(0.0)
        while len(self._ready) < count:
            self._listen(self._left_s())
        ids = np.asarray([self._ready.popleft() for _ in range(count)], np.int32)
        if count == self.num_envs:
            ids = self._all.copy()
        rows = [self._rows.pop(env) for env in ids.tolist()]
        self._busy[ids] = False
        reward, terminated, truncated = (np.asarray(field) for field in zip(*(row[1:] for row in rows), strict=True))
        is_first, self._ended[ids] = self._ended[ids], terminated | truncated
        self._check_lengths(is_first, ids)
        raw = envs.RawStep(np.stack([row.observation for row in rows]), reward, is_first, self._ended[ids], ~terminated)
        return raw, ids

    def _left_s(self) -> float:
        """Returns the seconds until the first of the waits is over."""
        pending = self._pending
        return max(0.0, float((self._since_s[pending] + self._limit_s[pending]).min()) - hangs.now())

    def _listen(self, timeout_s: float) -> None:
        """Reads the messages that come within `timeout_s`; raises a fault if a simulator is overdue then."""
        if self._is_closed:
            raise self._failed("closed")
        for descriptor, _ in self._poll.poll(math.ceil(1000 * min(timeout_s, _POLL_S))):
            self._read(self._descriptors.index(descriptor))
        self._next_check_s = time.monotonic() + min(_CHECK_S, self.timeout_s / 4)
        overdue = self._pending & (hangs.now() > self._since_s + self._limit_s)
        if overdue.any():
            env = int(overdue.argmax())
            raise self._refused(env, f"gave nothing for {self._limit_s[env]:g} s")

    def _read(self, env: int) -> None:
        """Reads a simulator's message, if it is complete."""
        peer = self._peers[env]
        try:
            frame = self._readers[env].read()
            if frame is None:
                return
            self._rows[env] = self._row(env, frame)
        except ValueError as error:
            raise self._refused(env, f"sent an invalid message: {error}") from error
        except (EOFError, OSError) as error:
            fault = self._failed(f"{peer.name} closed the connection")
            raise fault from (peer.errors[0] if peer.errors else error)
        self._poll.unregister(self._descriptors[env])
        self._pending[env] = False
        self._ready.append(env)

    def _refused(self, env: int, what: str) -> errors.EnvironmentFault:
        """Tells a simulator its mistake, and returns the fault that names it."""
        fault = self._failed(f"{self._peers[env].name} {what}")
        sources.dismiss(self._peers[env].connection, "refused", f"this simulator {what}")
        return fault

    def _row(self, env: int, frame: simulator.Frame) -> messages.Row:
        """Reads the row of a message, which is not trusted.

        Raises:
            ValueError: the message is not valid; the error names the field, the expected and the given value.
            errors.EnvironmentFault: the simulator says that it has failed.
        """
        header = frame.header
        if header.get("kind") == "error":
            peer = self._peers[env]
            fault = self._failed(f"{peer.name} stopped with {errors.printable(str(header.get('reason')))}")
            raise fault from (peer.errors[0] if peer.errors else None)
        expected = "begin" if self._ended[env] else "act"
        return messages.read(frame, expected, self._plan.observation, self.spec.reward_range)

    def _check_lengths(self, is_first: np.ndarray, ids: np.ndarray) -> None:
        self._lengths[ids] = np.where(is_first, 0, self._lengths[ids] + 1)
        limit = self.spec.time_limit
        late = (self._lengths[ids] >= limit) & ~self._ended[ids]
        if limit and late.any():
            what = f"went on after step {limit} of an episode, which is the time limit: expected truncated there"
            raise self._refused(int(ids[late.argmax()]), what)
