"""Distributed reinforcement learning in JAX: one agent definition for all layouts."""

import importlib
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_dist import agents, envs, errors, learning, networks, numeric, parallel, replay, systems, types
    from jaxrl_dist.analysis.live import LiveCurve
    from jaxrl_dist.systems import System
    from jaxrl_dist.training.assemble import Parts, make
    from jaxrl_dist.training.policy import Policy, evaluate, load, replay_failure
    from jaxrl_dist.training.runner import Run, train
    from jaxrl_dist.training.video import record_video

__all__ = [
    "LiveCurve",
    "Parts",
    "Policy",
    "Run",
    "System",
    "agents",
    "envs",
    "errors",
    "evaluate",
    "learning",
    "load",
    "make",
    "networks",
    "numeric",
    "parallel",
    "record_video",
    "replay",
    "replay_failure",
    "systems",
    "train",
    "types",
]

_HOMES = {
    "LiveCurve": "analysis.live",
    "Parts": "training.assemble",
    "Policy": "training.policy",
    "Run": "training.runner",
    "System": "systems",
    "evaluate": "training.policy",
    "load": "training.policy",
    "make": "training.assemble",
    "record_video": "training.video",
    "replay_failure": "training.policy",
    "train": "training.runner",
}


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used: JAX takes seconds, and a simulator's program needs none of it."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    full_name = f"{__name__}.{name}"
    if full_name in sys.modules:
        # One of the room's own files looks it up while the room is being imported.
        return sys.modules[full_name]
    room = importlib.import_module(full_name)
    for module in pkgutil.iter_modules(getattr(room, "__path__", ())):
        importlib.import_module(f"{full_name}.{module.name}")
    return room


def __dir__() -> list[str]:
    return __all__
