"""Players of a fleet beside actors of this process: the cost of an unroll, rates, losses and a slow one.

`python benchmarks/fleets.py [--parts=unroll,rate,lost,slow] [--rounds=3]` needs Ray, EnvPool and `gymnasium[mujoco]`.
It starts Ray on this machine, and prints a table of each part:

- `unroll`: CPU milliseconds of both ends, of IMPALA's unroll of Pong, 32 environments × 20 steps, played at random, and
  its bytes; also the bytes of parameters of one version.
- `rate`: learned steps/s of PPO on HalfCheetah (one epoch, one minibatch), of four players and of four threads, each
  with one worker process of Gymnasium; modes take turns.
- `lost`: the same of players, with one of them killed every 20 s; also the seconds from a kill to the first unroll
  of the player that takes its place.
- `slow`: PPO on environments that sleep (`stragglers.Sleep`), of three players, and of four, one of them ten times
  slower, under a quorum of three.
"""

import argparse
import os
import pathlib
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
# Players import what this process does.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])

import jax  # noqa: E402
import numpy as np  # noqa: E402

from jaxrl_dist.envs.host import episodes  # noqa: E402
from jaxrl_dist.parallel import keys, unroll  # noqa: E402
from jaxrl_dist.parallel.sebulba import actors, fleet, wire  # noqa: E402
from jaxrl_dist.training import assemble  # noqa: E402

PLAYERS = {"layout.fleet": "local", "layout.max_actor_restarts": 1000}
ONCE = {"system": "ppo", "layout": "sebulba", "layout.policy_lag": "1", "learner.minibatches": 1, "learner.epochs": 1}
CHEETAH = {
    **ONCE,
    "env": "gymnasium:HalfCheetah-v5",
    "env.num_envs": 16,
    "env.params.workers": "1",
    "layout.num_actors": 4,
    "layout.unroll_length": 64,
}
SLEEP = {
    **ONCE,
    "env": "gymnasium:stragglers:Sleep-v0",
    "env.params.workers": "1",
    "env.params.pause_ms": "20",
    "layout.unroll_length": 32,
}
PONG = {
    "system": "impala",
    "layout": "sebulba",
    "env": "envpool:Pong-v5",
    "env.num_envs": 32,
    "layout.unroll_length": 20,
}
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_KILL_EVERY_S = 20.0


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="unroll,rate,lost,slow")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="about how long a measurement of a rate takes")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[Any], None]] = {"unroll": _unroll, "rate": _rate, "lost": _lost, "slow": _slow}
    for name in arguments.parts.split(","):
        print(f"load {os.getloadavg()[0]:.1f} before {name}, {os.cpu_count()} cores", flush=True)
        parts[name](arguments)


def _assembled(named: dict[str, Any]) -> assemble.Parts:
    settings, environment = assemble.resolve(named)
    return assemble.assemble(settings, environment, assemble.choose_devices(settings, jax.devices()))


class Sending:
    """Stands in for a player that has played already: packs one unroll as often as it is asked."""

    def __init__(self, line: wire.Wire, played: wire.Played) -> None:
        """Takes the wire of the unroll."""
        self._line, self._played = line, played

    def play(self, raw: bool) -> Any:
        """Returns the unroll packed, or its arrays."""
        return self._played if raw else self._line.pack(self._played, updates=0)

    def cpu_s(self) -> float:
        """Returns the CPU seconds of this process so far."""
        return time.process_time()


def _unroll(arguments: Any) -> None:
    """Prints what an unroll of Pong costs: packed, and as arrays through Ray's store."""
    parts = _assembled(PONG)
    agent, task = parts.agent, parts.environment
    line, played = _pong(agent, task)
    data = line.pack(played, updates=0)
    params = jax.device_get(agent.init(jax.random.key(0)))
    published = unroll.Published(params, np.int32(0), np.float32(0))
    fleet._draw_token()
    import ray

    ray.init(address="local", log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    sender = ray.remote(num_cpus=1)(Sending).remote(line, played)
    print("| an unroll of Pong | bytes | CPU of both ends, ms | of Ray's own | wall, ms |\n|---|---|---|---|---|")
    bytes_of = {False: len(data), True: sum(np.asarray(x).nbytes for x in jax.tree.leaves(played))}
    for raw in (False, True):
        rounds = [_asked(ray, sender, line, raw) for _ in range(arguments.rounds)]
        ends, own, wall = (statistics.median(x) for x in zip(*rounds, strict=True))
        name = "arrays, through the store" if raw else "packed, in the reply"
        print(f"| {name} | {bytes_of[raw]:,} | {ends:.2f} | {own:.2f} | {wall:.2f} |", flush=True)
    ray.shutdown()
    for name, tree in (("float32", published), ("bfloat16", wire.rounded(published))):
        print(f"parameters in {name}: {sum(np.asarray(x).nbytes for x in jax.tree.leaves(tree)):,} bytes per version")


def _pong(agent: Any, task: Any) -> tuple[wire.Wire, wire.Played]:
    """Plays 200 steps of Pong at random, and returns the wire and the unroll of the last."""
    length, width = PONG["layout.unroll_length"], PONG["env.num_envs"]
    rows = unroll.rows_struct(agent, task.spec, length, width)
    programs = unroll.HostUnroll(agent, task.spec, width, length, 1)
    key = jax.random.key(1)
    published = jax.device_put(unroll.Published(agent.init(key), np.int32(0), np.float32(0)))
    environment = actors.make_environments(task, width, width, 60.0, key, 0, 0, 0)
    timestep, carry = environment.reset()._replace(info=()), agent.init_carry(width)
    ids = np.arange(width, dtype=np.int32)
    for number in range(10):
        (one,), rested = programs.run(published, key, number, ids, environment, timestep, carry)
        timestep, carry = rested.timestep, rested.carry
    environment.close()
    host = jax.tree.map(np.asarray, (one.steps, carry, rested.episodes))
    return wire.Wire(task.spec, rows), wire.Played(9, *host, 0.1, 0.1)


def _asked(ray: Any, sender: Any, line: wire.Wire, raw: bool, count: int = 200, ahead: int = 4) -> tuple[float, ...]:
    """Asks for unrolls, several ahead; returns CPU ms of both ends, of Ray's own processes, and wall ms, of each."""
    for warming in (True, False):
        count = 20 if warming else 200
        before = time.process_time() + ray.get(sender.cpu_s.remote()), _ray_cpu_s()
        started_s = time.perf_counter()
        asked = [sender.play.remote(raw) for _ in range(ahead)]
        for i in range(count):
            answer = ray.get(asked.pop(0))
            if not raw:
                line.unpack(answer, 9, 0)
            if i + ahead < count:
                asked.append(sender.play.remote(raw))
            del answer
        wall_s = time.perf_counter() - started_s
        after = time.process_time() + ray.get(sender.cpu_s.remote()), _ray_cpu_s()
    return *(1000 * (x - y) / count for x, y in zip(after, before, strict=True)), 1000 * wall_s / count


def _ray_cpu_s() -> float:
    """Returns the CPU seconds of this process's children and theirs that are Ray's own programs."""
    total = 0.0
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(") ")
        except OSError:
            continue
        if name in ("raylet", "gcs_server"):
            fields = rest.split()
            total += (int(fields[11]) + int(fields[12])) * _TICK_S
    return total


def _rate(arguments: Any) -> None:
    """Prints learned steps/s of players and of threads."""
    rates: dict[str, list[float]] = {"threads": [], "players": []}
    for _ in range(arguments.rounds):
        for name, more in (("threads", {}), ("players", PLAYERS)):
            rates[name].append(_measure({**CHEETAH, **more}, arguments.seconds)[0])
            print(name, rates[name][-1], file=sys.stderr)
    _print_rates("HalfCheetah, four actors with a worker process each", rates, "threads")


def _lost(arguments: Any) -> None:
    """Prints learned steps/s of four players, and with one killed every 20 s."""
    rates: dict[str, list[float]] = {"four players": [], "one killed every 20 s": []}
    replaced_s: list[float] = []
    for _ in range(arguments.rounds):
        for name in rates:
            kills = replaced_s if "killed" in name else None
            rate, restarts = _measure({**CHEETAH, **PLAYERS}, 4 * _KILL_EVERY_S, kills)
            rates[name].append(rate)
            print(name, rate, restarts, file=sys.stderr)
    _print_rates("HalfCheetah", rates, "four players")
    print("seconds until another played in its place: " + " ".join(f"{one:.1f}" for one in replaced_s), flush=True)


def _slow(arguments: Any) -> None:
    """Prints learned steps/s of three players, and of four of which one is ten times slower."""
    key = keys.seed_keys(jax.random.key(0)).environment
    first = episodes.seeds(int(jax.random.bits(key, dtype=np.uint32)), "training 0", 0, 0, 1)[0]
    modes: dict[str, dict[str, Any]] = {
        "three players": {"layout.num_actors": 3, "env.num_envs": 3},
        "four, one ten times slower, quorum of three": {
            "layout.num_actors": 4,
            "env.num_envs": 4,
            "env.params.slow": str(int(first)),
            "layout.quorum": 3,
        },
    }
    rates: dict[str, list[float]] = {name: [] for name in modes}
    for _ in range(arguments.rounds):
        for name, mode in modes.items():
            rates[name].append(_measure({**SLEEP, **PLAYERS, **mode}, arguments.seconds)[0])
            print(name, rates[name][-1], file=sys.stderr)
    _print_rates("environments that sleep 20 ms a step", rates, "three players")


def _measure(named: dict[str, Any], seconds: float, kills: list[float] | None = None) -> tuple[float, int]:
    """Measures a run for about so long; returns learned steps/s, and how many players were replaced.

    With a list `kills`, players are killed, and the list gets the seconds that each replacement took.
    """
    parts = _assembled(named)
    layout: Any = parts.layout
    try:
        state = layout.init(assemble.seed_keys(parts.settings))
        state, _ = layout.run(state, 0, 5, 1_000_000)
        started_s = time.perf_counter()
        state, _ = layout.run(state, 5, 5, 1_000_000)
        iterations = max(int(5 * seconds / (time.perf_counter() - started_s)), 5)
        done = threading.Event()
        if kills is not None:
            threading.Thread(target=_kill, args=(layout, done, kills), daemon=True).start()
        rows, iteration = 0.0, 10
        started_s = time.perf_counter()
        # A slow run ends by the clock.
        while (took_s := time.perf_counter() - started_s) < seconds:
            count = max(1, iterations // 20)
            state, sums = layout.run(state, iteration, count, 1_000_000)
            iteration += count
            rows += float(sums.layout["lag_counts"].sum()) * layout.rows_per_iteration / named["layout.num_actors"]
        done.set()
        return rows / took_s, layout._threads.restarts
    finally:
        layout.close()


def _kill(layout: Any, done: threading.Event, replaced_s: list[float]) -> None:
    """Kills the player of each actor in turn, and appends the seconds until another's first unroll was there."""
    number, killed_s = 0, time.perf_counter()
    while not done.wait(max(0.0, killed_s + _KILL_EVERY_S - time.perf_counter())):
        players, killed_s = layout._threads._players, time.perf_counter()
        lost = players[number]
        if lost._environment is None:
            continue
        layout._fleet.kill(lost._environment._crew)
        while players[number] is lost or (at := players[number].at) is None or at[0] == players[number].begin[0]:
            if done.wait(0.02):
                return
        replaced_s.append(time.perf_counter() - killed_s)
        number = (number + 1) % len(players)


def _print_rates(task: str, rates: dict[str, list[float]], base: str) -> None:
    print(f"| {task} | steps/s | beside {base} |\n|---|---|---|")
    for name, found in rates.items():
        ratio = statistics.median(x / y for x, y in zip(found, rates[base], strict=True))
        print(f"| {name} | {statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f}) | {ratio:.2f} |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
