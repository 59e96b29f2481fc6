"""Checks the arguments of every suite: the name of a task, and parameters that come as texts."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.settings import fields, user_code

# Parameters of every suite.
OBSERVE, FLATTEN, MASK = COMMON = ("observe", "flatten", "mask")
# A message names all environments up to the first number of them; if there are more, only the second number, namely
# those most like the given name.
_MOST_NAMES, _FEW_NAMES = 30, 5
# Names of parameters that are files, programs or their arguments, such as EnvPool's vzd_path, a program that it starts;
# and values that could be: a path, module:name, or a name with a dot.
_FILES = re.compile(r"(path|dir|file|args|command|exe|module)$")
_MAY_BE_CODE = re.compile(r"[/\\:]|[^\W\d]\w*\.\w")


def check_name(task: str, suite: str, environments: Collection[str], more: str = "") -> None:
    """Checks that a suite offers a task.

    Args:
        task: name of the task, without that of the suite.
        suite: name of the suite.
        environments: names that it offers.
        more: says where to find all names, for suites whose message names only a few.

    Raises:
        errors.UsageError: it does not; the message names valid tasks and the nearest.
    """
    if task in environments:
        return
    valid = f"expected one of {', '.join(environments)}"
    if len(environments) > _MOST_NAMES:
        like = errors.most_like(task, environments, _FEW_NAMES)
        valid = f"expected one of {len(environments)} names{', such as ' * bool(like)}{', '.join(like)}"
        valid += f" ({more})"
    raise errors.UsageError(errors.given("env", f"{suite}:{task}"), f": {valid}{errors.nearest(task, environments)}")


def check_trusted(params: Mapping[str, str]) -> None:
    """Checks that a file, program or module that a simulator is to use is not named by a run folder alone.

    Raises:
        errors.UsageError: one is.
    """
    for name, text in params.items():
        if _FILES.search(name) or _MAY_BE_CODE.search(text):
            user_code.check_trusted(errors.given(f"env.params.{name}", text), text)


def parse_params(params: Mapping[str, str], defaults: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Parses texts into the types of the defaults.

    Args:
        params: texts by name.
        defaults: every valid name with its default value.
        owner: full name of the environment, for errors.

    Returns:
        The given parameters, parsed.

    Raises:
        errors.UsageError: a name is unknown, or a text is no value of the default's type.
    """
    for name in params:
        if name not in defaults:
            raise unknown(name, owner, (*sorted(defaults), *COMMON))
    return {name: parse(name, text, defaults[name]) for name, text in params.items()}


def parse(name: str, text: str, default: Any) -> Any:
    """Parses one text into the type of the default: bool, int, float, str, or an array of as many numbers from a
    comma-separated list.

    Raises:
        errors.UsageError: it is no such value, or it is not finite although the default is.
    """
    kind = next((kind for kind in (bool, int, float, str) if isinstance(default, kind)), None)
    is_whole = kind is None and jnp.issubdtype(jnp.result_type(default), jnp.integer)
    of_array = "int" if is_whole else "float"
    field = fields.Field(name, kind.__name__ if kind else of_array, default if kind else None, "")
    try:
        if kind:
            return fields.parse(field, text)
        numbers = [fields.parse(field, part) for part in text.split(",")]
    except ValueError as error:
        listed = "" if kind else ", or several separated by commas"
        raise refused(name, text, f"{error}{listed}") from None
    if len(numbers) != np.size(default):
        raise refused(name, text, f"expected {np.size(default)} numbers separated by commas")
    return jnp.asarray(numbers, jnp.result_type(default)).reshape(np.shape(default))


def unknown(name: str, owner: str, valid: Collection[str]) -> errors.UsageError:
    """Returns an error for an unknown parameter of an environment, which names valid ones and the nearest."""
    return errors.UsageError(
        errors.given(f"env.params.{name}"), f": {owner} takes {', '.join(valid)}{errors.nearest(name, valid)}"
    )


def refused(name: str, value: Any, why: str) -> errors.UsageError:
    """Returns an error for an invalid value of a parameter."""
    return errors.UsageError(errors.given(f"env.params.{name}", value), f": {why}")


def check_choice(name: str, value: str, valid: Collection[str]) -> None:
    """Checks that a parameter has one of few values.

    Raises:
        errors.UsageError: it has another; the message names the valid ones and the nearest.
    """
    if value not in valid:
        raise refused(name, value, f"expected one of {', '.join(valid)}{errors.nearest(value, valid)}")


def check_least(values: Mapping[str, Any], lowest: Mapping[str, int]) -> None:
    """Checks that given parameters are not below their lowest valid values.

    Raises:
        errors.UsageError: one is.
    """
    for name, least in lowest.items():
        if name in values and values[name] < least:
            raise refused(name, values[name], f"expected at least {least}")


def defaults_of(constructor: Callable[..., Any]) -> dict[str, Any]:
    """Returns a constructor's arguments whose default is a number, switch or text: users may give these."""
    parameters = inspect.signature(constructor).parameters.values()
    return {p.name: p.default for p in parameters if isinstance(p.default, bool | int | float | str)}


def required_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns a function's arguments that have no default but are annotated as one of a number, switch or text.

    Each has the value 0, False or "", which says its type.
    """
    arguments = inspect.signature(function, eval_str=True).parameters.values()
    kinds = (bool, int, float, str)
    return {p.name: p.annotation() for p in arguments if p.default is p.empty and p.annotation in kinds}


def list_params(values: Mapping[str, Any]) -> str:
    """Lists parameters in words, such as "noop_max=1, frame_skip=4"."""
    return ", ".join(f"{name}={value}" for name, value in values.items())
