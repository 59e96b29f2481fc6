"""Numbers of runs over their steps and time: evaluations of all seeds, intervals, scores, and what runs measure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_dist.runs import aggregate, metrics

Records = Sequence[Mapping[str, Any]]
# Of what actors do, and of the learner's time.
SHARES = {"share_environment": "environment", "share_inference": "inference", "share_transfer": "transfer"}
LEARNING = "share_learning"
# Runs of equal steps end within an unroll of each other.
AN_UNROLL_MORE = 1.01


class Gauge(NamedTuple):
    """Numbers of training records in one panel.

    Attributes:
        title: what they are, with their unit.
        names: of the records' numbers; the first is drawn thick, the others thin.
        note: says what thick and thin lines are, "" where there is one only.
    """

    title: str
    names: tuple[str, ...]
    note: str = ""


GAUGES = {
    "speed": Gauge("Environment steps per second, all seeds", ("steps_per_second",)),
    "lag": Gauge(
        "Policy lag (versions)", ("policy_lag_p50", "policy_lag_p99"), "line: median; thin: 99th percentile of rows"
    ),
    "inserts": Gauge("Samples per insert", ("samples_per_insert",)),
}


class Curve(NamedTuple):
    """Evaluations of one setting, over all its seeds.

    Attributes:
        env_steps: f64 [n], rising.
        wall_s: f64 [n], mean over programs.
        returns: f64 [n, S], one mean return per seed; NaN where a seed was not evaluated.
    """

    env_steps: np.ndarray
    wall_s: np.ndarray
    returns: np.ndarray

    @property
    def compiling_s(self) -> float:
        """Seconds before training, up to the evaluation at step 0; 0 where there was none."""
        return float(self.wall_s[0]) if len(self.env_steps) and self.env_steps[0] == 0 else 0.0


class Score(NamedTuple):
    """Returns f64 [S] of each seed, interquartile mean, and the ends of its 95 % interval; NaN where there is none."""

    returns: np.ndarray
    centre: float
    low: float
    high: float


def curve(programs: Sequence[Records]) -> Curve:
    """Joins the evaluations of one setting.

    Args:
        programs: the records of each program that trained it, with one seed or several.

    Returns:
        All seeds side by side, at every step at which any of them was evaluated.
    """
    tables = [_table(records) for records in programs]
    steps = np.unique(np.concatenate([table.env_steps for table in tables])) if tables else np.empty(0)
    wall_s = np.full((len(steps), len(tables)), np.nan)
    columns = []
    for i, table in enumerate(tables):
        rows = np.searchsorted(steps, table.env_steps)
        returns = np.full((len(steps), table.returns.shape[1]), np.nan)
        returns[rows], wall_s[rows, i] = table.returns, table.wall_s
        columns.append(returns)
    returns = np.concatenate(columns, axis=1) if columns else np.empty((0, 1))
    weights = np.isfinite(wall_s)
    mean_wall_s = np.where(weights, wall_s, 0.0).sum(1) / np.maximum(weights.sum(1), 1)
    return Curve(steps, mean_wall_s, returns)


def band(returns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Summarises the seeds at every point.

    Args:
        returns: f64 [n, S].

    Returns:
        Interquartile mean and the two ends of its 95 % interval, f64 [n] each; NaN where a seed is missing.
    """
    centre = aggregate.interquartile_mean(returns[..., None])
    low, high = np.array([aggregate.interval(row) for row in returns], np.float64).reshape(-1, 2).T
    return centre, low, high


def series(records: Records, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Collects numbers of training records.

    Returns:
        Environment steps f64 [n] and the numbers f64 [n, names], without records that hold none of them.
    """
    steps = metrics.column(records, "train", "env_steps")
    values = np.stack([metrics.column(records, "train", name, ()) for name in names], axis=-1)
    known = np.isfinite(values).any(-1)
    return steps[known], values[known]


def has_shares(records: Records) -> bool:
    """Says whether a run records where its time goes."""
    return any(LEARNING in record for record in records)


def common_steps(curve: Curve) -> float:
    """Returns the steps of the seed whose last evaluation came first, 0 where a seed has none."""
    known = np.isfinite(curve.returns)
    if not known.any(0).all():
        return 0.0
    return float(curve.env_steps[_last_rows(known)].min())


def at_steps(curve: Curve, steps: float) -> Score:
    """Returns the score of the seeds' last evaluations up to so many steps, or an unroll more."""
    return _last(curve, curve.env_steps <= AN_UNROLL_MORE * steps)


def at_seconds(curve: Curve, seconds: float) -> Score:
    """Returns the score of the seeds' last evaluations within so many seconds of wall time."""
    return _last(curve, curve.wall_s <= seconds)


def _last(curve: Curve, reached: np.ndarray) -> Score:
    known = np.isfinite(curve.returns) & reached[:, None]
    if not known.any(0).all():
        return Score(np.empty(0), np.nan, np.nan, np.nan)
    returns = curve.returns[_last_rows(known), np.arange(known.shape[1])]
    centre, low, high = (float(x[0]) for x in band(returns[None]))
    return Score(returns, centre, low, high)


def _last_rows(known: np.ndarray) -> np.ndarray:
    """Returns the last row of each column that is known; each column has one."""
    return len(known) - 1 - known[::-1].argmax(0)


def _table(records: Records) -> Curve:
    """Collects the evaluations of one program; of several at one step the last counts."""
    steps = metrics.column(records, "eval", "env_steps")
    wall_s = metrics.column(records, "eval", "wall_s")
    returns = metrics.column(records, "eval", "eval_return_per_seed")
    if returns.ndim == 1:
        returns = metrics.column(records, "eval", "eval_return")[:, None]
    steps, last = np.unique(steps[::-1], return_index=True)
    return Curve(steps, wall_s[::-1][last], returns[::-1][last])
