"""Writes the reference curves of a study from its finished runs, for `scripts/compare.py`.

Example: python benchmarks/write_reference.py --name=cartpole_ppo runs/learn/cartpole_ppo/all
"""

import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jaxrl_dist import errors  # noqa: E402
from jaxrl_dist.analysis import reference  # noqa: E402
from jaxrl_dist.runs import view  # noqa: E402


def main(arguments: list[str]) -> int:
    """Writes what the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(prog="write_reference.py", description=__doc__)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN", help="finished runs of one study")
    parser.add_argument("--name", required=True, help="of the study")
    parser.add_argument(
        "--out", type=pathlib.Path, default=ROOT / "benchmarks" / "reference", help="folder to write to"
    )
    options = parser.parse_args(arguments)
    try:
        print(reference.write(options.out, options.name, [view.read(run) for run in options.runs]))
    except (errors.UsageError, OSError) as error:
        print(f"write_reference.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
