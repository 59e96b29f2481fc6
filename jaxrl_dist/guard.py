"""Guards a run against numbers that are not finite: finds them, keeps the state before them, and names their source."""

import functools
import pathlib
import warnings
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import assemble, checkpoint, records, types
from jaxrl_dist.parallel import anakin
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.parallel import unroll as unrolls


class NonFiniteError(FloatingPointError):
    """A loss, gradient, parameter, observation or reward stopped being finite; the message says where."""


def is_finite(state: anakin.State, sums: Any) -> bool:
    """Whether all is finite that a chunk of iterations has left behind.

    Timesteps are looked at too: a reward that is not finite makes the return of its episode so until that ends, and
    the sums afterwards.

    Args:
        state: after the chunk.
        sums: the layout's metrics, on the devices or on the host.
    """
    in_state = _all_finite((state.learner.params, state.learner.opt_state, state.actors.timestep))
    return bool(in_state) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(sums)))


def stop_at_failure(
    parts: assemble.Assembly, folder: pathlib.Path, keys: jax.Array, progress: records.Progress, count: int
) -> NoReturn:
    """Finds the bad iteration by running again from the last checkpoint, keeps the state before it, and raises.

    Args:
        parts: assembled system.
        folder: run folder; the state goes to `failure` there.
        keys: typed keys [S] of the seeds.
        progress: before the chunk that went wrong.
        count: iterations of that chunk.

    Raises:
        NonFiniteError: always.
    """
    first, run_again = progress.iteration, functools.partial(_run_again, parts, folder, keys, progress.total)
    state = run_again(first)
    for iteration in range(first, first + count):
        state, sums = parts.layout.run(state, iteration, 1, progress.total)
        if not is_finite(state, sums):
            break
    else:
        raise NonFiniteError(
            f"not finite between iterations {first} and {first + count}, and finite when run again: suspect the "
            f"hardware; the same command goes on from the last checkpoint in {folder}"
        )
    # From the checkpoint once more: a copy of every state on the way might not fit beside a large replay.
    before = run_again(iteration)
    source = _describe_source(parts, before, iteration, progress.total)
    meta = {
        "iteration": iteration,
        "total": progress.total,
        "num_devices": int(parts.layout.mesh.devices.size),
        "source": source,
    }
    checkpoint.save(folder / "failure", "state", before, meta)
    raise NonFiniteError(
        f"not finite in iteration {iteration}, after {records.env_steps(parts, iteration):,} steps: {source}; "
        f"jaxrl_dist.replay_failure({str(folder)!r}) runs it again, and the checkpoints are from before it"
    )


def _run_again(
    parts: assemble.Assembly, folder: pathlib.Path, keys: jax.Array, total: int, iteration: int
) -> anakin.State:
    """Returns the state at the start of an iteration, from the last checkpoint on."""
    found = checkpoint.restore_latest(folder / "checkpoints", parts.layout.template(keys), warnings.warn)
    state, start = (found[0], found[1]["iteration"]) if found else (parts.layout.init(keys), 0)
    return parts.layout.run(state, start, iteration - start, total)[0]


@jax.jit
def _all_finite(tree: Any) -> jax.Array:
    return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]).all()


def _describe_source(parts: assemble.Assembly, state: anakin.State, iteration: int, total: int) -> str:
    """Names the environment, field and step that brought the first number that is not finite, or the learner."""
    bad = {name: np.asarray(rows) for name, rows in _bad_rows(parts, state, iteration, total).items()}
    found = [(rows.any((0, 1)).argmax(), name) for name, rows in bad.items() if rows.any()]
    if not found:
        return "from finite observations and rewards, so in the loss, its gradient or the update"
    step, name = min(found)
    seed, column = np.argwhere(bad[name][:, :, step])[0]
    return (
        f"the {name} of {parts.settings['env']}, environment {column} of seed {parts.settings['seed'] + seed}, at its "
        f"step {iteration * parts.settings['layout.unroll_length'] + step}"
    )


def _bad_rows(parts: assemble.Assembly, state: anakin.State, iteration: int, total: int) -> dict[str, jax.Array]:
    """Acts out an iteration once more: field of the timestep -> bool [S, B, T + 1], whether it is not finite."""
    agent, mesh, num_envs = parts.agent, parts.layout.mesh, parts.settings["env.num_envs"]
    unroll = unrolls.device_unroll(agent, jax.vmap(parts.environment.step), parts.settings["layout.unroll_length"])

    def find(i: types.Array, total: types.Array, key: types.Array, learner_state: Any, actors: Any) -> Any:
        columns = meshes.global_columns(num_envs // mesh.shape["devices"])
        device_key = jax.random.fold_in(anakin.seed_keys(key).training, jax.lax.axis_index("devices"))
        act_key = jax.random.split(jax.random.fold_in(device_key, i))[0]
        exploration = agent.exploration(columns, num_envs, i / total)
        rows = unroll(learner_state.params, actors, act_key, exploration, learner_state.updates)[1]
        fields = jax.tree_util.tree_flatten_with_path(rows.steps.timestep)[0]
        return {
            jax.tree_util.keystr(path, simple=True, separator="/"): _is_bad(leaf).swapaxes(0, 1)
            for path, leaf in fields
        }

    kinds = (meshes.SHARED, meshes.SHARED, meshes.PER_SEED, meshes.PER_SEED, meshes.COLUMNS)
    program = jax.jit(meshes.device_map(find, mesh, kinds, meshes.COLUMNS))
    return program(np.int32(iteration), np.float32(total), state.key, state.learner, state.actors)


def _is_bad(leaf: types.Array) -> types.Array:
    return ~jnp.isfinite(leaf).reshape(*leaf.shape[:2], -1).all(-1)
