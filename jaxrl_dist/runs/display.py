"""Shows the progress of a run: a live line in a terminal or notebook, or a plain line every few seconds in a file."""

import math
import numbers
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TextIO

_SECONDS_BETWEEN_PLAIN_LINES = 5.0
# Columns of the bar, and of a terminal that has room for one.
_BAR, _WIDE = 20, 90


class Line(NamedTuple):
    """The live line.

    Attributes:
        parts: texts from left to right, each with a rank; without room for all, those of the largest rank are left out.
        share: share of the run that is done, None if unknown.
    """

    parts: tuple[tuple[str, int], ...]
    share: float | None = None

    def text(self, width: float = math.inf) -> str:
        """Returns as many parts as fit into so many columns, at least one."""
        parts = list(self.parts)
        while len(parts) > 1 and len(_joined(parts)) > width:
            parts.remove(max(parts, key=lambda part: part[1]))
        return _joined(parts)


class Display(Protocol):
    """Shows the progress of a run."""

    def update(self, line: Line) -> None:
        """Replaces the live line."""

    def say(self, text: str) -> None:
        """Prints a line that stays."""

    def close(self) -> None:
        """Leaves the newest live line on the screen."""


def make(stream: TextIO, *, is_live: bool) -> Display:
    """Chooses how to show a run on a stream.

    Args:
        stream: terminal, output of a notebook's cell, file or pipe.
        is_live: whether to show progress, beside the lines of `say`.
    """
    if not is_live:
        return _Plain(stream, seconds_between=math.inf)
    # Checked before terminals, since a notebook's stream may call itself one.
    if type(stream).__module__.startswith("ipykernel."):
        return _Overwritten(stream)
    return _Live(stream) if stream.isatty() else _Plain(stream, _SECONDS_BETWEEN_PLAIN_LINES)


def progress_line(
    record: Mapping[str, Any],
    title: str = "",
    total_steps: int = 0,
    since: Mapping[str, Any] | None = None,
    members: int = 1,
) -> Line:
    """Says in one line how far a run is.

    Args:
        record: the newest value of each name; only `env_steps` is required.
        title: begin of the line.
        total_steps: steps at which the run ends, 0 if unknown.
        since: an earlier record of the session; pace and time left are computed from the wall time since then.
        members: number of seeds that train side by side.

    Returns:
        Such as "ppo gymnax:CartPole-v1 · 250k/500k steps · 84k steps/s · return 312 · evaluated 475 · 0:03 left".
    """
    steps = record["env_steps"]
    done = f"{count(steps)}/{count(total_steps)} steps" if total_steps else f"{count(steps)} steps"
    # In the order of the line; in a narrow terminal the last ones stay longest.
    parts = [(title, 7), (f"{members} × {done}" if members > 1 else done, 3)]
    if record.get("frames", steps) != steps:
        parts.append((f"{count(record['frames'])} frames", 6))
    pace = _pace(record, since or {})
    if pace:
        parts.append((f"{count(pace * members)} steps/s", 4))
    if record.get("bottleneck"):
        parts.append((f"waits for {record['bottleneck']}", 5))
    for name, word, rank in (("episode_return", "return", 1), ("eval_return", "evaluated", 2)):
        if _is_finite(record.get(name)):
            parts.append((f"{word} {_score(record[name])}", rank))
    if pace and total_steps:
        parts.append((f"{_clock(max(0, total_steps - steps) / pace)} left", 0))
    share = min(1.0, steps / total_steps) if total_steps else None
    return Line(tuple(part for part in parts if part[0]), share)


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

    def update(self, line: Line) -> None:
        now, text = time.monotonic(), line.text()
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
    """One line, with a bar if it has room, that is redrawn in place, below the lines of `say`."""

    def __init__(self, stream: TextIO) -> None:
        from rich import console, live

        self._console = console.Console(file=stream, highlight=False)
        # Without a thread of its own, and leaving sys.stdout and sys.stderr alone.
        self._live = live.Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def update(self, line: Line) -> None:
        from rich import progress_bar, table
        from rich import text as rich_text

        bar = _BAR if line.share is not None and self._console.width >= _WIDE else 0
        shown = table.Table.grid(padding=(0, 1))
        text = rich_text.Text(line.text(self._console.width - bar - bool(bar)), no_wrap=True, overflow="ellipsis")
        if bar:
            shown.add_row(progress_bar.ProgressBar(1.0, line.share or 0.0, width=bar), text)
        else:
            shown.add_row(text)
        self._live.start()
        self._live.update(shown, refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


class _Overwritten:
    """One line that is written over itself, below the lines of `say`.

    Notebooks know the carriage return, but no other control of a terminal, and `rich` needs ipywidgets there.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = ""

    def update(self, line: Line) -> None:
        text = line.text()
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


def _pace(record: Mapping[str, Any], since: Mapping[str, Any]) -> float:
    """Returns the steps per second since an earlier record, 0 if unknown.

    The pace of the whole run would count compiling, and sessions on other machines.
    """
    if not _is_finite(record.get("wall_s")) or not _is_finite(since.get("wall_s")):
        return 0.0
    seconds: float = record["wall_s"] - since["wall_s"]
    return (record["env_steps"] - since["env_steps"]) / seconds if seconds > 0 else 0.0


def _joined(parts: Iterable[tuple[str, int]]) -> str:
    return " · ".join(text for text, _ in parts)


def _is_finite(value: Any) -> bool:
    """Says whether a value is a number that can be shown."""
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _score(number: float) -> str:
    """Writes a return with four digits, or with all before its point; a huge one as a power of ten."""
    return f"{number:.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"


def _clock(seconds: float) -> str:
    """Writes seconds as m:ss or h:mm:ss."""
    whole = math.ceil(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
