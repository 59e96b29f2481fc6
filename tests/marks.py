"""Marks: which variants of a test `make test` leaves to `make test-all`."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def some(
    variants: Mapping[str, Any] | Iterable[Any], *, fast: Collection[str] | None = None, slow: Collection[str] = ()
) -> list[Any]:
    """Returns a test's variants as parameters, the long ones marked as slow.

    Args:
      variants: Values, or tuples of the values of several parameters, whose texts are their ids; or ids with them.
      fast: Ids of the variants that are not slow; None means all but those in `slow`.
      slow: Ids of the variants that are slow where `fast` is None.

    Raises:
      ValueError: If `fast` or `slow` names no variant.
    """
    if not isinstance(variants, Mapping):
        variants = {"-".join(map(str, _values(variant))): variant for variant in variants}
    if unknown := {*(fast or ()), *slow} - set(variants):
        raise ValueError(f"no variants: {sorted(unknown)}; there are {sorted(variants)}")
    return [
        pytest.param(
            *_values(variant),
            id=name,
            marks=pytest.mark.slow if name in slow or (fast is not None and name not in fast) else (),
        )
        for name, variant in variants.items()
    ]


def _values(variant: Any) -> tuple[Any, ...]:
    return variant if isinstance(variant, tuple) else (variant,)
