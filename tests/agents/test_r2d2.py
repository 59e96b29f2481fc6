"""R2D2: its loss against a slow loop in float64, burn-in, stored state, and the priorities of new sequences."""

import dataclasses
import itertools

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from fakes import calls

from jaxrl_dist import errors, networks, types
from jaxrl_dist.agents import r2d2
from jaxrl_dist.agents.shared import action_values

A, D, N = 3, 4, 20
NETWORK = networks.Config(torso="mlp", hidden_sizes=(8,), core="lstm", core_size=6)
STACKED = dataclasses.replace(NETWORK, core="frame_stack_lstm", num_frames=3)
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
    for t in range(length):
        one = jax.tree.map(lambda x, t=t: x[t], timestep)
        carries.append(carry)
        output = calls.act(agent, params, carry, one, jax.random.key(t), jnp.full(N, 0.5))
        carry = output.carry
        rows.append(types.Step(one, output.action, output.extras, jnp.zeros(N, jnp.int32)))
    steps = jax.tree.map(lambda *x: jnp.stack(x[before:]), *rows)
    return types.Unroll(steps, carries[before])


def _learn(agent, params, target, sequences):
    batch = calls.prepare(agent, params, sequences)
    return calls.loss(agent, params, target.network, batch, jax.random.key(0))


def _h(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def _h_inverse(x):
    root = np.sqrt(1 + 4e-3 * (np.abs(x) + 1 + 1e-3))
    return np.sign(x) * (((root - 1) / 2e-3) ** 2 - 1)


def _stepped(settings, network, params, sequences):
    """Returns q f64 [L, N, A] of one network, one row at a time from the state before the window."""
    net = networks.make(network, SPEC, action_values.heads(A, settings.dueling), extra=A + 1)
    core, action = sequences.carry
    if not settings.stored_state:
        core = core._replace(memory=jax.tree.map(jnp.zeros_like, core.memory))
    rows, step = [], jax.jit(net.step)
    for t in range(len(sequences.steps.action)):
        now = jax.tree.map(lambda x, t=t: x[t], sequences.steps.timestep)
        first = np.asarray(now.step_type) == types.FIRST
        extra = np.concatenate([np.eye(A)[np.asarray(action)], np.asarray(now.reward)[:, None]], 1) * ~first[:, None]
        outputs, core = step(
            params.network, core, (now.observation, jnp.asarray(extra, jnp.float32)), jnp.asarray(first)
        )
        rows.append(np.asarray(action_values.join(outputs, A), np.float64))
        action = sequences.steps.action[t]
    return np.stack(rows)


def _oracle(settings, network, params, target, sequences):
    """Returns td_errors f64 [m, N], NaN in rows that teach nothing, by following every row to its end."""
    q, q_target = (_stepped(settings, network, p, sequences) for p in (params, target))
    timestep = sequences.steps.timestep
    step_type, reward, discount = (np.asarray(x) for x in (timestep.step_type, timestep.reward, timestep.discount))
    action = np.asarray(sequences.steps.action)
    td_errors = np.full((settings.taught, N), np.nan)
    for column in range(N):
        for i in range(settings.taught):
            t = settings.burn_in + i
            if step_type[t, column] == types.LAST:
                continue
            total, factor, end = 0.0, 1.0, t
            while end < t + settings.n_step and step_type[end, column] != types.LAST:
                end += 1
                total += factor * reward[end, column]
                factor *= settings.discount * discount[end, column]
            best = (q if settings.double else q_target)[end, column].argmax()
            value = q_target[end, column, best]
            target_value = total + factor * (_h_inverse(value) if settings.rescale_values else value)
            goal = _h(target_value) if settings.rescale_values else target_value
            td_errors[i, column] = goal - q[t, column, action[t, column]]
    return td_errors


NETWORKS = {"lstm": NETWORK, "stacked": STACKED}
CHANGES = {
    "own": {},
    "zero state": {"stored_state": False},
    "plain": {"double": False, "dueling": False},
    "unscaled": {"rescale_values": False},
    "no burn-in": {"burn_in": 0},
}


@pytest.mark.parametrize(
    ("changes", "network"),
    marks.some(itertools.product(CHANGES, NETWORKS), fast={"own-lstm", "zero state-lstm", "plain-lstm"}),
)
def test_loss_and_priority_are_those_of_a_slow_loop(changes, network):
    settings = r2d2.Config(**{**LENGTHS, "discount": 0.9, "max_error_share": 0.7, **CHANGES[changes]})
    network = NETWORKS[network]
    agent = r2d2.make(settings, SPEC, network)
    params, target = agent.init(jax.random.key(0)), agent.init(jax.random.key(1))
    sequences = _played(agent, params)
    output = _learn(agent, params, target, sequences)
    td_errors = _oracle(settings, network, params, target, sequences)
    valid = (~np.isnan(td_errors)).sum(0)
    np.testing.assert_array_equal(output.valid, valid)
    np.testing.assert_allclose(output.loss, 0.5 * np.nansum(td_errors**2, 0), rtol=2e-4, atol=1e-5)
    priority = 0.7 * np.nanmax(np.abs(td_errors), 0) + 0.3 * np.nanmean(np.abs(td_errors), 0)
    np.testing.assert_allclose(output.priority, priority, rtol=2e-4, atol=1e-5)
    assert np.isnan(td_errors).any() and (valid < settings.taught).sum() > 3


@pytest.mark.slow
def test_burn_in_moves_the_state_and_teaches_nothing():
    """The gradient is that of windows which begin after the burn-in, from the state that it leaves."""
    settings = r2d2.Config(**LENGTHS, discount=0.9)
    agent = r2d2.make(settings, SPEC, NETWORK)
    params, target = agent.init(jax.random.key(0)), agent.init(jax.random.key(1))
    sequences = _played(agent, target)
    shorter = r2d2.make(r2d2.Config(**{**LENGTHS, "burn_in": 0}, discount=0.9), SPEC, NETWORK)

    def gradient(agent, sequences, target):
        def objective(network):
            return _learn(agent, params._replace(network=network), target, sequences).loss.sum()

        return jax.grad(objective)(params.network)

    # With one network for both, the state after the burn-in is one too.
    whole = gradient(agent, sequences, params)
    carry = sequences.carry
    for t in range(3):
        one = jax.tree.map(lambda x, t=t: x[t], sequences.steps.timestep)
        core = calls.act(agent, params, carry, one, jax.random.key(0), jnp.zeros(N)).carry.core
        carry = r2d2.Carry(core, sequences.steps.action[t])
    rest = types.Unroll(jax.tree.map(lambda x: x[3:], sequences.steps), carry)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(gradient(shorter, rest, params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    stale = rest._replace(carry=jax.tree.map(jnp.zeros_like, carry))
    different = jax.tree.leaves(gradient(shorter, stale, params))
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(jax.tree.leaves(whole), different, strict=True))


@pytest.mark.parametrize("changes", [{}, {"rescale_values": False, "clip_rewards": 1.0}, {"dueling": False}])
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
