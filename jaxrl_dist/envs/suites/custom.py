"""The suite of the user's own device environments: `custom:my_module:make`, any function that returns one.

The module is imported by its name, so it lies where Python looks, such as where the command is started.
"""

import inspect
from collections.abc import Mapping

from jaxrl_dist import envs, errors
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.settings import user_code

_NAME = "custom"


def make(name: str, params: Mapping[str, str]) -> envs.Environment:
    """Makes `custom:module:function`.

    Args:
        name: the function returns a `envs.BareEnvironment`, which gets resets and bookkeeping here, or a
            `envs.Environment`, which has its own.
        params: arguments of the function that have a number, truth value or text as default, or as annotation.

    Raises:
        UsageError: there is no such function, it takes no such argument, or it fails.
    """
    full_name = f"{_NAME}:{name}"
    function = user_code.load(errors.given("env", full_name), name, "function", _is_maker, inspect.isfunction)
    if not inspect.isfunction(function):
        raise _for_gymnasium(name)
    valid = parameters.defaults_of(function) | parameters.required_of(function)
    values = parameters.parse_params(params, valid, full_name)
    try:
        # The function may import whatever it needs: its own module is already trusted.
        with user_code.trusting(None):
            made = function(**values)
    except user_code.RAISED as error:
        raise errors.UsageError(errors.given("env", full_name), f": {user_code.where(error)}") from error
    if _is_of_gymnasium(type(made)):
        raise _for_gymnasium(name)
    if isinstance(made, envs.BareEnvironment):
        made = _with_resets(made, full_name)
    if not isinstance(made, envs.Environment):
        kinds = f"{envs.BareEnvironment.__name__} or {envs.Environment.__name__}"
        raise errors.UsageError(
            errors.given("env", full_name), f": returned a {type(made).__name__}, expected a {kinds}"
        )
    return made._replace(spec=made.spec._replace(name=full_name))


def _is_maker(found: object) -> bool:
    return inspect.isfunction(found) or _is_of_gymnasium(found)


def _is_of_gymnasium(kind: object) -> bool:
    """Says whether something is a class of Gymnasium's environments, without importing Gymnasium."""
    return any(base.__module__.partition(".")[0] == "gymnasium" for base in getattr(kind, "__mro__", ()))


def _for_gymnasium(name: str) -> errors.UsageError:
    """Makes an error for an environment that another suite plays."""
    return errors.UsageError(
        errors.given("env", f"{_NAME}:{name}"),
        ": it makes an environment of Gymnasium's, and this suite has those of JAX; valid: ",
        errors.given("env", f"gymnasium:{name}"),
    )


def _with_resets(made: envs.BareEnvironment, full_name: str) -> envs.Environment:
    try:
        return wrappers.auto_reset(made)
    except user_code.RAISED as error:
        raise errors.UsageError(
            errors.given("env", full_name),
            f": {user_code.where(error)}; expected (state, observation) of reset(key), and an envs.Transition of "
            "step(key, state, action)",
        ) from error


SUITE = envs.Suite(_NAME, "device", make)
