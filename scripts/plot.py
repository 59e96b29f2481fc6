"""Draws runs into one picture: `python scripts/plot.py runs/a runs/b --panels=steps,minutes,lag --out=curves.png`."""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxrl_dist import config, declarations, faults, metrics, panels, parsers, plots, published, run_view  # noqa: E402


def main(arguments: list[str]) -> int:
    """Draws the runs that the command line names; returns the exit code."""
    parser = parsers.Parser(prog="plot.py", description=__doc__)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN", help="run folder")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("curves.png"), help="picture to write")
    parser.add_argument("--labels", help="one label per run, separated by commas; the folders by default")
    parser.add_argument("--title", default="", help="text above the picture")
    what = f"what to show, of {', '.join(plots.PANELS)}; {','.join(plots.RETURNS)} by default"
    parser.add_argument("--panels", default=",".join(plots.RETURNS), help=what)
    parser.add_argument("--no_published", action="store_true", help="leave out random play, people and published runs")
    options = parser.parse_args(arguments)
    try:
        print(_draw(options))
    except config.UsageError as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 2
    return 0


def _draw(options: argparse.Namespace) -> pathlib.Path:
    """Checks the command and draws.

    Raises:
        UsageError: it asks for what cannot be.
    """
    names = [name.strip() for name in options.panels.split(",")]
    for name in names:
        if name not in plots.PANELS:
            hint = declarations.nearest(name, plots.PANELS)
            raise config.UsageError(
                f"--panels={options.panels}: {name or 'nothing'} is none of {', '.join(plots.PANELS)}{hint}"
            )
    if options.out.suffix.lower() not in plots.FORMATS:
        raise config.UsageError(f"--out={options.out}: expected a name that ends in one of {', '.join(plots.FORMATS)}")
    read = run_view.read_all(options.runs, options.labels)
    views = [member for view in read for member in run_view.members(view)]
    for view in read:
        if not view.evaluation:
            raise config.UsageError(f"{view.folder / metrics.FILE_NAME} holds no evaluation to draw")
    recorded = [one for one in plots.PANELS if any(panels.is_recorded(one, view.records) for view in views)]
    if not set(names) & set(recorded):
        raise config.UsageError(
            f"--panels={options.panels}: these runs record none of it; valid: {', '.join(recorded)}"
        )
    marks = published.NO_MARKS if options.no_published else run_view.marks(views)
    runs = {view.label: view.records for view in views}
    try:
        plots.learning_curve(runs, options.out, options.title, names, marks)
    except OSError as error:
        raise config.UsageError(f"--out={options.out} cannot be written: {error.strerror or error}") from None
    return options.out


if __name__ == "__main__":
    faults.leave_on_signals()
    sys.exit(main(sys.argv[1:]))
