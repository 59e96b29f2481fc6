"""CrossQ: loss and gradient against a loop in float64, running moments, rows that teach nothing, and devices."""

import functools
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import call, differences
from oracles import crossq as oracle

from jaxrl_dist import networks, types
from jaxrl_dist.agents import crossq

N, HIDDEN = 10, 4


def running(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Means and variances [2, F] of the inputs of both layers, far enough from a batch's that a bound is met."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(2, size)), rng.uniform(0.02, 2.0, (2, size))) for size in (5, HIDDEN)]


@pytest.mark.parametrize("corrects", [False, True])
def test_loss_gradient_and_moments_are_those_of_the_papers(corrects: bool) -> None:
    made = call.make(
        "crossq", real=True, hidden_sizes=(HIDDEN,), discount=0.9, n_step=2, renorm_wait=0.0 if corrects else 1.0
    )
    now = call.params(made, 1, scale=0.3)
    rows = call.rows(made, seed=3, length=3, columns=N)
    rows["running"] = [crossq.Moments(*layer) for layer in running(0)]
    weights = np.random.default_rng(0).uniform(0.2, 1.0, N)
    found = call.learn(made, rows, now, weights=weights)
    assert np.abs(found.draws[0] - found.draws[1]).max() > 0.1
    rows["action"] = (rows["action"] - (call.HIGH + call.LOW) / 2) / ((call.HIGH - call.LOW) / 2)
    s = {**made.settings, "corrects": corrects}
    taught = [b for b in range(N) if rows["step_type"][0, b] != types.LAST]
    assert found.valid == len(taught) < N

    def objective(params: dict[str, Any]) -> float:
        terms = oracle.terms(params, now, rows, running(0), s, found.draws)[0]
        names = ("critic_loss", "policy_loss", "temperature_loss")
        return float(sum(weights[b] * terms[name][n] for name in names for n, b in enumerate(taught)))

    terms, moments = oracle.terms(now, now, rows, running(0), s, found.draws)
    assert found.loss == pytest.approx(objective(now), rel=1e-6)
    for name, numbers in terms.items():
        assert found.metrics[name] == pytest.approx(sum(numbers), rel=1e-6), name
    count, sums = found.aux
    assert count == len(taught)
    for layer in range(2):
        for kind in range(2):
            wanted = len(taught) * np.array([moments[critic][layer][kind] for critic in range(2)])
            np.testing.assert_allclose(sums[layer][kind], wanted, rtol=1e-5, atol=1e-7)
    fixed = _with_fixed_corrections(now, rows, s, found.draws, weights, taught)
    gradient = differences.gradient(fixed, now)
    differences.assert_same(found.gradient, gradient, rtol=1e-5, atol=1e-5)
    assert min(np.abs(part).max() for part in differences.leaves(gradient)) > 1e-4


def _with_fixed_corrections(now: Any, rows: Any, s: Any, draws: Any, weights: Any, taught: Any) -> Any:
    """Returns the objective whose r and d are numbers: those that the parameters give where they stand."""
    kept: list[Any] = []
    clip = np.clip

    def objective(params: dict[str, Any], record: bool = False) -> float:
        calls = iter(range(10**6))

        def fixed_clip(x: Any, low: Any, high: Any) -> Any:
            if (low, high) not in ((1 / 3, 3), (-5, 5)):
                return clip(x, low, high)
            if record:
                kept.append(clip(x, low, high))
            return kept[next(calls)]

        oracle.np.clip, before = fixed_clip, oracle.np.clip
        try:
            terms = oracle.terms(params, now, rows, running(0), s, draws)[0]
        finally:
            oracle.np.clip = before
        names = ("critic_loss", "policy_loss", "temperature_loss")
        return float(sum(weights[b] * terms[name][n] for name in names for n, b in enumerate(taught)))

    objective(now, record=True)
    return objective


def test_running_moments_move_towards_the_batch_of_all_devices() -> None:
    made = call.make("crossq", real=True, hidden_sizes=(HIDDEN,), norm_rate=0.25)
    start = [crossq.Moments(*(jnp.asarray(x, jnp.float32) for x in layer)) for layer in running(0)]
    target = [crossq.Moments(*(jnp.asarray(x, jnp.float32) for x in layer)) for layer in running(1)]
    params = types.Params((), start)
    # Means over two devices that teach 3 rows and 1.
    aux = (jnp.float32(2.0), jax.tree.map(lambda x: 2.0 * x, target))
    after = made.agent.adapt(params, (), {}, aux, types.LOCAL).statistics
    for old, new, wanted in zip(*map(jax.tree.leaves, (start, after, target)), strict=True):
        np.testing.assert_allclose(new, 0.75 * old + 0.25 * wanted, rtol=1e-5, atol=1e-6)
    nothing = (jnp.float32(0.0), jax.tree.map(jnp.zeros_like, target))
    unmoved = made.agent.adapt(params, (), {}, nothing, types.LOCAL).statistics
    for old, new in zip(*map(jax.tree.leaves, (start, unmoved)), strict=True):
        np.testing.assert_array_equal(old, new)


def test_correction_begins_after_its_share_of_training() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(2.0, 3.0, (64, 2)), jnp.float32)
    batch = crossq.moments_of(x, jnp.ones(64))
    own = crossq.Moments(jnp.asarray([1.0, -90.0]), jnp.asarray([4.0, 1e-6]))
    plain, renormed = (np.asarray(crossq.renormalised(x, batch, own, corrects)) for corrects in (0.0, 1.0))
    np.testing.assert_allclose(plain.mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(plain.std(0), 1.0, rtol=1e-3)
    # Within the bounds it is normalised by the running moments; beyond them the bounds are 3 and 5.
    np.testing.assert_allclose(renormed[:, 0], (np.asarray(x)[:, 0] - 1.0) / np.sqrt(4.001), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(renormed[:, 1], 3 * plain[:, 1] + 5, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_is_refused() -> None:
    spec = types.EnvironmentSpec(
        "toy:x", jax.ShapeDtypeStruct((3,), jnp.float32), types.BoxSpace((2,), -1.0, 1.0), "continuous"
    )
    with conftest.refused("--network.layer_norm=true"):
        crossq.make(crossq.Config(), spec, networks.Config(torso="mlp", layer_norm=True))
    with conftest.refused("--network.core=lstm"):
        crossq.make(crossq.Config(), spec, networks.Config(torso="mlp", core="lstm"))


def test_the_temperature_moves_when_the_policy_does() -> None:
    """As in the released code, which updates both in the same branch (policy_delay)."""
    agent = call.make("crossq", real=True, policy_period=4).agent
    assert {name: part.period for name, part in agent.parts.items()} == {"policy": 4, "critic": 1, "temperature": 4}


def test_critics_are_float32_whatever_the_network_computes_in() -> None:
    observation, action = jax.ShapeDtypeStruct((3,), jnp.float32), types.BoxSpace((2,), -1.0, 1.0)
    spec, found = types.EnvironmentSpec("toy:x", observation, action, "continuous"), []
    for compute in ("float32", "bfloat16"):
        network = networks.Config(torso="mlp", hidden_sizes=(4,), compute=compute)
        agent = crossq.make(crossq.Config(), spec, network)
        assert isinstance(agent.loss, functools.partial)
        static = agent.loss.args[0]
        x = jax.tree.map(lambda leaf: jnp.full((2, *leaf.shape), 1.001), static.spec.observation)
        found.append(static.critic.init_with_output(jax.random.key(0), x)[0][0])
    np.testing.assert_array_equal(*found)
