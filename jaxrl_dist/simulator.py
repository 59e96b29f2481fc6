"""The simulator's side of training: a session, in which a program that owns its loop asks the trainer for actions.

The trainer's side is the suite `external`. This file needs NumPy alone and may be copied into a simulator's own
project; docs/external_simulators.md describes the same bytes for other languages.
"""

import errno
import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

HOST = "127.0.0.1"
PROTOCOL = 1
DTYPES = ("float32", "uint8", "int8", "uint16", "int16", "uint32", "int32", "bool")
# Bytes of the largest header from a simulator, which asks, and from a trainer, which answers.
ASKING_BYTES, ANSWERING_BYTES = 4096, 1 << 20

_SIZES = struct.Struct("<II")
# A trainer that replaces lost simulators, or resumes, listens again within this time.
_AGAIN_S, _POLL_S = 5.0, 0.1
_LONGEST_REASON = 1000
# Kind of an array's dtype -> kinds of NumPy that are converted to it; numbers out of range are refused.
_ADMITTED = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}


class Ended(Exception):  # noqa: N818
    """The trainer has ended this session, since training or an evaluation is over; `with` then ends quietly."""


class Refused(RuntimeError):
    """The trainer does not accept a connection or a message; the message says what it expected."""


class ArrayType(NamedTuple):
    """Type and shape of an array, written like `float32[4]` or `uint8[84,84,3]`.

    Attributes:
        dtype: one of `DTYPES`.
        shape: () of a number.

    Example:
        >>> from jaxrl_dist import simulator
        >>> kind = simulator.ArrayType("uint8", (84, 84, 3))
        >>> print(kind, kind.num_bytes)
        uint8[84,84,3] 21168
    """

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def num_bytes(self) -> int:
        """The number of bytes of such an array."""
        size = np.dtype(self.dtype).itemsize
        for length in self.shape:
            size *= length
        return size

    @property
    def little_endian(self) -> np.dtype[Any]:
        """The dtype of the bytes that are sent."""
        return np.dtype(self.dtype).newbyteorder("<")

    def read(self, payload: bytes | memoryview) -> np.ndarray:
        """Returns a copy of the array in the bytes."""
        # Any byte but 0 is true; NumPy would keep a byte such as 2 as it is.
        stored = np.dtype(np.uint8) if self.dtype == "bool" else self.little_endian
        return np.frombuffer(payload, stored).reshape(self.shape).astype(self.dtype)


def parse_type(text: str) -> ArrayType:
    """Reads a type and a shape from text.

    Args:
        text: such as `float32[4]`.

    Raises:
        ValueError: the text has another form.

    Example:
        >>> from jaxrl_dist import simulator
        >>> simulator.parse_type("float32[2,3]")
        ArrayType(dtype='float32', shape=(2, 3))
    """
    match = re.fullmatch(r"(\w+)\[(|\d{1,9}(?:,\d{1,9})*)\]", text.replace(" ", ""))
    kind = ArrayType(match[1], tuple(map(int, match[2].split(","))) if match[2] else ()) if match else None
    if kind is None or kind.dtype not in DTYPES or 0 in kind.shape:
        raise ValueError(f"expected a type and a shape such as float32[4], the types being {', '.join(DTYPES)}")
    return kind


def checked(field: str, kind: ArrayType, value: Any) -> np.ndarray:
    """Checks an array to send; converts real numbers and integers that fit the type.

    Args:
        field: named in the message.
        kind: type and shape that the trainer expects.
        value: a number, list or array.

    Returns:
        An array of that type and shape.

    Raises:
        ValueError: it has another shape or kind of numbers, or a number is not finite or out of the type's range.

    Example:
        >>> from jaxrl_dist import simulator
        >>> simulator.checked("observation", simulator.parse_type("float32[2]"), [1, 2])
        array([1., 2.], dtype=float32)
        >>> simulator.checked("observation", simulator.parse_type("uint8[2]"), [1, 300])
        Traceback (most recent call last):
            ...
        ValueError: observation: expected finite numbers of uint8, given 300
    """
    try:
        given = np.asarray(value)
    except ValueError:
        given = np.asarray(None)
    wanted = np.dtype(kind.dtype)
    if given.shape != kind.shape or given.dtype.kind not in _ADMITTED[wanted.kind]:
        raise ValueError(f"{field}: expected {kind}, given {ArrayType(str(given.dtype), given.shape)}")
    with np.errstate(over="ignore"):
        converted = np.asarray(given, wanted, order="C")
    fits = np.isfinite(converted) if wanted.kind == "f" else converted == given
    if not fits.all():
        raise ValueError(f"{field}: expected finite numbers of {wanted}, given {given[~fits].flat[0]}")
    return converted


class Frame(NamedTuple):
    """A message that was read.

    Attributes:
        header: the JSON object.
        payload: its bytes; valid until the next message is read.
    """

    header: dict[str, Any]
    payload: memoryview


def pack(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    r"""Returns the bytes of a message: sizes of header and payload as u32, the header in JSON, the payload.

    Args:
        header: a JSON object.
        payload: an array in C order, little-endian.

    Example:
        >>> from jaxrl_dist import simulator
        >>> simulator.pack({"kind": "begin"}, b"ab")
        b'\x10\x00\x00\x00\x02\x00\x00\x00{"kind":"begin"}ab'
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join((_SIZES.pack(len(text), len(payload)), text, payload))


class Reader:
    """Reads messages from a socket into memory of a fixed size, and never beyond the end of a message.

    Example:
        >>> import socket
        >>> from jaxrl_dist import simulator
        >>> ours, theirs = socket.socketpair()
        >>> theirs.sendall(simulator.pack({"kind": "action"}, b"ab"))
        >>> frame = simulator.Reader(ours, header_bytes=64, payload_bytes=2).read()
        >>> frame.header, bytes(frame.payload)
        ({'kind': 'action'}, b'ab')
        >>> ours.close(), theirs.close()
        (None, None)
    """

    def __init__(self, connection: socket.socket, header_bytes: int, payload_bytes: int) -> None:
        """Reserves the memory.

        Args:
            connection: blocking or not.
            header_bytes: size of the longest header that is accepted.
            payload_bytes: size of every payload that is not empty.
        """
        self._connection, self._header_bytes, self._payload_bytes = connection, header_bytes, payload_bytes
        self._memory = memoryview(bytearray(_SIZES.size + header_bytes + payload_bytes))
        self._filled, self._wanted, self._body = 0, _SIZES.size, 0

    def read(self) -> Frame | None:
        """Returns the next message; None if the socket does not block and a part of the message is still to come.

        Raises:
            ValueError: the bytes are no message.
            EOFError: the peer has closed the connection.
            OSError: the connection is broken.
        """
        while self._filled < self._wanted:
            try:
                count = self._connection.recv_into(self._memory[self._filled : self._wanted])
            except BlockingIOError:
                return None
            if not count:
                raise EOFError
            self._filled += count
            if self._filled == _SIZES.size:
                self._measure()
        payload = self._memory[self._body : self._wanted]
        try:
            header = json.loads(bytes(self._memory[_SIZES.size : self._body]).decode())
        except (ValueError, RecursionError):
            header = None
        self._filled, self._wanted = 0, _SIZES.size
        if not isinstance(header, dict):
            raise ValueError("header: expected a JSON object, given other bytes")
        return Frame(header, payload)

    def _measure(self) -> None:
        header, payload = _SIZES.unpack(self._memory[: _SIZES.size])
        if not 0 < header <= self._header_bytes:
            raise ValueError(f"header: expected 1 to {self._header_bytes} bytes, given {header}")
        if payload not in (0, self._payload_bytes):
            raise ValueError(f"payload: expected 0 or {self._payload_bytes} bytes, given {payload}")
        self._body = _SIZES.size + header
        self._wanted = self._body + payload


class Session:
    """One environment of the trainer, played by this simulator; for one thread at a time.

    `begin` opens an episode, `act` continues it. A `with` block closes the session, and ends quietly when the trainer
    ends it.

    Attributes:
        purpose: "training" or "evaluation".
        slot: number of this environment among those of its purpose.
        seed: 31 bits, different for every environment and evaluation.
        terms: facts from the trainer: `environment`, `observation`, `action`, `num_actions` (or `low` and `high`, None
            for no bounds), `reward_range`, `time_limit` and more.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Waits until the trainer has an environment for this simulator.

        Raises:
            Ended: the trainer closed the connection instead.
            Refused: the trainer does not accept this simulator.
        """
        self._connection, self._is_begun = connection, False
        self._reader = Reader(connection, ANSWERING_BYTES, 0)
        self.terms: dict[str, Any] = self._receive().header
        self.purpose: str = self.terms["purpose"]
        self.slot: int = self.terms["slot"]
        self.seed: int = self.terms["seed"]
        self._observation = parse_type(self.terms["observation"])
        self._action = parse_type(self.terms["action"])
        self._reader = Reader(connection, ANSWERING_BYTES, self._action.num_bytes)

    def begin(self, observation: Any) -> Any:
        """Opens an episode with its first observation, and returns the action to take there.

        Args:
            observation: number, list or array of the type and shape that the trainer expects.

        Returns:
            int, or f32 [...].

        Raises:
            RuntimeError: an episode is open.
            ValueError: the observation is not as the trainer expects it.
            Ended: the trainer has ended this session.
            Refused: the trainer does not accept the message.
        """
        if self._is_begun:
            raise RuntimeError("begin within an episode: act with terminated=True or truncated=True ends one")
        return self._exchange({"kind": "begin"}, observation)

    def act(self, observation: Any, reward: float, terminated: bool = False, truncated: bool = False) -> Any:
        """Reports the result of the last action, and returns the next one; None if the episode ends here.

        Args:
            observation: the next observation; at the end of an episode the true last one.
            reward: reward of the last action.
            terminated: whether the task itself has ended.
            truncated: whether a time limit, or something else, cut the episode short; `terminated` wins if both are
                true.

        Raises:
            RuntimeError: no episode is open.
            ValueError: the observation or the reward is not as the trainer expects it.
            Ended: the trainer has ended this session.
            Refused: the trainer does not accept the message.
        """
        if not self._is_begun:
            raise RuntimeError("act outside an episode: begin opens one with its first observation")
        number = float(checked("reward", ArrayType("float32", ()), reward))
        header = {"kind": "act", "reward": number, "terminated": bool(terminated), "truncated": bool(truncated)}
        return self._exchange(header, observation)

    def close(self) -> None:
        """Ends the session from this side, which is a fault to a trainer that still needs this simulator."""
        self._connection.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, Ended | Refused):
            try:
                reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
                self._connection.sendall(pack({"kind": "error", "reason": reason}))
            except OSError:
                # The trainer has gone, so the error is raised on this side only.
                pass
        self.close()
        return isinstance(error, Ended)

    def _exchange(self, header: dict[str, Any], observation: Any) -> Any:
        array = checked("observation", self._observation, observation)
        payload = array.astype(self._observation.little_endian, copy=False).tobytes()
        try:
            self._connection.sendall(pack({**header, "observation": str(self._observation)}, payload))
        except OSError:
            # The message that the trainer sent before it closed may still be unread.
            self._receive()
            raise Ended("the trainer has closed the connection") from None
        self._is_begun = not (header.get("terminated") or header.get("truncated"))
        if not self._is_begun:
            return None
        action = self._action.read(self._receive().payload)
        return action if self._action.shape or self._action.dtype != "int32" else int(action)

    def _receive(self) -> Frame:
        try:
            frame = self._reader.read()
        except (EOFError, OSError):
            raise Ended("the trainer has closed the connection") from None
        assert frame is not None
        reason = str(frame.header.get("reason"))
        if frame.header["kind"] == "end":
            raise Ended(reason)
        if frame.header["kind"] == "refused":
            raise Refused(reason)
        return frame


def connect(port: int, *, purpose: str | None = None, slot: int | None = None, wait_s: float = 60.0) -> Session:
    """Connects to a trainer on this machine, and waits without limit until it has an environment for this simulator.

    Args:
        port: port of the trainer, from its `--env.params.listen`.
        purpose: "training" or "evaluation", to play nothing else.
        slot: number of an environment of that purpose, to play no other.
        wait_s: seconds to wait until the trainer listens.

    Raises:
        ConnectionRefusedError: nothing listens there.
        Ended: the trainer ended before it had an environment.
        Refused: the trainer does not accept this simulator.

    Example:
        >>> import socket
        >>> from jaxrl_dist import simulator
        >>> with socket.socket() as probe:
        ...     probe.bind(("127.0.0.1", 0))
        ...     port = probe.getsockname()[1]  # nothing listens there
        >>> with simulator.connect(port, wait_s=0.0) as session:
        ...     action = session.begin([0.0, 0.0])
        Traceback (most recent call last):
            ...
        ConnectionRefusedError: no trainer listens on 127.0.0.1:41001
    """
    until_s = time.monotonic() + wait_s
    while (connection := _dial(port)) is None:
        if time.monotonic() > until_s:
            raise ConnectionRefusedError(f"no trainer listens on {HOST}:{port}")
        time.sleep(_POLL_S)
    hello = {"kind": "hello", "protocol": PROTOCOL, "pid": os.getpid(), "purpose": purpose, "slot": slot}
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(pack(hello))
        return Session(connection)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError):
            raise Ended("the trainer has closed the connection") from None
        raise


def serve(
    play: Callable[[Session], None],
    port: int,
    *,
    purpose: str | None = None,
    slot: int | None = None,
    wait_s: float = 60.0,
) -> None:
    """Plays one session of `connect` after the other, until no trainer listens any more, or `play` returns.

    Args:
        play: (session); plays until the session ends.
        port: as of `connect`.
        purpose: as of `connect`.
        slot: as of `connect`.
        wait_s: as of `connect`.

    Raises:
        ConnectionRefusedError: no trainer listened from the beginning.
        Refused: the trainer does not accept this simulator, or a message of it.

    Example:
        >>> import socket
        >>> import threading
        >>> import numpy as np
        >>> from jaxrl_dist import envs, simulator
        >>> with socket.socket() as probe:
        ...     probe.bind(("127.0.0.1", 0))
        ...     port = probe.getsockname()[1]
        >>> def play(session):  # the simulator: episodes of three steps
        ...     while True:
        ...         session.begin([0.0])
        ...         for step in (1.0, 2.0, 3.0):
        ...             session.act([step], reward=step, terminated=step == 3.0)
        >>> task = envs.make("external:count", {"observation": "float32[1]", "actions": "2", "listen": str(port)})
        >>> environment = task.make(np.zeros(1, np.uint32), 1, 20.0)  # the trainer's side
        >>> threading.Thread(target=simulator.serve, args=(play, port), daemon=True).start()
        >>> observation = environment.reset().observation
        >>> print(environment.step(np.ones(1, np.int32)).reward)
        [1.]
        >>> environment.close()
    """
    has_met_a_trainer = False
    while True:
        try:
            session = connect(port, purpose=purpose, slot=slot, wait_s=_AGAIN_S if has_met_a_trainer else wait_s)
        except Ended:
            has_met_a_trainer = True
            continue
        except ConnectionRefusedError:
            if has_met_a_trainer:
                return
            raise
        has_met_a_trainer = True
        with session:
            play(session)
            return


def _dial(port: int) -> socket.socket | None:
    """Opens a connection; returns None if nothing listens."""
    connection = socket.socket()
    try:
        connection.connect((HOST, port))
        # If nothing listens on a port, the system may give the port to this very socket, which then talks to itself.
        if connection.getsockname() != connection.getpeername():
            return connection
    except OSError as error:
        # Nothing listens, or the listener has closed in this very moment.
        if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
            connection.close()
            raise
    connection.close()
    return None
