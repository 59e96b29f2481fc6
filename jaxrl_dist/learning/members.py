"""Makes an agent and a learner whose settings are arrays, one number per member of a sweep; lets members take over.

The values are frozen statistics in the parameters, so layouts, checkpoints and evaluations know nothing of them. A
function that takes parameters builds agent and learner from these values while it is traced.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import agents, types
from jaxrl_dist.agents import wrapping
from jaxrl_dist.learning import learner as learners
from jaxrl_dist.types import Array, ArrayTree

Build = Callable[[Mapping[str, Any]], tuple[agents.Agent, learners.Learner]]


class Statistics(NamedTuple):
    """Statistics of a member's parameters: the values of its settings, f32 [] by name, and the agent's own."""

    values: dict[str, Array]
    own: ArrayTree


def over(names: Sequence[str], build: Build) -> tuple[agents.Agent, learners.Learner]:
    """Makes an agent and its learner of members that differ in some settings; `set_values` gives them their values.

    Args:
        names: names of the settings.
        build: (name -> value) -> agent and learner with these values, numbers or arrays [].
    """
    agent, learner = build({})

    def built(params: types.Params) -> tuple[agents.Agent, learners.Learner]:
        # Weakly typed, like the Python numbers that they replace.
        values = params.statistics.values
        return build({name: jax.lax.convert_element_type(values[name], float) for name in names})

    def own(params: types.Params) -> types.Params:
        return params._replace(statistics=params.statistics.own)

    def put(params: types.Params, inner: types.Params) -> types.Params:
        return inner._replace(statistics=Statistics(params.statistics.values, inner.statistics))

    def init(key: Array) -> types.Params:
        inner = agent.init(key)
        return inner._replace(statistics=Statistics({name: jnp.zeros(()) for name in names}, inner.statistics))

    def adopt(params: types.Params, other: types.Params) -> types.Params:
        return put(params, agent.adopt(own(params), own(other)))

    def learner_init(params: types.Params) -> learners.LearnerState:
        return learner.init(own(params))._replace(params=params)

    def update(state: learners.LearnerState, *rest: Any) -> tuple[learners.LearnerState, Array, dict[str, Array]]:
        updated, priorities, metrics = built(state.params)[1].update(state._replace(params=own(state.params)), *rest)
        return updated._replace(params=put(state.params, updated.params)), priorities, metrics

    place = wrapping.Place(own, put)
    swept = wrapping.forwarded(agent, place, init, lambda params: built(params)[0])._replace(adopt=adopt)
    return swept, learner._replace(init=learner_init, update=update)


def set_values(params: types.Params, combinations: Sequence[Mapping[str, float]]) -> types.Params:
    """Gives each member, leaves [S, ...], the values of its combination."""
    seeds = jax.tree.leaves(params.network)[0].shape[0] // len(combinations)

    def placed(name: str, old: Array) -> Array:
        values = np.repeat(np.array([one[name] for one in combinations], np.float32), seeds)
        return jax.device_put(values, old.sharding)

    values = {name: placed(name, old) for name, old in params.statistics.values.items()}
    return params._replace(statistics=params.statistics._replace(values=values))


# Jaderberg et al. 2017, section 4.1.1: a member in the bottom 20 % copies one of the top 20 %; each value is multiplied
# by one of two factors, or drawn anew "with some probability", here that of RLlib's PopulationBasedTraining.
_SHARE, _FACTORS, _ANEW = 0.2, (0.8, 1.2), 0.25


def exploit(
    state: learners.LearnerState, returns: Array, keys: Array, bounds: Mapping[str, tuple[float, float]]
) -> tuple[learners.LearnerState, Array]:
    """Lets the worst members of each population go on from members among its best, with other values.

    Of C members the worst C / 5, at least one, each take over parameters, optimiser and target network of a member that
    is drawn from as many of the best. Environments and replays stay where they are.

    Args:
        state: leaves [S, ...] of C · N members: N populations, the first members of all of them first.
        returns: f32 [S], of the last evaluation, or ranks by it.
        keys: typed keys [N], of this evaluation, one for each population.
        bounds: name of a setting -> smallest and largest value. New values are drawn between their logarithms, or, if
            the smallest is not above 0, between themselves; of a setting between 1/2 and 1, like a discount, it is the
            distance from 1 that is multiplied or drawn.

    Returns:
        `learner.LearnerState`, and i32 [S], the member that each one goes on from.

    Source: Jaderberg et al. 2017, "Population based training of neural networks", algorithm 1 and section 4.1.1.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.learning import learner, members
        >>> values = {"learner.learning_rate": jnp.array([1e-4, 1e-3, 1e-2])}
        >>> params = types.Params({"w": jnp.arange(3.0)}, members.Statistics(values, ()))
        >>> state = learner.LearnerState(params, (), (), jnp.zeros(3, int))
        >>> keys, bounds = jax.random.split(jax.random.key(0), 1), {"learner.learning_rate": (1e-4, 1e-2)}
        >>> after, source = members.exploit(state, jnp.array([5.0, 9.0, 1.0]), keys, bounds)
        >>> print(source, after.params.network["w"])
        [0 1 1] [0. 1. 1.]
    """
    populations = keys.shape[0]
    choose_keys, explore_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    chosen = jax.vmap(_chosen)(returns.reshape(-1, populations).T, choose_keys).T
    source = (chosen * populations + jnp.arange(populations)).reshape(-1)
    state = jax.tree.map(lambda x: x[source], state)
    replaced = (source != jnp.arange(len(source))).reshape(-1, populations)

    def explored(number: int, name: str, value: Array) -> Array:
        own_keys = jax.vmap(jax.random.fold_in, (0, None))(explore_keys, number)
        changed = jax.vmap(lambda x, key: _explored(x, key, bounds[name]), (1, 0), 1)
        old = value.reshape(-1, populations)
        return jnp.where(replaced, changed(old, own_keys), old).reshape(-1)

    statistics = state.params.statistics
    values = {name: explored(i, name, statistics.values[name]) for i, name in enumerate(sorted(statistics.values))}
    return state._replace(params=state.params._replace(statistics=statistics._replace(values=values))), source


def _chosen(returns: Array, key: Array) -> Array:
    """Returns i32 [C], the member of a population that each goes on from; of equal returns the last is the best."""
    size = returns.shape[0]
    count = max(1, round(size * _SHARE))
    order = jnp.argsort(returns)
    return jnp.arange(size).at[order[:count]].set(jax.random.choice(key, order[-count:], (count,)))


def _explored(values: Array, key: Array, bounds: tuple[float, float]) -> Array:
    """Returns other values f32 [C] for a setting, within its bounds.

    A factor that leads out of them is replaced by the other one, as the first members are at the bounds themselves; of
    a 0, which no factor moves, by a draw. Of settings between 1/2 and 1, like discounts, the distance from 1 is what is
    multiplied or drawn: .8 or 1.2 times a discount of .99 would be out of any bounds.
    """
    low, high = bounds
    if 0.5 <= low < high <= 1:
        return jnp.clip(1 - _explored(1 - values, key, (1 - high, 1 - low)), low, high)
    factor_key, whether_key, draw_key = jax.random.split(key, 3)
    is_less = jax.random.bernoulli(factor_key, 0.5, values.shape)
    less, more = (values * factor for factor in _FACTORS)
    one, other = jnp.where(is_less, less, more), jnp.where(is_less, more, less)
    moved = jnp.where((one < low) | (one > high), other, one)
    share = jax.random.uniform(draw_key, values.shape)
    drawn = low * (high / low) ** share if low > 0 else low + (high - low) * share
    anew = jax.random.bernoulli(whether_key, _ANEW, values.shape) | (values == 0)
    return jnp.clip(jnp.where(anew, drawn, moved), low, high)


def can_vary(name: str, build: Build, trace: Callable[[Any], object]) -> bool:
    """Says whether a setting can have several values in one program, that is, can be traced as an array.

    Args:
        name: name of a setting with `sweep=True`, which may still decide what is compiled in some configurations.
        build: as in `over`.
        trace: (name -> value) traces the training program with these values.
    """
    try:
        jax.eval_shape(lambda value: trace({name: value}), 0.5)
    except (jax.errors.ConcretizationTypeError, TypeError):
        return False
    return is_apart(name, build)


def is_apart(name: str, build: Build) -> bool:
    """Says whether every function that depends on a setting takes parameters, and so the member's value."""
    # `first_error` takes none: it computes errors from stored extras.
    if name.startswith("agent.") and build({})[0].first_error is not None:
        return False

    def without_params(value: Array) -> Any:
        agent, _ = build({name: value})
        return agent.init(jax.random.key(0))

    try:
        jaxpr = jax.make_jaxpr(without_params)(0.5).jaxpr
    except (jax.errors.ConcretizationTypeError, TypeError):
        return False
    return not any(operand is jaxpr.invars[0] for equation in jaxpr.eqns for operand in equation.invars)
