"""Plays a trained policy against opponents in PGX's games: `python benchmarks/games.py --run=FOLDER --opponent=every`.

Opponents: `random` moves uniformly among legal moves; `rollouts` searches by mctx's PUCT with as many simulations as
the policy, a uniform prior, and for each new node the result of one random game from it. Half of the games are begun by
each. `every` plays each possible reply to each move of the policy, which begins in one tree and does not in another: a
policy that never loses there loses to no player, minimax among them. `kept` is each network of the run's pool
(`--agent.pool_size`), with its rating: on Elo's scale, on which the policy itself has 0. Neither side draws a move
there, so these games open with random ones (`--random_moves`), and each opening is played from both sides. The policy
acts as in evaluation, without noise, and with `--simulations=N` searches longer than it did in training, as AlphaZero
does in its matches (Silver et al. 2018); `rollouts` and `kept` then have as many.
"""

import argparse
import functools
import json
import math
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import pgx

import jaxrl_dist
from jaxrl_dist import envs, types
from jaxrl_dist.agents.shared import search
from jaxrl_dist.envs.host import episodes
from jaxrl_dist.training import assemble

# Positions of one depth of tic-tac-toe that are met by a player with one move for each.
_MOST_POSITIONS = 1024


class Score(NamedTuple):
    """Games by their result for the policy."""

    won: int
    drawn: int
    lost: int

    def told(self) -> dict[str, Any]:
        """Counts, the share of games won, and its 95 % interval (Wilson 1927)."""
        count = self.won + self.drawn + self.lost
        share, z = self.won / count, 1.96
        middle = (share + z * z / (2 * count)) / (1 + z * z / count)
        half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
        return {**self._asdict(), "games": count, "win_rate": share, "interval": [middle - half, middle + half]}


def rating(score: Score) -> float:
    """Returns an opponent's rating on Elo's scale, on which the policy has 0; of one who never scored, a bound."""
    count = score.won + score.drawn + score.lost
    share = min(max((score.won + score.drawn / 2) / count, 0.5 / count), 1 - 0.5 / count)
    return -400 * math.log10(share / (1 - share))


def random_move(state: Any, key: Any) -> Any:
    """Moves uniformly among legal moves; i32 [B] of PGX's states [B]."""
    return jax.random.categorical(key, search.legal(jnp.zeros(state.legal_action_mask.shape), state.legal_action_mask))


def by_rollouts(game: Any, simulations: int, state: Any, key: Any) -> Any:
    """Moves by a search whose values are results of random games; i32 [B] of PGX's states [B]."""
    config = search.Config(search="muzero", simulations=simulations)
    root_key, search_key = jax.random.split(key)

    def node(state: Any, key: Any) -> search.Node:
        mask = state.legal_action_mask
        return search.Node(search.legal(jnp.zeros(mask.shape), mask), _rollout(game, state, key), state)

    def model(network: Any, key: Any, action: Any, state: Any) -> search.Edge:
        mover, after = state.current_player, jax.vmap(game.step)(state, action)
        reward = jnp.take_along_axis(after.rewards, mover[:, None], 1)[:, 0]
        # Behind the end PGX's rewards are 0 and so is the value.
        return search.Edge(reward, jnp.where(after.terminated, 0.0, -1.0), node(after, key))

    root = node(state, root_key)
    return search.run(config, model, (), search_key, root, state.legal_action_mask)[0]


def _rollout(game: Any, state: Any, key: Any) -> Any:
    """Plays at random to the end; returns the result f32 [B] for who is to move."""
    player = state.current_player

    def goes_on(carry: Any) -> Any:
        return ~(carry[0].terminated | carry[0].truncated).all()

    def play(carry: Any) -> Any:
        state, total, key = carry
        key, move_key = jax.random.split(key)
        after = jax.vmap(game.step)(state, random_move(state, move_key))
        return after, total + jnp.take_along_axis(after.rewards, player[:, None], 1)[:, 0], key

    # Of a game that is over PGX gives no rewards.
    zero = jnp.zeros(player.shape, jnp.float32)
    return jax.lax.while_loop(goes_on, play, (state, zero, key))[1]


def opponents(policy: Any, game: Any, name: str) -> Iterator[Any]:
    """Yields what is said of each opponent of that name, and (columns' state, timestep, key) -> its moves i32 [B]."""
    simulations = policy.settings["agent.simulations"]
    if name == "kept":
        pool = policy.params.statistics
        if not hasattr(pool, "networks"):
            raise SystemExit("games.py: --opponent=kept: the run has no pool; train it with --agent.pool_size=4")
        after = kept_after(int(pool.updates), policy.settings["agent.pool_period"], policy.settings["agent.pool_size"])
        for updates, k in sorted(zip(after, range(len(after)), strict=True)):
            params = policy.params._replace(network=jax.tree.map(lambda x, k=k: x[k], pool.networks))
            yield {"kept_after_updates": updates}, functools.partial(moves, policy, params)
    else:
        move = random_move if name == "random" else functools.partial(by_rollouts, game, simulations)
        yield {}, lambda state, timestep, key: move(state.environment.game, key)


def moves(policy: Any, params: Any, state: Any, timestep: Any, key: Any) -> Any:
    """Returns the moves i32 [B] of a policy with these parameters."""
    return policy.agent.evaluate(params, _inputs(policy, timestep, key, state)).action


def kept_after(updates: int, period: int, size: int) -> list[int]:
    """Returns after how many updates the network at each place of a pool was kept; 0 of the first network."""
    newest = updates // period
    return [max(newest - (newest - 1 - place) % size, 0) * period for place in range(size)]


def play(policy: Any, opponent: Any, games: int, key: Any) -> Score:
    """Plays games at once; each two begin alike, and the policy moves first in one of them."""
    columns = envs.columns(policy.environment)
    begins = jnp.arange(games) % 2 == 0

    def goes_on(carry: Any) -> Any:
        return ~carry[-1].all()

    def move(params: Any, carry: Any) -> Any:
        t, key, state, timestep, result, done = carry
        key, own_key, other_key = jax.random.split(key, 3)
        is_own = begins == (t % 2 == 0)
        own = moves(policy, params, state, timestep, own_key)
        other = opponent(state, timestep, other_key)
        state, timestep = columns.step(state, jnp.where(is_own, own, other))
        ended = (timestep.step_type == types.LAST) & ~done
        result = jnp.where(ended, jnp.where(is_own, 1.0, -1.0) * timestep.reward, result)
        return t + 1, key, state, timestep, result, done | ended

    @jax.jit
    def whole(params: Any, key: Any) -> Any:
        reset_key, key = jax.random.split(key)
        state, timestep = columns.reset(reset_key, jnp.arange(games) // 2)
        carry = jnp.int32(0), key, state, timestep, jnp.zeros(games), jnp.zeros(games, bool)
        return jax.lax.while_loop(goes_on, functools.partial(move, params), carry)[4]

    return _score(np.asarray(whole(policy.params, key)))


def play_every(policy: Any, key: Any) -> Score:
    """Meets each move of the policy by each legal reply, in a game of few positions."""
    columns, results = envs.columns(policy.environment), []
    act = jax.jit(lambda state, timestep: policy.agent.evaluate(policy.params, _inputs(policy, timestep, key, state)))
    step = jax.jit(columns.step)
    for policy_begins in (True, False):
        at, is_own = columns.reset(key, jnp.zeros(1, jnp.int32)), policy_begins
        while count := at[1].reward.shape[0]:
            if is_own:
                index, action = np.arange(count), np.asarray(act(*_filled(at)).action)[:count]
            else:
                index, action = np.nonzero(np.asarray(at[1].observation[episodes.MASK]))
            after = step(*_filled((_taken(at[0], index), jnp.asarray(action, jnp.int32))))
            over = np.asarray(after[1].step_type)[: len(index)] == types.LAST
            results.append(np.asarray(after[1].reward)[: len(index)][over] * (1 if is_own else -1))
            at, is_own = _taken(after, np.flatnonzero(~over)), not is_own
    return _score(np.concatenate(results))


def loaded(run: str, seed_index: int, opponent: str, random_moves: int) -> Any:
    """Loads a policy whose games open with 0 to so many random moves.

    For 0, games against kept networks open as in training, and all others begin as the game does.
    """
    if opponent != "kept" or random_moves:
        return jaxrl_dist.load(run, seed_index=seed_index, settings={"env.params.random_moves": random_moves})
    policy = jaxrl_dist.load(run, seed_index=seed_index)
    if policy.settings.env_params.get("random_moves", "0") == "0":
        raise SystemExit("games.py: --opponent=kept: such games would all be two; give --random_moves=4")
    return policy


def searching(policy: Any, simulations: int) -> Any:
    """Returns the policy with so many simulations in each search."""
    settings = policy.settings.replaced({"agent.simulations": simulations})
    return policy._replace(agent=assemble.make_agent(settings, *assemble.facts(policy.environment)), settings=settings)


def _inputs(policy: Any, timestep: Any, key: Any, state: Any) -> types.ActInputs:
    carry = policy.agent.init_carry(timestep.reward.shape[0])
    return types.ActInputs(timestep._replace(info=()), carry, key, state=state)


def _taken(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


def _filled(tree: Any) -> Any:
    """Repeats the last row, so that one program serves positions of all depths."""
    count = jax.tree.leaves(tree)[0].shape[0]
    return _taken(tree, np.minimum(np.arange(_MOST_POSITIONS), count - 1))


def _score(result: np.ndarray) -> Score:
    return Score(*(int((result == value).sum()) for value in (1, 0, -1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--opponent", choices=("random", "rollouts", "every", "kept"), default="random")
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--simulations", type=int, default=0, help="of the policy's search; 0 for the run's own")
    parser.add_argument(
        "--random_moves", type=int, default=0, help="a game opens by 0 to so many; for kept, 0 means as in training"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seed_index", type=int, default=0)
    arguments = parser.parse_args()
    policy = loaded(arguments.run, arguments.seed_index, arguments.opponent, arguments.random_moves)
    policy = searching(policy, arguments.simulations or policy.settings["agent.simulations"])
    name, key = policy.settings["env"].partition(":")[2], jax.random.key(arguments.seed)
    told = {"run": arguments.run, "simulations": policy.settings["agent.simulations"], "opponent": arguments.opponent}
    if arguments.opponent == "every":
        print(json.dumps(told | play_every(policy, key).told()))
        return
    for own, opponent in opponents(policy, pgx.make(name), arguments.opponent):
        score = play(policy, opponent, arguments.games, key)
        own |= {"rating": round(rating(score))} if arguments.opponent == "kept" else {}
        print(json.dumps(told | own | score.told()), flush=True)


if __name__ == "__main__":
    main()
