"""Learns a task with Brax's own PPO trainer and appends its evaluations, a line of JSON each: steps, minutes, return.

Run by `bodies_returns.py` in the environment of the peer. Settings are those of Brax's notebook for ant, as ours are:
rollouts of 5 rows, 32 minibatches, 4 epochs, networks of Brax's own sizes. Minutes begin with the process.
"""

import argparse
import functools
import json
import pathlib
import time


def main() -> None:
    """Trains to the end; evaluations are greedy, over 128 episodes."""
    started = time.perf_counter()
    arguments = _parser().parse_args()
    from brax import envs
    from brax.training.agents.ppo import networks, train

    def progress(env_steps: int, metrics: dict) -> None:
        minutes = (time.perf_counter() - started) / 60
        record = {"steps": int(env_steps), "minutes": minutes, "return": float(metrics["eval/episode_reward"])}
        with arguments.out.open("a") as file:
            file.write(json.dumps(record) + "\n")

    train.train(
        environment=envs.get_environment(arguments.env, backend=arguments.backend),
        num_timesteps=arguments.steps,
        num_evals=arguments.evaluations,
        progress_fn=progress,
        num_envs=arguments.num_envs,
        episode_length=1000,
        unroll_length=5,
        batch_size=arguments.num_envs // 2,
        num_minibatches=32,
        num_updates_per_batch=4,
        learning_rate=3e-4,
        entropy_cost=1e-2,
        discounting=0.97,
        reward_scaling=10.0,
        normalize_observations=True,
        network_factory=functools.partial(networks.make_ppo_networks),
        deterministic_eval=True,
        seed=arguments.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="ant")
    parser.add_argument("--backend", default="spring")
    parser.add_argument("--num_envs", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=50_000_000)
    parser.add_argument("--evaluations", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="file of evaluations")
    return parser


if __name__ == "__main__":
    main()
