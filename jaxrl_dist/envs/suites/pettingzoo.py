"""The suite PettingZoo (1.27.0): environments of several agents who act at once, in a pool of processes on the CPU.

Its names are as in `pettingzoo:butterfly.pistonball_v6`, or `pettingzoo:my_module:function`, where the function makes
an environment of the parallel API. Each agent is a column.
"""

import functools
import importlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import parameters
from jaxrl_dist.envs.host import episodes, hangs, teams, together, worker_pool, worker_process
from jaxrl_dist.envs.suites import gymnasium
from jaxrl_dist.settings import user_code

_NAME = "pettingzoo"
_FUNCTION = "parallel_env"
_DEFAULTS = {"workers": 0, "max_restarts": 3, "time_limit": 0}


def make(name: str, params: dict[str, str]) -> envs.HostTask:
    """Makes the task `pettingzoo:name`; makes and closes one environment in this process, to read its spaces.

    What an agent sees is a `Box`, or a `Dict` of these with an `action_mask`, and must be the same for all, as actions
    must. Leaves `agent`, its index, and for vectors `all`, which a critic alone may see, are added. An environment ends
    with its last agent.

    Args:
        name: module of PettingZoo, or `module:function` of one's own.
        params: arguments of the environment (numbers, true, false, none, lists, tuples and dicts are read as such,
            all else as text); and `workers` and `max_restarts` as for Gymnasium; `time_limit`, the longest episode in
            steps where it is known.

    Raises:
        errors.UsageError: unknown name or argument, the environment cannot be made, or its agents differ.
        ModuleNotFoundError: PettingZoo is not installed.
    """
    full_name = f"{_NAME}:{name}"
    own = {key: params[key] for key in _DEFAULTS.keys() & params}
    settings = {**_DEFAULTS, **parameters.parse_params(own, _DEFAULTS, full_name)}
    parameters.check_least(settings, dict.fromkeys(settings, 0))
    kwargs = {key: gymnasium.literal(text) for key, text in params.items() if key not in _DEFAULTS}
    module, function = _found(name, full_name)
    argument = {"module": module, "function": function, "kwargs": kwargs}
    with hangs.limited(full_name, "making it"):
        environment = _make(functools.partial(together.make, argument), full_name)
        agents = list(environment.agents)
        seen = [environment.spaces(agent) for agent in agents]
        environment.close()
    packed = _make(functools.partial(worker_process.packed, argument), full_name)
    spec, actions = _spec(seen, agents, full_name, settings["time_limit"])
    plan = _plan(spec, actions, seen[0][0], packed, settings)
    shown = functools.partial(teams.show, len(agents), bool(spec.privileged))

    def make_teams(seeds: np.ndarray, batch_size: int, timeout_s: float) -> envs.HostEnvironment:
        return teams.Teams(spec, worker_pool.WorkerPool(plan, seeds, batch_size, timeout_s), shown)

    return envs.HostTask(spec, f"{name} of PettingZoo's parallel API, {len(agents)} agents", make_teams)


def _found(name: str, full_name: str) -> tuple[str, str]:
    """Returns module and function of a name.

    Raises:
        errors.UsageError: there is none.
    """
    module, separator, function = name.rpartition(":")
    flag = errors.given("env", full_name)
    if separator:
        user_code.load(flag, name, "function", callable)
        return module, function
    importlib.import_module(_NAME)
    try:
        found = importlib.import_module(f"{_NAME}.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(_NAME):
            raise errors.UsageError(
                flag, ": PettingZoo has no such module; valid: such as butterfly.pistonball_v6, sisl.multiwalker_v9"
            ) from error
        raise errors.UsageError(
            flag, f' needs the package {error.name}: pip install "pettingzoo[{name.partition(".")[0]}]"'
        ) from error
    if not callable(getattr(found, _FUNCTION, None)):
        raise errors.UsageError(flag, ": its agents act in turn; valid: environments with parallel_env")
    return found.__name__, _FUNCTION


def _make(function: Any, full_name: str) -> Any:
    """Calls code of others; turns its errors into one line."""
    try:
        return function()
    except user_code.RAISED as error:
        reason = " ".join(str(error).split())
        raise errors.UsageError(errors.given("env", full_name), f": {type(error).__name__}: {reason}") from error


def _spec(
    seen: list[tuple[Any, Any]], agents: list[Any], full_name: str, time_limit: int
) -> tuple[types.EnvironmentSpec, episodes.Actions]:
    """Returns the facts of one agent, of pairs of spaces of all.

    Raises:
        errors.UsageError: agents differ, or see what is no `Box`.
    """
    flag = errors.given("env", full_name)
    for agent, spaces in zip(agents, seen, strict=True):
        if spaces != seen[0]:
            raise errors.UsageError(
                flag, f": {agents[0]} and {agent} differ in what they see or do; valid: agents of one shape"
            )
    observed, acted = seen[0]
    boxes = _boxes(observed)
    if teams.INDEX in boxes:
        raise errors.UsageError(
            flag, f": agents see a leaf called {teams.INDEX}, as their index is called here; valid: another name"
        )
    wrong = [str(space) for space in boxes.values() if type(space).__name__ not in ("Box", "MultiBinary")]
    if wrong or not boxes:
        raise errors.UsageError(flag, f": agents see {wrong[0] if wrong else observed}; valid: Box, or a Dict of these")
    leaves = {name or together.OWN: gymnasium.seen(space) for name, space in boxes.items()}
    has_all = list(boxes) == [""] and len(boxes[""].shape) == 1
    observation = {**leaves, teams.INDEX: jax.ShapeDtypeStruct((), np.int32)}
    if has_all:
        own = leaves[together.OWN]
        observation[teams.ALL] = jax.ShapeDtypeStruct((len(agents) * own.shape[0],), own.dtype)
    actions = episodes.actions(acted, full_name)
    spec = types.EnvironmentSpec(
        name=full_name,
        observation=observation,
        action=actions.space,
        family=episodes.family(leaves, actions.space, time_limit),
        time_limit=time_limit,
        mask=episodes.mask_of(leaves, actions.space),
        categories={teams.INDEX: (len(agents),)},
        num_agents=len(agents),
        privileged=teams.ALL if has_all else "",
    )
    return spec, actions


def _boxes(space: Any) -> Mapping[str, Any]:
    return dict(space.spaces) if type(space).__name__ == "Dict" else {"": space}


def _plan(
    spec: types.EnvironmentSpec, actions: episodes.Actions, observed: Any, argument: Any, settings: dict[str, Any]
) -> worker_pool.Plan:
    """Plans the pool whose environments are whole teams."""
    num_agents, boxes = spec.num_agents, _boxes(observed)
    leaves = [
        worker_process.Leaf((together.OWN, name), (num_agents, *space.shape), gymnasium.dtype(space))
        for name, space in boxes.items()
    ]
    ends = worker_process.Leaf((together.ENDS,), (num_agents,), "uint8")
    reward = worker_process.Leaf((together.REWARD,), (num_agents,), "float64")

    def observation(arrays: list[np.ndarray]) -> dict[str, Any]:
        *own, rewards, ended = arrays
        turned = {name: episodes.turn(boxes[name], x) for name, x in zip(boxes, own, strict=True)}
        return {together.OWN: turned, together.REWARD: rewards, together.ENDS: ended}

    return worker_pool.Plan(
        spec=spec,
        factory=worker_process.Factory(f"{pathlib.Path(together.__file__)}:make", argument),
        leaves=(*leaves, reward, ends),
        observation=observation,
        action_dtype=actions.dtype,
        action_shape=(num_agents, *actions.shape),
        action_start=actions.start,
        workers=settings["workers"],
        max_restarts=settings["max_restarts"],
    )


SUITE = envs.Suite(_NAME, "host", make)
