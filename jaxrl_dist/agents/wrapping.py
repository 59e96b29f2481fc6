"""An agent inside the parameters of another: one function forwards all of `agents.Agent`, so that none is forgotten."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxrl_dist import agents, types
from jaxrl_dist.types import Array, ArrayTree


def _whole(tree: ArrayTree) -> ArrayTree:
    return tree


def _other(tree: ArrayTree, part: ArrayTree) -> ArrayTree:
    del tree
    return part


class Place(NamedTuple):
    """Finds an agent's parameters and batch in those of its wrapper.

    Attributes:
        own: (params) -> the agent's own `types.Params`.
        put: (params, the agent's own) -> params with these in their place.
        network: (network) -> the agent's own.
        batch: (batch) -> the agent's own.
        put_batch: (batch, the agent's own) -> batch with this in its place.
    """

    own: Callable[[types.Params], types.Params]
    put: Callable[[types.Params, types.Params], types.Params]
    network: Callable[[ArrayTree], ArrayTree] = _whole
    batch: Callable[[ArrayTree], ArrayTree] = _whole
    put_batch: Callable[[ArrayTree, ArrayTree], ArrayTree] = _other


def forwarded(
    agent: agents.Agent,
    place: Place,
    init: Callable[[Array], types.Params],
    built: Callable[[types.Params], agents.Agent] | None = None,
) -> agents.Agent:
    """Makes an agent of another whose parameters are a part of its own; a wrapper replaces what it changes.

    Args:
        agent: the one inside.
        place: its parameters and its batch in those of the wrapper. `prepare` gives the agent's own batch.
        init: (key) -> parameters of the wrapper.
        built: (params) -> the agent, where it depends on parameters of the wrapper.

    Returns:
        `agents.Agent`, whose numbers, `parts` and functions without parameters are those of the agent. Its `gradient`,
        if it gives one, is that of its own network.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs, networks, types
        >>> from jaxrl_dist.agents import a2c
        >>> from jaxrl_dist.agents import wrapping
        >>> inner = a2c.make(a2c.Config(), envs.make("toy:walk").spec, networks.Config(torso="mlp"))
        >>> place = wrapping.Place(
        ...     own=lambda params: params._replace(statistics=params.statistics["own"]),
        ...     put=lambda params, own: own._replace(statistics={**params.statistics, "own": own.statistics}),
        ... )
        >>> def init(key):
        ...     params = inner.init(key)
        ...     return params._replace(statistics={"own": params.statistics, "count": 0})
        >>> agent = wrapping.forwarded(inner, place, init)
        >>> agent.staleness, sorted(agent.init(jax.random.key(0)).statistics)
        ('none', ['count', 'own'])
    """

    def of(params: types.Params) -> agents.Agent:
        return built(params) if built else agent

    def acted(name: str) -> Callable[..., Any]:
        return lambda params, *rest: getattr(of(params), name)(place.own(params), *rest)

    def loss(params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
        return of(params).loss(place.own(params), inputs._replace(batch=place.batch(inputs.batch)))

    def gradient(params: types.Params, inputs: types.LossInputs) -> types.Gradient:
        inner = of(params)
        assert inner.gradient is not None
        return inner.gradient(place.own(params), inputs._replace(batch=place.batch(inputs.batch)))

    def epoch(batch: ArrayTree, order: Array, axis: types.Axis) -> ArrayTree:
        assert agent.epoch is not None
        return place.put_batch(batch, agent.epoch(place.batch(batch), order, axis))

    def adapt(params: types.Params, *rest: Any) -> types.Params:
        return place.put(params, of(params).adapt(place.own(params), *rest))

    def adopt(params: types.Params, other: types.Params) -> types.Params:
        return place.put(other, of(params).adopt(place.own(params), place.own(other)))

    named: Any = {name: acted(name) for name in ("act", "evaluate", "prepare", "exploration")}
    return agent._replace(
        **named,
        init=init,
        loss=loss,
        epoch=None if agent.epoch is None else epoch,
        gradient=None if agent.gradient is None else gradient,
        adapt=adapt,
        adopt=adopt,
        target=lambda network: agent.target(place.network(network)),
    )
