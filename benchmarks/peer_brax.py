"""A benchmark worker that trains with Brax's own PPO trainer (Brax 0.14.2, a JAX older than 0.10), without evaluation.

Brax's `train` owns its loop, so this worker waits for commands inside its `progress_fn`, which the trainer calls
after every epoch of training. A chunk is one such epoch with `run_evals=False`, and its seconds are Brax's own
(`training/sps`). The defaults follow Brax's settings for ant at 256 environments: each update learns from
`batch_size * minibatches` sequences of `unroll` steps, in `epochs` passes.
"""

import argparse
import functools
import time

import worker


class Stop(Exception):
    """Leaves Brax's training loop."""


def main() -> None:
    """Trains until `quit`; the first epoch compiles, the second warms up."""
    started = time.perf_counter()
    channel = worker.open_channel()
    arguments = _parser().parse_args()
    from brax import envs
    from brax.training.agents.ppo import networks, train

    imported = time.perf_counter()
    epoch_steps = arguments.batch_size * arguments.minibatches * arguments.unroll
    updates = max(1, arguments.chunk_steps // epoch_steps)
    epochs_done = 0
    first_s = 0.0

    def progress(env_steps: int, metrics: dict) -> None:
        nonlocal epochs_done, first_s
        del env_steps
        epochs_done += 1
        seconds = updates * epoch_steps / float(metrics["training/sps"])
        if epochs_done == 1:
            first_s = time.perf_counter() - started
            return
        if epochs_done == 2:
            startup = worker.Startup(imported - started, first_s - (imported - started) - seconds, first_s)
            worker.announce(channel, startup, worker.versions("brax", "mujoco", "jax"))
        else:
            worker.report(channel, updates * epoch_steps, seconds)
        command = worker.next_command(channel)
        if command == "evaluate":
            raise ValueError("this worker does not evaluate")
        if command == "quit":
            raise Stop

    factory = functools.partial(
        networks.make_ppo_networks,
        policy_hidden_layer_sizes=arguments.policy_layers,
        value_hidden_layer_sizes=arguments.value_layers,
    )
    try:
        train.train(
            environment=envs.get_environment(arguments.env, backend=arguments.backend),
            num_timesteps=updates * epoch_steps * 100_000,
            num_evals=100_001,
            run_evals=False,
            progress_fn=progress,
            num_envs=arguments.num_envs,
            episode_length=1000,
            unroll_length=arguments.unroll,
            batch_size=arguments.batch_size,
            num_minibatches=arguments.minibatches,
            num_updates_per_batch=arguments.epochs,
            learning_rate=3e-4,
            entropy_cost=1e-2,
            discounting=0.97,
            reward_scaling=10.0,
            normalize_observations=True,
            network_factory=factory,
            seed=arguments.seed,
        )
    except Stop:
        return


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    layers = functools.partial(lambda text: tuple(int(x) for x in text.split(",")))
    parser.add_argument("--env", default="ant")
    parser.add_argument("--backend", default="spring")
    parser.add_argument("--chunk_steps", type=int, default=10240, help="environment steps of one chunk")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num_envs", type=int, default=256)
    parser.add_argument("--unroll", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=64, help="sequences in a minibatch")
    parser.add_argument("--minibatches", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--policy_layers", type=layers, default=(32, 32, 32, 32))
    parser.add_argument("--value_layers", type=layers, default=(256, 256, 256, 256, 256))
    return parser


if __name__ == "__main__":
    main()
