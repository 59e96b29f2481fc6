"""The command that trains, which is `scripts/train.py` and, where the package is installed, `jaxrl-dist`."""

import os
import sys
from collections.abc import Sequence

from jaxrl_dist import config, faults, flags


def start() -> int:
    """Runs the command that this process was called with, as a console script does; returns the exit code."""
    prepare()
    return main(sys.argv[1:])


def prepare() -> None:
    """Readies the process of a command: modules of the user's own are found, and signals end it silently."""
    # Those that --network or --env name lie in the current folder.
    sys.path.insert(0, "")
    # Until a run listens to signals itself.
    faults.leave_on_signals()


def main(arguments: Sequence[str]) -> int:
    """Checks the command line, then trains; returns the exit code."""
    try:
        command = flags.parse(arguments)
        if command.text:
            return _print(command.text)
        if command.dry_run:
            from jaxrl_dist import dry_run

            return dry_run.main(command)
        with flags.open_folder(command):
            # Imported only now: JAX takes seconds, and a wrong command should fail at once.
            from jaxrl_dist import runner

            return runner.main(command.flags)
    except config.UsageError as error:
        flags.print_error(error)
        return 2
    except KeyboardInterrupt:
        return 130


def _print(text: str) -> int:
    """Prints to a reader that may stop early, such as `head`."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
