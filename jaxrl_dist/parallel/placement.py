"""Chooses the devices that act and that learn: reads their names, and says what runs where."""

import os
from collections.abc import Sequence

import jax

from jaxrl_dist import errors, processes
from jaxrl_dist.errors import UsageError

# An environment variable of JAX.
_PLATFORMS = "JAX_PLATFORMS"


def devices() -> list[jax.Device]:
    """Returns JAX's devices, of all processes.

    Raises:
        UsageError: JAX cannot use those that it is told to.
    """
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:
        # JAX asserts where a platform is known but its plugin is missing.
        reason = " ".join(str(error).split()) or "it has no such devices here"
        asked = os.environ.get(_PLATFORMS)
        if asked is None:
            raise UsageError(f"JAX has no devices: {reason}; with {_PLATFORMS}=cpu it takes the CPU") from error
        raise UsageError(
            f"{_PLATFORMS}={asked!r}: {reason}; valid: those that are here and whose package is installed, such as "
            f"{_PLATFORMS}=cpu; without it JAX chooses the best"
        ) from error


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


def table(roles: Sequence[tuple[jax.Device, str]]) -> tuple[str, ...]:
    """Says in a line for each device what it is used for.

    Args:
        roles: device and words, such as "actor 0 (8 environments)", in the order to say them in.
    """
    words: dict[jax.Device, list[str]] = {}
    for device, role in roles:
        words.setdefault(device, []).append(role)
    return tuple(f"{name(device)}: {', '.join(each)}" for device, each in words.items())


def here(devices: Sequence[jax.Device], platform: str) -> list[jax.Device]:
    """Returns the devices of this process on a platform: those of a run, or all where the run has none there."""
    own = [one for one in devices if one.process_index == processes.index() and one.platform == platform]
    return own or jax.local_devices(backend=platform)


def by_process(devices: Sequence[jax.Device]) -> list[list[jax.Device]]:
    """Returns the devices of each process, of which a layout takes equal parts.

    Raises:
        UsageError: a process has more of them than another.
    """
    owners = processes.by_process(devices)
    counts = list(map(len, owners))
    if len(set(counts)) > 1:
        listed = ", ".join(map(str, counts))
        raise UsageError(
            f"the processes of this run have {listed} devices: each needs as many; hide some from those with more, as "
            "by CUDA_VISIBLE_DEVICES"
        )
    return owners


def name(device: jax.Device) -> str:
    """Returns the name by which flags know a device; each process counts its own."""
    # The identities of JAX are those of all processes, in which nobody counts the devices of a machine.
    number = device.id if processes.count() == 1 else device.local_hardware_id
    return f"{device.platform}:{number}"


def _by_name(devices: Sequence[jax.Device]) -> dict[str, jax.Device]:
    known = {name(device): device for device in devices}
    return known | {name(device): device for device in jax.local_devices(backend="cpu")}
