"""Times an iteration beside its floor: its matrix products alone and its environment alone.

    python benchmarks/floors.py [--rows=cartpole,dqn] [--rounds=9] [--write]

Products are those of the traced program, each shape in a loop of its own, as many as an iteration has; the environment
is stepped by actions drawn before the loop. A floor leaves out random numbers, the policy's sampling, shuffles, losses,
activations and the optimiser, so no program reaches it. With `--write` the numbers replace those of `floors.jsonl`.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import jax  # noqa: E402
import jax.extend  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import jsonl  # noqa: E402
import rows as pairs  # noqa: E402

from jaxrl_dist import envs  # noqa: E402
from jaxrl_dist.runs import software  # noqa: E402
from jaxrl_dist.training import assemble, runner  # noqa: E402

TABLE = HERE / "floors.jsonl"
ROUND_S = 0.3


class Product(NamedTuple):
    """A matrix product as JAX traces it."""

    left: jax.ShapeDtypeStruct
    right: jax.ShapeDtypeStruct
    dimension_numbers: Any


def rows() -> dict[str, dict[str, Any]]:
    """Returns name -> flags of our side of the pairs that train under anakin on one core or two."""
    chosen = ("cartpole_small_baseline", "cartpole_large_baseline", "minatar_baseline", "minatar_cnn_baseline")
    found = {row.name: row for row in pairs.ROWS}
    flags = {name.removesuffix("_baseline"): found[name].ours for name in (*chosen, "dqn_baseline")}
    return {
        name: dict(one.removeprefix("--").split("=", 1) for one in given if not one.startswith("--chunk_steps"))
        for name, given in flags.items()
    }


def products(jaxpr: Any, updates: float, times: float = 1.0) -> collections.Counter[Product]:
    """Counts the products of an iteration.

    Args:
        jaxpr: the body of the loop over iterations, or a part of it.
        updates: passes of a loop in it whose number the trace does not hold.
        times: passes of the part itself.

    Raises:
        ValueError: a convolution, which is not counted.
    """
    found: collections.Counter[Product] = collections.Counter()
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            left, right = (jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars)
            found[Product(left, right, params["dimension_numbers"])] += times
        elif name == "conv_general_dilated":
            raise ValueError("a convolution is not a product")
        elif name == "cond":
            found.update(max(_branches(params["branches"], updates, times), key=lambda counted: sum(counted.values())))
        else:
            passes = {"scan": params.get("length"), "while": updates}.get(name, 1)
            for inner in jax.extend.core.jaxprs_in_params(params):
                found.update(products(inner, updates, times * passes))
    return found


def _branches(branches: Any, updates: float, times: float) -> Iterator[collections.Counter[Product]]:
    """Counts the products of each branch but of those that are of other devices, which convolve."""
    for branch in branches:
        with contextlib.suppress(ValueError):
            yield products(branch.jaxpr, updates, times)


def iteration(jaxpr: Any) -> Any:
    """Returns the body of the outermost loop whose number of passes the trace does not hold.

    Raises:
        ValueError: there is none.
    """
    for equation in jaxpr.eqns:
        if equation.primitive.name == "while":
            return equation.params["body_jaxpr"].jaxpr
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            try:
                return iteration(inner)
            except ValueError:
                continue
    raise ValueError("no loop over iterations")


def seconds(run: Callable[[], Any], rounds: int) -> float:
    """Returns the median wall seconds of a call that is warm."""
    jax.block_until_ready(run())

    def once(count: int) -> float:
        started_s = time.perf_counter()
        for _ in range(count):
            result = run()
        jax.block_until_ready(result)
        return (time.perf_counter() - started_s) / count

    count = max(1, round(ROUND_S / max(once(3), 1e-6)))
    return statistics.median(once(count) for _ in range(rounds))


def time_products(counted: collections.Counter[Product], rounds: int) -> float:
    """Returns the seconds of products, each in a loop where it follows from the one before."""
    total_s = 0.0
    for product, times in counted.items():
        key = jax.random.key(0)
        left, right = (jax.random.normal(key, x.shape, x.dtype) for x in (product.left, product.right))
        passes = max(1, round(times), round(2e-3 / 1e-6 / max(1, left.size // 1024)))

        def multiply(left: Any, right: Any, product: Product = product) -> Any:
            return jax.lax.dot_general(left, right, product.dimension_numbers)

        def loop(left: Any, right: Any, multiply: Callable[..., Any] = multiply, passes: int = passes) -> Any:
            def body(_: Any, carried: Any) -> Any:
                left, result = carried
                first = (0,) * left.ndim
                # One element of the next product is one of the last, so that no product may leave the loop.
                left = left.at[first].set(1e-3 * result[(0,) * result.ndim])
                return left, multiply(left, right)

            return jax.lax.fori_loop(0, passes, body, (left, multiply(left, right)))[1]

        compiled = jax.jit(loop).lower(left, right).compile()
        total_s += seconds(lambda c=compiled, a=left, b=right: c(a, b), rounds) * times / (passes + 1)
    return total_s


def time_environment(environment: envs.Environment, num_envs: int, length: int, rounds: int) -> float:
    """Returns the seconds of `length` steps of `num_envs` environments on the device."""
    columns = envs.columns(environment)
    key = jax.random.key(0)
    state, _ = columns.reset(key, jnp.arange(num_envs))
    actions = jax.random.randint(key, (length, num_envs), 0, environment.spec.action.num_values)

    @jax.jit
    def play(state: Any) -> Any:
        def step(state: Any, action: Any) -> Any:
            state, timestep = columns.step(state, action)
            # Every leaf is used, as by a learner that keeps its rows.
            return state, sum(x.astype(jnp.float32).sum() for x in jax.tree.leaves(timestep))

        return jax.lax.scan(step, state, actions)

    def run() -> Any:
        nonlocal state
        state, sums = play(state)
        return sums

    return seconds(run, rounds)


def measure(flags: dict[str, Any], rounds: int) -> dict[str, float]:
    """Returns the seconds of an iteration, of its products and of its environment."""
    settings, environment = assemble.resolve({**flags, "layout": "anakin", "layout.num_devices": 1})
    assert isinstance(environment, envs.Environment), environment
    parts = assemble.assemble(settings, environment, jax.devices()[:1])
    layout, keys = parts.layout, assemble.seed_keys(settings)
    traced = jax.make_jaxpr(layout.program)(*layout.run_arguments(layout.template(keys), 0, 10, 100))
    counted = products(iteration(traced.jaxpr), layout.updates_per_iteration)
    state, played = layout.init(keys), 0
    # Until a replay has rows enough.
    warm = 2 + -(-settings.settings.get("replay.min_size", 0) // layout.rows_per_iteration)
    count = max(1, round(0.1 / 1e-3 / max(1, layout.rows_per_iteration // 512)))

    def train(count: int = count) -> Any:
        nonlocal state, played
        state, metrics = layout.run(state, played, count, 10_000_000)
        played += count
        return metrics

    train(warm)
    return {
        "iteration_s": seconds(train, rounds) / count,
        "products_s": time_products(counted, rounds),
        "environment_s": time_environment(
            environment, settings["env.num_envs"], settings["layout.unroll_length"], rounds
        ),
        "rows": layout.rows_per_iteration,
    }


def main(arguments: list[str]) -> int:
    """Measures the rows that are asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="beginnings of rows, with commas between")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="put the numbers into floors.jsonl")
    options = parser.parse_args(arguments)
    chosen = jsonl.chosen(rows(), options.rows)
    if not chosen:
        return 2
    runner.use_cores()
    print("| work | iteration | products | environment | iteration ÷ floor |\n|---|---|---|---|---|")
    for name, flags in chosen.items():
        found = {**measure(flags, options.rounds), "commit": software.commit()}
        print(_line(name, found), flush=True)
        if options.write:
            jsonl.put(TABLE, rows(), name, found)
    return 0


def _line(name: str, found: dict[str, Any]) -> str:
    floor = found["products_s"] + found["environment_s"]
    shown = (f"{found[part] * 1e3:.3g} ms" for part in ("iteration_s", "products_s", "environment_s"))
    return f"| {name} | {' | '.join(shown)} | {found['iteration_s'] / floor:.2f} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
