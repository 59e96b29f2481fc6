"""PPO's step size by divergence: its rule, the steps that it makes, devices, seeds, resumed runs, refusals."""

import pathlib
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import calls
from oracles import ppo as oracle
from test_a2c import FLAT, SPEC, _params, _played

import jaxrl_dist
from jaxrl_dist import types
from jaxrl_dist.agents import ppo
from jaxrl_dist.learning import learner
from jaxrl_dist.parallel import mesh as meshes

CONFIG = ppo.Config(adapt_learning_rate=True, kl_target=0.01)
RULE = learner.Config(
    optimizer="sgd", learning_rate=4e-3, anneal=False, epochs=6, shuffle=False, max_grad_norm=0.0, reduction="sum"
)
SETTINGS = {"agent.adapt_learning_rate": True, "agent.kl_target": 1e-4, "learner.learning_rate": 3e-3}


def sampled(agent: Any) -> tuple[types.Params, types.Sample]:
    params = _params(agent)
    sequences = _played(agent, params)
    return params, types.Sample(sequences, (), jnp.ones(sequences.steps.action.shape[1]))


@pytest.mark.parametrize(
    ("rate", "divergence", "expected"),
    [
        (3e-4, 0.0201, 2e-4),
        (3e-4, 0.0199, 3e-4),
        (3e-4, 0.0051, 3e-4),
        (3e-4, 0.0049, 4.5e-4),
        (3e-4, 0.0, 4.5e-4),
        (1.2e-5, 0.03, 1e-5),
        (9e-3, 0.001, 1e-2),
        (2e-2, 0.01, 2e-2),
        (3e-4, np.nan, 3e-4),
    ],
)
def test_the_step_size_follows_the_divergence(rate: float, divergence: float, expected: float) -> None:
    agent = ppo.make(CONFIG, SPEC, FLAT)
    assert agent.pace is not None
    found = agent.pace(jnp.float32(rate), {"approx_kl": jnp.float32(divergence)})
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(oracle.paced(rate, divergence, CONFIG.kl_target), expected, rtol=1e-12)


@pytest.mark.parametrize("progress", [pytest.param(0.0, marks=pytest.mark.slow), 0.25])
def test_an_update_is_its_steps_written_out(progress: float) -> None:
    """Each step has the size for the divergence at its own parameters, times what annealing leaves."""
    probe = ppo.make(CONFIG, SPEC, FLAT)
    params, sample = sampled(probe)
    target = 3e-4
    agent = ppo.make(ppo.Config(adapt_learning_rate=True, kl_target=target), SPEC, FLAT)
    rule = learner.Config(**{**vars(RULE), "anneal": True})
    rules = learner.make(rule, agent, types.LOCAL)
    state, _, metrics = rules.update(rules.init(params), sample, jax.random.key(5), jnp.float32(progress))
    batch = calls.prepare(agent, params, sample.sequences)
    batch = agent.epoch(batch, jnp.arange(len(batch.advantage))[None], types.LOCAL)  # type: ignore[misc]
    now, rate, rates, changes = params, rule.learning_rate, [], set()
    for _ in range(rule.epochs):

        def loss(network: Any, now: types.Params = now) -> Any:
            output = calls.loss(agent, now._replace(network=network), (), batch, jax.random.key(0))
            return output.loss.sum(), output

        gradient, output = jax.grad(loss, has_aux=True)(now.network)
        divergence = float(np.asarray(output.metrics["approx_kl"], np.float64).sum() / np.asarray(output.valid).sum())
        before, rate = rate, oracle.paced(rate, divergence, target)
        changes.add(np.sign(rate - before))
        rates.append(rate * (1 - progress))
        now = now._replace(network=jax.tree.map(lambda p, g, r=rates[-1]: p - r * g, now.network, gradient))
    # It rises from the first step, at which the policy is the one that acted, and falls as well.
    assert changes >= {1, -1}
    np.testing.assert_allclose(state.pace * rule.learning_rate, rate, rtol=1e-5)
    np.testing.assert_allclose(metrics["learning_rate"], np.mean(rates), rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-5), state.params.network, now.network)


def test_a_minibatch_without_taught_rows_leaves_the_step_size() -> None:
    agent = ppo.make(CONFIG, SPEC, FLAT)
    rules = learner.make(RULE, agent, types.LOCAL)
    state = rules.init(_params(agent))
    for valid, expected in ((0.0, 1.0), (5.0, 1 / 1.5)):
        sums = jax.tree.map(jnp.ones_like, state.params.network)
        gradient = types.Gradient(sums, jnp.float32(0), jnp.float32(valid), {"approx_kl": jnp.float32(1)}, {}, ())  # type: ignore[arg-type]
        after, metrics = rules.apply(state, gradient, jnp.float32(0))
        np.testing.assert_allclose(after.pace, expected, rtol=1e-6)
        np.testing.assert_allclose(metrics["learning_rate"], (valid > 0) * RULE.learning_rate * expected, rtol=1e-6)


def test_all_devices_follow_the_divergence_of_all_rows() -> None:
    agent = ppo.make(ppo.Config(adapt_learning_rate=True, kl_target=3e-4), SPEC, FLAT)
    params, sample = sampled(agent)
    rules = learner.make(RULE, agent, meshes.AXIS)

    def update(steps: Any, weights: Any) -> Any:
        rows = types.Unroll(jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), steps), agent.init_carry(len(weights)))
        state, _, metrics = rules.update(rules.init(params), types.Sample(rows, (), weights), jax.random.key(5), 0.0)
        return state.pace, metrics["learning_rate"]

    steps = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0)[None], sample.sequences.steps)
    found = []
    for count in (1, 2, 3):
        mesh, each = meshes.make(jax.devices()[:count], 1), (meshes.PER_SEED, meshes.PER_SEED)
        mapped = jax.jit(meshes.device_map(update, mesh, (meshes.COLUMNS, meshes.COLUMNS), each))
        found.append([float(x[0]) for x in mapped(steps, sample.weights[None])])
    assert found[0][0] != 1.0
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-5)


@pytest.mark.slow
def test_each_seed_has_its_own_step_size_and_is_the_seed_alone() -> None:
    both = conftest.Small("ppo", "toy:walk", 1, {**SETTINGS, "num_seeds": 2}).run(4)
    assert both.state.learner.pace.shape == (2,)
    for seed in (0, 1):
        alone = conftest.Small("ppo", "toy:walk", 1, {**SETTINGS, "seed": seed}).run(4)
        np.testing.assert_allclose(alone.state.learner.pace[0], both.state.learner.pace[seed], rtol=1e-6)
    assert (np.asarray(both.state.learner.pace) != 1.0).all()
    assert (np.asarray(both.metrics.learner["learning_rate"]) > 0).all()


@pytest.mark.slow
def test_a_member_of_a_sweep_has_the_step_sizes_of_the_run_alone() -> None:
    text = "learner.learning_rate=0.001,0.003;agent.kl_target=0.0001,0.01"
    swept = conftest.Small("ppo", "toy:walk", 1, {**SETTINGS, "sweep": text}).run(3)
    alone = conftest.Small("ppo", "toy:walk", 1, {**SETTINGS, "learner.learning_rate": 0.003, "agent.kl_target": 0.01})
    np.testing.assert_allclose(swept.state.learner.pace[3], alone.run(3).state.learner.pace[0], rtol=1e-5)
    assert len(set(np.asarray(swept.state.learner.pace).tolist())) > 1


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["anakin", "sebulba"])
def test_a_run_cut_in_two_is_the_run_in_one_piece(layout: str, tmp_path: pathlib.Path) -> None:
    def make() -> conftest.Small:
        return conftest.Small("ppo", "toy:walk", 1, {**SETTINGS, "layout": layout})

    whole, first = make().run(3).run(3), make().run(3)
    second = first.handed_to(make(), tmp_path).run(3)
    assert float(first.state.learner.pace[0]) != 1.0
    for x, y in zip(jax.tree.leaves(whole.state.learner), jax.tree.leaves(second.state.learner), strict=True):
        np.testing.assert_array_equal(x, y)
    for run in (whole, second):
        run.layout.close()


@pytest.mark.parametrize("layout", ["anakin", "async_gradient"])
def test_one_step_per_unroll_is_refused(layout: str) -> None:
    once = {"learner.epochs": 1, "learner.minibatches": 1} if layout == "anakin" else {}
    with conftest.refused("--agent.adapt_learning_rate=true: ", "--learner.epochs", "--layout=async_gradient"):
        jaxrl_dist.make("ppo", "toy:walk", settings={"agent.adapt_learning_rate": True, "layout": layout, **once})
