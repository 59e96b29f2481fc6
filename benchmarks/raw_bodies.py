"""A benchmark worker that only steps Brax's bodies with random actions: an upper bound for any trainer on them.

Bodies begin anew where their episode ended, as every trainer has them do (`brax.envs.training.wrap`).
"""

import argparse
import time

import worker


def main() -> None:
    """Compiles, steps once, and serves chunks."""
    started = time.perf_counter()
    channel = worker.open_channel()
    arguments = _parser().parse_args()
    import jax
    from brax import envs
    from brax.envs.wrappers import training

    imported = time.perf_counter()
    bodies = envs.get_environment(arguments.env, backend=arguments.backend)
    environment = training.wrap(bodies, episode_length=1000, action_repeat=1)
    count = max(1, arguments.chunk_steps // arguments.num_envs)
    shape = (arguments.num_envs, environment.action_size)

    def step(state, key):  # type: ignore[no-untyped-def]
        return environment.step(state, jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)), None

    @jax.jit
    def run(state, key):  # type: ignore[no-untyped-def]
        return jax.lax.scan(step, state, jax.random.split(key, count))[0]

    state = jax.jit(environment.reset)(jax.random.split(jax.random.PRNGKey(0), arguments.num_envs))
    compiled_run = run.lower(state, jax.random.key(0)).compile()
    compiled = time.perf_counter()
    jax.block_until_ready(compiled_run(state, jax.random.key(0)))
    startup = worker.Startup(imported - started, compiled - imported, time.perf_counter() - started)
    worker.announce(channel, startup, worker.versions("brax", "mujoco", "jax"))
    index = 0

    def chunk() -> int:
        nonlocal state, index
        index += 1
        state = jax.block_until_ready(compiled_run(state, jax.random.key(index)))
        return count * arguments.num_envs

    worker.serve(channel, chunk)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="ant")
    parser.add_argument("--backend", default="spring")
    parser.add_argument("--chunk_steps", type=int, default=65536, help="environment steps of one chunk")
    parser.add_argument("--num_envs", type=int, default=256)
    return parser


if __name__ == "__main__":
    main()
