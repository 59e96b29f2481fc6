"""Members of a sweep: whose values they have, and that what takes parameters is made with them."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxrl_dist import agents, types
from jaxrl_dist.learning import members

NAMES = ("agent.scale", "agent.shift")


def _build(values: Mapping[str, Any]) -> Any:
    """An agent that adds its settings to its statistics, and no learner."""
    scale, shift = (values.get(name, 1.0) for name in NAMES)

    def adapt(params: types.Params, unroll: Any, metrics: Any, aux: Any, axis: Any) -> types.Params:
        return params._replace(statistics=scale * params.statistics + shift)

    functions: Any = {name: None for name in ("init_carry", "act", "evaluate", "prepare", "loss")}
    agent = agents.Agent(init=lambda key: types.Params({}, jnp.zeros(())), staleness="none", adapt=adapt, **functions)
    return agent, _Learner()


class _Learner:
    def _replace(self, **functions: Any) -> "_Learner":
        return self


def test_every_seed_of_a_combination_has_its_values() -> None:
    leaves = {"a": jnp.zeros((6, 4)), "b": jnp.zeros((6, 2, 9))}
    params = types.Params(leaves, members.Statistics({name: jnp.zeros(6) for name in NAMES}, ()))
    combinations = [{"agent.scale": float(i), "agent.shift": 10.0 * i} for i in (1, 2, 3)]
    values = members.set_values(params, combinations).statistics.values
    np.testing.assert_array_equal(values["agent.scale"], [1, 1, 2, 2, 3, 3])
    np.testing.assert_array_equal(values["agent.shift"], [10, 10, 20, 20, 30, 30])
    assert isinstance(values["agent.scale"].sharding, SingleDeviceSharding)


def test_statistics_change_by_the_member_s_own_values() -> None:
    swept, _ = members.over(NAMES, _build)
    params = swept.init(jax.random.key(0))
    assert params.statistics.own == 0
    values = {"agent.scale": jnp.float32(3), "agent.shift": jnp.float32(0.5)}
    params = params._replace(statistics=members.Statistics(values, jnp.float32(2)))
    after = swept.adapt(params, (), {}, (), types.LOCAL).statistics
    assert float(after.own) == 6.5 and after.values is values
