"""Our side of a benchmark pair: any system with any settings, driven in chunks as the runner drives it."""

import os
import sys
import time

STARTED = time.perf_counter()
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import jax  # noqa: E402
import numpy as np  # noqa: E402
import worker  # noqa: E402

from jaxrl_dist.parallel import keys as run_keys  # noqa: E402
from jaxrl_dist.training import assemble, runner  # noqa: E402


def main(arguments: list[str]) -> None:
    """Serves `go` by `--chunk_steps` environment steps per seed, in one call of the layout or in `--calls` of them.

    Every other flag is a setting.
    """
    channel = worker.open_channel()
    runner.use_cores()
    named = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    chunk_steps, calls = int(named.pop("chunk_steps")), int(named.pop("calls", 1))
    settings, environment = assemble.resolve(named)
    import_s = time.perf_counter() - STARTED
    parts = assemble.assemble(settings, environment, assemble.choose_devices(settings, jax.devices()))
    layout = parts.layout
    keys = assemble.seed_keys(settings)
    count = max(1, round(chunk_steps / calls / layout.rows_per_iteration))
    # More than any round asks for: iterations must not repeat, since actors are told by them which version comes next.
    total = max(1000 * count, -(-settings["steps"] // layout.rows_per_iteration))

    compiling = time.perf_counter()
    state, _ = layout.run(layout.init(keys), 0, 0, total)
    jax.block_until_ready(state.learner)
    compile_s = time.perf_counter() - compiling
    jax.block_until_ready(layout.run(state, 0, count, total))
    first_s = time.perf_counter() - STARTED
    state, iteration = layout.init(keys), 0

    def chunk() -> int:
        nonlocal state, iteration
        valid_steps = 0
        for _ in range(calls):
            state, sums = layout.run(state, iteration, count, total)
            iteration += count
            valid_steps += int(np.sum(jax.device_get(sums.episodes.valid_steps)))
        return valid_steps

    def evaluate() -> float:
        evaluation_keys = jax.vmap(lambda key: run_keys.seed_keys(key).evaluation)(keys)
        return float(parts.evaluate(state.learner.params, evaluation_keys, iteration).mean())

    packages = worker.versions("jax", "jaxlib", "flax", "optax")
    worker.announce(channel, worker.Startup(import_s, compile_s, first_s), packages)
    worker.serve(channel, chunk, evaluate)
    layout.close()


if __name__ == "__main__":
    main(sys.argv[1:])
