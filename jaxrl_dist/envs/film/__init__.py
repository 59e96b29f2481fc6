"""Opens an environment for filming: drawn by its suite, or by what of its observation is a picture."""

import colorsys
import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
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
        errors.UsageError: its suite does not draw it, and nothing of its observation is a picture; the message names
            tasks that can be filmed.
    """
    own = environment.make_film if isinstance(environment, envs.HostTask) else environment.make_picture
    if own is None and not _pictures(environment.spec):
        drawn = "; ".join(f"{suite} ({what})" for suite, what in drawn_suites().items())
        raise errors.UsageError(
            f"{environment.spec.name} cannot be filmed: its suite does not draw it, and no leaf of its observation is "
            f"an image; valid: {drawn}; and any environment that shows an image [H, W] or [H, W, C]"
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
    seen = functools.partial(observed, environment.spec)
    if isinstance(environment, envs.HostTask):
        if environment.make_film is not None:
            return environment.make_film(seed, timeout_s)
        make = environment.make_evaluation or environment.make
        return envs.Film(make(np.asarray([seed], np.uint32), 1, timeout_s), seen, _FRAMES_PER_SECOND)
    # Both have states of the same kind, which one picture draws.
    on_host = as_host.AsHost(environment.evaluation or environment, 1, jax.random.key(seed))
    if environment.make_picture is None:
        return envs.Film(on_host, seen, _FRAMES_PER_SECOND)
    return _drawn(on_host, environment.make_picture())


def observed(spec: types.EnvironmentSpec, observation: Any) -> np.ndarray:
    """Draws the pictures of an observation side by side, in the order of its leaves, with a black column between them.

    Args:
        spec: of the environment.
        observation: tree of leaves, of which one or more are [H, W] or [H, W, C]. The mask of actions is not drawn. Of
            categories, each combination of a cell's numbers has a colour of its own, and zeros are black.

    Returns:
        u8 [H, W, 3], as high as the highest.
    """
    named = types.named_leaves(observation)
    frames = [picture(_coded(named[name], spec.categories.get(name, ()))) for name in _pictures(spec)]
    height = max(frame.shape[0] for frame in frames)
    columns = [np.pad(frame, ((0, height - frame.shape[0]), (0, 1), (0, 0))) for frame in frames]
    return np.concatenate(columns, 1)[:, :-1]


def picture(x: Any) -> np.ndarray:
    """Draws one picture.

    Bytes [H, W, 3] are colours. Other bytes are grey, taken from the last channel (the newest of stacked frames).
    Other numbers are grey between their smallest and largest if there is one channel; else each channel is a colour on
    black, the later above the earlier.

    Args:
        x: [H, W] or [H, W, C].

    Returns:
        u8 [H, W, 3].
    """
    x = np.asarray(x)
    x = x[..., None] if x.ndim == 2 else x
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x if x.shape[-1] == 3 else np.repeat(x[..., -1:], 3, axis=-1))
    if x.shape[-1] == 1:
        low, high = float(x.min()), float(x.max())
        grey = (x.astype(np.float32) - low) * (255 / max(high - low, 1e-9))
        return np.repeat(grey.astype(np.uint8), 3, axis=-1)
    frame = np.zeros((*x.shape[:2], 3), np.uint8)
    for channel in range(x.shape[-1]):
        frame[x[..., channel] > 0] = _colour(channel)
    return frame


def _colour(number: int) -> np.ndarray:
    return np.asarray(colorsys.hsv_to_rgb(_GOLDEN * number % 1, 0.65, 0.95)) * 255


def _coded(x: Any, categories: Sequence[int]) -> np.ndarray:
    """Returns bytes [H, W, 3] of categories, and anything else as it is."""
    x = np.asarray(x)
    if not categories:
        return x
    x = (x[..., None] if x.ndim == 2 else x).astype(np.int64)
    numbers = (x * np.cumprod([1, *[max(categories)] * (x.shape[-1] - 1)])).sum(-1)
    frame = np.zeros((*numbers.shape, 3), np.uint8)
    for number in np.unique(numbers[numbers != 0]):
        frame[numbers == number] = _colour(int(number) - 1)
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


def _pictures(spec: types.EnvironmentSpec) -> list[str]:
    """Names the leaves that are pictures."""
    named = types.named_leaves(spec.observation)
    drawn = [name for name, leaf in named.items() if len(leaf.shape) in (2, 3) and min(leaf.shape) > 0]
    return [name for name in drawn if not (spec.mask and name == spec.mask)]


def _drawn(environment: as_host.AsHost, picture: envs.Picture) -> envs.Film:
    """Films a device environment by the picture of its state."""
    kept: list[types.ArrayTree] = []

    def frame(_: Any) -> np.ndarray:
        state = jax.tree.map(lambda x: x[0], environment.state().environments)
        if picture.page is not None:
            kept.append(state)
        return picture.draw(state)

    page = picture.page
    return envs.Film(
        environment, frame, picture.frames_per_second, None if page is None else lambda speed: page(kept, speed)
    )
