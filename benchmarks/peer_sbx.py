"""A benchmark worker that trains with SBX's PPO (Stable-Baselines3 in JAX) on a Gymnasium environment.

A chunk is a whole number of rollouts, each followed by its epochs. Environments are stepped by `--vec=subproc` (one
process each, in `--workers` groups where the library has them) or in turn in one process (`--vec=dummy`).
"""

import argparse
import time

import worker


def main() -> None:
    """Compiles, warms up, and serves chunks."""
    started = time.perf_counter()
    channel = worker.open_channel()
    arguments = _parser().parse_args()
    import jax  # noqa: F401  (counted among the imports)
    from sbx import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    imported = time.perf_counter()
    kind = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[arguments.vec]
    environments = make_vec_env(arguments.env, n_envs=arguments.num_envs, seed=0, vec_env_cls=kind)
    rows = arguments.num_envs * arguments.unroll
    model = PPO(
        "MlpPolicy",
        environments,
        n_steps=arguments.unroll,
        batch_size=rows // arguments.minibatches,
        n_epochs=arguments.epochs,
        learning_rate=3e-4,
        verbose=0,
    )
    model.learn(total_timesteps=rows)
    startup = worker.Startup(imported - started, time.perf_counter() - imported, time.perf_counter() - started)
    worker.announce(channel, startup, worker.versions("sbx-rl", "stable_baselines3", "gymnasium", "jax"))
    chunk_steps = max(1, round(arguments.chunk_steps / rows)) * rows

    def chunk() -> int:
        before = model.num_timesteps
        model.learn(total_timesteps=chunk_steps, reset_num_timesteps=False)
        return model.num_timesteps - before

    worker.serve(channel, chunk)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--chunk_steps", type=int, default=16384, help="environment steps of one chunk")
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--unroll", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--minibatches", type=int, default=32)
    parser.add_argument("--vec", choices=("dummy", "subproc"), default="dummy")
    return parser


if __name__ == "__main__":
    main()
