"""Times our checkpoints beside Orbax's own for sharded arrays: `python benchmarks/checkpoint_formats.py [--rounds=5]`.

Ours copies every leaf to the host, packs small ones, and writes a digest of every file. Orbax alone takes the arrays
from the devices that hold them, leaf by leaf, and puts them back there; it has no digests. Both wait until all is on
disk.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

DEVICES = 8
os.environ["JAX_PLATFORMS"] = "cpu"
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jax  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_num_cpu_devices", DEVICES)

from jaxrl_dist.runs import checkpoint  # noqa: E402
from jaxrl_dist.training import assemble  # noqa: E402

RUNS = {
    "PPO CartPole": {"system": "ppo", "env": "gymnax:CartPole-v1", "env.num_envs": 16},
    "R2D2 MinAtar Breakout, replay of 100k rows": {
        **{"system": "r2d2", "env": "gymnax:Breakout-MinAtar", "env.num_envs": 40},
        "replay.capacity": 102_400,
    },
}


def state_of(flags: dict[str, Any], num_devices: int) -> Any:
    """Returns the first state of a run on some devices."""
    settings, environment = assemble.resolve({**flags, "layout": "anakin", "layout.num_devices": num_devices})
    parts = assemble.assemble(settings, environment, jax.devices()[:num_devices])
    return jax.block_until_ready(jax.tree.map(_filled, parts.layout.init(assemble.seed_keys(settings))))


def _filled(x: Any) -> Any:
    """Fills what is still zeros, a replay's rows, as frames of MinAtar are: a tenth of it is not zero."""
    if x.size < 2**16 or jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x
    is_set = np.random.default_rng(0).random(x.shape) < 0.1
    return jax.device_put(np.where(is_set, np.ones_like(x), x), x.sharding)


def ours(state: Any, folder: pathlib.Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Returns the functions that save and restore with our format."""
    return (
        lambda: checkpoint.save(folder, 1, state, {}),
        lambda: checkpoint.restore(folder / f"step_{1:012d}", state)[0],
    )


def orbax_alone(state: Any, folder: pathlib.Path) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Returns the functions that save and restore with Orbax's sharded arrays."""
    import orbax.checkpoint as orbax

    def data(x: Any) -> Any:
        return jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    tree = {str(number): data(leaf) for number, leaf in enumerate(jax.tree.leaves(state))}
    arguments = {
        name: orbax.ArrayRestoreArgs(sharding=x.sharding) if isinstance(x, jax.Array) else orbax.RestoreArgs()
        for name, x in tree.items()
    }
    checkpointer = orbax.PyTreeCheckpointer()
    path = (folder / "sharded").absolute()
    return (
        lambda: checkpointer.save(path, tree, force=True),
        lambda: jax.block_until_ready(checkpointer.restore(path, item=tree, restore_args=arguments)),
    )


def measure(make: Callable[..., Any], state: Any, rounds: int) -> tuple[float, float, int, int]:
    """Returns the median seconds to save and to restore, the bytes on disk, and the number of files."""
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        save, restore = make(state, folder)
        times: list[tuple[float, float]] = []
        for _ in range(rounds + 1):
            started_s = time.perf_counter()
            save()
            saved_s = time.perf_counter()
            restore()
            times.append((saved_s - started_s, time.perf_counter() - saved_s))
        files = [one for one in folder.rglob("*") if one.is_file()]
        # The first round imports and compiles.
        saving, restoring = (statistics.median(column) for column in zip(*times[1:], strict=True))
        return saving, restoring, sum(one.stat().st_size for one in files), len(files)
    finally:
        shutil.rmtree(folder)


def main(arguments: list[str]) -> int:
    """Prints a line for each run, number of devices and format; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    print("| state | devices | format | save | restore | on disk | files |\n|---|---|---|---|---|---|---|")
    for title, flags in RUNS.items():
        for num_devices in (1, DEVICES):
            state = state_of(flags, num_devices)
            for name, make in (("ours", ours), ("Orbax, sharded", orbax_alone)):
                saving, restoring, size, count = measure(make, state, options.rounds)
                print(
                    f"| {title} | {num_devices} | {name} | {saving:.3f} s | {restoring:.3f} s | "
                    f"{size / 1e6:.2f} MB | {count} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
