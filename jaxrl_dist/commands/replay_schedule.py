"""Runs an asynchronous run again in the order of its event log, and says whether the same parameters come out."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Sequence

from jaxrl_dist import commands, errors
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.settings import command_line

_NAME = "replay_schedule"


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the command."""

    trust: tuple[str, ...] = commands.trust()


def main(arguments: Sequence[str]) -> int:
    """Prints one JSON object; exit code 0 if the repeated run is the same, 1 if not, 2 if there is none to repeat."""
    usage = f"{commands.usage(_NAME)} RUN [--flag=value ...]"
    options, given = command_line.options(Config, arguments, usage, str(__doc__))
    folder, *more = commands.folders(given.rest, "RUN")
    commands.no_more([str(path) for path in more])
    run_folder.check_is_run(folder)
    # Imported only now: a wrong command should fail at once.
    from absl import logging

    from jaxrl_dist.parallel import memory_use
    from jaxrl_dist.training import event_replay

    logging.set_verbosity(logging.WARNING)
    # A folder that cannot be written to cannot be locked, and no trainer can use it.
    lock = run_folder.lock(folder) if os.access(folder, os.W_OK) else contextlib.nullcontext()
    try:
        with lock, memory_use.named(memory_use.MORE):
            record = event_replay.replay_schedule(folder, commands.trusted(options.trust))
    except FloatingPointError as error:
        return commands.refuse(_NAME, error, 1)
    except (errors.LockError, errors.CheckpointError, memory_use.OutOfMemoryError, OSError) as error:
        return commands.refuse(_NAME, error)
    commands.say(json.dumps(record))
    return 0 if record["match"] else 1
