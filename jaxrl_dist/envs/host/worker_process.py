"""The process that steps a share of a pool's environments, and the block of memory that it shares with the pool.

It imports NumPy and the environments' libraries, never JAX: so it starts within a fraction of a second, and leaves the
GPU to the trainer.
"""

import functools
import heapq
import importlib
import json
import mmap
import operator
import os
import runpy
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

TERMINATED, TRUNCATED = 1, 2
# Dtype of the characters of a text.
TEXT = "S1"
_ALIGNMENT = 64
_TEXT_BYTES = 8192
_READ_BYTES = 1 << 16


class Factory(NamedTuple):
    """Describes, in JSON's types, how a process makes an environment with Gymnasium's `reset` and `step`.

    Attributes:
        function: name `module:function`, or `file.py:function` of a file of this package, which is run by its path.
        argument: its argument, as `packed` returns it.
    """

    function: str
    argument: Any


def packed(value: Any) -> Any:
    """Returns numbers, texts, and lists, tuples and dicts of them in JSON's types, from which `unpacked` makes them.

    Raises:
        TypeError: there is something else.
    """
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [packed(one) for one in value]}
    if isinstance(value, dict):
        return {"dict": [[packed(key), packed(one)] for key, one in value.items()]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} is no number, text, list, tuple or dict")


def unpacked(value: Any) -> Any:
    """Returns what `packed` was given."""
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    if kind == "dict":
        return {unpacked(key): unpacked(one) for key, one in items}
    return {"list": list, "tuple": tuple}[kind](map(unpacked, items))


class Leaf(NamedTuple):
    """One array of an observation: the keys that lead to it, its shape and dtype as the pool stores it.

    A text is an array of `TEXT`, as many characters as its shape says, zeros at its end; what is not ASCII is a "?".
    """

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str

    def of(self, observation: Any) -> np.ndarray:
        """Returns the array, as the environment has it."""
        found = functools.reduce(operator.getitem, self.path, observation)
        if self.dtype == TEXT and isinstance(found, str):
            (size,) = self.shape
            return np.frombuffer(found.encode("ascii", "replace")[:size].ljust(size, b"\0"), TEXT)
        return np.asarray(found)

    @property
    def name(self) -> str:
        """Its name for messages."""
        return "/".join(["observation", *map(str, self.path)])


class Field(NamedTuple):
    """One array of the block."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def fields(num_envs: int, num_workers: int, action: tuple[tuple[int, ...], str], leaves: Sequence[Leaf]) -> list[Field]:
    """Lists the arrays of the block of B environments, with actions of this shape and dtype, and W workers.

    Observations have two slots per environment, so that the last whole one survives the death of a process while it
    writes the next. `env` and `since` have the environment that a worker is stepping (−1: none) and when it began, in
    seconds of the monotonic clock. `built` says whether its environments are made, `stepped` whether it or one of its
    predecessors has made a step.
    """
    per_env = [("seed", "u4"), ("slot", "i4"), ("reward", "f8"), ("flags", "u1")]
    per_worker = [("env", "i4"), ("since", "f8"), ("built", "u1"), ("stepped", "u1")]
    return [
        Field("action", (num_envs, *action[0]), action[1]),
        *(Field(name, (num_envs,), dtype) for name, dtype in per_env),
        *(Field(name, (num_workers,), dtype) for name, dtype in per_worker),
        Field("text", (num_workers, _TEXT_BYTES), "u1"),
        *(Field(f"leaf{i}", (2, num_envs, *leaf.shape), leaf.dtype) for i, leaf in enumerate(leaves)),
    ]


def size(members: Iterable[Field]) -> int:
    """Returns the bytes of the block."""
    return sum(_bytes(field) for field in members)


def views(block: mmap.mmap, members: Iterable[Field]) -> dict[str, np.ndarray]:
    """Returns the arrays of the block by name."""
    found, offset = {}, 0
    for field in members:
        found[field.name] = np.ndarray(field.shape, field.dtype, block, offset)
        offset += _bytes(field)
    return found


def main() -> None:
    """Makes the environments that standard input names in JSON, and steps them until the pool closes its pipe."""
    job = json.loads(sys.stdin.buffer.read())
    # Only the pool ends its processes, so that the trainer can save after a signal to the whole job. Programs that an
    # environment starts would inherit "ignore", but not a handler that does nothing.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    sys.path[:] = job["path"]
    arrays = views(
        mmap.mmap(job["block"], 0), [Field(name, tuple(shape), dtype) for name, shape, dtype in job["fields"]]
    )
    leaves = [Leaf(tuple(path), tuple(shape), dtype) for path, shape, dtype in job["leaves"]]
    worker = _Worker(job["index"], arrays, leaves, job["results"], job["eager"])
    try:
        worker.build(job["envs"], Factory(*job["factory"]))
        worker.serve(job["commands"])
        worker.close()
    except BaseException as error:
        worker.publish()
        text = described(error).encode()[:_TEXT_BYTES]
        arrays["text"][job["index"], : len(text)] = np.frombuffer(text, np.uint8)
        sys.stderr.flush()
        # If main merely returned, threads of an environment could keep the process alive.
        os._exit(1)


class _Worker:
    """The environments of one process."""

    def __init__(
        self, index: int, arrays: dict[str, np.ndarray], leaves: Sequence[Leaf], results: int, eager: bool
    ) -> None:
        self._arrays, self._leaves, self._results, self._eager = arrays, leaves, results, eager
        self._env, self._since = arrays["env"][index:], arrays["since"][index:]
        self._built, self._stepped = arrays["built"][index:], arrays["stepped"][index:]
        self._environments: dict[int, Any] = {}
        self._targets: dict[int, list[list[np.ndarray]]] = {}
        self._ended: dict[int, bool] = {}
        self._finished: list[int] = []

    def build(self, envs: Sequence[int], factory: Factory) -> None:
        """Makes the environments of these indices."""
        make, argument = _resolve(factory.function), unpacked(factory.argument)
        for env in envs:
            self._at(env)
            self._environments[env] = make(argument)
            self._targets[env] = [
                [self._arrays[f"leaf{i}"][slot, env, ...] for i in range(len(self._leaves))] for slot in (0, 1)
            ]
            self._ended[env] = False
        # Set the time anew, since making the last one may have taken longer than a step may.
        self._at(-1)
        self._built[0] = 1

    def serve(self, commands: int) -> None:
        """Executes commands i32, `env` to step and `~env` to reset with its seed, until their pipe is closed.

        Commands are executed in the order of arrival, but a slow environment is put off: by the time of its last step
        times the number of the process's environments. So it delays the others little, but gets its share of the time.
        """
        patience = len(self._environments) if self._eager else 0
        cost = dict.fromkeys(self._environments, 0.0)
        waiting: list[tuple[float, int]] = []
        poll = select.poll()
        poll.register(commands, select.POLLIN)
        while True:
            if not waiting or (self._eager and poll.poll(0)):
                received = os.read(commands, _READ_BYTES)
                if not received:
                    return
                now = time.monotonic()
                for (command,) in struct.iter_unpack("i", received):
                    heapq.heappush(waiting, (now + patience * cost[max(command, ~command)], command))
            _, command = heapq.heappop(waiting)
            env = max(command, ~command)
            started = self._at(env)
            self._advance(env, reseed=command < 0)
            cost[env] = time.monotonic() - started
            self._finished.append(env)
            self._env[0] = -1
            if self._eager or not waiting:
                self.publish()

    def publish(self) -> None:
        """Tells the pool which environments have finished."""
        if self._finished:
            os.write(self._results, struct.pack(f"{len(self._finished)}i", *self._finished))
            self._finished.clear()

    def close(self) -> None:
        """Closes the environments."""
        for environment in self._environments.values():
            environment.close()

    def _at(self, env: int) -> float:
        """Notes which environment the worker is stepping, and returns the time."""
        now = time.monotonic()
        self._env[0], self._since[0] = env, now
        return now

    def _advance(self, env: int, reseed: bool) -> None:
        """Steps an environment, or resets it after the end of an episode, and writes the results into the block."""
        environment, arrays = self._environments[env], self._arrays
        reward, flags = 0.0, 0
        if reseed:
            observation, _ = environment.reset(seed=int(arrays["seed"][env]))
        elif self._ended[env]:
            observation, _ = environment.reset()
        else:
            action = arrays["action"][env]
            action = action.copy() if action.ndim else action
            observation, reward, terminated, truncated, _ = environment.step(action)
            flags = TERMINATED * bool(terminated) + TRUNCATED * bool(truncated)
            if reward is None:
                # NumPy would turn None into NaN.
                raise TypeError("the reward is None, expected a number")
            if np.ndim(reward):
                raise TypeError(f"the reward has shape {list(np.shape(reward))}, expected a number")
        for leaf, target in zip(self._leaves, self._targets[env][arrays["slot"][env]], strict=True):
            value = leaf.of(observation)
            if value.shape != leaf.shape:
                raise ValueError(f"the {leaf.name} has shape {list(value.shape)}, its space has {list(leaf.shape)}")
            np.copyto(target, value, casting="same_kind")
        arrays["reward"][env], arrays["flags"][env] = reward, flags
        self._ended[env] = flags != 0
        self._stepped[0] |= not reseed


def described(error: BaseException) -> str:
    """Describes an error in one line, followed by the traceback within the environment's code, if there is one."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    place, advice = f" at {os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else "", ""
    # The error may come from Gymnasium's own wrappers, which unpack the tuple that the environment returned.
    if "values to unpack" in str(error) and all(f"{os.sep}gymnasium{os.sep}" in frame.filename for frame in frames):
        advice = "; reset returns (observation, info), step (observation, reward, terminated, truncated, info)"
        frames, place = [], ""
    summary = " ".join(f"{type(error).__name__}{place}: {error}{advice}".split())
    return "\n".join([summary, "".join(traceback.format_list(frames))]).rstrip()


def _resolve(name: str) -> Any:
    """Imports the object that `module:attribute.attribute`, or `file.py:function`, names."""
    module, _, path = name.rpartition(":")
    if module.endswith(".py"):
        return runpy.run_path(module)[path]
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _bytes(field: Field) -> int:
    """Returns the bytes of an array, up to where the next one starts."""
    count = int(np.prod(field.shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize
    return -(-count // _ALIGNMENT) * _ALIGNMENT
