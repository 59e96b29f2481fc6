"""V-MPO: loss and gradient against a loop in float64, on one device and two, and the better half of each minibatch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import call, differences, ppo
from oracles import vmpo as oracle

from jaxrl_dist import types
from jaxrl_dist.agents import vmpo
from jaxrl_dist.parallel import mesh as meshes

SETTINGS = {"discount": 0.9, "gae_lambda": 0.8, "value_cost": 0.7, "temperature_bound": 0.3, "policy_bound": 0.02}
CASES: dict[str, dict[str, Any]] = {
    "discrete": {},
    "two devices": {"devices": 2, "clip_rewards": 0.5, "reward_scale": 0.3},
    "lstm": {"core": "lstm"},
    "gaussian": {"real": True, "mean_bound": 0.1, "deviation_bound": 0.2},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_paper(name: str) -> None:
    changes = dict(CASES[name])
    devices = changes.pop("devices", 1)
    made = call.make("vmpo", **{**SETTINGS, **changes})
    s, acted = made.settings, call.params(made, 1)
    now = differences.between(acted, call.params(made, 2), 0.3)
    rows = call.rows(made, seed=7, length=7, columns=4)
    found = call.learn(made, rows, now, acted=acted, devices=devices)
    estimates = ppo.estimate(acted["model"], rows, s)

    def objective(params: dict[str, Any]) -> float:
        terms = oracle.terms(params, now, acted, rows, estimates, s)
        costs = {"policy_loss": 1.0, "value_loss": s["value_cost"], "temperature_loss": 1.0, "penalty": 1.0}
        return sum(cost * x for name, cost in costs.items() for x in terms[name].values())

    terms = oracle.terms(now, now, acted, rows, estimates, s)
    terms.pop("penalty")
    assert found.valid == len(estimates["advantage"]) < 6 * 4
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in terms.items()}, rel=1e-6, abs=1e-6)
    assert found.loss == pytest.approx(objective(now), rel=1e-6)
    wanted = differences.gradient(objective, now)
    differences.assert_same(found.gradient, wanted, rtol=1e-6, atol=1e-6)
    assert min(np.abs(part).max() for part in differences.leaves(wanted)) > 1e-3


def batch_of(advantage: np.ndarray, taught: np.ndarray) -> vmpo.Batch:
    x, rows = jnp.asarray(advantage, jnp.float32), jnp.asarray(taught, jnp.float32)
    return vmpo.Batch((), (), (), x, x, x, rows, {}, 0 * x, 0 * x)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_the_better_half_is_that_of_each_minibatch_over_all_devices(num_devices: int) -> None:
    rng = np.random.default_rng(0)
    advantage, taught = rng.normal(size=(num_devices, 12)), rng.random((num_devices, 12)) < 0.7
    orders = np.stack([rng.permutation(12).reshape(3, 4) for _ in range(num_devices)])
    # No row of the last minibatch teaches.
    for device in range(num_devices):
        taught[device, orders[device, 2]] = False
    batch = jax.vmap(batch_of)(jnp.asarray(advantage, jnp.float32), jnp.asarray(taught, jnp.float32))
    axis = meshes.AXIS if num_devices > 1 else types.LOCAL
    found = jax.vmap(lambda batch, order: vmpo._epoch(batch, order, axis), axis_name="devices")(batch, orders)
    for minibatch in range(3):
        rows = {
            (device, item): advantage[device, item]
            for device in range(num_devices)
            for item in orders[device, minibatch]
            if taught[device, item]
        }
        wanted = set(oracle.better_half(rows))
        for device in range(num_devices):
            for item in orders[device, minibatch]:
                assert bool(found.better[device, item]) == ((device, item) in wanted)
                highest = max(rows.values()) if rows else 0.0
                assert float(found.highest[device, item]) == pytest.approx(highest, rel=1e-6)


def test_a_minibatch_that_teaches_nothing_has_a_finite_loss() -> None:
    made = call.make("vmpo", **SETTINGS)
    rows = call.rows(made, seed=7, length=7, columns=4)
    rows["step_type"][:] = types.LAST
    found = call.learn(made, rows, call.params(made, 1))
    assert found.valid == 0 and found.loss == 0
    assert not any(np.abs(part).max() for part in differences.leaves(found.gradient))
