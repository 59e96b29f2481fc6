"""Runs an asynchronous run again in the order of its event log, and says whether the same parameters come out."""

import contextlib
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from absl import logging  # noqa: E402

from jaxrl_dist import command, config, faults, parsers  # noqa: E402


def main(arguments: list[str]) -> int:
    """Prints one JSON object; exit code 0 if it is the same run, 1 if not, 2 where there is none to repeat."""
    parser = parsers.Parser(prog="replay_schedule.py", description=__doc__)
    parser.add_argument("run", type=pathlib.Path, metavar="RUN", help="run folder")
    folder = parser.parse_args(arguments).run
    if not (folder / "config.json").is_file():
        print(f"replay_schedule.py: {folder} is no run folder: it has no config.json", file=sys.stderr)
        return 2
    # Imported only now: JAX takes seconds, and a wrong command should fail at once.
    from jaxrl_dist import checkpoint, histories

    logging.set_verbosity(logging.WARNING)
    # Nobody trains in a folder that cannot be written to, nor can it be locked.
    lock = faults.lock(folder) if os.access(folder, os.W_OK) else contextlib.nullcontext()
    try:
        with lock:
            record = histories.replay_schedule(folder)
    except (config.UsageError, faults.LockError, checkpoint.CheckpointError, OSError) as error:
        print(f"replay_schedule.py: {error}", file=sys.stderr)
        return 2
    print(json.dumps(record))
    return 0 if record["match"] else 1


if __name__ == "__main__":
    command.prepare()
    sys.exit(main(sys.argv[1:]))
