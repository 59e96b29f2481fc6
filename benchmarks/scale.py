"""Learners on up to 256 hosts, on paper: `python benchmarks/scale.py [--count] [--rows=ppo] [--figure=FILE.png]`.

`--count` compiles each system's training program for two devices and counts what it reduces, by
`training/exchanges.py`, into `scale.jsonl`. From these bytes come a table of the time that all hosts take to reduce,
and a simulation with a virtual clock: every host has 64 actors and a learner, an update takes as many unrolls of a host
as it has actors, the hosts begin to reduce when the last one has its own, and the lag of an unroll is the number of
updates between the parameters that it acted with and those that it changes. Costs are those of `SCENARIOS`.
"""

import argparse
import bisect
import collections
import functools
import heapq
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jax  # noqa: E402
import jsonl  # noqa: E402
import numpy as np  # noqa: E402

from jaxrl_dist.analysis import plots  # noqa: E402
from jaxrl_dist.training import exchanges  # noqa: E402

TABLE = HERE / "scale.jsonl"
_ATARI = {"env": "envpool:Pong-v5", "layout": "sebulba", "env.num_envs": 32}
_REPLAY = {**_ATARI, "replay.storage": "device", "replay.capacity": 64_000, "replay.min_size": 6_400}
# Counts are of an iteration, or of one update where a replay says how many there are.
ROWS: dict[str, dict[str, Any]] = {
    "ppo_cartpole": {"system": "ppo", "env": "gymnax:CartPole-v1", "layout": "anakin"},
    "ppo_halfcheetah": {"preset": "ppo/halfcheetah"},
    "gpu_sim_ant": {"preset": "gpu_sim/ant", "env.num_envs": 256},
    "impala_pong": {"system": "impala", **_ATARI, "network.torso": "nature_cnn"},
    "impala_lstm_pong": {"system": "impala", **_ATARI, "network.core": "lstm"},
    "ppo_pong": {"preset": "ppo/pong", "layout": "sebulba"},
    "apex_dqn_pong": {"system": "apex_dqn", **_REPLAY},
    "r2d2_pong": {"system": "r2d2", **_REPLAY},
}
HOSTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ACTORS, _UPDATES, _WARM_UP = 64, 40, 10
# Unrolls are not equally long: deviation of the logarithm of their seconds.
_SPREAD = 0.2


class Scenario(NamedTuple):
    """Costs of a host with 64 actors.

    Attributes:
        title: of its curve.
        row: of the table, whose bytes cross in each update.
        lag: `--layout.policy_lag`; None is free.
        rows: environment steps of an unroll.
        play_s: mean seconds in which an actor plays it.
        handle_s: seconds in which the learner's process takes it in, one after the other.
        learn_s: seconds of an update on the unrolls of all actors, without what crosses.
    """

    title: str
    row: str
    lag: int | None
    rows: int
    play_s: float
    handle_s: float
    learn_s: float


# EnvPool's 53,515 steps/s on two cores (`halfcheetah_raw`) are those of two actors here; learning is what 4,096 rows of
# `halfcheetah_sbx` take beyond that, at 29,084 steps/s. An unroll of 11 kB is taken for .3 ms.
_CHEETAH = ("ppo_halfcheetah", 1, 64, 64 / 26_757, 0.0003, 4_096 / 29_084 - 4_096 / 53_515)
# Taken are 1,000 steps/s an actor, and .1 s for an update of 41k rows. Taking in an unroll was measured with Ray: 1.4
# ms of processor time for a call of 55 kB, .7 ms to unpack it, and 1.5 ms to place its 4.7 MB.
_PONG = (640, 0.64, 0.0036, 0.1)
SCENARIOS = (
    Scenario("PPO, HalfCheetah, lag 1: 320 small gradient steps", *_CHEETAH),
    Scenario("IMPALA, Pong, lag 1", "impala_pong", 1, *_PONG),
    Scenario("IMPALA, Pong, free lag", "impala_pong", None, *_PONG),
)


class Result(NamedTuple):
    """Environment steps per second of all hosts, and the lags of all unrolls in updates."""

    steps_per_s: float
    lags: np.ndarray


class Host(Protocol):
    """The actors and the queue of a host, on a virtual clock."""

    def take(self, update: int, published_s: Sequence[float]) -> tuple[float, np.ndarray]:
        """Returns when the unrolls of an update are there and the learner is free, and the versions of each."""


class ExactHost:
    """At an exact lag unroll n acts with version n - lag, and update n takes unroll n of each actor."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator) -> None:
        assert scenario.lag is not None
        self._scenario, self._lag, self._draw = scenario, scenario.lag, functools.partial(_draw, scenario, rng)
        self._ends_s, self._in_s = np.zeros(ACTORS), 0.0

    def take(self, update: int, published_s: Sequence[float]) -> tuple[float, np.ndarray]:
        version = max(update - self._lag, 0)
        self._ends_s = np.maximum(self._ends_s, published_s[version]) + self._draw(ACTORS)
        # One after the other, each as soon as it is there: the last is in when any of them and all behind it are.
        rest_s = self._scenario.handle_s * np.arange(ACTORS, 0, -1)
        self._in_s = max(self._in_s + float(rest_s[0]), float(np.max(np.sort(self._ends_s) + rest_s)))
        return max(self._in_s, published_s[-1]), np.full(ACTORS, version)


class FreeHost:
    """At a free lag an actor acts with the newest version, and an update takes the unrolls that came first."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator) -> None:
        self._scenario, self._draw = scenario, functools.partial(_draw, scenario, rng)
        self._playing = [(float(end_s), actor, 0) for actor, end_s in enumerate(self._draw(ACTORS))]
        heapq.heapify(self._playing)
        self._queue = collections.deque[tuple[float, int, int]]()
        self._waiting, self._held_up = [0] * ACTORS, dict[int, int]()
        self._in_s = 0.0

    def take(self, update: int, published_s: Sequence[float]) -> tuple[float, np.ndarray]:
        free_s = published_s[-1]
        while len(self._queue) < ACTORS or (self._playing and self._playing[0][0] <= free_s):
            end_s, actor, version = heapq.heappop(self._playing)
            if self._waiting[actor] < ACTORS:
                self._put(end_s, actor, version, published_s)
            else:
                self._held_up[actor] = version
        at_s = max(free_s, self._queue[ACTORS - 1][0])
        taken = [self._queue.popleft() for _ in range(ACTORS)]
        for _, actor, _ in taken:
            self._waiting[actor] -= 1
        for actor in [one for one in self._held_up if self._waiting[one] < ACTORS]:
            self._put(at_s, actor, self._held_up.pop(actor), published_s)
        return at_s, np.asarray([version for *_, version in taken])

    def _put(self, at_s: float, actor: int, version: int, published_s: Sequence[float]) -> None:
        """Puts an unroll into the queue, and starts the actor's next one."""
        self._in_s = max(self._in_s, at_s) + self._scenario.handle_s
        self._queue.append((self._in_s, actor, version))
        self._waiting[actor] += 1
        newest = bisect.bisect_right(published_s, at_s) - 1
        heapq.heappush(self._playing, (at_s + float(self._draw(1)[0]), actor, newest))


def _draw(scenario: Scenario, rng: np.random.Generator, number: int) -> np.ndarray:
    return rng.lognormal(math.log(scenario.play_s) - _SPREAD**2 / 2, _SPREAD, number)


def simulate(scenario: Scenario, num_hosts: int, exchanged: exchanges.Exchanged, seed: int = 0) -> Result:
    """Simulates updates of all hosts, the first of which are not counted.

    Args:
        scenario: its costs.
        num_hosts: number of hosts.
        exchanged: what crosses in an update.
        seed: of the lengths of unrolls.
    """
    rng = np.random.default_rng(seed)
    kind = FreeHost if scenario.lag is None else ExactHost
    hosts: list[Host] = [kind(scenario, rng) for _ in range(num_hosts)]
    crossing_s = exchanges.seconds(exchanged, num_hosts)
    published_s, lags = [0.0], list[np.ndarray]()
    for update in range(_UPDATES):
        taken = [host.take(update, published_s) for host in hosts]
        lags.append(np.concatenate([update - versions for _, versions in taken]))
        # All hosts begin to reduce when the last one has its unrolls.
        published_s.append(max(at_s for at_s, _ in taken) + scenario.learn_s + crossing_s)
    seconds = published_s[-1] - published_s[_WARM_UP]
    rows = (_UPDATES - _WARM_UP) * num_hosts * ACTORS * scenario.rows
    return Result(rows / seconds, np.concatenate(lags[_WARM_UP:]))


def count(name: str) -> dict[str, float]:
    """Counts what a row's program reduces."""
    found = exchanges.of_iteration(ROWS[name], 1.0)
    return {"reductions": found.reductions, "size": found.size}


def print_table(counts: dict[str, dict[str, Any]]) -> None:
    """Prints bytes, reductions, and the time of them by the number of hosts."""
    sizes = (2, 8, 64, 256)
    print("| row | bytes | all-reduces | " + " | ".join(f"{n} hosts, ms" for n in sizes) + " | a ring of 256, ms |")
    print("|---" * (len(sizes) + 4) + "|")
    for name, found in counts.items():
        exchanged = exchanges.Exchanged(**found)
        times = [1e3 * exchanges.seconds(exchanged, n) for n in sizes]
        # Each of a ring's steps waits for a neighbour: 2 (N - 1) of them.
        ring = 2e3 * 255 * (exchanges.STEP_S * exchanged.reductions + exchanged.size / 256 / exchanges.BYTES_PER_SECOND)
        cells = [f"{found['size'] / 1e6:.3g} MB", f"{found['reductions']:g}", *(f"{one:.3g}" for one in (*times, ring))]
        print(f"| {name} | " + " | ".join(cells) + " |")


def draw(results: dict[tuple[str, int], Result], path: pathlib.Path) -> None:
    """Draws steps per second and lags over the number of hosts."""
    from matplotlib import figure
    from matplotlib.backends import backend_agg

    drawn = figure.Figure(figsize=(10, 3.8), layout="constrained")
    backend_agg.FigureCanvasAgg(drawn)
    rates, lags = drawn.subplots(1, 2)
    for colour, marker, scenario in zip(plots.COLOURS, "osD", SCENARIOS, strict=False):
        own = [results[scenario.title, n] for n in HOSTS]
        look = {"color": colour, "marker": marker, "markersize": 4, "label": scenario.title}
        rates.plot(HOSTS, [one.steps_per_s for one in own], **look)
        rates.plot(HOSTS, [own[0].steps_per_s * n for n in HOSTS], color=colour, linestyle=":", linewidth=1)
        lags.plot(HOSTS, [one.lags.mean() for one in own], **look)
        low, high = ([np.quantile(one.lags, q) for one in own] for q in (0.05, 0.95))
        lags.fill_between(HOSTS, low, high, color=colour, alpha=0.15, linewidth=0)
    rates.set(xscale="log", yscale="log", title="Environment steps per second; dotted: N times one host")
    lags.set(xscale="log", title="Lag in updates: mean, and 5 to 95 % of unrolls", ylim=(0, None))
    for axes in (rates, lags):
        axes.set(xlabel="hosts of 64 actors each", xticks=HOSTS, xticklabels=HOSTS)
        axes.minorticks_off()
        axes.grid(axis="y", color=plots.RULE, linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    rates.legend(frameon=False, fontsize=8)
    drawn.savefig(path, dpi=110)


def main() -> None:
    """Counts if asked, and prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", action="store_true", help="compile and count, instead of reading scale.jsonl")
    parser.add_argument("--rows", default="", help="beginnings of the rows to count, with commas between")
    parser.add_argument("--figure", type=pathlib.Path, help="picture to write")
    options = parser.parse_args()
    if options.count:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 2)
        for name in jsonl.chosen(ROWS, options.rows):
            jsonl.put(TABLE, ROWS, name, count(name))
        return
    counts = jsonl.read(TABLE)
    print_table(counts)
    run = functools.cache(lambda scenario, n: simulate(scenario, n, exchanges.Exchanged(**counts[scenario.row])))
    print("\n| scenario | hosts | steps/s | of N times one host | lag, mean | lag, 5 to 95 % |")
    print("|---|---|---|---|---|---|")
    results = {(one.title, n): run(one, n) for one in SCENARIOS for n in HOSTS}
    for (title, n), result in results.items():
        share = result.steps_per_s / (n * results[title, 1].steps_per_s)
        low, high = np.quantile(result.lags, (0.05, 0.95))
        cells = (
            title,
            n,
            f"{result.steps_per_s:,.0f}",
            f"{share:.2f}",
            f"{result.lags.mean():.2f}",
            f"{low:g} to {high:g}",
        )
        print("| " + " | ".join(map(str, cells)) + " |")
    if options.figure:
        draw(results, options.figure)


if __name__ == "__main__":
    main()
