"""A benchmark worker that trains with PureJaxRL's own `ppo.py` or `dqn.py` from a clone, whose code runs unchanged.

A chunk is one call of its jitted `train`, compiled ahead of time, so every chunk trains from the start: networks,
environments and buffer are made anew, and DQN first plays `--learning_starts` steps without learning. Its debug prints
are off. The returns and lengths of every step, which `train` gives back, are its design and are kept.
"""

import argparse
import pathlib
import time

import clones
import worker


def main() -> None:
    """Compiles, warms up, and serves chunks."""
    started = time.perf_counter()
    channel = worker.open_channel()
    arguments = _parser().parse_args()
    import jax

    module = clones.purejaxrl(arguments.clone, arguments.algo)
    imported = time.perf_counter()
    config = {"ppo": _ppo, "dqn": _dqn}[arguments.algo](arguments)
    key = jax.random.PRNGKey(arguments.seed)
    train = jax.jit(module.make_train(config)).lower(key).compile()
    compiled = time.perf_counter()
    out = jax.block_until_ready(train(key))
    startup = worker.Startup(imported - started, compiled - imported, time.perf_counter() - started)
    versions = worker.versions("gymnax", "flashbax", "jax") | {"purejaxrl": clones.commit(arguments.clone)}
    worker.announce(channel, startup, versions)
    # `make_train` puts the number of its iterations into the settings.
    steps = config["NUM_UPDATES"] * config["NUM_ENVS"] * config.get("NUM_STEPS", 1)
    names = {"ppo": "returned_episode_returns", "dqn": "returns"}

    def chunk() -> int:
        nonlocal key, out
        key, train_key = jax.random.split(key)
        out = jax.block_until_ready(train(train_key))
        return steps

    def evaluate() -> float:
        """Returns the mean return of the episodes that ended last, of the last tenth of a chunk."""
        returns = out["metrics"][names[arguments.algo]]
        return float(returns[-max(1, len(returns) // 10) :].mean())

    worker.serve(channel, chunk, evaluate)


def _ppo(arguments):  # type: ignore[no-untyped-def]
    return {
        **_common(arguments),
        "NUM_STEPS": arguments.unroll,
        "UPDATE_EPOCHS": arguments.epochs,
        "NUM_MINIBATCHES": arguments.minibatches,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": arguments.activation,
        "ANNEAL_LR": True,
        "DEBUG": False,
    }


def _dqn(arguments):  # type: ignore[no-untyped-def]
    return {
        **_common(arguments),
        "BUFFER_SIZE": arguments.buffer_size,
        "BUFFER_BATCH_SIZE": arguments.batch_size,
        "EPSILON_START": 1.0,
        "EPSILON_FINISH": 0.05,
        "EPSILON_ANNEAL_TIME": arguments.chunk_steps / 2,
        "TARGET_UPDATE_INTERVAL": arguments.target_every,
        "LEARNING_STARTS": arguments.learning_starts,
        "TRAINING_INTERVAL": arguments.num_envs,
        "TAU": 1.0,
    }


def _common(arguments):  # type: ignore[no-untyped-def]
    return {
        "ENV_NAME": arguments.env,
        "NUM_ENVS": arguments.num_envs,
        "TOTAL_TIMESTEPS": arguments.chunk_steps,
        "LR": 2.5e-4,
        "GAMMA": 0.99,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clone", type=pathlib.Path, required=True, help="folder of PureJaxRL's repository")
    parser.add_argument("--algo", choices=("ppo", "dqn"), default="ppo")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--chunk_steps", type=int, default=65536, help="environment steps of one chunk")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num_envs", type=int, default=4)
    parser.add_argument("--activation", choices=("tanh", "relu"), default="tanh", help="of PPO; DQN's is relu")
    parser.add_argument("--unroll", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--buffer_size", type=int, default=10000)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--learning_starts", type=int, default=1000)
    parser.add_argument("--target_every", type=int, default=500, help="environment steps between target updates")
    return parser


if __name__ == "__main__":
    main()
