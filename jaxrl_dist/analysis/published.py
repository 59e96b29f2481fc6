"""Published numbers: random play, people, thresholds and runs of others, with source and protocol.

The numbers are in `facts/`; a score is shown beside a run only where task, system and protocol are the same.
"""

import csv
import functools
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxrl_dist.runs import view as run_view

FACTS = pathlib.Path(__file__).resolve().parent / "facts"
RANDOM_PLAY = "random play"
SOURCES = {
    "wang2016": "Wang et al. 2016, up to 30 no-ops at the start, no sticky actions",
    "measured": "benchmarks/random_play.py, uniform actions, 10,000 episodes (100 of HalfCheetah)",
    "gymnasium": "Gymnasium's reward threshold of the task",
    "rllib": "ray-project/rl-experiments 2018, one run, mean of training episodes, NoFrameskip-v4 (no sticky actions)",
    "cleanba": "Huang et al. 2023 (Cleanba), mean of seeds at 50M steps (200M frames), sticky actions, all 18 actions",
    "cleanrl": "CleanRL's documentation, ppo_atari_envpool_xla_jax, mean of seeds at 10M steps, no sticky actions",
}
# Parameters that change neither the task nor its scores, and the one that names its protocol.
_HARMLESS = {"observe", "protocol"}


class Level(NamedTuple):
    """A return to compare with, such as that of random play, with its name and its source."""

    name: str
    value: float
    source: str


class Curve(NamedTuple):
    """A published run.

    Attributes:
        name: name of the work.
        env_steps: f64 [n], steps of the agent, rising.
        minutes: f64 [n], NaN if they were not published.
        returns: f64 [n].
        source: its source, with the protocol.
    """

    name: str
    env_steps: np.ndarray
    minutes: np.ndarray
    returns: np.ndarray
    source: str


class Marks(NamedTuple):
    """Levels and published runs to draw beside a run."""

    levels: tuple[Level, ...] = ()
    curves: tuple[Curve, ...] = ()

    @property
    def random_play(self) -> float:
        """The level of random play, minus infinity where it is not known."""
        return next((level.value for level in self.levels if level.name == RANDOM_PLAY), -math.inf)

    @property
    def sources(self) -> tuple[str, ...]:
        """Lists the sources, a line each, with the names of all numbers from it."""
        names: dict[str, list[str]] = {}
        for name, source in [(x.name, x.source) for x in self.levels] + [(x.name, x.source) for x in self.curves]:
            names.setdefault(source, []).append(name)
        return tuple(f"{'; '.join(of_it)}: {source}" for source, of_it in names.items())


NO_MARKS = Marks()


def marks(system: str, env: str, params: Mapping[str, str]) -> Marks:
    """Finds the published numbers of a system on a task.

    Args:
        system: name of the system.
        env: suite:name.
        params: the environment's own parameters, by name; changed ones make it another task, without published numbers.
    """
    if set(params) - _HARMLESS:
        return Marks()
    tasks, protocol = _tasks(env), params.get("protocol", "deepmind")
    # Random play and players were scored without sticky actions.
    known = {task for task in tasks if protocol == "deepmind" or not task.startswith("atari:")}
    levels = [
        Level(row["level"], float(row["return"]), row["source"]) for row in _rows("levels") if row["task"] in known
    ]
    rows = [row for row in _rows("curves") if (row["system"], row["protocol"]) == (system, protocol)]
    by_work: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        if row["task"] in tasks:
            by_work.setdefault((row["work"], row["source"]), []).append(row)
    curves = [_curve(name, points, SOURCES[source]) for (name, source), points in by_work.items()]
    return Marks(tuple(level._replace(source=SOURCES[level.source]) for level in levels), tuple(curves))


def random_play(env: str, params: Mapping[str, str]) -> float:
    """Returns the level of random play on a task, minus infinity where it is not known."""
    return marks("", env, params).random_play


def marks_of(views: Sequence[run_view.View]) -> Marks:
    """Finds the published numbers of the systems of some runs, if all play the same task; nothing otherwise."""
    if len({(view.settings["env"], *sorted(view.task_params.items())) for view in views}) != 1:
        return NO_MARKS
    return of_all([marks(view.settings["system"], view.settings["env"], view.task_params) for view in views])


def of_all(found: Sequence[Marks]) -> Marks:
    """Joins what is known of several systems on one task; levels that are not of all are of no task here."""
    if len({one.levels for one in found}) != 1:
        return NO_MARKS
    curves = {curve.name: curve for one in found for curve in one.curves}
    return Marks(found[0].levels, tuple(curves.values()))


def _tasks(env: str) -> set[str]:
    """Returns the names under which a task may be known: envpool:Pong-v5 is Atari's Pong.

    Gymnasium's own Atari has no other name: its settings, such as sticky actions, follow no published protocol.
    """
    suite, _, name = env.partition(":")
    if suite == "brax":
        return set()
    game = re.sub(r"(NoFrameskip)?-v\d+$", "", name.removeprefix("ALE/"))
    is_atari = suite in ("envpool", "ale")
    return {name} | ({"atari:" + re.sub("[^a-z0-9]", "", game.lower())} if is_atari else set())


def _curve(name: str, rows: list[dict[str, str]], source: str) -> Curve:
    """Puts the points of one work in order."""
    points = [(float(row["env_steps"]), float(row["minutes"] or math.nan), float(row["return"])) for row in rows]
    steps, minutes, returns = np.array(sorted(points)).T
    return Curve(name, steps, minutes, returns, source)


@functools.cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    """Reads one table of facts."""
    with (FACTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))
