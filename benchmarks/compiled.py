"""Compiles training programs for devices that are not there: `python benchmarks/compiled.py [--rows=ppo] [--write]`.

`make compiled` makes the environment that it needs and runs it. Every row is a program and a target; with `--write` its
numbers replace those of `compiled.jsonl`, which a long test holds every program to. `--rows` takes beginnings of
PROGRAM@TARGET, such as `ppo@h200`.
"""

import argparse
import os
import pathlib
import sys
from typing import Any

# The devices are the compilers' alone: no backend but the CPU's is asked for.
os.environ["JAX_PLATFORMS"] = "cpu"
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jsonl  # noqa: E402

from jaxrl_dist import errors  # noqa: E402
from jaxrl_dist.parallel import anakin  # noqa: E402
from jaxrl_dist.systems import SYSTEMS  # noqa: E402
from jaxrl_dist.training import compiled, targets  # noqa: E402

TABLE = HERE / "compiled.jsonl"
_CARTPOLE, _BREAKOUT, _PENDULUM = "gymnax:CartPole-v1", "gymnax:Breakout-MinAtar", "gymnax:Pendulum-v1"
# PureJaxRL's own example at 2048 × 32, and programs whose kernels were counted before.
NAMED: dict[str, dict[str, Any]] = {
    "ppo_large": {
        **{"system": "ppo", "env": _CARTPOLE, "learner.epochs": 4, "network.activation": "tanh"},
        "agent.scale_rewards": "false",
        **{"network.torso": "mlp", "network.hidden_sizes": "64,64", "network.shared": "false"},
        **{"env.num_envs": 2048, "layout.unroll_length": 32, "learner.minibatches": 32},
    },
    **{
        f"ppo_{core}": {
            **{"system": "ppo", "env": _BREAKOUT, "network.core": core},
            **{"env.num_envs": 1024, "layout.unroll_length": 128},
        }
        for core in ("lstm", "gru", "mingru")
    },
    "ppo_minatar": {
        **{"system": "ppo", "env": _BREAKOUT, "network.torso": "mlp"},
        **{"env.num_envs": 1024, "layout.unroll_length": 128},
    },
    "ppo_ant": {"system": "ppo", "env": "brax:ant", "env.params.backend": "spring", "env.num_envs": 4096},
    **{
        f"{name}_minatar": {"system": name, "env": _BREAKOUT, "env.num_envs": columns, "replay.capacity": 96_000}
        for name, columns in (("rainbow", 4), ("r2d2", 32))
    },
    "dqn_large": {"system": "dqn", "env": _CARTPOLE, "env.num_envs": 16, "replay.batch_size": 512},
}
_MANY = {"env.num_envs": 65_536, "layout.unroll_length": 16}
_REPLAY_OF_MANY = {
    "replay.capacity": 65_536 * 64,
    "replay.min_size": 65_536 * 32,
    "replay.batch_size": 8_192,
    "replay.samples_per_insert": 0.0625,
}


def programs() -> dict[str, dict[str, Any]]:
    """Returns the flags of every program of one or four devices: those named above, and each system's own."""
    found = dict(NAMED)
    for name, row in SYSTEMS.items():
        if anakin.LAYOUT not in row.layouts:
            continue
        env = _CARTPOLE if "discrete" in row.actions else _PENDULUM
        replayed = {"replay.batch_size": 64, "replay.capacity": 80_000, "replay.min_size": 4_096}
        is_drawn = "batch_size" in row.replay.config.__dataclass_fields__
        sizes = {"env.num_envs": 4, **replayed} if is_drawn else {"env.num_envs": 64}
        found[name] = {"system": name, "env": env, "layout": "anakin", **sizes}
    return found


def rows() -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns PROGRAM@TARGET -> target and flags."""
    small = {
        f"{name}@{target}": (target, flags) for name, flags in programs().items() for target in ("h200", "v5e:2x2")
    }
    large = {
        "ppo": {**NAMED["ppo_large"], **_MANY},
        "ppo_lstm": {**NAMED["ppo_lstm"], **_MANY},
        "dqn": {**programs()["dqn"], **_MANY, **_REPLAY_OF_MANY},
        "sac": {**programs()["sac"], **_MANY, **_REPLAY_OF_MANY},
        "ppo_ant": {**NAMED["ppo_ant"], **_MANY},
        **{name: {**programs()[name], **_MANY, **_REPLAY_OF_MANY} for name in ("rainbow", "r2d2")},
    }
    return small | {
        f"{name}@{target}": (target, flags) for name, flags in large.items() for target in ("h200:8", "v5e:16x16")
    }


def measure(target: str, flags: dict[str, Any]) -> dict[str, Any]:
    """Compiles a program; returns the numbers of its row."""
    report = compiled.compile_run(flags, targets.make(target))
    loops = [
        {"depth": depth, "scope": loop.scope, "passes": loop.passes, "kernels": loop.kernels}
        | ({"operation": loop.operation} if loop.operation not in ("", "while") else {})
        | ({"collectives": loop.collectives} if loop.collectives else {})
        for depth, loop in report.iteration.walk()
    ]
    return {
        "loops": loops,
        "updates": report.updates,
        "kernels": report.total("kernels"),
        "kernels_per_step": report.total("kernels") / report.rows,
        "host": report.launches._asdict() if report.launches else None,
        "arguments": report.arguments,
        "temporaries": report.temporaries,
        "traced_s": round(report.seconds[0], 1),
        "compiled_s": round(report.seconds[1], 1),
        "predicted_s": compiled.seconds_per_iteration(report),
        "bottleneck": compiled.bottleneck(report),
    }


def read() -> dict[str, dict[str, Any]]:
    """Reads the table."""
    return jsonl.read(TABLE)


def main(arguments: list[str]) -> int:
    """Compiles the rows that are asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="beginnings of PROGRAM@TARGET, with commas between")
    parser.add_argument("--write", action="store_true", help="put the numbers into compiled.jsonl")
    options = parser.parse_args(arguments)
    chosen = jsonl.chosen(rows(), options.rows)
    if not chosen:
        return 2
    print("| program@target | kernels of a pass | an iteration | per step | host | predicted | compile |")
    print("|---|---|---|---|---|---|---|")
    for name, (target, flags) in chosen.items():
        try:
            found = measure(target, flags)
        except errors.UsageError as error:
            print(f"compiled.py: {name}: {errors.as_typed(error)}", file=sys.stderr)
            return 2
        print(_line(name, found), flush=True)
        if options.write:
            jsonl.put(TABLE, rows(), name, found)
    return 0


def _line(name: str, found: dict[str, Any]) -> str:
    loops = ", ".join(
        f"{'·' * loop['depth']}{loop['scope'] or (loop.get('operation', 'loop') if loop['depth'] else 'iteration')}"
        f"{'' if not loop['depth'] else ' × ' + str(loop['passes'] or '?')}: {loop['kernels']}"
        for loop in found["loops"]
    )
    host = found["host"]
    starts = f"{host['graphs']} graphs, {host['kernels']} kernels, {host['loops']} loops" if host else "–"
    return (
        f"| {name} | {loops} | {found['kernels']:,.0f} | {found['kernels_per_step']:.3g} | {starts} | "
        f"{found['predicted_s'] * 1e3:.3g} ms | {found['traced_s']} + {found['compiled_s']} s |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
