"""A benchmark worker that trains the baseline: PPO or DQN in the shape of PureJaxRL on gymnax, one jit per chunk.

With `--num_seeds=K` the whole program is under `vmap`. Run as `python benchmarks/baseline.py --algo=ppo`; the
protocol is in `worker.py`.
"""

import argparse
import dataclasses
import functools
import time
from typing import Any

import worker


def main() -> None:
    """Compiles, warms up, and serves chunks."""
    started = time.perf_counter()
    channel = worker.open_channel()
    parser = _parser()
    arguments, rest = parser.parse_known_args()
    import baseline_dqn
    import baseline_env
    import baseline_ppo
    import jax

    imported = time.perf_counter()
    module: Any = {"ppo": baseline_ppo, "dqn": baseline_dqn}[arguments.algo]
    config = _parse_config(parser, module.Config, rest)
    environment = baseline_env.make(arguments.env, config.num_envs)
    program = module.make(config, environment)
    rows = config.num_envs * getattr(config, "unroll", 1)
    iterations = max(1, arguments.chunk_steps // rows)
    seeds = jax.random.split(jax.random.key(arguments.seed), arguments.num_seeds)
    batched = jax.vmap if arguments.num_seeds > 1 else lambda function: function
    state = jax.block_until_ready(jax.jit(batched(program.init))(seeds if arguments.num_seeds > 1 else seeds[0]))
    train = jax.jit(batched(functools.partial(_train, program.update, iterations))).lower(state).compile()
    compiled = time.perf_counter()
    jax.block_until_ready(train(state))
    startup = worker.Startup(imported - started, compiled - imported, time.perf_counter() - started)
    worker.announce(channel, startup, worker.versions("gymnax", "flax", "optax", "jax"))

    def chunk() -> int:
        nonlocal state
        state, _ = jax.block_until_ready(train(state))
        return iterations * rows * arguments.num_seeds

    judge = baseline_env.make(arguments.env, 128)

    @jax.jit
    def evaluation(state: Any) -> Any:
        act = functools.partial(program.act, state)
        return baseline_env.mean_return(judge, act, jax.random.key(1), arguments.evaluation_steps)

    def evaluate() -> float:
        first = state if arguments.num_seeds == 1 else jax.tree.map(lambda x: x[0], state)
        return float(evaluation(first))

    worker.serve(channel, chunk, evaluate)


def _train(update: Any, iterations: int, state: Any) -> Any:
    import jax

    return jax.lax.scan(lambda state, _: update(state), state, None, iterations)


def _parse_config(parser: argparse.ArgumentParser, config_class: Any, rest: list[str]) -> Any:
    """Reads `--name=value` for every field of the algorithm's configuration."""
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    values: dict[str, Any] = {}
    for argument in rest:
        name, _, text = argument.removeprefix("--").partition("=")
        if name not in fields or not argument.startswith("--"):
            parser.error(f"unknown setting {argument}; valid: {', '.join(fields)}")
        default: Any = fields[name].default
        if isinstance(default, bool):
            values[name] = text.lower() == "true"
        elif isinstance(default, tuple):
            values[name] = tuple(int(x) for x in text.split(","))
        else:
            values[name] = type(default)(text)
    return config_class(**values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", choices=("ppo", "dqn"), default="ppo")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--chunk_steps", type=int, default=65536, help="environment steps of one chunk, per seed")
    parser.add_argument("--num_seeds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluation_steps", type=int, default=500, help="longest evaluation episode")
    return parser


if __name__ == "__main__":
    main()
