"""Devices that are not there, for which XLA compiles all the same: GPUs and TPUs by name, as `h200` or `v5e:2x2`."""

import importlib.util
import os
import re
from typing import NamedTuple

import jax
from jax.experimental import topologies

from jaxrl_dist import errors
from jaxrl_dist.training import hlo

# A kernel in a CUDA graph waits for the one before it. Three programs took 1.00 to 1.04 times what this predicts
# (docs/results.md, On one GPU).
_GPU_KERNEL_S = 2e-6
_TPU_KERNEL_S = 1e-6


class Gpu(NamedTuple):
    """A GPU as its compiler must know it; sizes in bytes, `flops` of f32 products outside tensor cores."""

    cores: int
    memory: int
    bandwidth: int
    clock_ghz: float
    flops: float


# NVIDIA's data sheets of the SXM parts; the compiler takes the rest from the architecture, sm_90 of both.
_GPUS = {
    "h100": Gpu(132, 85_000_000_000, 3_350_000_000_000, 1.98, 67e12),
    "h200": Gpu(132, 150_142_979_072, 4_800_000_000_000, 1.98, 67e12),
}
# Google Cloud's documentation of each version: bytes per second of a chip's memory, flops of bf16 products.
_TPUS = {
    "v4": hlo.Speeds(_TPU_KERNEL_S, 1.2e12, 275e12),
    "v5e": hlo.Speeds(_TPU_KERNEL_S, 0.82e12, 197e12),
    "v6e": hlo.Speeds(_TPU_KERNEL_S, 1.64e12, 918e12),
}
# One core of the machine of docs/results.md, fitted to the runs of benchmarks/predicted.jsonl: bytes come from caches
# for the most part, and products reach half of what a large one alone does.
_CPU = hlo.Speeds(1e-8, 1e11, 1.3e11)
NAMES = (*_GPUS, *_TPUS, "cpu")


class Target(NamedTuple):
    """Devices to compile for.

    Attributes:
        name: as given.
        devices: they can compile, and hold or run nothing.
        speeds: what the data sheets promise of one.
    """

    name: str
    devices: tuple[jax.Device, ...]
    speeds: hlo.Speeds


def make(name: str) -> Target:
    """Makes the devices of a target.

    Args:
        name: `h100` or `h200`, with `:8` behind it several; `v4`, `v5e` or `v6e` with the sides of a slice, as in
            `v5e:2x2`, which is the default; `cpu`, which is there, for comparison.

    Raises:
        UsageError: there is no such target, or its compiler is not installed.
    """
    kind, _, size = name.partition(":")
    flag = errors.given("target", name)
    if kind not in NAMES:
        raise errors.UsageError(
            flag, f": expected one of {', '.join(NAMES)}, with :8 GPUs or :2x2 chips{errors.nearest(kind, NAMES)}"
        )
    if kind == "cpu":
        if size:
            raise errors.UsageError(flag, ": expected cpu, one device of this machine")
        return Target(name, tuple(jax.devices("cpu")[:1]), _CPU)
    if kind in _GPUS:
        if not re.fullmatch(r"|[1-9]\d{0,2}", size):
            raise errors.UsageError(flag, f": expected a number of GPUs, as in {kind}:8")
        return Target(name, _gpus(flag, kind, int(size or 1)), _speeds(_GPUS[kind]))
    if not re.fullmatch(r"|[1-9]\d{0,2}x[1-9]\d{0,2}(x[1-9]\d{0,2})?", size):
        raise errors.UsageError(flag, f": expected the sides of a slice, as in {kind}:2x2")
    sides = size or ("2x2x1" if kind == "v4" else "2x2")
    return Target(name, _tpus(flag, f"{kind}:{sides}"), _TPUS[kind])


def _speeds(gpu: Gpu) -> hlo.Speeds:
    return hlo.Speeds(_GPU_KERNEL_S, gpu.bandwidth, gpu.flops)


def _gpus(flag: errors.Worded, kind: str, count: int) -> tuple[jax.Device, ...]:
    # JAX registers the plugins that it finds as it looks for devices.
    jax.devices()
    if importlib.util.find_spec("jax_plugins") is None or importlib.util.find_spec("jax_plugins.xla_cuda12") is None:
        raise errors.missing_package(flag, "jax-cuda12-plugin", "compiled")
    found = topologies.get_topology_desc(
        kind, "cuda", target_config=_properties(kind, _GPUS[kind]), topology=f"1x1x{count}"
    )
    return tuple(found.devices)


def _tpus(flag: errors.Worded, topology: str) -> tuple[jax.Device, ...]:
    if importlib.util.find_spec("libtpu") is None:
        raise errors.missing_package(flag, "libtpu", "compiled")
    # Else the library asks the cloud's metadata server, which is not there, for a minute, and complains of the answer.
    for name, value in (
        ("TPU_SKIP_MDS_QUERY", "1"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
        ("TPU_STDERR_LOG_LEVEL", "3"),
    ):
        os.environ.setdefault(name, value)
    try:
        return tuple(topologies.get_topology_desc(topology_name=topology, platform="tpu").devices)
    except jax.errors.JaxRuntimeError as error:
        raise errors.UsageError(flag, f": {str(error).splitlines()[0]}") from error


def _properties(kind: str, gpu: Gpu) -> str:
    """Returns the properties of a GPU with compute capability 9.0, in the text that XLA reads.

    Runtime, driver and toolkit are of version 12.9: below it the compiler leaves some copies out of its graphs.
    """
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 registers_per_core_limit: 65536
  registers_per_block_limit: 65536 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 l2_cache_size: 52428800 fpus_per_core: 128 core_count: {gpu.cores}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 clock_rate_ghz: {gpu.clock_ghz}
  memory_bandwidth: {gpu.bandwidth} device_memory_size: {gpu.memory} cuda_compute_capability {{ major: 9 }}
  runtime_version: "12.9.0" driver_version: "12.9.0" compile_time_toolkit_version: "12.9.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
device_description_str: "NVIDIA {kind.upper()}"
"""
