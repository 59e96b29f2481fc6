"""Takes the precision of matrix products into another thread, since `with` sets it in JAX for one thread only."""

import contextlib
import functools
from collections.abc import Callable

import jax


def of_this_thread() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Returns a function that makes a context with this thread's precision, for another thread to enter."""
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return functools.partial(jax.default_matmul_precision, precision)
