"""The suite of the user's own device environments: `custom:my_module:make`, any function that returns one.

The module is imported by its name, so it lies where Python looks, such as where the command is started.
"""

import importlib
import inspect
import os
import traceback
from collections.abc import Mapping

from jaxrl_dist import envs, errors
from jaxrl_dist.envs import parameters, wrappers

_NAME = "custom"


def make(name: str, params: Mapping[str, str]) -> envs.Environment:
    """Makes `custom:module:function`.

    Args:
        name: the function returns a `envs.BareEnvironment`, which gets resets and bookkeeping here, or a
            `envs.Environment`, which has its own.
        params: arguments of the function that have a number, truth value or text as default.

    Raises:
        config.UsageError: there is no such function, it takes no such argument, or it fails.
    """
    full_name = f"{_NAME}:{name}"
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise errors.UsageError(f"--env={full_name}: expected {_NAME}:module:function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise errors.UsageError(f"--env={full_name}: importing {module_name}: {_where(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        named = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        valid = f"{', '.join(named) or 'none'}{errors.nearest(function_name, named)}"
        raise errors.UsageError(f"--env={full_name}: {module_name} has no function {function_name}; it has {valid}")
    values = parameters.parse_params(params, parameters.defaults_of(function), full_name)
    try:
        made = function(**values)
        if isinstance(made, envs.BareEnvironment):
            made = wrappers.auto_reset(made)
    except Exception as error:
        raise errors.UsageError(f"--env={full_name}: {_where(error)}") from error
    if not isinstance(made, envs.Environment):
        kinds = f"{envs.BareEnvironment.__name__} or {envs.Environment.__name__}"
        raise errors.UsageError(f"--env={full_name}: returned a {type(made).__name__}, expected a {kinds} of envs.base")
    return made._replace(spec=made.spec._replace(name=full_name))


def _where(error: Exception) -> str:
    """Says in one line what an error is and where in the user's code it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = ([f for f in frames if "site-packages" not in f.filename] or frames)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__} at {os.path.basename(frame.filename)}:{frame.lineno}: {text or 'no message'}"


SUITE = envs.Suite(_NAME, "device", make)
