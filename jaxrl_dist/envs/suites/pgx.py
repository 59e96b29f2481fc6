"""The suite pgx (2.6.0): board and card games and MinAtar, all on the device, played by one agent.

In a game for two, the agent is one player, and the environment plays uniformly random legal moves for the other; each
game draws who begins. With `opponent=self` the agent plays both players of a board game in turn, and only its
evaluation is against random moves; `random_moves` of both open its games, so that it learns what to do behind openings
that it would not play. The leaf `action_mask` of an observation says which actions are legal, so agents
play no other; by PGX's own rule an illegal action loses the game at once.
"""

import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import envs, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.envs.host import episodes
from jaxrl_dist.types import Array, ArrayTree

_NAME = "pgx"
# All that PGX makes by name, but for sparrow_mahjong, whose three players can end it before the agent's first turn.
ENVIRONMENTS = (
    "2048",
    "animal_shogi",
    "backgammon",
    "chess",
    "connect_four",
    "gardner_chess",
    "go_9x9",
    "go_19x19",
    "hex",
    "kuhn_poker",
    "leduc_holdem",
    "minatar-asterix",
    "minatar-breakout",
    "minatar-freeway",
    "minatar-seaquest",
    "minatar-space_invaders",
    "othello",
    "shogi",
    "tic_tac_toe",
)

_DEFAULTS = {"max_steps": 0, "opponent": "random", "random_moves": 0}
_OPPONENTS = ("random", "self")
_AGENT = 0
# Games in which each move is followed by one of the other player, and what one wins the other loses.
_WON_OR_LOST = (
    *("animal_shogi", "chess", "connect_four", "gardner_chess", "go_9x9", "go_19x19"),
    *("hex", "othello", "shogi", "tic_tac_toe"),
)


class State(NamedTuple):
    """State of one game.

    Attributes:
        game: PGX's own state; it is the agent's turn, or the game is over.
        steps: i32 [], steps of the agent, which in self-play makes all moves.
    """

    game: ArrayTree
    steps: Array


def make(name: str, params: dict[str, str]) -> envs.Environment:
    """Makes `pgx:name`.

    Args:
        name: one of `ENVIRONMENTS`.
        params: `max_steps`, the time limit in steps of the agent, 0 for none, as in PGX; `opponent`, random or self;
            `random_moves`, with `opponent=self`: each game is opened by 0 to so many, drawn for each, which are no
            steps.

    Raises:
        errors.UsageError: unknown parameter, or a value that does not fit; or self-play of another game than a board
            game for two.
        ModuleNotFoundError: PGX is not installed.
    """
    library = importlib.import_module("pgx")
    values = {**_DEFAULTS, **parameters.parse_params(params, _DEFAULTS, f"{_NAME}:{name}")}
    parameters.check_least(values, {"max_steps": 0, "random_moves": 0})
    parameters.check_choice("opponent", values["opponent"], _OPPONENTS)
    game, max_steps = library.make(name), values["max_steps"]
    against_random = wrappers.auto_reset(adapt(game, name, max_steps))
    if values["opponent"] == "random":
        if values["random_moves"]:
            why = "they open games against oneself; valid: 0, or env.params.opponent=self"
            raise parameters.refused("random_moves", values["random_moves"], why)
        return against_random
    if name not in _WON_OR_LOST:
        why = f"self-play is for games of two who move in turn: {', '.join(_WON_OR_LOST)}"
        raise parameters.refused("opponent", "self", why)
    against_itself = wrappers.auto_reset(adapt_self_play(game, name, max_steps, values["random_moves"]))
    return against_itself._replace(evaluation=against_random)


def adapt(game: Any, name: str, max_steps: int = 0) -> envs.BareEnvironment:
    """Gives a game of PGX's for one or two players the interface of a bare environment.

    Args:
        game: PGX's environment.
        name: name without that of the suite.
        max_steps: time limit, 0 for none.
    """

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        init_key, play_key = jax.random.split(key)
        state, _ = _until_its_turn(game, game.init(init_key), play_key)
        return State(state, jnp.int32(0)), _observed(game, state)

    def step(key: Array, state: State, action: Array) -> envs.Transition:
        step_key, play_key = jax.random.split(key)
        after = game.step(state.game, action, step_key)
        last, reward = _until_its_turn(game, after, play_key)
        steps = state.steps + 1
        return envs.Transition(
            state=State(last, steps),
            observation=_observed(game, last),
            reward=after.rewards[_AGENT] + reward,
            terminated=last.terminated,
            truncated=last.truncated | ((max_steps > 0) & (steps >= max_steps)),
        )

    return envs.BareEnvironment(reset, step, _spec(game, name, max_steps))


def adapt_self_play(game: Any, name: str, max_steps: int = 0, random_moves: int = 0) -> envs.BareEnvironment:
    """Gives a game of PGX's for two players who move in turn the interface of a bare environment that moves for nobody.

    Args:
        game: PGX's environment.
        name: name without that of the suite.
        max_steps: time limit in moves of both, 0 for none.
        random_moves: a game is opened by 0 to so many; fewer than end one.
    """

    def reset(key: Array) -> tuple[ArrayTree, ArrayTree]:
        if random_moves:
            # A folded key would be the second of those that a game splits its own start's into.
            key, moves_key = jax.random.split(key)
        state = game.init(key)
        if random_moves:
            state = _opened(game, state, random_moves, moves_key)
        return State(state, jnp.int32(0)), _observed(game, state, state.current_player)

    def step(key: Array, state: State, action: Array) -> envs.Transition:
        after, steps = game.step(state.game, action, key), state.steps + 1
        return envs.Transition(
            state=State(after, steps),
            observation=_observed(game, after, after.current_player),
            reward=after.rewards[state.game.current_player],
            terminated=after.terminated,
            truncated=after.truncated | ((max_steps > 0) & (steps >= max_steps)),
        )

    return envs.BareEnvironment(reset, step, _spec(game, name, max_steps)._replace(players=2))


def _opened(game: Any, state: Any, most: int, key: Array) -> Any:
    """Plays 0 to `most` random moves, each number of them as often, while the game goes on.

    Source: Wu 2019, "Accelerating self-play learning in Go" (KataGo's games open with moves that are drawn).
    """
    count_key, *keys = jax.random.split(key, most + 1)
    count = jax.random.randint(count_key, (), 0, most + 1)
    for i, move_key in enumerate(keys):
        act_key, step_key = jax.random.split(move_key)
        after = game.step(state, _random_action(act_key, state.legal_action_mask), step_key)
        plays = (i < count) & ~after.terminated & ~after.truncated
        state = jax.tree.map(lambda new, old, plays=plays: jnp.where(plays, new, old), after, state)
    return state


def _spec(game: Any, name: str, max_steps: int) -> types.EnvironmentSpec:
    return types.EnvironmentSpec(
        name=f"{_NAME}:{name}",
        observation=(),
        action=types.DiscreteSpace(game.num_actions),
        family=_family(game),
        reward_range=(-1.0, 1.0) if name in _WON_OR_LOST else (-float("inf"), float("inf")),
        time_limit=max_steps,
        mask=episodes.MASK,
    )


def _family(game: Any) -> str:
    if len(game.observation_shape) != 3:
        return "classic"
    return "board" if game.num_players == 2 else "minatar"


def _observed(game: Any, state: Any, player: Any = _AGENT) -> ArrayTree:
    return {episodes.MASK: state.legal_action_mask, "observation": game._observe(state, player)}


def _until_its_turn(game: Any, state: Any, key: Array) -> tuple[Any, Array]:
    """Plays for the other player until it is the agent's turn or the game is over.

    Returns:
        The state, and the sum of the agent's rewards meanwhile.
    """

    def goes_on(carry: tuple[Any, Array, Array]) -> Array:
        state = carry[0]
        return (state.current_player != _AGENT) & ~state.terminated & ~state.truncated

    def play(carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        state, total, key = carry
        key, act_key, step_key = jax.random.split(key, 3)
        state = game.step(state, _random_action(act_key, state.legal_action_mask), step_key)
        return state, total + state.rewards[_AGENT], key

    state, total, _ = jax.lax.while_loop(goes_on, play, (state, jnp.zeros_like(state.rewards[_AGENT]), key))
    return state, total


def _random_action(key: Array, is_legal: Array) -> Array:
    """Draws one of the legal actions uniformly; i32 []."""
    return jax.random.categorical(key, jnp.where(is_legal, 0.0, -jnp.inf)).astype(jnp.int32)


SUITE = envs.Suite(_NAME, "device", make, ENVIRONMENTS)
