"""Measures the gradients of the asynchronous layout."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_dist import parallel
from jaxrl_dist.parallel import unroll
from jaxrl_dist.parallel.async_gradient import dispatcher, server
from jaxrl_dist.parallel.sebulba import metrics

LARGEST_AGE = 4_095


def gradients(events: Sequence[dispatcher.Event], rollbacks: int, names: Sequence[str]) -> parallel.Metrics:
    """Sums asynchronous events, in NumPy.

    Args:
        events: in the order in which they came.
        rollbacks: how often the server went back to an earlier version.
        names: names of the learner's metrics, sorted.
    """
    none = unroll.no_episodes()
    # A gradient of no rows, sent while a replay fills or before an episode ends, has no verdict to count.
    verdicts = [event.verdict for event in events if any(event.verdict[1:])]
    total: Any = np.zeros(len(none) + len(names))
    for event in events:
        total[: len(event.sums)] += event.sums
    episodes: Any = [np.asarray([x], like.dtype) for x, like in zip(total, none, strict=False)]
    learned: Any = {name: np.asarray([x], np.float32) for name, x in zip(names, total[len(none) :], strict=True)}
    updates: Any = np.asarray([sum(bool(one.applied) for one in verdicts)], np.int32)
    # A gradient of parameters that were rolled back has no age.
    ages = np.minimum([int(one.age) for one in verdicts if one.age >= 0], LARGEST_AGE).astype(int)
    counts = np.bincount(ages, minlength=LARGEST_AGE + 1)[None].astype(np.float64)
    flags: Any = {
        name: np.asarray([sum(getattr(one, name) for one in verdicts)]) for name in server.Verdict._fields[1:]
    }
    own = {
        "lag_counts": counts,
        "gradients": np.asarray([len(verdicts)]),
        "rollbacks": np.asarray([rollbacks]),
        **flags,
    }
    return parallel.Metrics(unroll.EpisodeSums(*episodes), updates, learned, own)


def report(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Makes the part of a training record about gradients.

    Args:
        sums: of the measurements that `gradients` makes, named `layout/...`.

    Returns:
        The age of gradients in updates; the number of gradients, and of those dropped for each reason; the number of
        versions that were made.
    """
    values = metrics.own(sums)
    return {
        **metrics.lag(values),
        "gradients": int(values.get("gradients", 0)),
        "gradients_dropped_stale": int(values.get("stale", 0)),
        "gradients_dropped_outlier": int(values.get("outlier", 0)),
        "gradients_dropped_broken": int(values.get("broken", 0)),
        "updates_reverted": int(values.get("reverted", 0)),
        "rollbacks": int(values.get("rollbacks", 0)),
        "param_versions_published": int(values.get("applied", 0)),
    }


def summary(sums: Mapping[str, np.ndarray], num_workers: int) -> dict[str, Any]:
    """Makes the part of a run's summary about gradients; the first version precedes the first gradient."""
    whole = report(sums)
    return whole | {"param_versions_published": whole["param_versions_published"] + 1, "workers": num_workers}
