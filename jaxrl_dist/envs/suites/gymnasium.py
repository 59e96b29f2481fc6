"""The suite Gymnasium (1.3.0): any environment that is registered with it, in a pool of processes on the CPU.

Its names are as in `gymnasium:CartPole-v1`, or `gymnasium:my_module:MyEnv-v0` if importing `my_module` registers it;
`gymnasium:my_module:MyEnv` is a class there, or a function that makes an environment.
"""

import ast
import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import parameters
from jaxrl_dist.envs.film import rendered
from jaxrl_dist.envs.host import episodes, hangs, worker_pool, worker_process
from jaxrl_dist.envs.host import registered as registered_entry
from jaxrl_dist.settings import user_code

_NAME = "gymnasium"
_MORE_NAMES = (
    'python -c "import gymnasium; gymnasium.pprint_registry()" lists all; module:name imports a module that registers '
    "more"
)

# Parameters that this file adds to the arguments of the environment.
_DEFAULTS = {"workers": 0, "max_restarts": 3, "max_episode_steps": 0}
_LITERALS = {"true": True, "false": False, "none": None}
# Dtype of an observation -> dtype that an agent sees, as JAX has no 64 bits here.
_DTYPES = {"float64": "float32", "float16": "float32", "int64": "int32", "uint64": "int32", "uint32": "int32"}
# Characters of a text, which are ASCII, and the length of one whose space names none, as EnvPool's missions have it.
_CHARACTERS, _MISSION_LENGTH = (128,), 96


def make(name: str, params: dict[str, str]) -> envs.HostTask:
    """Makes the task `gymnasium:name`; makes and closes one environment in this process, to read its spaces.

    A discrete observation becomes one-hot f32, real numbers and integers of 32 bits and more become f32, a `Dict` or
    `Tuple` becomes a tree. A vector of choices is a leaf of categories, and so are the characters of a text. A leaf
    `action_mask`, as long as there are actions, says which are legal.

    Args:
        name: name of a registered environment, as `gymnasium.make` takes it; or `module:name` of a class, or of a
            function that makes an environment.
        params: arguments of the environment (numbers, true, false, none, lists, tuples and dicts are read as such, all
            else as text); and `max_episode_steps`; `workers`, the number of processes, by default one per core;
            `max_restarts`, the number of workers that may be replaced in all, by default 3.

    Raises:
        errors.UsageError: unknown name or argument, the environment cannot be made, or has spaces of other kinds.
        ModuleNotFoundError: gymnasium is not installed.
    """
    library: Any = importlib.import_module("gymnasium")
    full_name = f"{_NAME}:{name}"
    settings, kwargs = _split(params, full_name)
    registered = _find(library, name)
    _check_arguments(registered, kwargs, full_name)
    make_it = functools.partial(library.make, registered, disable_env_checker=True, **kwargs)
    with hangs.limited(full_name, "making it"):
        environment = _make(make_it, full_name, hint=_extra(registered.entry_point))
        observation_space, action_space = _make(
            lambda: (environment.observation_space, environment.action_space), full_name, "its spaces: "
        )
    leaves, made = tuple(_leaves(observation_space, (), full_name)), environment.spec
    is_drawn = "rgb_array" in environment.metadata.get("render_modes", ()) and _takes(registered, "render_mode")
    with hangs.limited(full_name, "closing it"):
        _make(environment.close, full_name, "close: ")
    again = _with_arguments(registered, kwargs)
    valid = "its arguments must be numbers, texts, lists, tuples or dicts: "
    argument = _make(lambda: worker_process.packed(_entry(again)), full_name, valid)
    structs = {leaf.path: seen(space) for leaf, space in leaves}
    actions = episodes.actions(action_space, full_name)
    observation = _tree(observation_space, (), structs)
    is_atari, time_limit = made.id.startswith("ALE/"), made.max_episode_steps or 0
    frames = made.kwargs.get("frameskip", 4) if is_atari else 1
    spec = types.EnvironmentSpec(
        name=full_name,
        observation=observation,
        action=actions.space,
        family="atari" if is_atari else episodes.family(observation, actions.space, time_limit),
        time_limit=time_limit,
        frames_per_step=frames if isinstance(frames, int) else 1,
        mask=episodes.mask_of(observation, actions.space),
        categories=_categories(leaves) | _grids(environment, leaves),
    )
    plan = worker_pool.Plan(
        spec=spec,
        factory=worker_process.Factory(f"{pathlib.Path(registered_entry.__file__)}:make", argument),
        leaves=tuple(leaf for leaf, _ in leaves),
        observation=functools.partial(_observe, observation_space, leaves, full_name),
        action_dtype=actions.dtype,
        action_shape=actions.shape,
        action_start=actions.start,
        workers=settings["workers"],
        max_restarts=settings["max_restarts"],
    )
    limit = f", episodes of at most {spec.time_limit} steps" if spec.time_limit else ""
    make_drawn = functools.partial(library.make, again, render_mode="rgb_array")
    return envs.HostTask(
        spec,
        f"{made.id} of Gymnasium {library.__version__}{limit}",
        functools.partial(worker_pool.WorkerPool, plan),
        make_film=functools.partial(rendered.start, make_drawn, plan) if is_drawn else None,
    )


def _split(params: Mapping[str, str], full_name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads parameters: those of `_DEFAULTS`, and arguments of the environment."""
    own = {key: params[key] for key in _DEFAULTS.keys() & params}
    settings = {**_DEFAULTS, **parameters.parse_params(own, _DEFAULTS, full_name)}
    parameters.check_least(settings, dict.fromkeys(settings, 0))
    kwargs = {key: literal(text) for key, text in params.items() if key not in _DEFAULTS}
    if settings["max_episode_steps"]:
        kwargs["max_episode_steps"] = settings["max_episode_steps"]
    return settings, kwargs


def _find(library: Any, name: str) -> Any:
    """Returns Gymnasium's entry of a name; imports the module in the name first, if there is one."""
    module, _, short = name.rpartition(":")
    if module:
        user_code.imported(errors.given("env", f"{_NAME}:{name}"), module)
    own = vars(sys.modules[module]) if module else {}
    if short not in library.registry and callable(own.get(short)):
        return library.envs.registration.EnvSpec(id=short, entry_point=f"{module}:{short}")
    classes = [key for key, value in own.items() if isinstance(value, type) and issubclass(value, library.Env)]
    parameters.check_name(short, f"{_NAME}:{module}".rstrip(":"), [*classes, *library.registry], _MORE_NAMES)
    found = library.spec(short)
    entry = found.entry_point
    if callable(entry):
        # Worker processes find the class only by its name.
        found = dataclasses.replace(found, entry_point=f"{entry.__module__}:{entry.__qualname__}")
    if not isinstance(found.entry_point, str) or "<" in found.entry_point or found.entry_point.startswith("__main__:"):
        raise errors.UsageError(
            errors.given("env", f"{_NAME}:{name}"),
            f": other processes cannot import {found.entry_point}; define it at the top level of a module of its own",
        )
    if not module and not _is_installed(found.entry_point):
        # A run folder may not name it without trust, even if the program itself has registered it.
        user_code.check_trusted(errors.given("env", f"{_NAME}:{name}"), found.entry_point.partition(":")[0])
    return found


def _with_arguments(registered: Any, kwargs: Mapping[str, Any]) -> Any:
    """Returns an entry with arguments.

    An environment also says itself which wrappers it has; making it by that would add twice those of its own function.
    """
    own = {key: value for key, value in kwargs.items() if key not in _DEFAULTS}
    limit = kwargs.get("max_episode_steps", registered.max_episode_steps)
    return dataclasses.replace(registered, kwargs={**registered.kwargs, **own}, max_episode_steps=limit)


def _entry(registered: Any) -> dict[str, Any]:
    """Returns the argument of `host.registered.make`, with the arguments of the environment as they are."""
    return {"entry": dataclasses.replace(registered, kwargs={}).to_json(), "kwargs": registered.kwargs}


def _is_installed(entry_point: str) -> bool:
    """Says whether an environment is Gymnasium's own, or of a package that offers some to it."""
    offered = importlib.metadata.entry_points(group="gymnasium.envs")
    packages = {point.module.partition(".")[0] for point in offered} | {"gymnasium"}
    return re.split("[.:]", entry_point)[0] in packages


def _extra(entry_point: str) -> str:
    """Says how to install the package that an environment of Gymnasium's own imports, "" for others."""
    folder = re.match(r"gymnasium\.envs\.(\w+)\.", entry_point)
    return f'; pip install "gymnasium[{folder[1]}]"' if folder else ""


def _make(function: Callable[[], Any], full_name: str, doing: str = "", hint: str = "") -> Any:
    """Calls code of others; turns its errors into one line, with a hint if a module is missing."""
    try:
        return function()
    except user_code.RAISED as error:
        reason, missing = " ".join(str(error).split()), hint if isinstance(error, ModuleNotFoundError) else ""
        raise errors.UsageError(
            errors.given("env", full_name), f": {doing}{type(error).__name__}: {reason}{missing}"
        ) from error


def literal(text: str) -> Any:
    """Reads a number, truth value, none or list; everything else is text."""
    if text.lower() in _LITERALS:
        return _LITERALS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _leaves(space: Any, path: tuple[Any, ...], full_name: str) -> list[tuple[worker_process.Leaf, Any]]:
    """Lists the arrays of an observation, each with its space."""
    kind = type(space).__name__
    if kind in ("Dict", "Tuple"):
        members = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
        return [leaf for key, member in members for leaf in _leaves(member, (*path, key), full_name)]
    if kind == "Discrete":
        return [(worker_process.Leaf(path, (), "int64"), space)]
    if _is_text(space):
        return [(worker_process.Leaf(path, (_length(space),), worker_process.TEXT), space)]
    if kind in ("Box", "MultiBinary") or (kind == "MultiDiscrete" and len(space.shape) == 1):
        return [(worker_process.Leaf(path, tuple(space.shape), dtype(space)), space)]
    raise errors.UsageError(
        errors.given("env", full_name),
        f": its observation{''.join(f'/{key}' for key in path)} is {space}; valid: Box, Discrete, "
        "MultiDiscrete, MultiBinary, Text, and Dict or Tuple of these",
    )


def _is_text(space: Any) -> bool:
    """Says whether a space is of texts, as MiniGrid's missions are."""
    return type(space).__name__ in ("Text", "MissionSpace")


def _length(space: Any) -> int:
    """Returns the characters that an agent sees of a text."""
    return int(getattr(space, "max_length", _MISSION_LENGTH))


def seen(space: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of an array as the agent sees it."""
    if type(space).__name__ == "Discrete":
        return jax.ShapeDtypeStruct((int(space.n),), np.float32)
    if _is_text(space):
        return jax.ShapeDtypeStruct((_length(space),), np.uint8)
    return jax.ShapeDtypeStruct(episodes.turned(space) or tuple(space.shape), np.dtype(dtype(space)))


def dtype(space: Any) -> str:
    """Returns the dtype of an array as the agent sees it."""
    if episodes.is_of_integers(space):
        return "float32"
    name: str = "int16" if episodes.is_of_small_bytes(space) else space.dtype.name
    return _DTYPES.get(name, name)


def _observe(
    space: Any, leaves: tuple[tuple[worker_process.Leaf, Any], ...], full_name: str, arrays: list[np.ndarray]
) -> types.ArrayTree:
    """Turns the arrays [N, ...] of observations into the tree that the agent sees."""
    found = {}
    for (leaf, member), array in zip(leaves, arrays, strict=True):
        if type(member).__name__ == "Discrete":
            value = array - int(member.start)
            if ((value < 0) | (value >= member.n)).any():
                raise errors.EnvironmentFault(f"the {leaf.name} of {full_name} is {array.tolist()}, outside {member}")
            array = (value[:, None] == np.arange(member.n)).astype(np.float32)
        elif type(member).__name__ == "MultiDiscrete":
            array = array - np.asarray(member.start, array.dtype)
        elif _is_text(member):
            array = array.view(np.uint8)
        found[leaf.path] = episodes.turn(member, array)
    return _tree(space, (), found)


def _categories(leaves: Sequence[tuple[worker_process.Leaf, Any]]) -> dict[str, tuple[int, ...]]:
    """Returns the numbers of values of the leaves that are vectors of choices, or texts, by name."""
    found = {}
    for leaf, space in leaves:
        if type(space).__name__ == "MultiDiscrete" or _is_text(space):
            found["/".join(map(str, leaf.path))] = _CHARACTERS if _is_text(space) else tuple(space.nvec.tolist())
    return found


def _grids(environment: Any, leaves: Sequence[tuple[worker_process.Leaf, Any]]) -> dict[str, tuple[int, ...]]:
    """Returns the categories of the leaves that are grids of codes, by name, of an environment of MiniGrid's."""
    if type(environment.unwrapped).__module__.partition(".")[0] != "minigrid":
        return {}
    grids = [leaf for leaf, space in leaves if seen(space).dtype == np.uint8 and leaf.shape[2:] == (3,)]
    small = [leaf for leaf in grids if max(leaf.shape) < episodes.PIXELS]
    return {"/".join(map(str, leaf.path)): episodes.GRID_CODES for leaf in small}


def _tree(space: Any, path: tuple[Any, ...], by_path: dict[tuple[Any, ...], Any]) -> types.ArrayTree:
    """Arranges values, one for each array of an observation, as the observation's space does."""
    kind = type(space).__name__
    if kind == "Dict":
        return {key: _tree(member, (*path, key), by_path) for key, member in space.spaces.items()}
    if kind == "Tuple":
        return tuple(_tree(member, (*path, i), by_path) for i, member in enumerate(space.spaces))
    return by_path[path]


def _arguments(registered: Any) -> Mapping[str, inspect.Parameter]:
    """Returns the arguments of an environment's constructor; none if it cannot be read, as making it will tell why."""
    point = registered.entry_point
    try:
        if isinstance(point, str):
            module, _, attribute = point.partition(":")
            point = getattr(importlib.import_module(module), attribute, None)
        return inspect.signature(point).parameters if callable(point) else {}
    except Exception:
        return {}


def _takes(registered: Any, name: str) -> bool:
    """Says whether an environment's constructor takes an argument."""
    accepted = _arguments(registered)
    return name in accepted or any(p.kind is p.VAR_KEYWORD for p in accepted.values())


def _check_arguments(registered: Any, kwargs: Mapping[str, Any], full_name: str) -> None:
    """Refuses arguments that the environment's constructor does not have, unless it takes any."""
    accepted = _arguments(registered)
    valid = sorted({*accepted, *_DEFAULTS} - {"self"})
    for key in kwargs:
        if accepted and key not in valid and not _takes(registered, key):
            raise parameters.unknown(key, full_name, valid)


class Named(NamedTuple):
    """An environment that a program gave as an object, in words that other processes and later sessions understand.

    Attributes:
        name: `gymnasium:…`.
        params: texts of its parameters.
    """

    name: str
    params: dict[str, str]


def named(given: Any) -> Named:
    """Names an environment that a program has as an object, so that many of it can be made.

    Args:
        given: a class, a function that makes an environment, a `functools.partial` of either with arguments by name, or
            an instance that `gymnasium.make` made.

    Raises:
        errors.UsageError: other processes could not make it again.
    """
    function, kwargs = given, {}
    if isinstance(given, functools.partial) and not given.args:
        function, kwargs = given.func, given.keywords
    if isinstance(function, type) or inspect.isfunction(function):
        return _named_function(function, kwargs)
    registered = getattr(given, "spec", None)
    library = sys.modules.get("gymnasium")
    if library is None or not isinstance(given, library.Env) or registered is None:
        raise _unnamed(given, "an instance cannot be made again, and many are made here")
    if registered.additional_wrappers or registered.id not in library.registry:
        raise _unnamed(
            given, "its wrappers are no part of its name" if registered.additional_wrappers else "it is not registered"
        )
    original, point = library.registry[registered.id], registered.entry_point
    module = point.partition(":")[0] if isinstance(point, str) else point.__module__
    name = registered.id if _is_installed(module) else f"{module}:{registered.id}"
    changed = {key: value for key, value in registered.kwargs.items() if original.kwargs.get(key) != value}
    changed.pop("render_mode", None)
    if registered.max_episode_steps != original.max_episode_steps:
        changed["max_episode_steps"] = registered.max_episode_steps
    return Named(f"{_NAME}:{name}", _texts(given, changed))


def _named_function(function: Any, kwargs: Mapping[str, Any]) -> Named:
    module, name = function.__module__, function.__qualname__
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not function:
        raise _unnamed(function, f"its steps run in other processes, which cannot import {module}:{name}")
    return Named(f"{_NAME}:{module}:{name}", _texts(function, kwargs))


def _texts(given: Any, kwargs: Mapping[str, Any]) -> dict[str, str]:
    """Returns arguments as texts, from which `literal` reads the same values."""
    texts = {key: value if isinstance(value, str) else repr(value) for key, value in kwargs.items()}
    for key, value in kwargs.items():
        read = literal(texts[key])
        if type(read) is not type(value) or read != value:
            raise _unnamed(given, f"its argument {key} is no number, text, list or dict")
    return texts


def _unnamed(given: Any, reason: str) -> errors.UsageError:
    called = getattr(given, "__name__", type(given).__name__).strip("<>")
    return errors.UsageError(
        f"env=<{called}>: {reason}; give a class, or a function without arguments that makes one, from the top level "
        "of a module (a notebook writes one by %%writefile my_env.py)"
    )


SUITE = envs.Suite(_NAME, "host", make, draws="what has the render mode rgb_array")
