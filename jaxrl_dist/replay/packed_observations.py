"""The host tier of a replay: observations in the host's memory, as a compressed block for each unroll of a column.

All other fields of the ring stay on the devices. Blocks are compressed by zstd at level 1 with a window as long as the
block, since an Atari frame differs from the one before in few places.
"""

import threading
from collections.abc import Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np
import zstandard

from jaxrl_dist import errors
from jaxrl_dist.types import ArrayTree

_LEVEL, _THREADS = 1, 4
# Logarithms of bytes: zstd's own window at this level, and the largest that a decompressor takes unasked.
_SMALLEST_WINDOW, _LARGEST_WINDOW = 19, 27

Block = tuple[bytes, ...]


class Tiered(NamedTuple):
    """State of a replay in two tiers.

    Attributes:
        ring: `ring.RingState` without observations, on the devices.
        drawn: `types.Sample` of the next update, without observations, items first; zeros if none was drawn.
        blocks: `Blocks` in a run, `Saved` in a checkpoint.
    """

    ring: ArrayTree
    drawn: ArrayTree
    blocks: Any


class Saved(NamedTuple):
    """Blocks as arrays: all bytes, the size of each block i64 [D, B, C / T, leaves], and heads i64 [D, B]."""

    data: Any
    sizes: Any
    heads: Any


class Observations:
    """Packs observations into blocks, and unpacks them."""

    def __init__(self, row: ArrayTree, length: int) -> None:
        """Takes a tree of one row's shapes and dtypes, and T, the rows of a block."""
        self.leaves, self.structure = jax.tree.flatten(row)
        self.length = length
        sizes = [length * int(np.prod(x.shape)) * np.dtype(x.dtype).itemsize for x in self.leaves]
        self.block_bytes = sum(sizes)
        self._window = min(max(max(sizes, default=0).bit_length(), _SMALLEST_WINDOW), _LARGEST_WINDOW)

    def pack(self, observation: ArrayTree) -> list[Block]:
        """Compresses leaves [T, N, ...] to one block for each of the N."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(observation)]
        compress = _CODECS.compressor(self._window).compress
        return [
            tuple(compress(_as_bytes(np.ascontiguousarray(leaf[:, n]))) for leaf in leaves)
            for n in range(leaves[0].shape[1])
        ]

    def unpack(self, block: Block) -> list[np.ndarray]:
        """Returns the leaves [T, ...] of a block."""
        decompress = _CODECS.decompressor.decompress
        return [
            np.frombuffer(decompress(data), leaf.dtype).reshape(self.length, *leaf.shape)
            for data, leaf in zip(block, self.leaves, strict=True)
        ]

    def unpack_into(self, block: Block, rows: Sequence[np.ndarray]) -> None:
        """Writes the leaves [T, ...] of a block into contiguous arrays, where `unpack` would make new ones.

        Raises:
            ValueError: the block ends too early.
        """
        decompressor = _CODECS.decompressor
        for data, own in zip(block, rows, strict=True):
            # zstd writes a whole frame to its place at once if it has room for it there.
            if decompressor.stream_reader(data).readinto(_as_bytes(own)) != own.nbytes:
                raise ValueError(f"a block holds less than {own.nbytes} bytes")


def _as_bytes(rows: np.ndarray) -> np.ndarray:
    """Views contiguous rows as u8 [bytes]; types that are not NumPy's own, such as bfloat16, have no buffer."""
    return rows.reshape(-1).view(np.uint8)


class Blocks:
    """Rings of blocks, one for each column of each of this process's devices; for JAX a tree without leaves.

    Attributes:
        packed_bytes: bytes of all blocks that are kept.
        added_bytes: bytes of all blocks that were added since somebody set it to 0.
        added: number of these blocks.
    """

    def __init__(self, observations: Observations, num_devices: int, columns: int, places: int) -> None:
        """Makes empty rings: `columns` [B] on each device, with `places` for blocks in each."""
        self.packed_bytes = self.added_bytes = self.added = 0
        self._observations = observations
        self._shape = (num_devices, columns, places)
        self._kept: dict[tuple[int, int, int], Block] = {}
        self._heads = np.zeros((num_devices, columns), np.int64)
        self._pool = futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="unpacking")

    @property
    def capacity_bytes(self) -> int:
        """Uncompressed size of all blocks that fit."""
        return int(np.prod(self._shape)) * self._observations.block_bytes

    def projected_bytes(self) -> float:
        """Size to which the kept blocks will grow, if new ones are as large as those so far; 0 before the first."""
        return self.packed_bytes / max(len(self._kept), 1) * int(np.prod(self._shape))

    def put(self, device: int, columns: Sequence[int], blocks: Sequence[Block]) -> None:
        """Writes a block at the head of each column; if a column comes twice, the second block is the later one."""
        for column, block in zip(columns, blocks, strict=True):
            place = (device, int(column), int(self._heads[device, column] % self._shape[2]))
            size = sum(map(len, block))
            self.packed_bytes += size - sum(map(len, self._kept.get(place, ())))
            self.added_bytes, self.added = self.added_bytes + size, self.added + 1
            self._kept[place] = block
            self._heads[device, column] += 1

    def read(self, device: int, columns: np.ndarray, starts: np.ndarray, length: int) -> ArrayTree:
        """Returns windows, leaves [N, L, ...], that begin at the rows `starts` i32 [N] of `columns` i32 [N]."""
        leaves, per_block = self._observations.leaves, self._observations.length
        windows = [np.zeros((len(columns), length, *leaf.shape), leaf.dtype) for leaf in leaves]

        def fill(item: int) -> None:
            row, at = int(starts[item]) % (per_block * self._shape[2]), 0
            while at < length:
                number, offset = divmod(row + at, per_block)
                count = min(per_block - offset, length - at)
                # A window in a part of the ring that is not filled yet stays zeros; its weight is 0.
                block = self._kept.get((device, int(columns[item]), number % self._shape[2]))
                for window, rows in zip(windows, self._observations.unpack(block) if block else (), strict=False):
                    window[item, at : at + count] = rows[offset : offset + count]
                at += count

        list(self._pool.map(fill, range(len(columns))))
        return jax.tree.unflatten(self._observations.structure, windows)

    def save(self) -> Saved:
        """Returns the blocks as arrays, for a checkpoint."""
        sizes = np.zeros((*self._shape, len(self._observations.leaves)), np.int64)
        places = sorted(self._kept)
        for place in places:
            sizes[place] = [len(data) for data in self._kept[place]]
        data = b"".join(part for place in places for part in self._kept[place])
        return Saved(np.frombuffer(data, np.uint8), sizes, self._heads.copy())

    def load(self, saved: Saved) -> None:
        """Replaces the blocks by those of a checkpoint."""
        data, offset = np.asarray(saved.data).tobytes(), 0
        self._kept.clear()
        for place in zip(*np.nonzero(np.asarray(saved.sizes).sum(-1)), strict=True):
            block = []
            for size in np.asarray(saved.sizes)[place]:
                block.append(data[offset : offset + int(size)])
                offset += int(size)
            self._kept[tuple(int(i) for i in place)] = tuple(block)  # type: ignore[index]
        self._heads = np.array(saved.heads)
        self.packed_bytes = offset


jax.tree_util.register_pytree_node(Blocks, lambda blocks: ((), blocks), lambda blocks, _: blocks)


def check(blocks: Blocks, free_bytes: float, capacity: int) -> None:
    """Ends a run whose blocks will not fit, long before memory is exhausted.

    Args:
        blocks: the blocks so far.
        free_bytes: free memory of the host.
        capacity: rows that the settings ask for.

    Raises:
        UsageError: they will not fit; the message has their final size, and a capacity that fits.
    """
    projected = blocks.projected_bytes()
    if projected - blocks.packed_bytes > free_bytes:
        fits = int(capacity * (free_bytes + blocks.packed_bytes) / projected * 0.9)
        raise errors.UsageError(
            errors.given("replay.capacity", capacity),
            f": compressed, its observations will take {projected / 2**30:.2f} GiB of the host's memory, "
            f"{free_bytes / 2**30:.2f} GiB are free; about {fits} would fit",
        )


class _Codecs(threading.local):
    """The compressors and the decompressor of a thread, since threads may not share them."""

    def __init__(self) -> None:
        self.decompressor, self._compressors = zstandard.ZstdDecompressor(), dict[int, Any]()

    def compressor(self, window: int) -> Any:
        """Returns the one with a window of 2^`window` bytes."""
        if window not in self._compressors:
            parameters = zstandard.ZstdCompressionParameters.from_level(_LEVEL, window_log=window)
            self._compressors[window] = zstandard.ZstdCompressor(compression_params=parameters)
        return self._compressors[window]


_CODECS = _Codecs()
