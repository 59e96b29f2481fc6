"""Tiny environments for tests, in which every number is known beforehand; the first four are no tasks to learn."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import envs, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.types import Array, ArrayTree

_NAME = "toy"
ENVIRONMENTS = ("episode", "time_limit", "both", "walk", "choice", "choices", "reach", "load", "team")
# Numbers of values of the two numbers of a goal.
_GOAL = (3, 2)
# The largest load.
_HEAVIEST = 10.0
# Agents of a team, and their actions.
_TEAM = 3

_FAMILY = "classic"


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `toy:name`.

    `episode` counts its steps, and terminates after 7: observation [steps, last action], reward steps / 2 + action with
    the steps before this one. `time_limit` is the same, truncated after 7; `both` terminates and is truncated there at
    once. `walk` is truncated after 7 and has random first states and steps, so its numbers tell the keys apart.

    Four have observations that are trees. In `choice` an action is one of six, and 1 is the reward for that of a goal,
    two numbers that are categories; one of the others is illegal, costs 1, and is counted in the state. A picture and
    a number say nothing. In `choices` the action is the two numbers. In `reach` an action of two reals is worth its
    distance from `target`, with −1, of which `state` is only the first number.

    In `load` an action of one real is worth its distance from `state`, with −1, and every step costs the `load`, too,
    which is drawn once for an episode, from 0 to 10, and is for a critic alone.

    `team` has three agents, of which agent a terminates 2a steps before the last, which is truncated. All see a `goal`,
    drawn anew in each step, as a number, and their index as `agent`; 1 is the reward of agent a for the action
    (goal + a) mod 3, so none can do without its index; one whose episode has ended is given ½ whatever it does. `all`,
    for a critic alone, has how many agents are left, and the goal.

    Args:
        name: one of `ENVIRONMENTS`.
        params: `length`, steps of an episode.

    Raises:
        errors.UsageError: unknown parameter, or a length below 1.
    """
    values = {"length": 7, **parameters.parse_params(params, {"length": 7}, f"{_NAME}:{name}")}
    parameters.check_least(values, {"length": 1})
    return wrappers.auto_reset(bare(name, values["length"]))


def bare(name: str, length: int) -> envs.BareEnvironment:
    """Makes the environment without resets; see `make`."""
    spec = types.EnvironmentSpec(f"{_NAME}:{name}", (), types.DiscreteSpace(3), _FAMILY, time_limit=length)
    if name in ("choice", "choices"):
        is_vector = name == "choices"
        space = types.MultiDiscreteSpace(_GOAL) if is_vector else types.DiscreteSpace(_GOAL[0] * _GOAL[1])
        spec = spec._replace(action=space, mask="action_mask", categories={"goal": _GOAL})
        reset = functools.partial(_choice_reset, is_vector=is_vector)
        return envs.BareEnvironment(reset, functools.partial(_choice_step, length=length, is_vector=is_vector), spec)
    if name == "team":
        spec = spec._replace(
            num_agents=_TEAM, categories={"agent": (_TEAM,)}, privileged="all", reward_range=(0.0, 1.0)
        )
        begin = functools.partial(_team_reset, length=length)
        return envs.BareEnvironment(begin, functools.partial(_team_step, length=length), spec)
    if name == "reach":
        spec = spec._replace(action=types.BoxSpace((2,), -1.0, 1.0), family="continuous")
        return envs.BareEnvironment(_reach_reset, functools.partial(_reach_step, length=length), spec)
    if name == "load":
        spec = spec._replace(action=types.BoxSpace((1,), -1.0, 1.0), family="continuous", privileged="load")
        return envs.BareEnvironment(_load_reset, functools.partial(_load_step, length=length), spec)
    if name == "walk":
        return envs.BareEnvironment(_walk_reset, functools.partial(_walk_step, length=length), spec)
    step = functools.partial(
        _count_step, length=length, terminates=name in ("episode", "both"), truncates=name in ("time_limit", "both")
    )
    return envs.BareEnvironment(_count_reset, step, spec)


def _count_reset(key: Array) -> tuple[Array, Array]:
    del key
    return jnp.int32(0), jnp.zeros(2, jnp.float32)


def _count_step(
    key: Array, state: Array, action: Array, *, length: int, terminates: bool, truncates: bool
) -> envs.Transition:
    del key
    steps = state + 1
    observation = jnp.stack([steps, action]).astype(jnp.float32)
    at_end = steps >= length
    return envs.Transition(steps, observation, state / 2 + action, at_end & terminates, at_end & truncates)


def _walk_reset(key: Array) -> tuple[tuple[Array, Array], Array]:
    position = jax.random.normal(key, (2,))
    return (position, jnp.int32(0)), position


def _walk_step(key: Array, state: tuple[Array, Array], action: Array, *, length: int) -> envs.Transition:
    position, steps = state
    position = position + 0.1 * jax.random.normal(key, (2,)) + 0.1 * (action - 1)
    steps = steps + 1
    return envs.Transition((position, steps), position, -jnp.abs(position).sum(), jnp.bool_(False), steps >= length)


class Choice(NamedTuple):
    """State of `choice` and `choices`.

    Attributes:
        goal: i32 [2].
        legal: bool [6], of actions, or bool [5], of the choices of both numbers.
        steps: i32 [].
        illegal: i32 [], illegal actions of the episode so far.
    """

    goal: Array
    legal: Array
    steps: Array
    illegal: Array


def _choice_reset(key: Array, *, is_vector: bool) -> tuple[Choice, ArrayTree]:
    return _drawn(key, jnp.int32(0), jnp.int32(0), is_vector)


def _drawn(key: Array, steps: Array, illegal: Array, is_vector: bool) -> tuple[Choice, ArrayTree]:
    goal_key, mask_key, seen_key = jax.random.split(key, 3)
    goal = jax.random.randint(goal_key, (2,), 0, jnp.asarray(_GOAL))
    sizes = _GOAL if is_vector else (_GOAL[0] * _GOAL[1],)
    right = goal if is_vector else goal[:1] * _GOAL[1] + goal[1:]
    shift = jax.random.randint(mask_key, (len(sizes),), 1, jnp.asarray(sizes))
    # Of each number one choice is illegal, but not the right one.
    parts = [jnp.arange(size) != (right[i] + shift[i]) % size for i, size in enumerate(sizes)]
    state = Choice(goal, jnp.concatenate(parts), steps, illegal)
    picture, number = jax.random.normal(seen_key, (17,))[:16].reshape(4, 4, 1), jnp.full(1, steps, jnp.float32)
    return state, {"action_mask": state.legal, "goal": goal, "seen": {"number": number, "picture": picture}}


def _choice_step(key: Array, state: Choice, action: Array, *, length: int, is_vector: bool) -> envs.Transition:
    chosen = action if is_vector else jnp.stack([action // _GOAL[1], action % _GOAL[1]])
    places = action + jnp.asarray([0, _GOAL[0]]) if is_vector else action[None]
    is_legal = state.legal[places].all()
    reward = jnp.where(is_legal, (chosen == state.goal).all().astype(jnp.float32), -1.0)
    after, observation = _drawn(key, state.steps + 1, state.illegal + ~is_legal, is_vector)
    return envs.Transition(after, observation, reward, jnp.bool_(False), after.steps >= length)


def _reach_reset(key: Array) -> tuple[tuple[Array, Array], ArrayTree]:
    target = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
    return (target, jnp.int32(0)), {"state": target[:1], "target": target}


def _reach_step(key: Array, state: tuple[Array, Array], action: Array, *, length: int) -> envs.Transition:
    target, steps = state
    (after, _), observation = _reach_reset(key)
    reward = -jnp.abs(action - target).sum()
    return envs.Transition((after, steps + 1), observation, reward, jnp.bool_(False), steps + 1 >= length)


def _load_reset(key: Array) -> tuple[tuple[Array, Array, Array], ArrayTree]:
    target_key, load_key = jax.random.split(key)
    return _load_drawn(target_key, _HEAVIEST * jax.random.uniform(load_key, (1,)), jnp.int32(0))


def _load_drawn(key: Array, load: Array, steps: Array) -> tuple[tuple[Array, Array, Array], ArrayTree]:
    target = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
    return (target, load, steps), {"load": load, "state": target}


def _load_step(key: Array, state: tuple[Array, Array, Array], action: Array, *, length: int) -> envs.Transition:
    target, load, steps = state
    after, observation = _load_drawn(key, load, steps + 1)
    reward = -jnp.abs(action - target).sum() - load.sum()
    return envs.Transition(after, observation, reward, jnp.bool_(False), steps + 1 >= length)


def _team_reset(key: Array, *, length: int) -> tuple[tuple[Array, Array], ArrayTree]:
    return _team_drawn(key, jnp.int32(0), length)


def _team_drawn(key: Array, steps: Array, length: int) -> tuple[tuple[Array, Array], ArrayTree]:
    goal, agents = jax.random.randint(key, (), 0, _TEAM), jnp.arange(_TEAM)
    own = jnp.broadcast_to(goal.astype(jnp.float32), (_TEAM, 1))
    left = (steps < _team_ends(length)).sum()
    every = jnp.broadcast_to(jnp.stack([left, goal]).astype(jnp.float32), (_TEAM, 2))
    return (goal, steps), {"agent": agents, "all": every, "goal": own}


def _team_ends(length: int) -> Array:
    """Returns i32 [3], the step with which each agent's episode ends."""
    return jnp.maximum(length - 2 * jnp.arange(_TEAM), 1)


def _team_step(key: Array, state: tuple[Array, Array], action: Array, *, length: int) -> envs.Transition:
    goal, steps = state
    is_right = (action == (goal + jnp.arange(_TEAM)) % _TEAM).astype(jnp.float32)
    reward = jnp.where(steps < _team_ends(length), is_right, 0.5)
    after, observation = _team_drawn(key, steps + 1, length)
    has_ended = steps + 1 >= _team_ends(length)
    is_last = jnp.arange(_TEAM) == 0
    return envs.Transition(after, observation, reward, has_ended & ~is_last, has_ended & is_last)


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
