"""Measures the cost of looking for numbers that are not finite: `python benchmarks/guard.py [--rounds=15] [flags]`.

Two programs of the same run in one process take turns: one as it is, and one whose environments declare no ranges and
whose results are not checked. Prints the extra time per step as a share.
"""

import argparse
import pathlib
import sys
import time
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pairs  # noqa: E402

from jaxrl_dist import envs  # noqa: E402
from jaxrl_dist.training import assemble, guard, records  # noqa: E402


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--chunk_steps", type=int, default=200_000)
    options, flags = parser.parse_known_args()
    named = {"system": "ppo", "env": "gymnax:CartPole-v1"}
    named |= dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    settings, environment = assemble.resolve(named)
    keys = assemble.seed_keys(settings)

    def nothing(spec, timestep):  # type: ignore[no-untyped-def]
        return {"reward": jnp.zeros(timestep.reward.shape, bool)}

    def make(looks: bool):  # type: ignore[no-untyped-def]
        layout = assemble.assemble(settings, environment, jax.devices()[:1]).layout
        count = max(1, options.chunk_steps // layout.rows_per_iteration)
        state, iteration = layout.init(keys), 0

        def chunk() -> float:
            nonlocal state, iteration
            started_s = time.perf_counter()
            state, metrics = layout.run(state, iteration, count, 10**6)
            records.by_path(metrics)
            if looks:
                assert guard.is_sound(state, metrics)
            iteration += count
            return time.perf_counter() - started_s

        chunk()
        return chunk

    looking = make(True)
    with mock.patch.object(envs, "out_of_range", nothing):
        trusting = make(False)
    seconds = []
    for i in range(options.rounds):
        first, second = (looking, trusting) if i % 2 else (trusting, looking)
        pair = first(), second()
        seconds.append(pair if i % 2 else pair[::-1])
    ratios = np.array(seconds)[:, 0] / np.array(seconds)[:, 1] - 1
    drawn = np.random.default_rng(0).integers(len(ratios), size=(10_000, len(ratios)))
    low, high = np.quantile(np.median(ratios[drawn], 1), [0.025, 0.975])
    print(f"{named['system']} {named['env']}: {np.median(ratios):+.2%} [{low:+.2%}, {high:+.2%}] of the time per step")
    print(pairs.machine())


if __name__ == "__main__":
    main()
