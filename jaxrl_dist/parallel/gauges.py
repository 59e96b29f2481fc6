"""What Sebulba measures of itself: policy lag, queue depth, bytes across, and where the time goes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_dist.parallel import channels, crowd, server

LARGEST_LAG = 255
_BUSY = ("environment_s", "inference_s", "transfer_s")


class Gauges:
    """Sums since they were last taken."""

    def __init__(self) -> None:
        """Starts at zero."""
        self._sums: dict[str, Any] = {}
        self._bytes = {"to_learner": 0, "to_actors": 0}
        self.take()

    def add_items(self, items: Sequence[channels.Item], iteration: int, depth: int) -> None:
        """Counts what the learner took: `iteration` is the version that it is about to improve."""
        self._sums["queue_depth"] += depth
        self._sums["iterations"] += 1
        for item in items:
            self._sums["lag_counts"][min(iteration - item.version, LARGEST_LAG)] += 1
            for name in _BUSY:
                self._sums[name] += item.seconds.get(name, 0.0)

    def add_seconds(self, waited: float, learned: float) -> None:
        """Counts the learner's own time: waiting for unrolls, and learning from them."""
        self._sums["learner_wait_s"] += waited
        self._sums["learning_s"] += learned

    def take(self, to_learner: channels.Transfers | None = None, to_actors: channels.Transfers | None = None) -> Any:
        """Returns the sums as arrays [1, ...] by name, with the bytes since the last call, and begins anew."""
        for name, transfers in (("to_learner", to_learner), ("to_actors", to_actors)):
            if transfers is not None:
                self._sums[f"bytes_{name}"] = transfers.num_bytes - self._bytes[name]
                self._bytes[name] = transfers.num_bytes
        taken = {name: np.asarray([value], np.float64) for name, value in self._sums.items()}
        zeros = dict.fromkeys(("queue_depth", "iterations", "learner_wait_s", "learning_s", *_BUSY), 0.0)
        counts = np.zeros(LARGEST_LAG + 1)
        self._sums = {**zeros, "lag_counts": counts, "bytes_to_learner": 0, "bytes_to_actors": 0}
        return taken


def report(sums: Mapping[str, np.ndarray], seconds: float) -> dict[str, Any]:
    """Says what a training record holds of the layout.

    Args:
        sums: of `Gauges.take` under `layout/`.
        seconds: of training that they cover.

    Returns:
        Policy lag in versions; depth in unrolls; bytes per second; shares of the time in which actors do not wait, in
        environment, inference and transfer; the share of the learner's time in which it learns, and does not wait;
        `bottleneck`, what the others wait for; and where observations are kept on the host, how many times smaller.
    """
    values = {name.removeprefix("layout/"): np.asarray(x)[0] for name, x in sums.items() if name.startswith("layout/")}
    busy = sum(values[name] for name in _BUSY) or 1.0
    acting = {name.removesuffix("_s"): float(values[name] / busy) for name in _BUSY}
    learning = float(values["learning_s"] / ((values["learning_s"] + values["learner_wait_s"]) or 1.0))
    return {
        "policy_lag_p50": lag_quantile(values["lag_counts"], 0.5),
        "policy_lag_p99": lag_quantile(values["lag_counts"], 0.99),
        "queue_depth": float(values["queue_depth"] / max(values["iterations"], 1.0)),
        "bytes_per_second_to_learner": float(values["bytes_to_learner"] / seconds),
        "bytes_per_second_to_actors": float(values["bytes_to_actors"] / seconds),
        **{f"share_{name}": share for name, share in acting.items()},
        "share_learning": learning,
        **_compression(values),
        "bottleneck": "learning" if learning > 0.5 else max(acting, key=lambda name: acting[name]),
    }


def gradients(events: Sequence[crowd.Event]) -> dict[str, Any]:
    """Returns what became of gradients as sums [1, ...] in NumPy."""
    verdicts = [event.verdict for event in events]
    ages = np.minimum([int(one.age) for one in verdicts], LARGEST_LAG).astype(int)
    counts = np.bincount(ages, minlength=LARGEST_LAG + 1)
    sums = {name: np.asarray([sum(getattr(one, name) for one in verdicts)]) for name in server.Verdict._fields[1:]}
    return {"lag_counts": counts[None].astype(np.float64), "gradients": np.asarray([len(events)]), **sums}


def report_gradients(sums: Mapping[str, np.ndarray], seconds: float) -> dict[str, Any]:
    """Says what a training record holds of the asynchronous layout.

    Args:
        sums: of `gradients` under `layout/`.
        seconds: of training that they cover.

    Returns:
        Age of gradients in updates; how many there were, and how many were dropped and why.
    """
    values = {name.removeprefix("layout/"): np.asarray(x)[0] for name, x in sums.items() if name.startswith("layout/")}
    return {
        "policy_lag_p50": lag_quantile(values["lag_counts"], 0.5),
        "policy_lag_p99": lag_quantile(values["lag_counts"], 0.99),
        "gradients": int(values["gradients"]),
        "gradients_dropped_stale": int(values["stale"]),
        "gradients_dropped_outlier": int(values["outlier"]),
        "gradients_dropped_broken": int(values["broken"]),
        "updates_reverted": int(values["reverted"]),
    }


def _compression(values: Mapping[str, Any]) -> dict[str, float]:
    packed = values.get("packed_bytes", 0.0)
    return {"replay_compression": float(values["unpacked_bytes"] / packed)} if packed else {}


def lag_quantile(counts: np.ndarray, share: float) -> int:
    """Returns the smallest lag that at least a share of all rows do not exceed."""
    cumulative = np.cumsum(counts)
    return int(np.searchsorted(cumulative, share * cumulative[-1])) if cumulative[-1] else 0
