"""Says whether a run learns like the reference of its system and environment, such as `compare.py runs/a`.

Several folders are one run with the seeds of all. Exits with 0 inside the reference's band, with 1 outside of it, and
with 2 if there is no reference or the command is wrong.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from jaxrl_dist import commands, errors
from jaxrl_dist.analysis import compare, reference
from jaxrl_dist.runs import view
from jaxrl_dist.settings import command_line, setting

_NAME = "compare"
# Reference curves of a checkout; a wheel has none.
_REFERENCES = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "reference"


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the command."""

    references: str = setting("", "Folder of the reference curves; empty takes those of the checkout.")
    list: bool = setting(False, "List the references, and exit.")


def main(arguments: Sequence[str]) -> int:
    """Compares what the command line names; returns the exit code."""
    usage = f"{commands.usage(_NAME)} RUN [RUN ...] [--flag=value ...]"
    options, given = command_line.options(Config, arguments, usage, str(__doc__))
    if not options.references and not _REFERENCES.is_dir():
        raise errors.UsageError("--references: expected a folder, such as benchmarks/reference of a checkout")
    references = reference.read_all(pathlib.Path(options.references or _REFERENCES))
    if options.list:
        return commands.say("\n".join(one.title for one in references))
    if not given.rest:
        raise errors.UsageError("expected a run folder; --list names the references")
    views = [view.read(run) for run in commands.folders(given.rest, "RUN")]
    verdict = compare.judge(references, views)
    commands.say(compare.describe(verdict, views))
    return 0 if verdict.result.is_inside else 1
