"""Chooses the devices that act and that learn: reads their names, and says what runs where."""

from collections.abc import Sequence

import jax

from jaxrl_dist import errors, processes
from jaxrl_dist.errors import UsageError


def parse(setting: str, text: str, devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Reads names such as "gpu:0,gpu:1" or "0,1".

    Args:
        setting: its name, for the message.
        text: names separated by commas; a number alone is one of `devices`.
        devices: devices of the run; if these are accelerators, those of the CPU can be named too.

    Raises:
        UsageError: a name is empty or unknown, or a device is named twice.
    """
    asked, valid = errors.given(setting, text), list(_by_name(devices))
    named = {str(i): device for i, device in enumerate(devices)} | _by_name(devices)
    chosen: list[jax.Device] = []
    for word in text.split(","):
        key = word.strip().lower()
        if not key:
            raise UsageError(asked, f": expected names with one comma between two; valid: {', '.join(valid)}")
        if key not in named:
            hint = errors.nearest(key, valid)
            raise UsageError(asked, f": no device {word.strip()}; valid: {', '.join(valid)}{hint}")
        if named[key] in chosen:
            raise UsageError(asked, f" names {name(named[key])} twice; valid: {', '.join(valid)}, each once")
        chosen.append(named[key])
    return chosen


def table(actors: Sequence[tuple[jax.Device, int]], learners: Sequence[jax.Device]) -> tuple[str, ...]:
    """Says in lines which device serves which actors and learners.

    Args:
        actors: device and number of environments of each actor.
        learners: devices of the learner.
    """
    lines = []
    for device in dict.fromkeys([device for device, _ in actors] + list(learners)):
        roles = [f"actor {i} ({count} environments)" for i, (d, count) in enumerate(actors) if d == device]
        roles += [f"learner {i}" for i, d in enumerate(learners) if d == device]
        lines.append(f"{name(device)}: {', '.join(roles)}")
    return tuple(lines)


def name(device: jax.Device) -> str:
    """Returns the name by which flags know a device; each process counts its own."""
    # The identities of JAX are those of all processes, in which nobody counts the devices of a machine.
    number = device.id if processes.count() == 1 else device.local_hardware_id
    return f"{device.platform}:{number}"


def _by_name(devices: Sequence[jax.Device]) -> dict[str, jax.Device]:
    known = {name(device): device for device in devices}
    return known | {name(device): device for device in jax.local_devices(backend="cpu")}
