"""One loop that acts for all environments beside actors that each act for their own: which is faster, by network.

`python benchmarks/inference.py [--rounds=3] [--envs=16]` trains IMPALA on EnvPool under sebulba, with networks from
small to large, and prints learned steps/s, the bytes of parameters moved per step and the mean inference batch. Actors
have a CPU device of their own, apart from the learner's, so parameters go to them with each update; the one loop acts
where the learner is. Modes take turns. Babaeizadeh et al. 2017 found central inference 3 times as fast with a small
network and 91 times with a large one, on a GPU beside 16 CPU threads.
"""

import argparse
import pathlib
import statistics
import sys
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

PONG = {"env": "envpool:Pong-v5", "network.core": "identity"}
NETWORKS: dict[str, dict[str, object]] = {
    "MLP, 2 × 64": {"env": "envpool:CartPole-v1", "network.torso": "mlp"},
    "Nature CNN": {**PONG, "network.torso": "nature_cnn"},
    "ResNet + LSTM": {**PONG, "network.torso": "impala_resnet", "network.core": "lstm"},
}


class Measured(NamedTuple):
    """Steps learned from per second, bytes of parameters moved per step, and rows per call of the policy."""

    steps_per_s: float
    bytes_per_step: float
    batch: float


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--actors", default="1,4,16", help="numbers of actors, each with its share of the environments")
    parser.add_argument("--networks", default="", help="part of the names of networks to measure")
    parser.add_argument("--seconds", type=float, default=5.0, help="about how long each measurement takes")
    arguments = parser.parse_args()
    modes: dict[str, dict[str, object]] = {"central": {"layout.inference": "central"}}
    for actors in arguments.actors.split(","):
        modes[f"{actors} actors"] = {"layout.inference": "per_actor", "layout.num_actors": int(actors)}
    modes = {name: mode | _places(name == "central") for name, mode in modes.items()}
    names = [name for name in NETWORKS if arguments.networks in name]
    found: dict[tuple[str, str], list[Measured]] = {}
    for _ in range(arguments.rounds):
        for network in names:
            for mode, settings in modes.items():
                measured = _measure({**NETWORKS[network], **settings}, arguments.envs, arguments.seconds)
                found.setdefault((network, mode), []).append(measured)
                print(f"{network}, {mode}: {measured}", file=sys.stderr)
    print(
        "| network | inference | steps/s | beside central | parameters moved, bytes per step | mean inference batch |"
    )
    print("|---|---|---|---|---|---|")
    for network in names:
        central = [one.steps_per_s for one in found[network, "central"]]
        for mode in modes:
            measured = found[network, mode]
            rates = [one.steps_per_s for one in measured]
            ratio = statistics.median(rate / base for rate, base in zip(rates, central, strict=True))
            print(
                f"| {network} | {mode} | {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) | "
                f"{ratio:.2f} | {statistics.median(one.bytes_per_step for one in measured):,.0f} | "
                f"{statistics.median(one.batch for one in measured):.1f} |"
            )


def _places(is_central: bool) -> dict[str, object]:
    """Returns the devices of the learner and of actors that act for themselves."""
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    platform = jax.default_backend()
    places: dict[str, object] = {"layout.learner_devices": f"{platform}:0"}
    if not is_central:
        places["layout.actor_devices"] = "cpu:1" if platform == "cpu" else "cpu:0"
    return places


def _measure(mode: dict[str, object], num_envs: int, seconds: float) -> Measured:
    """Measures a run after its first iterations, for as many more as take about so long."""
    import jax

    from jaxrl_dist.training import assemble

    named = {
        "system": "impala",
        "env.num_envs": num_envs,
        "layout.unroll_length": 20,
        "layout.policy_lag": "free",
        **mode,
    }
    settings, environment = assemble.resolve(named)
    layout = assemble.assemble(settings, environment, assemble.choose_devices(settings, jax.devices())).layout
    try:
        state = layout.init(assemble.seed_keys(settings))
        state, _ = layout.run(state, 0, 2, 100_000)
        started_s = time.perf_counter()
        state, _ = layout.run(state, 2, 2, 100_000)
        iterations = max(int(2 * seconds / (time.perf_counter() - started_s)), 2)
        started_s = time.perf_counter()
        _, sums = layout.run(state, 4, iterations, 100_000)
        took_s = time.perf_counter() - started_s
        steps = iterations * layout.rows_per_iteration
        own = {f"layout/{name}": value for name, value in sums.layout.items()}
        report = layout.report(own, own, took_s)
    finally:
        layout.close()
    return Measured(
        steps / took_s, report["bytes_per_second_to_actors"] * took_s / steps, report["inference_batch_mean"]
    )


if __name__ == "__main__":
    main()
