"""A benchmark worker that only steps EnvPool with random actions: an upper bound for any trainer on it."""

import argparse
import time

import numpy as np
import worker


def main() -> None:
    """Steps once, and serves chunks."""
    started = time.perf_counter()
    channel = worker.open_channel()
    arguments = _parser().parse_args()
    import envpool

    imported = time.perf_counter()
    options = {"stack_num": arguments.stack_num} if arguments.stack_num else {}
    pool = envpool.make(arguments.env, env_type="gymnasium", num_envs=arguments.num_envs, seed=0, **options)
    pool.reset()
    rng, space = np.random.default_rng(0), pool.action_space
    if hasattr(space, "n"):
        actions = [rng.integers(space.n, size=arguments.num_envs).astype(np.int32) for _ in range(64)]
    else:
        shape = (arguments.num_envs, *space.shape)
        actions = [rng.uniform(space.low, space.high, shape).astype(space.dtype) for _ in range(64)]
    pool.step(actions[0])
    startup = worker.Startup(imported - started, 0.0, time.perf_counter() - started)
    worker.announce(channel, startup, worker.versions("envpool"))
    count = max(1, arguments.chunk_steps // arguments.num_envs)

    def chunk() -> int:
        for i in range(count):
            pool.step(actions[i % len(actions)])
        return count * arguments.num_envs

    worker.serve(channel, chunk)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--chunk_steps", type=int, default=65536, help="environment steps of one chunk")
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--stack_num", type=int, default=0, help="frames in an observation of Atari; 0: EnvPool's own")
    return parser


if __name__ == "__main__":
    main()
