"""Takes an asynchronous run back to a version that its server kept; the command that trained it goes on from there."""

import dataclasses
import json
from collections.abc import Sequence

from jaxrl_dist import commands, errors
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.settings import Field, command_line, fields

_NAME = "rollback"


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the command."""

    trust: tuple[str, ...] = commands.trust()


def main(arguments: Sequence[str]) -> int:
    """Prints one JSON object; exit code 2 if there is no such run or version, 1 if it cannot be saved."""
    usage = f"{commands.usage(_NAME)} RUN UPDATES [--flag=value ...]"
    about = f"{__doc__} UPDATES names the version by the updates that it had had."
    options, given = command_line.options(Config, arguments, usage, about)
    if len(given.rest) < 2:
        raise errors.UsageError("expected RUN UPDATES, a run folder and the updates of a version (--help says more)")
    run, updates, *more = given.rest
    commands.no_more(more)
    try:
        count = fields.parse(Field("UPDATES", "int", 0, "", low=0), updates)
    except ValueError as error:
        raise errors.UsageError(f"UPDATES={updates}: {error}") from None
    run_folder.check_is_run(run)
    # Imported only now: a wrong command should fail at once.
    import pathlib

    from absl import logging

    from jaxrl_dist.parallel import memory_use
    from jaxrl_dist.training import event_replay

    logging.set_verbosity(logging.WARNING)
    folder = pathlib.Path(run)
    try:
        with run_folder.lock(folder), memory_use.named(memory_use.MORE):
            commands.say(json.dumps(event_replay.roll_back(folder, count, commands.trusted(options.trust))))
    except errors.LockError as error:
        return commands.refuse(_NAME, error)
    except (errors.CheckpointError, memory_use.OutOfMemoryError, OSError) as error:
        return commands.refuse(_NAME, error, 1)
    return 0
