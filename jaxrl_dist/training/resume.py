"""Saves the state of a run, and resumes or begins a session from it."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import errors, processes, types
from jaxrl_dist.parallel import memory_use
from jaxrl_dist.runs import checkpoint, events, files, metrics, software, trackers
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.runs.checkpoint import Path
from jaxrl_dist.settings import resolve
from jaxrl_dist.settings.resolve import Resolved
from jaxrl_dist.systems import catalogue, fitting
from jaxrl_dist.training import assemble, records

# A network's file system may show a new file only after some seconds.
_SEEN_WITHIN_S = 15.0
# Settings that say where a run computes.
PLACES = tuple(
    f"layout.{name}" for name in ("num_devices", "learner_devices", "actor_devices", "server_devices", "worker_devices")
)


def snapshot(parts: assemble.Assembly, state: Any) -> Any:
    """Returns a state as a checkpoint holds it."""
    saved = parts.layout.snapshot(state)
    return saved if parts.settings["checkpoint.replay"] else saved._replace(replay=())


def restore_latest(
    parts: assemble.Assembly, folder: Path, keys: jax.Array, template: Any, warn: Callable[[str], None]
) -> tuple[Any, Any] | None:
    """Restores the newest checkpoint that is whole; a replay that was not saved is empty.

    Args:
        parts: assembled system.
        folder: folder of the checkpoints.
        keys: typed keys [S] of the seeds.
        template: the layout's template for these keys.
        warn: called with one line for each corrupt checkpoint.

    Returns:
        State and meta, or None without a checkpoint.

    Raises:
        CheckpointError: there are checkpoints, but none is whole.
        UsageError: the checkpoint is of another configuration, or has other shapes.
    """
    whole = parts.settings["checkpoint.replay"]
    check = functools.partial(_check_same_run, parts.settings, pathlib.Path(folder))
    try:
        found = checkpoint.restore_latest(folder, template if whole else template._replace(replay=()), warn, check)
    except errors.UsageError:
        raise
    except ValueError as error:
        unfit = does_not_fit("the checkpoint", pathlib.Path(folder).parent, error)
        raise errors.UsageError(f"{unfit}, or train into another ", errors.given("out")) from error
    if found is None or whole:
        return found
    state, meta = found
    return emptied(parts, state, keys, meta["iteration"]), meta


def meta_of(parts: assemble.Assembly, progress: records.Progress) -> dict[str, Any]:
    """Returns the data that is saved beside a state: the progress, and all settings as in `config.json`."""
    saved = {**dataclasses.asdict(progress), "config": parts.settings.as_json()}
    return saved if processes.count() == 1 else saved | {"num_processes": processes.count()}


def _check_same_run(settings: Resolved, folder: pathlib.Path, meta: Mapping[str, Any]) -> None:
    """Refuses a checkpoint of another run; the checkpoint itself says so, even without a `config.json`.

    It may be of other devices: what only reads a run uses those that it has.
    """
    if "config" not in meta:
        raise errors.UsageError(
            f"{folder} has checkpoints of an older jaxrl_dist, which lack the run's settings: go on with that, or "
            "train into another ",
            errors.given("out"),
        )
    found = fitting.fit_as_in(settings, meta["config"]).difference(meta["config"])
    _check_same(folder.parent, found._replace(identity=tuple(x for x in found.identity if x.name not in PLACES)))
    checkpoint.check_meta(folder, meta, records.META)
    wrote = meta.get("num_processes", 1)
    if settings["layout"] != "anakin" and wrote != processes.count():
        raise errors.UsageError(
            errors.given("processes", processes.count()),
            f": {settings['layout']} goes on in as many processes as saved it, {wrote}, or in another ",
            errors.given("out"),
        )


def _check_same(folder: pathlib.Path, found: resolve.Difference) -> None:
    if found.identity:
        raise errors.UsageError(
            errors.given("out", folder),
            f" holds a run of another configuration ({resolve.describe(found.identity)}); give its settings to resume "
            "it, or another ",
            errors.given("out"),
        )


def does_not_fit(subject: str, folder: pathlib.Path, error: ValueError) -> str:
    """Says in one line that a saved tree of a run folder has other leaves than this version's, and what to do."""
    writer = software.other_version(folders.held(folder) or {})
    cause = "if a network or environment of your own has changed, put it back"
    if writer:
        cause = f"jaxrl_dist {writer} wrote it, go on with that"
    return f"{subject} does not fit ({error}); {cause}"


def emptied(parts: assemble.Assembly, state: Any, keys: jax.Array, iteration: int) -> Any:
    """Returns the state of an iteration with an empty replay, which fills from now on."""
    return state._replace(replay=parts.layout.init(keys).replay, replay_began=np.asarray(iteration, np.int32))


def load_params(folder: pathlib.Path, slot: str, template: types.Params) -> tuple[types.Params, dict[str, Any]]:
    """Loads the `latest` or `best` parameters of a run, leaves [S, ...], and the data that was saved beside them.

    Raises:
        ValueError: there are none, or their shapes differ from the template's.
        checkpoint.CheckpointError: they are corrupt.
    """
    others = [one for one in ("latest", "best") if one != slot and checkpoint.find(folder / "checkpoints", one)]
    beside = f"; the run also has its {others[0]} parameters" if others else ""
    try:
        found = checkpoint.read_slot(folder / "checkpoints", slot, lambda path: checkpoint.restore(path, template))
    except errors.CheckpointError as error:
        raise errors.CheckpointError(f"{error}{beside}") from error
    if found is None:
        raise ValueError(f"{folder} holds no {slot} parameters{beside}")
    params, meta = found
    checkpoint.check_meta(folder / "checkpoints" / slot, meta, {"env_steps": files.COUNT})
    return params, meta


def initial_state(parts: assemble.Assembly, keys: jax.Array) -> Any:
    """Returns the first state of a run, with the parameters of `--init_from` if it is given.

    Raises:
        UsageError: these cannot be loaded.
    """
    state, source = parts.init(keys), parts.settings["init_from"]
    if not source:
        return state
    folder = folders.expanded(source)
    try:
        params, _ = load_params(folder, "latest", parts.layout.template(keys).learner.params)
    except ValueError as error:
        changes = _changes(parts.settings, folder)
        reason = f"its parameters do not fit, as this run differs ({changes})" if changes else error
        raise errors.UsageError(errors.given("init_from", source), f": {reason}") from error
    params, target = parts.agent.adopt(state.learner.params, params), parts.agent.target(params.network)
    return parts.layout.start_from(state, state.learner._replace(params=params, target_network=target))


class Started(NamedTuple):
    """A run that is ready to go on.

    Attributes:
        state: state on the devices.
        progress: progress of all sessions before.
        keys: typed keys [S] of the seeds.
        resumed_from: environment steps per seed at which this session begins, or None for a fresh run.
        clock_s: the time by `time.perf_counter` at which the run would have begun in a single session.
    """

    state: Any
    progress: records.Progress
    keys: jax.Array
    resumed_from: int | None
    clock_s: float


def start(parts: assemble.Assembly, folder: pathlib.Path) -> Started:
    """Restores the run in a folder, or starts it there; an error leaves the folder as it is.

    Args:
        parts: assembled system.
        folder: run folder, locked by the caller.

    Raises:
        UsageError: the replay, the checkpoint or the parameters of `--init_from` do not fit, or checkpoints are lost.
        checkpoint.CheckpointError: there are checkpoints, but none is whole.
    """
    clock_s = time.perf_counter()
    keys = assemble.seed_keys(parts.settings)
    with folders.named(folder / "checkpoints"):
        processes.exchange(None, lambda said: _clean(folder))
    template = parts.layout.template(keys)
    memory_use.check(parts.settings, template.replay, parts.environment.spec.num_agents)
    found = restore_latest(parts, folder / "checkpoints", keys, template, warnings.warn)
    if found is None:
        processes.exchange(None, lambda said: _check_nothing_lost(folder))
        state = initial_state(parts, keys)
        processes.exchange(None, lambda said: _begin_anew(folder))
        return Started(state, records.Progress(), keys, None, clock_s)
    progress = records.from_meta(found[1])
    steps = records.env_steps(parts, progress.iteration)

    def cut(said: object) -> None:
        metrics.truncate_after(folder, steps, records.env_steps(parts, progress.evaluated))
        events.truncate(folder, records.num_events(parts, found[0]))

    processes.exchange(None, cut)
    return Started(found[0], progress, keys, steps or None, clock_s - progress.wall_s)


def _clean(folder: pathlib.Path) -> None:
    """Finishes or undoes what a kill left half-written."""
    for name in ("checkpoints", "failure"):
        checkpoint.clean(folder / name)


def _begin_anew(folder: pathlib.Path) -> None:
    """Removes what a run left that was killed before its first checkpoint, and which may have had other settings."""
    trackers.forget(folder)
    checkpoint.begin(folder / "checkpoints")
    metrics.truncate_after(folder, -1)
    events.truncate(folder, 0)
    shutil.rmtree(folder / "failure", ignore_errors=True)


def _check_nothing_lost(folder: pathlib.Path) -> None:
    """Refuses to begin a run anew whose checkpoints are lost; a run that was killed before its first one may begin."""
    left = folders.left(folder)
    if left and ("summary.json" in left or not checkpoint.has_begun(folder / "checkpoints")):
        raise errors.UsageError(
            errors.given("out", folder),
            f" holds a run without the checkpoint to go on from ({', '.join(left)}): put back its checkpoints/step_*, "
            "remove what is left of it, or give another ",
            errors.given("out"),
        )


def check_folder(flags: Mapping[str, Any], settings: Resolved) -> pathlib.Path:
    """Returns the run folder, which need not exist yet, unless it holds another run.

    Args:
        flags: flag name -> text or value, as given.
        settings: the settings that these give before the environment is known.

    Raises:
        UsageError: it holds a run of another configuration.
    """
    folder = folders.of(settings)
    held = folders.held(folder)
    if held is None:
        return folder
    _check_same(folder, catalogue.resolved_as_in(held, flags, settings).difference(held))
    return folder


@contextlib.contextmanager
def open_folder(flags: Mapping[str, Any], settings: Resolved) -> Iterator[pathlib.Path]:
    """Makes the run folder if it is missing, and checks that this run may write to it; arguments as of `check_folder`.

    If the run is refused within the context, a folder that this call made is removed.

    Raises:
        UsageError: the folder cannot be written, holds a run of another configuration, or is in use.
    """
    folder = check_folder(flags, settings)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folders.made(folder))
            probe = folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
            with lock(folder):
                pass
        except OSError as error:
            raise errors.UsageError(
                errors.given("out", folder), f" cannot be written: {error.strerror or error}"
            ) from None
        yield folder


@contextlib.contextmanager
def lock(folder: pathlib.Path) -> Iterator[Callable[[], None]]:
    """Holds a run folder for this process alone; yields the same check as `folders.lock`.

    Raises:
        UsageError: another trainer has it.
    """
    with contextlib.ExitStack() as stack:
        try:
            check = stack.enter_context(folders.lock(folder))
        except errors.LockError as error:
            raise errors.UsageError(errors.given("out", folder), f" is in use by a running trainer: {error}") from error
        yield check


@contextlib.contextmanager
def hold_folder(flags: Mapping[str, Any], settings: Resolved) -> Iterator[tuple[pathlib.Path, Callable[[], None]]]:
    """Opens and locks the run folder in process 0; the others wait for that, and check that they see the same folder.

    Args:
        flags: flag name -> text or value, as given.
        settings: the settings that these give.

    Returns:
        The folder, and the check of `lock`; in other processes one that does nothing.

    Raises:
        UsageError: process 0 cannot have it, or a process sees another folder of that name, or none.
    """
    with contextlib.ExitStack() as stack:
        folder, check = folders.of(settings), _do_nothing
        with processes.alike():
            if processes.is_first():
                folder = stack.enter_context(open_folder(flags, settings))
                check = stack.enter_context(lock(folder))
        if processes.count() > 1:
            _check_is_shared(folder)
        yield folder, check


def _do_nothing() -> None:
    """Checks no lock, which process 0 holds."""


def _check_is_shared(folder: pathlib.Path) -> None:
    """Refuses a folder that not all processes see: checkpoints would lack what others hold."""
    mark = folder / f".seen-{processes.nonce()}"
    processes.exchange(None, lambda said: mark.touch())
    try:
        with processes.alike():
            _await(mark)
    finally:
        if processes.is_first():
            mark.unlink(missing_ok=True)


def _await(mark: pathlib.Path) -> None:
    until_s = time.monotonic() + _SEEN_WITHIN_S
    while not mark.exists():
        if time.monotonic() > until_s:
            raise errors.UsageError(
                errors.given("out", mark.parent),
                f": process {processes.index()} does not see the folder that process 0 writes into; all processes must "
                "share it",
            )
        time.sleep(0.1)


def _changes(settings: resolve.Resolved, origin: pathlib.Path) -> str:
    """Lists the settings that shape parameters and differ from those of the run that `--init_from` names."""
    if checkpoint.find(origin / "checkpoints", "latest") is None:
        return ""
    try:
        found = settings.difference(folders.config(origin)).identity
    except errors.UsageError:
        return ""
    names, owners = ("system", "env", "num_seeds", "sweep"), ("network.", resolve.PARAMS)
    return resolve.describe([one for one in found if one.name in names or one.name.startswith(owners)])
