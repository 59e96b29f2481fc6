"""Takes the precision of matrix products into another thread, since `with` sets it in JAX for one thread only."""

import contextlib
import functools
from collections.abc import Callable

import jax


def of_this_thread() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Returns what makes a context, to be entered in another thread, with the precision that this thread has."""
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return functools.partial(jax.default_matmul_precision, precision)
