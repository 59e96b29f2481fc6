"""Updates per second with the replay in place, beside the bare gradient: `python benchmarks/learner_speed.py`.

Two programs in one process take turns. One draws a batch from a filled prioritised ring, learns from it and sets
its priorities; the other takes the gradient of one fixed batch and applies it. Rows are those of Pong (EnvPool), of
random numbers; shapes are the paper's unless flags of train.py say otherwise.
"""

import argparse
import pathlib
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pairs  # noqa: E402

from jaxrl_dist import types  # noqa: E402
from jaxrl_dist.learning import learner, step  # noqa: E402
from jaxrl_dist.parallel import unroll  # noqa: E402
from jaxrl_dist.training import assemble  # noqa: E402

SYSTEMS = {"dqn": {"replay.batch_size": 512}, "apex_dqn": {}, "r2d2": {}}
COLUMNS, NOW = 16, jnp.float32(0.5)


def loops(system: str, flags: dict[str, Any], updates: int) -> tuple[Any, Any]:
    """Returns two functions () -> seconds per update, compiled and warm: with the replay, and bare."""
    named = {"system": system, "env": "envpool:Pong-v5", "env.num_envs": COLUMNS, "layout": "sebulba"}
    named |= SYSTEMS[system] | flags
    settings, environment = assemble.resolve(named)
    agent = assemble.make_agent(settings, environment.spec)
    config, length = settings.group("learner", learner.Config), settings["layout.unroll_length"]
    taught = learner.make(config, agent, types.LOCAL)
    replay = assemble.make_replay(settings, agent, config)
    state = taught.init(agent.init(jax.random.key(0)))
    rows = unroll.rows_struct(agent, environment.spec, length, COLUMNS)
    kept = replay.init(unroll.step_struct(rows.steps), rows.carry)
    add = jax.jit(replay.add, donate_argnums=0)
    for number in range(settings["replay.capacity"] // COLUMNS // length):
        kept = add(kept, _random_unroll(rows, number), jnp.arange(COLUMNS))
    parts = step.parts(taught, replay)
    sample = jax.jit(replay.sample)(kept, jax.random.key(1), NOW)

    def whole(i: jax.Array, carried: Any) -> Any:
        state, kept = carried
        key = jax.random.fold_in(jax.random.key(2), i)
        state, kept, _ = parts.teach(state, kept, parts.draw(kept, key, NOW), key, NOW)
        return state, kept

    def bare(i: jax.Array, carried: Any) -> Any:
        state, sample = carried
        key = jax.random.fold_in(jax.random.key(2), i)
        inputs = types.LossInputs(sample.sequences, state.target_network, key, NOW, types.LOCAL)
        batch = taught.prepare(state.params, inputs)
        gradient = taught.gradients(state.params, inputs._replace(batch=batch), sample.weights)
        return taught.apply(state, gradient, NOW)[0], sample

    return _timed(whole, (state, kept), updates), _timed(bare, (state, sample), updates)


def _random_unroll(rows: types.Unroll, seed: int) -> types.Unroll:
    random = np.random.default_rng(seed)

    def leaf(x: jax.ShapeDtypeStruct) -> np.ndarray:
        if x.dtype == np.uint8:
            return random.integers(0, 256, x.shape, np.uint8)
        return random.integers(0, 2, x.shape).astype(x.dtype)

    unroll = jax.tree.map(leaf, rows)
    middle = np.full(rows.steps.timestep.step_type.shape, types.MID, np.int8)
    return unroll._replace(steps=unroll.steps._replace(timestep=unroll.steps.timestep._replace(step_type=middle)))


def _timed(body: Any, carried: Any, updates: int) -> Any:
    # One program per update: in a loop, what a fixed batch gives of the target network would be computed once for all.
    program = jax.jit(body, donate_argnums=1)
    carried = jax.block_until_ready(program(jnp.int32(0), jax.tree.map(jnp.copy, carried)))

    def once() -> float:
        nonlocal carried
        started_s = time.perf_counter()
        for i in range(updates):
            carried = program(jnp.int32(i), carried)
        jax.block_until_ready(carried)
        return (time.perf_counter() - started_s) / updates

    return once


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", default="dqn,r2d2")
    parser.add_argument("--updates", type=int, default=2, help="of one chunk")
    parser.add_argument("--rounds", type=int, default=5)
    options, flags = parser.parse_known_args()
    given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    print("| system | updates/s | bare gradient and apply | share of it [95 %] |\n| --- | --- | --- | --- |")
    for system in options.systems.split(","):
        sides = loops(system, given, options.updates)
        seconds = np.asarray([[side() for side in sides] for _ in range(options.rounds)])
        share = pairs.bootstrap_ratio(list(seconds[:, 1] / seconds[:, 0]))
        rates = 1 / np.median(seconds, axis=0)
        interval = f"{share.median:.2f} [{share.low:.2f}, {share.high:.2f}]"
        print(f"| {system} | {rates[0]:.2f} | {rates[1]:.2f} | {interval} |", flush=True)


if __name__ == "__main__":
    main()
