"""Prioritised replay beside flashbax, and ways to keep sums of priorities: `benchmarks/replay.py [--only=cycle|sums]`.

Run it by the interpreter of the peer: `benchmarks/setup_peers.sh .venv-peers` makes `.venv-peers/flashbax`. In one
process both sides take turns; each measures cycles of one compiled loop: add an unroll, draw a batch, set its
priorities. Prints medians per cycle, and the ratio of the pairs with its 95 % interval.
"""

import argparse
import functools
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from jaxrl_dist import replay, types  # noqa: E402
from jaxrl_dist.replay import ring, sum_tree  # noqa: E402

COLUMNS, ROWS, LENGTH = 16, 16, 4  # environments, rows of an unroll, rows of a window
EXPONENT = 0.6


def rows(first: Any) -> types.Unroll:
    """An unroll [ROWS + 1, COLUMNS] of small observations."""
    time_ = jnp.broadcast_to((first + jnp.arange(ROWS + 1, dtype=jnp.float32))[:, None], (ROWS + 1, COLUMNS))
    timestep = types.TimeStep(jnp.ones(time_.shape, jnp.int8), time_, time_, jnp.stack([time_] * 4, -1), ())
    return types.Unroll(types.Step(timestep, time_.astype(jnp.int32), (), time_.astype(jnp.int32)), ())


def ours(capacity: int, batch: int) -> tuple[Any, Callable[..., Any]]:
    """Returns a full ring and one cycle of it."""
    settings = replay.PrioritisedConfig(capacity=capacity, min_size=1, batch_size=batch, priority_exponent=EXPONENT)
    windows = replay.Windows(0, 1, LENGTH - 1, lambda size: ())
    sizes = {"num_columns": COLUMNS, "num_devices": 1, "unroll_length": ROWS}
    shard = ring.make(settings, windows, axis=types.LOCAL, **sizes)
    spec = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), rows(jnp.float32(0)).steps)

    def cycle(state: Any, key: Any, first: Any) -> Any:
        state = shard.add(state, rows(first), jnp.arange(COLUMNS))
        sample = shard.sample(state, key, jnp.float32(0))
        errors = jnp.abs(jnp.sin(sample.sequences.steps.timestep.observation.sum((0, 2)))) + sample.weights
        return shard.update(state, sample.indices, errors), errors.sum()

    return shard.init(spec, ()), cycle


def theirs(capacity: int, batch: int) -> tuple[Any, Callable[..., Any]]:
    """Returns flashbax's prioritised trajectory buffer and one cycle of it."""
    import flashbax

    buffer = flashbax.make_prioritised_trajectory_buffer(
        add_batch_size=COLUMNS,
        sample_batch_size=batch,
        sample_sequence_length=LENGTH,
        period=1,
        min_length_time_axis=LENGTH,
        max_length_time_axis=capacity // COLUMNS,
        priority_exponent=EXPONENT,
        device=jax.default_backend(),
    )
    one = jax.tree.map(lambda x: x[0, 0], rows(jnp.float32(0)).steps)

    def cycle(state: Any, key: Any, first: Any) -> Any:
        steps = jax.tree.map(lambda x: x[:-1].swapaxes(0, 1), rows(first).steps)
        state = buffer.add(state, steps)
        sample = buffer.sample(state, key)
        weights = 1 / jnp.maximum(sample.probabilities, 1e-30) ** 0.4
        observation = sample.experience.timestep.observation.sum((1, 2))
        errors = jnp.abs(jnp.sin(observation)) + weights / weights.max()
        return buffer.set_priorities(state, sample.indices, errors), errors.sum()

    return buffer.init(one), cycle


def _levels(fan_out: int) -> dict[str, Callable[..., Any]]:
    """Wide trees of another width."""

    def init(size: int) -> Any:
        sum_tree.FAN_OUT = fan_out
        tree = sum_tree.init(1, size)
        return sum_tree.put_blocks(tree, size, jnp.zeros(1, jnp.int32), [(jnp.zeros(1, jnp.int32), _leaves(size))])

    def put(state: Any, item: Any, value: Any) -> Any:
        sum_tree.FAN_OUT = fan_out
        return sum_tree.put(state, jnp.zeros_like(item), item, value)

    def draw(state: Any, share: Any) -> Any:
        sum_tree.FAN_OUT = fan_out
        return sum_tree.draw(state, share)[1]

    return {"init": init, "put": put, "draw": draw}


def _prefix() -> dict[str, Callable[..., Any]]:
    """No sums at all; each draw adds up everything."""

    def draw(state: Any, share: Any) -> Any:
        sums = jnp.cumsum(state)
        found = jnp.searchsorted(sums, share * sums[-1], side="right").astype(jnp.int32)
        return jnp.minimum(found, len(state) - 1)

    return {"init": lambda size: _leaves(size)[0], "put": lambda s, i, v: s.at[i].set(v), "draw": draw}


def _blocks() -> dict[str, Callable[..., Any]]:
    """Sums of blocks of √n items."""

    def width(state: Any) -> int:
        return 2 ** (round(np.log2(state[0].size)) // 2)

    def init(size: int) -> Any:
        leaves = _leaves(size)[0]
        return leaves, leaves.reshape(-1, width((leaves,))).sum(-1)

    def put(state: Any, item: Any, value: Any) -> Any:
        leaves = state[0].at[item].set(value)
        block = item // width(state)
        return leaves, state[1].at[block].set(leaves.reshape(-1, width(state))[block].sum(-1))

    def draw(state: Any, share: Any) -> Any:
        sums = jnp.cumsum(state[1])
        target = share * sums[-1]
        block = jnp.minimum(jnp.searchsorted(sums, target, side="right"), len(sums) - 1)
        inner = jnp.cumsum(state[0].reshape(-1, width(state))[block], -1)
        rest = target - (sums - state[1])[block]
        return (block * width(state) + jnp.minimum((inner <= rest[:, None]).sum(-1), width(state) - 1)).astype(
            jnp.int32
        )

    return {"init": init, "put": put, "draw": draw}


def _leaves(size: int) -> Any:
    return jax.random.uniform(jax.random.key(0), (1, size)) + 0.01


def structure(kind: dict[str, Callable[..., Any]], capacity: int, batch: int) -> tuple[Any, Callable[..., Any]]:
    """Returns sums of priorities and one draw and setting of a batch."""

    def cycle(state: Any, key: Any, first: Any) -> Any:
        item = kind["draw"](state, sum_tree.stratified(key, batch))
        value = jnp.abs(jnp.sin(item + first)) + 0.01
        return kind["put"](state, item, value), value.sum()

    return jax.jit(kind["init"], static_argnums=0)(capacity), cycle


class Side:
    """One contender: runs cycles in one program and times them."""

    def __init__(self, state: Any, cycle: Callable[..., Any], count: int) -> None:
        @functools.partial(jax.jit, donate_argnums=0)
        def loop(state: Any, key: Any) -> Any:
            def body(i: Any, loop: Any) -> Any:
                state, total = loop
                state, value = cycle(state, jax.random.fold_in(key, i), i.astype(jnp.float32))
                return state, total + value

            return jax.lax.fori_loop(0, count, body, (state, jnp.float32(0)))

        self._loop, self._count, self._round = loop, count, 0
        self._state = jax.tree.map(jnp.copy, state)

    def run(self) -> float:
        """Returns seconds per cycle."""
        self._round += 1
        started_s = time.perf_counter()
        self._state, total = self._loop(self._state, jax.random.key(self._round))
        assert np.isfinite(float(total))
        return (time.perf_counter() - started_s) / self._count


def compare(sides: dict[str, Side], rounds: int) -> dict[str, Any]:
    """Lets the sides take turns; the first is the one that ratios are of."""
    for side in sides.values():
        side.run()
    seconds = {name: [] for name in sides}
    for i in range(rounds):
        for name in list(sides)[:: 1 if i % 2 else -1]:
            seconds[name].append(sides[name].run())
    names = list(sides)
    result: dict[str, Any] = {f"{name}_us": round(1e6 * float(np.median(seconds[name])), 1) for name in names}
    for other in names[1:]:
        ratios = np.asarray(seconds[other]) / np.asarray(seconds[names[0]])
        draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
        low, high = np.percentile(np.median(draws, 1), [2.5, 97.5])
        result[f"{other}/{names[0]}"] = [round(float(x), 2) for x in (np.median(ratios), low, high)]
    return result


def main() -> None:
    """Measures and prints one JSON line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--only", choices=("cycle", "sums"))
    parser.add_argument("--capacities", type=int, nargs="+", default=[2**14, 2**17, 2**20, 2**21])
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 256, 512, 1024])
    options = parser.parse_args()
    kinds = {"tree of 16": _levels(16), "tree of 8": _levels(8), "tree of 32": _levels(32), "tree of 2": _levels(2)}
    kinds |= {"block sums": _blocks(), "prefix sums": _prefix()}
    for capacity in options.capacities:
        for batch in options.batches:
            case = {"device": jax.devices()[0].device_kind, "capacity": capacity, "batch": batch}
            if options.only != "sums":
                pair = {"ours": ours(capacity, batch), "flashbax": theirs(capacity, batch)}
                sides = {name: Side(*side, options.cycles) for name, side in pair.items()}
                print(json.dumps({"what": "cycle", **case, **compare(sides, options.rounds)}), flush=True)
            if options.only != "cycle":
                sides = {n: Side(*structure(k, capacity, batch), options.cycles) for n, k in kinds.items()}
                print(json.dumps({"what": "sums", **case, **compare(sides, options.rounds)}), flush=True)


if __name__ == "__main__":
    main()
