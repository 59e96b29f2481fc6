"""Trains a system on an environment; `--help` lists the flags."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_dist import commands
from jaxrl_dist.settings.resolve import Resolved
from jaxrl_dist.systems import training_flags
from jaxrl_dist.training import resume

_NAME = "train"


def main(arguments: Sequence[str]) -> int:
    """Checks the command line, then trains; returns the exit code."""
    command = training_flags.parse(arguments, commands.usage(_NAME))
    if command.settings is None:
        return commands.say(command.text)
    if command.dry_run:
        return _rehearse(command.flags, command.settings, command.target)
    with resume.open_folder(command.flags, command.settings):
        return train(command.flags)


def train(flags: Mapping[str, Any]) -> int:
    """Trains as a script does: signals stop it, virtual devices and the compilation cache are on; returns exit code."""
    # Imported only now: Orbax and matplotlib take seconds, and a wrong command should fail at once.
    import jax

    from jaxrl_dist.training import runner, session, summary
    from jaxrl_dist.training import stop as stopping

    runner.prepare()
    runner.keep_programs()
    stop = stopping.StopToken()
    with stop.install():
        try:
            run = runner.drive(flags, jax.devices(), stop, display=True)
        except runner.FAULTS as error:
            return commands.refuse(_NAME, error, 1)
    if run.reason == session.STOPPED:
        commands.say(f"stopped and saved; the same command goes on from {run.summary['env_steps']:,} steps")
        return stop.exit_code
    return commands.say(summary.describe(run.folder, run.summary))


def _rehearse(flags: Mapping[str, Any], settings: Resolved, target: str) -> int:
    """Prints a description of the run; returns the exit code."""
    import jax

    from jaxrl_dist.training import compiled, dry_run, runner, targets
    from jaxrl_dist.training import stop as stopping

    runner.prepare()
    stop = stopping.StopToken()
    with stop.install(), stop.at_once("stopped; nothing was written"):
        try:
            if target:
                lines = compiled.describe(compiled.compile_run(flags, targets.make(target)))
            else:
                runner.keep_programs()
                lines = dry_run.describe(flags, settings, jax.devices())
            for line in lines:
                commands.say(line)
        except runner.FAULTS as error:
            return commands.refuse(_NAME, error, 1)
    return 0
