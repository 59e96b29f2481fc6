"""PPO in the shape of PureJaxRL, as a baseline: one function in which rollout, advantages and epochs are scans.

It shares no code with the package. Episodes restart within the step that ends them; a time limit counts as an end;
actor and critic are separate networks; every epoch shuffles all rows; Adam (eps 1e-5) is annealed to zero over
`total_steps`. Source: Schulman et al. 2017; Lu et al. 2022 (PureJaxRL) for the shape.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import baseline_env
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings; the defaults are PureJaxRL's for CartPole."""

    num_envs: int = 4
    unroll: int = 128
    epochs: int = 4
    minibatches: int = 4
    total_steps: int = 500_000
    learning_rate: float = 2.5e-4
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    entropy_cost: float = 0.01
    value_cost: float = 0.5
    max_grad_norm: float = 0.5
    torso: str = "mlp"
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    shared: bool = False


class State(NamedTuple):
    """Everything that an update reads and replaces."""

    params: Any
    opt_state: Any
    env_state: baseline_env.EnvState
    observation: jax.Array
    key: jax.Array


class Rows(NamedTuple):
    """Values that acting stores, leaves [T, B, ...]."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array
    finished_return: jax.Array


class Program(NamedTuple):
    """`init` (key) -> State; `update` (State) -> (State, mean of the last returns); `act` greedy."""

    init: Callable[..., Any]
    update: Callable[..., Any]
    act: Callable[..., Any]


class Torso(nn.Module):
    """Hidden layers: a perceptron on flat observations, or MinAtar's convolution of 16 filters 3×3 and 128 units.

    The convolution is a product with gathered 3×3 patches (`minatar_cnn`): on CPUs XLA's gradient of a small
    convolution inside a scan (`minatar_conv`) was 7 times slower.
    """

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = nn.initializers.orthogonal(math.sqrt(2.0))
        if self.config.torso == "minatar_cnn":
            x = nn.relu(nn.Dense(16, kernel_init=kernel)(_patches(x))).reshape(x.shape[0], -1)
            return nn.relu(nn.Dense(128, kernel_init=kernel)(x))
        if self.config.torso == "minatar_conv":
            x = nn.relu(nn.Conv(16, (3, 3), padding="VALID", kernel_init=kernel)(x)).reshape(x.shape[0], -1)
            return nn.relu(nn.Dense(128, kernel_init=kernel)(x))
        if self.config.torso != "mlp":
            raise ValueError(f"torso={self.config.torso!r} is not one of mlp, minatar_cnn, minatar_conv")
        x = x.reshape(x.shape[0], -1)
        activation = getattr(nn, self.config.activation)
        for width in self.config.hidden:
            x = activation(nn.Dense(width, kernel_init=kernel)(x))
        return x


class ActorCritic(nn.Module):
    """Log-probabilities [N, A] and values [N] of observations [N, ...]."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        actor = Torso(self.config)(observation)
        critic = actor if self.config.shared else Torso(self.config)(observation)
        logits = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(0.01))(actor)
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(critic)
        return jax.nn.log_softmax(logits), value[:, 0]


def make(config: Config, environment: baseline_env.Environment) -> Program:
    """Builds the pure functions of the trainer."""
    network: Any = ActorCritic(config, environment.num_actions)
    updates_total = max(1, config.total_steps // (config.num_envs * config.unroll))
    per_update = config.epochs * config.minibatches

    def learning_rate(count: jax.Array) -> jax.Array:
        return config.learning_rate * jnp.maximum(0.0, 1.0 - (count // per_update) / updates_total)

    optimiser = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(learning_rate, eps=1e-5))

    def init(key: jax.Array) -> State:
        key, network_key, env_key = jax.random.split(key, 3)
        params = network.init(network_key, jnp.zeros((1, *environment.observation_shape)))
        env_state, observation = environment.reset(env_key)
        return State(params, optimiser.init(params), env_state, observation, key)

    def act_step(params: Any, carry: Any, key: jax.Array) -> Any:
        env_state, observation = carry
        action_key, env_key = jax.random.split(key)
        log_probs, value = network.apply(params, observation)
        action = jax.random.categorical(action_key, log_probs)
        env_state, seen = environment.step(env_key, env_state, action)
        row = Rows(observation, action, _take(log_probs, action), value, seen.reward, seen.done, seen.finished_return)
        return (env_state, seen.observation), row

    def minibatch_step(carry: Any, batch: Any) -> Any:
        params, opt_state = carry
        gradient = jax.grad(lambda p: _loss(config, network.apply(p, batch[0].observation), *batch))(params)
        updates, opt_state = optimiser.update(gradient, opt_state)
        return (optax.apply_updates(params, updates), opt_state), None

    def update(state: State) -> tuple[State, jax.Array]:
        key, act_key, shuffle_key = jax.random.split(state.key, 3)
        (env_state, observation), rows = jax.lax.scan(
            lambda carry, key: act_step(state.params, carry, key),
            (state.env_state, state.observation),
            jax.random.split(act_key, config.unroll),
        )
        last_value = network.apply(state.params, observation)[1]
        advantage = _advantages(config, rows, last_value)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rows, advantage, advantage + rows.value))

        def epoch(carry: Any, key: jax.Array) -> Any:
            order = jax.random.permutation(key, config.num_envs * config.unroll)
            batches = jax.tree.map(
                lambda x: jnp.take(x, order, axis=0).reshape(config.minibatches, -1, *x.shape[1:]), flat
            )
            return jax.lax.scan(minibatch_step, carry, batches)

        (params, opt_state), _ = jax.lax.scan(
            epoch, (state.params, state.opt_state), jax.random.split(shuffle_key, config.epochs)
        )
        return State(params, opt_state, env_state, observation, key), rows.finished_return[-1].mean()

    def act(state: State, observation: jax.Array) -> jax.Array:
        return network.apply(state.params, observation)[0].argmax(axis=-1)

    return Program(init, update, act)


def _patches(image: jax.Array) -> jax.Array:
    """Gathers the 3×3 neighbourhoods of [N, H, W, C] into [N, H - 2, W - 2, 9 C]."""
    height, width = image.shape[1] - 2, image.shape[2] - 2
    return jnp.concatenate([image[:, i : i + height, j : j + width] for i in range(3) for j in range(3)], axis=-1)


def _take(log_probs: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(log_probs, action[:, None], axis=-1)[:, 0]


def _advantages(config: Config, rows: Rows, last_value: jax.Array) -> jax.Array:
    """Generalised advantages f32 [T, B] by a reverse scan. Source: Schulman et al. 2016, equation 16."""

    def step(carry: Any, row: Rows) -> Any:
        advantage, next_value = carry
        going = config.discount * (1.0 - row.done)
        advantage = row.reward + going * next_value - row.value + going * config.trace * advantage
        return (advantage, row.value), advantage

    start = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(step, start, rows, reverse=True, unroll=16)[1]


def _loss(config: Config, outputs: Any, rows: Rows, advantage: jax.Array, target: jax.Array) -> jax.Array:
    """Clipped surrogate, clipped value error and entropy. Source: Schulman et al. 2017, equations 7 and 9."""
    log_probs, value = outputs
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(_take(log_probs, rows.action) - rows.log_prob)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - config.clip, 1 + config.clip) * advantage)
    near = rows.value + jnp.clip(value - rows.value, -config.clip, config.clip)
    value_error = 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(near - target))
    entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1)
    return (-surrogate + config.value_cost * value_error - config.entropy_cost * entropy).mean()
