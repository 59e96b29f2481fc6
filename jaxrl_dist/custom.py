"""Checks the class that `--network=module:Class` names in a module of the user's, before anything is built of it."""

import importlib
from types import ModuleType

import flax.linen as nn

from jaxrl_dist import declarations
from jaxrl_dist.config import UsageError


def check(torso: str) -> None:
    """Checks that the module has the class.

    A module that cannot be imported, and a class that cannot be made, are refused where the torso is made.

    Args:
        torso: name of a torso; those of this project pass.

    Raises:
        UsageError: there is no such class; the message names the Flax modules that there are.
    """
    module_name, separator, class_name = torso.partition(":")
    if not separator:
        return
    try:
        module = importlib.import_module(module_name)
    except Exception:
        # Making the torso imports it again, and says what is wrong.
        return
    if hasattr(module, class_name):
        return
    valid = _flax_modules(module)
    raise UsageError(
        f"--network={torso}: {module_name} has no class {class_name}; its Flax modules: "
        f"{', '.join(valid) or 'none'}{declarations.nearest(class_name, valid)}"
    )


def _flax_modules(module: ModuleType) -> list[str]:
    """Lists the Flax modules of a Python module by name, but not those of Flax itself."""
    members = vars(module).items()
    classes = {name: value for name, value in members if isinstance(value, type) and issubclass(value, nn.Module)}
    return [name for name, value in classes.items() if value.__module__.split(".")[0] != "flax"]
