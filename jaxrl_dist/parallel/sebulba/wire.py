"""Between a player and its learner: an unroll as packed bytes, checked, no pickle; and parameters in half their bytes.

The images of a column, with those that its acting state keeps, are a block of zstd, since a frame differs from the one
before in few places; all else is raw. What the learner knows already does not travel: the version of the rows, and the
acting state before the first.
"""

import struct
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import zstandard

from jaxrl_dist import errors, types
from jaxrl_dist.envs.host import episodes
from jaxrl_dist.parallel import unroll as unrolls
from jaxrl_dist.replay import packed_observations
from jaxrl_dist.types import ArrayTree

# Mark, number of the unroll, updates behind its parameters, sums of episodes, and two times in seconds.
_HEAD = struct.Struct("<4sqq5d2d")
_MARK = b"unr1"
_SIZE = np.dtype("<u4")
# A vector of real numbers gains little from zstd at level 1, an image of few values a factor of 100.
_IMAGE_RANK = 2
_OF_THREAD = threading.local()


class Played(NamedTuple):
    """An unroll as its player hands it over.

    Attributes:
        number: number of the unroll among the actor's.
        steps: `types.Step` [T + 1, B] in NumPy.
        carry: leaves [B, ...] in NumPy, the acting state before the closing row.
        episodes: sums in NumPy.
        environment_s: seconds spent in the environments.
        inference_s: seconds spent on choosing actions.
    """

    number: int
    steps: types.Step
    carry: ArrayTree
    episodes: unrolls.EpisodeSums
    environment_s: float
    inference_s: float


class Rounded(NamedTuple):
    """An array of f32 that was rounded to bfloat16, whose upper halves are all that is left.

    Attributes:
        halves: u16 [...], since Ray copies arrays of bfloat16 and shares those of NumPy's own types.
    """

    halves: np.ndarray


def rounded(published: unrolls.Published) -> unrolls.Published:
    """Rounds the network's f32 arrays to bfloat16, to the nearest, ties to even.

    The statistics stay: they are few, and a mean of eight bits would move every observation.

    Args:
        published: parameters in NumPy.

    Returns:
        The same with `Rounded` in the place of arrays.
    """

    def round_off(x: np.ndarray) -> Any:
        return Rounded(x.astype(jnp.bfloat16).view(np.uint16)) if x.dtype == np.float32 else x

    params = published.params
    return published._replace(params=params._replace(network=jax.tree.map(round_off, params.network)))


def whole(published: unrolls.Published) -> unrolls.Published:
    """Makes f32 arrays of what `rounded` left of them; others stay as they are."""

    def is_rounded(x: Any) -> bool:
        return isinstance(x, Rounded)

    def widen(x: Any) -> Any:
        return (x.halves.astype(np.uint32) << 16).view(np.float32) if is_rounded(x) else x

    return jax.tree.map(widen, published, is_leaf=is_rounded)  # type: ignore[no-any-return]


class Wire:
    """Packs unrolls of one shape, and unpacks them.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> import jaxrl_dist
        >>> from jaxrl_dist.parallel import unroll
        >>> from jaxrl_dist.parallel.sebulba import wire
        >>> made = jaxrl_dist.make("a2c", "toy:walk")
        >>> struct = unroll.rows_struct(made.agent, made.environment.spec, unroll_length=4, width=2)
        >>> rows = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), struct)
        >>> sums = unroll.host_sums(0, 0.0, 0, 8)
        >>> line = wire.Wire(made.environment.spec, struct)
        >>> data = line.pack(wire.Played(3, rows.steps, rows.carry, sums, 0.1, 0.2), updates=7)
        >>> played = line.unpack(data, number=3, updates=7)
        >>> played.steps.action.shape, int(played.steps.version[0, 0])
        ((5, 2), 7)
    """

    def __init__(self, spec: types.EnvironmentSpec, rows: types.Unroll) -> None:
        """Takes the spec of the environments, and shapes and dtypes of an unroll [T + 1, B]."""
        self._spec, self._shape = spec, rows.steps.timestep.step_type.shape
        leaves, self._structure = jax.tree.flatten((rows.steps._replace(version=()), rows.carry))
        self._leaves = [(x.shape, np.dtype(x.dtype)) for x in leaves]
        of_step, width = len(leaves) - len(jax.tree.leaves(rows.carry)), self._shape[1]
        # [T + 1, B, ...] of a step, [B, ...] of the acting state.
        self._axes = [1 if i < of_step else 0 for i in range(len(leaves))]
        self._is_image = [
            dtype == np.uint8 and len(shape) > axis + _IMAGE_RANK
            for (shape, dtype), axis in zip(self._leaves, self._axes, strict=True)
        ]
        image_bytes = [
            int(np.prod(shape)) for (shape, _), is_image in zip(self._leaves, self._is_image, strict=True) if is_image
        ]
        self._num_blocks = width if image_bytes else 0
        self._block_bytes = sum(image_bytes) // width
        self._blocks = packed_observations.Observations(jax.ShapeDtypeStruct((self._block_bytes,), np.uint8), 1)
        self._raw_bytes = sum(
            int(np.prod(shape)) * dtype.itemsize
            for (shape, dtype), image in zip(self._leaves, self._is_image, strict=True)
            if not image
        )

    def pack(self, played: Played, updates: int) -> bytes:
        """Returns an unroll as bytes.

        Args:
            played: the unroll; `steps.version` does not travel.
            updates: number of updates behind its parameters.

        Raises:
            ValueError: an array has not the shape that the unroll was declared with.
        """
        leaves = [np.asarray(x) for x in jax.tree.leaves((played.steps._replace(version=()), played.carry))]
        found, expected = [(x.shape, x.dtype) for x in leaves], self._leaves
        if found != expected:
            wrong = next(i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1])
            raise ValueError(f"array {wrong} of an unroll is {found[wrong]}, expected {expected[wrong]}")
        chosen = list(zip(leaves, self._is_image, strict=True))
        blocks = [block for (block,) in self._blocks.pack(self._columns(leaves)[None])] if self._num_blocks else []
        sums = (x.item() for x in played.episodes)
        head = _HEAD.pack(_MARK, played.number, updates, *sums, played.environment_s, played.inference_s)
        sizes = np.asarray([len(block) for block in blocks], _SIZE).tobytes()
        raw = [np.ascontiguousarray(x).tobytes() for x, image in chosen if not image]
        return b"".join([head, sizes, *raw, *blocks])

    def unpack(self, data: bytes, number: int, updates: int) -> Played:
        """Returns the unroll that bytes hold, after checking everything that another machine could have got wrong.

        Args:
            data: from `pack`.
            number: number of the unroll that was asked for.
            updates: number of updates behind the parameters that were sent.

        Raises:
            errors.EnvironmentFault: it is another unroll, or has sizes, types or numbers that no such unroll can have.
        """
        fixed = _HEAD.size + self._num_blocks * _SIZE.itemsize + self._raw_bytes
        if len(data) < fixed or data[: len(_MARK)] != _MARK:
            raise errors.EnvironmentFault(f"{len(data)} bytes are no unroll of at least {fixed}")
        _, its_number, its_updates, *numbers = _HEAD.unpack_from(data)
        if (its_number, its_updates) != (number, updates):
            raise errors.EnvironmentFault(
                f"unroll {its_number} of version {its_updates}, expected {number} of version {updates}"
            )
        sizes = np.frombuffer(data, _SIZE, self._num_blocks, _HEAD.size).tolist()
        if len(data) != fixed + sum(sizes):
            raise errors.EnvironmentFault(f"an unroll of {len(data)} bytes, its head says {fixed + sum(sizes)}")
        steps, carry = jax.tree.unflatten(self._structure, self._arrays(data, sizes))
        steps = steps._replace(version=np.broadcast_to(np.int32(updates), self._shape))
        self._check(steps, carry)
        sums = self._sums(steps.timestep.step_type, numbers[:5])
        return Played(number, steps, carry, sums, *(max(0.0, float(x)) for x in numbers[5:]))

    def _scratch(self) -> np.ndarray:
        """Returns u8 [B, bytes], which this thread writes anew for each unroll: fresh memory costs more than zstd."""
        shape = self._num_blocks, self._block_bytes
        if getattr(_OF_THREAD, "scratch", np.empty(0)).shape != shape:
            _OF_THREAD.scratch = np.empty(shape, np.uint8)
        scratch: np.ndarray = _OF_THREAD.scratch
        return scratch

    def _columns(self, leaves: list[np.ndarray]) -> np.ndarray:
        """Returns the images of each column one after the other in `_scratch`."""
        columns, at = self._scratch(), 0
        for leaf, axis, is_image in zip(leaves, self._axes, self._is_image, strict=True):
            if is_image:
                own = np.moveaxis(leaf, axis, 0)
                count = own[0].size
                columns[:, at : at + count].reshape(own.shape)[...] = own
                at += count
        return columns

    def _arrays(self, data: bytes, sizes: list[int]) -> list[np.ndarray]:
        """Returns the arrays of all leaves, of blocks that are as large as their sizes say."""
        at = _HEAD.size + self._num_blocks * _SIZE.itemsize
        columns, of_column = self._unpacked(data, at + self._raw_bytes, sizes), 0
        found = []
        for (shape, dtype), axis, is_image in zip(self._leaves, self._axes, self._is_image, strict=True):
            count = int(np.prod(shape))
            if is_image:
                image = np.empty(shape, np.uint8)
                own = np.moveaxis(image, axis, 0)
                end = of_column + own[0].size
                own[...] = columns[:, of_column:end].reshape(own.shape)
                found.append(image)
                of_column = end
                continue
            found.append(np.frombuffer(data, dtype, count, at).reshape(shape))
            at += count * dtype.itemsize
        return found

    def _unpacked(self, data: bytes, at: int, sizes: list[int]) -> np.ndarray:
        """Returns the images of each column in `_scratch`; a block that would be larger than these is not unpacked."""
        columns = self._scratch()
        for column, size in zip(columns, sizes, strict=True):
            block = data[at : at + size]
            at += size
            try:
                found = zstandard.frame_content_size(block)
                if found != self._block_bytes:
                    raise errors.EnvironmentFault(
                        f"a block of an unroll holds {found} bytes, expected {self._block_bytes}"
                    )
                self._blocks.unpack_into((block,), (column,))
            except (zstandard.ZstdError, ValueError) as error:
                raise errors.EnvironmentFault(f"a block of an unroll cannot be unpacked: {error}") from None
        return columns

    def _check(self, steps: types.Step, carry: ArrayTree) -> None:
        """Raises an EnvironmentFault for rows that no environment gives, and for actions that no agent chooses."""
        timestep, (rows, width) = steps.timestep, self._shape
        if (wrong := ~np.isin(timestep.step_type, (types.FIRST, types.MID, types.LAST))).any():
            raise errors.EnvironmentFault(
                f"a step_type of an unroll is {timestep.step_type[wrong][0]}, expected 0 to 2"
            )
        flat = jax.tree.map(lambda x: x.reshape(rows * width, *x.shape[2:]), timestep)
        ids, row = np.tile(np.arange(width, dtype=np.int32), rows), np.repeat(np.arange(rows), width)
        episodes.check_timestep(self._spec, flat, ids, row)
        try:
            episodes.check_actions(self._spec, np.asarray(steps.action))
        except ValueError as error:
            raise errors.EnvironmentFault(str(error)) from None
        for leaf in jax.tree.leaves((timestep.observation, steps.extras, carry)):
            if leaf.dtype == bool and (leaf.view(np.uint8) > 1).any():
                raise errors.EnvironmentFault("a truth value of an unroll is neither 0 nor 1")
        # The learner sends finite parameters only, so its own agent never computes these.
        for leaf in jax.tree.leaves((steps.extras, carry)):
            if np.issubdtype(leaf.dtype, np.floating) and np.isnan(leaf).any():
                raise errors.EnvironmentFault("a number that the agent stores with an unroll is not a number")

    def _sums(self, step_type: np.ndarray, sums: list[float]) -> unrolls.EpisodeSums:
        """Returns the sums of an unroll's episodes in their types, if such rows can have them."""
        ended, valid = int((step_type[1:] == types.LAST).sum()), int((step_type[:-1] != types.LAST).sum())
        num_episodes, episode_return, length, its_valid, unsound = sums
        sound = 0 <= num_episodes <= ended and 0 <= length < 2**31 and abs(episode_return) < 3e38
        if not (sound and its_valid == valid and unsound == 0):
            raise errors.EnvironmentFault(
                f"the sums of an unroll with {ended} ended episodes and {valid} taught rows are {sums}"
            )
        return unrolls.host_sums(num_episodes, episode_return, length, its_valid)
