"""Trains the zoo, presets whose results and curves are kept: `python benchmarks/zoo.py [--rows=ppo/] [--minutes=60]`.

Each row trains a preset with five seeds, or three where a seed takes long, in one program where its layout trains them
together. A row that is in `zoo.jsonl` is not run again. The curves of a new one are written to `reference/` if it has
seeds enough for a band, the result into the preset, and the table of all rows into docs/results.md; `python
tests/test_docs.py` and `python docs/figures/curves.py` do the pages.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jsonl  # noqa: E402
import programs  # noqa: E402

from jaxrl_dist.analysis import reference  # noqa: E402
from jaxrl_dist.runs import aggregate, display, view  # noqa: E402
from jaxrl_dist.settings import presets  # noqa: E402
from jaxrl_dist.systems import catalogue, training_flags  # noqa: E402

TABLE = HERE / "zoo.jsonl"
RESULTS = HERE.parent / "docs" / "results.md"
SEEDS = 5
MARKERS = "<!-- zoo: written by `python benchmarks/zoo.py` -->\n", "<!-- end of zoo -->\n"
# Rows that update once a step take an hour and a half a seed on one core: too few seeds for a band, so without curves.
SLOW_SEEDS = 3
SLOW = (
    *("td3/hopper", "td3/walker2d", "td3/halfcheetah"),
    *("sac/hopper", "sac/walker2d", "sac/halfcheetah"),
)
ROWS = (
    *("ppo/acrobot", "a2c/acrobot", "impala/acrobot", "pqn/acrobot", "dqn/acrobot"),
    *("a2c/catch", "impala/catch", "pqn/catch", "qr_dqn/catch", "rainbow/catch"),
    *("ppo/pendulum", "ppo/mountain_car_continuous", "ppo/lunar_lander", "ppo/bipedal_walker"),
    *("ppo/asterix", "ppo/freeway", "ppo/space_invaders", "pqn/breakout", "pqn/asterix", "pqn/space_invaders"),
    *("ppo/four_rooms", "ppo/discounting_chain"),
    *("ppo/inverted_pendulum", "ppo/inverted_double_pendulum", "ppo/hopper", "ppo/walker2d", "ppo/swimmer"),
    *("ppo/reacher", "ppo/mujoco_ant", "a2c/lunar_lander", "impala/lunar_lander"),
    *("pqn/lunar_lander", "dqn/lunar_lander", "pqn/freeway"),
    *("impala/asterix", "impala/freeway", "impala/space_invaders"),
    *("dqn/asterix", "dqn/space_invaders", "rainbow/freeway", "rainbow/space_invaders", "r2d2/space_invaders"),
    *("ppo/navix_empty", "ppo/navix_doorkey", "ppo/pusher", "ppo/humanoid"),
    *("ppo/seaquest", "pqn/seaquest", "impala/seaquest", "dqn/seaquest", "rainbow/seaquest", "r2d2/seaquest"),
    *("dqn/freeway", "rainbow/asterix", "r2d2/asterix", "r2d2/freeway", "r2d2/breakout"),
    *SLOW,
)
# What others have published for the agent of a preset, after as many steps if no others are named; docs/results.md says
# where.
PUBLISHED: Mapping[str, str] = {
    "ppo/acrobot": "-86.4 ± 1.3, CleanRL",
    "a2c/acrobot": "-83.4 ± 17, Zoo",
    "dqn/acrobot": "-91.5 ± 7.2, CleanRL",
    "ppo/pendulum": "-172 ± 104 (100k), Zoo",
    "ppo/mountain_car_continuous": "88.3 ± 2.6 (20k), Zoo",
    "ppo/lunar_lander": "242 ± 32, Zoo",
    "a2c/lunar_lander": "156 ± 80 (200k), Zoo",
    "dqn/lunar_lander": "154 ± 79 (100k), Zoo",
    "ppo/bipedal_walker": "288 ± 2 (5M), Zoo",
    "ppo/asterix": "15 (10M), gymnax",
    "ppo/freeway": "58 (10M), gymnax",
    "ppo/space_invaders": "131 (10M), gymnax",
    "ppo/four_rooms": "1 (200k), gymnax",
    "ppo/discounting_chain": "1.1 (150k), gymnax",
    "ppo/inverted_pendulum": "963 ± 22, CleanRL",
    "ppo/inverted_double_pendulum": "9231 ± 270, Tianshou",
    "ppo/hopper": "2383 ± 272, CleanRL",
    "ppo/walker2d": "2288 ± 572, CleanRL",
    "ppo/humanoid": "716 ± 49, CleanRL",
    "ppo/pusher": "-40.4 ± 7.2, CleanRL",
    "td3/hopper": "3135 ± 360 (1M), CleanRL",
    "td3/walker2d": "4058 ± 659 (1M), CleanRL",
    "td3/halfcheetah": "9583 ± 126 (1M), CleanRL",
    "sac/hopper": "2310 ± 343 (1M), CleanRL",
    "sac/walker2d": "3591 ± 911 (1M), CleanRL",
    "sac/halfcheetah": "9635 ± 1424 (1M), CleanRL",
    "ppo/reacher": "-4.1 ± 0.3, Tianshou",
    "ppo/swimmer": "66.7 ± 99, Tianshou",
    "ppo/mujoco_ant": "3258 ± 1079, Tianshou; 1327 ± 452, Zoo",
}


def train(name: str, folder: pathlib.Path) -> dict[str, Any]:
    """Trains all seeds of a preset in a folder, writes their curves if they make a reference, and returns the row."""
    settings = training_flags.parse((f"--preset={name}",)).settings
    assert settings is not None
    together = settings.row.layout(settings["layout"]).seeds_together
    num_seeds = SLOW_SEEDS if name in SLOW else SEEDS
    row, views = measured((f"--preset={name}",), folder, together=together, num_seeds=num_seeds)
    if num_seeds >= reference.SMALLEST_SEEDS:
        reference.write(HERE / "reference", reference_name(name), views)
    return row


def measured(
    flags: Sequence[str], folder: pathlib.Path, *, together: bool, num_seeds: int = SEEDS
) -> tuple[dict[str, Any], list[view.View]]:
    """Trains all seeds in a folder, in one program or one after the other, and returns their row and their runs."""
    seeds = [(0, num_seeds)] if together else [(seed, 1) for seed in range(num_seeds)]
    trained = programs.train(flags, seeds, folder, view.read)
    return scores(trained), trained.runs


def scores(trained: programs.Trained[view.View]) -> dict[str, Any]:
    """Returns the row of runs: the last evaluation of each seed, the steps, and how they were trained."""
    returns = [value for run in trained.runs for value in run.summary["eval_return_per_seed"]]
    return {"returns": returns, "steps": max(run.env_steps for run in trained.runs), **trained.facts()}


def reference_name(preset: str) -> str:
    """Returns the name of the curves of a preset, TASK_SYSTEM.

    Example:
        >>> import zoo
        >>> zoo.reference_name("ppo/acrobot")
        'acrobot_ppo'
    """
    system, _, task = preset.partition("/")
    return f"{task}_{system}"


def scored(row: Mapping[str, Any]) -> str:
    """Returns the interquartile mean of a row with its 95 % interval."""
    returns = np.array(row["returns"])
    centre, (low, high) = float(aggregate.interquartile_mean(returns)), aggregate.interval(returns)
    return f"{centre:.4g} [{low:.4g}, {high:.4g}]"


def table() -> str:
    """Returns the lines of the table of all rows, and the names of those that are not measured."""
    measured = jsonl.read(TABLE)
    lines = [
        "| preset | task | steps | return, IQM [95 %] | lowest seed | seeds | minutes | published | commit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in measured.items():
        task = presets.load(name, catalogue.PRESETS).settings["env"].value
        cells = (
            *(f"`{name}`", f"`{task}`", display.count(row["steps"]), scored(row)),
            *(f"{min(row['returns']):.4g}", str(len(row["returns"])), programs.minutes(row)),
            *(PUBLISHED.get(name, "–"), jsonl.short(row["commit"])),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return jsonl.with_minus("".join(f"{line}\n" for line in lines)) + jsonl.missing(ROWS, measured)


def write() -> None:
    """Writes the table into docs/results.md, and each result into its preset."""
    jsonl.show(RESULTS, MARKERS, table())
    for name, row in jsonl.read(TABLE).items():
        told = f"{scored(row)}, {len(row['returns'])} seeds (docs/results.md, zoo)"
        jsonl.tell(catalogue.PRESETS / f"{name}.flags", told)


def main() -> None:
    """Runs what is missing, and writes what changes."""
    jsonl.fill(TABLE, {name: name for name in ROWS}, jsonl.parser(__doc__).parse_args(), train)
    write()


if __name__ == "__main__":
    main()
