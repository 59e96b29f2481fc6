"""Draws gymnax's classic control as Gymnasium does, by gymnax's own mapping between the two."""

import importlib
from typing import Any

import numpy as np

from jaxrl_dist import envs, errors
from jaxrl_dist.envs import film
from jaxrl_dist.types import ArrayTree

NAMES = ("Acrobot-v1", "CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0")


def make(name: str, env_params: Any) -> envs.Picture:
    """Makes the picture of one of `NAMES`.

    Args:
        name: name without that of the suite.
        env_params: gymnax's parameters of the environment that is drawn.

    Raises:
        errors.UsageError: pygame, with which Gymnasium draws, is not installed.
    """
    try:
        importlib.import_module("pygame")
        gymnasium: Any = importlib.import_module("gymnasium")
    except ModuleNotFoundError as error:
        raise errors.missing_package(f"drawing gymnax:{name}", error.name, "video") from error
    mapping: Any = importlib.import_module("gymnax.visualize.vis_gym")
    drawing = gymnasium.make(name, render_mode="rgb_array")
    drawing.reset()
    canvas = drawing.unwrapped
    mapping.set_gym_params(canvas, name, env_params)

    def draw(state: ArrayTree) -> np.ndarray:
        body = state.environment
        canvas.state = mapping.get_gym_state(body, name)
        if name == "Pendulum-v1":
            canvas.last_u = np.asarray(body.last_u, np.float64)
        with film.without_display():
            return np.asarray(canvas.render(), np.uint8)

    return envs.Picture(draw, float(drawing.metadata["render_fps"]))
