"""Opens an environment for filming: drawn by its suite, or by its observation if that is a picture."""

import colorsys
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import as_host

# Used where the simulator's own speed is not known.
_FRAMES_PER_SECOND = 10.0
_GOLDEN = 0.618034


def check(environment: envs.Environment | envs.HostTask) -> None:
    """Refuses an environment that has no picture.

    Raises:
        errors.UsageError: its suite does not draw it, and its observation is no picture; the message names tasks that
            can be filmed.
    """
    own = environment.make_film if isinstance(environment, envs.HostTask) else environment.make_picture
    if own is None and not _is_picture(environment.spec.observation):
        drawn = "; ".join(f"{suite} ({what})" for suite, what in drawn_suites().items())
        raise errors.UsageError(
            f"{environment.spec.name} cannot be filmed: its suite does not draw it, and its observation is no image; "
            f"valid: {drawn}; and any environment whose observation is an image [H, W] or [H, W, C]"
        )


def drawn_suites() -> dict[str, str]:
    """Returns `draws` of each suite that draws: suite name -> words."""
    return {suite.name: suite.draws for suite in envs.registry().values() if suite.draws}


def start(environment: envs.Environment | envs.HostTask, seed: int, timeout_s: float) -> envs.Film:
    """Makes one environment to be filmed; equal seeds and actions give equal frames.

    Args:
        environment: device environment or task.
        seed: of 31 bits.
        timeout_s: of one step, on the CPU.

    Raises:
        errors.UsageError: it has no picture, or the library that draws it is missing or does not work here.
    """
    check(environment)
    if isinstance(environment, envs.HostTask):
        if environment.make_film is not None:
            return environment.make_film(seed, timeout_s)
        make = environment.make_evaluation or environment.make
        return envs.Film(make(np.asarray([seed], np.uint32), 1, timeout_s), observed, _FRAMES_PER_SECOND)
    on_host = as_host.AsHost(environment, 1, jax.random.key(seed))
    if environment.make_picture is None:
        return envs.Film(on_host, observed, _FRAMES_PER_SECOND)
    return _drawn(on_host, environment.make_picture())


def observed(observation: Any) -> np.ndarray:
    """Draws an observation that is a picture.

    Bytes [H, W, 3] are colours. Other bytes are grey, taken from the last channel (the newest of stacked frames).
    Other numbers are grey between their smallest and largest if there is one channel; else each channel is a colour on
    black, the later above the earlier.

    Args:
        observation: [H, W] or [H, W, C].

    Returns:
        u8 [H, W, 3].
    """
    x = np.asarray(observation)
    x = x[..., None] if x.ndim == 2 else x
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x if x.shape[-1] == 3 else np.repeat(x[..., -1:], 3, axis=-1))
    if x.shape[-1] == 1:
        low, high = float(x.min()), float(x.max())
        grey = (x.astype(np.float32) - low) * (255 / max(high - low, 1e-9))
        return np.repeat(grey.astype(np.uint8), 3, axis=-1)
    frame = np.zeros((*x.shape[:2], 3), np.uint8)
    for channel in range(x.shape[-1]):
        hue = colorsys.hsv_to_rgb(_GOLDEN * channel % 1, 0.65, 0.95)
        frame[x[..., channel] > 0] = np.asarray(hue) * 255
    return frame


@contextlib.contextmanager
def without_display() -> Iterator[None]:
    """Lets pygame start without display and sound, and drops the lines that C libraries print if they are missing."""
    missing = [name for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER") if name not in os.environ]
    os.environ.update(dict.fromkeys(missing, "dummy"))
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def _is_picture(observation: Any) -> bool:
    shape = getattr(observation, "shape", ())
    return len(shape) in (2, 3) and min(shape) > 0


def _drawn(environment: as_host.AsHost, picture: envs.Picture) -> envs.Film:
    """Films a device environment by the picture of its state."""
    kept: list[types.ArrayTree] = []

    def frame(_: Any) -> np.ndarray:
        state = jax.tree.map(lambda x: x[0], environment.state())
        if picture.page is not None:
            kept.append(state)
        return picture.draw(state)

    page = picture.page
    return envs.Film(
        environment, frame, picture.frames_per_second, None if page is None else lambda speed: page(kept, speed)
    )
