"""Small wrong changes of a source file, one at a time: other operators, bounds, constants, signs, orders and keys.

What is changed is the text of function bodies. Left alone are class bodies (settings, whose defaults docs/flags.md
pins), annotations, decorators, texts, messages of errors, and `assert`.
"""

import ast
import copy
import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_BINARY: Mapping[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_COMPARED: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
_BOOLEAN: Mapping[type[ast.boolop], tuple[str, str]] = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
_PAIRS = (
    ("minimum", "maximum"),
    ("min", "max"),
    ("argmin", "argmax"),
    ("sum", "mean"),
    ("any", "all"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("floor", "ceil"),
    ("log", "log1p"),
    ("exp", "expm1"),
    ("sqrt", "square"),
    ("softmax", "log_softmax"),
)
_CALLED = {name: other for a, b in _PAIRS for name, other in ((a, b), (b, a))}


class Mutant(NamedTuple):
    """One wrong change.

    Attributes:
        function: its qualified name in the file.
        change: kind and operands, in words.
        number: among equal changes of the function, from 0.
        line: first line of what is changed, from 1.
        start: first byte of what is changed.
        stop: the byte behind it.
        text: what stands there instead.
        digest: of the function's code, 8 hexadecimal digits: a judgement of other code is out of date.
    """

    function: str
    change: str
    number: int
    line: int
    start: int
    stop: int
    text: str
    digest: str

    @property
    def name(self) -> str:
        """The change and its number, as `a < b -> a <= b #0`."""
        return f"{self.change} #{self.number}"

    def applied(self, source: str) -> str:
        """Returns the source with the change."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.stop :]).decode()


def mutants(source: str) -> list[Mutant]:
    """Returns all changes of a source that leave it valid Python, in the order of their places."""
    text = _Text(source)
    return [mutant for name, node in _functions(ast.parse(source), "") for mutant in _of_function(text, name, node)]


class _Text:
    """A source by the places of its syntax tree: lines from 1, columns in bytes."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.AST) -> int:
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def stop(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def of(self, node: ast.AST) -> str:
        return self.data[self.start(node) : self.stop(node)].decode()

    def find(self, word: str, start: int, stop: int) -> int:
        """Returns the first byte of a word between two places."""
        found = self.data.find(word.encode(), start, stop)
        assert found >= 0
        return found


class _Change(NamedTuple):
    """A change of the source: the text that is replaced, its replacement, and the change in words."""

    start: int
    stop: int
    text: str
    told: str


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields the outermost functions and the methods; functions inside belong to the one that they are in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _of_function(text: _Text, name: str, function: ast.FunctionDef) -> Iterator[Mutant]:
    digest = hashlib.sha256(ast.dump(_WithoutDocstrings().visit(copy.deepcopy(function))).encode()).hexdigest()[:8]
    told: dict[str, int] = {}
    for node in _nodes(function):
        for change in _changes(text, node):
            number = told.get(change.told, 0)
            told[change.told] = number + 1
            line = text.data.count(b"\n", 0, change.start) + 1
            yield Mutant(name, change.told, number, line, change.start, change.stop, change.text, digest)


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        self.generic_visit(node)
        return node


def _nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yields what of a function computes."""
    left: list[ast.AST] = list(reversed(function.body))
    while left:
        node = left.pop()
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node
        inside = ast.iter_child_nodes(node)
        if isinstance(node, ast.AnnAssign):
            inside = iter([node.value] if node.value else [])
        elif isinstance(node, ast.FunctionDef):
            inside = iter(node.body)
        left.extend(reversed(list(inside)))


def _changes(text: _Text, node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        yield _between(text, node.left, node.right, *_BINARY[type(node.op)])
    elif isinstance(node, ast.AugAssign) and type(node.op) in _BINARY:
        old, new = _BINARY[type(node.op)]
        yield _between(text, node.target, node.value, f"{old}=", f"{new}=")
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        yield _between(text, node.left, node.comparators[0], *_COMPARED[type(node.ops[0])])
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        yield _between(text, *node.values, *_BOOLEAN[type(node.op)])
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield _whole(text, node, text.of(node.operand), "without its sign" if isinstance(node.op, ast.USub) else "kept")
    elif isinstance(node, ast.Constant):
        yield from _constants(text, node)
    elif isinstance(node, ast.If | ast.IfExp) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield _whole(text, node.test, f"(not {text.of(node.test)})", "turned round")
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and text.of(node.slice) in ("1:", ":-1"):
        yield _whole(text, node.slice, ":-1" if text.of(node.slice) == "1:" else "1:", "the other rows")
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        yield from _same_key(text, node)
    elif isinstance(node, ast.Call):
        yield from _calls(text, node)


def _constants(text: _Text, node: ast.Constant) -> Iterator[_Change]:
    value = node.value
    if isinstance(value, bool):
        yield _whole(text, node, str(not value))
    elif isinstance(value, int):
        yield _whole(text, node, str(value + 1))
    elif isinstance(value, float):
        yield _whole(text, node, str(value * 2 if value else 1.0))


def _calls(text: _Text, node: ast.Call) -> Iterator[_Change]:
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name in _CALLED:
        stop = text.stop(called)
        start = stop - len(name.encode())
        yield _Change(start, stop, _CALLED[name], f"{name} -> {_CALLED[name]} in {_short(text.of(node))}")
    if name == "where" and len(node.args) == 3:
        condition, yes, no = (text.of(one) for one in node.args)
        swapped = f"{text.of(called)}({condition}, {no}, {yes})"
        yield _whole(text, node, swapped, "its branches swapped")
    if name in ("clip", "stop_gradient") and node.args:
        yield _whole(text, node, f"({text.of(node.args[0])})", f"without {name}")


def _same_key(text: _Text, node: ast.Assign) -> Iterator[_Change]:
    """Gives all names of a split the first of its keys."""
    value, names = node.value, node.targets[0]
    assert isinstance(names, ast.Tuple)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "split":
        first = f"{text.of(value)}[jax.numpy.zeros({len(names.elts)}, int)]"
        yield _whole(text, value, first, "one key for all")


def _between(text: _Text, left: ast.expr, right: ast.expr, old: str, new: str) -> _Change:
    start = text.find(old, text.stop(left), text.start(right))
    told = f"{_short(text.of(left))} {old} {_short(text.of(right))}, {new}"
    return _Change(start, start + len(old), new, told)


def _whole(text: _Text, node: ast.AST, new: str, how: str = "") -> _Change:
    return _Change(text.start(node), text.stop(node), new, f"{_short(text.of(node))}, {how or new}")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else f"{text[:37]}..."
