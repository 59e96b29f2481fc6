"""Measurements of layouts with threads: policy lag, queues, bytes across, drops, and where the time goes."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_dist import parallel, processes
from jaxrl_dist.parallel import unroll
from jaxrl_dist.parallel.sebulba import queue, tiers
from jaxrl_dist.parallel.sebulba.actors import Actors

LARGEST_LAG = 255
_PACKED = "bytes_from_players"
_BUSY = ("environment_s", "inference_s", "transfer_s")
_SUMS = ("queue_depth", "iterations", "unplayed_steps", "learner_wait_s", "learning_s", *_BUSY)


class Measured:
    """Sums of iterations; the learner's own stay on its devices until they are asked for."""

    def __init__(self, names: Sequence[str], actors: Actors) -> None:
        """Starts at zero; `names` are those of the learner's metrics."""
        self._names, self._num_actors = names, actors.num_actors
        self._unroll_steps = actors.width * actors.parts.config.unroll_length
        self._sums, self._lags = dict.fromkeys(_SUMS, 0.0), np.zeros(LARGEST_LAG + 1)
        self._episodes = unroll.no_episodes()
        self._learned: list[Any] = []

    def add(self, iteration: int, unrolled: Sequence[queue.Unrolled], learned: tiers.Learned, **own: float) -> None:
        """Adds an iteration.

        Args:
            iteration: its index, which is also the version that it improved.
            unrolled: the unrolls that the learner took from the queue.
            learned: the results of learning.
            **own: `queue_depth` in unrolls, and seconds: `learner_wait_s` for unrolls, `learning_s`.
        """
        own |= {"iterations": 1, "unplayed_steps": (self._num_actors - len(unrolled)) * self._unroll_steps}
        own |= {name: sum(one.seconds.get(name, 0.0) for one in unrolled) for name in _BUSY}
        for name, value in own.items():
            self._sums[name] += value
        for one in unrolled:
            self._lags[min(iteration - one.version, LARGEST_LAG)] += 1
            self._episodes = jax.tree.map(np.add, self._episodes, one.episodes)
        values = learned.updates, {name: learned.metrics[name] for name in self._names}
        self._learned.append(jax.tree.map(lambda x: x.addressable_data(0), values))

    def metrics(self, counts: Mapping[str, int]) -> parallel.Metrics:
        """Returns the sums in NumPy.

        Args:
            counts: of these iterations: `bytes_to_learner`, `bytes_to_actors`, `dropped_unrolls`, and of a fleet
                `bytes_from_players`.
        """
        nothing: Any = np.zeros(1, np.int32), {name: np.zeros(1, np.float32) for name in self._names}
        updates, learned = jax.tree.map(lambda *x: np.sum(x, 0), nothing, *jax.device_get(self._learned))
        sums = {**self._sums, **counts}
        # Unrolls that came too late were played all the same.
        sums["unplayed_steps"] -= counts.get("dropped_unrolls", 0) * self._unroll_steps
        own: dict[str, Any] = {name: np.asarray([value], np.float64) for name, value in sums.items()}
        return parallel.Metrics(self._episodes, updates, learned, own | {"lag_counts": self._lags[None]})


def over_processes(sums: parallel.Metrics) -> parallel.Metrics:
    """Returns the sums of all processes, each of which must call it; the learner's own are of all already.

    Args:
        sums: of this process, in NumPy.
    """
    if processes.count() == 1:
        return sums
    own = sums.episodes, {name: value for name, value in sums.layout.items() if name != "iterations"}
    leaves, structure = jax.tree.flatten(own)
    totals = processes.exchange([x.tolist() for x in leaves], _total)
    episodes, layout = jax.tree.unflatten(
        structure, [np.asarray(x, old.dtype) for x, old in zip(totals, leaves, strict=True)]
    )
    return sums._replace(episodes=episodes, layout=sums.layout | layout)


def _total(said: list[list[Any]]) -> list[Any]:
    """Returns the sum over processes of each of their leaves."""
    return [np.sum([np.asarray(x) for x in leaf], 0).tolist() for leaf in zip(*said, strict=True)]


def report(sums: Mapping[str, np.ndarray], recent: Mapping[str, np.ndarray], seconds: float) -> dict[str, Any]:
    """Makes the part of a training record about the layout.

    Args:
        sums: of `Measured.metrics` under `layout/`.
        recent: likewise, of a second or more.
        seconds: of wall time that `recent` covers.

    Returns:
        Policy lag in versions; the number of late unrolls; depth of the queue in unrolls; bytes per second, of a fleet
        those of its packed unrolls, too; the shares of environment, inference and transfer in the time that actors do
        not wait; the share of its time in which the learner learns; `bottleneck`, the part that the others wait for;
        and, if observations are kept on the host, the ratio of their compression.
    """
    values = own(recent)
    busy = sum(values[name] for name in _BUSY) or 1.0
    acting = {name.removesuffix("_s"): float(values[name] / busy) for name in _BUSY}
    packed = values.get("packed_bytes", 0.0)
    learning = float(values["learning_s"] / ((values["learning_s"] + values["learner_wait_s"]) or 1.0))
    return {
        **_lag_and_drops(own(sums)),
        "queue_depth": float(values["queue_depth"] / max(values["iterations"], 1.0)),
        "bytes_per_second_to_learner": float(values["bytes_to_learner"] / seconds),
        "bytes_per_second_to_actors": float(values["bytes_to_actors"] / seconds),
        **({"bytes_per_second_from_players": float(values[_PACKED] / seconds)} if _PACKED in values else {}),
        **{f"share_{name}": share for name, share in acting.items()},
        "share_learning": learning,
        **({"replay_compression": float(values["unpacked_bytes"] / packed)} if packed else {}),
        "bottleneck": "learning" if learning > 0.5 else max(acting, key=lambda name: acting[name]),
    }


def summary(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Makes the part of a run's summary about the layout; versions are the first one and one per iteration."""
    values = own(sums)
    return {**_lag_and_drops(values), "param_versions_published": int(values.get("iterations", 0)) + 1}


def own(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name.removeprefix("layout/"): np.asarray(x)[0] for name, x in sums.items() if name.startswith("layout/")}


def lag(values: Mapping[str, Any]) -> dict[str, int]:
    counts = values.get("lag_counts", np.zeros(1))
    return {"policy_lag_p50": lag_quantile(counts, 0.5), "policy_lag_p99": lag_quantile(counts, 0.99)}


def _lag_and_drops(values: Mapping[str, Any]) -> dict[str, int]:
    return {**lag(values), "dropped_unrolls": int(values.get("dropped_unrolls", 0))}


def lag_quantile(counts: np.ndarray, share: float) -> int:
    """Returns the smallest lag that at least this share of all rows does not exceed."""
    cumulative = np.cumsum(counts)
    return int(np.searchsorted(cumulative, share * cumulative[-1])) if cumulative[-1] else 0
