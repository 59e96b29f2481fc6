"""The suite xminigrid (XLand-MiniGrid 0.9.3): MiniGrid's tasks and games of hidden rules, all on the device.

An observation is a tree: the cells before the agent, which are categories (kind and colour), and its direction. XLand's
games take their goals and rules from a file of rulesets, of which each episode draws one; the agent does not see them.
"""

import importlib
from typing import Any

import jax

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.types import Array, ArrayTree

_NAME = "xminigrid"
ENVIRONMENTS = (
    *("MiniGrid-BlockedUnlockPickUp", "MiniGrid-DoorKey-5x5", "MiniGrid-DoorKey-6x6", "MiniGrid-DoorKey-8x8"),
    *("MiniGrid-DoorKey-16x16", "MiniGrid-Empty-5x5", "MiniGrid-Empty-6x6", "MiniGrid-Empty-8x8"),
    *("MiniGrid-Empty-16x16", "MiniGrid-EmptyRandom-5x5", "MiniGrid-EmptyRandom-6x6", "MiniGrid-EmptyRandom-8x8"),
    *("MiniGrid-EmptyRandom-16x16", "MiniGrid-FourRooms", "MiniGrid-LockedRoom", "MiniGrid-MemoryS8"),
    *("MiniGrid-MemoryS16", "MiniGrid-MemoryS32", "MiniGrid-MemoryS64", "MiniGrid-MemoryS128"),
    *("MiniGrid-Playground", "MiniGrid-Unlock", "MiniGrid-UnlockPickUp"),
    *("XLand-MiniGrid-R1-9x9", "XLand-MiniGrid-R1-11x11", "XLand-MiniGrid-R1-13x13", "XLand-MiniGrid-R1-15x15"),
    *("XLand-MiniGrid-R1-17x17", "XLand-MiniGrid-R2-9x9", "XLand-MiniGrid-R2-11x11", "XLand-MiniGrid-R2-13x13"),
    *("XLand-MiniGrid-R2-15x15", "XLand-MiniGrid-R2-17x17", "XLand-MiniGrid-R4-9x9", "XLand-MiniGrid-R4-11x11"),
    *("XLand-MiniGrid-R4-13x13", "XLand-MiniGrid-R4-15x15", "XLand-MiniGrid-R4-17x17", "XLand-MiniGrid-R6-13x13"),
    *("XLand-MiniGrid-R6-17x17", "XLand-MiniGrid-R6-19x19", "XLand-MiniGrid-R9-16x16", "XLand-MiniGrid-R9-19x19"),
    "XLand-MiniGrid-R9-25x25",
)
_RULESETS = "rulesets"
# Kinds and colours of a cell, and directions.
_CELLS, _DIRECTIONS = (13, 12), 4


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `xminigrid:name`.

    Args:
        name: one of `ENVIRONMENTS`.
        params: `view_size`, cells along each side of what is seen; `max_steps`, the time limit, both as the library has
            them by default; `rulesets`, for XLand's games a file of the library's benchmarks, which is a pickle, so
            that reading it runs what is in it.

    Raises:
        errors.UsageError: unknown parameter, or a value that does not fit.
        ModuleNotFoundError: XLand-MiniGrid is not installed.
    """
    library = importlib.import_module("xminigrid")
    environment, settings = library.make(name)
    own = {"view_size": settings.view_size, "max_steps": settings.max_steps}
    is_game = name.startswith("XLand")
    values = parameters.parse_params(params, own | ({_RULESETS: ""} if is_game else {}), f"{_NAME}:{name}")
    parameters.check_least(values, {"view_size": 3, "max_steps": 1})
    if "view_size" in values and not values["view_size"] % 2:
        raise parameters.refused("view_size", values["view_size"], "expected an odd number")
    rulesets = None
    if is_game:
        path = values.pop(_RULESETS, "")
        if not path:
            raise errors.UsageError(
                errors.given("env", f"{_NAME}:{name}"),
                ": its goals and rules are in a file of rulesets, such as one that xminigrid.load_benchmark downloads; "
                "give it by ",
                errors.given(f"env.params.{_RULESETS}"),
            )
        try:
            rulesets = importlib.import_module("xminigrid.benchmarks").load_benchmark_from_path(path)
        except (OSError, EOFError, KeyError, ValueError) as error:
            raise parameters.refused(_RULESETS, path, f"{type(error).__name__}: {error}") from error
    return wrappers.auto_reset(adapt(environment, settings.replace(**values), name, rulesets))


def adapt(environment: Any, settings: Any, name: str, rulesets: Any = None) -> envs.BareEnvironment:
    """Gives an environment of XLand-MiniGrid the interface of a bare environment.

    Args:
        environment: the library's.
        settings: its parameters.
        name: name without that of the suite.
        rulesets: the library's benchmark, of which each episode draws one; None for tasks without.
    """

    def observe(timestep: Any) -> ArrayTree:
        direction = jax.nn.one_hot(timestep.state.agent.direction, _DIRECTIONS)
        return {"cells": timestep.observation, "direction": direction}

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        played = settings
        if rulesets is not None:
            rules_key, key = jax.random.split(key)
            played = settings.replace(ruleset=rulesets.sample_ruleset(rules_key))
        timestep = environment.reset(played, key)
        return timestep, observe(timestep)

    def step(key: Array, state: Any, action: Array) -> envs.Transition:
        del key
        # The rules of the episode are in the state.
        timestep = environment.step(settings, state, action)
        terminated = timestep.discount == 0
        is_last = timestep.step_type == types.LAST
        return envs.Transition(timestep, observe(timestep), timestep.reward, terminated, is_last & ~terminated)

    spec = types.EnvironmentSpec(
        name=f"{_NAME}:{name}",
        observation=(),
        action=types.DiscreteSpace(int(environment.num_actions(settings))),
        family="grid",
        reward_range=(0.0, 1.0),
        time_limit=int(settings.max_steps),
        categories={"cells": _CELLS},
    )
    return envs.BareEnvironment(reset, step, spec)


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
