"""Shows how far a run is: one live line in a terminal or notebook, or a plain line every few seconds in a log file."""

import math
import numbers
import time
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

_SECONDS_BETWEEN_PLAIN_LINES = 5.0


class Display(Protocol):
    """Shows the progress of a run."""

    def update(self, text: str) -> None:
        """Replaces the live line."""

    def say(self, text: str) -> None:
        """Prints a line that stays."""

    def close(self) -> None:
        """Leaves the newest live line on the screen."""


def make(stream: TextIO, *, is_live: bool) -> Display:
    """Chooses how to show a run on a stream.

    Args:
        stream: terminal, output of a notebook's cell, file or pipe.
        is_live: whether to show progress, beside what is said.
    """
    if not is_live:
        return _Plain(stream, seconds_between=math.inf)
    # Before terminals, as a kernel may call its stream one.
    if type(stream).__module__.startswith("ipykernel."):
        return _Overwritten(stream)
    return _Live(stream) if stream.isatty() else _Plain(stream, _SECONDS_BETWEEN_PLAIN_LINES)


def progress_line(
    record: Mapping[str, Any], title: str = "", total_steps: int = 0, first: Mapping[str, Any] | None = None
) -> str:
    """Says in one line how far a run is.

    Args:
        record: the newest value of each name; only `env_steps` must be there.
        title: opens the line.
        total_steps: where the run ends, 0 where that is unknown.
        first: the first record of the session; the time left follows from the pace since then.

    Returns:
        Such as "ppo gymnax:CartPole-v1 · 250k/500k steps · 84k steps/s · return 312 · evaluated 475 · 0:03 left".
    """
    steps = record["env_steps"]
    parts = [title] if title else []
    parts.append(f"{count(steps)}/{count(total_steps)} steps" if total_steps else f"{count(steps)} steps")
    if record.get("frames", steps) != steps:
        parts.append(f"{count(record['frames'])} frames")
    if _is_finite(record.get("steps_per_second")):
        parts.append(f"{count(record['steps_per_second'])} steps/s")
    for name, word in (("episode_return", "return"), ("eval_return", "evaluated")):
        if _is_finite(record.get(name)):
            parts.append(f"{word} {_score(record[name])}")
    seconds = _seconds_left(record, total_steps, first or {})
    if seconds is not None:
        parts.append(f"{_clock(seconds)} left")
    return " · ".join(parts)


def count(number: float) -> str:
    """Writes a count with up to four digits: 950, 84.21k, 1.25M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.4g}{letter}"
    return f"{number:.0f}"


class _Plain:
    """Lines of text; the live line is printed every few seconds, and a last time at the end."""

    def __init__(self, stream: TextIO, seconds_between: float) -> None:
        self._stream = stream
        self._seconds_between = seconds_between
        self._next_s = -math.inf if math.isfinite(seconds_between) else math.inf
        self._unprinted = ""

    def update(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._next_s:
            self.say(text)
            self._next_s, self._unprinted = now + self._seconds_between, ""
        elif math.isfinite(self._next_s):
            self._unprinted = text

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._unprinted:
            self.say(self._unprinted)
            self._unprinted = ""


class _Live:
    """One line that is drawn anew in place, below everything that is said."""

    def __init__(self, stream: TextIO) -> None:
        from rich import console, live

        self._console = console.Console(file=stream, highlight=False)
        # Without a thread of its own, and leaving sys.stdout and sys.stderr alone.
        self._live = live.Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def update(self, text: str) -> None:
        from rich import text as rich_text

        self._live.start()
        self._live.update(rich_text.Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


class _Overwritten:
    """One line that is written anew over itself, below everything that is said.

    Notebooks know the carriage return, but no other control of a terminal; what `rich` shows there needs ipywidgets.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = ""

    def update(self, text: str) -> None:
        self._write(text, "")
        self._shown = text

    def say(self, text: str) -> None:
        self._write(text, f"\n{self._shown}")

    def close(self) -> None:
        if self._shown:
            print(file=self._stream, flush=True)
            self._shown = ""

    def _write(self, text: str, end: str) -> None:
        """Writes text over the live line, with blanks where that was longer."""
        opens = "\r" * bool(self._shown)
        print(f"{opens}{text.ljust(len(self._shown))}", end=end, file=self._stream, flush=True)


def _seconds_left(record: Mapping[str, Any], total_steps: int, first: Mapping[str, Any]) -> float | None:
    """Extends the pace since the first record to the end; None before there is one.

    The pace of the whole run would count compiling, and sessions on other machines.
    """
    if not total_steps or not _is_finite(record.get("wall_s")) or not _is_finite(first.get("wall_s")):
        return None
    done, seconds = record["env_steps"] - first["env_steps"], record["wall_s"] - first["wall_s"]
    return max(0, total_steps - record["env_steps"]) * seconds / done if done > 0 and seconds >= 0 else None


def _is_finite(value: Any) -> bool:
    """Says whether a value is a number that can be shown."""
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _score(number: float) -> str:
    """Writes a return with four digits."""
    return f"{number:.4g}" if abs(number) < 1e4 else f"{number:.0f}"


def _clock(seconds: float) -> str:
    """Writes seconds as m:ss or h:mm:ss."""
    whole = math.ceil(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
