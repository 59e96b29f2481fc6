"""One side of a benchmark pair: the line protocol that a timed process speaks with `pairs.py`; it imports no jax.

A worker compiles and warms up, prints `{"ready": true, "import_s", "compile_s", "first_s", "versions"}`, and then
answers each line on its standard input with one line of JSON:

- `go` trains one chunk to the end (results ready, not only dispatched): `{"steps": N, "seconds": s}`, where `steps`
  counts the transitions that were learned from, over all seeds; rows that only reset an environment do not count.
- `evaluate` (where the worker can): `{"return": mean return of evaluation episodes}`, outside the timed chunks.
- `memory`: `{"peak_bytes": N}`, the most that the first device held at once; 0 where it does not say, as a CPU.
- `quit` ends it, as does the end of the input.

The warm-up is not kept where the trainer allows it: the first `go` trains from the initial state.
"""

import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO


class Channel(NamedTuple):
    """Opens the stream of commands, and one for answers that no library's print can reach."""

    commands: TextIO
    answers: TextIO


class Startup(NamedTuple):
    """Seconds of a worker's start: imports; tracing and compiling; process code to the first chunk's result."""

    import_s: float
    compile_s: float
    first_s: float


def open_channel() -> Channel:
    """Keeps standard output for answers and sends everything that is printed later to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return Channel(sys.stdin, answers)


def announce(channel: Channel, startup: Startup, versions: dict[str, str]) -> None:
    """Says that the worker is compiled, warm, and waits for commands."""
    _send(channel, {"ready": True, **{k: round(v, 3) for k, v in startup._asdict().items()}, "versions": versions})


def next_command(channel: Channel) -> str:
    """Waits for a command.

    Returns:
        `go`, `evaluate`, `memory` or `quit`; `quit` at the end of the input.

    Raises:
        ValueError: another word was sent.
    """
    line = channel.commands.readline()
    command = line.strip() if line else "quit"
    if command not in ("go", "evaluate", "memory", "quit"):
        raise ValueError(f"unknown command {command!r}; a worker knows go, evaluate, memory, quit")
    return command


def report(channel: Channel, steps: int, seconds: float) -> None:
    """Answers `go` with the number of transitions and the seconds that one chunk took."""
    _send(channel, {"steps": int(steps), "seconds": seconds})


def serve(channel: Channel, chunk: Callable[[], int], evaluate: Callable[[], float] | None = None) -> None:
    """Answers commands until `quit`.

    Args:
        chunk: trains one chunk, blocks until its results are there, and returns its number of transitions.
        evaluate: returns the mean return of evaluation episodes.
    """
    while (command := next_command(channel)) != "quit":
        if command == "go":
            started = time.perf_counter()
            steps = chunk()
            report(channel, steps, time.perf_counter() - started)
        elif command == "memory":
            _send(channel, {"peak_bytes": _peak_bytes()})
        elif evaluate is None:
            _send(channel, {"error": "this worker does not evaluate"})
        else:
            _send(channel, {"return": evaluate()})


def versions(*packages: str) -> dict[str, str]:
    """Returns the installed version of each package, and of Python."""
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}


def _peak_bytes() -> int:
    jax = sys.modules.get("jax")
    statistics = jax.local_devices()[0].memory_stats() if jax else None
    return int((statistics or {}).get("peak_bytes_in_use", 0))


def _send(channel: Channel, record: dict[str, Any]) -> None:
    channel.answers.write(json.dumps(record) + "\n")
    channel.answers.flush()
