"""Guards a run against numbers that are not finite: finds them, keeps the state before them, and names their source."""

import contextlib
import functools
import pathlib
import shutil
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np

from jaxrl_dist import errors, parallel, processes
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll
from jaxrl_dist.runs import checkpoint, files
from jaxrl_dist.settings import sweep
from jaxrl_dist.settings.resolve import Resolved
from jaxrl_dist.training import assemble, records, resume

# Of the meta of a failure that is kept.
FAILURE = dict.fromkeys(("iteration", "total", "num_devices"), files.COUNT)
_all_finite = jax.jit(parallel.all_finite)


class NonFiniteError(FloatingPointError):
    """A loss, gradient, parameter, observation or reward stopped being finite; the message says where."""


def is_sound(state: Any, metrics: parallel.Metrics) -> bool:
    """Says whether all results of a chunk of iterations are finite, and no environment left its range.

    Of several processes each says it of its own part, and all must call this alike.

    Args:
        state: state of the layout after the chunk.
        metrics: metrics of the chunk, on the devices or on the host.
    """
    # While members of an asynchronous run work, their timesteps are not in its state.
    actors = jax.tree.leaves(getattr(state, "actors", ()), is_leaf=lambda x: isinstance(x, unroll.ActorState))
    timesteps = [one.timestep for one in actors]
    leaves = jax.tree.leaves((state.learner.params, state.learner.opt_state, timesteps))
    # One program takes either arrays over all processes, or those that each has for itself.
    spread = [x for x in leaves if isinstance(x, jax.Array) and not x.is_fully_addressable]
    own = [x for x in leaves if not isinstance(x, jax.Array) or x.is_fully_addressable]
    in_state = all([bool(_all_finite(some)) for some in (spread, own) if some])
    metrics = meshes.to_host(metrics)
    in_sums = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(metrics))
    return in_state and in_sums and not np.any(metrics.episodes.unsound_rows)


def stop_at_failure(
    parts: assemble.Assembly,
    folder: pathlib.Path,
    keys: jax.Array,
    progress: records.Progress,
    count: int,
    check_lock: Callable[[], None],
) -> NoReturn:
    """Finds the bad iteration, saves the state before it, and raises.

    Args:
        parts: assembled system.
        folder: run folder, in which the state is saved as `failure`.
        keys: typed keys [S] of the seeds.
        progress: progress before the chunk that went wrong.
        count: number of iterations of that chunk.
        check_lock: checks the lock of the folder before anything is written into it.

    Raises:
        NonFiniteError: always.
    """
    first = progress.iteration
    failure = parts.layout.diagnosis.kept() or _search(parts, folder, keys, progress, count)
    if failure is None:
        raise NonFiniteError(
            f"not finite between iterations {first} and {first + count}, but finite when these run again: "
            f"{_why_not_again(parts.settings)}; the same command goes on from the last checkpoint in {folder}"
        )
    source = _describe(parts, failure)
    meta = {
        "iteration": failure.iteration,
        "total": progress.total,
        "num_devices": int(parts.layout.mesh.devices.size),
        "source": source,
    }
    checkpoint.save(folder / "failure", "state", failure.saved, meta, check_lock)
    raise NonFiniteError(
        f"not finite in iteration {failure.iteration}, after {records.env_steps(parts, failure.iteration):,} steps: "
        f"{source}; jaxrl_dist.replay_failure({str(folder)!r}) runs it again; all checkpoints are from before it"
    )


def forget_failure(folder: pathlib.Path, iteration: int) -> None:
    """Removes the failure of an earlier session, once the newest checkpoint is of a later iteration.

    One that is damaged, or was half-written by a kill, cannot be run again, and goes at once.

    Args:
        folder: run folder.
        iteration: iteration of the newest checkpoint.
    """
    path, failed = checkpoint.find(folder / "failure", "state"), -1
    if path is not None:
        with contextlib.suppress(errors.CheckpointError):
            meta = checkpoint.read_meta(path)
            checkpoint.check_meta(path, meta, FAILURE)
            failed = meta["iteration"]
    if iteration > failed:
        shutil.rmtree(folder / "failure", ignore_errors=True)


def _search(
    parts: assemble.Assembly, folder: pathlib.Path, keys: jax.Array, progress: records.Progress, count: int
) -> parallel.Failure | None:
    """Repeats iterations one by one from the last checkpoint; returns the failure, None if all are sound this time."""
    state_at = functools.partial(_state_at, parts, folder, keys, progress.total)
    state = state_at(progress.iteration)
    for iteration in range(progress.iteration, progress.iteration + count):
        state, metrics = parts.layout.run(state, iteration, 1, progress.total)
        if not processes.all_of(is_sound(state, metrics)):
            # Repeated from the checkpoint, beside no other state: two of a large replay might not fit.
            del state
            before, find_source = state_at(iteration), parts.layout.diagnosis.find_source
            source = find_source(before, iteration, progress.total) if find_source else None
            return parallel.Failure(iteration, parts.layout.snapshot(before), source, looked=find_source is not None)
    return None


def _state_at(parts: assemble.Assembly, folder: pathlib.Path, keys: jax.Array, total: int, iteration: int) -> Any:
    """Returns the state before an iteration, computed from the last checkpoint."""
    found = resume.restore_latest(parts, folder / "checkpoints", keys, parts.layout.template(keys), warnings.warn)
    state, start = (found[0], found[1]["iteration"]) if found else (resume.initial_state(parts, keys), 0)
    return parts.layout.run(state, start, iteration - start, total)[0]


def _why_not_again(settings: Resolved) -> str:
    """Says why iterations that went wrong may be finite when they run again."""
    if settings.row.replay.keeps_rows and not settings["checkpoint.replay"]:
        return "they began with an empty replay, --checkpoint.replay=true repeats them exactly"
    if settings.settings.get("layout.schedule") == "free":
        return "gradients came in another order, --layout.schedule=round_robin repeats them exactly"
    return "suspect the hardware"


def _describe(parts: assemble.Assembly, failure: parallel.Failure) -> str:
    """Names environment, field and step of the first number that is not finite, or the learner."""
    if failure.source is None and not failure.looked:
        return "an observation, a reward, the loss, its gradient or the update is not"
    if failure.source is None:
        return "observations and rewards are finite, so the loss, its gradient or the update is not"
    field, member, column, row = failure.source
    seed, number = member % parts.settings["num_seeds"], member // parts.settings["num_seeds"]
    where = sweep.label(parts.settings.settings, sweep.combinations(parts.settings)[number])
    low, high = parts.environment.spec.reward_range
    limits = f" {low:g} to {high:g}" if field == "reward" else ""
    environment = column // parts.environment.spec.num_agents
    return (
        f"the {field} of {parts.settings['env']}, environment {environment} of seed {parts.settings['seed'] + seed}"
        f"{where and ' with '}{where}, at its step {failure.iteration * parts.settings['layout.unroll_length'] + row}, "
        f"is not finite or out of its range{limits}"
    )
