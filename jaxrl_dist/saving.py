"""What a checkpoint holds of a run's state: all of it, or all but the replay, as the settings ask for."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_dist import assemble, checkpoint
from jaxrl_dist.checkpoint import Path


def snapshot(parts: assemble.Assembly, state: Any) -> Any:
    """Returns what is saved of a state."""
    saved = parts.layout.snapshot(state)
    return saved if parts.settings["checkpoint.replay"] else saved._replace(replay=())


def restore_latest(
    parts: assemble.Assembly, folder: Path, keys: jax.Array, template: Any, warn: Callable[[str], None]
) -> tuple[Any, Any] | None:
    """Restores the newest whole checkpoint; a replay that was not saved is empty then.

    Args:
        parts: assembled system.
        folder: where checkpoints are.
        keys: typed keys [S] of the seeds.
        template: of the layout, for these keys.
        warn: called with one line for each corrupt checkpoint.

    Returns:
        State and meta, or None where there is none.

    Raises:
        CheckpointError: there are some and none is whole.
        ValueError: it is of other shapes.
    """
    if parts.settings["checkpoint.replay"]:
        return checkpoint.restore_latest(folder, template, warn)
    found = checkpoint.restore_latest(folder, template._replace(replay=()), warn)
    if found is None:
        return None
    state, meta = found
    empty = parts.layout.init(keys).replay
    return state._replace(replay=empty, replay_began=np.asarray(meta["iteration"], np.int32)), meta
