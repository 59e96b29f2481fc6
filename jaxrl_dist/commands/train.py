"""Trains a system on an environment; `--help` lists the flags."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_dist import commands, processes
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.systems import training_flags
from jaxrl_dist.training import resume

_NAME = "train"


def main(arguments: Sequence[str]) -> int:
    """Checks the command line, then trains; returns the exit code."""
    command = training_flags.parse(arguments, commands.usage(_NAME))
    if command.settings is None:
        return commands.say(command.text)
    if command.dry_run:
        return _rehearse(command)
    if command.in_processes.is_one:
        with resume.open_folder(command.flags, command.settings):
            return train(command.flags)
    training_flags.check_processes(command.flags, command.settings, command.in_processes.processes)
    # Process 0 alone may touch the folder, and each knows only when it has joined the others which one it is.
    return train(command.flags, command.in_processes)


def train(flags: Mapping[str, Any], in_processes: processes.Group = processes.Group()) -> int:  # noqa: B008
    """Trains as a script does: signals stop it, virtual devices and the compilation cache are on; returns exit code."""
    # Imported only now: Orbax and matplotlib take seconds, and a wrong command should fail at once.
    from jaxrl_dist.parallel import placement
    from jaxrl_dist.training import runner, session, summary
    from jaxrl_dist.training import stop as stopping

    runner.prepare()
    runner.keep_programs()
    stop = stopping.StopToken()
    with stop.install(), contextlib.ExitStack() as stack:
        with stop.at_once("stopped before the run began; nothing was saved"):
            stack.enter_context(processes.begun(in_processes))
        try:
            run = runner.drive(flags, placement.devices(), stop, display=True, heartbeat_s=in_processes.heartbeat_s)
        except runner.FAULTS as error:
            return commands.refuse(_NAME, error, 1)
        is_first = processes.is_first()
    if not is_first:
        return stop.exit_code if run.reason == session.STOPPED else 0
    if run.reason == session.STOPPED:
        if not run_folder.left(run.folder):
            commands.say("stopped before the run began; nothing was saved")
            return stop.exit_code
        commands.say(f"stopped and saved; the same command goes on from {run.summary['env_steps']:,} steps")
        return stop.exit_code
    return commands.say(summary.describe(run.folder, run.summary))


def _rehearse(command: training_flags.Command) -> int:
    """Prints a description of the run; returns the exit code."""
    import jax

    from jaxrl_dist.parallel import placement
    from jaxrl_dist.processes import cgroups
    from jaxrl_dist.training import compiled, dry_run, runner, targets
    from jaxrl_dist.training import stop as stopping

    runner.prepare()
    flags, settings, count = command.flags, command.settings, int(command.in_processes.processes)
    assert settings is not None
    if count > 1 and cgroups.num_cores() == 1:
        # What processes exchange is seen in the program of two devices.
        jax.config.update("jax_num_cpu_devices", 2)
    stop = stopping.StopToken()
    with stop.install(), stop.at_once("stopped; nothing was written"):
        try:
            if command.target:
                lines = compiled.describe(compiled.compile_run(flags, targets.make(command.target)))
            else:
                runner.keep_programs()
                lines = dry_run.describe(flags, settings, placement.devices(), num_processes=count)
            for line in lines:
                commands.say(line)
        except runner.FAULTS as error:
            return commands.refuse(_NAME, error, 1)
    return 0
