"""Illegal actions have probability 0 and value −∞, in acting, targets and entropy; vectors of choices are products."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from oracles import call

from jaxrl_dist import envs, networks, types
from jaxrl_dist.agents import dqn, ppo
from jaxrl_dist.agents.shared import action_values, actor_critic
from jaxrl_dist.numeric import distributions

KEY = jax.random.key(0)
SIZES = (3, 1, 4)


def logits(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, sum(SIZES))).astype(np.float32)


def joint(row: np.ndarray) -> np.ndarray:
    """Probabilities of all combinations, by multiplying those of each number."""
    parts = [np.exp(x) / np.exp(x).sum() for x in np.split(row.astype(np.float64), np.cumsum(SIZES)[:-1])]
    return np.einsum("i,j,k->ijk", *parts)


def test_a_product_of_categoricals_is_the_joint_distribution() -> None:
    row, other = logits(1), logits(1, seed=1)
    policy, rival = (distributions.Categoricals.of(jnp.asarray(x), SIZES) for x in (row, other))
    p, q = joint(row[0]), joint(other[0])
    for action in np.ndindex(*SIZES):
        found = policy.log_prob(jnp.asarray([action]))
        np.testing.assert_allclose(found, [np.log(p[action])], rtol=1e-5)
    np.testing.assert_allclose(policy.entropy(KEY), [-(p * np.log(p)).sum()], rtol=1e-5)
    np.testing.assert_allclose(policy.kl(rival), [(p * np.log(p / q)).sum()], rtol=1e-4)
    np.testing.assert_array_equal(policy.mode(), [np.unravel_index(p.argmax(), SIZES)])
    assert not policy.squashes
    rows = 40_000
    many = distributions.Categoricals.of(jnp.broadcast_to(row, (rows, sum(SIZES))), SIZES)
    drawn = np.asarray(jax.jit(many.sample)(KEY))
    assert drawn.shape == (rows, 3) and drawn.dtype == np.int32
    np.testing.assert_array_equal(many.action(drawn), drawn)
    counts = np.zeros(SIZES)
    np.add.at(counts, tuple(drawn.T), 1)
    # Also dependence between the numbers, as of equal keys, would show.
    assert scipy.stats.chisquare(counts.ravel(), p.ravel() * rows).pvalue > 1e-3


def test_masks_take_illegal_actions_away_and_nothing_where_none_is_legal() -> None:
    x = jnp.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    legal = jnp.asarray([[True, False], [False, True], [False, False]])
    np.testing.assert_array_equal(distributions.masked(x, legal), [[1, -np.inf], [-np.inf, 4], [5, 6]])


@pytest.mark.parametrize("name", ["toy:choice", "toy:choices"])
def test_policies_mask_each_number_by_itself(name: str) -> None:
    spec = envs.make(name).spec
    make, heads = actor_critic.policy_head(spec, "gaussian")
    size = heads[0].size
    rng = np.random.default_rng(0)
    mask = rng.random((50, size)) < 0.5
    mask[0] = False
    outputs = {"policy": jnp.asarray(rng.normal(size=(50, size)), jnp.float32), "mask": jnp.asarray(mask)}
    policy = make(outputs)
    bounds = np.cumsum(np.ravel(spec.action.num_values))[:-1]
    for key in jax.random.split(KEY, 20):
        action = np.asarray(policy.sample(key)).reshape(50, -1)
        for k, part in enumerate(np.split(mask, bounds, 1)):
            assert (part[np.arange(50), action[:, k]] | ~part.any(1)).all()
    assert np.isfinite(policy.entropy(KEY)).all()
    entropy = np.asarray(policy.entropy(KEY))
    for row in range(50):
        wanted = 0.0
        for part, own in zip(
            np.split(mask[row], bounds), np.split(np.asarray(outputs["policy"])[row], bounds), strict=True
        ):
            chosen = own[part] if part.any() else own
            p = np.exp(chosen.astype(np.float64)) / np.exp(chosen.astype(np.float64)).sum()
            wanted -= (p * np.log(p)).sum()
        np.testing.assert_allclose(entropy[row], wanted, rtol=1e-4, atol=1e-6)


def test_random_actions_are_uniform_over_the_legal_ones() -> None:
    q = np.array([0.3, -np.inf, 2.0, -np.inf, 1.9], np.float32)
    rows, epsilon = 30_000, 0.6
    draw = jax.jit(
        lambda key: action_values.epsilon_greedy(
            jnp.broadcast_to(q, (rows, 5)), key, jnp.full(rows, epsilon), some_illegal=True
        )
    )
    counts = np.bincount(np.asarray(draw(jax.random.key(3))), minlength=5)
    assert counts[1] == counts[3] == 0
    wanted = rows * np.array([epsilon / 3, 1 - epsilon + epsilon / 3, epsilon / 3])
    assert scipy.stats.chisquare(counts[[0, 2, 4]], wanted).pvalue > 1e-3


def test_where_all_are_legal_random_actions_are_those_without_a_mask() -> None:
    q, epsilon = jnp.asarray(np.random.default_rng(0).normal(size=(400, 7)), jnp.float32), jnp.full(400, 0.7)
    plain, masked = (action_values.epsilon_greedy(q, KEY, epsilon, some_illegal=some) for some in (False, True))
    np.testing.assert_array_equal(plain, masked)


def test_means_of_atoms_are_masked_after_the_mean() -> None:
    rng, support = np.random.default_rng(0), np.array([-1.0, 0.0, 2.0], np.float32)
    outputs = {"q": jnp.asarray(rng.normal(size=(4, 6)), jnp.float32), "mask": jnp.asarray([[True, False]] * 4)}
    q = action_values.join(outputs, 2)
    assert q.shape == (4, 2, 3) and np.isfinite(q).all()
    found = np.asarray(action_values.means(q, support, outputs))
    logits = np.asarray(outputs["q"], np.float64).reshape(4, 2, 3)
    wanted = (np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)) @ support
    np.testing.assert_allclose(found[:, 0], wanted[:, 0], rtol=1e-5)
    assert (found[:, 1] == -np.inf).all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"double": True},
        {"num_atoms": 3},
        {"num_atoms": 3, "double": True},
        {"num_atoms": 3, "distribution": "quantile", "double": True},
        {"temperature": 0.5},
        {"num_atoms": 3, "distribution": "quantile", "temperature": 0.5},
    ],
)
def test_targets_never_bootstrap_from_illegal_actions(changes: dict[str, Any]) -> None:
    """The value of an action that is illegal in the next state changes neither loss nor gradient."""
    spec = envs.make("toy:choice").spec
    config = dqn.Config(value_low=-1.0, value_high=7.0, **changes)
    atoms = config.num_atoms
    agent = dqn.make(config, spec, networks.Config(torso="mlp", hidden_sizes=(8,)))
    params = agent.init(jax.random.key(1))
    rng = np.random.default_rng(0)
    observation = jax.tree.map(lambda x: jnp.asarray(rng.integers(0, 2, (2, 5, *x.shape)), x.dtype), spec.observation)
    legal = np.ones((2, 5, 6), bool)
    legal[1, :, 2:] = False
    observation["action_mask"] = jnp.asarray(legal)
    row = jnp.ones((2, 5))
    timestep = types.TimeStep(jnp.full((2, 5), types.MID, jnp.int8), row, row, observation, ())
    steps = types.Step(timestep, jnp.zeros((2, 5), jnp.int32), (), row)
    carry = agent.init_carry(5)
    batch = agent.prepare(params, types.LossInputs(types.Unroll(steps, carry), (), KEY, row[0, 0], types.LOCAL))

    def loss(raised: float) -> np.ndarray:
        # All values of actions 2 to 5 are raised; the taken action is 0.
        head = dict(params.network["outputs_q"]["Dense_0"])
        bias = np.zeros((6, atoms), np.float32)
        bias[2:, -1] = raised
        head["bias"] = head["bias"] + bias.ravel()
        network = {**params.network, "outputs_q": {"Dense_0": head}}
        inputs = types.LossInputs(batch, network, KEY, row[0, 0], types.LOCAL)
        return np.asarray(agent.loss(params._replace(network=network), inputs).loss)

    np.testing.assert_array_equal(loss(0.0), loss(50.0))
    other = batch._replace(next_inputs={**batch.next_inputs, "action_mask": jnp.ones((5, 6), bool)})
    batch = other
    assert not np.allclose(loss(0.0), loss(50.0))


def test_the_loss_of_a_policy_that_is_masked_is_that_of_the_legal_actions_alone() -> None:
    """Log-probabilities and entropy of masked logits equal those of a smaller policy over the legal actions."""
    made = call.make("ppo")
    assert made is not None
    legal = np.array([True, False, True, True])
    x = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
    few = distributions.Categorical(jnp.asarray(x[:, legal]))

    def both(logits: jnp.ndarray) -> jnp.ndarray:
        masked = distributions.Categorical(distributions.masked(logits, jnp.broadcast_to(legal, (6, 4))))
        return masked.log_prob(jnp.full(6, 2)).sum() + masked.entropy(KEY).sum()

    def smaller(logits: jnp.ndarray) -> jnp.ndarray:
        policy = distributions.Categorical(logits)
        return policy.log_prob(jnp.full(6, 1)).sum() + policy.entropy(KEY).sum()

    value, gradient = jax.value_and_grad(both)(jnp.asarray(x))
    wanted, of_few = jax.value_and_grad(smaller)(few.logits)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(gradient[:, legal], of_few, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(gradient[:, ~legal], 0.0)


def test_rows_that_nobody_played_have_finite_losses() -> None:
    """Their masks, and all else, are zeros."""
    spec = envs.make("toy:choice").spec
    for module in (ppo, dqn):
        agent = module.make(module.Config(), spec, networks.Config(torso="mlp", hidden_sizes=(8,)))
        params = agent.init(KEY)
        zeros = jax.tree.map(lambda x: jnp.zeros((2, 3, *x.shape), x.dtype), spec.observation)
        row = jnp.zeros((2, 3))
        timestep = types.TimeStep(jnp.full((2, 3), types.LAST, jnp.int8), row, row, zeros, ())
        extras = actor_critic.Extras(row, (), ()) if module is ppo else ()
        steps = types.Step(timestep, row.astype(jnp.int32), extras, row)
        unroll = types.Unroll(steps, agent.init_carry(3))
        target = agent.target(params.network)
        inputs = types.LossInputs(unroll, target, KEY, row[0, 0], types.LOCAL)
        batch = agent.prepare(params, inputs)

        def mean(network, agent=agent, params=params, inputs=inputs, batch=batch):
            return agent.loss(params._replace(network=network), inputs._replace(batch=batch)).loss.mean()

        value, gradient = jax.value_and_grad(mean)(params.network)
        assert np.isfinite(value) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_values_of_actions_have_no_inputs_of_a_policy() -> None:
    import conftest

    network = networks.Config(torso="mlp", policy_inputs=("goal",))
    with conftest.refused("--network.policy_inputs=goal", "--network.value_inputs=goal"):
        dqn.make(dqn.Config(), envs.make("toy:choice").spec, network)
    with conftest.refused("--env=toy:choices", "vectors of choices"):
        dqn.make(dqn.Config(), envs.make("toy:choices").spec, networks.Config(torso="mlp"))
