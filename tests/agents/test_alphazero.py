"""AlphaZero: targets, loss and gradient in float64, searches whose results are known, and what is refused."""

import dataclasses
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from oracles import call, differences, dqn
from oracles import search as oracle

from jaxrl_dist import envs, networks, types
from jaxrl_dist.agents import alphazero
from jaxrl_dist.agents.shared import search
from jaxrl_dist.envs import wrappers
from jaxrl_dist.training import assemble

B = 12
NETWORK = networks.Config(torso="mlp", hidden_sizes=(8,), activation="relu")
SETTINGS: dict[str, Any] = {"num_atoms": 11, "value_bound": 5.0, "discount": 0.9, "value_cost": 0.5}


@pytest.mark.parametrize("core", ["identity", "frame_stack"])
def test_loss_and_gradient_are_those_of_the_paper(core: str) -> None:
    made = call.make("alphazero", **SETTINGS, n_step=3, core=core)
    s, context, rng = made.settings, made.agent.context, np.random.default_rng(5)
    rows = call.rows(made, seed=3, length=context + 4, columns=B)
    shape = rows["step_type"].shape
    policy = rng.dirichlet(np.ones(call.A), shape).astype(np.float32).astype(np.float64)
    rows |= {"policy": policy, "value": 3 * rng.normal(size=shape).astype(np.float32).astype(np.float64)}
    now, weights = call.params(made, 1), rng.uniform(0.2, 1.0, B)

    def terms(params: dict[str, Any]) -> dict[int, Any]:
        found = {}
        for b in np.flatnonzero(rows["step_type"][context] != types.LAST):
            column = tuple(rows[name][context:, b] for name in ("reward", "discount", "step_type", "value"))
            z = oracle.n_step(column, s["discount"], s["n_step"], 0)
            found[b] = oracle.row(params, dqn.inputs(rows, b)[context], policy[context, b], z, s)
        return found

    def objective(params: dict[str, Any]) -> float:
        return sum(weights[b] * one["loss"] for b, one in terms(params).items())

    found, expected = call.learn(made, rows, now, weights=weights), terms(now)
    assert found.valid == len(expected) <= B and found.loss == pytest.approx(objective(now), rel=1e-6)
    sums = {key: sum(one[key] for one in expected.values()) for key in found.metrics}
    assert found.metrics == pytest.approx(sums, rel=1e-5)
    np.testing.assert_allclose(found.priorities, [expected[b]["td_error"] if b in expected else 0 for b in range(B)])
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=1e-5, atol=1e-6)
    assert min(np.abs(part).max() for part in differences.leaves(gradient)) > 1e-3


def test_only_scaled_values_make_noise_a_policy() -> None:
    def model(network: Any, key: Any, action: Any, state: Any) -> search.Edge:
        reward = jnp.where(action == 1, 1e-3, 0.0)
        return search.Edge(reward, jnp.zeros(2), search.Node(jnp.zeros((2, 3)), jnp.zeros(2), state))

    root, found = search.Node(jnp.zeros((2, 3)), jnp.zeros(2), ()), []
    for is_scaled in (True, False):
        config = search.Config(search="gumbel", simulations=9, value_scale=1.0, rescale_values=is_scaled)
        found.append(search.run(config, model, (), jax.random.key(0), root)[1].policy[:, 1])
    assert (found[0] > 0.99).all()
    # (50 + 3 or more visits) · 10⁻³ in logits.
    assert (found[1] > 0.34).all() and (found[1] < 0.36).all()


@pytest.mark.slow
def test_actors_search_with_noise_at_the_root() -> None:
    def model(network: Any, key: Any, action: Any, state: Any) -> search.Edge:
        return search.Edge(jnp.zeros(2), jnp.zeros(2), search.Node(jnp.zeros((2, 3)), jnp.zeros(2), state))

    def policies(temperature: Any, **changes: Any) -> list[Any]:
        config = search.Config(**{"simulations": 40, "dirichlet_fraction": 0.5, **changes})
        root = search.Node(jnp.tile(jnp.array([1.0, 0.5, 0.0]), (2, 1)), jnp.zeros(2), ())
        keys = map(jax.random.key, range(2))
        return [np.asarray(search.run(config, model, (), k, root, None, temperature)[1].policy) for k in keys]

    one, other = policies(jnp.ones(2))
    assert np.abs(one - other).max() > 0.1 and np.abs(one[0] - one[1]).max() > 0.1
    # More of many equal concentrations is nearer to the mean.
    apart = [np.abs(np.diff(policies(jnp.ones(2), dirichlet_alpha=alpha), axis=0)).max() for alpha in (0.1, 100.0)]
    assert apart[0] > 3 * apart[1]
    np.testing.assert_array_equal(*policies(None))
    np.testing.assert_array_equal(*policies(jnp.ones(2), dirichlet_fraction=0.0))


def _nim(sticks: int) -> envs.Environment:
    """Two players take one or two sticks in turn; who takes the last one wins."""

    def observed(left: Any) -> Any:
        return {"left": left[None].astype(jnp.float32), "mask": jnp.array([True, False]) | (left != 1)}

    def reset(key: Any) -> Any:
        return jnp.int32(sticks), observed(jnp.int32(sticks))

    def step(key: Any, left: Any, action: Any) -> envs.Transition:
        left = left - 1 - action
        return envs.Transition(left, observed(left), jnp.where(left == 0, 1.0, 0.0), left <= 0, False)

    spec = types.EnvironmentSpec("toy:nim", (), types.DiscreteSpace(2), "classic", (-1.0, 1.0), mask="mask", players=2)
    return wrappers.auto_reset(envs.BareEnvironment(reset, step, spec))


def _search(environment: envs.Environment, states: Any, timestep: Any, **changes: Any) -> types.ActOutput:
    config = alphazero.Config(**{**SETTINGS, "simulations": 64, "discount": 1.0, **changes})
    agent = alphazero.make(config, environment.spec, NETWORK, environment.step)
    params, count = agent.init(jax.random.key(0)), timestep.reward.shape[0]
    inputs = types.ActInputs(timestep, agent.init_carry(count), jax.random.key(1), jnp.full(count, 1e-3), states)
    return jax.jit(agent.act)(params, inputs)


@pytest.mark.parametrize("kind", marks.some(["muzero", "gumbel"], slow={"muzero"}))
def test_a_search_of_a_game_of_two_finds_the_move_that_wins(kind: str) -> None:
    for sticks in (4, 5):
        environment = _nim(sticks)
        states, timestep = envs.columns(environment).reset(jax.random.key(0), jnp.arange(4))
        found = _search(environment, states, timestep, search=kind, value_scale=1.0)
        # A multiple of three is lost for who is to move.
        assert (found.action == sticks % 3 - 1).all()
        assert (found.extras.value > 0.3).all()
    environment = _nim(3)
    states, timestep = envs.columns(environment).reset(jax.random.key(0), jnp.arange(4))
    assert (_search(environment, states, timestep, search=kind, value_scale=1.0).extras.value < -0.3).all()


def _corridor(limit: int, end: int) -> envs.Environment:
    """Action 1 earns 1 and action 0 nothing, until a time limit or an end; state and observation count the steps."""

    def reset(key: Any) -> Any:
        return jnp.int32(0), jnp.zeros(1)

    def step(key: Any, state: Any, action: Any) -> envs.Transition:
        state = state + 1
        reward = jnp.asarray(action, jnp.float32)
        return envs.Transition(state, state[None].astype(jnp.float32), reward, state >= end, state >= limit)

    spec = types.EnvironmentSpec("toy:corridor", (), types.DiscreteSpace(2), "classic", (0.0, 1.0))
    return wrappers.auto_reset(envs.BareEnvironment(reset, step, spec))


@pytest.mark.parametrize(("limit", "end"), [(1, 9), (9, 1)])
def test_nothing_behind_the_end_of_an_episode_counts(limit: int, end: int, monkeypatch: Any) -> None:
    seen = {}

    def value(static: Any, network: Any, carry: Any, timestep: types.TimeStep) -> Any:
        node = alphazero.search.Node(jnp.zeros((2, 2)), 3 + 4 * timestep.observation[:, 0], ())
        seen[len(seen)] = timestep
        return node, None, carry

    monkeypatch.setattr(alphazero, "_node", value)
    environment = _corridor(limit, end)
    states, timestep = envs.columns(environment).reset(jax.random.key(0), jnp.arange(2))
    found = _search(environment, states, timestep, simulations=40, discount=0.5, dirichlet_fraction=0.0)
    # Both actions end the episode; behind a time limit the value is that of the last row, 7, and stays.
    visits = found.extras.policy * 40
    behind = 0.5 * 7 if limit == 1 else 0.0
    expected = (3 + (visits * (jnp.array([0.0, 1.0]) + behind)).sum(-1)) / 41
    np.testing.assert_allclose(found.extras.value, expected, rtol=1e-5)


def test_a_search_does_not_see_what_the_environment_will_draw() -> None:
    """A wager: the next step's own key decides; whoever could see it would always win."""

    def reset(key: Any) -> Any:
        return jnp.int32(0), jnp.zeros(1)

    def step(key: Any, state: Any, action: Any) -> envs.Transition:
        drawn = jax.random.randint(key, (), 0, 2)
        return envs.Transition(state, jnp.zeros(1), jnp.where(drawn == action, 1.0, -1.0), True, False)

    spec = types.EnvironmentSpec("toy:wager", (), types.DiscreteSpace(2), "classic", (-1.0, 1.0))
    environment = wrappers.auto_reset(envs.BareEnvironment(reset, step, spec))
    columns = envs.columns(environment)
    states, timestep = columns.reset(jax.random.key(0), jnp.arange(400))
    found = _search(environment, states, timestep, search="gumbel", simulations=8)
    assert abs(float(columns.step(states, found.action)[1].reward.mean())) < 0.3


def test_environments_that_are_not_on_the_device_are_refused() -> None:
    settings, environment = assemble.resolve({"system": "alphazero", "env": "toy:walk"})
    with conftest.refused("--env=toy:walk", "--system=muzero"):
        assemble.make_agent(settings, environment.spec)
    agent = assemble.make_agent(settings, *assemble.facts(environment))
    timestep = types.TimeStep(jnp.zeros(2, jnp.int8), jnp.zeros(2), jnp.ones(2), jnp.zeros((2, 2)), ())
    with conftest.refused("--system=alphazero", "--system=muzero"):
        agent.evaluate(agent.init(jax.random.key(0)), types.ActInputs(timestep, agent.init_carry(2), jax.random.key(0)))


def test_systems_that_know_no_turns_refuse_a_game_of_two() -> None:
    settings, environment = assemble.resolve({"system": "dqn", "env": "toy:walk"})
    with conftest.refused("--system=alphazero", "muzero", "--env.params.opponent=random"):
        assemble.make_agent(settings, environment.spec._replace(players=2))


def test_noise_at_the_root_is_over_legal_actions_alone() -> None:
    """Moments of a Dirichlet distribution over three of eight actions, and of one over all of them."""
    config, rows = alphazero.Config(dirichlet_alpha=0.4, dirichlet_fraction=1.0), 20_000
    mask = np.array([True, False, False, True, False, True, False, False])
    for legal, given in ((mask, jnp.tile(mask, (rows, 1))), (np.ones(8, bool), None)):
        found = np.asarray(search.noisy(config, jnp.zeros((rows, 8)), given, jax.random.key(0)), np.float64)
        assert (found[:, ~legal] == 0).all()
        np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
        mean = 1 / legal.sum()
        np.testing.assert_allclose(found[:, legal].mean(0), mean, rtol=0.05)
        np.testing.assert_allclose(found[:, legal].var(0), mean * (1 - mean) / (0.4 * legal.sum() + 1), rtol=0.05)
    # A share of it, beside a policy of legal actions.
    logits = jnp.tile(jnp.arange(8.0), (rows, 1))
    share = dataclasses.replace(config, dirichlet_fraction=0.25)
    mixed = search.noisy(share, logits, jnp.tile(mask, (rows, 1)), jax.random.key(0))
    policy = np.where(mask, np.exp(np.arange(8.0)), 0)
    wanted = 0.75 * policy / policy.sum() + 0.25 * np.where(mask, 1 / 3, 0)
    np.testing.assert_allclose(mixed.mean(0), wanted, atol=3e-3)


def test_noise_at_the_root_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is folded with 0 is the first of those that it is split into, by which the search draws actions."""
    mctx, drawn, searched = search.library(search.Config()), [], []
    noisy, policy = search.noisy, mctx.muzero_policy
    monkeypatch.setattr(search, "noisy", lambda *x: [drawn.append(x[-1]), noisy(*x)][1])
    monkeypatch.setattr(mctx, "muzero_policy", lambda *x, **y: [searched.append(x[1]), policy(*x, **y)][1])
    environment = _nim(4)
    states, timestep = envs.columns(environment).reset(jax.random.key(0), jnp.arange(2))
    config = alphazero.Config(**{**SETTINGS, "simulations": 2})
    agent = alphazero.make(config, environment.spec, NETWORK, environment.step)
    inputs = types.ActInputs(timestep, agent.init_carry(2), jax.random.key(1), jnp.ones(2), states)
    agent.act(agent.init(jax.random.key(0)), inputs)
    (noise,), (key,) = drawn, searched
    used = [key, *jax.random.split(key, 3)]
    assert all((jax.random.key_data(noise) != jax.random.key_data(one)).any() for one in used)


@pytest.mark.parametrize("rescale", [False, True])
def test_values_of_a_known_range_are_weighed_as_they_are(rescale: bool) -> None:
    """The visits of a root whose children end the game, beside those of the paper's formula, step by step.

    A value below the range counts as lost, as an action does that was not tried.
    """
    rewards, prior = np.array([0.02, 0.03, -1.4, 0.9]), np.array([0.5, 0.2, 0.2, 0.1])

    def model(network: Any, key: Any, action: Any, state: Any) -> search.Edge:
        node = search.Node(jnp.zeros((1, 4)), jnp.zeros(1), state)
        return search.Edge(jnp.asarray(rewards, jnp.float32)[action], jnp.zeros(1), node)

    config = search.Config(simulations=60, rescale_values=rescale)
    root = search.Node(jnp.log(jnp.asarray(prior, jnp.float32))[None], jnp.full(1, 0.1), ())
    visits = np.asarray(search.run(config, model, (), jax.random.key(0), root)[1].policy[0]) * 60
    counts, total = np.zeros(4), 0.1
    for simulation in range(60):
        tried, value = counts > 0, total / (simulation + 1)
        known = [*rewards[tried], value] if rescale else [-1.0, 1.0]
        if rescale and not tried.all():
            known.append(value)
        scores = np.where(tried, rewards, min(known)) - min(known)
        scores = np.clip(scores / max(max(known) - min(known), 1e-8), 0, 1)
        factor = 1.25 + np.log((simulation + 1 + 19652 + 1) / 19652)
        best = int(np.argmax(scores + np.sqrt(simulation + 1) * factor * prior / (counts + 1)))
        counts[best] += 1
        total += rewards[best]
    np.testing.assert_array_equal(visits.round(3), counts)


def test_environments_of_several_agents_are_refused() -> None:
    settings, environment = assemble.resolve({"system": "alphazero", "env": "toy:team"})
    with conftest.refused("--env=toy:team", "3 agents", "--system=ippo"):
        assemble.make_agent(settings, *assemble.facts(environment))
