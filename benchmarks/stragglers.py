"""One slow environment among sixteen: learned steps/s of waiting for all, and of two ways to go on without it.

`python benchmarks/stragglers.py [--rounds=5] [--only=actors]` trains PPO on `straggler:Sleep-v0`, whose steps sleep,
with healthy environments and with one ten times slower, and prints a table; `left` is the rate with the slow one as a
share of the healthy rate. One actor waits for all of its environments or acts on the first that are ready; or
sixteen actors have one environment each, of longer steps, as sixteen threads hold Python's lock, and the learner waits
for all of them or for a quorum. Modes take turns.
"""

import argparse
import pathlib
import statistics
import sys
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402


class Sleep(gymnasium.Env):
    """Episodes of 50 steps of `pause_ms` each, ten times that in the environment whose seed is `slow`."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, slow: int = 0, pause_ms: int = 2) -> None:
        self._slow, self._healthy_s = slow, pause_ms / 1000
        self._pause_s = self._healthy_s

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        if seed is not None:
            # Each environment is seeded once, with a number of its own: that of the slow one is given.
            self._pause_s = self._healthy_s * (10 if self._slow and seed == self._slow else 1)
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):  # type: ignore[no-untyped-def]
        time.sleep(self._pause_s)
        self._steps += 1
        return np.zeros(4, np.float32), 1.0, False, self._steps >= 50, {}


PROCESSES = {"env.params.workers": "16", "layout.policy_lag": "free"}
ACTORS = {"layout.num_actors": 16, "layout.policy_lag": "1", "env.params.workers": "1", "env.params.pause_ms": "20"}
MODES: dict[str, dict[str, object]] = {
    "all 16": PROCESSES,
    "first 8 of 16": {**PROCESSES, "layout.ready_envs": 8},
    "first 4 of 16": {**PROCESSES, "layout.ready_envs": 4},
    "all 16 actors": ACTORS,
    "quorum of 15 of 16 actors": {**ACTORS, "layout.quorum": 15},
}


class Measured(NamedTuple):
    """Steps learned from per second, and unrolls that came too late."""

    steps_per_s: float
    dropped: int


if "Sleep-v0" not in gymnasium.registry:
    gymnasium.register("Sleep-v0", entry_point="stragglers:Sleep")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the names of modes to measure")
    arguments = parser.parse_args()
    modes = {name: settings for name, settings in MODES.items() if arguments.only in name}
    rates: dict[tuple[str, bool], list[Measured]] = {}
    for _ in range(arguments.rounds):
        for name, settings in modes.items():
            for slow in (False, True):
                rates.setdefault((name, slow), []).append(_measure(settings, slow))
                print(f"{name}, {'one slow' if slow else 'healthy'}: {rates[name, slow][-1]}", file=sys.stderr)
    print("| mode | healthy, steps/s | one ten times slower | left | dropped unrolls with the slow one, of 128 |")
    print("|---|---|---|---|---|")
    for name in modes:
        healthy, slowed = (statistics.median(x.steps_per_s for x in rates[name, slow]) for slow in (False, True))
        dropped = statistics.median(x.dropped for x in rates[name, True])
        print(f"| {name} | {healthy:,.0f} | {slowed:,.0f} | {slowed / healthy:.2f} | {dropped:.0f} |")


def _measure(mode: dict[str, object], slow: bool) -> Measured:
    """Measures a short run."""
    import jax

    from jaxrl_dist.envs.host import episodes
    from jaxrl_dist.parallel import keys
    from jaxrl_dist.training import assemble

    named = {
        "system": "ppo",
        "env": "gymnasium:stragglers:Sleep-v0",
        "env.num_envs": 16,
        "layout.unroll_length": 32,
        "learner.minibatches": 1,
        "learner.epochs": 1,
        **mode,
    }
    if slow:
        key = keys.seed_keys(jax.random.key(0)).environment
        first = episodes.seeds(int(jax.random.bits(key, dtype=np.uint32)), "training 0", 0, 0, 1)[0]
        named["env.params.slow"] = str(int(first))
    settings, environment = assemble.resolve(named)
    layout = assemble.assemble(settings, environment, assemble.choose_devices(settings, jax.devices())).layout
    state = layout.init(assemble.seed_keys(settings))
    state, _ = layout.run(state, 0, 0, 1000)
    state, _ = layout.run(state, 0, 2, 1000)
    started_s = time.perf_counter()
    _, sums = layout.run(state, 2, 8, 1000)
    seconds = time.perf_counter() - started_s
    layout.close()
    unrolls = float(sums.layout["lag_counts"].sum())
    rows = unrolls * layout.rows_per_iteration / settings["layout.num_actors"]
    return Measured(rows / seconds, int(sums.layout["dropped_unrolls"][0]))


if __name__ == "__main__":
    main()
