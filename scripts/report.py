"""Writes one HTML page about a set of runs: `python scripts/report.py runs/a runs/b --out=report.html`."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxrl_dist import config, faults, parsers, report, run_view  # noqa: E402


def main(arguments: list[str]) -> int:
    """Writes the page of the runs that the command line names; returns the exit code."""
    parser = parsers.Parser(prog="report.py", description=__doc__)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN", help="run folder, finished or not")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("report.html"), help="page to write")
    parser.add_argument("--labels", help="one label per run, separated by commas; the folders by default")
    parser.add_argument("--title", default="", help="heading of the page")
    options = parser.parse_args(arguments)
    try:
        if options.out.suffix.lower() not in (".html", ".htm"):
            raise config.UsageError(f"--out={options.out}: expected a name that ends in .html")
        report.write(run_view.read_all(options.runs, options.labels), options.out, options.title)
    except config.UsageError as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"report.py: --out={options.out} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 2
    print(options.out)
    return 0


if __name__ == "__main__":
    faults.leave_on_signals()
    sys.exit(main(sys.argv[1:]))
