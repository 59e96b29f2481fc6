"""Measures who keeps what it learned: `python benchmarks/holding.py [--rows=a2c] [--minutes=60] [--figure=FILE]`.

Each row trains one system on one small task for twice the steps of its result, and evaluates it 40 times: with 20 seeds
in one program (five of those in `FEWER_TOGETHER`), or with five one after the other where the layout trains one seed at
a time. Where values of small tasks were chosen because a paper's own fall, a row beside it has the paper's
(`--preset=a2c/paper`). A task counts as solved from its mark on; a seed has fallen where an evaluation after its first
solved one is below the floor: nine tenths of the way from random play to the mark. Rows of `holding.jsonl` are not run
again; the end writes the table of all rows into docs/results.md.
"""

import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jsonl  # noqa: E402
import programs  # noqa: E402

from jaxrl_dist.analysis import curves, plots  # noqa: E402
from jaxrl_dist.runs import display, metrics  # noqa: E402
from jaxrl_dist.systems import catalogue  # noqa: E402

TABLE = HERE / "holding.jsonl"
RESULTS = HERE.parent / "docs" / "results.md"
MARKERS = "<!-- holding: written by `make holding` -->\n", "<!-- end of holding -->\n"
SEEDS_TOGETHER, SEEDS_APART, EVALUATIONS = 20, 5, 40
# Of these, by their systems or by a paper's values, five take a core for up to an hour.
FEWER_TOGETHER = dict.fromkeys(("dreamer", "rainbow/paper", "rnd/paper", "d4pg/paper", "mpo/paper"), 5)
# Share of the seeds that should end with the task solved.
WANTED = 0.95


class Task(NamedTuple):
    """A task: the return that solves it, that of random play, and the steps of each system's result."""

    env: str
    mark: float
    random: float
    steps: int

    @property
    def floor(self) -> float:
        """The return below which a seed that had solved the task has fallen."""
        return self.random + 0.9 * (self.mark - self.random)


TASKS = {
    "cartpole": Task("gymnax:CartPole-v1", 475.0, 22.0, 500_000),
    "catch": Task("gymnax:Catch-bsuite", 0.95, -0.6, 100_000),
    "pendulum": Task("gymnax:Pendulum-v1", -200.0, -1200.0, 15_000),
}
# Results after other steps than those of the task.
OTHER_STEPS = {
    ("r2d2", "cartpole"): 1_000_000,
    ("r2d2", "catch"): 500_000,
    ("seed_r2d2", "cartpole"): 1_000_000,
    ("es", "cartpole"): 2_000_000,
    # All seeds of its study are at the mark from 70,000 steps on.
    ("muzero", "cartpole"): 100_000,
    # Four of five of its preset from 13,400 steps on, with twice the updates of the default.
    ("dreamer", "catch"): 30_000,
    ("alphazero", "cartpole"): 100_000,
}
_ON_POLICY = ("ppo", "dppo", "gpu_sim", "a2c", "impala", "impala_replay", "pqn")
_BY_REPLAY = ("dqn", "apex_dqn", "r2d2", "rainbow")
TOGETHER = {
    "cartpole": (
        *(*_ON_POLICY, *_BY_REPLAY, "qr_dqn", "iqn", "discrete_sac", "vmpo", "rnd", "es", "ippo", "mappo"),
        *("muzero", "alphazero"),
    ),
    "catch": (*_ON_POLICY, *_BY_REPLAY, "dreamer", "muzero"),
    "pendulum": ("ddpg", "td3", "sac", "d4pg", "apex_dpg", "crossq", "mpo"),
}
APART = {"cartpole": ("a3c", "ga3c", "gorila", "seed_impala", "seed_r2d2")}
# By their papers' values as well.
PAPERS = {
    "cartpole": (
        *("ppo", "a2c", "impala", "impala_replay", "dqn", "apex_dqn", "rainbow", "vmpo", "rnd", "gorila"),
        "seed_impala",
    ),
    "pendulum": ("d4pg", "mpo"),
}


class Row(NamedTuple):
    """A row: its task, the flags of every program, and the seeds of each."""

    task: Task
    steps: int
    flags: tuple[str, ...]
    seeds: tuple[tuple[int, int], ...]


def rows() -> dict[str, Row]:
    """Returns SYSTEM/TASK or SYSTEM/paper/TASK -> what to run, in the order of the table."""
    return dict(_rows())


def _rows() -> Iterator[tuple[str, Row]]:
    for name, task in TASKS.items():
        for system in (*TOGETHER[name], *APART.get(name, ())):
            steps = 2 * OTHER_STEPS.get((system, name), task.steps)
            yield f"{system}/{name}", _row(system, f"--system={system}", task, steps, system in APART.get(name, ()))
        for system in PAPERS.get(name, ()):
            paper = f"{system}/paper"
            is_apart = system in APART.get(name, ())
            yield f"{paper}/{name}", _row(paper, f"--preset={paper}", task, 2 * task.steps, is_apart)


def _row(values: str, chosen: str, task: Task, steps: int, is_apart: bool) -> Row:
    flags = (chosen, f"--env={task.env}", f"--steps={steps}")
    if is_apart:
        return Row(task, steps, flags, tuple((seed, 1) for seed in range(SEEDS_APART)))
    return Row(task, steps, (*flags, "--layout=anakin"), ((0, FEWER_TOGETHER.get(values, SEEDS_TOGETHER)),))


def train(row: Row, folder: pathlib.Path) -> dict[str, Any]:
    """Trains all seeds of a row in a folder, and returns what `held` says of their evaluations."""
    every = f"--evaluation.interval_steps={row.steps // EVALUATIONS}"
    trained = programs.train((*row.flags, every), row.seeds, folder, metrics.read)
    return {**held(curves.curve(trained.runs), row.task), "steps": row.steps, **trained.facts()}


def held(curve: curves.Curve, task: Task) -> dict[str, Any]:
    """Says when each seed first solved the task, how many later evaluations are below the floor, and where it ends.

    Args:
        curve: evaluations of all seeds; the first, at step 0, does not count.
        task: the task.

    Returns:
        `returns`, the last evaluation of each seed; `solved_at`, the steps of its first solved one, None where there is
        none; `later` and `below`, the evaluations after it, and those of them below the floor.
    """
    ends, solved_at, later, below = [], [], 0, 0
    for returns in curve.returns.T:
        known = np.isfinite(returns) & (curve.env_steps > 0)
        steps, scores = curve.env_steps[known], returns[known]
        solved = np.flatnonzero(scores >= task.mark)
        ends.append(round(float(scores[-1]), 3))
        solved_at.append(int(steps[solved[0]]) if len(solved) else None)
        after = scores[solved[0] + 1 :] if len(solved) else scores[:0]
        later, below = later + len(after), below + int((after < task.floor).sum())
    return {"returns": ends, "solved_at": solved_at, "later": later, "below": below}


def share_solved(row: Mapping[str, Any], task: Task) -> float:
    """Returns the share of seeds that end with the task solved."""
    return float(np.mean(np.array(row["returns"]) >= task.mark))


def _solved(row: Mapping[str, Any], task: Task) -> str:
    seeds = len(row["returns"])
    return f"{round(seeds * share_solved(row, task))} of {seeds}"


def table(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the lines of the table of all rows, and the names of those that are not measured."""
    lines = [
        "| system | task | steps | solved at the end | later evaluations below | lowest seed | minutes | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows().items():
        if name in measured:
            found = measured[name]
            below = f"{100 * found['below'] / found['later']:.1f} %" if found["later"] else "–"
            system, _, task = name.rpartition("/")
            # A paper's values may fall: that is why there are others.
            is_short = share_solved(found, row.task) < WANTED and "/" not in system
            short = ", **short**" if is_short else ""
            cells = (system, task, display.count(found["steps"]), f"{_solved(found, row.task)}{short}", below)
            ends = (f"{min(found['returns']):.4g}", programs.minutes(found), jsonl.short(found["commit"]))
            lines.append("| " + " | ".join((*cells, *ends)) + " |")
    return jsonl.with_minus("".join(f"{line}\n" for line in lines)) + jsonl.missing(rows(), measured)


def tell(measured: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the results of papers' values into their presets."""
    for name, row in rows().items():
        system, *paper, _ = name.split("/")
        if paper and name in measured:
            solved, steps = _solved(measured[name], row.task), display.count(row.steps)
            told = f"{row.task.env} solved by {solved} seeds after {steps} steps (make holding)"
            jsonl.tell(catalogue.PRESETS / system / "paper.flags", told)


def draw(table: Mapping[str, Mapping[str, Any]], path: pathlib.Path) -> None:
    """Draws the last evaluation of every seed, a row for each system, with the marks."""
    from matplotlib import figure
    from matplotlib.backends import backend_agg

    names = {task: [name for name in rows() if name in table and name.endswith(f"/{task}")] for task in TASKS}
    names = {task: own for task, own in names.items() if own}
    most = max(map(len, names.values()))
    drawn = figure.Figure(figsize=(4.2 * len(names), 0.9 + 0.27 * most), layout="constrained")
    backend_agg.FigureCanvasAgg(drawn)
    for axes, (task, own) in zip(np.atleast_1d(drawn.subplots(1, len(names))), names.items(), strict=True):
        for i, name in enumerate(own):
            ends = np.array(table[name]["returns"])
            colours = [plots.COLOURS[0] if end >= TASKS[task].mark else plots.COLOURS[1] for end in ends]
            axes.scatter(
                ends, np.full(len(ends), i) + np.linspace(-0.28, 0.28, len(ends)), s=11, c=colours, linewidth=0
            )
        axes.axvline(TASKS[task].mark, color=plots.SOFT, linewidth=0.8, linestyle="--")
        axes.set(yticks=range(len(own)), yticklabels=[name.rpartition("/")[0] for name in own], ylim=(most - 0.5, -0.5))
        axes.set(title=TASKS[task].env, xlabel="last evaluation of each seed; dashed: solved")
        axes.grid(axis="x", color=plots.RULE, linewidth=0.7)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
    drawn.savefig(path, dpi=110)


def main() -> None:
    """Runs what is missing, and writes the table."""
    parser = jsonl.parser(__doc__)
    parser.add_argument("--figure", type=pathlib.Path, help="picture to write")
    options = parser.parse_args()
    measured = jsonl.fill(TABLE, rows(), options, train)
    jsonl.show(RESULTS, MARKERS, table(measured))
    tell(measured)
    if options.figure:
        draw(measured, options.figure)


if __name__ == "__main__":
    main()
