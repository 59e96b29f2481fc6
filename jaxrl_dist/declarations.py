"""Reads the settings that a source file declares, without importing it, and turns text into valid values of theirs."""

import ast
import decimal
import difflib
import functools
import math
import numbers
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

CUSTOM = "module:Class"
_CUSTOM_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
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
    """The declaration of one setting, as given to `config.setting`; `kind` is its annotation as text."""

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


@functools.cache
def read(path: pathlib.Path, class_name: str = "Config") -> tuple[Field, ...]:
    """Reads the settings of a Config class from its source file.

    Args:
        path: Python file.
        class_name: dataclass whose fields are `setting(...)` calls with literal arguments; those of a base class in the
            same file come first.

    Raises:
        ValueError: the class is missing, or one of its fields is not declared with literals.
    """
    for node in _body(path):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            inherited = [field for parent in node.bases for field in read(path, ast.unparse(parent))]
            return (*inherited, *(_field(path, item) for item in node.body if isinstance(item, ast.AnnAssign)))
    raise ValueError(f"{path} declares no class {class_name}")


def constant(path: pathlib.Path, name: str) -> Any:
    """Returns the literal that a file assigns to a name at its top level, or None where it does not."""
    for node in _body(path):
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return ast.literal_eval(node.value)
    return None


def summary(path: pathlib.Path) -> str:
    """Returns the first line of what a file says of itself."""
    return (ast.get_docstring(ast.Module(list(_body(path)), [])) or "").partition("\n")[0]


def parse(field: Field, value: Any) -> Any:
    """Turns text such as "1e6", "true" or "64,64", or a Python value, into a valid value of the setting.

    Raises:
        ValueError: it is not of the type, or out of range; the message says what is expected.
    """
    try:
        if field.kind.startswith("tuple"):
            parts = value.strip("()[] ").split(",") if isinstance(value, str) else value
            kind = field.kind[len("tuple[") :].split(",")[0]
            items = tuple(_SCALARS[kind](part) for part in parts if part != "")
            parsed: Any = items
        else:
            parsed = _SCALARS[field.kind](value)
            items = (parsed,)
        is_valid = all(_is_valid(field, item) for item in items)
    except (ValueError, TypeError, ArithmeticError):
        is_valid = False
    if not is_valid:
        raise ValueError(f"expected {valid_values(field)}{nearest(str(value), map(str, field.choices or ()))}")
    return parsed


def valid_values(field: Field) -> str:
    """Says in words what a setting may be."""
    text = _KINDS[field.kind] if field.choices is None else "one of " + ", ".join(map(str, field.choices))
    bounds = ((">=", field.low), (">", field.above), ("<=", field.high), ("<", field.below))
    limits = (f"{sign} {bound:.10g}" for sign, bound in bounds if bound is not None)
    return f"{text} {' and '.join(limits)}".strip()


def nearest(value: str, candidates: Iterable[str]) -> str:
    """Returns "; did you mean …?" for the candidate most like `value`, or "" where none is."""
    matches = most_like(value, candidates, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def nearest_flag(name: str, flags: Iterable[str]) -> str:
    """Returns "; did you mean …?" for the flag most like a name; dashes are no likeness."""
    matches = most_like(name.lstrip("-"), [flag.lstrip("-") for flag in flags], 1)
    return f"; did you mean --{matches[0]}?" if matches else ""


def most_like(value: str, candidates: Iterable[str], count: int) -> list[str]:
    """Returns at most so many candidates that are like `value`, in whatever case, the most like first."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(value.casefold(), list(by_folded), n=count, cutoff=0.5)
    return [by_folded[match] for match in matches]


@functools.cache
def _body(path: pathlib.Path) -> tuple[ast.stmt, ...]:
    """Parses a source file."""
    return tuple(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body)


def _field(path: pathlib.Path, node: ast.AnnAssign) -> Field:
    """Reads one declaration `name: kind = setting(default, help, ...)`."""
    name, kind = ast.unparse(node.target), ast.unparse(node.annotation)
    call = node.value
    if not isinstance(call, ast.Call) or ast.unparse(call.func).split(".")[-1] != "setting" or kind not in _KINDS:
        raise ValueError(f"{path}:{node.lineno}: {name} must be a {', '.join(_KINDS)} declared with config.setting")
    try:
        positional = dict(zip(("default", "help"), map(_literal, call.args), strict=False))
        named = {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}
    except ValueError:
        raise ValueError(f"{path}:{node.lineno}: the declaration of {name} must consist of literals") from None
    if named.get("choices") is not None:
        named["choices"] = tuple(named["choices"])
    return Field(name, kind, **positional, **named)


def _literal(node: ast.expr) -> Any:
    """Evaluates a literal; infinity, which has none, may be written float("inf")."""
    return math.inf if ast.unparse(node) == "float('inf')" else ast.literal_eval(node)


def _truth(value: Any) -> bool:
    """Converts true, false, 1 and 0, as text of any case or as values."""
    folded = str(value).casefold()
    if folded not in _TRUTH:
        raise ValueError(value)
    return _TRUTH[folded]


def _text(value: Any) -> str:
    """Passes text and refuses all else."""
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _number(value: Any) -> decimal.Decimal:
    """Converts text such as 1_000 and 1e6, and real numbers, exactly; refuses truth values and NaN."""
    if isinstance(value, bool) or not isinstance(value, str | numbers.Real):
        raise TypeError(value)
    number = decimal.Decimal(value if isinstance(value, str) else repr(float(value)))
    if number.is_nan():
        raise ValueError(value)
    return number


def _whole(value: Any) -> int:
    """Converts numbers without a fraction, of at most 18 digits."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    number = _number(value)
    if number.is_infinite() or number.adjusted() > 17 or number != number.to_integral_value():
        raise ValueError(value)
    return int(number)


def _real(value: Any) -> float:
    """Converts numbers; those too large for a float become infinite."""
    return float(_number(value))


_SCALARS: dict[str, Callable[[Any], Any]] = {"int": _whole, "float": _real, "bool": _truth, "str": _text}


def _is_valid(field: Field, item: Any) -> bool:
    """Whether one value is in the range and among the choices; infinity is valid where it is the default."""
    if isinstance(item, float) and math.isinf(item) and item != field.default:
        return False
    if field.choices is not None and item not in field.choices:
        return CUSTOM in field.choices and bool(_CUSTOM_NAME.fullmatch(str(item)))
    return (
        (field.low is None or item >= field.low)
        and (field.high is None or item <= field.high)
        and (field.above is None or item > field.above)
        and (field.below is None or item < field.below)
    )
