"""Checks the types of the arguments of `train`, `make` and `load`; values are checked where they are used."""

import numbers
import os
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax

from jaxrl_dist import errors, systems
from jaxrl_dist.settings import resolve

# JAX would take the lower half of a longer one.
_LAST_SEED = 2**31 - 1
_A_SEED = f"a whole number from 0 to {_LAST_SEED}"
_PLAIN = (str, bytes, int, float, complex, type(None), list, tuple, dict, set)


def check_task(system: Any, env: Any, settings: Any, run_settings: Mapping[str, Any]) -> None:
    """Checks the types of system, environment and settings; beside a preset the first two may be None.

    Raises:
        UsageError: one has the wrong type.
    """
    named = isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings)
    _expect("settings", settings, settings is None or named, 'values by name, such as {"agent.discount": 0.9}')
    has_preset = bool({**run_settings, **(settings or {})}.get("preset"))
    is_system = isinstance(system, str | systems.System) or (system is None and has_preset)
    _expect("system", system, is_system, 'a name such as "ppo", or a jaxrl_dist.System')
    _expect(
        "env",
        env,
        isinstance(env, str) or callable(env) or hasattr(env, "spec") or (env is None and has_preset),
        'a name such as "suite:name", or an environment of Gymnasium\'s: a class, a function that makes one, or an '
        "instance that gymnasium.make made",
    )


def check_session(devices: Any, callbacks: Any, display: Any) -> None:
    """Checks the types of devices, callbacks and display.

    Raises:
        UsageError: one has the wrong type, or there is no device.
    """
    listed = isinstance(devices, Sequence) and all(isinstance(device, jax.Device) for device in devices)
    is_valid = listed and len(devices) == len(set(devices)) > 0
    _expect("devices", devices, devices is None or is_valid, "a list of devices, each once, such as jax.devices()[:1]")
    are_functions = isinstance(callbacks, Sequence) and all(map(callable, callbacks))
    _expect("callbacks", callbacks, are_functions, "a list of functions of a record, such as [print]")
    _expect("display", display, isinstance(display, bool), "True or False")


def check_policy(run: Any, checkpoint: Any, seed_index: Any, settings: Any, system: Any) -> None:
    """Checks the arguments that name a policy.

    Raises:
        UsageError: one has the wrong type, or a setting is none of an environment or of evaluation.
    """
    check_run(run)
    _expect("checkpoint", checkpoint, isinstance(checkpoint, str), '"latest" or "best"')
    _expect("seed_index", seed_index, _is_whole(seed_index), "a whole number")
    named = isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings)
    _expect("settings", settings, settings is None or named, 'values by name, such as {"env.params.length": 5}')
    for name in settings or {}:
        if not name.startswith((resolve.PARAMS, resolve.EVALUATION)):
            valid = f"{resolve.PARAMS}NAME, or {resolve.EVALUATION}NAME"
            raise errors.UsageError(f"settings: {name} stays as the run had it; expected {valid}")
    is_row = system is None or isinstance(system, systems.System)
    _expect("system", system, is_row, "a jaxrl_dist.System, and only where no module has it")


def check_episodes(seed: Any, **counts: Any) -> None:
    """Checks the seed of episodes, and how many of what there shall be.

    Raises:
        UsageError: one has the wrong type, or is too small or too large.
    """
    for name, count in counts.items():
        _expect(name, count, _is_whole(count) and count >= 1, "a whole number of at least 1")
    _expect("seed", seed, _is_seed(seed), _A_SEED)


def check_seed(seed: Any) -> None:
    """Checks a seed that may be None.

    Raises:
        UsageError: it has the wrong type, or is too small or too large.
    """
    _expect("seed", seed, seed is None or _is_seed(seed), f"{_A_SEED}, or None")


def check_run(run: Any) -> None:
    """Checks the type of a run folder.

    Raises:
        UsageError: it is no path.
    """
    _expect("run", run, isinstance(run, str | os.PathLike), "the folder of a run, a text or a path")


def check_trust(trust: Any) -> None:
    """Checks the type of the names that are trusted.

    Raises:
        UsageError: it is no list of texts.
    """
    listed = isinstance(trust, Collection) and not isinstance(trust, str) and all(isinstance(x, str) for x in trust)
    _expect("trust", trust, listed, 'a list of names, such as ["my_module"]')


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_seed(value: Any) -> bool:
    return _is_whole(value) and 0 <= value <= _LAST_SEED


def _expect(name: str, value: Any, is_valid: bool, valid: str) -> None:
    """Refuses a value that is not valid; shows its type, unless it is plain: an address in memory says nothing."""
    if not is_valid:
        shown = reprlib.repr(value) if type(value) in _PLAIN else f"<{type(value).__name__}>"
        raise errors.UsageError(f"{name}={' '.join(shown.split())}: expected {valid}")
