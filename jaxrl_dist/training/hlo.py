"""Reads the text of a compiled program (scheduled HLO): its loops, and the kernels, bytes and products of each pass.

A kernel is an instruction that an accelerator starts by itself: a fusion, a product, a copy, a library's call.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

# Instructions that only name or group others, and halves that wait for what was started before.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency", "opt-barrier"),
    *("while", "conditional", "call", "partition-id", "replica-id", "domain"),
    *("copy-done", "all-reduce-done", "all-gather-done", "collective-permute-done", "async-done", "async-update"),
    *("send-done", "recv-done", "slice-done", "dynamic-slice-done", "dynamic-update-slice-done"),
}
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
    "collective-broadcast",
)
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,]*)\]")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{\s*$")
_SCOPE = re.compile(r'op_name="([^"]*)"')


class Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
        name: of the result.
        shape: of the result, as text.
        opcode: such as "fusion".
        operands: names; of a parameter its number, of a constant its value.
        rest: attributes behind the operands.
        is_root: whether it is the computation's result.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    rest: str
    is_root: bool


@dataclasses.dataclass
class Loop:
    """A loop of a program, or the program itself; numbers are of one pass, without loops in it.

    Attributes:
        scope: the innermost of the names that the project gave its loops, "" without one.
        passes: number of passes, None where it is known on the device alone.
        kernels: number of kernels.
        bytes: read and written by them.
        flops: of their products.
        seconds: predicted for them.
        collectives: (opcode, bytes per device) of each reduction or exchange over devices.
        loops: loops in it.
        operation: of JAX that became the loop, such as "while" or "scatter"; "" where it is not told.
    """

    scope: str
    passes: int | None
    kernels: int = 0
    bytes: int = 0
    flops: int = 0
    seconds: float = 0.0
    collectives: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    loops: list["Loop"] = dataclasses.field(default_factory=list)
    operation: str = ""

    def walk(self, depth: int = 0) -> Iterator[tuple[int, "Loop"]]:
        """Yields this loop and those in it, with their depth."""
        yield depth, self
        for loop in self.loops:
            yield from loop.walk(depth + 1)

    def total(self, name: str, due: float = 1.0) -> float:
        """Sums a number over a pass and all passes of the loops in it; an unknown number of passes counts as `due`."""
        return getattr(self, name) + sum(
            (due if loop.passes is None else loop.passes) * loop.total(name, due) for loop in self.loops
        )


class Speeds(NamedTuple):
    """Speeds of a device: seconds to start a kernel, bytes per second, and floating-point operations per second."""

    kernel_s: float
    bytes_per_second: float
    flops_per_second: float


def read(text: str, speeds: Speeds, scopes: Sequence[str] = ()) -> Loop:
    """Reads a program.

    Args:
        text: `Compiled.as_text()` of JAX.
        speeds: of the device, for the predicted seconds: a kernel takes the largest of its three times.
        scopes: names by which loops are told, as given by `jax.named_scope`.

    Raises:
        ValueError: the text holds no program.
    """
    computations, entry = _computations(text)
    if not entry:
        raise ValueError("no program: there is no ENTRY computation")
    return _Reader(computations, speeds, tuple(scopes)).loop(entry, (), 1)


class Launches(NamedTuple):
    """Starts by the host in one call of a GPU's program, loops once each.

    Attributes:
        graphs: CUDA graphs.
        kernels: kernels and copies outside of graphs.
        loops: loops that the host drives, outside of graphs.
    """

    graphs: int
    kernels: int
    loops: int


def launches(thunks: str) -> Launches:
    """Counts what the host starts.

    Args:
        thunks: the file `*.thunk_sequence_after_thunk_passes.txt` that XLA dumps of a GPU's program.
    """
    counts, graph = {"kCommandBuffer": 0, "kWhile": 0, "": 0}, None
    for line in thunks.splitlines():
        match = re.match(r"^( *)\d+: (k\w+)", line)
        if not match:
            continue
        depth, kind = len(match[1]), match[2]
        if graph is not None and depth > graph:
            continue
        graph = depth if kind == "kCommandBuffer" else None
        counts[kind if kind in counts else ""] += 1
    return Launches(counts["kCommandBuffer"], counts[""], counts["kWhile"])


def _computations(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """Returns computation -> name -> instruction, and the name of the first computation."""
    found: dict[str, dict[str, Instruction]] = {}
    current, entry = None, ""
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head and not line.startswith(" "):
            current = found[head[2]] = {}
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            inside, rest = _balanced(match[4])
            operands = (inside,) if match[3] in ("parameter", "constant") else tuple(re.findall(r"%([\w.\-]+)", inside))
            current[match[1]] = Instruction(match[1], match[2], match[3], operands, rest, "ROOT " in line[:12])
    return found, entry


def _balanced(text: str) -> tuple[str, str]:
    """Splits behind the bracket that closes the operands."""
    depth = 1
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[:i], text[i + 1 :]
    return text, ""


def size(shape: str) -> int:
    """Returns the bytes of a shape in text, all parts of a tuple together."""
    return sum(math.prod(_sides(sides)) * _bits(kind) // 8 for kind, sides in _SHAPE.findall(shape))


def _sides_of(shape: str) -> list[int]:
    """Returns the sides of the first array in a shape."""
    found = _SHAPE.search(shape)
    return _sides(found[2]) if found else []


def _sides(text: str) -> list[int]:
    return [int(side) for side in text.split(",") if side]


def _bits(kind: str) -> int:
    width = re.search(r"\d+", kind)
    return _BITS.get(kind, int(width[0]) if width else 8)


class _Reader:
    """Follows a program from computation to computation."""

    def __init__(
        self, computations: Mapping[str, Mapping[str, Instruction]], speeds: Speeds, scopes: tuple[str, ...]
    ) -> None:
        self._computations, self._speeds, self._scopes = computations, speeds, scopes

    def loop(self, computation: str, named: Sequence[str], passes: int | None, outer: Sequence[str] = ()) -> Loop:
        """Reads a computation as a loop; names are those of its scopes, and of the scopes of the loop around it."""
        made = Loop("".join(named[len(outer) :][-1:]), passes)
        self._add(made, computation, named)
        return made

    def _add(self, loop: Loop, computation: str, named: Sequence[str]) -> None:
        """Adds the instructions of a computation to a pass of a loop."""
        instructions = self._computations.get(computation, {})
        for one in instructions.values():
            if one.opcode == "while":
                made = self.loop(_called(one, "body"), self._named(one), self._passes(one), named)
                made.operation = _path(one).rpartition("/")[2]
                loop.loops.append(made)
            elif one.opcode == "conditional":
                self._add_longest(loop, one, named)
            elif one.opcode == "call":
                self._add(loop, _called(one, "to_apply"), named)
            elif one.opcode not in _FREE:
                self._count(loop, one, instructions)

    def _add_longest(self, loop: Loop, one: Instruction, named: Sequence[str]) -> None:
        """Adds the branch with the most kernels: which one runs is known on the device alone."""
        listed = re.search(r"branch_computations=\{([^}]*)\}", one.rest)
        names = (
            re.findall(r"%?([\w.\-]+)", listed[1])
            if listed
            else [_called(one, "true_computation"), _called(one, "false_computation")]
        )
        branches = [self.loop(name, named, 1, named) for name in names]
        longest = max(branches, key=lambda branch: branch.total("kernels"))
        for name in ("kernels", "bytes", "flops", "seconds"):
            setattr(loop, name, getattr(loop, name) + getattr(longest, name))
        loop.collectives += longest.collectives
        loop.loops += longest.loops

    def _passes(self, one: Instruction) -> int | None:
        """Returns the passes of a loop, as the compiler tells them, or as its condition compares them with a number."""
        told = re.search(r"known_trip_count\W+n\W+(\d+)", one.rest)
        if told:
            return int(told[1])
        condition = self._computations.get(_called(one, "condition"), {})
        root = next((x for x in condition.values() if x.is_root and x.opcode == "compare"), None)
        limit = condition.get(root.operands[1]) if root and "direction=LT" in root.rest else None
        return int(limit.operands[0]) if limit and limit.opcode == "constant" else None

    def _named(self, one: Instruction) -> list[str]:
        return [word for word in re.findall(r"\w+", _path(one)) if word in self._scopes]

    def _count(self, loop: Loop, one: Instruction, instructions: Mapping[str, Instruction]) -> None:
        moved, flops = self._moved(one, instructions), self._flops(one, instructions)
        loop.kernels += 1
        loop.bytes += moved
        loop.flops += flops
        loop.seconds += max(
            self._speeds.kernel_s, moved / self._speeds.bytes_per_second, flops / self._speeds.flops_per_second
        )
        kind = one.opcode.removesuffix("-start")
        if kind in _COLLECTIVES:
            loop.collectives.append((kind, sum(size(instructions[name].shape) for name in one.operands)))

    def _moved(self, one: Instruction, instructions: Mapping[str, Instruction]) -> int:
        """Returns the bytes that an instruction reads and writes; of a slice of an operand only the slice."""
        given = [instructions[name].shape for name in one.operands if name in instructions]
        if one.opcode in ("dynamic-slice", "gather", "slice"):
            return 2 * size(one.shape)
        if one.opcode in ("dynamic-update-slice", "scatter"):
            return 2 * size(given[1])
        if one.opcode != "fusion":
            return size(one.shape) + sum(map(size, given))
        inside = self._computations.get(_called(one, "calls"), {})
        numbers = {x.name: int(x.operands[0]) for x in inside.values() if x.opcode == "parameter"}
        return self._written(inside, one) + sum(
            min(_read(inside, name), size(given[i])) for name, i in numbers.items() if i < len(given)
        )

    def _written(self, inside: Mapping[str, Instruction], one: Instruction) -> int:
        root = next((x for x in inside.values() if x.is_root), None)
        if root is None:
            return size(one.shape)
        results = [inside[name] for name in root.operands] if root.opcode == "tuple" else [root]
        return sum(
            size(inside[x.operands[1]].shape) if x.opcode == "dynamic-update-slice" else size(x.shape) for x in results
        )

    def _flops(self, one: Instruction, instructions: Mapping[str, Instruction]) -> int:
        if one.opcode == "fusion":
            inside = self._computations.get(_called(one, "calls"), {})
            return sum(self._flops(x, inside) for x in inside.values())
        if one.opcode == "convolution":
            kernel, labels = _sides_of(instructions[one.operands[1]].shape), re.search(r"_(\w+)->", one.rest)
            outputs = kernel[labels[1].index("o")] if labels else 1
            return 2 * math.prod(_sides_of(one.shape)) * math.prod(kernel) // max(outputs, 1)
        if one.opcode == "dot" or (one.opcode == "custom-call" and "gemm" in one.rest + one.name):
            left = _sides_of(instructions[one.operands[0]].shape)
            summed = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([^\]}]*)', one.rest)
            lengths = [left[int(i)] for i in re.findall(r"\d+", summed[1])] if summed else [0]
            return 2 * math.prod(_sides_of(one.shape)) * math.prod(lengths)
        return 0


def _path(one: Instruction) -> str:
    """Returns the scopes and the operation of JAX that made an instruction, with slashes between."""
    found = _SCOPE.search(one.rest)
    return found[1] if found else ""


def _called(one: Instruction, attribute: str) -> str:
    found = re.search(rf"\b{attribute}=%?([\w.\-]+)", one.rest)
    return found[1] if found else ""


def _read(inside: Mapping[str, Instruction], name: str) -> int:
    """Returns the bytes that a fusion reads of a parameter: of one that it only cuts the slices."""
    total = 0
    for use in (x for x in inside.values() if name in x.operands):
        if use.opcode == "bitcast":
            total += _read(inside, use.name)
        elif use.opcode in ("dynamic-slice", "gather", "slice") and use.operands[0] == name:
            total += size(use.shape)
        elif use.opcode != "dynamic-update-slice" or use.operands[0] != name:
            return size(inside[name].shape)
    return total
