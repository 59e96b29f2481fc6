"""SAC: its targets by hand, gradients that keep to their own part, and the temperature's direction."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import calls
from test_dpg import NETWORK, SPEC, A, D, N, batch

from jaxrl_dist import types
from jaxrl_dist.agents import sac


def build(**settings: Any) -> tuple[Any, types.Params, Any]:
    agent = sac.make(sac.Config(**settings), SPEC, NETWORK)
    noise = np.random.default_rng(0)

    def shaken(tree: Any) -> Any:
        return jax.tree.map(lambda x: x + jnp.asarray(noise.normal(size=x.shape, scale=0.3), x.dtype), tree)

    params = agent.init(jax.random.key(1))
    return agent, params._replace(network=shaken(params.network)), shaken(params.network)


def dense(params: Any, x: np.ndarray) -> np.ndarray:
    """Returns the outputs of a network of one hidden layer."""
    found = jax.tree_util.tree_leaves_with_path(params)
    leaves = {jax.tree_util.keystr(path): np.asarray(leaf, np.float64) for path, leaf in found}
    heads = {name: leaf for name, leaf in leaves.items() if "outputs" in name}
    torso, head = (
        [part[name] for name in sorted(part)] for part in ({k: leaves[k] for k in leaves.keys() - heads}, heads)
    )
    return np.maximum(np.asarray(x, np.float64) @ torso[1] + torso[0], 0) @ head[1] + head[0]


def soft(network: Any, critics: Any, observation: Any, draw: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lower value [N] of what the policy does by a standard normal draw [N, A], and its log-density."""
    mean, raw = np.split(dense(network["policy"], observation), 2, -1)
    std = np.exp(-5 + 3.5 * (np.tanh(raw) + 1))
    sample = mean + std * draw
    density = np.exp(-0.5 * np.square(draw)) / (std * np.sqrt(2 * np.pi)) / (1 - np.tanh(sample) ** 2)
    joined = np.concatenate([observation, np.tanh(sample)], -1)
    values = [dense(jax.tree.map(lambda x: x[i], critics), joined)[:, 0] for i in (0, 1)]  # noqa: B023
    return np.minimum(*values), np.log(density).sum(-1)


def loss(agent: Any, params: types.Params, target: Any, rows: Any) -> types.LossOutput:
    return calls.loss(agent, params, target, rows, jax.random.key(4))


def test_the_loss_is_that_of_numpy() -> None:
    agent, params, target = build(temperature=0.7, target_entropy=-0.5)
    rows, network = batch(), params.network
    draws = [np.asarray(jax.random.normal(key, (N, A))) for key in jax.random.split(jax.random.key(4))]
    weight = np.exp(float(network["temperature"]["log"]))
    value, log_prob = soft(network, target["critic"], rows.next_inputs, draws[0])
    wanted = np.asarray(rows.reward) + np.asarray(rows.discount) * (value - weight * log_prob)
    joined = np.concatenate([rows.inputs, rows.action], -1)
    critics = [jax.tree.map(lambda x: x[i], network["critic"]) for i in (0, 1)]  # noqa: B023
    predicted = np.stack([dense(one, joined)[:, 0] for one in critics])
    output = loss(agent, params, target, rows)
    np.testing.assert_allclose(output.metrics["critic_loss"], (0.5 * (wanted - predicted) ** 2).sum(0), rtol=2e-3)
    np.testing.assert_allclose(output.priority, np.abs(wanted - predicted).mean(0), rtol=2e-3, atol=1e-4)
    value, log_prob = soft(network, network["critic"], rows.inputs, draws[1])
    np.testing.assert_allclose(output.metrics["policy_loss"], weight * log_prob - value, rtol=2e-3, atol=1e-3)
    wanted = -np.log(weight) * (log_prob - 0.5 * A)
    np.testing.assert_allclose(output.metrics["temperature_loss"], wanted, rtol=2e-3, atol=1e-3)
    parts = [output.metrics[name] for name in ("critic_loss", "policy_loss", "temperature_loss")]
    np.testing.assert_allclose(output.loss, sum(parts), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_each_part_learns_from_its_own_loss() -> None:
    agent, params, target = build()
    rows = batch(taught=False)

    def total(network: Any, name: str) -> jax.Array:
        output = loss(agent, params._replace(network=network), target, rows)
        return output.loss.sum() if name == "loss" else output.metrics[f"{name}_loss"].sum()

    whole = jax.grad(total)(params.network, "loss")
    for name in ("policy", "critic", "temperature"):
        own = jax.grad(total)(params.network, name)
        for a, b in zip(*map(jax.tree.leaves, (whole[name], own[name])), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
            assert np.abs(b).max() > 0
        others = [leaf for other in own if other != name for leaf in jax.tree.leaves(own[other])]
        assert not any(leaf.any() for leaf in others)


@pytest.mark.parametrize(("target_entropy", "grows"), [(50.0, True), (-50.0, False)])
def test_the_temperature_rises_while_there_is_too_little_entropy(target_entropy: float, grows: bool) -> None:
    agent, params, target = build(target_entropy=target_entropy)

    def total(network: Any) -> jax.Array:
        return loss(agent, params._replace(network=network), target, batch()).loss.sum()

    slope = float(jax.grad(total)(params.network)["temperature"]["log"])
    assert (slope < 0) == grows
    agent, params, target = build(target_entropy=target_entropy, learn_temperature=False)
    assert float(jax.grad(total)(params.network)["temperature"]["log"]) == 0


def test_actions_are_within_bounds() -> None:
    agent, params, _ = build()
    timestep = types.TimeStep(jnp.ones(N, jnp.int8), jnp.zeros(N), jnp.ones(N), 100 * batch().inputs, ())
    key = jax.random.key(0)
    chosen = calls.act(agent, params, (), timestep, key, jnp.zeros(N)), calls.evaluate(agent, params, (), timestep, key)
    for action in (output.action for output in chosen):
        assert action.shape == (N, A) and action.min() >= -2.0 and action.max() <= 6.0


def test_the_first_share_of_training_is_random() -> None:
    agent, params, *_ = build(random_share=0.1)
    rows = jnp.zeros(512)
    timestep = types.TimeStep(rows.astype(jnp.int8) + types.MID, rows, rows + 1, jnp.zeros((512, D)), ())
    low, high = np.asarray(SPEC.action.low), np.asarray(SPEC.action.high)

    def acted(progress: float) -> np.ndarray:
        exploration = agent.exploration((), jnp.arange(512), 512, jnp.float32(progress))
        action = np.asarray(calls.act(agent, params, (), timestep, jax.random.key(2), exploration).action)
        return (action - low) / (high - low)

    quantiles = [0.05, 0.25, 0.5, 0.75, 0.95]
    np.testing.assert_allclose(np.quantile(acted(0.09), quantiles), quantiles, atol=0.05)
    assert np.abs(np.quantile(acted(0.1), quantiles) - quantiles).max() > 0.05
