"""Leaves of a tree on disk: their descriptions, and their arrays, stored by Orbax.

Structure is never stored: leaves are found by their paths in the reader's own template. Nothing here can run code.
"""

import contextlib
import dataclasses
import logging
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

# Leaves up to this size are stored together in one array: Orbax takes about 2 ms for each array it writes.
_PACKED, _PACKED_BYTES = "packed", 2**20


class Leaf(NamedTuple):
    """Description of one leaf on disk.

    Attributes:
        path: names from the root, separated by "/"; the same for a dict, a NamedTuple or a dataclass.
        shape: logical shape (of a key array: without the axes of the key data).
        dtype: its name, such as "float32" or "key<fry>".
        impl: generator of a typed key, such as "threefry2x32"; else "".
        data_shape: shape of the stored array; differs from `shape` for typed keys.
        data_dtype: dtype of the stored array.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    impl: str
    data_shape: tuple[int, ...]
    data_dtype: str

    @property
    def data_bytes(self) -> int:
        """Size of the stored array."""
        return math.prod(self.data_shape) * np.dtype(self.data_dtype).itemsize


@dataclasses.dataclass(frozen=True)
class AnyLength:
    """Stands in a template for a NumPy array of one axis whose length only the checkpoint knows."""

    dtype: Any
    shape: tuple[int, ...] = (-1,)


def describe(tree: Any) -> list[Leaf]:
    """Describes the leaves of a tree in its order; templates too."""
    leaves: dict[str, Leaf] = {}
    for keys, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
        path = jax.tree_util.keystr(keys, simple=True, separator="/")
        if not isinstance(value, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct | AnyLength):
            raise ValueError(f"leaf {path!r} is a {type(value).__name__}, not an array: put it into meta")
        if path in leaves:
            raise ValueError(f"two leaves have the path {path!r}: rename one")
        data, impl = value, ""
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = jax.eval_shape(jax.random.key_data, value)
            impl = str(jax.random.key_impl(value)) if isinstance(value, jax.Array) else ""
        leaves[path] = Leaf(path, tuple(value.shape), str(value.dtype), impl, tuple(data.shape), str(data.dtype))
    return list(leaves.values())


def read_leaf(fields: list[Any]) -> Leaf:
    """Reads a description from its JSON form.

    Raises:
        ValueError: it is none.
    """
    path, shape, dtype, impl, data_shape, data_dtype = fields
    if not all(isinstance(text, str) for text in (path, dtype, impl, data_dtype)) or (impl and "key" not in dtype):
        raise ValueError(f"{path} is no description of a leaf")
    return Leaf(path, tuple(shape), dtype, impl, tuple(data_shape), data_dtype)


def check_match(path: pathlib.Path, stored: list[Leaf], expected: list[Leaf]) -> None:
    """Compares stored leaves with those of a template."""
    ours, theirs = {leaf.path: leaf for leaf in expected}, {leaf.path: leaf for leaf in stored}
    for name in [*ours, *theirs]:
        mine, other = (f"{x[name].dtype}{list(x[name].shape)}" if name in x else "absent" for x in (ours, theirs))
        if name in ours and name in theirs and ours[name].shape == (-1,) and len(theirs[name].shape) == 1:
            mine = mine.replace("-1", str(theirs[name].shape[0]))
        if mine != other:
            raise ValueError(f"{path}: leaf {name!r} is {other} in the checkpoint, {mine} in the template")


def is_spread(value: Any) -> bool:
    """Says whether a leaf, or the template of one, is spread over several processes."""
    where = getattr(value, "sharding", None)
    return where is not None and not where.is_fully_addressable


def to_numpy(value: Any) -> np.ndarray:
    """Copies one leaf to the host; for typed keys, their data."""
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.device_get(jax.random.key_data(value) if is_key else value))


def place(leaf: Leaf, stored: np.ndarray | Callable[[Any], np.ndarray], target: Any) -> Any:
    """Makes a leaf of the template's kind, on its devices.

    Args:
        leaf: its description.
        stored: its array, or (index) -> part of that.
        target: of the template.
    """
    if is_spread(target):
        return _spread(leaf, stored if callable(stored) else stored.__getitem__, target.sharding)
    array = stored(tuple(slice(None) for _ in leaf.data_shape)) if callable(stored) else stored
    if isinstance(target, np.ndarray | np.generic | AnyLength):
        return array
    sharding = target.sharding if getattr(target, "committed", True) else None
    value = jax.random.wrap_key_data(jax.device_put(array), impl=leaf.impl) if leaf.impl else array
    value = jax.device_put(value, sharding)
    if value.dtype != target.dtype:
        raise ValueError(f"leaf {leaf.path!r} is {target.dtype}, which needs jax_enable_x64")
    return value


def _spread(leaf: Leaf, part: Callable[[Any], np.ndarray], sharding: Any) -> jax.Array:
    """Makes a leaf over several processes, each of which reads what its devices take."""
    value = jax.make_array_from_callback(leaf.data_shape, sharding, part)
    return jax.random.wrap_key_data(value, impl=leaf.impl) if leaf.impl else value


def write_arrays(path: pathlib.Path, leaves: list[Leaf], arrays: list[np.ndarray]) -> None:
    """Writes large arrays by index, and the bytes of all others as one array."""
    # Importing Orbax takes 1.5 s, for which the first log line need not wait.
    import orbax.checkpoint as orbax

    stored, packed = {}, []
    for index, (leaf, array) in enumerate(zip(leaves, arrays, strict=True)):
        if leaf.data_bytes > _PACKED_BYTES:
            stored[str(index)] = array
        else:
            packed.append(array.tobytes())
    # Orbax refuses an array without elements, so this one has a byte more than it needs.
    stored[_PACKED] = np.frombuffer(b"".join([*packed, b"\0"]), np.uint8)
    with _quiet(), orbax.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), stored)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Orbax from logging, for each of its threads, the traceback of an error that it also raises."""
    log, others = logging.getLogger("absl"), lambda record: "orbax" not in record.pathname
    log.addFilter(others)
    try:
        yield
    finally:
        log.removeFilter(others)


def read_arrays(path: pathlib.Path, leaves: list[Leaf]) -> list[np.ndarray]:
    """Reads the arrays that `write_arrays` wrote."""
    import orbax.checkpoint as orbax

    names = [_PACKED, *(str(index) for index, leaf in enumerate(leaves) if leaf.data_bytes > _PACKED_BYTES)]
    arguments = {name: orbax.RestoreArgs(restore_type=np.ndarray) for name in names}
    with orbax.PyTreeCheckpointer() as checkpointer:
        stored = checkpointer.restore(path.absolute(), item=dict.fromkeys(names, 0), restore_args=arguments)
    arrays, packed, offset = [], stored[_PACKED].tobytes(), 0
    for index, leaf in enumerate(leaves):
        if leaf.data_bytes > _PACKED_BYTES:
            array = stored[str(index)]
        else:
            array = np.frombuffer(packed[offset : offset + leaf.data_bytes], leaf.data_dtype).copy()
            offset += leaf.data_bytes
        arrays.append(array.reshape(leaf.data_shape))
    return arrays
