"""Games against opponents: their openings, and the ratings of who plays them."""

import pathlib
import types
from typing import Any

import jax.numpy as jnp
import pytest

from jaxrl_dist import envs

BENCHMARKS = pathlib.Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def games(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("pgx", reason="needs PGX")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import games

    return games


def test_an_opponent_s_rating_is_on_the_scale_of_elo(games: Any) -> None:
    # Who scores ten to one is 400 points above.
    assert games.rating(games.Score(10, 0, 1)) == pytest.approx(-400)
    assert games.rating(games.Score(0, 2, 9)) == pytest.approx(400)
    assert games.rating(games.Score(3, 4, 3)) == 0
    assert games.rating(games.Score(10, 0, 0)) == pytest.approx(games.rating(games.Score(19, 0, 1)))
    assert games.rating(games.Score(0, 0, 10)) == pytest.approx(games.rating(games.Score(1, 0, 19)))


@pytest.mark.parametrize("random_moves", [0, 4])
def test_each_opening_is_played_from_both_sides(games: Any, random_moves: int) -> None:
    """A player of the first legal square beats himself as often as he loses, and openings make more than one game."""
    found = []

    def first_legal(params: Any, inputs: Any) -> Any:
        return types.SimpleNamespace(action=jnp.argmax(inputs.timestep.observation["action_mask"], -1))

    def second(state: Any, timestep: Any, key: Any) -> Any:
        found.append(state)
        return jnp.argmax(timestep.observation["action_mask"], -1)

    environment = envs.make("pgx:tic_tac_toe", {"opponent": "self", "random_moves": str(random_moves)})
    agent = types.SimpleNamespace(evaluate=first_legal, init_carry=lambda count: ())
    policy = types.SimpleNamespace(environment=environment, agent=agent, params=())
    score = games.play(policy, second, 40, games.jax.random.key(0))
    assert found and score.won == score.lost and sum(score) == 40
    # Without openings the first to move wins each game.
    assert (score.drawn == 0) if random_moves == 0 else (score.won > 0)
    first = games.play(policy, second, 1, games.jax.random.key(0))
    assert random_moves or first == (1, 0, 0)


def test_kept_networks_meet_behind_openings(games: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(run: str, seed_index: int, params: Any = None) -> Any:
        asked.append(params)
        own = {"random_moves": "8"} if run == "opened" else {}
        return types.SimpleNamespace(settings=types.SimpleNamespace(env_params=own))

    asked: list[Any] = []
    monkeypatch.setattr(games.jaxrl_dist, "load", load)
    games.loaded("opened", 0, "kept", 0)
    games.loaded("opened", 0, "kept", 2)
    games.loaded("opened", 0, "every", 0)
    assert asked == [None, {"random_moves": "2"}, {"random_moves": "0"}]
    with pytest.raises(SystemExit, match="--random_moves"):
        games.loaded("not opened", 0, "kept", 0)


def test_networks_are_told_apart_by_when_they_were_kept(games: Any) -> None:
    # After updates 10, 20 and 30, in three places; then in the first two of them again.
    assert games.kept_after(39, 10, 3) == [10, 20, 30]
    assert games.kept_after(50, 10, 3) == [40, 50, 30]
    assert games.kept_after(10, 10, 3) == [10, 0, 0] and games.kept_after(9, 10, 2) == [0, 0]
