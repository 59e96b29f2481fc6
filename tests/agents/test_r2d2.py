"""R2D2: loss, gradient and priority against loops in float64, the first priorities, the last action and reward."""

import functools

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import calls
from oracles import call, differences
from oracles import r2d2 as oracle

from jaxrl_dist import errors, networks, types
from jaxrl_dist.agents import r2d2

A, D, N = 3, 4, 20
NETWORK = networks.Config(torso="mlp", hidden_sizes=(8,), core="lstm", core_size=6)
SPEC = types.EnvironmentSpec("toy:x", jax.ShapeDtypeStruct((D,), jnp.float32), types.DiscreteSpace(A), "classic")
LENGTHS = {"burn_in": 3, "taught": 6, "n_step": 2}


def _played(agent, params, seed=0, before=5):
    """Plays random observations with episodes that end at random; the windows begin after some rows."""
    rng = np.random.default_rng(seed)
    length = before + agent.context + agent.taught + agent.lookahead
    step_type = np.full((length, N), types.MID, np.int8)
    last = rng.random((length, N)) < 0.2
    last[1:] &= ~last[:-1]
    step_type[last] = types.LAST
    step_type[1:][last[:-1]] = types.FIRST
    reward = np.where(step_type == types.FIRST, 0, rng.normal(size=(length, N)) * 3)
    terminated = last & (rng.random((length, N)) < 0.5)
    observation = rng.normal(size=(length, N, D))
    floats = (jnp.asarray(x, jnp.float32) for x in (reward, 1 - terminated, observation))
    timestep = types.TimeStep(jnp.asarray(step_type), *floats, ())
    carry, rows, carries = agent.init_carry(N), [], []
    act = jax.jit(functools.partial(calls.act, agent))
    for t in range(length):
        one = jax.tree.map(lambda x, t=t: x[t], timestep)
        carries.append(carry)
        output = act(params, carry, one, jax.random.key(t), jnp.full(N, 0.5))
        carry = output.carry
        rows.append(types.Step(one, output.action, output.extras, jnp.zeros(N, jnp.int32)))
    steps = jax.tree.map(lambda *x: jnp.stack(x[before:]), *rows)
    return types.Unroll(steps, carries[before])


def _learn(agent, params, target, sequences):
    batch = calls.prepare(agent, params, sequences)
    return calls.loss(agent, params, target.network, batch, jax.random.key(0))


CASES = {
    "own": {},
    "zero state": {"stored_state": False, "clip_rewards": 0.5, "reward_scale": 0.3},
    "plain": {"double": False, "dueling": False},
    "unscaled": {"rescale_values": False},
    "no burn-in": {"burn_in": 0, "core": "frame_stack_lstm"},
}


@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_and_priority_are_those_of_the_paper(name):
    """No gradient goes back through the burn-in, and both networks bring their own state up to date."""
    settings = {"burn_in": 2, "taught": 4, "n_step": 2, "discount": 0.9, "max_error_share": 0.7, "core": "lstm"}
    made = call.make("r2d2", **{**settings, **CASES[name]})
    s, now, target = made.settings, call.params(made, 1), call.params(made, 2)
    rows = call.rows(made, seed=3, length=s["burn_in"] + 6, columns=6)
    weights = np.random.default_rng(0).uniform(0.2, 1.0, 6)
    found = call.learn(made, rows, now, target=target, weights=weights)
    wanted = oracle.targets(now, target, rows, s)

    def objective(params):
        return sum(weights[b] * x for (_, b), x in oracle.terms(params, now, rows, wanted, s)["loss"].items())

    terms = oracle.terms(now, now, rows, wanted, s)
    assert found.valid == len(wanted) < 6 * 4
    assert found.loss == pytest.approx(objective(now), rel=1e-9)
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in terms.items()}, rel=1e-9)
    priorities = [oracle.priority(terms["td_error"], b, 0.7) for b in range(6)]
    np.testing.assert_allclose(found.priorities, priorities, rtol=1e-9)
    gradient = differences.gradient(objective, now)
    differences.assert_same(found.gradient, gradient, rtol=1e-6, atol=1e-7)
    assert min(np.abs(part).max() for part in differences.leaves(gradient)) > 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"rescale_values": False, "clip_rewards": 1.0},
        pytest.param({"dueling": False}, marks=pytest.mark.slow),
    ],
)
def test_what_the_actor_saw_gives_the_priority_that_the_learner_finds(changes):
    agent = r2d2.make(r2d2.Config(**LENGTHS, discount=0.9, **changes), SPEC, NETWORK)
    params = agent.init(jax.random.key(0))
    sequences = _played(agent, params, seed=1)
    output = _learn(agent, params, params, sequences)
    steps = sequences.steps._replace(timestep=sequences.steps.timestep._replace(observation=()))
    first = agent.first_error(types.Unroll(steps, ()))
    np.testing.assert_allclose(first, output.priority, rtol=1e-3, atol=1e-5)
    assert np.asarray(first).std() > 0.05


def test_the_last_action_and_reward_reach_the_memory_and_end_with_the_episode():
    agent = r2d2.make(r2d2.Config(**LENGTHS), SPEC, NETWORK)
    params = agent.init(jax.random.key(0))
    zeros = jnp.zeros((2, D))

    def core(action, reward, step_type):
        timestep = types.TimeStep(jnp.full(2, step_type, jnp.int8), jnp.full(2, reward), jnp.ones(2), zeros, ())
        carry = agent.init_carry(2)._replace(action=jnp.full(2, action))
        return np.asarray(calls.act(agent, params, carry, timestep, jax.random.key(0), jnp.zeros(2)).carry.core[1][0])

    assert not np.array_equal(core(0, 0.0, types.MID), core(1, 0.0, types.MID))
    assert not np.array_equal(core(0, 0.0, types.MID), core(0, 1.0, types.MID))
    np.testing.assert_array_equal(core(0, 0.0, types.FIRST), core(1, 1.0, types.FIRST))


def test_a_core_without_memory_and_real_actions_are_refused():
    with conftest.refused("--network.core=identity", "lstm"):
        r2d2.make(r2d2.Config(), SPEC, networks.Config(torso="mlp"))
    box = SPEC._replace(action=types.BoxSpace((1,), -np.ones(1), np.ones(1)))
    with pytest.raises(errors.UnfitError) as caught:
        r2d2.make(r2d2.Config(), box, NETWORK)
    assert caught.value.actions == box.action.kind
