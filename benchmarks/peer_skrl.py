"""A benchmark worker that trains with skrl's PPO on JAX, on Gymnasium's vector environments.

A chunk is a whole number of rollouts, each followed by its epochs, by skrl's sequential trainer without progress bar,
tracking, checkpoints or rendering. `--vec=sync` steps the environments in turn in one process, `--vec=async` has a
process for each.
"""

import argparse
import time

import worker


def main() -> None:
    """Compiles, warms up, and serves chunks."""
    started = time.perf_counter()
    channel = worker.open_channel()
    arguments = _parser().parse_args()
    import gymnasium
    from skrl import config
    from skrl.envs.wrappers.jax import wrap_env
    from skrl.trainers.jax import SequentialTrainer

    imported = time.perf_counter()
    config.jax.device = "cpu"
    environments = wrap_env(
        gymnasium.make_vec(arguments.env, num_envs=arguments.num_envs, vectorization_mode=arguments.vec),
        wrapper="gymnasium",
        verbose=False,
    )
    rollouts = max(1, round(arguments.chunk_steps / (arguments.num_envs * arguments.unroll)))
    settings = {"timesteps": arguments.unroll, "headless": True, "disable_progressbar": True}
    trainer = SequentialTrainer(
        cfg={**settings, "close_environment_at_exit": False},
        env=environments,
        agents=_make_agent(arguments, environments),
    )
    trainer.train()
    startup = worker.Startup(imported - started, time.perf_counter() - imported, time.perf_counter() - started)
    worker.announce(channel, startup, worker.versions("skrl", "gymnasium", "mujoco", "jax"))
    trainer.cfg.timesteps = rollouts * arguments.unroll

    def chunk() -> int:
        # Each minibatch's losses are read, so nothing is under way when `train` returns.
        trainer.train()
        return rollouts * arguments.unroll * arguments.num_envs

    worker.serve(channel, chunk)
    environments.close()


def _make_agent(arguments, environments):  # type: ignore[no-untyped-def]
    from skrl.agents.jax.ppo import PPO
    from skrl.memories.jax import RandomMemory

    models = _make_models(environments)
    settings = {
        "rollouts": arguments.unroll,
        "learning_epochs": arguments.epochs,
        "mini_batches": arguments.minibatches,
        "discount_factor": 0.99,
        "gae_lambda": 0.95,
        "learning_rate": 3e-4,
        "grad_norm_clip": 0.5,
        "ratio_clip": 0.2,
        "value_clip": 0.0,
        "time_limit_bootstrap": True,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }
    return PPO(
        models=models,
        memory=RandomMemory(memory_size=arguments.unroll, num_envs=arguments.num_envs, device="cpu"),
        cfg=settings,
        observation_space=environments.observation_space,
        action_space=environments.action_space,
        device="cpu",
    )


def _make_models(environments):  # type: ignore[no-untyped-def]
    import jax.numpy as jnp
    from flax import linen
    from skrl.models.jax import DeterministicMixin, GaussianMixin, Model

    class Policy(GaussianMixin, Model):  # type: ignore[misc]
        """Two layers of 64 under the mean, and a standard deviation per action."""

        def __init__(self, observation_space, action_space, device=None, **others):  # type: ignore[no-untyped-def]
            Model.__init__(
                self, observation_space=observation_space, action_space=action_space, device=device, **others
            )
            GaussianMixin.__init__(self)

        @linen.compact
        def __call__(self, inputs, role):  # type: ignore[no-untyped-def]
            hidden = linen.tanh(linen.Dense(64)(linen.tanh(linen.Dense(64)(inputs["observations"]))))
            log_std = self.param("log_std", lambda _: jnp.zeros(self.num_actions))
            return linen.Dense(self.num_actions)(hidden), {"log_std": log_std}

    class Value(DeterministicMixin, Model):  # type: ignore[misc]
        """Two layers of 64 under the value."""

        def __init__(self, observation_space, action_space, device=None, **others):  # type: ignore[no-untyped-def]
            Model.__init__(
                self, observation_space=observation_space, action_space=action_space, device=device, **others
            )
            DeterministicMixin.__init__(self)

        @linen.compact
        def __call__(self, inputs, role):  # type: ignore[no-untyped-def]
            hidden = linen.tanh(linen.Dense(64)(linen.tanh(linen.Dense(64)(inputs["observations"]))))
            return linen.Dense(1)(hidden), {}

    models = {
        name: kind(environments.observation_space, environments.action_space, "cpu")
        for name, kind in (("policy", Policy), ("value", Value))
    }
    for role, model in models.items():
        model.init_state_dict(role=role)
    return models


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--chunk_steps", type=int, default=8192, help="environment steps of one chunk")
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--unroll", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--minibatches", type=int, default=32)
    parser.add_argument("--vec", choices=("sync", "async"), default="sync")
    return parser


if __name__ == "__main__":
    main()
