"""Makes Flax modules of the user, torsos (`--network=module:Class`) and cores (`--network.core=module:Class`).

They are tried by their shapes.
"""

from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_dist import errors
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.settings import user_code


def make(name: str) -> Any:
    """Makes a torso, without arguments.

    Args:
        name: such as `my_module:MyNet`.

    Raises:
        UsageError: there is no such class, or it fails; the message names the module's Flax classes, or the line.
    """
    return _make(given("network", name), name, "without arguments")


def make_core(name: str, size: int) -> Any:
    """Makes a core of so many units, and tries it by shapes.

    Args:
        name: such as `my_module:MyCore`.
        size: passed on as `size`.

    Raises:
        UsageError: there is no such class, it fails, or it is no `cores.Core`.
    """
    flag = given("network.core", name)
    core = _make(flag, name, f"as {name.rpartition(':')[2]}(size={size})", size=size)
    features, is_first = jax.ShapeDtypeStruct((2, 3, 4), jnp.float32), jax.ShapeDtypeStruct((2, 3), jnp.bool_)
    try:
        memory = jax.eval_shape(lambda: core.initial(3))
        (after, rows), variables = jax.eval_shape(
            lambda *inputs: core.init_with_output(jax.random.key(0), *inputs), memory, features, is_first
        )
    except user_code.RAISED as error:
        raise UsageError(
            flag, f": {user_code.where(error)}; it was given initial(3), features (2, 3, 4) and is_first (2, 3)"
        ) from error
    if stateful := sorted(set(variables) - {"params"}):
        raise UsageError(flag, f" keeps {', '.join(stateful)} beside its parameters and its memory")
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (memory, after)]
    if shapes[0] != shapes[1] or any(x.shape[:1] != (3,) for x in jax.tree.leaves(memory)):
        raise UsageError(flag, f" turns a memory {shapes[0]} into {shapes[1]}; wanted the same, with leaves [B, ...]")
    if getattr(rows, "shape", ())[:2] != (2, 3) or len(rows.shape) != 3:
        raise UsageError(flag, f" maps features (2, 3, 4) to {getattr(rows, 'shape', 'a tree')}; wanted (2, 3, F)")
    return core


def _make(flag: errors.Worded, name: str, how: str, **arguments: Any) -> Any:
    found = user_code.load(flag, name, "Flax module", callable, _is_flax_module)
    try:
        made = found(**arguments)
    except user_code.RAISED as error:
        raise UsageError(flag, f": {user_code.where(error)}; it is made {how}") from error
    if not isinstance(made, nn.Module):
        raise UsageError(flag, " makes no flax.linen.Module; flax.nnx has others, which are not taken")
    return made


def check(name: str, torso: nn.Module, observation: Any) -> None:
    """Tries a module of the user's, by shapes alone.

    Args:
        name: as in `make`.
        torso: from `make`.
        observation: tree of `jax.ShapeDtypeStruct` of one observation, without a batch.

    Raises:
        UsageError: it fails, or does not map [B, ...] to [B, F]; the message names the line.
    """
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), observation)
    shapes = jax.tree.map(lambda x: x.shape, batch)
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
    except flax.errors.InvalidRngError as error:
        raise UsageError(
            given("network", name), ": it draws random numbers, as Dropout does; expected deterministic=True"
        ) from error
    except user_code.RAISED as error:
        raise UsageError(
            given("network", name), f": {user_code.where(error)}; it was given observations {shapes}"
        ) from error
    shape = getattr(features, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != 2:
        raise UsageError(
            given("network", name),
            f" maps observations {shapes} to {'a tree' if shape is None else shape}; wanted (2, F)",
        )


def _is_flax_module(value: Any) -> bool:
    """Says whether it is a class of Flax modules, but not one of Flax's own."""
    return isinstance(value, type) and issubclass(value, nn.Module) and value.__module__.split(".")[0] != "flax"
