"""The suite jumanji (1.1.2): combinatorial and routing problems, all on the device.

An observation is a tree. Where its leaf `action_mask` says which actions are legal, agents play no other; elsewhere
each environment has its own rule for an illegal action: in most it ends the episode, in some it does nothing. A time
limit counts as a true end if Jumanji gives it discount 0, as it does in all of these.
"""

import functools
import importlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.envs.host import episodes
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
# Leaves whose whole numbers are names: of colours, nodes, pieces, of what lies on a cell. One of 0 and 1 is no code.
_CODES = ("blocks", "board", "colors", "cube", "current_node_index", "grid", "position", "puzzle", "trajectory")
# PacMan's counts have no bounds; a power-up lasts 30 steps, and 318 pellets give 10 each.
_UNBOUNDED = {"frightened_state_time": 30, "score": 3180}


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

    Codes become categories that count from 0, other whole numbers with bounds shares of the highest.

    An action of several numbers is a vector of choices if the mask has as many truth values as the numbers have choices
    together; else it becomes one number, counted in row-major order.
    """
    sizes = np.asarray(environment.action_spec.num_values)
    observed = jax.eval_shape(environment.reset, jax.eval_shape(jax.random.key, 0))[1].observation
    vector = types.MultiDiscreteSpace(tuple(sizes.ravel().tolist()))
    number = types.DiscreteSpace(math.prod(vector.num_values))
    # The mask of joint choices first, as for two numbers of two choices both have four truth values.
    space: types.ActionSpace = number
    if not (mask := episodes.mask_of(observed, number)) and (mask := episodes.mask_of(observed, vector)):
        space = vector

    ranges, categories = _ranges(environment, observed)

    def observe(observation: ArrayTree) -> ArrayTree:
        leaves, tree = jax.tree.flatten(observation)
        for i, name in enumerate(types.named_leaves(observation)):
            least, most = ranges.get(name, (0, 0))
            if name in categories:
                leaves[i] = leaves[i] - least
            elif most:
                leaves[i] = jnp.maximum(leaves[i], least) / jnp.float32(most)
        return jax.tree.unflatten(tree, leaves)

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        state, timestep = environment.reset(key)
        return state, observe(timestep.observation)

    def step(key: Array, state: ArrayTree, action: Array) -> envs.Transition:
        del key
        if sizes.ndim and isinstance(space, types.DiscreteSpace):
            action = jnp.stack(jnp.unravel_index(action, sizes.ravel().tolist())).reshape(sizes.shape)
        state, timestep = environment.step(state, action.reshape(sizes.shape))
        ended, bootstraps = timestep.step_type == types.LAST, timestep.discount != 0
        observation = observe(timestep.observation)
        return envs.Transition(state, observation, timestep.reward, ended & ~bootstraps, ended & bootstraps)

    spec = types.EnvironmentSpec(f"{_NAME}:{name}", (), space, "classic", mask=mask, categories=categories)
    return envs.BareEnvironment(reset, step, spec)


def _ranges(environment: Any, observed: ArrayTree) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, ...]]]:
    """Returns the lowest and the highest value of an observation's whole numbers, by leaf, and the categories.

    A count of up to 4000 beside flags would be all that a network sees, so what is no category is divided by its
    highest value. Numbers without bounds stay as they are, but for counts.
    """
    ranges: dict[str, tuple[int, int]] = {}
    categories: dict[str, tuple[int, ...]] = {}
    for name, leaf in types.named_leaves(observed).items():
        if not np.issubdtype(leaf.dtype, np.integer):
            continue
        spec, kind = functools.reduce(getattr, name.split("/"), environment.observation_spec), name.rpartition("/")[2]
        limit = getattr(environment, "time_limit", 0) if kind == "step_count" else _UNBOUNDED.get(kind, 0)
        least, most = int(np.min(getattr(spec, "minimum", 0))), int(np.max(getattr(spec, "maximum", limit)))
        if most > 1:
            ranges[name] = least, most
            if kind in _CODES:
                categories[name] = (most - least + 1,)
    return ranges, categories


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
