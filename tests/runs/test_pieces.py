"""Pieces of leaves that are spread: written by those who hold them, read for any other division."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_dist.runs.checkpoint import arrays, pieces

ARRAY = np.arange(4 * 6 * 3, dtype=np.float32).reshape(4, 6, 3)


@pytest.fixture
def written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[arrays.Leaf], list[pieces.Piece]]:
    """Pieces of an array over 2 × 2 devices that counts as spread, and of one without elements and one number."""
    mesh = Mesh(np.asarray(jax.devices()[:8]).reshape(2, 2, 2), ("a", "b", "copies"))
    spread = jax.device_put(ARRAY, NamedSharding(mesh, PartitionSpec("a", "b")))
    monkeypatch.setattr(arrays, "is_spread", lambda value: value is spread)
    tree = [spread, np.zeros((0, 2), np.int32), jnp.int32(7)]
    return arrays.describe(tree), pieces.write(tmp_path, tree)


def test_any_part_is_read_back(written: tuple[list[arrays.Leaf], list[pieces.Piece]], tmp_path: pathlib.Path) -> None:
    leaves, own = written
    assert [len([piece for piece in own if piece[0] == i]) for i in range(3)] == [4, 1, 1]
    spread, empty, number = pieces.read(tmp_path, leaves, pieces.checked(own, leaves))
    for index in np.ndindex(4, 6):
        parts = (slice(index[0], 4), slice(0, index[1] + 1), slice(None))
        np.testing.assert_array_equal(spread(parts), ARRAY[parts])
    assert empty((slice(None), slice(None))).shape == (0, 2)
    assert number(()) == 7


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda own: own.pop(), id="missing"),
        pytest.param(lambda own: own.append(own[0]), id="twice"),
        pytest.param(lambda own: own[0].__setitem__(1, "../0"), id="path"),
        pytest.param(lambda own: own[0].__setitem__(2, -4), id="offset"),
        pytest.param(lambda own: own[0][3][0].__setitem__(1, 99), id="bounds"),
    ],
)
def test_pieces_that_are_not_as_written_are_refused(
    change: object, written: tuple[list[arrays.Leaf], list[pieces.Piece]]
) -> None:
    leaves, own = written
    change(own)
    with pytest.raises(ValueError):
        pieces.checked(own, leaves)
