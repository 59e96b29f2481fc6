"""Deterministic policy gradients: loss and gradient against loops in float64, acting, the learner's two paces."""

import functools
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from fakes import calls, played
from oracles import call, differences
from oracles import dpg as oracle

from jaxrl_dist import networks, types
from jaxrl_dist.agents import dpg, dqn
from jaxrl_dist.agents.shared import bounded_actions, transitions
from jaxrl_dist.learning import learner

D, A, N = 3, 2, 6
SPEC = types.EnvironmentSpec(
    "toy:x", jax.ShapeDtypeStruct((D,), jnp.float32), types.BoxSpace((A,), -2.0, 6.0), "continuous", (-1.0, 1.0)
)
NETWORK = networks.Config(torso="mlp", hidden_sizes=(16,), activation="relu", orthogonal=False)
ATOMS = {"num_atoms": 11, "value_low": -2.0, "value_high": 2.0}


def build(**settings: Any) -> tuple[Any, types.Params, Any]:
    """Returns an agent, parameters far from those at the start, and another target network."""
    agent = dpg.make(dpg.Config(**settings), SPEC, NETWORK)
    noise = np.random.default_rng(0)

    def shaken(tree: Any) -> Any:
        return jax.tree.map(lambda x: x + jnp.asarray(noise.normal(size=x.shape, scale=0.5), x.dtype), tree)

    params = agent.init(jax.random.key(1))
    return agent, params._replace(network=shaken(params.network)), shaken(params.network)


def batch() -> transitions.Batch:
    random = np.random.default_rng(3)
    rows = random.normal(size=(N, D)), random.uniform(-1, 1, (N, A)), random.normal(size=N), random.uniform(0, 0.9, N)
    rows = (*rows, random.normal(size=(N, D)), np.ones(N))
    return transitions.Batch(*(jnp.asarray(x, jnp.float32) for x in rows))


def by_hand(network: Any, observation: Any, action: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns actions [N, A] in [-1, 1], and the values [C, N, atoms] of these, or of other actions, by NumPy."""

    def dense(params: Any, x: np.ndarray, heads: str) -> np.ndarray:
        flat = {
            "/".join(str(p.key) for p in path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(params)
        }
        torso = sorted(name for name in flat if not name.startswith("outputs"))
        hidden = np.maximum(x @ flat[torso[1]] + flat[torso[0]], 0)
        head = sorted(name for name in flat if name.startswith(f"outputs_{heads}"))
        return hidden @ flat[head[1]] + flat[head[0]]

    chosen = np.tanh(dense(network["policy"], np.asarray(observation), "policy"))
    joined = np.concatenate([observation, chosen if action is None else action], -1)
    count = jax.tree.leaves(network["critic"])[0].shape[0]
    critics = [jax.tree.map(lambda x: x[i], network["critic"]) for i in range(count)]  # noqa: B023
    return chosen, np.stack([dense(one, joined, "value") for one in critics])


def loss(agent: Any, params: types.Params, target: Any, rows: transitions.Batch) -> types.LossOutput:
    return calls.loss(agent, params, target, rows, jax.random.key(0))


NOISE = {"target_noise": 0.6, "target_noise_clip": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "ddpg": {"clip_rewards": 0.5, "reward_scale": 0.3},
    "n-step": {"n_step": 3},
    "td3": {"num_critics": 2, **NOISE},
    "d4pg": {"num_atoms": 5, "value_low": -2.0, "value_high": 2.0, "n_step": 3},
    "all": {"num_atoms": 5, "value_low": -2.0, "value_high": 2.0, "num_critics": 2, **NOISE},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_papers(name: str) -> None:
    """Importance weights are the critics' alone (Barth-Maron et al. 2018, algorithm 1)."""
    made = call.make("dpg", real=True, discount=0.9, **CASES[name])
    s, now, target = made.settings, call.params(made, 1), call.params(made, 2)
    rows = call.rows(made, seed=3, length=1 + s["n_step"], columns=16)
    weights = np.random.default_rng(0).uniform(0.2, 1.0, 16)
    found = call.learn(made, rows, now, target=target, weights=weights)
    rows["action"] = (rows["action"] - (call.HIGH + call.LOW) / 2) / ((call.HIGH - call.LOW) / 2)
    atoms = np.linspace(-2.0, 2.0, 5) if s["num_atoms"] > 1 else None
    wanted = oracle.targets(target, rows, s, atoms, found.draws[0] if s["target_noise"] else None)

    def objective(params: dict[str, Any]) -> float:
        critic = oracle.critic_terms(params, rows, wanted, atoms)["critic_loss"]
        policy = oracle.policy_terms(params, now, rows, wanted, atoms)
        return sum(weights[b] * critic[b] + policy[b] for b in wanted)

    # Actions are f32 where they meet the critics.
    terms = oracle.critic_terms(now, rows, wanted, atoms)
    terms["policy_loss"] = oracle.policy_terms(now, now, rows, wanted, atoms)
    assert found.valid == len(wanted) < 16
    assert found.loss == pytest.approx(objective(now), rel=1e-6)
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in terms.items()}, rel=1e-6)
    np.testing.assert_allclose(found.priorities, [terms["td_error"].get(b, 0.0) for b in range(16)], rtol=1e-6)
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=2e-6, atol=2e-6)
    assert min(np.abs(part).max() for part in differences.leaves(gradient)) > 1e-3
    if s["target_noise"]:
        # Both bounds are met, of the noise and of the action.
        assert np.abs(0.6 * found.draws[0]).max() > 0.5


@pytest.mark.slow
def test_the_loss_of_distributions_is_rlax_s() -> None:
    agent, params, target = build(**ATOMS)
    rows, atoms = batch(), jnp.linspace(-2.0, 2.0, 11)
    output = loss(agent, params, target, rows)
    logits = by_hand(params.network, rows.inputs, rows.action)[1][0]
    ahead = jax.nn.softmax(jnp.asarray(by_hand(target, rows.next_inputs)[1][0]))
    moved = rows.reward[:, None] + rows.discount[:, None] * atoms
    wanted = np.asarray(jax.vmap(functools.partial(rlax.categorical_l2_project, z_q=atoms))(moved, ahead), np.float64)
    cross = -(wanted * np.asarray(jax.nn.log_softmax(logits))).sum(-1)
    entropy = -(np.where(wanted > 0, wanted * np.log(np.where(wanted > 0, wanted, 1)), 0)).sum(-1)
    np.testing.assert_allclose(output.metrics["critic_loss"], cross - entropy, rtol=1e-3, atol=1e-4)
    value = np.asarray(jax.nn.softmax(by_hand(params.network, rows.inputs)[1][0])) @ np.asarray(atoms)
    np.testing.assert_allclose(output.metrics["policy_loss"], -value, rtol=1e-3, atol=1e-5)


def test_noise_of_targets_is_bounded_and_moves_them() -> None:
    plain, noisy = (build(target_noise=noise, target_noise_clip=1e-3) for noise in (0.0, 5.0))
    rows = batch()
    calm, moved = (np.asarray(loss(*one, rows).priority) for one in (plain, noisy))
    assert 0 < np.abs(calm - moved).max() < 0.05


def test_actions_are_within_bounds_and_scaled() -> None:
    agent, params, _ = build(exploration_noise=3.0)
    timestep = types.TimeStep(jnp.ones(N, jnp.int8), jnp.zeros(N), jnp.ones(N), batch().inputs, ())
    acted = calls.act(agent, params, (), timestep, jax.random.key(0), jnp.zeros(N)).action
    assert acted.min() == -2.0 and acted.max() == 6.0
    best = calls.evaluate(agent, params, (), timestep, jax.random.key(0)).action
    np.testing.assert_allclose(best, 2 + 4 * by_hand(params.network, timestep.observation)[0], rtol=1e-4, atol=1e-4)


def test_policy_and_critic_have_paces_of_their_own() -> None:
    agent, params, target = build(policy_learning_rate=0.01, policy_period=2)
    rule = learner.Config(
        optimizer="sgd",
        learning_rate=0.1,
        anneal=False,
        max_grad_norm=0.0,
        target_period=2,
        target_rate=0.25,
    )
    built = learner.make(rule, agent, types.LOCAL)
    state = built.init(params)._replace(target_network=target)
    rows = batch()
    inputs = types.LossInputs(rows, target, jax.random.key(0), jnp.float32(0), types.LOCAL)
    gradient = built.gradients(params, inputs, jnp.ones(N))
    for update in (1, 2):
        before = state
        state = built.advance(built.apply(state, gradient, jnp.float32(0))[0])
        for name, rate in (("critic", 0.1), ("policy", 0.01 if update == 2 else 0.0)):
            parts = before.params.network[name], state.params.network[name], gradient.sums[name]
            for old, new, g in zip(*map(jax.tree.leaves, parts), strict=True):
                np.testing.assert_allclose(new, old - rate * g / N, rtol=1e-5, atol=1e-6)
        moved = jax.tree.map(lambda t, p: t + (0.25 if update == 2 else 0) * (p - t), target, state.params.network)  # noqa: B023
        for a, b in zip(*map(jax.tree.leaves, (state.target_network, moved)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("spec", "network", "named"),
    [
        (SPEC._replace(action=types.DiscreteSpace(3)), NETWORK, ["discrete"]),
        (SPEC._replace(action=types.BoxSpace((2,), -np.inf, np.inf)), NETWORK, ["bounds"]),
        (SPEC._replace(action=types.BoxSpace((2, 2), -1, 1)), NETWORK, ["[A]", "[2, 2]"]),
        (SPEC._replace(action=types.MultiDiscreteSpace((3, 2))), NETWORK, ["discrete"]),
        (SPEC, networks.Config(torso="mlp", core="lstm"), ["--network.core=lstm"]),
    ],
)
def test_what_cannot_be_is_one_line(spec: Any, network: Any, named: list[str]) -> None:
    with conftest.refused(*named):
        dpg.make(dpg.Config(), spec, network)


def test_errors_of_actors_are_of_the_learner_s_kind() -> None:
    for module, kind in ((dpg, ATOMS), (dqn, ATOMS)):
        spec = SPEC if module is dpg else SPEC._replace(action=types.DiscreteSpace(3))
        with conftest.refused("--agent.actor_errors=true", "--agent.num_atoms=11"):
            module.make(module.Config(actor_errors=True, **kind), spec, NETWORK)


@pytest.mark.parametrize("num_critics", [1, 2])
def test_what_the_actor_saw_gives_the_error_that_the_learner_finds(num_critics: int) -> None:
    agent, params, _ = build(n_step=3, actor_errors=True, exploration_noise=0.3, num_critics=num_critics)
    played.assert_errors_agree(agent, params, D)


def test_importance_weights_scale_the_critics_errors_and_leave_the_policy_s_part() -> None:
    """As in Barth-Maron et al. 2018, algorithm 1."""
    agent, params, target = build(**ATOMS)
    made = learner.make(learner.Config(), agent, types.LOCAL)
    inputs = types.LossInputs(batch(), target, jax.random.key(0), jnp.float32(0), types.LOCAL)
    plain, none, double = (made.gradients(params, inputs, jnp.full(N, weight)).sums for weight in (1.0, 0.0, 2.0))
    for name, factor in (("critic", 2.0), ("policy", 1.0)):
        for a, b in zip(jax.tree.leaves(plain[name]), jax.tree.leaves(double[name]), strict=True):
            np.testing.assert_allclose(factor * np.asarray(a), b, rtol=1e-5, atol=1e-7)
    assert all(not np.asarray(x).any() for x in jax.tree.leaves(none["critic"]))
    assert any(np.abs(np.asarray(x)).max() > 1e-3 for x in jax.tree.leaves(none["policy"]))


def test_the_first_share_of_training_is_random() -> None:
    agent, params, _ = build(random_share=0.1, exploration_noise=0.1)
    still, *_ = build(exploration_noise=0.1)
    rows = jnp.zeros(512)
    timestep = types.TimeStep(rows.astype(jnp.int8) + types.MID, rows, rows + 1, jnp.zeros((512, D)), ())

    def acted(one: Any, progress: float) -> np.ndarray:
        exploration = one.exploration((), jnp.arange(512), 512, jnp.float32(progress))
        return np.asarray(calls.act(one, params, (), timestep, jax.random.key(2), exploration).action)

    drawn = (acted(agent, 0.09) - 2.0) / 4.0
    np.testing.assert_allclose(np.quantile(drawn, [0.0, 0.25, 0.5, 0.75, 1.0]), [-1, -0.5, 0, 0.5, 1], atol=0.1)
    np.testing.assert_array_equal(acted(agent, 0.1), acted(still, 0.1))
    assert not np.allclose(acted(agent, 0.1), acted(agent, 0.09))


def test_a_critic_begins_with_values_of_size_one_and_a_policy_near_the_centre() -> None:
    network = networks.Config(torso="mlp", hidden_sizes=(16,), orthogonal=True)
    policy, critic = bounded_actions.policy_and_critic(SPEC, network, num_atoms=3, action_size=A)
    for made, name, gain in ((policy, "policy", 0.01), (critic, "value", 1.0)):
        kernel = made.init(jax.random.key(0))[f"outputs_{name}"]["Dense_0"]["kernel"]
        np.testing.assert_allclose(np.linalg.svd(kernel, compute_uv=False), gain, rtol=1e-4)
