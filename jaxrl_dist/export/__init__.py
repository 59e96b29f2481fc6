"""A policy for programs without this package: one step as StableHLO or ONNX, with normalisation and memory inside."""

import pathlib
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend import core

from jaxrl_dist import errors
from jaxrl_dist.export import onnx_graph
from jaxrl_dist.export import step as steps
from jaxrl_dist.runs import files, software
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.training import policy as policies
from jaxrl_dist.training import predicting, session

FORMATS = ("stablehlo", "onnx")
PLATFORMS = ("cpu", "cuda", "tpu")
_ONNX_COMPUTES = "float32"


def stablehlo(step: steps.Step) -> bytes:
    """Returns the artifact of a step that `jax.export.deserialize` reads, for every platform and number of rows."""
    function = jax.jit(core.jaxpr_as_fun(step.jaxpr))
    return bytes(export.export(function, platforms=PLATFORMS)(*step.inputs.values()).serialize())


def onnx(step: steps.Step) -> bytes:
    """Returns the model of a step for ONNX's runtimes.

    Raises:
        UsageError: the package onnx is missing, or the policy uses an operation that ONNX or this package lacks.
    """
    return bytes(onnx_graph.model(step).SerializeToString())


def write(policy: policies.Policy, form: str, out: pathlib.Path) -> dict[str, Any]:
    """Writes a policy, and beside it a description in JSON: names, shapes and dtypes, and the space of its actions.

    Args:
        policy: from `policy.load`.
        form: of `FORMATS`.
        out: file; the description has its name and `.json` after it.

    Returns:
        The description.

    Raises:
        UsageError: there is no such format, its package is missing, or it cannot express the policy.
    """
    if form not in FORMATS:
        raise errors.UsageError(
            errors.given("format", form), f": expected one of {', '.join(FORMATS)}{errors.nearest(form, FORMATS)}"
        )
    if not out.name:
        raise errors.UsageError(errors.given("out", out), ": expected the name of a file")
    if out.suffix == ".json":
        raise errors.UsageError(errors.given("out", out), ": expected another name, as the description ends in .json")
    beside = out.with_name(f"{out.name}.json")
    if beside.exists() and "format" not in files.read_json(beside):
        told = f": its description would replace {beside}, which is another file; expected another name"
        raise errors.UsageError(errors.given("out", out), told)
    if form == "onnx" and policy.settings["network.compute"] != _ONNX_COMPUTES:
        # Its runtimes have no bfloat16 on a CPU; parameters are float32 in any case.
        wider = policy.settings.replaced({"network.compute": _ONNX_COMPUTES})
        policy = policy._replace(predictor=predicting.make(wider, policy.environment.spec))
    with session.matmul_precision(policy.settings):
        step = steps.of_policy(policy)
        data = onnx(step) if form == "onnx" else stablehlo(step)
    described = describe(policy, step, form)
    out.parent.mkdir(parents=True, exist_ok=True)
    folders.replace(out, lambda path: path.write_bytes(data))
    folders.write_json(beside, described)
    return described


def describe(policy: policies.Policy, step: steps.Step, form: str) -> dict[str, Any]:
    """Returns what a program needs to run an exported step, as `json` can write it."""

    def listed(structs: dict[str, jax.ShapeDtypeStruct]) -> list[dict[str, Any]]:
        return [
            {"name": name, "shape": [steps.BATCH, *struct.shape[1:]], "dtype": named(np.dtype(struct.dtype).name)}
            for name, struct in structs.items()
        ]

    def named(dtype: str) -> str:
        return onnx_graph.DTYPES.get(dtype, dtype) if form == "onnx" else dtype

    settings = policy.settings
    return {
        "format": form,
        "system": settings["system"],
        "env": settings["env"],
        "env_steps": policy.env_steps,
        "jaxrl_dist": software.version(),
        "jax": jax.__version__,
        **({"opset": onnx_graph.OPSET} if form == "onnx" else {"platforms": list(PLATFORMS)}),
        "inputs": listed(step.inputs),
        "outputs": listed(step.outputs),
        "carry": step.carry,
        "action": _space(policy.environment.spec.action),
    }


def _space(space: Any) -> dict[str, Any]:
    """Returns the kind of a space of actions and its numbers; null stands for no bound."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [plain(one) for one in value]
        array = np.asarray(value)
        if array.ndim:
            return [plain(one) for one in array]
        return array.item() if np.isfinite(array) else None

    return {"kind": space.kind, **{name: plain(value) for name, value in space._asdict().items()}}
