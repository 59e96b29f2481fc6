"""Says whether a run learns like the reference of its system and environment: `python scripts/compare.py runs/a`.

Several folders are one run with the seeds of all. Exits with 0 inside the reference's band, with 1 outside of it, and
with 2 where there is no reference or the command is wrong.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jaxrl_dist import comparison, config, faults, parsers, reference, run_view  # noqa: E402


def main(arguments: list[str]) -> int:
    """Compares what the command line names; returns the exit code."""
    parser = parsers.Parser(prog="compare.py", description=__doc__)
    parser.add_argument("runs", nargs="*", type=pathlib.Path, metavar="RUN", help="run folder; several are more seeds")
    folder = ROOT / "benchmarks" / "reference"
    parser.add_argument("--references", type=pathlib.Path, default=folder, help="folder of the reference curves")
    parser.add_argument("--list", action="store_true", help="list the references and exit")
    options = parser.parse_args(arguments)
    try:
        references = reference.read_all(options.references)
        if options.list:
            print("\n".join(one.title for one in references))
            return 0
        if not options.runs:
            raise config.UsageError("expected a run folder; --list names the references")
        views = [run_view.read(run) for run in options.runs]
        verdict = comparison.judge(references, views)
    except config.UsageError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    print(comparison.describe(verdict, views))
    return 0 if verdict.result.is_inside else 1


if __name__ == "__main__":
    faults.leave_on_signals()
    sys.exit(main(sys.argv[1:]))
