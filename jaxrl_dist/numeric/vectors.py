"""Joins the leaves of a tree into one vector per dtype: what a loop carries or a collective ships costs per array."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist.types import Array, ArrayTree


def join(tree: ArrayTree) -> tuple[list[Array], Callable[[Sequence[Array]], ArrayTree]]:
    """Joins the leaves of each dtype.

    Args:
        tree: arrays or numbers.

    Returns:
        The vectors, one per dtype in the order in which it first occurs, and a function that makes the tree of vectors
        of these sizes.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import vectors
        >>> joined, split = vectors.join({"a": jnp.ones((2, 2)), "b": jnp.int32(3), "c": jnp.float32(5)})
        >>> print(*joined)
        [1. 1. 1. 1. 5.] [3]
        >>> print(split([2 * vector for vector in joined])["c"])
        10.0
    """
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    places = {
        dtype: [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        for dtype in dict.fromkeys(leaf.dtype for leaf in leaves)
    }

    def split(vectors: Sequence[Array]) -> ArrayTree:
        found = dict[int, Array]()
        for vector, chosen in zip(vectors, places.values(), strict=True):
            parts = jnp.split(vector, np.cumsum([leaves[i].size for i in chosen])[:-1])
            found |= {i: part.reshape(leaves[i].shape) for i, part in zip(chosen, parts, strict=True)}
        return jax.tree.unflatten(structure, [found[i] for i in range(len(leaves))])

    return [jnp.concatenate([leaves[i].ravel() for i in chosen]) for chosen in places.values()], split


def flat(tree: ArrayTree) -> ArrayTree:
    """Joins the first two axes of every leaf, also of one without numbers.

    Args:
        tree: leaves [T, B, ...].

    Returns:
        Leaves [T · B, ...].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import vectors
        >>> print([x.shape for x in vectors.flat([jnp.zeros((4, 2, 3)), jnp.zeros((4, 2, 0))])])
        [(8, 3), (8, 0)]
    """
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), tree)


def zeros(struct: ArrayTree) -> tuple[list[Array], Callable[[Sequence[Array]], ArrayTree]]:
    """Returns zeros for the sums of trees, as `join` does.

    Args:
        struct: tree of arrays or of `jax.ShapeDtypeStruct`.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.numeric import vectors
        >>> print(*vectors.zeros({"a": jnp.ones((2, 2)), "b": jnp.int32(3)})[0])
        [0. 0. 0. 0.] [0]
    """
    return join(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), struct))
