"""A2C: its loss against a slow loop in float64, its gradient as PPO's without clipping, and whose rows it takes."""

import functools
import itertools
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from fakes import calls

from jaxrl_dist import networks, types
from jaxrl_dist.agents import a2c, impala, ppo
from jaxrl_dist.learning import learner
from jaxrl_dist.systems import catalogue, training_flags

A, D, T, B = 3, 4, 9, 6
SPEC = types.EnvironmentSpec("toy:x", jax.ShapeDtypeStruct((D,), jnp.float32), types.DiscreteSpace(A), "classic")
BOX = SPEC._replace(action=types.BoxSpace((2,), -1.0, 1.0))
FLAT = networks.Config(torso="mlp", hidden_sizes=(8,))
LSTM = networks.Config(torso="mlp", hidden_sizes=(8,), core="lstm", core_size=6)
STACK = networks.Config(torso="mlp", hidden_sizes=(8,), core="frame_stack", num_frames=2)
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


def _stepped(network: networks.Config, spec: Any, params: types.Params, sequences: types.Unroll) -> dict[str, Any]:
    """Returns the outputs f64 [T + 1, B, ...], one row at a time from the state before the unroll."""
    heads = [networks.Head("policy", A if spec is SPEC else 2, 0.01), networks.Head("value", 1, 1.0)]
    if spec is BOX:
        heads.insert(1, networks.Head("log_std", 2, 0.0, depends_on_input=False))
    net, core, rows = networks.make(network, spec, heads), sequences.carry.core, []
    step = jax.jit(net.step)
    for t in range(T + 1):
        now = jax.tree.map(lambda x, t=t: x[t], sequences.steps.timestep)
        outputs, core = step(params.network, core, now.observation, now.step_type == types.FIRST)
        rows.append(outputs)
    return jax.tree.map(lambda *x: np.asarray(jnp.stack(x), np.float64), *rows)


def _log_prob_and_entropy(outputs: dict[str, Any], action: np.ndarray) -> tuple[float, float]:
    if "log_std" in outputs:
        mean, std = outputs["policy"], np.exp(outputs["log_std"])
        density = np.exp(-0.5 * ((action - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
        return np.log(density).sum(), 0.5 * np.log(2 * np.pi * np.e * std**2).sum()
    probabilities = np.exp(outputs["policy"]) / np.exp(outputs["policy"]).sum()
    return np.log(probabilities[action]), -(probabilities * np.log(probabilities)).sum()


def _advantage(settings: a2c.Config, rows: Any, value: np.ndarray, t: int) -> float:
    """Mixes the advantages of 1, 2, … steps up to where the episode or the unroll ends, by (1 − λ)λ^(n − 1)."""
    step_type, reward, discount = rows
    end = t + 1
    while end < T and step_type[end] != types.LAST:
        end += 1
    advantages = []
    for stop in range(t + 1, end + 1):
        total, factor = -value[t], 1.0
        for i in range(t + 1, stop + 1):
            total += factor * reward[i]
            factor *= settings.discount * discount[i]
        advantages.append(total + factor * value[stop])
    weights = [(1 - settings.gae_lambda) * settings.gae_lambda**n for n in range(len(advantages) - 1)]
    # What is left goes to the longest.
    return float(np.dot([*weights, settings.gae_lambda ** (len(advantages) - 1)], advantages))


def _oracle(settings: a2c.Config, outputs: dict[str, Any], sequences: types.Unroll) -> dict[str, np.ndarray]:
    """Returns the loss and its terms f64 [T, B]; NaN in rows that teach nothing."""
    timestep, action = sequences.steps.timestep, np.asarray(sequences.steps.action)
    bound = settings.clip_rewards or np.inf
    reward = np.clip(np.asarray(timestep.reward, np.float64), -bound, bound)
    step_type, discount = np.asarray(timestep.step_type), np.asarray(timestep.discount)
    found = {name: np.full((T, B), np.nan) for name in ("loss", "policy_loss", "value_loss", "entropy")}
    for b in range(B):
        for t in range(T):
            if step_type[t, b] == types.LAST:
                continue
            rows = (step_type[:, b], reward[:, b], discount[:, b])
            advantage = _advantage(settings, rows, outputs["value"][:, b, 0], t)
            log_prob, entropy = _log_prob_and_entropy({k: v[t, b] for k, v in outputs.items()}, action[t, b])
            # The target is the value plus the advantage.
            log_prob = np.log(np.exp(log_prob) + settings.correction_epsilon)
            terms = (-log_prob * advantage, 0.5 * advantage**2, entropy)
            loss = terms[0] + settings.value_cost * terms[1] - settings.entropy_cost * terms[2]
            for name, term in zip(found, (loss, *terms), strict=True):
                found[name][t, b] = term
    return found


def _learn(agent: Any, params: types.Params, sequences: types.Unroll) -> types.LossOutput:
    batch = calls.prepare(agent, params, sequences)
    return calls.loss(agent, params, (), batch, jax.random.key(0))


@pytest.mark.parametrize(
    "changes", [{}, {"gae_lambda": 0.7}, {"gae_lambda": 0.0}, {"clip_rewards": 0.5}, {"correction_epsilon": 0.3}]
)
@pytest.mark.parametrize(
    ("network", "spec"), [(FLAT, SPEC), (STACK, SPEC), (LSTM, SPEC), (FLAT, BOX)], ids=["flat", "stack", "lstm", "box"]
)
def test_the_loss_is_that_of_a_slow_loop(network: networks.Config, spec: Any, changes: dict[str, float]) -> None:
    settings = a2c.Config(**{**COSTS, **changes})
    agent = a2c.make(settings, spec, network)
    params = _params(agent)
    sequences = _played(agent, params)
    output = _learn(agent, params, sequences)
    expected = _oracle(settings, _stepped(network, spec, params, sequences), sequences)
    got = {"loss": output.loss, **output.metrics}
    assert got.keys() == expected.keys() and output.maxima == {}
    for name, values in expected.items():
        # Items are rows in the order of time, or the columns of a recurrent network.
        items = np.nansum(values, 0) if agent.keeps_sequences else np.nan_to_num(values).reshape(-1)
        np.testing.assert_allclose(got[name], items, rtol=2e-4, atol=2e-5, err_msg=name)
    taught = ~np.isnan(expected["loss"])
    np.testing.assert_array_equal(output.valid, taught.sum(0) if agent.keeps_sequences else taught.reshape(-1))
    assert not taught[4, :2].any() and taught[3, :2].all()


AGENTS = {"flat": (FLAT, SPEC), "lstm": (LSTM, SPEC), "flat-box": (FLAT, BOX), "lstm-box": (LSTM, BOX)}


@pytest.mark.parametrize(("gae_lambda", "name"), marks.some(itertools.product([1.0, 0.8], AGENTS), slow={"1.0-lstm"}))
def test_the_gradient_is_that_of_ppo_without_clipping(gae_lambda: float, name: str) -> None:
    network, spec = AGENTS[name]
    """With the policy that acted the ratio is 1, and its gradient is that of the logarithm."""
    common = {**COSTS, "gae_lambda": gae_lambda, "clip_rewards": 1.0}
    off = {"clip_epsilon": 0.0, "clip_value": 0.0, "normalise_advantage": "none"}
    agents = [a2c.make(a2c.Config(**common), spec, network), ppo.make(ppo.Config(**common, **off), spec, network)]
    params = _params(agents[0])
    found = []
    for agent in agents:
        sequences = _played(agent, params)
        batch = calls.prepare(agent, params, sequences)
        rules = learner.make(learner.Config(), agent, types.LOCAL)
        weights = jnp.ones(len(batch.taught))
        inputs = types.LossInputs(batch, (), jax.random.key(0), jnp.float32(0), types.LOCAL)
        found.append(rules.gradients(params, inputs, weights))
    np.testing.assert_array_equal(found[0].valid, found[1].valid)
    for a, b in zip(*(jax.tree.leaves(gradient.sums) for gradient in found), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(found[0].sums)) > 0.1


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
        output = calls.loss(
            agent, params._replace(network=network), (), batch, jax.random.key(0), jnp.float32(0), types.LOCAL
        )
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


def test_epsilon_bounds_the_gradient_of_what_the_policy_no_longer_does() -> None:
    """Of an action of probability p, the logarithm's slope is p / (p + ε) of what it was: GA3C, section 5.2."""
    found = []
    for epsilon in (0.0, 0.2):
        agent = a2c.make(a2c.Config(correction_epsilon=epsilon, value_cost=0.0, entropy_cost=0.0), SPEC, FLAT)
        params = _params(agent)
        sequences = jax.tree.map(lambda x: x[:2, :1] if x.ndim > 1 else x[:1], _played(agent, params))
        batch = calls.prepare(agent, params, sequences)

        def loss(network: Any, agent: Any = agent, params: Any = params, batch: Any = batch) -> jax.Array:
            key, progress = jax.random.key(0), jnp.float32(0)
            return calls.loss(agent, params._replace(network=network), (), batch, key, progress).loss.sum()

        found.append(jax.grad(loss)(params.network))
        net = networks.make(FLAT, SPEC, (networks.Head("policy", A, 0.01), networks.Head("value", 1, 1.0)))
        outputs = networks.of_rows(net, params.network, batch.inputs)
        probability = jax.nn.softmax(outputs["policy"])[0, batch.sample[0]]
    for plain, bounded in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(bounded, plain * probability / (probability + 0.2), rtol=1e-4, atol=1e-6)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(found[0])) > 0.01


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
    assert catalogue.resolved({"system": "ppo", "layout": "sebulba"}, "classic")["layout.policy_lag"] == "1"


@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_rows_are_seen_by_the_statistics_that_they_were_acted_with(name: str) -> None:
    """Statistics that moved since a row was acted change none of its probabilities, as its observation is stored."""
    module = {"ppo": ppo, "impala": impala}[name]
    agent = module.make(module.Config(normalise_observations=True), SPEC, FLAT)
    acted = _params(agent)
    acted = agent.adapt(acted, _played(agent, acted, seed=3), {}, types.LOCAL)
    sequences = _played(agent, acted)
    newer = agent.adapt(acted, _played(agent, acted, seed=4), {}, types.LOCAL)
    old, new = (params.statistics.observation.mean for params in (acted, newer))
    assert np.abs(np.asarray(old) - np.asarray(new)).max() > 1e-3
    output = _learn(agent, newer, sequences)
    if name == "ppo":
        np.testing.assert_allclose(output.metrics["ratio_deviation"], 0.0, atol=1e-6)
    else:
        np.testing.assert_allclose(output.metrics["importance_weight"].sum(), output.valid.sum(), rtol=1e-6)
