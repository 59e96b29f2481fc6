"""The suite of external simulators: programs that own their loop, and ask for actions by `jaxrl_dist.simulator`.

`external:my_module:play` calls the function `play(session)` in threads of this process; `external:NAME` with
`--env.params.listen=PORT` waits for programs that connect to that port of this machine: docs/external_simulators.md.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import envs, errors, simulator, types
from jaxrl_dist.envs import parameters
from jaxrl_dist.envs.host import episodes
from jaxrl_dist.envs.simulators import server, sources, waiting_room
from jaxrl_dist.settings import user_code

_NAME = "external"

_DEFAULTS = {
    "observation": "",
    "actions": "",
    "low": "-inf",
    "high": "inf",
    "reward_range": "-inf,inf",
    "time_limit": 0,
    "listen": 0,
}
_PORTS = (1024, 65535)
# Limits of the bytes that a trainer reserves for each environment, and of the bounds in a welcome message.
_MOST_OBSERVATION_BYTES, _MOST_ACTION_COMPONENTS = 1 << 26, 256


class _Actions(NamedTuple):
    """An action space, and the type in which its actions are sent."""

    space: types.DiscreteSpace | types.BoxSpace
    kind: simulator.ArrayType


def make(name: str, params: Mapping[str, str]) -> envs.HostTask:
    """Makes the task `external:name`; threads and listening begin only when its environments are made.

    Training asks for a simulator per environment; each evaluation asks for others, one per episode.

    Args:
        name: `module:function`, or any name beside `listen`.
        params: `observation`, such as float32[4]; `actions`, their number, or float32[3] for real ones, with bounds
            `low` and `high` for all or per component; `reward_range`, lowest and highest of a step; `time_limit`,
            longest episode in steps; `listen`, a port of 127.0.0.1.

    Raises:
        errors.UsageError: a parameter is unknown, missing or not valid, or the function cannot be imported.
    """
    full_name = f"{_NAME}:{name}"
    values = {**_DEFAULTS, **parameters.parse_params(params, _DEFAULTS, full_name)}
    for required, example in (("observation", "float32[4]"), ("actions", "2 or float32[3]")):
        if not values[required]:
            raise errors.UsageError(
                errors.given("env", full_name),
                " needs ",
                errors.given(f"env.params.{required}"),
                f", such as {example}",
            )
    observation = _observation(values["observation"])
    actions = _actions(values)
    if values["time_limit"] < 0:
        raise parameters.refused("time_limit", values["time_limit"], "expected at least 0 (none)")
    low, high = _numbers("reward_range", values["reward_range"], 2)
    if not low <= high:
        raise parameters.refused("reward_range", f"{low:g},{high:g}", "expected the lowest first")
    struct = jax.ShapeDtypeStruct(observation.shape, np.dtype(observation.dtype))
    spec = types.EnvironmentSpec(
        name=full_name,
        observation=struct,
        action=actions.space,
        family=episodes.family(struct, actions.space, values["time_limit"]),
        reward_range=(float(low), float(high)),
        time_limit=values["time_limit"],
    )
    source, protocol = _source(name, values["listen"], full_name)
    plan = server.Plan(spec, source, _terms(spec, observation, actions), observation, actions.kind)

    make_training, make_evaluation = (
        functools.partial(server.Conversations, plan, purpose) for purpose in (sources.TRAINING, sources.EVALUATION)
    )
    return envs.HostTask(spec, protocol, make_training, make_evaluation)


def _source(name: str, port: int, full_name: str) -> tuple[sources.Source, str]:
    """Returns the source of the simulators, and a line that describes it."""
    is_function = ":" in name
    if bool(port) == is_function:
        raise errors.UsageError(
            errors.given("env", full_name),
            *((" ", errors.given("env.params.listen", port)) if port else ()),
            f": expected {_NAME}:NAME with ",
            errors.given("env.params.listen", "PORT"),
            f", or {_NAME}:module:function without",
        )
    if is_function:
        play = user_code.load(errors.given("env", full_name), name, "function", callable)
        return sources.Threads(play), f"simulators are calls of {name} in threads"
    if not _PORTS[0] <= port <= _PORTS[1]:
        raise parameters.refused("listen", port, f"expected a port from {_PORTS[0]} to {_PORTS[1]}")
    return waiting_room.Listener(port), f"simulators connect to {simulator.HOST}:{port}"


def _observation(text: str) -> simulator.ArrayType:
    kind = _array_type("observation", text)
    if kind.num_bytes > _MOST_OBSERVATION_BYTES:
        size = f"{kind.num_bytes:,} bytes"
        raise parameters.refused("observation", text, f"{size}; expected at most {_MOST_OBSERVATION_BYTES:,}")
    return kind


def _actions(values: Mapping[str, Any]) -> _Actions:
    text = values["actions"]
    bounded = [bound for bound in ("low", "high") if values[bound] != _DEFAULTS[bound]]
    if text.strip().lstrip("-").isdecimal():
        if not 1 <= int(text) <= np.iinfo(np.int32).max:
            raise parameters.refused("actions", text, "expected at least 1")
        if bounded:
            raise errors.UsageError(
                errors.given(f"env.params.{bounded[0]}"),
                ": bounds are for real actions, such as ",
                errors.given("env.params.actions", "float32[3]"),
            )
        return _Actions(types.DiscreteSpace(int(text)), simulator.ArrayType("int32", ()))
    kind = _array_type("actions", text)
    size = math.prod(kind.shape)
    if kind.dtype != "float32" or size > _MOST_ACTION_COMPONENTS:
        valid = f"a number of actions such as 2, or real ones such as float32[3], at most {_MOST_ACTION_COMPONENTS}"
        raise parameters.refused("actions", text, f"expected {valid}")
    low, high = (_numbers(bound, values[bound], size).reshape(kind.shape) for bound in ("low", "high"))
    if not (low < high).all():
        raise errors.UsageError(
            errors.given("env.params.low", values["low"]),
            " ",
            errors.given("env.params.high", values["high"]),
            ": expected low < high everywhere",
        )
    return _Actions(types.BoxSpace(kind.shape, low, high), kind)


def _array_type(name: str, text: str) -> simulator.ArrayType:
    try:
        return simulator.parse_type(text)
    except ValueError as error:
        hint = errors.nearest(text.partition("[")[0], simulator.DTYPES)
        raise parameters.refused(name, text, f"{error}{hint}") from None


def _numbers(name: str, text: str, count: int) -> np.ndarray:
    """Reads `count` numbers separated by commas, as f32; for bounds, one number may stand for all."""
    try:
        numbers = np.asarray([float(part) for part in text.split(",")], np.float32)
    except ValueError:
        numbers = np.asarray([math.nan])
    if np.isnan(numbers).any() or len(numbers) not in {count, count if name == "reward_range" else 1}:
        one = "" if name == "reward_range" or count == 1 else "1 or "
        raise parameters.refused(name, text, f"expected {one}{count} number(s) separated by commas")
    return np.broadcast_to(numbers, count).copy()


def _terms(spec: types.EnvironmentSpec, observation: simulator.ArrayType, actions: _Actions) -> dict[str, Any]:
    """Returns the facts that every simulator is told; an infinite bound is None, since JSON has no infinity."""

    def plain(numbers: Any) -> list[float | None]:
        return [float(x) if np.isfinite(x) else None for x in np.ravel(numbers)]

    space = actions.space
    choice: dict[str, Any] = {"num_actions": space.num_values} if isinstance(space, types.DiscreteSpace) else {}
    if isinstance(space, types.BoxSpace):
        choice = {"low": plain(space.low), "high": plain(space.high)}
    return {
        "environment": spec.name,
        "observation": str(observation),
        "action": str(actions.kind),
        **choice,
        "reward_range": plain(spec.reward_range),
        "time_limit": spec.time_limit,
    }


SUITE = envs.Suite(_NAME, "host", make)
