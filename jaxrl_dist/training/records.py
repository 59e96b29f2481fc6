"""The progress of a run, which every checkpoint holds, and the records that are made of it."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_dist.runs import aggregate, files
from jaxrl_dist.settings import sweep
from jaxrl_dist.training import assemble

_RECENT_S = 1.0
# Numbers of iterations cross to the device in 32 bits.
_ITERATIONS = files.Kind("a whole number from 0 to 2^31", lambda x: files.COUNT.holds(x) and x < 2**31)
_SUMS = files.Kind("an object of lists", lambda x: isinstance(x, dict) and all(isinstance(v, list) for v in x.values()))
_PENDING = {"sums": _SUMS, "seconds": files.AMOUNT, "iterations": _ITERATIONS}
# Of a `Progress` in the meta of a checkpoint.
META: Mapping[str, files.Kind] = {
    "iteration": _ITERATIONS,
    # Runs that are to go on until somebody stops them have more iterations ahead than they can count.
    "total": files.COUNT,
    "evaluated": files.Kind("a whole number from -1", lambda x: x == -1 or _ITERATIONS.holds(x)),
    **dict.fromkeys(("wall_s", "running_s", "train_s", "compile_s"), files.AMOUNT),
    **dict.fromkeys(("valid_steps", "learner_steps"), files.COUNT),
    **dict.fromkeys(("best_return", "seconds_to_best", "last_return"), files.NUMBER),
    "sessions": files.Kind(
        "pairs of whole numbers, the first from 0",
        lambda x: files.list_of(files.list_of(files.COUNT, 2)).holds(x) and [pair[0] for pair in x[:1]] == [0],
    ),
    "layout_sums": _SUMS,
    "pending": files.Kind(
        "an object of sums, seconds and iterations",
        lambda x: (
            isinstance(x, dict) and x.keys() == _PENDING.keys() and all(_PENDING[k].holds(v) for k, v in x.items())
        ),
    ),
}


@dataclasses.dataclass
class Pending:
    """Sums since the last training record; checkpoints hold them, so that a resumed run makes the same records.

    Attributes:
        sums: f64 [S] each, by path in the layout's metrics; as lists, so that JSON can hold them.
        seconds: wall time, measured as `Progress.running_s`.
        iterations: number of iterations.
    """

    sums: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    iterations: int = 0

    def add(self, sums: Mapping[str, np.ndarray], iterations: int) -> None:
        """Adds a chunk of iterations."""
        self.sums = _plus(self.sums, sums)
        self.iterations += iterations


class Recent:
    """Sums of the last records, at least a second of them: shares of a shorter time depend on the moment.

    Attributes:
        seconds: wall time that the sums cover.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._parts: collections.deque[Pending] = collections.deque()

    def add(self, pending: Pending) -> dict[str, np.ndarray]:
        """Adds the sums of a record, drops those that are too old, and returns the total, f64 [S] by path."""
        self._parts.append(pending)
        self.seconds += pending.seconds
        while len(self._parts) > 1 and self.seconds - self._parts[0].seconds >= _RECENT_S:
            self.seconds -= self._parts.popleft().seconds
        totals: dict[str, list[float]] = {}
        for part in self._parts:
            totals = _plus(totals, {name: np.asarray(values) for name, values in part.sums.items()})
        return {name: np.asarray(values) for name, values in totals.items()}


@dataclasses.dataclass
class Progress:
    """The progress of a run, as kept on the host.

    Attributes:
        iteration: number of finished iterations.
        total: number of iterations at which the last session was to end.
        evaluated: iteration of the last evaluation, −1 before the first, which is at 0.
        wall_s: seconds since `resume.start` began, summed over all sessions, as are the other seconds.
        running_s: seconds after compiling, with evaluations, logs and saving. Rates are per second of this clock, since
            the actors of a layout with threads also play while the learner does something else.
        train_s: seconds in training iterations.
        compile_s: seconds before the first iteration of each session.
        valid_steps: taught rows, summed over seeds.
        learner_steps: updates, summed over seeds.
        best_return: largest mean evaluation return after the first update, None before.
        seconds_to_best: `wall_s` at that evaluation.
        last_return: mean of the last evaluation.
        sessions: for each session, the number of events in the layout's log before it, and its `total`.
        layout_sums: sums of the layout's own measurements over all sessions, as in `Pending.sums`.
        pending: sums for the next training record.
    """

    iteration: int = 0
    total: int = 0
    evaluated: int = -1
    wall_s: float = 0.0
    running_s: float = 0.0
    train_s: float = 0.0
    compile_s: float = 0.0
    valid_steps: int = 0
    learner_steps: int = 0
    best_return: float | None = None
    seconds_to_best: float | None = None
    last_return: float | None = None
    sessions: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    layout_sums: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    pending: Pending = dataclasses.field(default_factory=Pending)

    def run_until(self, wall_s: float) -> None:
        """Moves the clocks on to `wall_s` seconds since the start."""
        passed_s = wall_s - self.wall_s
        self.running_s += passed_s
        self.pending.seconds += passed_s
        self.wall_s = wall_s


def from_meta(meta: Mapping[str, Any]) -> Progress:
    """Rebuilds the progress from `dataclasses.asdict` of it, of the kinds in `META`; other keys are ignored."""
    own = {field.name: meta[field.name] for field in dataclasses.fields(Progress)}
    return Progress(**{**own, "pending": Pending(**meta["pending"])})


def add_chunk(progress: Progress, sums: Mapping[str, np.ndarray], seconds: float, iterations: int) -> None:
    """Counts a chunk of iterations."""
    progress.iteration += iterations
    progress.train_s += seconds
    progress.valid_steps += round(sums["episodes/valid_steps"].sum())
    progress.learner_steps += round(sums["updates"].sum())
    own = {name: value for name, value in sums.items() if name.startswith("layout/")}
    progress.layout_sums = _plus(progress.layout_sums, own)
    progress.pending.add(sums, iterations)


def by_path(sums: Any) -> dict[str, np.ndarray]:
    """Copies metrics to the host: path -> f64 [S]."""
    leaves = jax.tree_util.tree_flatten_with_path(jax.device_get(sums))[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf, np.float64) for path, leaf in leaves
    }


def env_steps(parts: assemble.Assembly, iteration: int) -> int:
    """Returns the environment steps per seed after an iteration."""
    return iteration * parts.layout.rows_per_iteration


def num_events(parts: assemble.Assembly, state: Any) -> int:
    """Returns the number of events of a run up to a saved state, 0 for a layout that keeps no log."""
    return parts.layout.events.count(state) if parts.layout.events is not None else 0


def counters(parts: assemble.Assembly, progress: Progress) -> dict[str, Any]:
    """Returns the steps and updates of the run so far, per seed."""
    steps, members = env_steps(parts, progress.iteration), sweep.num_members(parts.settings)
    return {
        "env_steps": steps,
        "frames": steps * parts.environment.spec.frames_per_step,
        "valid_steps": progress.valid_steps // members,
        "learner_steps": progress.learner_steps // members,
        "wall_s": progress.wall_s,
    }


def steps_per_second(
    parts: assemble.Assembly, iterations: int, sums: Mapping[str, list[float]], seconds: float
) -> float:
    """Returns the environment steps per second of all seeds, without steps that no environment made."""
    steps = env_steps(parts, iterations) * sweep.num_members(parts.settings)
    return (steps - sum(sums.get("layout/unplayed_steps", [0.0]))) / seconds


def training_record(parts: assemble.Assembly, progress: Progress, recent: Recent) -> dict[str, Any]:
    """Makes the record of the pending sums, adds them to `recent`, and clears them."""
    pending, progress.pending = progress.pending, Pending()
    sums = {name: np.asarray(values) for name, values in pending.sums.items()}
    episodes = np.where(sums["episodes/episodes"] > 0, sums["episodes/episodes"], np.nan)
    per_seed = sums["episodes/episode_return"] / episodes
    updates = sums["updates"]
    learned = {
        name.removeprefix("learner/"): float((value / np.maximum(updates, 1)).mean())
        for name, value in sums.items()
        if name.startswith("learner/") and updates.any()
    }
    return {
        "kind": "train",
        **counters(parts, progress),
        "steps_per_second": steps_per_second(parts, pending.iterations, pending.sums, pending.seconds),
        "episodes": int(sums["episodes/episodes"].sum()),
        "episode_return": _nanmean(per_seed),
        "episode_return_per_seed": per_seed.tolist(),
        "episode_length": _nanmean(sums["episodes/episode_length"] / episodes),
        **learned,
        **_replayed(parts, float(sums.get("layout/gradients", updates).mean()), pending.iterations),
        **parts.layout.report(sums, recent.add(pending), recent.seconds),
    }


def evaluation_record(parts: assemble.Assembly, progress: Progress, returns: np.ndarray) -> dict[str, Any]:
    """Makes the record of an evaluation with returns f64 [S, episodes]."""
    return {"kind": "eval", **counters(parts, progress), **summarise_returns(returns)}


def summarise_returns(returns: np.ndarray) -> dict[str, Any]:
    """Summarises evaluation returns f64 [S, episodes].

    The interquartile mean and its interval are over seeds. For one seed, the interval is that of its mean over
    episodes: an interquartile mean of episodes would leave out the worst ones.
    """
    per_seed = returns.mean(1)
    if len(per_seed) > 1:
        low, high = aggregate.interval(per_seed)
    else:
        low, high = aggregate.interval(returns[0], statistic=aggregate.mean)
    return {
        "eval_return": float(returns.mean()),
        "eval_return_per_seed": per_seed.tolist(),
        "eval_return_iqm": float(aggregate.interquartile_mean(per_seed)),
        "eval_return_ci95": [float(low), float(high)],
        "eval_interval_over": "seeds" if len(per_seed) > 1 else "episodes",
        "eval_episodes": int(returns.size),
    }


def _replayed(parts: assemble.Assembly, batches: float, iterations: int) -> dict[str, float]:
    """Returns the measured ratio of taught rows to inserted rows, nothing for a system without a replay.

    Each agent of an environment inserts rows.

    Under async_gradient every gradient counts as a batch, also one that was dropped or summed with others.
    """
    if "replay.batch_size" not in parts.settings.settings:
        return {}
    inserted = env_steps(parts, iterations) * parts.environment.spec.num_agents
    return {"samples_per_insert": batches * parts.settings["replay.batch_size"] * parts.agent.taught / inserted}


def _plus(totals: Mapping[str, list[float]], sums: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    return {**totals, **{name: (np.asarray(totals.get(name, 0.0)) + value).tolist() for name, value in sums.items()}}


def _nanmean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
