"""Writes a run's policy for programs without this package, such as `export.py --run=runs/a --format=onnx --out=a.onnx`.

The file has one greedy step, with normalisation and memory inside; its description in JSON is written beside it.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from jaxrl_dist import commands, errors
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.settings import command_line, setting

_NAME = "export"


@dataclasses.dataclass(frozen=True)
class Config:
    """Flags of the command."""

    run: str = setting("", "Run folder.")
    format: str = setting(
        "onnx",
        "onnx, for ONNX's runtimes; or stablehlo, for jax.export.deserialize and what reads StableHLO.",
        choices=("onnx", "stablehlo"),
    )
    out: str = setting("", "File to write; by default policy.onnx or policy.stablehlo in the run's folder.")
    checkpoint: str = setting(
        "latest", "Which parameters: the last, or those of the best evaluation.", choices=("latest", "best")
    )
    seed_index: int = setting(0, "Which of the run's seeds; in a sweep, those of each combination in turn.", low=0)
    trust: tuple[str, ...] = commands.trust()


def main(arguments: Sequence[str]) -> int:
    """Writes both files and prints the description; returns 2, after one line, for a wrong command."""
    usage = f"{commands.usage(_NAME)} --run=FOLDER [--flag=value ...]"
    options, given = command_line.options(Config, arguments, usage, str(__doc__))
    commands.no_more(given.rest)
    if not options.run:
        raise errors.UsageError("expected --run=FOLDER, the folder of a run (--help lists the flags)")
    run_folder.check_is_run(options.run, errors.given("run", options.run))
    out = pathlib.Path(options.out or pathlib.Path(options.run) / f"policy.{options.format}")
    # Imported only now: a wrong command should fail at once.
    from absl import logging

    from jaxrl_dist import export
    from jaxrl_dist.parallel import memory_use
    from jaxrl_dist.training import policy

    logging.set_verbosity(logging.WARNING)
    try:
        with memory_use.named(memory_use.MORE):
            trust = commands.trusted(options.trust)
            loaded = policy.load(options.run, options.checkpoint, options.seed_index, trust=trust)
            described = export.write(loaded, options.format, out)
    except (errors.CheckpointError, errors.EnvironmentFault, memory_use.OutOfMemoryError) as error:
        return commands.refuse(_NAME, " ".join(errors.as_typed(error).split()), 1)
    return commands.say(json.dumps({"file": str(out), "bytes": out.stat().st_size, **described}))
