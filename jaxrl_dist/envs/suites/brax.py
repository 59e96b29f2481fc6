"""The suite Brax (0.14.2): simulated bodies, all on the device.

Brax's own episode and auto-reset wrappers are not used: they return every episode to one cached first state and lose
the last observation.
"""

import contextlib
import functools
import importlib
import io
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.envs.film import bodies
from jaxrl_dist.envs.host import episodes
from jaxrl_dist.types import Array, ArrayTree

_NAME = "brax"
# All that Brax registers, but for swimmer: its fluid forces give `jnp.clip` an argument that JAX 0.10 no longer has.
ENVIRONMENTS = (
    "ant",
    "fast",
    "halfcheetah",
    "hopper",
    "humanoid",
    "humanoidstandup",
    "inverted_pendulum",
    "inverted_double_pendulum",
    "pusher",
    "reacher",
    "walker2d",
)

_BACKENDS = ("generalized", "mjx", "positional", "spring")
_EPISODE_LENGTH = 1000

# Lines that Brax prints if the optional package warp is missing, and warnings that it and MuJoCo always give.
_KNOWN_LINES = ("Failed to import warp", "Failed to import mujoco_warp")
_KNOWN_WARNING = "Brax System, pip"
_KNOWN_MUJOCO_WARNING = "compiler attribute 'settotalmass' is deprecated"


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `brax:name`.

    Args:
        name: one of `ENVIRONMENTS`.
        params: `backend` (generalized, which is Brax's default, spring, positional or mjx), `episode_length` (the time
            limit in steps, 1000), or any number or switch that the environment's constructor takes.

    Raises:
        errors.UsageError: unknown parameter, or a value that does not fit.
        ModuleNotFoundError: Brax is not installed.
    """
    with _without_known_noise():
        library = importlib.import_module("brax.envs")
        own = parameters.defaults_of(library._envs[name])
        defaults = {**own, "backend": "generalized", "episode_length": _EPISODE_LENGTH}
        values = {"backend": "generalized", **parameters.parse_params(params, defaults, f"{_NAME}:{name}")}
        parameters.check_least(values, {"episode_length": 1})
        backend, episode_length = values["backend"], values.pop("episode_length", _EPISODE_LENGTH)
        if backend not in _BACKENDS:
            raise parameters.refused("backend", backend, f"expected one of {', '.join(_BACKENDS)}")
        environment = library.get_environment(name, **values)
    made = wrappers.auto_reset(adapt(environment, f"{_NAME}:{name}", episode_length))
    if name == "fast":
        return made
    return made._replace(make_picture=functools.partial(bodies.make, name, environment))


def adapt(environment: Any, full_name: str, episode_length: int) -> envs.BareEnvironment:
    """Gives an environment of Brax or of MuJoCo Playground, whose states are alike, the interface of a bare one.

    Episodes are truncated after `episode_length` steps.
    """

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        state = environment.reset(key)
        return (state, jnp.int32(0)), state.obs

    def step(key: Array, state: ArrayTree, action: Array) -> envs.Transition:
        del key
        body, steps = state
        # The environments of both libraries write into the dictionaries of the state that they get, hence the copy.
        body = environment.step(jax.tree.map(lambda x: x, body), action)
        steps = steps + 1
        return envs.Transition((body, steps), body.obs, body.reward, body.done > 0.5, steps >= episode_length)

    shape = (environment.action_size,)
    action = types.BoxSpace(shape, np.full(shape, -1, np.float32), np.full(shape, 1, np.float32))
    # Playground's tasks show some numbers to critics alone.
    shown = environment.observation_size
    privileged = episodes.PRIVILEGED if isinstance(shown, Mapping) and episodes.PRIVILEGED in shown else ""
    spec = types.EnvironmentSpec(full_name, (), action, "physics", time_limit=episode_length, privileged=privileged)
    return envs.BareEnvironment(reset, step, spec)


@contextlib.contextmanager
def _without_known_noise() -> Iterator[None]:
    """Drops the known lines and warnings; everything else reaches the user, also errors."""
    printed = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            warnings.filterwarnings("ignore", message=_KNOWN_WARNING, category=UserWarning)
            mujoco = importlib.import_module("mujoco")
            previous = mujoco.get_mju_user_warning()
            mujoco.set_mju_user_warning(_pass_on_mujoco_warning)
            try:
                yield
            finally:
                mujoco.set_mju_user_warning(previous)
    finally:
        for line in printed.getvalue().splitlines(keepends=True):
            if not line.startswith(_KNOWN_LINES):
                sys.stdout.write(line)


def _pass_on_mujoco_warning(message: str) -> None:
    """Passes a warning on; without a handler MuJoCo prints it, and writes MUJOCO_LOG.TXT into the working directory."""
    if not message.startswith(_KNOWN_MUJOCO_WARNING):
        warnings.warn(message, RuntimeWarning, stacklevel=2)


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS, draws="all but fast")
