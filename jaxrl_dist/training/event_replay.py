"""Repeats an asynchronous run by its event log, and takes it back to an earlier version."""

import contextlib
import os
import pathlib
import warnings
from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from jaxrl_dist import envs, errors, parallel, types
from jaxrl_dist.parallel.async_gradient import schedules
from jaxrl_dist.runs import checkpoint, events
from jaxrl_dist.training import assemble, policy, records, resume, session


def replay_schedule(run: str | os.PathLike[str], trust: Collection[str] = ()) -> dict[str, Any]:
    """Repeats an asynchronous run from its start, with its events in the order of its log.

    Args:
        run: run folder.
        trust: as in `policy.load`.

    Returns:
        A record that `json` can write: `events`, the digests of the parameters of the run and of its repetition, and
        whether they `match`, bit for bit.

    Raises:
        UsageError: it has no event log, or not all of it; or its environments cannot be repeated.
        FloatingPointError: one gradient after another is not finite in the repetition, where the run went on.
    """
    folder = pathlib.Path(run)
    parts = policy.assemble_run(folder, {}, trust=trust)
    layout, keys = parts.layout, assemble.seed_keys(parts.settings)
    if layout.events is None:
        raise errors.UsageError(f"{run} has no event log: {parts.settings['layout']} keeps none")
    if isinstance(parts.environment, envs.HostTask):
        raise errors.UsageError(f"{run}: environments of {parts.settings['env']} cannot be repeated")
    state, meta = _newest(folder, parts, keys)
    log = _log_of(folder, layout.events.count(state))
    # Also after an error: threads must not run in JAX where Python ends.
    with contextlib.closing(layout), session.matmul_precision(parts.settings):
        layout.events.follow([])
        repeated = _repeat(parts, layout.events, keys, log, records.from_meta(meta).sessions)
    digests = [checkpoint.params_sha256(jax.tree.map(np.asarray, tree)) for tree in (state.learner.params, repeated)]
    return {"events": len(log), "run": digests[0], "repeated": digests[1], "match": digests[0] == digests[1]}


def roll_back(run: str | os.PathLike[str], updates: int, trust: Collection[str] = ()) -> dict[str, Any]:
    """Lets a run go on from a kept version of the server, bit for bit, and notes this in its event log.

    Args:
        run: run folder, locked by the caller.
        updates: number of updates of the version.
        trust: as in `policy.load`.

    Returns:
        A record that `json` can write.

    Raises:
        UsageError: the run keeps no such version; the message names those that it keeps.
        checkpoint.CheckpointError: its checkpoints are corrupt, or a new one cannot be written.
    """
    folder = pathlib.Path(run)
    parts = policy.assemble_run(folder, {}, trust=trust)
    layout, keys = parts.layout, assemble.seed_keys(parts.settings)
    if layout.events is None:
        raise errors.UsageError(f"{run}: {parts.settings['layout']} keeps no versions")
    before, meta = _newest(folder, parts, keys)
    state = layout.events.roll_back(before, updates)
    place = [_updates(one) for one in before.versions].index(updates)
    events.truncate(folder, layout.events.count(before))
    events.append(folder, events.encode(events.ROLLBACK, place, []))
    events.sync(folder)
    state, steps = state._replace(events=np.asarray(before.events) + 1), records.env_steps(parts, meta["iteration"])
    checkpoint.save(folder / "checkpoints", "latest", state.learner.params, {"env_steps": steps})
    checkpoint.save(folder / "checkpoints", steps, resume.snapshot(parts, state), meta)
    return {"run": str(run), "env_steps": steps, "updates_before": _updates(before.learner), "updates": updates}


def _newest(folder: pathlib.Path, parts: assemble.Assembly, keys: jax.Array) -> tuple[Any, Any]:
    """Restores the newest checkpoint of a run, state and meta."""
    found = resume.restore_latest(parts, folder / "checkpoints", keys, parts.layout.template(keys), warnings.warn)
    if found is None:
        raise errors.UsageError(f"{folder} holds no checkpoint")
    return found


def _log_of(folder: pathlib.Path, count: int) -> list[events.Event]:
    """Reads the events before a checkpoint; a killed run has later ones, without parameters to compare with.

    Raises:
        UsageError: some are missing.
    """
    try:
        log = events.read(folder)[:count]
    except FileNotFoundError:
        log = []
    lost = count - sum(event.worker != events.LOST for event in log)
    if lost:
        raise errors.UsageError(events.missing(folder / events.FILE_NAME, lost, count))
    return log


def _repeat(
    parts: assemble.Assembly,
    order: parallel.EventLog,
    keys: jax.Array,
    log: list[events.Event],
    sessions: list[tuple[int, int]],
) -> types.Params:
    """Returns the parameters after all events of a log; each session had its own number of iterations in total."""
    totals = dict(sessions)
    state, iteration, total = resume.initial_state(parts, keys), 0, totals.pop(0)
    workers: list[int] = []
    for number, event in enumerate([*log, None]):
        is_rollback, begins = event is not None and event.worker == events.ROLLBACK, number in totals
        if event is None or is_rollback or begins:
            state, iteration = _follow(parts.layout, order, state, iteration, workers, total)
        if begins:
            total = totals[number]
            if not parts.settings["checkpoint.replay"]:
                state = resume.emptied(parts, state, keys, iteration)
        if event is not None and is_rollback:
            if event.age >= len(state.versions):
                raise errors.UsageError(
                    f"event {number} of the log goes back to version {event.age}, and {len(state.versions)} are kept: "
                    "the log is of another run"
                )
            state = order.roll_back(state, _updates(state.versions[event.age]))
        elif event is not None:
            workers.append(event.worker)
    return state.learner.params


def _follow(
    layout: parallel.Layout, order: parallel.EventLog, state: Any, iteration: int, workers: list[int], total: int
) -> tuple[Any, int]:
    """Runs from a snapshot until the events of these workers have come; returns a snapshot and its iteration.

    Args:
        layout: of the run.
        order: its event log.
        state: snapshot.
        iteration: number of iterations before it.
        workers: of all events from the start of the run.
        total: number of iterations of the run.
    """
    order.follow(workers)
    try:
        layout.run(state, iteration, len(workers) + 1, total)
    except parallel.Interrupted as stop:
        is_broken, taken = isinstance(stop.fault, FloatingPointError), int(stop.state.events)
        if is_broken and taken < len(workers):
            what = f"event {taken - 1}: the repetition ends here, and the run went on"
            raise FloatingPointError(f"{what}: {stop.fault}") from None
        # With kept versions, gradients that are not finite end a run at the last of them, and so its repetition.
        if not is_broken and not isinstance(stop.fault, schedules.EndOfLog):
            raise stop.fault or stop from None
        return layout.snapshot(stop.state), iteration + stop.iterations
    raise AssertionError("a log has an end")


def _updates(learner: Any) -> int:
    return int(np.asarray(learner.updates)[0])
