"""Distributed reinforcement learning in JAX: one agent definition that runs unchanged in every layout."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_dist.training.policy import Policy, load, replay_failure
    from jaxrl_dist.training.runner import Run, train

__all__ = ["Policy", "Run", "load", "replay_failure", "train"]

_HOMES = {
    "Policy": "training.policy",
    "Run": "training.runner",
    "load": "training.policy",
    "replay_failure": "training.policy",
    "train": "training.runner",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for only then: JAX takes seconds, and a wrong command is refused without it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"jaxrl_dist.{_HOMES[name]}"), name)
