"""Learns MinAtar Breakout with SBX's DQN (Stable-Baselines3 in JAX), beside our DQN and Rainbow on the same steps.

    .venv-peers/sbx/bin/python benchmarks/peer_sbx_dqn.py --out=runs/learn/sbx_dqn.jsonl [--seeds=5] [--steps=300_000]

Settings are those of the study `rainbow_parts` in learn.sh: 8 environments, 8 updates of 32 rows per 32 steps, networks
128 × 128 on flat frames. A line of JSON per seed holds the greedy return over 32 episodes; seeds that are in the file
are not run again. gymnax resets within the step that ends an episode, as SB3 expects.
"""

import argparse
import json
import pathlib
import time
from typing import Any

import gymnasium
import gymnax
import jax
import numpy as np
import optax
from sbx import DQN
from stable_baselines3.common.vec_env import VecEnv


class Gymnax(VecEnv):
    """B gymnax environments as SB3 steps them."""

    def __init__(self, name: str, num_envs: int, seed: int) -> None:
        environment, params = gymnax.make(name)
        shape = environment.observation_space(params).shape
        space = gymnasium.spaces.Box(0.0, 1.0, (int(np.prod(shape)),), np.float32)
        super().__init__(num_envs, space, gymnasium.spaces.Discrete(environment.num_actions))
        self._key = jax.random.key(seed)
        self._reset = jax.jit(jax.vmap(environment.reset, (0, None)))
        self._params = params
        self._step = jax.jit(jax.vmap(environment.step, (0, 0, 0, None)))
        self._returns = np.zeros(num_envs)
        self._state: Any = None
        self._actions = np.zeros(num_envs, np.int32)

    def reset(self) -> np.ndarray:
        observation, self._state = self._reset(self._keys(), self._params)
        self._returns[:] = 0
        return self._flat(observation)

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = np.asarray(actions)

    def step_wait(self) -> Any:
        observation, self._state, reward, done, *_ = self._step(self._keys(), self._state, self._actions, self._params)
        flat, reward, done = self._flat(observation), np.asarray(reward, np.float32), np.asarray(done)
        self._returns += reward
        # The observation that ends an episode is lost; it is bootstrapped from at the limit of 1000 steps only.
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done):
            infos[i] = {"terminal_observation": flat[i], "episode": {"r": float(self._returns[i]), "l": 0}}
        self._returns[done] = 0
        return flat, reward, done, infos

    def close(self) -> None:
        pass

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError(method_name)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError(attr_name)

    def _keys(self) -> jax.Array:
        self._key, key = jax.random.split(self._key)
        return jax.random.split(key, self.num_envs)

    def _flat(self, observation: jax.Array) -> np.ndarray:
        return np.asarray(observation, np.float32).reshape(self.num_envs, -1)


def learn(steps: int, seed: int) -> dict[str, Any]:
    """Trains one seed and plays 32 whole episodes greedily."""
    started = time.perf_counter()
    model = DQN(
        "MlpPolicy",
        Gymnax("Breakout-MinAtar", 8, seed),
        learning_rate=2.5e-4,
        buffer_size=96_000,
        learning_starts=5_000,
        batch_size=32,
        gamma=0.99,
        train_freq=4,
        gradient_steps=8,
        # In steps; 250 updates of ours.
        target_update_interval=1_000,
        exploration_fraction=0.02,
        exploration_initial_eps=1.0,
        exploration_final_eps=0.1,
        policy_kwargs={
            "net_arch": [128, 128],
            "optimizer_class": optax.adam,
            "optimizer_kwargs": {"b2": 0.999, "eps": 3.125e-4},
        },
        seed=seed,
    )
    model.learn(total_timesteps=steps)
    train_s = time.perf_counter() - started
    environments = Gymnax("Breakout-MinAtar", 32, 10_000 + seed)
    observation, returns = environments.reset(), np.full(32, np.nan)
    while np.isnan(returns).any():
        observation, _, done, infos = environments.step(model.predict(observation, deterministic=True)[0])
        for i in np.flatnonzero(done & np.isnan(returns)):
            returns[i] = infos[i]["episode"]["r"]
    return {"seed": seed, "steps": steps, "return": float(returns.mean()), "train_s": train_s}


def main() -> None:
    """Runs the seeds that the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300_000)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {row["seed"] for row in map(json.loads, lines) if row["steps"] == options.steps}
    for seed in sorted(set(range(options.seeds)) - done):
        with options.out.open("a") as file:
            file.write(json.dumps(learn(options.steps, seed)) + "\n")
        print(options.out.read_text().splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
