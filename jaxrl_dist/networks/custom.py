"""Makes Flax modules of the user, as in `--network=module:Class`, and tries them by their shapes."""

from typing import Any

import flax.linen as nn
import jax
from flax import errors

from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.settings import user_code


def make(name: str) -> Any:
    """Makes the module, without arguments.

    Args:
        name: such as `my_module:MyNet`.

    Raises:
        UsageError: there is no such class, or it fails; the message names the module's Flax classes, or the line.
    """
    found = user_code.load(given("network", name), name, "Flax module", callable, _is_flax_module)
    try:
        made = found()
    except user_code.RAISED as error:
        raise UsageError(given("network", name), f": {user_code.where(error)}; it is made without arguments") from error
    if not isinstance(made, nn.Module):
        raise UsageError(
            given("network", name), " makes no flax.linen.Module; flax.nnx has others, which are not taken"
        )
    return made


def check(name: str, torso: nn.Module, observation: jax.ShapeDtypeStruct) -> None:
    """Tries a module of the user's, by shapes alone.

    Args:
        name: as in `make`.
        torso: from `make`.
        observation: shape and dtype of an observation, without a batch.

    Raises:
        UsageError: it fails, or does not map [B, ...] to [B, F]; the message names the line.
    """
    batch = jax.ShapeDtypeStruct((2, *observation.shape), observation.dtype)
    try:
        variables = jax.eval_shape(lambda x: torso.init(jax.random.key(0), x), batch)
        if stateful := sorted(set(variables) - {"params"}):
            raise UsageError(
                given("network", name),
                f" keeps {', '.join(stateful)} beside its parameters, as BatchNorm does; expected outputs of "
                "parameters and observations alone, as those of LayerNorm and GroupNorm",
            )
        features = jax.eval_shape(torso.apply, variables, batch)
    except UsageError:
        raise
    except errors.InvalidRngError as error:
        raise UsageError(
            given("network", name), ": it draws random numbers, as Dropout does; expected deterministic=True"
        ) from error
    except user_code.RAISED as error:
        raise UsageError(
            given("network", name), f": {user_code.where(error)}; it was given observations {batch.shape}"
        ) from error
    shape = getattr(features, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != 2:
        raise UsageError(
            given("network", name),
            f" maps observations {batch.shape} to {'a tree' if shape is None else shape}; wanted (2, F)",
        )


def _is_flax_module(value: Any) -> bool:
    """Says whether it is a class of Flax modules, but not one of Flax's own."""
    return isinstance(value, type) and issubclass(value, nn.Module) and value.__module__.split(".")[0] != "flax"
