"""Gradients by central differences in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np


def gradient(function: Callable[[Any], float], params: Any, step: float = 1e-5) -> Any:
    """Returns the gradient of a function of a nested dict of arrays f64, in the same dict.

    Its error is about step² times a third derivative, and 1e-16 / step of the value.
    """
    if isinstance(params, dict):
        return {
            name: gradient(lambda part, name=name: function({**params, name: part}), part, step)
            for name, part in params.items()
        }
    found = np.zeros_like(params)
    for place in np.ndindex(params.shape):
        above, below = params.copy(), params.copy()
        above[place] += step
        below[place] -= step
        found[place] = (function(above) - function(below)) / (2 * step)
    return found


def assert_slopes(
    found: Any, function: Callable[[Any], float], params: Any, rtol: float, atol: float, step: float = 1e-5
) -> None:
    """Checks the gradient of a function along four random directions of each array: enough to find one wrong number.

    It takes a few calls of the function for each array, where `gradient` takes two for each number.
    """
    if not isinstance(params, dict):
        random = np.random.default_rng(params.size)
        for _ in range(4):
            way = random.choice([-1.0, 1.0], params.shape)
            slope = (function(params + step * way) - function(params - step * way)) / (2 * step)
            np.testing.assert_allclose(np.sum(found * way), slope, rtol=rtol, atol=atol)
        return
    assert found.keys() == params.keys()
    for name, part in params.items():
        assert_slopes(found[name], lambda x, name=name: function({**params, name: x}), part, rtol, atol, step)


def assert_same(found: Any, wanted: Any, rtol: float, atol: float, name: str = "") -> None:
    """Checks that two nested dicts of arrays agree; tells where they do not."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), name
        for part in wanted:
            assert_same(found[part], wanted[part], rtol, atol, f"{name}/{part}")
    else:
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol, err_msg=name)


def leaves(tree: Any) -> list[np.ndarray]:
    """Lists the arrays of a nested dict."""
    return [leaf for part in tree.values() for leaf in leaves(part)] if isinstance(tree, dict) else [tree]


def between(first: Any, second: Any, share: float) -> Any:
    """Returns the nested dict that is this share of the way from the first to the second."""
    if isinstance(first, dict):
        return {name: between(first[name], second[name], share) for name in first}
    return np.asarray(first + share * (second - first))
