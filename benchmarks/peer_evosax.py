"""Learns CartPole with evosax's OpenAI-ES, beside our evolution strategies: the same members, noise, network and steps.

    PEER/bin/python benchmarks/peer_evosax.py [--seeds=5] [--generations=31]

PEER is an environment with evosax 0.3.2, gymnax, flax and optax. A generation is 128 episodes of at most 500 steps, as
of `--preset=es/cartpole`, whose 2M steps are 31 of them: networks of 32 × 32 with tanh, noise of .1, Adam with a step
size of .02. evosax ranks, mirrors noise and moves the mean as the paper does; it decays no weights. A line of JSON per
seed holds the mean return of the mean over 32 episodes, the first generation at which it was 475 or more, and seconds.
"""

import argparse
import json
import time
from typing import Any

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax
from evosax.algorithms import Open_ES

MEMBERS, LIMIT, EVALUATED, MARK = 128, 500, 32, 475.0


class Policy(nn.Module):
    """Two layers, and the most likely of two actions."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.tanh(nn.Dense(32)(x))
        return nn.Dense(2)(x).argmax(-1)


def main() -> None:
    """Trains the seeds one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--generations", type=int, default=31)
    options = parser.parse_args()
    environment, env_params = gymnax.make("CartPole-v1")
    policy = Policy()

    def episode(params: Any, key: jax.Array) -> jax.Array:
        reset_key, key = jax.random.split(key)
        observation, state = environment.reset(reset_key, env_params)

        def step(carry: Any, key: jax.Array) -> Any:
            observation, state, total, alive = carry
            following = environment.step_env(key, state, policy.apply(params, observation), env_params)
            observation, state, reward, done = following[:4]
            return (observation, state, total + alive * reward, alive & ~done), None

        start = (observation, state, jnp.float32(0), jnp.bool_(True))
        return jax.lax.scan(step, start, jax.random.split(key, LIMIT))[0][2]

    first = policy.init(jax.random.key(0), jnp.zeros(4))
    strategy = Open_ES(MEMBERS, first, optimizer=optax.adam(0.02, eps=1e-8), std_schedule=optax.constant_schedule(0.1))
    params = strategy.default_params

    @jax.jit
    def generation(state: Any, key: jax.Array) -> Any:
        ask_key, play_key, tell_key, test_key = jax.random.split(key, 4)
        population, state = strategy.ask(ask_key, state, params)
        returns = jax.vmap(episode)(population, jax.random.split(play_key, MEMBERS))
        state, _ = strategy.tell(tell_key, population, -returns, state, params)
        mean = strategy.get_mean(state)
        return state, jax.vmap(episode, (None, 0))(mean, jax.random.split(test_key, EVALUATED)).mean()

    for seed in range(options.seeds):
        init_key, start_key, key = jax.random.split(jax.random.key(seed), 3)
        state = strategy.init(start_key, policy.init(init_key, jnp.zeros(4)), params)
        start, scores = time.monotonic(), []
        for one in jax.random.split(key, options.generations):
            state, score = generation(state, one)
            scores.append(float(score))
        solved = next((i + 1 for i, score in enumerate(scores) if score >= MARK), None)
        print(json.dumps({"seed": seed, "return": scores[-1], "solved_at": solved, "s": time.monotonic() - start}))


if __name__ == "__main__":
    main()
