"""Which devices act and which learn: reads their names, and says what runs where."""

from collections.abc import Sequence

import jax

from jaxrl_dist import declarations
from jaxrl_dist.config import UsageError


def parse(flag: str, text: str, devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Reads names such as "gpu:0,gpu:1" or "0,1".

    Args:
        flag: for the message.
        text: names separated by commas; a number alone is one of `devices`.
        devices: that the run has; those of the CPU can be named too where these are accelerators.

    Raises:
        UsageError: no such device, or one twice.
    """
    named = {str(i): device for i, device in enumerate(devices)} | _by_name(devices)
    chosen = []
    for name in text.split(","):
        key = name.strip().lower()
        if key not in named:
            valid = list(_by_name(devices))
            raise UsageError(
                f"{flag}={text}: no device {name}; valid: {', '.join(valid)}{declarations.nearest(key, valid)}"
            )
        chosen.append(named[key])
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"{flag}={text} names a device twice")
    return chosen


def table(actors: Sequence[tuple[jax.Device, int]], learners: Sequence[jax.Device]) -> tuple[str, ...]:
    """Says in lines which device serves which actors and learners.

    Args:
        actors: device and number of environments of each.
        learners: devices.
    """
    lines = []
    for device in dict.fromkeys([device for device, _ in actors] + list(learners)):
        roles = [f"actor {i} ({count} environments)" for i, (d, count) in enumerate(actors) if d == device]
        roles += [f"learner {i}" for i, d in enumerate(learners) if d == device]
        lines.append(f"{name(device)}: {', '.join(roles)}")
    return tuple(lines)


def name(device: jax.Device) -> str:
    """Returns the name by which flags know a device."""
    return f"{device.platform}:{device.id}"


def _by_name(devices: Sequence[jax.Device]) -> dict[str, jax.Device]:
    known = {name(device): device for device in devices}
    return known | {name(device): device for device in jax.local_devices(backend="cpu")}
