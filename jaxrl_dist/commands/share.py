"""Writes a run for others: `share.py --run=runs/a --to=FOLDER` into a folder, `--to=hf:owner/name` onto the Hub.

It has settings, parameters, results, report, films (evaluate.py --video makes them) and a model card;
`evaluate.py --run=` takes the folder.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from jaxrl_dist import commands, errors
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.settings import command_line, setting

_NAME = "share"


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the command."""

    run: str = setting("", "Run folder.")
    to: str = setting("", "Folder to write; or hf:owner/name, a page of the Hugging Face Hub (HF_TOKEN says whose).")
    private: bool = setting(False, "Make a new page of the Hub that only its owner sees.")


def main(arguments: Sequence[str]) -> int:
    """Writes and prints where; returns 2, after one line, for a wrong command, 1 where something cannot be written."""
    usage = f"{commands.usage(_NAME)} --run=FOLDER --to=FOLDER|hf:owner/name [--flag=value ...]"
    options, given = command_line.options(Config, arguments, usage, str(__doc__))
    commands.no_more(given.rest)
    if not options.run or not options.to:
        raise errors.UsageError("expected --run=FOLDER and --to=FOLDER or --to=hf:owner/name (--help lists the flags)")
    run_folder.check_is_run(options.run, errors.given("run", options.run))
    # Imported only now: a wrong command should fail at once.
    from absl import logging

    from jaxrl_dist.export import share

    logging.set_verbosity(logging.WARNING)
    try:
        shared = share.share(pathlib.Path(options.run), options.to, options.private)
    except (errors.CheckpointError, OSError) as error:
        return commands.refuse(_NAME, " ".join(errors.as_typed(error).split()), 1)
    return commands.say(json.dumps(shared))
