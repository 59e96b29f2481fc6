"""Acts on raw observations in NumPy, one or many, as a robot's program or a loop over environments has them."""

import functools
import operator
import secrets
from collections.abc import Callable, Container
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from jaxrl_dist import agents, errors, types
from jaxrl_dist.settings.resolve import Resolved
from jaxrl_dist.training import arguments, assemble
from jaxrl_dist.types import Array, ArrayTree

# Casts that a value may need, such as f64 to f32; never a real number to an integer.
_CAST: Final = "same_kind"
# Settings of evaluation by which actions are greedy.
_GREEDY = {"agent.evaluation_epsilon": 0.0, "agent.evaluation_action": "mode"}


class State(NamedTuple):
    """Carries a policy from one call of `predict` to the next.

    Attributes:
        carry: acting state, tree of [B, ...]; B is 1 for a single observation.
        key: typed key [], of the next draws.
    """

    carry: ArrayTree
    key: Array


class Predictor(NamedTuple):
    """A policy as it acts on raw observations.

    Attributes:
        spec: of its environment.
        init_carry: (batch_size) -> acting state before any row.
        greedy: (params, `State`, observation [B, ...], reward f32 [B], is_first bool [B]) -> (action [B, ...],
            `State`), without draws of the policy.
        act: likewise, with the draws of training.
        unread: names of the leaves of an observation that are known in training alone, and that no action depends on.
    """

    spec: types.EnvironmentSpec
    init_carry: Callable[[int], ArrayTree]
    greedy: Callable[..., tuple[Array, State]]
    act: Callable[..., tuple[Array, State]]
    unread: frozenset[str]

    def __repr__(self) -> str:
        return types.short_repr(self)


def make(settings: Resolved, spec: types.EnvironmentSpec, step: Any = None) -> Predictor:
    """Makes the predictor of the agent with these settings.

    Its draws are those of the last environment at the end of training; of a ladder it is the one that explores least.
    """
    chosen = settings.replaced({name: value for name, value in _GREEDY.items() if name in settings.settings})
    agent = assemble.make_agent(chosen, spec, step)
    num_envs = settings["env.num_envs"] * spec.num_agents

    def explore(params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
        index = jnp.full(inputs.timestep.reward.shape, num_envs - 1, jnp.int32)
        exploration = agent.exploration(params, index, num_envs, jnp.float32(1.0))
        return agent.act(params, inputs._replace(exploration=exploration))

    greedy, act = (functools.partial(_step, spec.action, one) for one in (agent.evaluate, explore))
    return Predictor(spec, agent.init_carry, jax.jit(greedy), jax.jit(act), _unread(agent, spec, act))


def _unread(agent: agents.Agent, spec: types.EnvironmentSpec, act: Callable[..., Any]) -> frozenset[str]:
    """Returns the names of privileged leaves that acting does not read."""
    if not spec.privileged:
        return frozenset()

    def begin() -> tuple[Any, ...]:
        key, column = jax.random.key(0), jnp.zeros(1)
        observation = jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), spec.observation)
        return observation, agent.init(key), State(agent.init_carry(1), key), column, column > 0

    def acted(observation: ArrayTree, params: types.Params, state: State, *rest: Array) -> Any:
        return act(params, state, observation, *rest)

    program = jax.make_jaxpr(acted)(*jax.eval_shape(begin)).jaxpr
    _, used = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    named = zip(types.named_leaves(spec.observation), used, strict=False)
    return frozenset(name for name, is_used in named if types.is_within(name, spec.privileged) and not is_used)


def _step(
    space: Any,
    act: Callable[..., types.ActOutput],
    params: types.Params,
    state: State,
    observation: ArrayTree,
    reward: Array,
    is_first: Array,
) -> tuple[Array, State]:
    """Acts on rows [B]; reals are clipped to the bounds of the actions."""
    step_type = jnp.where(is_first, types.FIRST, types.MID).astype(jnp.int8)
    reward = jnp.where(is_first, 0.0, reward)
    timestep = types.TimeStep(step_type, reward, jnp.ones_like(reward), observation, info=())
    key, own = jax.random.split(state.key)
    output = act(params, types.ActInputs(timestep, state.carry, own))
    action = output.action
    if isinstance(space, types.BoxSpace):
        action = space.clip(action)
    return action, State(output.carry, key)


def predict(
    predictor: Predictor,
    params: types.Params,
    observation: ArrayTree,
    state: State | None = None,
    deterministic: bool = True,
    reward: Any = None,
    is_first: Any = None,
    seed: int | None = None,
) -> tuple[Any, State]:
    """Acts as `policy.Policy.predict` says.

    Raises:
        UsageError: an array has the wrong shape or dtype, or the seed is none.
    """
    rows, count = _rows(predictor.spec, observation, predictor.unread)
    width = count or 1
    arguments.check_seed(seed)
    if state is None:
        state = State(predictor.init_carry(width), jax.random.key(secrets.randbits(32) if seed is None else seed))
        first = np.ones(width, bool)
    else:
        _check_state(state, width, seed)
        first = np.zeros(width, bool)
    if is_first is not None:
        first = _column("is_first", is_first, count, np.dtype(bool))
    rewards = np.zeros(width, np.float32) if reward is None else _column("reward", reward, count, np.dtype(np.float32))
    action, state = (predictor.greedy if deterministic else predictor.act)(params, state, rows, rewards, first)
    chosen = np.asarray(action)
    return chosen if count else chosen[0], state


def _rows(spec: types.EnvironmentSpec, observation: ArrayTree, unread: Container[str]) -> tuple[ArrayTree, int]:
    """Returns observations [B, ...] in the spec's dtypes, and their number, 0 for a single one without that axis.

    What is not read may be absent.
    """
    named, structure = jax.tree_util.tree_flatten_with_path(spec.observation)
    absent = {path for path, _ in named if _leaf_name(path) in unread and not _has(path, observation)}
    leaves = [(_name(path), _at(path, observation), struct) for path, struct in named if path not in absent]
    leads = {name: value.shape[: value.ndim - len(struct.shape)] for name, value, struct in leaves}
    name, value, struct = leaves[0]
    lead = leads[name]
    for name, value, struct in leaves:
        is_fit = value.shape[len(lead) :] == struct.shape and leads[name] == lead and len(lead) <= 1 and 0 not in lead
        if not is_fit or not np.can_cast(value.dtype, struct.dtype, _CAST):
            given, shape = f"{value.dtype}{list(value.shape)}", list(struct.shape)
            raise errors.UsageError(
                f"predict({name}={given}): expected {np.dtype(struct.dtype)}{shape}, or {['B', *shape]} of B "
                f"environments, as {spec.name} gives it".replace("'", "")
            )
    present = {name: value.astype(struct.dtype) for name, value, struct in leaves}
    arrays = [present.get(_name(path), np.zeros((*lead, *struct.shape), struct.dtype)) for path, struct in named]
    arrays = arrays if lead else [array[None] for array in arrays]
    return jax.tree.unflatten(structure, arrays), lead[0] if lead else 0


def _leaf_name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _name(path: Any) -> str:
    return f"observation/{_leaf_name(path)}".rstrip("/")


def _has(path: Any, observation: ArrayTree) -> bool:
    """Says whether an observation has a leaf."""
    try:
        _at(path, observation)
    except errors.UsageError:
        return False
    return True


def _at(path: Any, observation: ArrayTree) -> np.ndarray:
    """Returns a leaf of an observation; any mapping and any sequence will do for those of the spec."""
    try:
        for entry in path:
            name = getattr(entry, "name", None)
            get = operator.itemgetter(getattr(entry, "key", getattr(entry, "idx", None)))
            observation = get(observation) if name is None else getattr(observation, name)
        return np.asarray(observation)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise errors.UsageError(
            f"predict({_name(path)}): the observation has no such array ({type(error).__name__}: {error})"
        ) from error


def _column(name: str, given: Any, count: int, dtype: np.dtype) -> np.ndarray:
    """Returns one value per row, [B]; of a single observation it is given without that axis."""
    value, expected = np.asarray(given), (count,) if count else ()
    if value.shape != expected or not np.can_cast(value.dtype, dtype, _CAST):
        raise errors.UsageError(
            f"predict({name}={value.dtype}{list(value.shape)}): expected {dtype}{list(expected)}, one per observation"
        )
    return value.astype(dtype).reshape(-1)


def _check_state(state: State, width: int, seed: int | None) -> None:
    """Checks that a state belongs to as many rows as there are observations, and that its own draws go on.

    Raises:
        UsageError: it is no state, or of other rows, or a seed is given beside it.
    """
    if not isinstance(state, State):
        raise errors.UsageError(f"predict(state=<{type(state).__name__}>): expected what predict returned, or None")
    widths = {leaf.shape[0] for leaf in jax.tree.leaves(state.carry)} - {width}
    if widths:
        raise errors.UsageError(
            f"predict: the state is of {widths.pop()} observations, these are {width}; state=None starts anew"
        )
    if seed is not None:
        raise errors.UsageError(f"predict(seed={seed}): the state has draws of its own; give a seed with state=None")
