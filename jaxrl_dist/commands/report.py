"""Writes one HTML page about a set of runs, such as `report.py runs/a runs/b --out=report.html`.

Exits with 1 if a run cannot be read; the page then shows the others, and says so.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from jaxrl_dist import commands, errors
from jaxrl_dist.analysis import report
from jaxrl_dist.runs import view
from jaxrl_dist.settings import command_line, setting

_NAME = "report"


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the command."""

    out: str = setting("report.html", "Page to write.")
    labels: str = setting("", "One label per run, separated by commas; the folders by default.")
    title: str = setting("", "Heading of the page.")


def main(arguments: Sequence[str]) -> int:
    """Writes the page of the runs that the command line names; returns the exit code."""
    usage = f"{commands.usage(_NAME)} RUN [RUN ...] [--flag=value ...]"
    options, given = command_line.options(Config, arguments, usage, str(__doc__))
    runs, out = commands.folders(given.rest, "RUN"), pathlib.Path(options.out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise errors.UsageError(f"--out={out}: expected a name that ends in .html")
    views, refused = [], []
    for run, label in view.named(runs, options.labels or None):
        try:
            views.append(view.read(run, label))
        except errors.UsageError as error:
            refused.append(str(error))
    if not views:
        raise errors.UsageError(refused[0])
    try:
        report.write(views, out, options.title, refused)
    except OSError as error:
        raise errors.UsageError(f"--out={out} cannot be written: {error.strerror or error}") from None
    for line in refused:
        commands.refuse(_NAME, f"left out: {line}")
    commands.say(str(out))
    return 1 if refused else 0
