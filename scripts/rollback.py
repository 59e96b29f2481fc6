"""Takes an asynchronous run back to a version that its server kept; the command that trained it goes on from there."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from absl import logging  # noqa: E402

from jaxrl_dist import command, config, faults, parsers  # noqa: E402


def main(arguments: list[str]) -> int:
    """Prints one JSON object; exit code 2 where there is no such run or version, 1 where it cannot be saved."""
    parser = parsers.Parser(prog="rollback.py", description=__doc__)
    parser.add_argument("run", type=pathlib.Path, metavar="RUN", help="run folder")
    about = "names the version by the updates that it had had"
    parser.add_argument("updates", type=parsers.value("int", low=0), metavar="UPDATES", help=about)
    options = parser.parse_args(arguments)
    if not (options.run / "config.json").is_file():
        return _refuse(f"{options.run} is no run folder: it has no config.json", 2)
    # Imported only now: JAX takes seconds, and a wrong command should fail at once.
    from jaxrl_dist import checkpoint, histories

    logging.set_verbosity(logging.WARNING)
    try:
        with faults.lock(options.run):
            print(json.dumps(histories.roll_back(options.run, options.updates)))
    except (config.UsageError, faults.LockError) as error:
        return _refuse(error, 2)
    except (checkpoint.CheckpointError, OSError) as error:
        return _refuse(error, 1)
    return 0


def _refuse(reason: object, code: int) -> int:
    print(f"rollback.py: {reason}", file=sys.stderr)
    return code


if __name__ == "__main__":
    command.prepare()
    sys.exit(main(sys.argv[1:]))
