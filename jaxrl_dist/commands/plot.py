"""Draws runs into one picture, such as `plot.py runs/a runs/b --panels=steps,minutes,lag --out=curves.png`."""

import dataclasses
import pathlib
from collections.abc import Sequence

from jaxrl_dist import commands, errors
from jaxrl_dist.analysis import plots
from jaxrl_dist.analysis import published as published_results
from jaxrl_dist.runs import metrics
from jaxrl_dist.runs import view as run_view
from jaxrl_dist.settings import command_line, setting

_NAME = "plot"


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the command."""

    out: str = setting("curves.png", "Picture to write.")
    labels: str = setting("", "One label per run, separated by commas; the folders by default.")
    title: str = setting("", "Text above the picture.")
    panels: tuple[str, ...] = setting(plots.RETURNS, "Parts of the picture, from left to right.", choices=plots.PANELS)
    published: bool = setting(True, "Show random play, people and published runs too.")


def main(arguments: Sequence[str]) -> int:
    """Draws the runs that the command line names; returns the exit code."""
    usage = f"{commands.usage(_NAME)} RUN [RUN ...] [--flag=value ...]"
    options, given = command_line.options(Config, arguments, usage, str(__doc__))
    commands.say(str(_draw(options, commands.folders(given.rest, "RUN"))))
    return 0


def _draw(options: Config, runs: Sequence[pathlib.Path]) -> pathlib.Path:
    """Checks the command and draws.

    Raises:
        UsageError: a flag is not valid, or the runs record nothing to draw.
    """
    out = pathlib.Path(options.out)
    if out.suffix.lower() not in plots.FORMATS:
        raise errors.UsageError(f"--out={out}: expected a name that ends in one of {', '.join(plots.FORMATS)}")
    read = run_view.read_all(runs, options.labels or None)
    views = [member for view in read for member in run_view.members(view)]
    for view in read:
        if not view.evaluation:
            raise errors.UsageError(f"{view.folder / metrics.FILE_NAME} holds no evaluation to draw")
    recorded = [one for one in plots.PANELS if any(plots.is_recorded(one, view.records) for view in views)]
    if not set(options.panels) & set(recorded):
        raise errors.UsageError(
            f"--panels={','.join(options.panels)}: these runs record none of it; valid: {', '.join(recorded)}"
        )
    marks = published_results.marks_of(views) if options.published else published_results.NO_MARKS
    records = {view.label: view.records for view in views}
    try:
        plots.learning_curve(records, out, options.title, options.panels, marks)
    except OSError as error:
        raise errors.UsageError(f"--out={out} cannot be written: {error.strerror or error}") from None
    return out
