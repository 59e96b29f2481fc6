"""What a checkpoint holds of a run's state: all of it, or all but the replay; and what a run begins in without one."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_dist import assemble, checkpoint, errors, types
from jaxrl_dist.checkpoint import Path
from jaxrl_dist.settings import resolve


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
        UsageError: it is of other shapes.
    """
    whole = parts.settings["checkpoint.replay"]
    try:
        found = checkpoint.restore_latest(folder, template if whole else template._replace(replay=()), warn)
    except ValueError as error:
        raise errors.UsageError(
            f"the checkpoint does not fit ({error}); if a network or environment of your own has changed, put it back, "
            "or train into another --out"
        ) from error
    if found is None or whole:
        return found
    state, meta = found
    return emptied(parts, state, keys, meta["iteration"]), meta


def emptied(parts: assemble.Assembly, state: Any, keys: jax.Array, iteration: int) -> Any:
    """Returns the state of an iteration with an empty replay, which begins to fill."""
    return state._replace(replay=parts.layout.init(keys).replay, replay_began=np.asarray(iteration, np.int32))


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
        changes = _changes(parts.settings, pathlib.Path(source))
        reason = f"its parameters do not fit, as this run differs ({changes})" if changes else error
        raise errors.UsageError(f"--init_from={source}: {reason}") from error
    params, target = parts.agent.adopt(state.learner.params, params), parts.agent.target(params.network)
    return parts.layout.start_from(state, state.learner._replace(params=params, target_network=target))


def _changes(settings: resolve.Resolved, origin: pathlib.Path) -> str:
    """Lists in what a run differs from another whose parameters there are, of what their shapes depend on."""
    if checkpoint.find(origin / "checkpoints", "latest") is None:
        return ""
    try:
        old = json.loads((origin / "config.json").read_text(encoding="utf-8"))
        found = settings.difference(old).identity
    except (OSError, ValueError):
        return ""
    names, owners = ("system", "env", "num_seeds", "sweep"), ("network.", resolve.PARAMS)
    return resolve.describe([one for one in found if one.name in names or one.name.startswith(owners)])
