"""Measurements of layouts with threads: policy lag, queues, bytes across, drops, and where the time goes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_dist.parallel.sebulba import queue

LARGEST_LAG = 255
_BUSY = ("environment_s", "inference_s", "transfer_s")
_SUMS = ("queue_depth", "iterations", "unplayed_steps", "learner_wait_s", "learning_s", *_BUSY)


class Gauges:
    """Sums since they were last taken."""

    def __init__(self, num_actors: int, unroll_steps: int) -> None:
        """Starts at zero; an unroll of each actor is due in every iteration, and has so many environment steps."""
        self._num_actors, self._unroll_steps = num_actors, unroll_steps
        self._counts: dict[str, int] = {}
        self._sums: dict[str, Any] = {}
        self.take({})

    def add_items(self, items: Sequence[queue.Item], iteration: int, depth: int) -> None:
        """Counts what the learner took: `iteration` is the version that it is about to improve."""
        self._sums["queue_depth"] += depth
        self._sums["iterations"] += 1
        self._sums["unplayed_steps"] += (self._num_actors - len(items)) * self._unroll_steps
        for item in items:
            self._sums["lag_counts"][min(iteration - item.version, LARGEST_LAG)] += 1
            for name in _BUSY:
                self._sums[name] += item.seconds.get(name, 0.0)

    def add_seconds(self, waited: float, learned: float) -> None:
        """Counts the learner's own time: waiting for unrolls, and learning from them."""
        self._sums["learner_wait_s"] += waited
        self._sums["learning_s"] += learned

    def take(self, counts: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Returns the sums as arrays [1, ...] by name, and by how much counts grew since the last call; begins anew.

        Args:
            counts: since the start: `bytes_to_learner`, `bytes_to_actors` and `dropped_unrolls`.
        """
        grown = {name: count - self._counts.get(name, 0) for name, count in counts.items()}
        self._counts = dict(counts)
        taken = {name: np.asarray([value], np.float64) for name, value in (self._sums | grown).items()}
        if "dropped_unrolls" in taken:
            # What came too late was played all the same.
            taken["unplayed_steps"] -= taken["dropped_unrolls"] * self._unroll_steps
        self._sums = {**dict.fromkeys(_SUMS, 0.0), "lag_counts": np.zeros(LARGEST_LAG + 1)}
        return taken


def report(sums: Mapping[str, np.ndarray], seconds: float) -> dict[str, Any]:
    """Says what a training record holds of the layout.

    Args:
        sums: of `Gauges.take` under `layout/`.
        seconds: of training that they cover.

    Returns:
        Policy lag in versions; unrolls that came too late; depth in unrolls; bytes per second; shares of the time in
        which actors do not wait, in environment, inference and transfer; the share of the learner's time in which it
        learns, and does not wait; `bottleneck`, what the others wait for; and where observations are kept on the host,
        how many times smaller.
    """
    values = own(sums)
    busy = sum(values[name] for name in _BUSY) or 1.0
    acting = {name.removesuffix("_s"): float(values[name] / busy) for name in _BUSY}
    learning = float(values["learning_s"] / ((values["learning_s"] + values["learner_wait_s"]) or 1.0))
    return {
        **_lag_and_drops(values),
        "queue_depth": float(values["queue_depth"] / max(values["iterations"], 1.0)),
        "bytes_per_second_to_learner": float(values["bytes_to_learner"] / seconds),
        "bytes_per_second_to_actors": float(values["bytes_to_actors"] / seconds),
        **{f"share_{name}": share for name, share in acting.items()},
        "share_learning": learning,
        **_compression(values),
        "bottleneck": "learning" if learning > 0.5 else max(acting, key=lambda name: acting[name]),
    }


def summary(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Says what the summary of a run holds of the layout; every iteration publishes a version, after the first one."""
    values = own(sums)
    return {**_lag_and_drops(values), "param_versions_published": int(values.get("iterations", 0)) + 1}


def own(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name.removeprefix("layout/"): np.asarray(x)[0] for name, x in sums.items() if name.startswith("layout/")}


def lag(values: Mapping[str, Any]) -> dict[str, int]:
    counts = values.get("lag_counts", np.zeros(1))
    return {"policy_lag_p50": lag_quantile(counts, 0.5), "policy_lag_p99": lag_quantile(counts, 0.99)}


def _lag_and_drops(values: Mapping[str, Any]) -> dict[str, int]:
    return {**lag(values), "dropped_unrolls": int(values.get("dropped_unrolls", 0))}


def _compression(values: Mapping[str, Any]) -> dict[str, float]:
    packed = values.get("packed_bytes", 0.0)
    return {"replay_compression": float(values["unpacked_bytes"] / packed)} if packed else {}


def lag_quantile(counts: np.ndarray, share: float) -> int:
    """Returns the smallest lag that at least a share of all rows do not exceed."""
    cumulative = np.cumsum(counts)
    return int(np.searchsorted(cumulative, share * cumulative[-1])) if cumulative[-1] else 0
