"""What a session begins with: the run that its folder holds, another run's parameters, or nothing learned yet."""

import pathlib
import time
import warnings
from typing import Any

import jax

from jaxrl_dist import assemble, checkpoint, config, events, memory, metrics, records, saving, session, types


def start(parts: assemble.Assembly, folder: pathlib.Path) -> session.Started:
    """Restores the run in a folder, or starts it there; what cannot be leaves the folder as it is.

    Args:
        parts: assembled system.
        folder: run folder, locked by the caller.

    Raises:
        UsageError: the replay or the parameters of `--init_from` do not fit.
        checkpoint.CheckpointError: there are checkpoints and none is whole.
    """
    clock_s = time.perf_counter()
    keys = session.seed_keys(parts.settings)
    checkpoint.clean(folder / "checkpoints")
    template = parts.layout.template(keys)
    memory.check(parts.settings, memory.replay_parts(template.replay), parts.layout.mesh.local_devices)
    found = saving.restore_latest(parts, folder / "checkpoints", keys, template, warnings.warn)
    if found is None:
        state = initial_state(parts, keys)
        metrics.truncate_after(folder, -1)
        events.truncate(folder, 0)
        return session.Started(state, records.Progress(), keys, None, clock_s)
    progress = records.from_meta(found[1])
    steps = records.env_steps(parts, progress.iteration)
    metrics.truncate_after(folder, steps)
    events.truncate(folder, parts.layout.num_events(found[0], progress.iteration))
    return session.Started(found[0], progress, keys, steps or None, clock_s - progress.wall_s)


def load_params(folder: pathlib.Path, slot: str, template: types.Params) -> tuple[types.Params, dict[str, Any]]:
    """Loads the `latest` or `best` parameters of a run, leaves [S, ...], and what was saved beside them.

    Raises:
        ValueError: there are none, or their shapes are not the template's.
        checkpoint.CheckpointError: they are corrupt.
    """
    path = checkpoint.find(folder / "checkpoints", slot)
    if path is None:
        raise ValueError(f"{folder} holds no {slot} parameters")
    return checkpoint.restore(path, template)


def initial_state(parts: assemble.Assembly, keys: jax.Array) -> Any:
    """Returns the state that a run begins in, with the parameters of `--init_from` where there are such.

    Raises:
        UsageError: these cannot be had.
    """
    state, source = parts.layout.init(keys), parts.settings["init_from"]
    if not source:
        return state
    try:
        params, _ = load_params(pathlib.Path(source), "latest", parts.layout.template(keys).learner.params)
    except ValueError as error:
        raise config.UsageError(f"--init_from={source}: {error}") from error
    target = parts.agent.target(params.network)
    return state._replace(learner=state.learner._replace(params=params, target_network=target))
