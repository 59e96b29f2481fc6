"""What a session begins with: the run that its folder holds, another run's parameters, or nothing learned yet."""

import pathlib
import shutil
import time
import warnings

from jaxrl_dist import assemble, checkpoint, events, memory, metrics, records, saving, session


def start(parts: assemble.Assembly, folder: pathlib.Path) -> session.Started:
    """Restores the run in a folder, or starts it there; what cannot be leaves the folder as it is.

    Args:
        parts: assembled system.
        folder: run folder, locked by the caller.

    Raises:
        UsageError: the replay, the checkpoint or the parameters of `--init_from` do not fit.
        checkpoint.CheckpointError: there are checkpoints and none is whole.
    """
    clock_s = time.perf_counter()
    keys = session.seed_keys(parts.settings)
    checkpoint.clean(folder / "checkpoints")
    template = parts.layout.template(keys)
    memory.check(parts.settings, memory.replay_parts(template.replay), parts.layout.mesh.local_devices)
    found = saving.restore_latest(parts, folder / "checkpoints", keys, template, warnings.warn)
    if found is None:
        state = saving.initial_state(parts, keys)
        metrics.truncate_after(folder, -1)
        events.truncate(folder, 0)
        shutil.rmtree(folder / "failure", ignore_errors=True)
        return session.Started(state, records.Progress(), keys, None, clock_s)
    progress = records.from_meta(found[1])
    steps = records.env_steps(parts, progress.iteration)
    metrics.truncate_after(folder, steps)
    events.truncate(folder, parts.layout.num_events(found[0], progress.iteration))
    return session.Started(found[0], progress, keys, steps or None, clock_s - progress.wall_s)
