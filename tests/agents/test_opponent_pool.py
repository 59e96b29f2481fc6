"""A pool of past networks: who moves in which game, what teaches, which networks are kept, and what is refused."""

from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import call

from jaxrl_dist import agents, envs, networks, parallel, types
from jaxrl_dist.agents import alphazero, muzero
from jaxrl_dist.agents.shared import opponent_pool, search
from jaxrl_dist.parallel.sebulba import actors

SPEC = envs.make("toy:walk").spec._replace(players=2)
B = 10


def _counting() -> agents.Agent:
    """An agent whose action is its only number, and whose carry counts."""

    def act(params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
        size = inputs.timestep.reward.shape[0]
        assert params.statistics == ()
        action = jnp.full(size, params.network["w"], jnp.float32)
        # All that an agent may see is there, column for column.
        seen = inputs.timestep.observation + inputs.state + inputs.exploration
        found = search.Found(jnp.full((size, 3), 1 / 3), seen)
        return types.ActOutput(action + seen, found, inputs.carry + 1)

    return agents.Agent(
        init=lambda key: types.Params({"w": jnp.float32(7.0)}, ()),
        init_carry=lambda size: jnp.zeros(size, jnp.int32),
        act=act,
        evaluate=act,
        prepare=lambda params, inputs: (params.statistics, inputs.batch.carry),
        loss=agents.no_loss,
        staleness="any",
    )


def _played(agent: agents.Agent, params: types.Params, first: Any, steps: int) -> Any:
    """Returns actions, policies and values [T, B] of columns with numbers of their own, and the last carry."""
    column, carry, found = jnp.arange(B) / 100, agent.init_carry(B), []
    for t in range(steps):
        step_type = jnp.where(first[t], types.FIRST, types.MID).astype(jnp.int8)
        timestep = types.TimeStep(step_type, jnp.zeros(B), jnp.ones(B), column, ())
        output = agent.act(params, types.ActInputs(timestep, carry, jax.random.key(t), 2 * column, state=4 * column))
        carry, own = output.carry, output.extras
        found.append((np.asarray(output.action), np.asarray(own.policy), np.asarray(own.value)))
    return *map(np.stack, zip(*found, strict=True)), carry


def test_past_networks_have_keys_that_the_newest_does_not_split_off() -> None:
    def act(params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
        size = inputs.timestep.reward.shape[0]
        by_split = [jax.random.split(key, size) for key in (inputs.key, *jax.random.split(inputs.key, size))]
        drawn = jnp.stack([jax.vmap(jax.random.uniform)(keys) for keys in by_split], 1)
        found = search.Found(jnp.ones((size, 3)), drawn)
        return types.ActOutput(jnp.full(size, jax.random.uniform(inputs.key)), found, inputs.carry)

    config = opponent_pool.Config(pool_size=2, pool_share=0.5)
    agent = opponent_pool.make(_counting()._replace(act=act), config, SPEC)
    params = agent.init(jax.random.key(0))
    action, _, drawn, _ = _played(agent, params, np.ones((1, B), bool), 1)
    numbers = set(action[0].tolist())
    assert len(numbers) == 3 and not numbers & set(drawn.ravel().tolist())


def test_past_networks_move_in_turn_in_their_share_of_the_games() -> None:
    config = opponent_pool.Config(pool_size=2, pool_share=0.5)
    agent = opponent_pool.make(_counting(), config, SPEC)
    params = agent.init(jax.random.key(0))
    np.testing.assert_array_equal(params.statistics.networks["w"], [7, 7])
    params = params._replace(statistics=params.statistics._replace(networks={"w": jnp.array([20.0, 30.0])}))
    first = np.zeros((6, B), bool)
    first[0], first[3, 6], first[4, 9] = True, True, True
    action, policy, value, carry = _played(agent, params, first, 6)
    # Half of ten columns are five, of which each of two networks has two: 6 and 7, 8 and 9.
    moves, games, wanted = np.zeros(B, int), np.zeros(B, int), np.full((6, B), 7.0)
    for t in range(6):
        moves[first[t]] = 0
        games += first[t]
        for b in range(6, B):
            if (moves[b] + games[b] + b) % 2 == 0:
                wanted[t, b] = 20 if b < 8 else 30
        moves += 1
    np.testing.assert_allclose(action - 0.07 * np.arange(B), wanted, rtol=1e-6)
    theirs = wanted != 7
    assert not theirs[:, :6].any() and theirs[:, 6:].any(0).all() and not theirs[:, 6:].all(0).any()
    np.testing.assert_allclose(policy, np.where(theirs[..., None], 0, np.full((6, B, 3), 1 / 3)), rtol=1e-6)
    np.testing.assert_array_equal(opponent_pool.has_policy(jnp.asarray(policy)), ~theirs)
    assert opponent_pool.has_policy(jnp.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])).tolist() == [True, False]
    # What the newest network found stays, whoever moves.
    np.testing.assert_allclose(value, np.tile(0.07 * np.arange(B), (6, 1)), rtol=1e-6)
    np.testing.assert_array_equal(carry.own, np.full(B, 6))


def test_a_past_network_begins_every_second_game_of_each_column() -> None:
    agent = opponent_pool.make(_counting(), opponent_pool.Config(pool_size=4, pool_share=0.4), SPEC)
    params = agent.init(jax.random.key(0))
    params = params._replace(statistics=params.statistics._replace(networks={"w": jnp.full(4, 20.0)}))
    first = np.zeros((16, B), bool)
    first[::4] = True  # games of four moves
    action = (_played(agent, params, first, 16)[0] - 0.07 * np.arange(B)).round()
    np.testing.assert_array_equal((action[::4, 6:] == 20).sum(0), [2, 2, 2, 2])
    # With a column for each, half of them begin at first.
    assert (action[0, 6:] == 20).sum() == 2


def test_evaluation_is_by_the_newest_network_alone() -> None:
    agent = opponent_pool.make(_counting(), opponent_pool.Config(pool_size=2, pool_share=1.0), SPEC)
    params = agent.init(jax.random.key(0))
    params = params._replace(statistics=params.statistics._replace(networks={"w": jnp.array([20.0, 30.0])}))
    zero = jnp.zeros(3)
    timestep = types.TimeStep(jnp.full(3, types.FIRST, jnp.int8), zero, zero + 1, zero, ())
    inputs = types.ActInputs(timestep, agent.init_carry(3), jax.random.key(0), zero, state=zero)
    output = agent.evaluate(params, inputs)
    assert np.asarray(output.action).tolist() == [7] * 3 and np.asarray(output.carry.own).tolist() == [1] * 3


def test_a_network_is_kept_after_each_period_in_place_of_the_oldest() -> None:
    agent = opponent_pool.make(_counting(), opponent_pool.Config(pool_size=3, pool_period=2), SPEC)
    params, kept = agent.init(jax.random.key(0)), []
    for update in range(1, 10):
        params = params._replace(network={"w": jnp.float32(100 + update)})
        params = agent.adapt(params, (), {}, (), types.LOCAL)
        kept.append(np.asarray(params.statistics.networks["w"]).tolist())
    assert kept[:4] == [[7, 7, 7], [102, 7, 7], [102, 7, 7], [102, 104, 7]]
    assert kept[-2:] == [[108, 104, 106], [108, 104, 106]]
    assert float(params.network["w"]) == 109 and int(params.statistics.updates) == 9
    statistics, carry = agent.prepare(params, types.LossInputs(types.Unroll((), agent.init_carry(2)), (), *[0] * 3))
    assert statistics == () and np.asarray(carry).tolist() == [0, 0]


@pytest.mark.parametrize("system", ["alphazero", "muzero"])
def test_a_row_in_which_another_network_moved_teaches_nothing(system: str) -> None:
    own = {"num_atoms": 11, "value_bound": 5.0, "n_step": 2}
    own |= {} if system == "alphazero" else {"latent_size": 4, "model_size": 5, "unroll_steps": 2}
    plain = call.make(system, **own)
    rows = call.rows(plain, seed=3, length=plain.agent.context + 5, columns=12)
    shape, rng = rows["step_type"].shape, np.random.default_rng(0)
    policy, value = rng.dirichlet(np.ones(call.A), shape), rng.normal(size=shape)
    theirs = rng.random(shape) < 0.4
    rows |= {"policy": np.where(theirs[..., None], 0.0, policy), "value": value}
    static = {"alphazero": alphazero, "muzero": muzero}[system]
    before = call.prepare(plain, rows)
    # The pool changes who moves, and nothing of what is prepared but this.
    inner = plain.agent.prepare.func  # type: ignore[attr-defined]
    kept = plain.agent.prepare.args[0]  # type: ignore[attr-defined]
    assert inner is static._prepare
    config = kept.config.__class__(**{**kept.config.__dict__, "pool_size": 2})
    pooled = plain._replace(agent=plain.agent._replace(prepare=lambda *x: inner(kept._replace(config=config), *x)))
    after = call.prepare(pooled, rows)
    if system == "alphazero":
        np.testing.assert_array_equal(after.taught, before.taught * ~theirs[0])
        assert 0 < after.taught.sum() < before.taught.sum()
    else:
        wanted = before.teaches_policy * ~theirs[:3].T
        np.testing.assert_array_equal(after.teaches_policy, wanted)
        assert 0 < wanted.sum() < before.teaches_policy.sum()
        np.testing.assert_array_equal(after.teaches_value, before.teaches_value)
        # Windows that open with another's move teach values and rewards all the same.
        learned = call.learn(pooled, rows, call.params(plain, 1))
        assert learned.valid == before.teaches_value[:, 0].sum() > wanted[:, 0].sum()


@pytest.mark.parametrize(
    ("columns", "share", "size", "count"), [(100, 0.29, 29, 29), (100, 0.29, 1, 29), (9, 0.5, 2, 4)]
)
def test_the_columns_of_a_pool_are_its_share(columns: int, share: float, size: int, count: int) -> None:
    found = opponent_pool._places(opponent_pool.Config(pool_size=size, pool_share=share), columns)
    assert found == (columns - count, count)


def test_a_pool_that_does_not_fit_is_refused() -> None:
    with conftest.refused("agent.pool_size=2", "toy:walk"):
        muzero.make(muzero.Config(pool_size=2), envs.make("toy:walk").spec, networks.Config(torso="mlp"))
    agent = opponent_pool.make(_counting(), opponent_pool.Config(pool_size=4, pool_share=0.3), SPEC)
    with conftest.refused("agent.pool_size=4", "agent.pool_share=0.3", "10 environments"):
        _played(agent, agent.init(jax.random.key(0)), np.ones((1, B), bool), 1)
    parts: Any = parallel.LayoutParts._make([None] * len(parallel.LayoutParts._fields))
    parts = parts._replace(agent=agent, environment=envs.make("toy:walk"))
    with conftest.refused("layout.ready_envs=2"):
        actors._check_ready(2, parts, None, 4)
