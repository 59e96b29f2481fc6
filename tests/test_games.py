"""Ratings of games against opponents."""

import pathlib
from typing import Any

import pytest

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
