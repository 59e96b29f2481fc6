"""Declares a setting as a field of a frozen dataclass, and turns text into valid values of it. Imports no JAX."""

import dataclasses
import decimal
import functools
import math
import numbers
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jaxrl_dist import errors

CUSTOM, OPTAX = "module:Class", "optax:NAME"
# Largest whole number of a setting that names no other: programs count in 32 bits.
LARGEST = 2**31 - 1
# Least number above 0 that programs, which compute in 32 bits, do not round to 0.
SMALLEST = 2.0**-126
# Upper bound of settings that no program counts, such as steps: what a flag may say in 18 digits.
MANY = 10**18 - 1
# Source of a value that was not published.
OURS = "this project"
# Choices that stand for many values, with the form of these.
_OPEN = {
    CUSTOM: re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"),
    OPTAX: re.compile(r"optax:[A-Za-z_][\w.]*(\(.*\))?"),
}
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "tuple[int, ...]": "whole numbers separated by commas, each",
    "tuple[str, ...]": "names separated by commas",
}


class Field(NamedTuple):
    """The declaration of one setting, as given to `setting`.

    Attributes:
        name: of the field.
        kind: its annotation as text.
        default: its value where nothing else gives one.
        help: one sentence.
        source: of the default; "" where it was not published.
        low: smallest valid value, None where there is none; so are the next three.
        high: largest valid value; without one, whole numbers are at most `LARGEST`.
        above: exclusive lower bound.
        below: exclusive upper bound.
        choices: valid values, None where they are not listed.
        tag: `identity` or `tunable`.
        sweep: whether `sweep` may vary it.
        repeats: whether the flag may be given several times.
    """

    name: str
    kind: str
    default: Any
    help: str
    source: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] | None = None
    tag: str = "identity"
    sweep: bool = False
    repeats: bool = False


class Cited(NamedTuple):
    """A value for a setting, and its source.

    Attributes:
        value: of the setting.
        source: a publication, or `OURS`.
    """

    value: Any
    source: str


def cited(source: str, values: Mapping[str, Any]) -> dict[str, Cited]:
    """Gives values their common source.

    Args:
        source: a publication, or `OURS`.
        values: by flag name.

    Example:
        >>> from jaxrl_dist import settings
        >>> settings.cited("Mnih et al. 2016", {"agent.discount": 0.99})["agent.discount"]
        Cited(value=0.99, source='Mnih et al. 2016')
    """
    return {name: Cited(value, source) for name, value in values.items()}


def setting(
    default: Any,
    help: str,
    *,
    source: str = "",
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[Any] | None = None,
    tag: Literal["identity", "tunable"] = "identity",
    sweep: bool = False,
    repeats: bool = False,
) -> Any:
    """Declares one field of a frozen Config dataclass.

    Args:
        default: value if no flag, preset, family or system gives one.
        help: one sentence for `--help`.
        source: publication of the default; empty for a default of this project.
        low: smallest valid value, inclusive.
        high: largest valid value, inclusive; without one, whole numbers are at most `LARGEST`.
        above: exclusive lower bound.
        below: exclusive upper bound.
        choices: valid values, if they are few; "module:Class" among them admits any class of the user, "optax:NAME"
            any optimiser of optax, with arguments.
        tag: "identity" if a resume with another value must be refused, "tunable" if it may change.
        sweep: whether `--sweep` may vary it: a number that enters only arithmetic on arrays, so that no branch, no
            shape and no first parameter depends on it.
        repeats: whether the flag may be given several times; its value is then the tuple of all texts.

    Returns:
        A `dataclasses.field` with the default, and the declaration in its metadata.

    Example:
        >>> import dataclasses
        >>> from jaxrl_dist.settings import fields, setting
        >>> @dataclasses.dataclass(frozen=True)
        ... class Config:
        ...     discount: float = setting(0.99, "Discount factor (γ).", low=0.0, high=1.0, source="Mnih et al. 2015")
        >>> Config(discount=0.9)
        Config(discount=0.9)
        >>> fields.of(Config)[0].help
        'Discount factor (γ).'
    """
    metadata = {
        "help": help,
        "source": source,
        "low": low,
        "high": high,
        "above": above,
        "below": below,
        "choices": None if choices is None else tuple(choices),
        "tag": tag,
        "sweep": sweep,
        "repeats": repeats,
    }
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def of(config: type) -> tuple[Field, ...]:
    """Returns the settings that a Config dataclass declares, in their order.

    Args:
        config: frozen dataclass.

    Raises:
        TypeError: a field is not declared with `setting`, or has an annotation of no known kind.

    Example:
        >>> from jaxrl_dist import networks
        >>> from jaxrl_dist.settings import fields
        >>> [field.name for field in fields.of(networks.Config)][:3]
        ['torso', 'hidden_sizes', 'activation']
    """
    kinds = typing.get_type_hints(config)
    found = []
    for item in dataclasses.fields(config):
        kind = getattr(kinds[item.name], "__name__", "")
        kind = kind if kind in _KINDS else str(kinds[item.name])
        if kind not in _KINDS or "help" not in item.metadata:
            raise TypeError(f"{config.__name__}.{item.name} must be a {', '.join(_KINDS)} declared with setting(...)")
        found.append(Field(item.name, kind, item.default, **item.metadata))
    return tuple(found)


def parse(field: Field, value: Any) -> Any:
    """Turns text such as "1e6", "true" or "64,64", or a Python value, into a valid value of the setting.

    Args:
        field: its declaration.
        value: text or a value.

    Raises:
        ValueError: it has the wrong type, or is out of range; the message names the valid values.

    Example:
        >>> from jaxrl_dist import networks
        >>> from jaxrl_dist.settings import fields
        >>> by_name = {field.name: field for field in fields.of(networks.Config)}
        >>> fields.parse(by_name["hidden_sizes"], "256,256")
        (256, 256)
        >>> fields.parse(by_name["core_size"], "0")
        Traceback (most recent call last):
            ...
        ValueError: expected a whole number >= 1
    """
    try:
        if field.kind.startswith("tuple") and not field.repeats:
            kind = field.kind[len("tuple[") :].split(",")[0]
            items = tuple(map(_SCALARS[kind], _parts(value)))
            parsed: Any = items
        else:
            parsed = tuple(map(_text, value)) if field.repeats else _SCALARS[field.kind](value)
            items = (parsed,)
        wrong = [item for item in items if not _is_valid(field, item)]
    except (ValueError, TypeError, ArithmeticError):
        wrong = [value]
    if wrong and isinstance(wrong[0], int) and wrong[0] > LARGEST and field.high in (None, MANY):
        raise ValueError(f"expected {_KINDS['int']} <= {LARGEST if field.high is None else MANY}")
    if wrong and field.above == 0 and isinstance(wrong[0], float) and 0 < wrong[0] < SMALLEST:
        raise ValueError(f"expected {_KINDS['float']} >= {SMALLEST:g}: smaller ones are 0 in 32 bits")
    if wrong:
        hint = errors.nearest(str(wrong[0]), map(str, field.choices or ()))
        raise ValueError(f"expected {valid_values(field)}{hint}")
    return parsed


def _parts(value: Any) -> list[Any]:
    """Splits a text at its commas, the last of which may end it, as in Python's (64,); takes a sequence as it is.

    Raises:
        ValueError: a part is empty.
    """
    if not isinstance(value, str):
        return list(value)
    text = value.strip("()[] ").removesuffix(",")
    parts = [part.strip() for part in text.split(",")] if text else []
    if "" in parts:
        raise ValueError("an empty part")
    return parts


def valid_values(field: Field) -> str:
    """Describes the valid values of a setting in words.

    Args:
        field: its declaration.

    Example:
        >>> from jaxrl_dist import replay
        >>> from jaxrl_dist.settings import fields
        >>> fields.valid_values(fields.of(replay.MixedConfig)[1])
        'a number > 0 and <= 0.9375'
    """
    text = _KINDS[field.kind] if field.choices is None else _choices(field)
    high = None if field.high == MANY else field.high
    bounds = ((">=", field.low), (">", field.above), ("<=", high), ("<", field.below))
    limits = (f"{sign} {bound:.10g}" for sign, bound in bounds if bound is not None)
    return f"{text} {' and '.join(limits)}".strip()


def _choices(field: Field) -> str:
    """Says what a setting of few values, or a list of such ones, may be."""
    is_list = isinstance(field.default, tuple)
    return ("one or more of " if is_list else "one of ") + ", ".join(map(str, field.choices or ()))


def shown(value: object) -> str:
    """Writes a value as a flag takes it.

    Args:
        value: of a setting.

    Example:
        >>> from jaxrl_dist.settings import fields
        >>> fields.shown((64, 64)), fields.shown(True)
        ('64,64', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _truth(value: Any) -> bool:
    """Converts true, false, 1 and 0, as text of any case or as values."""
    folded = str(value).casefold()
    if folded not in _TRUTH:
        raise ValueError(value)
    return _TRUTH[folded]


def _text(value: Any) -> str:
    """Returns text, that of a path too, and refuses any other type."""
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError(value)
    return text


def _plain(value: Any) -> Any:
    """Returns the number in an array without axes, of NumPy or JAX, and anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _number(value: Any) -> decimal.Decimal:
    """Converts text such as 1_000 and 1e6, and real numbers, exactly; refuses truth values and NaN."""
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, str | numbers.Real):
        raise TypeError(value)
    number = decimal.Decimal(value if isinstance(value, str) else repr(float(value)))
    if number.is_nan():
        raise ValueError(value)
    return number


def _whole(value: Any) -> int:
    """Converts numbers without a fraction; text of more than 18 digits becomes 10^18, which no setting takes."""
    value = _plain(value)
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    number = _number(value)
    if number.is_infinite() or number != number.to_integral_value():
        raise ValueError(value)
    return int(number) if number.adjusted() < 18 else int(math.copysign(10**18, number))


def _real(value: Any) -> float:
    """Converts numbers; those too large for a float become infinite."""
    return float(_number(value))


_SCALARS: dict[str, Callable[[Any], Any]] = {"int": _whole, "float": _real, "bool": _truth, "str": _text}


def _is_valid(field: Field, item: Any) -> bool:
    """Says whether one value is in the range and among the choices; infinity is valid where it is the default."""
    if isinstance(item, float) and math.isinf(item) and item != field.default:
        return False
    if isinstance(item, int) and field.high is None and item > LARGEST:
        return False
    if field.choices is not None and item not in field.choices:
        return any(one in field.choices and form.fullmatch(str(item)) for one, form in _OPEN.items())
    return (
        (field.low is None or item >= field.low)
        and (field.high is None or item <= field.high)
        and (field.above is None or item > field.above)
        and (field.above != 0 or item >= SMALLEST)
        and (field.below is None or item < field.below)
    )
