"""Trains a run from its flags: resolves settings, assembles, locks the run folder, drives the session, sums up."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from absl import logging
from jax.experimental.compilation_cache import compilation_cache

from jaxrl_dist import errors, processes, systems
from jaxrl_dist.parallel import memory_use, placement
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.processes import cgroups
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.runs import loggers, software
from jaxrl_dist.settings import resolve, sweep
from jaxrl_dist.systems import training_flags
from jaxrl_dist.training import arguments, assemble, auto_layout, resume, session
from jaxrl_dist.training import stop as stopping
from jaxrl_dist.training import summary as run_summary

# Errors that end a run in one line, beside a wrong command.
FAULTS = (
    *(FloatingPointError, errors.CheckpointError, errors.EnvironmentFault, errors.LockError),
    *(memory_use.OutOfMemoryError, OSError, processes.ProcessFault),
)


class Run(NamedTuple):
    """A run that has stopped.

    Attributes:
        folder: of the run.
        summary: the contents of its `summary.json`.
        reason: why it stopped, `finished` if it has all its steps.
    """

    folder: pathlib.Path
    summary: dict[str, Any]
    reason: str

    def __repr__(self) -> str:
        steps, score = self.summary["env_steps"], self.summary["eval_return_mean"]
        evaluated = "" if score is None else f", evaluated {score:.4g}"
        return f"Run({self.folder}: {self.reason} at {steps:,} steps{evaluated})"


def train(
    system: str | systems.System | None = None,
    env: Any = None,
    *,
    devices: Sequence[jax.Device] | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[session.Callback] = (),
    display: bool = False,
    **run_settings: Any,
) -> Run:
    """Trains a system, or resumes the run if the folder already holds it.

    Args:
        system: name of a system, `module:SYSTEM`, or a `System` of one's own; by default that of the preset.
        env: environment as suite:name, by default that of the preset; or one of Gymnasium's, of which many are made
            in other processes: a class, a function without arguments that makes one (or a `functools.partial` of either
            with arguments by name), or an instance that `gymnasium.make` made.
        devices: devices to train on; by default all there are.
        settings: by flag name, such as `{"agent.discount": 0.9}`.
        callbacks: functions of a record, a dict; each is called with every record that is logged. A true result saves
            and ends the run; if it is a text, the run's `reason` contains it. The same call resumes the run.
        display: print what the command prints: what runs where, and a live line of progress.
        **run_settings: `steps`, `seed`, `num_seeds`, `out` and the other settings without a dot in their name.

    Returns:
        `Run`.

    Raises:
        UsageError: arguments or settings are not valid.
        FloatingPointError: training diverged.
        EnvironmentFault: an environment died, hung or gave an invalid value; the run was saved.
        LockError: another process trains in the folder, or has taken it over.
        CheckpointError: its checkpoints are corrupt, or cannot be written.
        MemoryError: something was too large.
        KeyboardInterrupt: Ctrl-C, after the run was saved; a second one ends it at once.
        Exception: one that a callback raised, after the run was saved.

    Example:
        >>> import jaxrl_dist
        >>> run = jaxrl_dist.train("ppo", "toy:walk", steps=2_048, out="runs/walk", settings={"agent.discount": 0.9})
        >>> run.reason, run.summary["env_steps"]
        ('finished', 2048)
    """
    arguments.check_session(devices, callbacks, display)
    named = assemble.by_flag(system, env, settings, run_settings)
    stop = stopping.StopToken()
    with stop.interruptible():
        return drive(named, devices or placement.devices(), stop, display=display, callbacks=callbacks)


def prepare() -> None:
    """Sets up the process of a script before JAX has a backend: few log lines, flat memory, a device per core."""
    logging.set_verbosity(logging.WARNING)
    memory_use.keep_flat()
    use_cores()


def drive(
    named: Mapping[str, Any],
    devices: Sequence[jax.Device],
    stop: stopping.StopToken,
    *,
    display: bool,
    callbacks: Sequence[session.Callback] = (),
    heartbeat_s: float = processes.HEARTBEAT_S,
) -> Run:
    """Trains a run until it is finished or a stop is requested; saves and sums up either way.

    Each of several processes calls it with the same settings, and all return the same run.

    Args:
        named: settings by flag name.
        devices: devices to choose from.
        stop: checked between updates.
        display: whether to show the progress on standard output.
        callbacks: see `train`; those of process 0 are called.
        heartbeat_s: seconds without a sign of life after which another process counts as dead.

    Raises:
        memory_use.OutOfMemoryError: something was too large.
    """
    with processes.watched(stop, heartbeat_s):
        return _drive(named, devices, stop, display and processes.is_first(), callbacks)


def _drive(
    named: Mapping[str, Any],
    devices: Sequence[jax.Device],
    stop: stopping.StopToken,
    display: bool,
    callbacks: Sequence[session.Callback],
) -> Run:
    with processes.alike():
        settings, environment = assemble.resolve(named)
        software.check_trackers(settings)
        sweep.check_once(settings, named)
        training_flags.check_processes(named, settings, processes.count())
    title, log = f"{settings['system']} {settings['env']}", settings.group("log", loggers.Config)
    if not processes.is_first():
        log = dataclasses.replace(log, wandb="", mlflow="", tensorboard=False)
    with (
        memory_use.named(),
        resume.hold_folder(named, settings) as (folder, check_lock),
        session.matmul_precision(settings),
    ):
        with stop.at_once("stopped before the run began; nothing was saved"):
            say = print if display else _say_nothing
            settings, environment = auto_layout.settle(named, settings, environment, folder, devices, say)
        with processes.alike():
            chosen = assemble.choose_devices(settings, devices)
            parts = assemble.assemble(settings, environment, chosen, available=devices)
        with processes.alike():
            started = resume.start(parts, folder)

        def write_config(said: object) -> str:
            # Written only now, as nothing can refuse the run any more. A finished run keeps the config of its training.
            is_done = started.progress.iteration * parts.layout.rows_per_iteration >= settings["steps"]
            is_kept = is_done and run_folder.held(folder) is not None
            changes = () if is_kept else run_folder.write_config(folder, settings)
            return resolve.describe(changes) if changes else ""

        changes = processes.exchange(None, write_config)
        with (
            contextlib.closing(parts.layout),
            loggers.Logger(folder, log, title=title, settings=settings.settings, display=display) as logger,
        ):
            if changes:
                logger.say(f"changed since the last session: {changes}")
            result = session.run(parts, folder, started, logger, stop, callbacks, check_lock)

        params = meshes.to_host(result.params)

        def sum_up(said: object) -> dict[str, Any]:
            check_lock()
            return run_summary.write_summary(folder, parts, result._replace(params=params))

        summary = processes.exchange(None, sum_up)
    return Run(folder, summary, result.reason)


def _say_nothing(text: str) -> None:
    """Prints nothing, for a run without display."""


def use_cores() -> None:
    """Makes one virtual CPU device per core that this process may use; for scripts, before JAX has a backend.

    JAX's own `JAX_NUM_CPU_DEVICES` gives another number. The thread that calls a program on a CPU computes it, too.
    """
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        jax.config.update("jax_num_cpu_devices", cgroups.num_cores())
    # Else an actor's small program waits in the client's threads behind the learner's.
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def keep_programs() -> None:
    """Keeps compiled programs between processes; for scripts, before anything is compiled."""
    # JAX decides once whether to keep programs; this makes it decide again.
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def cache_folder() -> pathlib.Path:
    """Returns where compiled programs are kept between processes, `$XDG_CACHE_HOME/jaxrl_dist` or its usual default."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "jaxrl_dist"
