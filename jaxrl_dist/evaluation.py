"""Evaluation on environments of its own: one whole episode each, statistics frozen, on all devices."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrl_dist import types
from jaxrl_dist.agents import base
from jaxrl_dist.config import setting
from jaxrl_dist.envs import base as envs
from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.types import Array


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the evaluations during training."""

    episodes: int = setting(32, "Whole episodes per evaluation and seed, one environment each.", low=1, tag="tunable")
    interval_steps: int = setting(
        0, "Environment steps between evaluations; 0 is a twentieth of the run.", low=0, tag="tunable"
    )
    max_steps: int = setting(
        27_000,
        "Longest evaluated episode where the environment has no time limit of its own.",
        low=1,
        tag="tunable",
        source="Mnih et al. 2015, methods (5 minutes at 18,000 frames; 30 minutes since Wang et al. 2016)",
    )


def make(
    agent: base.Agent,
    environment: envs.Environment,
    episodes: int,
    max_steps: int,
    mesh: Mesh,
) -> Callable[..., np.ndarray]:
    """Makes the evaluation of one policy per seed.

    Args:
        agent: its `evaluate` acts.
        environment: one, on the device.
        episodes: per seed.
        max_steps: bound where the environment has no time limit.
        mesh: from `mesh.make`.

    Returns:
        (params [S, ...], keys [S], index, limit) -> f64 [S, episodes] undiscounted returns; equal arguments give equal
        returns. An episode longer than the environment's time limit, or `max_steps` where it has none, counts with
        the return so far; `limit` lowers that bound (0 only compiles).
    """
    num_devices = mesh.shape["devices"]
    columns = -(-episodes // num_devices)
    longest = environment.spec.time_limit or max_steps
    step = jax.vmap(environment.step)

    def evaluate(index: Array, bound: Array, params: types.Params, key: Array) -> Array:
        env_key, act_key = jax.random.split(jax.random.fold_in(key, index))
        env_keys = jax.vmap(jax.random.fold_in, (None, 0))(env_key, meshes.global_columns(columns))
        act_key = jax.random.fold_in(act_key, jax.lax.axis_index("devices"))
        state, timestep = jax.vmap(environment.reset)(env_keys)

        def unfinished(loop: Any) -> Array:
            i, *_, done, _ = loop
            return (i < bound) & ~done.all()

        def body(loop: Any) -> Any:
            i, state, timestep, carry, done, returns = loop
            output = agent.evaluate(params, carry, timestep, jax.random.fold_in(act_key, i))
            state, timestep = step(state, output.action)
            returns = jnp.where(done, returns, timestep.info.episode_return)
            done = done | (timestep.step_type == types.LAST)
            return i + 1, state, timestep, output.carry, done, returns

        start = (jnp.int32(0), state, timestep, agent.init_carry(columns), jnp.zeros(columns, bool), jnp.zeros(columns))
        return jax.lax.while_loop(unfinished, body, start)[-1]

    kinds = (meshes.SHARED, meshes.SHARED, meshes.PER_SEED, meshes.PER_SEED)
    program = jax.jit(meshes.device_map(evaluate, mesh, kinds, meshes.COLUMNS))

    def run(params: types.Params, keys: Array, index: int, limit: int = longest) -> np.ndarray:
        returns = program(np.int32(index), np.int32(min(limit, longest)), params, keys)
        return np.asarray(returns, np.float64)[:, :episodes]

    return run
