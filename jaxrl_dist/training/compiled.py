"""Compiles a run's training program for devices that are not there, and says what they would launch, hold and wait for.

The numbers are of the executable itself, as the device's own compiler makes it; only the predicted time is a model.
"""

import pathlib
import tempfile
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from jaxrl_dist import errors
from jaxrl_dist.learning import learner
from jaxrl_dist.parallel import anakin, memory_use, unroll
from jaxrl_dist.settings import sweep
from jaxrl_dist.training import assemble, hlo, session, targets

# Names that the project gives its loops, by `jax.named_scope`.
SCOPES = (unroll.ROLLOUT_STEP, learner.EPOCH, learner.GRADIENT_STEP)
_THUNKS = "*.thunk_sequence_after_thunk_passes.txt"
# Seconds in which the host asks a GPU if a loop goes on, and the device waits.
_HOST_STOP_S = 10e-6


class Report(NamedTuple):
    """A compiled training program.

    Attributes:
        target: what it is compiled for.
        seconds: to lower and to compile it.
        program: its loops.
        launches: what the host of a GPU starts, None for a TPU.
        arguments: bytes per device of the run's state.
        temporaries: bytes per device that it needs beside them.
        rows: environment steps of an iteration and seed, over all devices.
        updates: of the learner in an iteration, on the average once its replay has rows enough.
        devices: number of devices.
        members: seeds times combinations of a sweep, over all devices.
        groups: parts of the devices, each of which trains as many members as the others.
    """

    target: targets.Target
    seconds: tuple[float, float]
    program: hlo.Loop
    launches: hlo.Launches | None
    arguments: int
    temporaries: int
    rows: int
    updates: float
    devices: int
    members: int = 1
    groups: int = 1

    @property
    def iteration(self) -> hlo.Loop:
        """The loop over iterations, whose number only the device knows."""
        found = [loop for _, loop in self.program.walk() if loop.passes is None]
        return max(found, key=lambda loop: loop.total("kernels"))

    @property
    def at_once(self) -> int:
        """Members that a device trains in one loop over iterations, as accelerators do."""
        return self.members // self.groups // self.in_turn

    @property
    def in_turn(self) -> int:
        """Seeds that a device trains one after the other, as CPUs do; each has a loop over iterations of its own."""
        around = [loop.passes for loop in self.program.loops if any(one is self.iteration for one in loop.loops)]
        return (around[0] if around else None) or 1

    def total(self, name: str) -> float:
        """Sums a number over an iteration of members that a device trains at once; passes unknown to it are updates."""
        return self.iteration.total(name, self.updates)

    def loop(self, scope: str) -> hlo.Loop | None:
        """Returns the first loop of a scope."""
        return next((loop for _, loop in self.program.walk() if loop.scope == scope), None)


def compile_run(flags: Mapping[str, Any], target: targets.Target) -> Report:
    """Compiles the training program of a run.

    Args:
        flags: flags of the run, name -> text or value.
        target: what to compile for.

    Raises:
        UsageError: settings are not valid, do not go together, or the run's layout is not one program.
    """
    settings, environment = assemble.resolve(flags)
    if settings["layout"] != "anakin":
        raise errors.UsageError(
            errors.given("target", target.name),
            f": {settings['layout']} is not one program; valid: ",
            errors.given("layout", "anakin"),
        )
    parts = assemble.assemble(settings, environment, assemble.choose_devices(settings, target.devices))
    assert isinstance(parts.layout, anakin.Anakin), parts.layout
    layout, keys = parts.layout, jax.eval_shape(lambda: assemble.seed_keys(settings))
    started_s = time.perf_counter()
    with session.matmul_precision(settings):
        lowered = layout.program.lower(*layout.run_arguments(layout.template(keys), 0, 10, 100))
    lowered_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        is_gpu = layout.mesh.devices.flat[0].platform == "gpu"
        compiled = lowered.compile({"xla_dump_to": folder} if is_gpu else None)
        compiled_s = time.perf_counter()
        text = _text(compiled, target)
        launches = launches_in(pathlib.Path(folder))
    memory = compiled.memory_analysis()
    return Report(
        target,
        (lowered_s - started_s, compiled_s - lowered_s),
        hlo.read(text, target.speeds, SCOPES),
        launches,
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        layout.rows_per_iteration,
        layout.updates_per_iteration,
        int(layout.mesh.devices.size),
        sweep.num_members(settings),
        int(layout.mesh.devices.shape[0]),
    )


def launches_in(folder: pathlib.Path) -> hlo.Launches | None:
    """Counts what the host starts of a GPU's program that was compiled with `xla_dump_to`; None without one."""
    thunks = [path.read_text() for path in folder.glob(_THUNKS)]
    return hlo.launches(max(thunks, key=len)) if thunks else None


def _text(compiled: Any, target: targets.Target) -> str:
    try:
        return str(compiled.as_text())
    except jax.errors.JaxRuntimeError as error:
        # libtpu's programs for v6e name kinds of instructions that jaxlib's reader does not take.
        raise errors.UsageError(
            errors.given("target", target.name), f": the program compiles, but cannot be read: {str(error)[:120]}"
        ) from error


def seconds_per_iteration(report: Report) -> float:
    """Predicts the seconds of an iteration of all seeds: of kernels, and of the host's stops in the loops it drives."""
    stops = sum(loop.passes is None for _, loop in report.iteration.walk())
    is_driven = report.launches is not None and report.launches.loops > 0
    return report.in_turn * report.total("seconds") + (stops * _HOST_STOP_S if is_driven else 0.0)


def describe(report: Report) -> list[str]:
    """Describes a compiled program in lines."""
    traced_s, compiled_s = report.seconds
    sizes = f"arguments {memory_use.readable(report.arguments)}, temporaries {memory_use.readable(report.temporaries)}"
    lines = [
        f"{report.target.name}: traced in {traced_s:.1f} s, compiled in {compiled_s:.1f} s; on each of "
        f"{report.devices} devices {sizes}",
        "kernels of a pass",
    ]
    for depth, loop in report.iteration.walk():
        passes = loop.passes or f"{report.updates:.3g} due"
        name = "iteration" if loop is report.iteration else f"{_words(loop)} × {passes}"
        lines.append(f"  {'  ' * depth}{name}: {loop.kernels:,}{_exchanged(loop)}")
    kernels = report.total("kernels")
    lines.append(
        f"  in all {kernels:,.0f} an iteration, {kernels / report.rows / report.at_once:.3g} per environment step"
    )
    if report.launches:
        graphs, others, loops = report.launches
        lines.append(f"the host starts {graphs} graphs and {others} kernels outside of them, and drives {loops} loops")
    seconds = seconds_per_iteration(report)
    speed = report.rows * report.members / seconds
    return [*lines, f"predicted: {seconds * 1e3:.3g} ms an iteration, {speed:,.0f} steps/s; {bottleneck(report)}"]


def bottleneck(report: Report) -> str:
    """Says in words what takes most of the predicted time."""
    speeds, seconds = report.target.speeds, seconds_per_iteration(report)
    parts = {
        "starting kernels": report.total("kernels") * speeds.kernel_s,
        "moving bytes": report.total("bytes") / speeds.bytes_per_second,
        "products": report.total("flops") / speeds.flops_per_second,
    }
    name = max(parts, key=lambda part: parts[part])
    return f"{name} takes {min(report.in_turn * parts[name] / seconds, 1.0):.0%}"


def _words(loop: hlo.Loop) -> str:
    return loop.scope.replace("_", " ") or {"while": "loop"}.get(loop.operation, loop.operation) or "loop"


def _exchanged(loop: hlo.Loop) -> str:
    """Says what a pass of a loop exchanges between devices."""
    if not loop.collectives:
        return ""
    listed = ", ".join(f"{kind} of {size:,} bytes" for kind, size in loop.collectives)
    return f" ({listed})"
