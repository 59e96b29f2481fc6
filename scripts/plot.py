"""Draws the learning curves of runs into one picture: `python scripts/plot.py runs/a runs/b --out=curves.png`."""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxrl_dist import metrics, plots  # noqa: E402


def main(arguments: list[str]) -> int:
    """Draws the runs that the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(prog="plot.py", description=__doc__)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN", help="run folder")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("curves.png"), help="picture to write")
    parser.add_argument("--labels", help="one label per run, separated by commas; the folders by default")
    parser.add_argument("--title", default="", help="text above the picture")
    options = parser.parse_args(arguments)
    labels = options.labels.split(",") if options.labels else [str(run) for run in options.runs]
    if len(labels) != len(options.runs) or len(set(labels)) < len(labels):
        return _refuse(f"{len(options.runs)} runs need as many different labels, not {', '.join(labels)}")
    for run in options.runs:
        if not run.is_dir():
            return _refuse(f"{run} is no run folder")
    kinds = (".png", ".pdf", ".svg")
    if options.out.suffix.lower() not in kinds:
        return _refuse(f"--out={options.out}: expected a name that ends in one of {', '.join(kinds)}")
    runs = {label: metrics.read(run) for label, run in zip(labels, options.runs, strict=True)}
    for run, records in zip(options.runs, runs.values(), strict=True):
        if not any(record["kind"] == "eval" for record in records):
            return _refuse(f"{run / metrics.FILE_NAME} holds no evaluation to draw")
    try:
        plots.learning_curve(runs, options.out, options.title)
    except OSError as error:
        return _refuse(f"--out={options.out} cannot be written: {error.strerror or error}")
    print(options.out)
    return 0


def _refuse(reason: str) -> int:
    print(f"plot.py: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
