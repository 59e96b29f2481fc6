"""Imports a peer's program from its clone, whose code runs unchanged; it imports no JAX before it is asked to.

What the code imports and its program does not use is an empty stand-in, and functions that JAX and Flax no longer have
are given back to them. Both hold for the process, which imports one peer.
"""

import importlib
import pathlib
import subprocess
import sys
import types
from typing import Any


def purejaxrl(clone: pathlib.Path, module: str) -> Any:
    """Imports `ppo`, `ppo_rnn` or `dqn` of a clone of PureJaxRL."""
    import jax

    sys.path.insert(0, str(clone / "purejaxrl"))
    brax = ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training")
    stand_in("navix", "wandb", *brax)
    restore("tree_map", jax.tree.map)
    restore_gru()
    return importlib.import_module(module)


def commit(clone: pathlib.Path) -> str:
    """Returns the short commit of a clone."""
    command = ["git", "-C", str(clone), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


def stand_in(*names: str) -> None:
    """Puts empty modules in the place of modules that a program imports and does not use."""
    sys.modules.update({name: _StandIn(name) for name in names})


def restore(name: str, function: Any) -> None:
    """Gives JAX a function that it had when the peer was written."""
    import jax

    if name not in vars(jax):
        vars(jax)[name] = function


def restore_gru() -> None:
    """Gives Flax's cell the interface of 2022: units as many as the carry has, and a static `initialize_carry`."""
    import jax.numpy as jnp
    from flax import linen

    cell = linen.GRUCell

    class GRUCell(linen.Module):  # type: ignore[misc]
        @linen.compact
        def __call__(self, carry: Any, inputs: Any) -> Any:
            return cell(carry.shape[-1])(carry, inputs)

        @staticmethod
        def initialize_carry(key: Any, batch: tuple[int, ...], size: int) -> Any:
            del key
            return jnp.zeros((*batch, size))

    vars(linen)["GRUCell"] = GRUCell


class _StandIn(types.ModuleType):
    """An empty module: every name in it is `object`."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object
