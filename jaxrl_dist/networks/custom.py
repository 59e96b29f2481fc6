"""Flax modules of the user's, as `--network=module:Class` names them: made, and tried by their shapes."""

import importlib
import os
import traceback
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax

from jaxrl_dist import errors
from jaxrl_dist.errors import UsageError


def make(name: str) -> Any:
    """Makes the module, without arguments.

    Args:
        name: such as `my_module:MyNet`.

    Raises:
        UsageError: there is no such class, or it fails; the message names the Flax modules that there are, or the line.
    """
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"--network={name}: {error}") from error
    except Exception as error:
        raise UsageError(f"--network={name}: {_where(error)}") from error
    if not hasattr(module, class_name):
        valid = _flax_modules(module)
        raise UsageError(
            f"--network={name}: {module_name} has no class {class_name}; its Flax modules: "
            f"{', '.join(valid) or 'none'}{errors.nearest(class_name, valid)}"
        )
    try:
        return getattr(module, class_name)()
    except Exception as error:
        raise UsageError(f"--network={name}: {_where(error)}; it is made without arguments") from error


def check(name: str, torso: nn.Module, observation: jax.ShapeDtypeStruct) -> None:
    """Tries a module of the user's, by shapes alone.

    Args:
        name: as in `make`.
        torso: from `make`.
        observation: one of those that it will see, without a batch.

    Raises:
        UsageError: it fails, or does not map [B, ...] to [B, F]; the message names the line.
    """
    batch = jax.ShapeDtypeStruct((2, *observation.shape), observation.dtype)
    try:
        features = jax.eval_shape(lambda x: torso.init_with_output(jax.random.key(0), x)[0], batch)
    except Exception as error:
        raise UsageError(f"--network={name}: {_where(error)}; it was given observations {batch.shape}") from error
    shape = getattr(features, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != 2:
        raise UsageError(
            f"--network={name} maps observations {batch.shape} to {'a tree' if shape is None else shape}; wanted (2, F)"
        )


def _where(error: Exception) -> str:
    """Says in one line what an error is and where in the user's code it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    # The package itself may be installed beside the libraries, and then every frame is of them.
    frame = ([f for f in frames if "site-packages" not in f.filename] or frames)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__} at {place}: {text[0] if text else 'no message'}"


def _flax_modules(module: ModuleType) -> list[str]:
    """Lists the Flax modules of a Python module by name, but not those of Flax itself."""
    members = vars(module).items()
    classes = {name: value for name, value in members if isinstance(value, type) and issubclass(value, nn.Module)}
    return [name for name, value in classes.items() if value.__module__.split(".")[0] != "flax"]
