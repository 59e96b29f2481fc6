"""The episode that every adapter must give: who plays it, and its transitions by rule."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import envs, types

LENGTH = 7
ACTIONS = [2, 0, 1, 1, 0, 2, 1, 2, 0, 1, 2, 2, 0, 0, 1, 1, 2, 0]


class Transition(NamedTuple):
    """Transition that an agent learns from: (s, a, r, s', discount, step type of s'), numbers as plain Python."""

    observation: list[float]
    action: int
    reward: float
    next_observation: list[float]
    discount: float
    step_type: int


def expected(name: str) -> list[Transition]:
    """Plays the environment in plain Python: an action on a LAST row is ignored and opens the next episode."""
    transitions, steps, observation = [], 0, [0.0, 0.0]
    for action in ACTIONS:
        if steps == LENGTH:
            steps, following, reward, discount, step_type = 0, [0.0, 0.0], 0.0, 1.0, types.FIRST
        else:
            steps += 1
            following, reward = [float(steps), float(action)], (steps - 1) / 2 + action
            ended = steps == LENGTH
            discount = 0.0 if ended and name in ("episode", "both") else 1.0
            step_type = types.LAST if ended else types.MID
        transitions.append(Transition(observation, action, reward, following, discount, step_type))
        observation = following
    return transitions


def played(reset: Callable[[], types.TimeStep], step: Callable[[int], types.TimeStep]) -> list[Transition]:
    """Drives an environment of one row and lists what it gave."""
    timestep, transitions = reset(), []
    assert int(timestep.step_type) == types.FIRST and float(timestep.discount) == 1 and float(timestep.reward) == 0
    for action in ACTIONS:
        following = step(action)
        transitions.append(
            Transition(
                np.asarray(timestep.observation).tolist(),
                action,
                float(following.reward),
                np.asarray(following.observation).tolist(),
                float(following.discount),
                int(following.step_type),
            )
        )
        timestep = following
    return transitions


def played_on_device(environment: envs.Environment) -> list[Transition]:
    step_on_device, state = jax.jit(environment.step), None

    def reset() -> types.TimeStep:
        nonlocal state
        state, timestep = environment.reset(jax.random.key(0))
        return timestep

    def step(action: int) -> types.TimeStep:
        nonlocal state
        state, timestep = step_on_device(state, jnp.int32(action))
        return timestep

    return played(reset, step)
