"""One slow environment among sixteen: steps/s of waiting for all and of acting on the first that are ready.

`python benchmarks/stragglers.py [--rounds=5]` trains PPO on `straggler:Sleep-v0`, whose steps sleep, with healthy
environments and with one ten times slower, and prints a table: the rate that is left is that with the slow one as a
share of the healthy one. Modes take turns.
"""

import argparse
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402


class Sleep(gymnasium.Env):
    """Episodes of 50 steps of 2 ms each, ten times that in the environment whose seed is `slow`."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, slow: int = 0) -> None:
        self._slow = slow
        self._pause_s = 0.002

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        if seed is not None:
            # Each environment is seeded once, with a number of its own: that of the slow one is given.
            self._pause_s = 0.02 if self._slow and seed == self._slow else 0.002
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):  # type: ignore[no-untyped-def]
        time.sleep(self._pause_s)
        self._steps += 1
        return np.zeros(4, np.float32), 1.0, False, self._steps >= 50, {}


if "Sleep-v0" not in gymnasium.registry:
    gymnasium.register("Sleep-v0", entry_point="stragglers:Sleep")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    modes = {"all 16": 0, "first 8 of 16": 8, "first 4 of 16": 4}
    rates: dict[tuple[str, bool], list[float]] = {}
    for _ in range(rounds):
        for name, ready in modes.items():
            for slow in (False, True):
                rates.setdefault((name, slow), []).append(_measure(ready, slow))
    print("| mode | healthy, steps/s | one ten times slower | left |\n|---|---|---|---|")
    for name in modes:
        healthy, slowed = (statistics.median(rates[name, slow]) for slow in (False, True))
        print(f"| {name} | {healthy:,.0f} | {slowed:,.0f} | {slowed / healthy:.2f} |")


def _measure(ready: int, slow: bool) -> float:
    """Returns the steps/s of a short run."""
    import jax

    from jaxrl_dist import assemble, session
    from jaxrl_dist.envs import host
    from jaxrl_dist.parallel import base as layouts

    named = {
        "system": "ppo",
        "env": "gymnasium:stragglers:Sleep-v0",
        "env.params.workers": "16",
        "env.num_envs": 16,
        "layout.unroll_length": 32,
        "layout.policy_lag": "free",
        "layout.ready_envs": ready,
        "learner.minibatches": 1,
        "learner.epochs": 1,
    }
    if slow:
        key = layouts.seed_keys(jax.random.key(0)).environment
        first = host.seeds(int(jax.random.bits(key, dtype=np.uint32)), "training 0", 0, 0, 1)[0]
        named["env.params.slow"] = str(int(first))
    settings, environment = assemble.resolve(named)
    layout = assemble.assemble(settings, environment, assemble.choose_devices(settings, jax.devices())).layout
    state = layout.init(session.seed_keys(settings))
    state, _ = layout.run(state, 0, 0, 1000)
    state, _ = layout.run(state, 0, 4, 1000)
    started_s, count = time.perf_counter(), 12
    layout.run(state, 4, count, 1000)
    seconds = time.perf_counter() - started_s
    layout.close()
    return count * layout.rows_per_iteration / seconds


if __name__ == "__main__":
    main()
