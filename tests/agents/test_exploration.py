"""Exploration: the distribution of actions, ε over training and environments, and draws that share no key."""

import dataclasses
import importlib
import math
import pathlib
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from fakes import calls
from oracles import call, dpg, exploration, sac

from jaxrl_dist import agents, envs, networks, types
from jaxrl_dist.agents.shared import action_values, actor_critic
from jaxrl_dist.parallel import unroll


def test_every_action_is_as_likely_as_epsilon_says() -> None:
    """Chi-square over all actions, at an ε for each third of the rows."""
    q, rows = np.array([0.3, -1.0, 2.0, 0.1, 1.9], np.float32), 30_000
    epsilon = np.repeat([1.0, 0.6, 0.05], rows // 3)
    draw = jax.jit(lambda key: action_values.epsilon_greedy(jnp.broadcast_to(q, (rows, 5)), key, jnp.asarray(epsilon)))
    action = np.asarray(draw(jax.random.key(3)))
    for one in np.unique(epsilon):
        counts = np.bincount(action[epsilon == one], minlength=5)
        wanted = exploration.epsilon_greedy(q, one) * rows / 3
        assert scipy.stats.chisquare(counts, wanted).pvalue > 1e-3
    assert (np.asarray(action_values.epsilon_greedy(jnp.asarray(q)[None], jax.random.key(0), jnp.zeros(1))) == 2).all()


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.2, 0.5, 1.0])
def test_epsilon_is_that_of_the_papers(progress: float) -> None:
    schedule = {"epsilon_start": 0.9, "epsilon_end": 0.1, "epsilon_fraction": 0.2}
    for name, wait in (("dqn", {}), ("dqn", {"epsilon_wait": 0.15}), ("pqn", {})):
        wanted = exploration.schedule(progress, 0.9, 0.1, 0.2, *wait.values())
        found = call.explore(call.make(name, **schedule, **wait), progress, 3)
        np.testing.assert_allclose(found, [wanted] * 3, rtol=1e-6)
    ladder = {"ladder_base": 0.5, "ladder_exponent": 3.0}
    for made in (call.make("dqn", exploration="ladder", **ladder), call.make("r2d2", core="lstm", **ladder)):
        for count in (1, 4):
            wanted = [exploration.ladder(i, count, 0.5, 3.0) for i in range(count)]
            np.testing.assert_allclose(call.explore(made, progress, count), wanted, rtol=1e-6)
    made = call.make("sac", real=True, random_share=0.2)
    np.testing.assert_array_equal(call.explore(made, progress, 2), [float(progress < 0.2)] * 2)


@pytest.mark.parametrize("name", ["dqn", "iqn"])
def test_epsilon_reaches_its_end_within_training(name: str) -> None:
    given = {"epsilon_start": 1.0, "epsilon_end": 0.1, "epsilon_fraction": 0.5}
    with conftest.refused("--agent.epsilon_wait=0.8", "0.5"):
        call.make(name, **given, epsilon_wait=0.8)
    np.testing.assert_allclose(call.explore(call.make(name, **given, epsilon_wait=0.5), 1.0, 2), [0.1] * 2, rtol=1e-6)


SAMPLED = ("a2c", "impala", "ppo", "mappo", "rnd", "vmpo", "sac", "crossq", "discrete_sac", "mpo")
ACTING = {
    "noisy": ("dqn", {"noise": 0.5}),
    "greedy": ("pqn", {}),
    "policy": ("ppo", {}),
    "gaussian": ("ppo", {"real": True}),
    "deterministic": ("dpg", {"real": True, "random_share": 0.5}),
    "soft": ("sac", {"real": True, "random_share": 0.5}),
}


@pytest.mark.parametrize("name", ACTING)
def test_no_key_of_acting_serves_two_draws(name: str) -> None:
    """As the noise of a network and the choice between it and a random action (Fortunato et al. 2018, section 3.1)."""
    agent, settings = ACTING[name]
    made = call.make(agent, **settings)
    rows = call.rows(made, seed=0, length=2, columns=6)
    _, drawn = call.act(made, rows, call.params(made, 1), jnp.full(6, 0.5))
    keys = [key for key, _ in drawn]
    assert len(set(keys)) == len(keys) >= 1


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("name", ["dpg", "sac"])
def test_real_actions_are_the_policy_s_with_noise_or_uniform(name: str, random: bool) -> None:
    """In f32. a = π(s) + σ ε within bounds, or tanh(μ + σ ε), scaled; in the first share of training any action."""
    settings = {"exploration_noise": 0.6} if name == "dpg" else {}
    made = call.make(name, real=True, random_share=0.5, **settings)
    rows, params = call.rows(made, seed=0, length=2, columns=40), call.params(made, 1)
    action, drawn = call.act(made, rows, params, jnp.full(40, float(random)))
    (normal,) = (x for _, x in drawn if x.min() < -1)
    (uniform,) = (x for _, x in drawn if x.min() >= -1)
    assert uniform.min() < -0.8 and uniform.max() > 0.8
    wanted = uniform
    if not random:
        seen = zip(rows["observation"][0], normal, strict=True)
        if name == "dpg":
            wanted = [np.clip(dpg.policy(params, x) + 0.6 * draw, -1, 1) for x, draw in seen]
        else:
            wanted = [sac.act(params, x, draw)[0] for x, draw in seen]
    scaled = (call.HIGH + call.LOW) / 2 + (call.HIGH - call.LOW) / 2 * np.array(wanted)
    np.testing.assert_allclose(action, scaled, rtol=1e-4, atol=1e-5)


def takes_samples(name: str) -> bool:
    config = importlib.import_module(f"{agents.__name__}.{name}").Config
    return "evaluation_action" in [field.name for field in dataclasses.fields(config)]


def test_agents_with_a_policy_are_those_whose_evaluation_can_take_a_sample() -> None:
    made = {path.stem for path in pathlib.Path(agents.__path__[0]).glob("*.py")} - {"__init__", "wrapping"}
    assert {name for name in made if takes_samples(name)} == {*SAMPLED, "dreamer"}


@pytest.mark.parametrize("name", SAMPLED)
def test_evaluation_takes_the_mode_or_the_sample_that_acting_draws_with_its_key(name: str) -> None:
    module, rows = importlib.import_module(f"{agents.__name__}.{name}"), 64
    spec = envs.make("toy:reach" if module.ACTIONS == ("bounded",) else "toy:walk").spec
    timestep, keys = unroll.zero_timestep(spec, rows), jax.random.split(jax.random.key(1))
    found = {}
    for action in ("mode", "sample"):
        agent = module.make(module.Config(evaluation_action=action), spec, networks.Config(torso="mlp"))
        params, carry = agent.init(jax.random.key(0)), agent.init_carry(rows)
        found[action] = [np.asarray(calls.evaluate(agent, params, carry, timestep, key).action) for key in keys]
        acted = np.asarray(calls.act(agent, params, carry, timestep, keys[0], jnp.zeros(rows)).action)
    np.testing.assert_array_equal(found["sample"][0], acted)
    assert (found["sample"][0] != found["sample"][1]).any()
    assert (found["mode"][0] == found["mode"][1]).all() and (found["mode"][0] == found["mode"][0][0]).all()
    assert (found["mode"][0] != acted).any()


def gaussian(low: Any, high: Any, mean: Any, log_std: Any) -> Any:
    spec = envs.make("toy:reach").spec._replace(action=types.BoxSpace((2,), low, high))
    make, _ = actor_critic.policy_head(spec, "gaussian")
    return make({"policy": jnp.asarray(mean, jnp.float32), "log_std": jnp.asarray(log_std, jnp.float32)})


def test_a_policy_counts_in_halves_of_the_range_of_its_actions() -> None:
    """So that what it explores at first, and what a step changes, is the same in every unit of an action."""
    mean, log_std, key = [[0.5, -1.0], [0.0, 0.25]], [[0.0, math.log(0.5)]] * 2, jax.random.key(1)
    plain = gaussian(-1.0, 1.0, mean, log_std)
    np.testing.assert_array_equal(plain.mode(), mean)
    np.testing.assert_array_equal(plain.log_std, jnp.asarray(log_std))
    low, high = np.array([0.0, -3.0]), np.array([1000.0, -1.0])
    policy = gaussian(low, high, mean, log_std)
    np.testing.assert_allclose(policy.mode(), [[750.0, -3.0], [500.0, -1.75]], rtol=1e-6)
    np.testing.assert_allclose(jnp.exp(policy.log_std), [[500.0, 0.5]] * 2, rtol=1e-6)
    action = plain.sample(key)
    np.testing.assert_allclose(policy.sample(key), np.array([500.0, -2.0]) + np.array([500.0, 1.0]) * action, rtol=1e-5)
    density = plain.log_prob(action) - math.log(500)
    np.testing.assert_allclose(policy.log_prob(policy.sample(key)), density, rtol=1e-4)


@pytest.mark.parametrize(("low", "high"), [(-np.inf, np.inf), (0.0, np.inf), (np.array([-1.0, 2.0]), [1.0, 2.0])])
def test_a_policy_counts_by_units_where_a_range_has_no_halves(low: Any, high: Any) -> None:
    policy = gaussian(low, high, [[0.5, -1.0]], [[0.0, 0.0]])
    middle = [0.0, 2.0] if np.ndim(low) else 0.0
    np.testing.assert_array_equal(policy.mode(), np.array([[0.5, -1.0]]) + middle)
    np.testing.assert_array_equal(policy.log_std, np.zeros((1, 2)))
