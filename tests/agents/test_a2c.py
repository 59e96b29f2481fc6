"""A2C: loss and gradient against loops in float64, and whose rows it takes."""

import functools
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import calls
from oracles import a2c as oracle
from oracles import call, differences

from jaxrl_dist import networks, types
from jaxrl_dist.agents import a2c, impala, ppo
from jaxrl_dist.systems import catalogue, training_flags

A, D, T, B = 3, 4, 9, 6
SPEC = types.EnvironmentSpec("toy:x", jax.ShapeDtypeStruct((D,), jnp.float32), types.DiscreteSpace(A), "classic")
BOX = SPEC._replace(action=types.BoxSpace((2,), -1.0, 1.0))
FLAT = networks.Config(torso="mlp", hidden_sizes=(8,))
LSTM = networks.Config(torso="mlp", hidden_sizes=(8,), core="lstm", core_size=6)
COSTS = {"discount": 0.9, "value_cost": 0.7, "entropy_cost": 0.2}


def _played(agent: Any, params: Any, seed: int = 0, before: int = 3) -> types.Unroll:
    """Plays random observations in B columns, of which the first is truncated and the second terminates midway."""
    rng = np.random.default_rng(seed)
    length = before + T + 1
    step_type = np.full((length, B), types.MID, np.int8)
    last = rng.random((length, B)) < 0.25
    last[:, :2] = False
    last[before + 4, :2] = True
    last[1:] &= ~last[:-1]
    step_type[last] = types.LAST
    step_type[1:][last[:-1]] = types.FIRST
    reward = np.where(step_type == types.FIRST, 0, rng.normal(size=(length, B)) * 2)
    terminated = last & (rng.random((length, B)) < 0.5)
    terminated[:, :2] = last[:, :2] & np.array([False, True])
    floats = (jnp.asarray(x, jnp.float32) for x in (reward, 1 - terminated, rng.normal(size=(length, B, D))))
    timestep = types.TimeStep(jnp.asarray(step_type), *floats, ())
    act = jax.jit(functools.partial(calls.act, agent, params, exploration=jnp.zeros(B)))
    carry, rows, carries = agent.init_carry(B), [], []
    for t in range(length):
        one = jax.tree.map(lambda x, t=t: x[t], timestep)
        carries.append(carry)
        output = act(carry=carry, timestep=one, key=jax.random.key(t))
        carry = output.carry
        rows.append(types.Step(one, output.action, output.extras, jnp.zeros(B, jnp.int32)))
    return types.Unroll(jax.tree.map(lambda *x: jnp.stack(x[before:]), *rows), carries[before])


def _params(agent: Any) -> types.Params:
    """Returns parameters whose policy is far from uniform, and whose free deviations are not 1."""
    params = agent.init(jax.random.key(1))
    noise = np.random.default_rng(5)
    return params._replace(
        network=jax.tree.map(lambda x: x + jnp.asarray(noise.normal(size=x.shape, scale=0.5), x.dtype), params.network)
    )


def _learn(agent: Any, params: types.Params, sequences: types.Unroll) -> types.LossOutput:
    batch = calls.prepare(agent, params, sequences)
    return calls.loss(agent, params, (), batch, jax.random.key(0))


CASES: dict[str, dict[str, Any]] = {
    "own": {},
    "traces": {"gae_lambda": 0.7, "real": True},
    "one step": {"gae_lambda": 0.0, "core": "frame_stack"},
    "rewards": {"clip_rewards": 0.5, "reward_scale": 0.3, "core": "lstm"},
    "epsilon": {"correction_epsilon": 0.3},
    "squashed": {"real": True, "distribution": "tanh_gaussian"},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_paper(name: str) -> None:
    """Values and advantages are those of the parameters that acted, of which the gradient is taken."""
    made = call.make("a2c", **{**COSTS, **CASES[name]})
    s, now = made.settings, call.params(made, 1)
    rows = call.rows(made, seed=7, length=7, columns=4)
    found = call.learn(made, rows, now)
    if rows["squashed"]:
        rows["draw"] = found.draws[0].reshape(6, 4, -1)
    estimates = oracle.estimate(now, rows, s)
    costs = {"policy_loss": 1.0, "value_loss": s["value_cost"], "entropy": -s["entropy_cost"]}

    def objective(params: dict[str, Any]) -> float:
        terms = oracle.terms(params, rows, estimates, s)
        return sum(cost * x for key, cost in costs.items() for x in terms[key].values())

    terms = oracle.terms(now, rows, estimates, s)
    assert found.valid == len(estimates["target"]) < 6 * 4 and found.maxima == {}
    assert found.loss == pytest.approx(objective(now), rel=1e-6)
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in terms.items()}, rel=1e-6)
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=1e-6, atol=1e-6)
    assert min(np.abs(part).max() for part in differences.leaves(gradient)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("network", [FLAT, LSTM], ids=["flat", "lstm"])
def test_an_episode_s_end_splits_an_unroll_in_two(network: networks.Config) -> None:
    """The first column ends at row 4: its gradient is the sum of those of rows 0 to 4 and of rows 5 to T."""
    agent = a2c.make(a2c.Config(**COSTS), SPEC, network)
    params = _params(agent)
    sequences = jax.tree.map(lambda x: x, _played(agent, params))
    zeros = jax.tree.map(jnp.zeros_like, sequences.carry)
    parts = [
        types.Unroll(jax.tree.map(lambda x: x[:5], sequences.steps), sequences.carry),
        types.Unroll(jax.tree.map(lambda x: x[5:], sequences.steps), zeros),
    ]

    def total(unroll: types.Unroll, network: Any) -> jax.Array:
        one = types.Unroll(jax.tree.map(lambda x: x[:, :1], unroll.steps), jax.tree.map(lambda x: x[:1], unroll.carry))
        batch = calls.prepare(agent, params, one)
        output = calls.loss(agent, params._replace(network=network), (), batch, jax.random.key(0), jnp.float32(0))
        return output.loss.sum()

    whole, first, second = (jax.grad(functools.partial(total, x))(params.network) for x in (sequences, *parts))
    for a, b, c in zip(*map(jax.tree.leaves, (whole, first, second)), strict=True):
        np.testing.assert_allclose(a, b + c, rtol=2e-4, atol=2e-5)


def test_acting_remembers_no_more_than_learning_needs() -> None:
    agent = a2c.make(a2c.Config(), SPEC, FLAT)
    squashed = a2c.make(a2c.Config(distribution="tanh_gaussian"), BOX, FLAT)
    assert jax.tree.leaves(_played(agent, agent.init(jax.random.key(0))).steps.extras) == []
    (sample,) = jax.tree.leaves(_played(squashed, squashed.init(jax.random.key(0))).steps.extras)
    assert sample.shape == (T + 1, B, 2)


def test_rows_of_another_policy_are_refused(train: conftest.Train) -> None:
    for settings, flag in (
        ({"layout": "sebulba", "layout.policy_lag": "1"}, "--layout.policy_lag=1"),
        ({"layout": "sebulba", "layout.policy_lag": "free"}, "--layout.policy_lag=free"),
        ({"learner.epochs": 2}, "--learner.epochs=2"),
        ({"learner.minibatches": 2}, "--learner.minibatches=2"),
    ):
        with conftest.refused(flag):
            train("a2c", **settings)


@pytest.mark.slow
def test_ga3c_learns_from_rows_of_older_policies(train: conftest.Train) -> None:
    """One loop acts on whatever is ready, and rows may be old; without ε that is refused."""
    settings = {"layout.ready_envs": 2}
    run = train("ga3c", folder="run", **settings)
    assert run.summary["inference_batch_mean"] == 2 and run.summary["learner_steps"] == 10
    assert run.summary["policy_lag_p99"] > 0
    off = {**settings, "agent.correction_epsilon": 0.0}
    with conftest.refused("--layout.policy_lag=free"):
        train("ga3c", folder="off", **off)


def test_each_layout_gets_what_the_policy_s_own_rows_need() -> None:
    assert "layout.policy_lag" not in catalogue.resolved({"system": "a2c", "layout": "anakin"}, "classic").settings
    resolved = catalogue.resolved({"system": "a2c", "layout": "sebulba"}, "classic")
    assert resolved["layout.policy_lag"] == "0"
    assert resolved.origins["layout.policy_lag"].startswith("paper: Mnih et al. 2016")
    assert "--layout.policy_lag=0\n" in training_flags.parse(["--system=a2c", "--layout=sebulba", "--help"]).text
    assert catalogue.resolved({"system": "impala", "layout": "sebulba"}, "classic")["layout.policy_lag"] == "1"


@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_rows_are_seen_by_the_statistics_that_they_were_acted_with(name: str) -> None:
    """Statistics that moved since a row was acted change none of its probabilities, as its observation is stored."""
    module = {"ppo": ppo, "impala": impala}[name]
    agent = module.make(module.Config(normalise_observations=True), SPEC, FLAT)
    acted = _params(agent)
    acted = agent.adapt(acted, _played(agent, acted, seed=3), {}, (), types.LOCAL)
    sequences = _played(agent, acted)
    newer = agent.adapt(acted, _played(agent, acted, seed=4), {}, (), types.LOCAL)
    old, new = (params.statistics.observation.mean for params in (acted, newer))
    assert np.abs(np.asarray(old) - np.asarray(new)).max() > 1e-3
    output = _learn(agent, newer, sequences)
    if name == "ppo":
        np.testing.assert_allclose(output.metrics["ratio_deviation"], 0.0, atol=1e-6)
    else:
        np.testing.assert_allclose(output.metrics["importance_weight"].sum(), output.valid.sum(), rtol=1e-6)


@pytest.mark.parametrize(("low", "high"), [([-1.0, -2.0], 1.0), (-1.0, [1.0, 3.0])])
def test_a_squashed_policy_is_refused_where_any_action_has_another_range(low: Any, high: Any) -> None:
    spec = SPEC._replace(action=types.BoxSpace((2,), np.array(low), np.array(high)))
    with conftest.refused("--agent.distribution=tanh_gaussian", "gaussian"):
        a2c.make(a2c.Config(distribution="tanh_gaussian"), spec, FLAT)


@pytest.mark.parametrize(
    ("action", "distribution"),
    [
        (types.DiscreteSpace(A), "gaussian"),
        (types.MultiDiscreteSpace((2, 3)), "gaussian"),
        (types.BoxSpace((2,), -1.0, 1.0), "gaussian"),
        (types.BoxSpace((2,), -1.0, 1.0), "tanh_gaussian"),
    ],
)
def test_values_begin_at_size_one_and_policies_nearly_the_same_everywhere(action: Any, distribution: str) -> None:
    network = networks.Config(torso="mlp", hidden_sizes=(16,), orthogonal=True)
    agent = a2c.make(a2c.Config(distribution=distribution), SPEC._replace(action=action), network)
    first = agent.init(jax.random.key(0)).network
    for name, gain in (("policy", 0.01), ("value", 1.0)):
        kernel = first[f"outputs_{name}"]["Dense_0"]["kernel"]
        np.testing.assert_allclose(np.linalg.svd(kernel, compute_uv=False), gain, rtol=1e-4)
