"""Self-play: a game of two whose players are both the agent, and whose evaluation is another environment."""

from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxrl_dist import envs, types
from jaxrl_dist.envs import wrappers
from jaxrl_dist.envs.suites import pgx
from jaxrl_dist.training import assemble


class Sticks:
    """A game as PGX has them: two players take one or two of some sticks; who takes the last wins."""

    num_actions = 2
    observation_shape = (2,)

    @struct.dataclass
    class State:
        current_player: Any
        left: Any
        rewards: Any
        terminated: Any
        truncated: Any
        legal_action_mask: Any

    def __init__(self, sticks: int, first: int) -> None:
        self._sticks, self._first = sticks, first

    def init(self, key: Any) -> Any:
        false = jnp.bool_(False)
        return self.State(
            jnp.int32(self._first), jnp.int32(self._sticks), jnp.zeros(2), false, false, jnp.ones(2, bool)
        )

    def step(self, state: Any, action: Any, key: Any = None) -> Any:
        left, player = jnp.maximum(state.left - 1 - action, 0), state.current_player
        won = jnp.where(jnp.arange(2) == player, 1.0, -1.0)
        return state.replace(
            current_player=1 - player,
            left=left,
            rewards=jnp.where(left == 0, won, 0.0),
            terminated=left == 0,
            legal_action_mask=jnp.array([True, False]) | (left != 1),
        )

    def _observe(self, state: Any, player: Any) -> Any:
        return jnp.stack([state.left, jnp.asarray(player, jnp.int32)]).astype(jnp.float32)


@pytest.mark.parametrize("first", [0, 1])
def test_each_row_is_of_the_player_who_moves(first: int) -> None:
    environment = wrappers.auto_reset(pgx.adapt_self_play(Sticks(4, first), "sticks"))
    assert environment.spec.players == 2
    state, timestep = environment.reset(jax.random.key(0))
    seen, rewards, kinds = [timestep.observation["observation"].tolist()], [], []
    for action in (0, 1, 0, 0):
        state, timestep = environment.step(state, jnp.int32(action))
        seen.append(timestep.observation["observation"].tolist())
        rewards.append(float(timestep.reward))
        kinds.append(int(timestep.step_type))
    second = 1 - first
    # Who began takes the last stick and wins, and the next game begins.
    assert seen == [[4, first], [3, second], [1, first], [0, second], [4, first]]
    assert rewards == [0, 0, 1, 0] and kinds == [types.MID, types.MID, types.LAST, types.FIRST]


def test_a_time_limit_counts_moves_of_both() -> None:
    environment = wrappers.auto_reset(pgx.adapt_self_play(Sticks(9, 0), "sticks", max_steps=2))
    state, _ = environment.reset(jax.random.key(0))
    kinds = []
    for _ in range(2):
        state, timestep = environment.step(state, jnp.int32(0))
        kinds.append((int(timestep.step_type), float(timestep.discount)))
    assert kinds == [(types.MID, 1.0), (types.LAST, 1.0)]


def test_games_open_with_moves_that_are_drawn() -> None:
    keys = jax.random.split(jax.random.key(0), 4_000)
    environment = wrappers.auto_reset(pgx.adapt_self_play(Sticks(4, 0), "sticks", random_moves=2))
    state, timestep = jax.vmap(environment.reset)(keys)
    left, player = np.asarray(timestep.observation["observation"]).T.astype(int)
    # None, one or two moves of one or two sticks each, but none that ends the game: 2 + 2 of 4 sticks are 2.
    pairs, counts = np.unique(np.stack([left, player]), axis=1, return_counts=True)
    wanted = {(4, 0): 1 / 3, (3, 1): 1 / 6, (2, 1): 1 / 6 + 1 / 12, (2, 0): 1 / 12, (1, 0): 1 / 6}
    found = dict(zip(map(tuple, pairs.T.tolist()), counts / len(keys), strict=True))
    assert found == pytest.approx(wanted, abs=0.03)
    assert (np.asarray(state.environment.steps) == 0).all() and (timestep.step_type == types.FIRST).all()
    _, none = jax.vmap(wrappers.auto_reset(pgx.adapt_self_play(Sticks(4, 0), "sticks")).reset)(keys[:9])
    assert (np.asarray(none.observation["observation"]) == [4, 0]).all()


def test_openings_are_drawn_by_keys_that_the_game_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    class Keyed(Sticks):
        def init(self, key: Any) -> Any:
            given.extend([key, *jax.random.split(key, 2), *jax.random.split(key, 3)])
            return super().init(key)

    def opened(game: Any, state: Any, most: int, key: Any) -> Any:
        given.append(key)
        return state

    monkeypatch.setattr(pgx, "_opened", opened)
    pgx.adapt_self_play(Keyed(4, 0), "sticks", random_moves=2).reset(jax.random.key(0))
    *theirs, ours = (tuple(jax.random.key_data(key).tolist()) for key in given)
    assert len(theirs) == 6 and ours not in theirs


def test_states_of_self_play_are_those_of_the_environment_that_is_scored() -> None:
    own, scored = (wrappers.auto_reset(adapt(Sticks(5, 1), "sticks")) for adapt in (pgx.adapt_self_play, pgx.adapt))
    mine, other = (jax.eval_shape(one.reset, jax.random.key(0)) for one in (own, scored))
    assert jax.tree.structure(mine) == jax.tree.structure(other)
    assert jax.tree.leaves(mine) == jax.tree.leaves(other)


def test_the_environment_of_the_evaluation_is_scored() -> None:
    settings, environment = assemble.resolve({"system": "a2c", "env": "toy:walk", **conftest.SMALL["a2c"]})

    def reset(key: Any) -> Any:
        return jnp.int32(0), jnp.zeros(environment.spec.observation.shape)

    def step(key: Any, state: Any, action: Any) -> envs.Transition:
        return envs.Transition(state, jnp.zeros(environment.spec.observation.shape), 7.0, True, False)

    scored = wrappers.auto_reset(envs.BareEnvironment(reset, step, environment.spec._replace(observation=())))
    for shown in (lambda one: one, lambda one: wrappers.observe(one, (1, 0))):
        whole = shown(environment._replace(evaluation=scored))
        parts = assemble.assemble(settings, whole, jax.devices()[:1], episodes=3)
        keys = assemble.seed_keys(settings)
        np.testing.assert_array_equal(parts.evaluate(parts.init(keys).learner.params, keys, 0), 7.0)


class Twice:
    """A game whose second player moves twice in a row, and in which each move gives the first player 1 or 2."""

    num_actions = 100
    observation_shape = (2,)

    @struct.dataclass
    class State:
        current_player: Any
        moves: Any
        rewards: Any
        terminated: Any
        truncated: Any
        legal_action_mask: Any

    def init(self, key: Any) -> Any:
        false = jnp.bool_(False)
        return self.State(jnp.int32(0), jnp.zeros(2, jnp.int32), jnp.zeros(2), false, false, jnp.ones(100, bool))

    def step(self, state: Any, action: Any, key: Any = None) -> Any:
        moves = jnp.stack([state.moves[1], action])
        reward = jnp.where(state.current_player == 0, 1.0, 2.0)
        # Behind the first player's move of 0 come two of the second's, which are never 0.
        player = jnp.where(moves[1] == 0, 1, jnp.where(moves[0] == 0, 1, 0))
        mask = jnp.ones(100, bool).at[0].set(player == 0)
        return state.replace(
            current_player=player, moves=moves, rewards=reward * jnp.array([1.0, -1.0]), legal_action_mask=mask
        )

    def _observe(self, state: Any, player: Any) -> Any:
        return state.moves.astype(jnp.float32)


def test_the_moves_of_the_other_player_are_drawn_apart_and_their_rewards_count_together() -> None:
    environment = wrappers.auto_reset(pgx.adapt(Twice(), "twice"))
    state, _ = jax.vmap(environment.reset)(jax.random.split(jax.random.key(0), 50))
    _, row = jax.vmap(environment.step, (0, None))(state, jnp.int32(0))
    assert row.reward.tolist() == [1.0 + 2.0 + 2.0] * 50
    first, second = np.asarray(row.observation["observation"]).T
    assert first.min() > 0 and second.min() > 0
    # Of 99 moves each, so that few are equal, and all of them differ between games.
    assert (first == second).sum() < 5 and len({*zip(first.tolist(), second.tolist(), strict=True)}) > 45
