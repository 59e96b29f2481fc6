"""Counts what the processes of a run exchange in an iteration, and predicts its time; starts none of them.

The reductions are counted in the compiled program of two devices. Their time is a model, of Rabenseifner's algorithm:
over N processes each sends 2 (N − 1) / N of the bytes, in 2 log2 N steps (Thakur et al. 2005, section 4.5).
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from jaxrl_dist.parallel import memory_use
from jaxrl_dist.training import assemble, compiled, hlo, targets

# Ethernet of 100 Gbit/s in a data centre.
BYTES_PER_SECOND, STEP_S = 12.5e9, 20e-6
_DEVICES = 2


class Exchanged(NamedTuple):
    """The reductions of one iteration: their number, and their bytes in all.

    Attributes:
        reductions: number of them, on the average once a replay has rows enough.
        size: bytes, likewise.
    """

    reductions: float
    size: float


def of_iteration(flags: Mapping[str, Any], updates: float) -> Exchanged:
    """Counts what one seed's training program reduces over devices in an iteration.

    Args:
        flags: flags of the run, name -> text or value.
        updates: updates of an iteration, where the device alone knows their number.

    Raises:
        UsageError: two devices do not divide the run's sizes.
    """
    devices = jax.devices("cpu")[:_DEVICES]
    settings, environment = assemble.resolve({**flags, "num_seeds": 1, "sweep": "", "population": False})
    parts = assemble.assemble(settings, environment, devices)
    try:
        keys = jax.eval_shape(lambda: assemble.seed_keys(settings))
        lowered = parts.layout.program.lower(*parts.layout.run_arguments(parts.layout.template(keys), 0, 10, 100))
        program = hlo.read(lowered.compile().as_text(), targets.make("cpu").speeds, compiled.SCOPES)
    finally:
        parts.layout.close()
    if settings["layout"] == "anakin":
        # The loop over iterations; what is around it is made once for many.
        loops = [loop for _, loop in program.walk() if loop.passes is None]
        program = max(loops, key=lambda loop: loop.total("kernels"))
    return _exchanged(program, updates)


def _exchanged(loop: hlo.Loop, updates: float) -> Exchanged:
    """Sums up a pass of a loop, with all passes of the loops in it."""
    count, size = float(len(loop.collectives)), float(sum(size for _, size in loop.collectives))
    for inner in loop.loops:
        of_pass = _exchanged(inner, updates)
        passes = updates if inner.passes is None else inner.passes
        count, size = count + passes * of_pass.reductions, size + passes * of_pass.size
    return Exchanged(count, size)


def seconds(exchanged: Exchanged, num_processes: int) -> float:
    """Predicts the time of an iteration's reductions.

    Args:
        exchanged: in an iteration.
        num_processes: N.

    Example:
        >>> from jaxrl_dist.training import exchanges
        >>> print(f"{exchanges.seconds(exchanges.Exchanged(1, 12.5e6), 2) * 1e3:.2f} ms")
        1.04 ms
    """
    moved = 2 * (num_processes - 1) / num_processes * exchanged.size
    return moved / BYTES_PER_SECOND + 2 * math.ceil(math.log2(num_processes)) * STEP_S * exchanged.reductions


def describe(exchanged: Exchanged, num_processes: int, iteration_s: float) -> list[str]:
    """Says in lines what the processes would exchange.

    Args:
        exchanged: in an iteration.
        num_processes: number of processes.
        iteration_s: seconds of an iteration of the whole run in one process.
    """
    took_s, own_s = seconds(exchanged, num_processes), iteration_s / num_processes
    return [
        f"{num_processes} processes, none of which was started",
        f"  an iteration reduces {memory_use.readable(exchanged.size)} in {exchanged.reductions:,.4g} all-reduces",
        f"  they take {took_s * 1e3:.3g} ms at {BYTES_PER_SECOND / 1e9:g} GB/s and {STEP_S * 1e6:g} µs a step: "
        f"{took_s / (took_s + own_s):.0%} of the time, if each process takes its share of the "
        f"{iteration_s * 1e3:.3g} ms that an iteration takes here",
    ]
