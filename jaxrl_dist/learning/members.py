"""Makes an agent and a learner whose settings are arrays, one number per member of a sweep.

The values are frozen statistics in the parameters, so layouts, checkpoints and evaluations know nothing of them. A
function that takes parameters builds agent and learner from these values while it is traced.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import agents, types
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

    def with_values(inner: types.Params, values: dict[str, Array]) -> types.Params:
        return inner._replace(statistics=Statistics(values, inner.statistics))

    def init(key: Array) -> types.Params:
        return with_values(agent.init(key), {name: jnp.zeros(()) for name in names})

    def adapt(params: types.Params, *rest: Any) -> types.Params:
        return with_values(built(params)[0].adapt(own(params), *rest), params.statistics.values)

    def adopt(params: types.Params, other: types.Params) -> types.Params:
        return with_values(agent.adopt(own(params), own(other)), params.statistics.values)

    def with_params(name: str) -> Callable[..., Any]:
        return lambda params, *rest: getattr(built(params)[0], name)(own(params), *rest)

    def learner_init(params: types.Params) -> learners.LearnerState:
        return learner.init(own(params))._replace(params=params)

    def update(state: learners.LearnerState, *rest: Any) -> tuple[learners.LearnerState, Array, dict[str, Array]]:
        updated, priorities, metrics = built(state.params)[1].update(state._replace(params=own(state.params)), *rest)
        return updated._replace(params=with_values(updated.params, state.params.statistics.values)), priorities, metrics

    named: Any = {name: with_params(name) for name in ("act", "evaluate", "prepare", "loss", "exploration")}
    swept = agent._replace(init=init, adapt=adapt, adopt=adopt, **named)
    return swept, learner._replace(init=learner_init, update=update)


def set_values(params: types.Params, combinations: Sequence[Mapping[str, float]]) -> types.Params:
    """Gives each member, leaves [S, ...], the values of its combination."""
    seeds = jax.tree.leaves(params.network)[0].shape[0] // len(combinations)

    def placed(name: str, old: Array) -> Array:
        values = np.repeat(np.array([one[name] for one in combinations], np.float32), seeds)
        return jax.device_put(values, old.sharding)

    values = {name: placed(name, old) for name, old in params.statistics.values.items()}
    return params._replace(statistics=params.statistics._replace(values=values))


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
