"""Measures what random play scores: `python benchmarks/random_play.py gymnax:CartPole-v1 --env_params observe=0,2`.

Every action is drawn uniformly, of real ones between their bounds. Each environment plays one episode, so that short
episodes do not count more often than long ones; its return is the undiscounted sum of rewards. The means stand in
`jaxrl_dist/analysis/facts/levels.csv`.
"""

import argparse
import pathlib
import sys
from typing import Any

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from jaxrl_dist import envs, types  # noqa: E402


def on_device(environment: envs.Environment, episodes: int, key: jax.Array) -> np.ndarray:
    """Returns f64 [episodes], of an environment on the device."""
    columns = envs.columns(environment)
    draw = jax.vmap(lambda one: _drawn(environment.spec.action, one))

    def step(loop: Any) -> Any:
        i, state, done, returns = loop
        state, timestep = columns.step(state, draw(jax.random.split(jax.random.fold_in(key, i), episodes)))
        returns = jnp.where(done, returns, timestep.info.episode_return)
        return i + 1, state, done | (timestep.step_type == types.LAST), returns

    state, _ = columns.reset(key, jnp.arange(episodes))
    start = (1, state, jnp.zeros(episodes, bool), jnp.zeros(episodes))
    return np.asarray(jax.lax.while_loop(lambda loop: ~loop[2].all(), step, start)[3], np.float64)


def on_host(task: envs.HostTask, episodes: int, key: jax.Array) -> np.ndarray:
    """Returns f64 [episodes], of a suite on the CPU."""
    environment = task.make(np.arange(episodes, dtype=np.uint32), episodes, 60.0)
    draw = jax.jit(jax.vmap(lambda one: _drawn(task.spec.action, one)))
    timestep, done, returns, i = environment.reset(), np.zeros(episodes, bool), np.zeros(episodes), 0
    while not done.all():
        i += 1
        timestep = environment.step(np.asarray(draw(jax.random.split(jax.random.fold_in(key, i), episodes))))
        returns = np.where(done, returns, returns + timestep.reward)
        done |= timestep.step_type == types.LAST
    environment.close()
    return returns


def _drawn(space: Any, key: jax.Array) -> jax.Array:
    if isinstance(space, types.DiscreteSpace):
        return jax.random.randint(key, (), 0, space.num_values)
    return jax.random.uniform(key, space.shape, minval=jnp.asarray(space.low), maxval=jnp.asarray(space.high))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", nargs="+", help="suite:name")
    parser.add_argument("--env_params", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--episodes", type=int, default=10_000)
    options = parser.parse_args()
    for name in options.env:
        environment = envs.make(name, dict(text.split("=", 1) for text in options.env_params))
        play: Any = on_device if isinstance(environment, envs.Environment) else on_host
        returns = play(environment, options.episodes, jax.random.key(0))
        error = returns.std() / np.sqrt(len(returns))
        print(f"{name}: {returns.mean():.4g} ± {error:.2g} (standard error of {len(returns):,} episodes)")


if __name__ == "__main__":
    main()
