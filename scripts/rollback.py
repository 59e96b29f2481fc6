"""Takes an asynchronous run back to a version that its server kept; the command that trained it goes on from there."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from absl import logging  # noqa: E402

from jaxrl_dist import config, faults  # noqa: E402

_USAGE = "usage: python scripts/rollback.py RUN_FOLDER UPDATES"


def main(arguments: list[str]) -> int:
    """Prints one JSON object; exit code 2 where there is no such run or version, 1 where it cannot be saved."""
    if {"--help", "-h"} & set(arguments):
        print(f"{_USAGE}\n{__doc__}\nUPDATES names the version by the updates that it had had.")
        return 0
    if len(arguments) != 3:
        return _refuse(f"two arguments are needed; {_USAGE}", 2)
    folder, updates = pathlib.Path(arguments[1]), arguments[2].replace("_", "")
    if not (folder / "config.json").is_file():
        return _refuse(f"{folder}: no run folder; {_USAGE}", 2)
    if not updates.isdecimal():
        return _refuse(f"{arguments[2]}: expected a number of updates; {_USAGE}", 2)
    # Imported only now: JAX takes seconds, and a wrong command should fail at once.
    from jaxrl_dist import checkpoint, histories

    logging.set_verbosity(logging.WARNING)
    try:
        with faults.lock(folder):
            print(json.dumps(histories.roll_back(folder, int(updates))))
    except (config.UsageError, faults.LockError) as error:
        return _refuse(error, 2)
    except checkpoint.CheckpointError as error:
        return _refuse(error, 1)
    return 0


def _refuse(reason: object, code: int) -> int:
    print(f"rollback.py: {reason}", file=sys.stderr)
    return code


if __name__ == "__main__":
    faults.leave_on_signals()
    sys.exit(main(sys.argv))
