"""DQN in the shape of PureJaxRL, as a baseline: one scan over environment steps with a flat ring of transitions.

It shares no code with the package. A time limit counts as an end; one gradient step follows every `train_every`
environment steps; the loss is squared; ε falls linearly. Source: Mnih et al. 2015; Lu et al. 2022 for the shape.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import baseline_env
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings; the defaults are PureJaxRL's for CartPole, but for the start of learning and the network."""

    num_envs: int = 10
    buffer_size: int = 10_000
    batch_size: int = 128
    learning_starts: int = 1_000
    train_every: int = 10
    target_every: int = 500
    learning_rate: float = 2.5e-4
    discount: float = 0.99
    epsilon_end: float = 0.05
    epsilon_steps: int = 250_000
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"


class Ring(NamedTuple):
    """Transitions, leaves [buffer_size, ...]."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    done: jax.Array
    next_observation: jax.Array


class State(NamedTuple):
    """Everything that a step reads and replaces; `steps` counts environment steps."""

    params: Any
    target_params: Any
    opt_state: Any
    ring: Ring
    steps: jax.Array
    env_state: baseline_env.EnvState
    observation: jax.Array
    key: jax.Array


class Program(NamedTuple):
    """`init` (key) -> State; `update` (State) -> (State, mean of the last returns); `act` greedy."""

    init: Callable[..., Any]
    update: Callable[..., Any]
    act: Callable[..., Any]


class QNetwork(nn.Module):
    """Values of actions [N, A] from observations [N, ...]."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for width in self.config.hidden:
            x = getattr(nn, self.config.activation)(nn.Dense(width)(x))
        return nn.Dense(self.num_actions)(x)


def make(config: Config, environment: baseline_env.Environment) -> Program:
    """Builds the pure functions of the trainer.

    Raises:
        ValueError: the number of environments divides neither the ring nor the training interval.
    """
    for name in ("buffer_size", "train_every", "target_every"):
        if getattr(config, name) % config.num_envs:
            raise ValueError(f"{name}={getattr(config, name)} must be a multiple of num_envs={config.num_envs}")
    network: Any = QNetwork(config, environment.num_actions)
    optimiser = optax.adam(config.learning_rate)

    def init(key: jax.Array) -> State:
        key, network_key, env_key = jax.random.split(key, 3)
        params = network.init(network_key, jnp.zeros((1, *environment.observation_shape)))
        env_state, observation = environment.reset(env_key)
        size, shape = config.buffer_size, environment.observation_shape
        ring = Ring(
            jnp.zeros((size, *shape)),
            jnp.zeros(size, jnp.int32),
            jnp.zeros(size),
            jnp.zeros(size),
            jnp.zeros((size, *shape)),
        )
        steps = jnp.zeros((), jnp.int32)
        return State(params, params, optimiser.init(params), ring, steps, env_state, observation, key)

    def loss(params: Any, target_params: Any, batch: Ring) -> jax.Array:
        values = jnp.take_along_axis(network.apply(params, batch.observation), batch.action[:, None], axis=-1)[:, 0]
        best = network.apply(target_params, batch.next_observation).max(axis=-1)
        target = batch.reward + config.discount * (1.0 - batch.done) * best
        return jnp.square(values - target).mean()

    def learn(params: Any, target_params: Any, opt_state: Any, ring: Ring, filled: jax.Array, key: jax.Array) -> Any:
        rows = jax.random.randint(key, (config.batch_size,), 0, filled)
        batch = jax.tree.map(lambda x: x[rows], ring)
        updates, opt_state = optimiser.update(jax.grad(loss)(params, target_params, batch), opt_state)
        return optax.apply_updates(params, updates), opt_state

    def update(state: State) -> tuple[State, jax.Array]:
        key, explore_key, action_key, env_key, sample_key = jax.random.split(state.key, 5)
        epsilon = jnp.maximum(config.epsilon_end, 1.0 - (1.0 - config.epsilon_end) * state.steps / config.epsilon_steps)
        greedy = network.apply(state.params, state.observation).argmax(axis=-1)
        anything = jax.random.randint(action_key, greedy.shape, 0, environment.num_actions)
        action = jnp.where(jax.random.uniform(explore_key, greedy.shape) < epsilon, anything, greedy)
        env_state, seen = environment.step(env_key, state.env_state, action)
        new = Ring(state.observation, action, seen.reward, seen.done.astype(jnp.float32), seen.observation)
        head = state.steps % config.buffer_size
        ring = jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, head, axis=0), state.ring, new)
        steps = state.steps + config.num_envs
        params, opt_state = jax.lax.cond(
            (steps > config.learning_starts) & (steps % config.train_every == 0),
            lambda: learn(
                state.params,
                state.target_params,
                state.opt_state,
                ring,
                jnp.minimum(steps, config.buffer_size),
                sample_key,
            ),
            lambda: (state.params, state.opt_state),
        )
        renew = steps % config.target_every == 0
        target_params = jax.tree.map(lambda new, old: jnp.where(renew, new, old), params, state.target_params)
        state = State(params, target_params, opt_state, ring, steps, env_state, seen.observation, key)
        return state, seen.finished_return.mean()

    def act(state: State, observation: jax.Array) -> jax.Array:
        return network.apply(state.params, observation).argmax(axis=-1)

    return Program(init, update, act)
