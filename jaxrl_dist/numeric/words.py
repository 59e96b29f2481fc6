"""Packs the small leaves of a tree into one array of 32-bit words: a loop writes and copies every array by itself."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist.types import Array, ArrayTree

# Elements per column of a leaf that is packed. A picture is large enough to be written by itself, and its bytes would
# become words.
_LARGEST = 32


class _Leaf(NamedTuple):
    """A packed leaf: its shape without the batch, its dtype, and for keys their kind, "" for numbers."""

    shape: tuple[int, ...]
    dtype: Any
    keys: str


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("words", "others"), meta_fields=("structure", "leaves")
)
@dataclasses.dataclass
class Packed:
    """A tree of leaves [..., B, *shape], small ones packed.

    Attributes:
        words: u32 [..., K, B].
        others: the leaves that are too large, or of 64 bits, or real numbers of 8.
        structure: of the tree.
        leaves: for each leaf how it is packed, None for one of `others`.
    """

    words: Array
    others: list[Array]
    structure: Any
    leaves: tuple[_Leaf | None, ...]


def pack(tree: ArrayTree) -> Packed:
    """Packs a tree, bit for bit.

    Args:
        tree: leaves [B, ...] of numbers or typed keys.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import words
        >>> tree = {"position": jnp.ones((5, 2)), "ended": jnp.zeros(5, bool), "picture": jnp.zeros((5, 10, 10))}
        >>> packed = words.pack(tree)
        >>> packed.words.shape, len(packed.others)
        ((3, 5), 1)
        >>> words.unpack(packed)["ended"].dtype
        dtype('bool')
    """
    found, structure = jax.tree.flatten(tree)
    leaves = tuple(_leaf(x) for x in found)
    columns = [_encode(x) for x, leaf in zip(found, leaves, strict=True) if leaf]
    others = [x for x, leaf in zip(found, leaves, strict=True) if not leaf]
    words = jnp.concatenate(columns) if columns else jnp.zeros((0, found[0].shape[0]), jnp.uint32)
    return Packed(words, others, structure, leaves)


def unpack(packed: Packed) -> ArrayTree:
    """Returns the tree, whose leaves have the axes that `words` has before its last two, as a loop's results have.

    Args:
        packed: from `pack`, or a stack of such.
    """
    others, place, found = iter(packed.others), 0, []
    for leaf in packed.leaves:
        if leaf is None:
            found.append(next(others))
            continue
        count = math.prod(leaf.shape)
        found.append(_decode(packed.words[..., place : place + count, :], leaf))
        place += count
    return jax.tree.unflatten(packed.structure, found)


def packing(packs: bool) -> tuple[Callable[[ArrayTree], Any], Callable[[Any], ArrayTree]]:
    """Returns `pack` and `unpack`, or two functions that change nothing.

    Args:
        packs: whether to pack.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import words
        >>> pack, unpack = words.packing(packs=False)
        >>> print(pack({"ended": jnp.zeros(2, bool)}))
        {'ended': Array([False, False], dtype=bool)}
    """
    return (pack, unpack) if packs else (_same, _same)


def _same(tree: ArrayTree) -> ArrayTree:
    return tree


def _leaf(x: Array) -> _Leaf | None:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, x)
        return _Leaf(data.shape[1:], data.dtype, str(jax.random.key_impl(x)))
    is_byte_of_float = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 1
    if x.dtype.itemsize > 4 or is_byte_of_float or math.prod(x.shape[1:]) > _LARGEST:
        return None
    return _Leaf(x.shape[1:], x.dtype, "")


def _encode(x: Array) -> Array:
    """Returns u32 [k, B] of [B, ...]."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4:
        x = jax.lax.bitcast_convert_type(x, jnp.uint16)
    if x.dtype.itemsize < 4:
        x = x.astype(jnp.int32)
    return jax.lax.bitcast_convert_type(jnp.moveaxis(x, 0, -1), jnp.uint32).reshape(-1, x.shape[0])


def _decode(words: Array, leaf: _Leaf) -> Array:
    """Returns [..., B, *shape] of u32 [..., k, B]."""
    before, batch = words.shape[:-2], words.shape[-1]
    x = jnp.moveaxis(words.reshape(*before, *leaf.shape, batch), -1, len(before))
    if leaf.keys:
        return jax.random.wrap_key_data(x, impl=leaf.keys)
    if leaf.dtype.itemsize == 4:
        return jax.lax.bitcast_convert_type(x, leaf.dtype)
    x = jax.lax.bitcast_convert_type(x, jnp.int32)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jax.lax.bitcast_convert_type(x.astype(jnp.uint16), leaf.dtype)
    return x.astype(leaf.dtype)
