"""Leaves of a tree that several processes hold: each writes a file with the pieces that are on its devices.

Orbax would write them, too, but waits for all processes in collectives of its own, which end only by their own
time-outs; here a process that fails is heard of at once. A file holds the bytes of its pieces one after the other, so
that a reader maps it, and reads what its own devices take.
"""

import functools
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_dist import processes
from jaxrl_dist.runs.checkpoint import arrays
from jaxrl_dist.runs.checkpoint.arrays import Leaf

# A piece as JSON: index of the leaf, process, offset in its file, and for each axis where the piece begins and ends.
Piece = list[Any]


def file_of(process: int) -> str:
    """Returns the name of the file with the pieces of a process."""
    return f"pieces_{process}.bin"


def write(folder: pathlib.Path, values: Sequence[Any]) -> list[Piece]:
    """Writes the pieces of this process: those of leaves that are spread, and in process 0 all other leaves.

    Args:
        folder: where the files of all processes are written.
        values: leaves in order, of keys their data.

    Returns:
        The pieces that were written.
    """
    written, offset = list[Piece](), 0
    with (folder / file_of(processes.index())).open("wb") as file:
        for number, value in enumerate(values):
            for bounds, array in _own(value):
                file.write(np.ascontiguousarray(array).tobytes())
                written.append([number, processes.index(), offset, bounds])
                offset += array.nbytes
    return written


def _own(value: Any) -> list[tuple[list[list[int]], np.ndarray]]:
    """Returns the pieces of a leaf that this process writes, with their bounds."""
    if arrays.is_spread(value) and not value.is_fully_replicated:
        own = [shard for shard in value.addressable_shards if shard.replica_id == 0]
        return [(_bounds(shard.index, value.shape), np.asarray(shard.data)) for shard in own]
    if not processes.is_first():
        return []
    whole = np.asarray(value)
    return [(_bounds((slice(None),) * whole.ndim, whole.shape), whole)]


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> list[list[int]]:
    return [list(one.indices(size)[:2]) for one, size in zip(index, shape, strict=True)]


def checked(written: Any, leaves: Sequence[Leaf]) -> list[Piece]:
    """Returns the pieces that a checkpoint names.

    Raises:
        ValueError: they are none, or not of these leaves.
    """
    for number, process, offset, bounds in written:
        whole = [number, process, offset, *(edge for pair in bounds for edge in pair)]
        inside = [
            0 <= start <= stop <= size for (start, stop), size in zip(bounds, leaves[number].data_shape, strict=True)
        ]
        if not all(type(x) is int and x >= 0 for x in whole) or not all(inside):
            raise ValueError(f"a piece of leaf {number} is none")
    covered = [0] * len(leaves)
    for number, *_, bounds in written:
        covered[number] += math.prod(stop - start for start, stop in bounds)
    for leaf, count in zip(leaves, covered, strict=True):
        if count != math.prod(leaf.data_shape):
            raise ValueError(f"the pieces of leaf {leaf.path!r} are not all there")
    return list(written)


def read(folder: pathlib.Path, leaves: Sequence[Leaf], pieces: Sequence[Piece]) -> list[Callable[[Any], np.ndarray]]:
    """Returns for each leaf a function (index as tuple of slices) -> that part of it.

    Args:
        folder: with the files of all processes.
        leaves: descriptions of all leaves.
        pieces: of all processes.
    """

    def part(leaf: Leaf, own: Sequence[Piece], index: tuple[slice, ...]) -> np.ndarray:
        wanted = _bounds(index, leaf.data_shape)
        result = np.empty([stop - start for start, stop in wanted], leaf.data_dtype)
        for _, process, offset, bounds in own:
            both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, bounds, strict=True)]
            if all(start < stop for start, stop in both):
                shape = tuple(stop - start for start, stop in bounds)
                kind: Any = np.dtype(leaf.data_dtype)
                # No file maps as an array without elements, and a leaf of none has no part that is wanted here.
                mapped = np.memmap(folder / file_of(process), kind, "r", offset, shape)
                there = tuple(slice(i - w[0], j - w[0]) for (i, j), w in zip(both, wanted, strict=True))
                here = tuple(slice(i - b[0], j - b[0]) for (i, j), b in zip(both, bounds, strict=True))
                result[there] = mapped[here]
        return result

    by_leaf: list[list[Piece]] = [[] for _ in leaves]
    for piece in pieces:
        by_leaf[piece[0]].append(piece)
    return [functools.partial(part, leaf, own) for leaf, own in zip(leaves, by_leaf, strict=True)]


def data_of(value: Any) -> Any:
    """Returns the data of typed keys, any other leaf as it is."""
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(value) if is_key else value
