"""Runs an asynchronous run again in the order of its event log, and says whether the same parameters come out."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from absl import logging  # noqa: E402

from jaxrl_dist import config, faults  # noqa: E402

_USAGE = "usage: python scripts/replay_schedule.py RUN_FOLDER"


def main(arguments: list[str]) -> int:
    """Prints one JSON object; exit code 0 if it is the same run, 1 if not, 2 where there is none to repeat."""
    if {"--help", "-h"} & set(arguments):
        print(f"{_USAGE}\n{__doc__}")
        return 0
    if len(arguments) != 2 or not (pathlib.Path(arguments[1]) / "config.json").is_file():
        given = arguments[1] if len(arguments) == 2 else ""
        print(f"replay_schedule.py: {given or 'one argument is needed'}: no run folder; {_USAGE}", file=sys.stderr)
        return 2
    # Imported only now: JAX takes seconds, and a wrong command should fail at once.
    from jaxrl_dist import histories

    logging.set_verbosity(logging.WARNING)
    try:
        record = histories.replay_schedule(arguments[1])
    except config.UsageError as error:
        print(f"replay_schedule.py: {error}", file=sys.stderr)
        return 2
    print(json.dumps(record))
    return 0 if record["match"] else 1


if __name__ == "__main__":
    faults.leave_on_signals()
    sys.exit(main(sys.argv))
