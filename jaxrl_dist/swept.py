"""An agent and a learner whose settings are arrays of each member of a sweep, and which settings can be such.

The values travel as frozen statistics of the parameters, so layouts, checkpoints and evaluations know nothing of them:
whatever is given the parameters builds its functions anew, while it is traced, from the values that lie in them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import learner as learners
from jaxrl_dist import resolution, types
from jaxrl_dist.agents import base
from jaxrl_dist.types import Array, ArrayTree

Build = Callable[[Mapping[str, Any]], tuple[base.Agent, learners.Learner]]


class Statistics(NamedTuple):
    """Statistics of a member's parameters: the values of its settings, f32 [] by name, and the agent's own."""

    values: dict[str, Array]
    own: ArrayTree


def over(names: Sequence[str], build: Build) -> tuple[base.Agent, learners.Learner]:
    """Makes an agent and its learner of members that differ in some settings; `set_values` gives them their values.

    Args:
        names: of the settings.
        build: (name -> value) -> agent and learner with these values, numbers or arrays [].
    """
    agent, learner = build({})

    def built(params: types.Params) -> tuple[base.Agent, learners.Learner]:
        # As weakly typed as the Python numbers that they stand for.
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

    named: Any = {name: with_params(name) for name in ("act", "evaluate", "prepare", "loss")}
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


class Watched(float):
    """A number that notes in `refused` what Python, and not the program, does with it: there it must stay a number.

    A product with a power of two is exact in any precision, and passes.
    """

    name: str
    refused: set[str]

    def __new__(cls, value: float, name: str, refused: set[str]) -> "Watched":
        """Makes one that is noted by its name."""
        made = super().__new__(cls, value)
        made.name, made.refused = name, refused
        return made

    def __mul__(self, other: Any) -> Any:
        """Passes a power of two; arrays multiply by themselves."""
        if not isinstance(other, int | float):
            return NotImplemented
        if not isinstance(other, Watched) and abs(math.frexp(other)[0]) == 0.5:
            return Watched(float(self) * other, self.name, self.refused)
        self.refused.add(self.name)
        return float(self) * float(other)

    __rmul__ = __mul__
    __hash__ = float.__hash__


def _noting(operation: str) -> Callable[..., Any]:
    """Makes an operation of `Watched` that notes its use, unless its operand is an array, which does it instead."""

    def operate(self: Watched, *operands: Any) -> Any:
        if not all(isinstance(operand, int | float) for operand in operands):
            return NotImplemented
        self.refused.add(self.name)
        return getattr(float, operation)(float(self), *map(float, operands))

    return operate


_OPERATIONS = (
    *("bool", "eq", "ne", "lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "truediv", "rtruediv"),
    *("pow", "rpow", "mod", "rmod", "floordiv", "rfloordiv", "neg", "abs", "int", "round"),
)
for _operation in _OPERATIONS:
    setattr(Watched, f"__{_operation}__", _noting(f"__{_operation}__"))


def sweepable(
    names: Sequence[str], settings: resolution.Resolved, build: Build, trace: Callable[[Any], object]
) -> list[str]:
    """Returns which of some settings enter the program as numbers that arrays are computed with, and nothing before it.

    Args:
        names: of the settings.
        settings: of the run, which hold their values.
        build: as in `over`.
        trace: (name -> `Watched`) traces the training program with these values.
    """
    refused: set[str] = set()
    trace({name: Watched(settings[name], name, refused) for name in names})
    return [name for name in names if name not in refused and _is_apart(build, name)]


def _is_apart(build: Build, name: str) -> bool:
    """Whether what gets no parameters, first parameters, exploration and actors' errors, does without a setting."""

    def without_params(value: Array) -> Any:
        agent, _ = build({name: value})
        return agent.init(jax.random.key(0)), agent.exploration(jnp.zeros(1, jnp.int32), 1, jnp.float32(0))

    try:
        traced = jax.make_jaxpr(without_params)(0.5)
    except (jax.errors.ConcretizationTypeError, TypeError):
        return False
    (value,) = traced.jaxpr.invars
    used = any(operand is value for equation in traced.jaxpr.eqns for operand in equation.invars)
    first_error = build({})[0].first_error
    return not used and (first_error is None or not name.startswith("agent."))
