"""The DQN family: losses against loops in float64 and rlax, noisy layers, the atoms' range, the actors' own errors."""

import functools

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from fakes import calls, played
from oracles import call, differences
from oracles import dqn as dqn_oracle

from jaxrl_dist import networks, types
from jaxrl_dist.agents import dqn
from jaxrl_dist.agents.shared import action_values, transitions

A, D, N = 3, 5, 40
NETWORK = networks.Config(torso="mlp", hidden_sizes=(8,), head_size=6, activation="relu")
SPEC = types.EnvironmentSpec("toy:x", jax.ShapeDtypeStruct((D,), jnp.float32), types.DiscreteSpace(A), "classic")


def _batch(seed=0):
    rng = np.random.default_rng(seed)
    normal = functools.partial(rng.normal, size=N)
    taught = (rng.random(N) < 0.8).astype(np.float32)
    rows = (rng.normal(size=(N, D)), rng.integers(0, A, N), normal(), rng.random(N), rng.normal(size=(N, D)), taught)
    return transitions.Batch(*(jnp.asarray(x, jnp.int32 if x.dtype == np.int64 else jnp.float32) for x in rows))


def _values(settings, params, inputs):
    net = networks.make(NETWORK, SPEC, action_values.heads(A, settings.dueling, settings.num_atoms))
    return action_values.join(networks.of_rows(net, params.network, inputs), A)


SETTINGS = {"discount": 0.9, "error_clip": 0.0}
ATOMS = {"num_atoms": 5, "value_low": -2.0, "value_high": 2.0}
QUANTILES = {"distribution": "quantile", "num_atoms": 4}
CASES = {
    "squared": {},
    "clipped": {"error_clip": 1.0, "clip_rewards": 0.5, "reward_scale": 0.3},
    "n-step double": {"n_step": 3, "double": True},
    "dueling stack": {"dueling": True, "core": "frame_stack", "n_step": 2},
    "atoms": {**ATOMS},
    "noisy double": {"noise": 0.5, "double": True},
    "rainbow": {**ATOMS, "noise": 0.5, "double": True, "dueling": True, "n_step": 3},
    "quantiles": {**QUANTILES, "error_clip": 1.0},
    "soft": {"temperature": 0.5, "n_step": 2},
    "munchausen": {"temperature": 0.3, "munchausen": 0.9, "dueling": True, "noise": 0.5},
    "munchausen of quantiles": {**QUANTILES, "temperature": 0.3, "munchausen": 0.5, "log_policy_low": -0.4},
    "quantiles without a clip": {**QUANTILES, "double": True, "dueling": True, "n_step": 3, "noise": 0.5},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_papers(name):
    made = call.make("dqn", **{**SETTINGS, **CASES[name]})
    s, context = made.settings, made.agent.context
    now, target = call.params(made, 1), call.params(made, 2)
    rows = call.rows(made, seed=3, length=context + 1 + s["n_step"], columns=16)
    weights = np.random.default_rng(0).uniform(0.2, 1.0, 16)
    found = call.learn(made, rows, now, target=target, weights=weights)
    atoms = np.linspace(-2.0, 2.0, 5) if s["num_atoms"] == 5 else None
    noise = found.draws[0] if s["noise"] else (None, None, None)
    wanted = dqn_oracle.targets(now, target, rows, s, atoms, context, noise)

    def terms(params):
        return dqn_oracle.terms(params, rows, wanted, s, atoms, context, noise[0])

    def objective(params):
        return sum(weights[b] * x for b, x in terms(params)["loss"].items())

    # Factors of noisy layers are f32.
    rtol = 1e-6 if s["noise"] else 1e-9
    expected = terms(now)
    assert found.valid == len(wanted) < 16
    assert found.loss == pytest.approx(objective(now), rel=rtol)
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in expected.items()}, rel=rtol)
    np.testing.assert_allclose(found.priorities, [expected["td_error"].get(b, 0.0) for b in range(16)], rtol=rtol)
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=1e-6, atol=1e-7)
    assert min(np.abs(part).max() for part in differences.leaves(gradient)) > 1e-3
    if s["noise"]:
        assert len({tuple(draw) for draw in noise}) == 3


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(("dueling", "error_clip"), [(False, 0.0), (True, 0.0), (True, 1.0)])
def test_the_loss_is_that_of_rlax(double, dueling, error_clip):
    settings = dqn.Config(double=double, dueling=dueling, error_clip=error_clip)
    agent = dqn.make(settings, SPEC, NETWORK)
    params, target, batch = agent.init(jax.random.key(0)), agent.init(jax.random.key(1)), _batch()
    output = calls.loss(agent, params, target.network, batch, jax.random.key(0))
    q_tm1, q_t = _values(settings, params, batch.inputs), _values(settings, target, batch.next_inputs)
    chooser = _values(settings, params, batch.next_inputs) if double else q_t
    arguments = (q_tm1, batch.action, batch.reward, batch.discount, q_t, chooser)
    error = np.asarray(jax.vmap(rlax.double_q_learning)(*arguments)) * np.asarray(batch.taught)
    np.testing.assert_allclose(output.priority, np.abs(error), rtol=1e-4, atol=1e-6)
    # Quadratic up to the clip and linear beyond it (Mnih et al. 2015, methods).
    size = np.abs(error)
    loss = np.where(size <= error_clip, 0.5 * size**2, error_clip * (size - 0.5 * error_clip))
    np.testing.assert_allclose(output.loss, loss if error_clip else 0.5 * size**2, rtol=1e-4, atol=1e-6)
    assert (size > 1.0).sum() > 5 and ((size > 0) & (size < 1.0)).sum() > 5


@pytest.mark.slow
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_the_loss_of_distributions_is_that_of_rlax_less_the_target_s_entropy(double, dueling):
    settings = dqn.Config(double=double, dueling=dueling, num_atoms=21, value_low=-2.0, value_high=2.0)
    agent = dqn.make(settings, SPEC, NETWORK)
    params, target, batch = agent.init(jax.random.key(0)), agent.init(jax.random.key(1)), _batch()
    # Spread out, so that no two distributions are nearly alike.
    params, target = (p._replace(network=jax.tree.map(lambda x: 3 * x, p.network)) for p in (params, target))
    support = jnp.linspace(-2.0, 2.0, 21)

    def objective(network):
        key = jax.random.key(0)
        return calls.loss(agent, params._replace(network=network), target.network, batch, key)

    def oracle(network):
        q_tm1 = _values(settings, params._replace(network=network), batch.inputs)
        q_t = _values(settings, target, batch.next_inputs)
        chooser = _values(settings, params, batch.next_inputs) if double else q_t
        chooser = jax.lax.stop_gradient(jax.nn.softmax(chooser) @ support)
        loss = jax.vmap(rlax.categorical_double_q_learning, in_axes=(None, 0, 0, 0, 0, None, 0, 0))
        return loss(support, q_tm1, batch.action, batch.reward, batch.discount, support, q_t, chooser) * batch.taught

    ours, theirs = (jax.grad(lambda n, f=f: f(n).sum())(params.network) for f in (lambda n: objective(n).loss, oracle))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    output = objective(params.network)
    gap = np.asarray(oracle(params.network) - output.loss)
    assert (np.asarray(output.loss) >= 0).all() and (gap >= -1e-5).all() and gap.max() <= np.log(21)
    np.testing.assert_array_equal(output.priority, output.loss)


def test_dueling_heads_add_up_to_a_value_and_centred_advantages():
    rng = np.random.default_rng(0)
    outputs = {"value": jnp.asarray(rng.normal(size=(4, 7))), "advantage": jnp.asarray(rng.normal(size=(4, A * 7)))}
    q = np.asarray(action_values.join(outputs, A))
    advantage = np.asarray(outputs["advantage"]).reshape(4, A, 7)
    expected = np.asarray(outputs["value"])[:, None] + advantage - advantage.mean(1, keepdims=True)
    np.testing.assert_allclose(q, expected, rtol=1e-5, atol=1e-6)
    assert action_values.join({"q": jnp.zeros((4, A))}, A).shape == (4, A)


@pytest.mark.parametrize("names", [("q",), ("value", "advantage")])
def test_values_of_actions_begin_at_size_one(names):
    network = networks.Config(torso="mlp", hidden_sizes=(16,), orthogonal=True)
    first = dqn.make(dqn.Config(dueling=len(names) == 2), SPEC, network).init(jax.random.key(0)).network
    for name in names:
        kernel = first[f"outputs_{name}"]["Dense_0"]["kernel"]
        np.testing.assert_allclose(np.linalg.svd(kernel, compute_uv=False), 1.0, rtol=1e-4)


def test_noise_has_the_moments_of_factorised_gaussians():
    """Over a linear head: variance E|ε_out| (Σ x² σ² E|ε_in| + σ_b²), mean that without noise (equations 10, 11)."""
    net = networks.make(networks.Config(torso="mlp", hidden_sizes=()), SPEC, (networks.Head("q", A, 1.0, noise=0.5),))
    params = net.init(jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=D), jnp.float32)
    count = 40_000
    rows = jnp.broadcast_to(x, (count, D))
    draws = net.draw_noise(jax.random.key(1), (count,))
    assert draws.shape == (count, D + A)
    empty = networks.Carry((), ())
    outputs, _ = net.step(params, empty, rows, jnp.zeros(count, bool), draws)
    q, plain = np.asarray(outputs["q"]), np.asarray(net.step(params, empty, rows[:1], jnp.zeros(1, bool))[0]["q"])
    sigma, mean_size = 0.5 / np.sqrt(D), np.sqrt(2 / np.pi)
    variance = mean_size * sigma**2 * (np.square(x).sum() * mean_size + 1)
    np.testing.assert_allclose(q.mean(0), plain[0], atol=5 * np.sqrt(variance / count))
    np.testing.assert_allclose(q.var(0), variance, rtol=0.1)
    # All rows of a batch that is learned from share one draw.
    shared = np.asarray(networks.of_rows(net, params, rows[:9], draws[0])["q"])
    np.testing.assert_allclose(shared, np.broadcast_to(q[0], shared.shape), rtol=1e-4, atol=1e-5)
    assert np.abs(shared[0] - plain[0]).max() > 1e-3
    bound = 1 / np.sqrt(D)
    layer = jax.tree.leaves_with_path(params)
    kernel = {jax.tree_util.keystr(path): leaf for path, leaf in layer}
    plain_kernel = next(leaf for name, leaf in kernel.items() if name.endswith("['kernel']"))
    assert np.abs(plain_kernel).max() <= bound and np.abs(plain_kernel).max() > 0.6 * bound
    np.testing.assert_allclose(next(v for k, v in kernel.items() if k.endswith("['kernel_deviation']")), sigma)


def test_noise_explores_in_acting_and_is_left_out_of_evaluation():
    agent = dqn.make(dqn.Config(noise=2.0, evaluation_epsilon=0.0), SPEC, NETWORK)
    params = agent.init(jax.random.key(0))
    rows = jnp.zeros(500)
    observation = jnp.broadcast_to(jax.random.normal(jax.random.key(3), (D,)), (500, D))
    timestep = types.TimeStep(jnp.ones(500, jnp.int8), rows, rows + 1, observation, ())
    carry = networks.Carry((), ())
    acted = calls.act(agent, params, carry, timestep, jax.random.key(1), jnp.zeros(500)).action
    assert len(set(acted.tolist())) > 1
    evaluated = [calls.evaluate(agent, params, carry, timestep, jax.random.key(seed)).action for seed in range(2)]
    assert len(set(np.concatenate(evaluated).tolist())) == 1


def test_the_ladder_of_epsilon_is_the_paper_s():
    agent = dqn.make(dqn.Config(exploration="ladder"), SPEC, NETWORK)
    epsilon = agent.exploration((), jnp.arange(8), 8, jnp.float32(0.3))
    np.testing.assert_allclose(epsilon, [0.4 ** (1 + 7 * i / 7) for i in range(8)], rtol=1e-5)
    np.testing.assert_allclose(agent.exploration((), jnp.arange(1), 1, jnp.float32(0.9)), [0.4], rtol=1e-6)


@pytest.mark.parametrize(
    ("reward_range", "time_limit", "changes", "expected"),
    [
        ((0.0, 1.0), 500, {}, (0.0, 100.0)),
        ((-1.0, 2.0), 0, {}, (-100.0, 200.0)),
        ((-1.0, 2.0), 0, {"clip_rewards": 1.0}, (-100.0, 100.0)),
        ((-1.0, 2.0), 0, {"clip_rewards": 1.0, "reward_scale": 0.5}, (-50.0, 50.0)),
        ((-16.0, -1.0), 100, {"discount": 1.0}, (-1600.0, 0.0)),
        ((-np.inf, np.inf), 0, {"value_low": -5.0, "value_high": 5.0}, (-5.0, 5.0)),
    ],
)
def test_atoms_span_what_can_be_returned(reward_range, time_limit, changes, expected):
    spec = SPEC._replace(reward_range=reward_range, time_limit=time_limit)
    support = transitions.support(dqn.Config(num_atoms=51, **changes), spec)
    np.testing.assert_allclose((support[0], support[-1]), expected, rtol=1e-5)
    assert support.shape == (51,)


@pytest.mark.parametrize("changes", [{}, {"value_low": 3.0, "value_high": 1.0}])
def test_atoms_without_a_range_are_refused(changes):
    with conftest.refused("--agent.value_low", "--agent.value_high"):
        dqn.make(dqn.Config(num_atoms=51, **changes), SPEC, NETWORK)


def test_without_a_discount_or_a_time_limit_the_range_that_is_told_is_no_nan():
    spec = SPEC._replace(reward_range=(0.0, 1.0), time_limit=0)
    with conftest.refused("from 0 to inf"):
        transitions.support(dqn.Config(num_atoms=51, discount=1.0), spec)


def test_quantiles_that_cannot_be_are_refused():
    with conftest.refused("--agent.distribution=quantile", "--agent.num_atoms"):
        dqn.make(dqn.Config(distribution="quantile"), SPEC, NETWORK)
    with conftest.refused("--agent.actor_errors=true", "--agent.num_atoms=4"):
        dqn.make(dqn.Config(**QUANTILES, actor_errors=True), SPEC, NETWORK)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"munchausen": 0.9}, ["--agent.munchausen=0.9", "--agent.temperature=0.03"]),
        ({"temperature": 0.1, "double": True}, ["--agent.double=true", "--agent.temperature=0"]),
        ({"temperature": 0.1, **ATOMS}, ["--agent.temperature=0.1", "--agent.distribution=quantile"]),
        ({"temperature": 0.1, "actor_errors": True}, ["--agent.actor_errors=true", "--agent.temperature=0"]),
    ],
)
def test_a_soft_value_meets_no_part_that_it_does_not_go_with(changes, words):
    with conftest.refused(*words):
        dqn.make(dqn.Config(**changes), SPEC, NETWORK)


@pytest.mark.parametrize("core", ["identity", "frame_stack"])
def test_what_the_actor_saw_gives_the_error_that_the_learner_finds(core):
    """With the same parameters, a new window's first error is the priority that learning from it would set."""
    network = networks.Config(torso="mlp", hidden_sizes=(8,), core=core, num_frames=3)
    settings = dqn.Config(n_step=3, actor_errors=True, clip_rewards=0.5, reward_scale=0.3, error_clip=0.0)
    agent = dqn.make(settings, SPEC, network)
    played.assert_errors_agree(agent, agent.init(jax.random.key(0)), D)


@pytest.mark.parametrize("shape", [(7, 4), (3, 5, 6), (7, 4, 11)])
def test_both_ways_to_select_by_actions_agree(shape: tuple[int, ...]) -> None:
    """An accelerator sums over actions, a CPU gathers; values [..., A] and logits [..., A, atoms]."""
    rng = np.random.default_rng(len(shape))
    batch = shape[:1] if shape[-1] == 11 else shape[:-1]
    q, action = jnp.asarray(rng.normal(size=shape), jnp.float32), rng.integers(shape[len(batch)], size=batch)
    weights = rng.normal(size=(*batch, *shape[len(batch) + 1 :])).astype(np.float32)
    for function in (action_values._gathered, action_values._summed, action_values.of_action):
        found = function(q, jnp.asarray(action))
        index = np.expand_dims(action, tuple(range(len(batch), len(shape))))
        wanted = np.take_along_axis(np.asarray(q), index, len(batch)).squeeze(len(batch))
        np.testing.assert_array_equal(found, wanted)
        gradient = jax.grad(lambda q, f=function: (weights * f(q, jnp.asarray(action))).sum())(q)
        np.testing.assert_array_equal((np.asarray(gradient) != 0).sum(), weights.size)
        np.testing.assert_allclose(gradient.sum(), weights.sum(), rtol=1e-5)
