"""Compares the choice of `--layout=auto` with the best of a small grid by hand: steps/s of both, measured in turns.

`python benchmarks/auto.py [--rounds=7] [--tasks=NAME,NAME]` lets auto choose for each task, then trains its choice and
every setting of the grid in turns of a second, in one process, and prints a table. Wanted: ≥ .85 of the best.
"""

import argparse
import contextlib
import itertools
import pathlib
import statistics
import sys
from collections.abc import Mapping
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import jax  # noqa: E402

from jaxrl_dist import errors  # noqa: E402
from jaxrl_dist.settings import resolve  # noqa: E402
from jaxrl_dist.training import assemble, auto_layout, probe, runner  # noqa: E402

_SLICE_S = 1.0
_REPLAY_ROWS = 2**16

Axes = Mapping[str, tuple[Any, ...]]

# On the device; sebulba learns the same with a lag of 0.
_ANAKIN: Axes = {"layout": ("anakin",), "layout.num_devices": (1, 2)}
_APART: Axes = {"layout": ("sebulba",), "layout.policy_lag": ("0",), "layout.num_actors": (1, 2)}
_POOL: Axes = {"layout": ("sebulba",), "layout.num_actors": (1, 2), "env.params.num_threads": ("0", "2")}
_CENTRAL: Axes = {"layout": ("sebulba",), "layout.ready_envs": (0, 4), "env.params.num_threads": ("0", "2")}
_WORKERS: Axes = {"layout": ("sebulba",), "layout.num_actors": (1, 2), "env.params.workers": ("0", "2")}

TASKS: dict[str, tuple[dict[str, Any], tuple[Axes, ...]]] = {
    "ppo_cartpole": ({"preset": "ppo/cartpole"}, (_ANAKIN, _APART)),
    "dqn_cartpole": ({"preset": "dqn/cartpole"}, (_ANAKIN, _APART)),
    "ppo_breakout": ({"preset": "ppo/breakout"}, (_ANAKIN, _APART)),
    "ppo_halfcheetah": ({"preset": "ppo/halfcheetah"}, (_POOL,)),
    "ppo_cartpole_envpool": ({"system": "ppo", "env": "envpool:CartPole-v1", "env.num_envs": 64}, (_POOL,)),
    "impala_cartpole_envpool": ({"system": "impala", "env": "envpool:CartPole-v1"}, (_POOL,)),
    "seed_impala_cartpole": ({"preset": "seed_impala/cartpole"}, (_CENTRAL,)),
    "ppo_cartpole_gymnasium": ({"system": "ppo", "env": "gymnasium:CartPole-v1", "env.num_envs": 16}, (_WORKERS,)),
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tasks", default=",".join(TASKS), help="which, separated by commas")
    arguments = parser.parse_args()
    runner.prepare()
    runner.keep_programs()
    print("| task | auto's choice | steps/s | best of the grid | steps/s | auto ÷ best |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    for name in arguments.tasks.split(","):
        task, axes = TASKS[name]
        print(f"| {name} | {_compare(task, axes, arguments.rounds)} |", flush=True)


def _compare(task: dict[str, Any], axes: tuple[Axes, ...], rounds: int) -> str:
    """Returns the rest of a task's row."""
    named = {**task, "layout": resolve.AUTO}
    settings, _ = assemble.resolve(named)
    devices = jax.devices()
    found = auto_layout.Trials(named, devices, _tell).choose(settings)
    chosen = {name: value for name, (value, _) in found.items()}
    grid = [dict(zip(one, values, strict=True)) for one in axes for values in itertools.product(*one.values())]
    with contextlib.ExitStack() as stack:
        probes: dict[str, probe.Probe] = {}
        # The choice of auto is often a setting of the grid; it is then measured only once.
        names = {_key({**task, **flags}): _text(flags) for flags in [chosen, *grid]}
        for flags in [*grid, chosen]:
            key = _key({**task, **flags})
            if names[key] not in probes and (made := _probe(stack, {**task, **flags})):
                probes[names[key]] = made
        for _ in range(rounds):
            for one in probes.values():
                one.run(_SLICE_S)
        rates = {name: statistics.median(one.rates) for name, one in probes.items()}
    for name, rate in rates.items():
        _tell(f"{name}: {rate:,.0f}")
    own = rates[names[_key({**task, **chosen})]]
    best = max(rates, key=lambda name: rates[name])
    return f"{_text(chosen)} | {own:,.0f} | {best} | {rates[best]:,.0f} | {own / rates[best]:.2f}"


def _key(flags: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what distinguishes settings: layout, devices, actors, and the suite's threads, 0 where none are named."""
    settings = assemble.resolve(flags)[0]
    own = {name: value for name, value in settings.settings.items() if name.startswith("layout.")}
    with contextlib.suppress(errors.UsageError):
        own["layout.num_devices"] = len(assemble.choose_devices(settings, jax.devices()))
    own |= {
        name: value for name, value in settings.settings.items() if name.startswith(resolve.PARAMS) and value != "0"
    }
    own.pop("layout.learner_devices", None)
    return settings["layout"], *sorted((name, str(value)) for name, value in own.items())


def _probe(stack: contextlib.ExitStack, flags: Mapping[str, Any]) -> probe.Probe | None:
    """Returns a warm probe, None for settings that are not possible here."""
    try:
        settings, environment = assemble.resolve(flags)
        chosen = assemble.choose_devices(settings, jax.devices())
        made = probe.Probe(settings, environment, chosen, _REPLAY_ROWS)
    except errors.UsageError as error:
        _tell(f"{_text(flags)}: {error}")
        return None
    stack.callback(made.close)
    made.warm_up()
    return made


def _text(flags: Mapping[str, Any]) -> str:
    return " ".join(f"{name.removeprefix('layout.').removeprefix('env.params.')}={v}" for name, v in flags.items())


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
