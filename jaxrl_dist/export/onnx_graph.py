"""Writes the program of a step as a graph of ONNX; what depends on parameters alone is computed here.

The graph needs no more than ONNX's own operators, of `OPSET`.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.export import step as steps

OPSET = 18
_IR_VERSION = 10
_FAR = np.iinfo(np.int64).max
# Runtimes on a CPU lack kernels for the narrow integers, which appear only as kinds of rows, and for bfloat16.
DTYPES = {"int8": "int32", "int16": "int32", "bfloat16": "float32"}

# Operations of the same meaning, whose inputs are broadcast alike.
_SAME = {
    **{"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min", "pow": "Pow"},
    **{"neg": "Neg", "exp": "Exp", "log": "Log", "tanh": "Tanh", "logistic": "Sigmoid", "sqrt": "Sqrt", "abs": "Abs"},
    **{"sign": "Sign", "floor": "Floor", "ceil": "Ceil", "erf": "Erf", "sin": "Sin", "cos": "Cos"},
    **{"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"},
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "reduce_precision"), "Identity"),
}
_LOGICAL = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}
_REDUCED = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}
_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")

# A tensor of the graph, by its name, or a value that is known here.
Value = str | np.ndarray


def model(step: steps.Step) -> Any:
    """Returns the model of a step, an `onnx.ModelProto`.

    Raises:
        UsageError: the package onnx is missing, or the policy uses an operation that this file does not know.
    """
    try:
        library: Any = importlib.import_module("onnx")
    except ModuleNotFoundError as error:
        raise errors.missing_package(errors.given("format", "onnx"), error.name, "onnx") from error
    if not step.inputs:
        raise _unknown("reads nothing, not even how many rows there are")
    writer = _Writer(library, next(iter(step.inputs)), next(iter(step.inputs.values())).shape[0])
    consts = [np.asarray(value) for value in step.jaxpr.consts]
    results = writer.run(step.jaxpr.jaxpr, consts, list(step.inputs))
    for name, value in zip(step.outputs, results, strict=True):
        writer.node("Identity", [value], outputs=[name])
    helper = library.helper
    described = [
        [
            helper.make_tensor_value_info(name, writer.kind(struct.dtype), [steps.BATCH, *struct.shape[1:]])
            for name, struct in structs.items()
        ]
        for structs in (step.inputs, step.outputs)
    ]
    graph = helper.make_graph(writer.nodes, "policy", *described, writer.initializers)
    opset = [helper.make_opsetid("", OPSET)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION, producer_name="jaxrl_dist")
    try:
        library.checker.check_model(made, full_check=True)
    except (library.checker.ValidationError, library.shape_inference.InferenceError) as error:
        said = str(error).strip().partition("\n")[0]
        raise _unknown(f"has an operation that ONNX does not take as it is ({said})") from None
    return made


def _unknown(what: str) -> errors.UsageError:
    told = f": this policy {what}, which the export to ONNX does not know; valid: "
    return errors.UsageError(errors.given("format", "onnx"), told, errors.given("format", "stablehlo"))


class _Writer:
    """The nodes and constants of a graph so far.

    Args:
        library: the package onnx.
        rows: name of an input whose first axis is the batch.
        batch: that number, as JAX writes it in shapes.
    """

    def __init__(self, library: Any, rows: str, batch: Any) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._library, self._rows, self._batch = library, rows, batch
        self._count = 0
        self._number: Value | None = None

    def kind(self, dtype: Any) -> int:
        """Returns ONNX's number of a dtype."""
        name = np.dtype(dtype).name
        return int(self._library.helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES.get(name, name))))

    def node(self, kind: str, inputs: Sequence[Value], outputs: Sequence[str] = (), count: int = 1, **more: Any) -> Any:
        """Adds a node, and returns its output, or the list of them if there are several."""
        names = list(outputs) or [self._fresh() for _ in range(count)]
        self.nodes.append(self._library.helper.make_node(kind, [self._named(x) for x in inputs], names, **more))
        return names[0] if len(names) == 1 else names

    def run(self, jaxpr: Any, consts: Sequence[Value], arguments: Sequence[Value]) -> list[Value]:
        """Writes a program; returns its results."""
        known: dict[Any, Value] = {}
        known.update(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Value:
            # A literal of Python has the dtype that JAX gives it here.
            return np.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else known[atom]

        for equation in jaxpr.eqns:
            results = self._written(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _written(self, equation: Any, values: list[Value]) -> list[Value]:
        name, params = equation.primitive.name, equation.params
        if name in _CALLS:
            inner = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
            return self._called(inner, values)
        if name == "scan":
            return self._scanned(params, values)
        if name == "optimization_barrier":
            return values
        if name == "platform_index":
            # Where an operation is written differently for some platforms: as for all others.
            return [np.asarray(next(i for i, names in enumerate(params["platforms"]) if names is None))]
        if name == "cond" and isinstance(values[0], np.ndarray):
            return self._called(params["branches"][int(values[0])], values[1:])
        is_static = all(isinstance(n, int) for var in equation.outvars for n in var.aval.shape)
        if is_static and all(isinstance(value, np.ndarray) for value in values):
            made = equation.primitive.bind(*values, **params)
            return [np.asarray(one) for one in (made if equation.primitive.multiple_results else [made])]
        if name == "split":
            sizes = np.asarray(params["sizes"], np.int64)
            made = self.node("Split", [values[0], sizes], count=len(sizes), axis=params["axis"])
            return [made] if len(sizes) == 1 else made
        return [self._one(equation, name, params, values)]

    def _called(self, inner: Any, values: list[Value]) -> list[Value]:
        if not hasattr(inner, "consts"):
            return self.run(inner, [], values)
        return self.run(inner.jaxpr, [np.asarray(value) for value in inner.consts], values)

    def _scanned(self, params: Any, values: list[Value]) -> list[Value]:
        """Writes a loop row by row; a step has one row."""
        consts, carry = params["num_consts"], params["num_carry"]
        fixed, memory, rows = values[:consts], values[consts : consts + carry], values[consts + carry :]
        order = range(params["length"])
        made: list[list[Value]] = []
        for i in reversed(order) if params["reverse"] else order:
            results = self._called(params["jaxpr"], [*fixed, *memory, *(self._at(x, i) for x in rows)])
            memory, outputs = results[:carry], results[carry:]
            made.append([self.node("Unsqueeze", [x, np.array([0])]) for x in outputs])
        made = made[::-1] if params["reverse"] else made
        stacked = [self.node("Concat", list(column), axis=0) for column in zip(*made, strict=True)]
        return [*memory, *stacked]

    def _at(self, value: Value, index: int) -> Value:
        if isinstance(value, np.ndarray):
            return value[index]
        return str(self.node("Gather", [value, np.asarray(index)], axis=0))

    def _one(self, equation: Any, name: str, params: Any, values: list[Value]) -> Value:
        """Writes an operation with one result."""
        if name in _SAME:
            return self.node(_SAME[name], values)
        shape = equation.outvars[0].aval.shape
        if name in _LOGICAL:
            return self.node(("" if equation.invars[0].aval.dtype == bool else "Bitwise") + _LOGICAL[name], values)
        if name in _REDUCED and not params["axes"]:
            # Without an axis, ONNX reduces all.
            return self.node("Identity", values)
        if name in _REDUCED:
            return self.node(_REDUCED[name], [values[0], np.asarray(params["axes"], np.int64)], keepdims=0)
        rule: Callable[..., Value] | None = getattr(self, f"_{name}", None)
        if rule is None:
            raise _unknown(f"computes {name}")
        return rule(shape, params, values, [var.aval for var in equation.invars])

    # Each rule takes the shape of the result, parameters of the operation, its values, and their shapes and dtypes.

    def _ne(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("Not", [self.node("Equal", values)])

    def _square(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("Mul", values * 2)

    def _integer_pow(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("Pow", [values[0], np.asarray(params["y"], avals[0].dtype)])

    def _rsqrt(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("Reciprocal", [self.node("Sqrt", values)])

    def _log1p(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("Log", [self.node("Add", [values[0], np.ones((), avals[0].dtype)])])

    def _expm1(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("Sub", [self.node("Exp", values), np.ones((), avals[0].dtype)])

    def _is_finite(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("Not", [self.node("Or", [self.node("IsNaN", values), self.node("IsInf", values)])])

    def _rem(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("Mod", values, fmod=1)

    def _clamp(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        low, value, high = values
        return self.node("Min", [self.node("Max", [value, low]), high])

    def _select_n(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        which, if_false, if_true = values
        if avals[1].dtype != bool:
            return self.node("Where", [which, if_true, if_false])
        # Runtimes choose no truth values.
        other = self.node("And", [self.node("Not", [which]), if_false])
        return self.node("Or", [self.node("And", [which, if_true]), other])

    def _convert_element_type(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("Cast", values, to=self.kind(params["new_dtype"]))

    def _argmax(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self._chosen("ArgMax", params, values)

    def _argmin(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self._chosen("ArgMin", params, values)

    def _reduce_and(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self._counted("ReduceMin", params, values)

    def _reduce_or(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self._counted("ReduceMax", params, values)

    def _broadcast_in_dim(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        value, kept = values[0], params["broadcast_dimensions"]
        new = np.asarray([axis for axis in range(len(shape)) if axis not in kept], np.int64)
        if len(new):
            value = self.node("Unsqueeze", [value, new])
        before = [1] * len(shape)
        for axis, size in zip(kept, avals[0].shape, strict=True):
            before[axis] = size
        return value if tuple(before) == tuple(shape) else self.node("Expand", [value, self._dims(shape)])

    def _reshape(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        free = [not isinstance(n, int) for n in shape]
        target: Value = self._dims(shape)
        if sum(free) == 1:
            target = np.asarray([-1 if is_free else n for n, is_free in zip(shape, free, strict=True)], np.int64)
        return self.node("Reshape", [values[0], target])

    def _squeeze(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("Squeeze", [values[0], np.asarray(params["dimensions"], np.int64)])

    def _transpose(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self._transposed(values[0], params["permutation"])

    def _concatenate(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("Concat", values, axis=params["dimension"])

    def _stack(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        axis = params["axis"]
        return self.node("Concat", [self.node("Unsqueeze", [x, np.asarray([axis])]) for x in values], axis=axis)

    def _slice(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        strides = params["strides"] or (1,) * len(shape)
        return self._cut(values[0], params["start_indices"], params["limit_indices"], strides)

    def _dynamic_slice(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self._from(values[0], values[1:], params["slice_sizes"], avals[0].shape)

    def _gather(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        """Writes the gather of one slice at a place that is known."""
        numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
        if not isinstance(values[1], np.ndarray) or values[1].ndim != 1 or numbers.operand_batching_dims:
            raise _unknown("looks up entries by an index")
        starts: list[Any] = [0] * len(sizes)
        for axis, start in zip(numbers.start_index_map, values[1].tolist(), strict=True):
            starts[axis] = start
        value = self._from(values[0], starts, sizes, avals[0].shape)
        gone = np.asarray(numbers.collapsed_slice_dims, np.int64)
        # Without an axis, ONNX takes away all of size 1, such as that of one row.
        return self.node("Squeeze", [value, gone]) if len(gone) else value

    def _pad(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        low, high, between = zip(*params["padding_config"], strict=True)
        if any(between) or min(*low, *high) < 0:
            raise _unknown("pads between numbers or by less than none")
        return self.node("Pad", [values[0], np.asarray([*low, *high], np.int64), values[1]])

    def _iota(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        axis = params["dimension"]
        if not isinstance(shape[axis], int):
            raise _unknown("counts rows")
        counted = np.arange(shape[axis], dtype=params["dtype"]).reshape(
            [-1 if i == axis else 1 for i in range(len(shape))]
        )
        return self.node("Expand", [counted, self._dims(shape)])

    def _cumsum(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        return self.node("CumSum", [values[0], np.asarray(params["axis"])], reverse=int(params["reverse"]))

    def _dot_general(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        """Writes a product of matrices, for which axes of one part (batch, free, summed) become one where they must."""
        (left, right), (left_batch, right_batch) = params["dimension_numbers"]
        count, ranks = len(left_batch), [len(aval.shape) for aval in avals]
        free = [
            [axis for axis in range(rank) if axis not in (*batch, *summed)]
            for rank, batch, summed in zip(ranks, (left_batch, right_batch), (left, right), strict=True)
        ]
        one = self._transposed(values[0], [*left_batch, *free[0], *left])
        other = self._transposed(values[1], [*right_batch, *right, *free[1]])
        if len(left) == 1 and len(free[1]) < 2 and (not count or len(free[0]) == len(free[1]) == 1):
            return self.node("MatMul", [one, other])
        sizes = [
            [math.prod(aval.shape[i] for i in axes) for axes in (rest, summed)]
            for aval, rest, summed in zip(avals, free, (left, right), strict=True)
        ]
        batch = [avals[0].shape[axis] for axis in left_batch]
        one = self.node("Reshape", [one, self._dims([*batch, *sizes[0]])])
        other = self.node("Reshape", [other, self._dims([*batch, *sizes[1][::-1]])])
        return self.node("Reshape", [self.node("MatMul", [one, other]), self._dims(shape)])

    def _conv_general_dilated(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        numbers = params["dimension_numbers"]
        if set(params["lhs_dilation"]) != {1} or params["batch_group_count"] != 1:
            raise _unknown("convolves a dilated image")
        image = self._transposed(values[0], numbers.lhs_spec)
        weights = self._transposed(values[1], numbers.rhs_spec)
        low, high = zip(*params["padding"], strict=True)
        made = self.node(
            "Conv",
            [image, weights],
            strides=list(params["window_strides"]),
            pads=[*low, *high],
            dilations=list(params["rhs_dilation"]),
            group=params["feature_group_count"],
        )
        return self._transposed(made, np.argsort(numbers.out_spec).tolist())

    def _reduce_window_max(self, shape: Any, params: Any, values: list[Value], avals: Any) -> Value:
        """Writes the pooling of images [B, H, W, C]."""
        window, strides, padding = params["window_dimensions"], params["window_strides"], params["padding"]
        is_plain = {*params["base_dilation"], *params["window_dilation"]} == {1} and window[0] == window[-1] == 1
        if not is_plain or len(window) != 4:
            raise _unknown("pools other than images [B, H, W, C]")
        low, high = zip(*padding[1:3], strict=True)
        image = self._transposed(values[0], (0, 3, 1, 2))
        made = self.node(
            "MaxPool", [image], kernel_shape=list(window[1:3]), strides=list(strides[1:3]), pads=[*low, *high]
        )
        return self._transposed(made, (0, 2, 3, 1))

    def _chosen(self, kind: str, params: Any, values: list[Value]) -> Value:
        (axis,) = params["axes"]
        found = self.node(kind, values, axis=int(axis), keepdims=0)
        return str(self.node("Cast", [found], to=self.kind(params["index_dtype"])))

    def _counted(self, kind: str, params: Any, values: list[Value]) -> Value:
        """Reduces truth values as numbers."""
        numbers = self.node("Cast", values, to=self.kind(np.int32))
        reduced = self.node(kind, [numbers, np.asarray(params["axes"])], keepdims=0)
        return str(self.node("Cast", [reduced], to=self.kind(bool)))

    def _from(self, value: Value, starts: Sequence[Any], sizes: Sequence[Any], shape: Sequence[Any]) -> Value:
        """Cuts a slice of these sizes at a place that is known, moved inside as JAX does."""
        if any(isinstance(start, str) for start in starts):
            raise _unknown("cuts at a place that it computes")
        bounds = [
            (0, size) if not isinstance(size, int) else (min(max(int(start), 0), whole - size),) * 2
            for start, size, whole in zip(starts, sizes, shape, strict=True)
        ]
        limits = [
            first + size if isinstance(size, int) else size for (first, _), size in zip(bounds, sizes, strict=True)
        ]
        return self._cut(value, [first for first, _ in bounds], limits, [1] * len(bounds))

    def _cut(self, value: Value, starts: Sequence[int], limits: Sequence[Any], strides: Sequence[int]) -> Value:
        ends = [limit if isinstance(limit, int | np.integer) else _FAR for limit in limits]
        axes = range(len(ends))
        return self.node("Slice", [value, *(np.asarray(x, np.int64) for x in (starts, ends, axes, strides))])

    def _transposed(self, value: Value, order: Sequence[int]) -> Value:
        if list(order) == list(range(len(order))):
            return value
        if isinstance(value, np.ndarray):
            return np.transpose(value, order)
        return str(self.node("Transpose", [value], perm=list(map(int, order))))

    def _dims(self, shape: Sequence[Any]) -> Value:
        """Returns a shape i64 [rank], which the graph computes where it has the number of rows."""
        if all(isinstance(n, int) for n in shape):
            return np.asarray(shape, np.int64)
        return str(self.node("Concat", [self._dim(n) for n in shape], axis=0))

    def _dim(self, size: Any) -> Value:
        if isinstance(size, int):
            return np.asarray([size], np.int64)
        if self._number is None:
            whole = self.node("Shape", [self._rows])
            self._number = self.node("Slice", [whole, np.array([0]), np.array([1])])
        assert self._number is not None
        if size == self._batch:
            return self._number
        factor = size // self._batch
        if not isinstance(factor, int) or factor * self._batch != size:
            raise _unknown(f"makes an array of {size} rows")
        return str(self.node("Mul", [self._number, np.asarray([factor], np.int64)]))

    def _named(self, value: Value) -> str:
        if isinstance(value, str):
            return value
        name, narrow = self._fresh(), DTYPES.get(value.dtype.name)
        array = np.ascontiguousarray(value if narrow is None else value.astype(narrow))
        array = array.reshape(value.shape)
        self.initializers.append(self._library.numpy_helper.from_array(array, name))
        return name

    def _fresh(self) -> str:
        self._count += 1
        return f"t{self._count}"
