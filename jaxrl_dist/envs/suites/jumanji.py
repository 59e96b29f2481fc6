"""The suite jumanji (1.1.2): combinatorial and routing problems, all on the device.

An observation of several arrays becomes one vector of all of them, with the mask of legal actions. Each environment has
its own rule for an illegal action: in most it ends the episode, in some it does nothing. A time limit counts as a true
end if Jumanji gives it discount 0, as it does in all of these.
"""

import importlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.types import Array, ArrayTree

_NAME = "jumanji"
# All that Jumanji registers with one reward and at most 10,000 actions (joint actions, for several agents), but for
# Sokoban, which downloads its levels, and MultiCVRP, which does not say how many actions it has.
ENVIRONMENTS = (
    "Game2048-v1",
    "GraphColoring-v1",
    "Minesweeper-v0",
    "RubiksCube-v0",
    "RubiksCube-partly-scrambled-v0",
    "Sudoku-v0",
    "Sudoku-very-easy-v0",
    "BinPack-v2",
    "FlatPack-v0",
    "Knapsack-v1",
    "Tetris-v0",
    "Cleaner-v0",
    "CVRP-v1",
    "Maze-v0",
    "RobotWarehouse-v0",
    "Snake-v1",
    "TSP-v1",
    "PacMan-v1",
    "SlidingTilePuzzle-v0",
)


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `jumanji:name`.

    Args:
        name: one of `ENVIRONMENTS`.
        params: numbers and switches that the environment's constructor takes, such as `time_limit`.

    Raises:
        errors.UsageError: unknown parameter, or a value that does not fit.
        ModuleNotFoundError: Jumanji is not installed.
    """
    library = importlib.import_module("jumanji")
    environment = library.make(name)
    values = parameters.parse_params(params, parameters.defaults_of(type(environment)), f"{_NAME}:{name}")
    parameters.check_least(values, {"time_limit": 1})
    return wrappers.auto_reset(adapt(library.make(name, **values) if values else environment, name))


def adapt(environment: Any, name: str) -> envs.BareEnvironment:
    """Gives a Jumanji environment with discrete actions the interface of a bare environment.

    An action of several numbers becomes one, counted in row-major order.
    """
    sizes = np.asarray(environment.action_spec.num_values)

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        state, timestep = environment.reset(key)
        return state, _vector(timestep.observation)

    def step(key: Array, state: ArrayTree, action: Array) -> envs.Transition:
        del key
        if sizes.ndim:
            action = jnp.stack(jnp.unravel_index(action, sizes.ravel().tolist())).reshape(sizes.shape)
        state, timestep = environment.step(state, action)
        ended, bootstraps = timestep.step_type == types.LAST, timestep.discount != 0
        return envs.Transition(
            state, _vector(timestep.observation), timestep.reward, ended & ~bootstraps, ended & bootstraps
        )

    num_actions = math.prod(sizes.ravel().tolist())
    spec = types.EnvironmentSpec(f"{_NAME}:{name}", (), types.DiscreteSpace(num_actions), "classic")
    return envs.BareEnvironment(reset, step, spec)


def _vector(observation: ArrayTree) -> Array:
    """Concatenates all arrays of an observation, in the order of its fields, as f32 [D]."""
    return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(observation)])


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
