"""Trains a system on an environment: `python scripts/train.py --system=ppo --env=gymnax:CartPole-v1`; see `--help`."""

import os
import pathlib
import sys

# From a checkout without installation; and modules of the user's own, named by --network, from the current folder.
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), ""]

from jaxrl_dist import config, faults, flags  # noqa: E402


def main(arguments: list[str]) -> int:
    """Checks the command line, then trains; returns the exit code."""
    try:
        command = flags.parse(arguments)
        if command.text:
            return _print(command.text)
        with flags.open_folder(command):
            # Imported only now: JAX takes seconds, and a wrong command should fail at once.
            from jaxrl_dist import runner

            return runner.main(command.flags)
    except config.UsageError as error:
        print(f"train.py: {error}", file=sys.stderr)
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


if __name__ == "__main__":
    # Until the run listens to them itself.
    faults.leave_on_signals()
    sys.exit(main(sys.argv[1:]))
