"""Times a reduction between two processes of one machine: `python benchmarks/reductions.py`.

Two processes with a device each sum a vector again and again in one program: on one core, each on its own, on the same
two. A reduction passes through several threads of each process, which must get a core each time; `chrt -f 1` before the
command gives it to them at once, as if the machine had no other work.
"""

import argparse
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

PLACEMENTS = {"both on one core": ((0,), (0,)), "a core each": ((0,), (1,)), "both on the same two": ((0, 1), (0, 1))}
_CHUNKS, _WARM = 5, 1


def main() -> None:
    """Measures every placement that the cores allow, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--floats", type=int, default=8000, help="numbers in the vector")
    parser.add_argument("--count", type=int, default=200, help="reductions of a chunk")
    parser.add_argument("--member", nargs=3, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.member:
        _member(*arguments.member, arguments.floats, arguments.count)
        return
    cores = sorted(os.sched_getaffinity(0))
    print(f"load {os.getloadavg()[0]:.1f}, {len(cores)} cores, {4 * arguments.floats:,} bytes")
    print("| processes | ms a reduction: median of chunks, all | CPU ms of a process | its waits |\n|---|---|---|---|")
    for name, places in PLACEMENTS.items():
        if max(map(max, places)) < len(cores):
            wall, *rest = _measured([[cores[i] for i in own] for own in places], arguments)
            every, (cpu, waits) = " ".join(f"{x:.2f}" for x in wall), map(statistics.median, rest)
            print(f"| {name} | {statistics.median(wall):.2f} ({every}) | {cpu:.2f} | {waits:.1f} |", flush=True)


def _measured(places: list[list[int]], arguments: argparse.Namespace) -> list[tuple[float, ...]]:
    """Starts both processes; returns milliseconds, CPU milliseconds and waits of a reduction of process 0, by chunk."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    sizes = [f"--floats={arguments.floats}", f"--count={arguments.count}"]
    started = []
    for index, own in enumerate(places):
        command = [sys.executable, __file__, *sizes, "--member", str(index), address, ",".join(map(str, own))]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"a process failed: {said}")
    rows = [map(float, line.split()[1:]) for line in said[0].splitlines() if line.startswith("took ")]
    return list(zip(*rows, strict=True))


def _member(index: str, address: str, cores: str, floats: int, count: int) -> None:
    """Sums with the other process, and prints how long a reduction of each chunk took."""
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    import jax
    import numpy as np

    from jaxrl_dist import processes
    from jaxrl_dist.parallel import mesh as meshes

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)

    def repeated(vector: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, count, lambda i, x: meshes.AXIS.sum(x) / 2 + i, vector)

    with processes.begun(processes.Group("2", int(index), address)):
        mesh = meshes.make(jax.devices(), num_seeds=1)
        program = jax.jit(meshes.device_map(repeated, mesh, (meshes.PER_SEED,), meshes.PER_SEED))
        vector = jax.device_put(np.ones((1, floats), np.float32), meshes.sharding(mesh, meshes.PER_SEED))
        for chunk in range(_WARM + _CHUNKS):
            before = _used()
            jax.block_until_ready(program(vector))
            if chunk >= _WARM:
                print("took", *((after - was) / count for was, after in zip(before, _used(), strict=True)), flush=True)


def _used() -> tuple[float, float, int]:
    """Returns milliseconds of the clock and of the CPU, and how often a thread of this process waited, so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return 1000 * time.perf_counter(), 1000 * (used.ru_utime + used.ru_stime), used.ru_nvcsw


if __name__ == "__main__":
    main()
