r"""Implicit quantile networks: the network computes quantiles of an action's return at any levels.

With levels τ_i and τ'_j drawn uniformly for each row, K of them for the choice of a*, κ = `error_clip` and θ⁻ the
parameters of the target network, the loss of a row is

.. math:: L = \sum_{i=1}^N \frac{1}{N'} \sum_{j=1}^{N'}
   |\tau_i - 1_{\delta_{ij} < 0}| \frac{\ell_\kappa(\delta_{ij})}{\kappa}

.. math:: \delta_{ij} = \sum_{k=0}^{n-1} \gamma^k r_k
   + \gamma^n Z_{\tau'_j}(s', a^*; \theta^-) - Z_{\tau_i}(s, a; \theta)

.. math:: Z_\tau(s, \cdot) = f(\psi(s) \odot \phi(\tau)), \qquad
   \phi(\tau) = \operatorname{relu}\left(W \left[\cos \pi i \tau\right]_{i=0}^{n-1} + b\right)

ψ is the torso, and f the head. With `temperature` and `munchausen` this is M-IQN (`shared/soft_values.py`).

Source: Dabney et al. 2018, "Implicit quantile networks for distributional reinforcement learning", equations 3 and 4;
Vieillard et al. 2020, "Munchausen reinforcement learning", appendix B (M-IQN). Differs from the papers in evaluation,
whose levels are spread evenly and not drawn.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import action_values, soft_values, transitions
from jaxrl_dist.networks import encoders, torsos
from jaxrl_dist.numeric import distributions, values
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("discrete",)
_PAPER = "Dabney et al. 2018 (IQN)"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of IQN; defaults are the paper's for Atari."""

    discount: float = shared.discount(0.99, source="Mnih et al. 2015, extended table 1")
    n_step: int = shared.n_step(1, source=f"{_PAPER}, section 3")
    double: bool = shared.double(False, source="van Hasselt et al. 2016, equation 4")
    num_levels: int = setting(
        64, "Levels at which a prediction is compared with its target (N).", low=1, source=f"{_PAPER}, section 4.1"
    )
    num_target_levels: int = setting(
        64, "Levels at which the target is computed (N').", low=1, source=f"{_PAPER}, section 4.1"
    )
    num_policy_levels: int = setting(
        32, "Levels whose mean is the value by which an action is chosen (K).", low=1, source=f"{_PAPER}, section 4.1"
    )
    num_cosines: int = setting(64, "Cosines that a level is seen by (n).", low=1, source=f"{_PAPER}, equation 4")
    error_clip: float = setting(
        1.0,
        "Size of the error beyond which the loss grows linearly (κ); 0 makes it linear everywhere.",
        low=0.0,
        source=f"{_PAPER}, section 4",
    )
    temperature: float = soft_values.temperature(0.0)
    munchausen: float = soft_values.munchausen(0.0)
    log_policy_low: float = soft_values.log_policy_low(-1.0)
    clip_rewards: float = shared.clip_rewards(0.0, source="Mnih et al. 2015, methods (1 on Atari)")
    reward_scale: float = shared.reward_scale(1.0)
    epsilon_start: float = shared.epsilon_start(1.0, source="Mnih et al. 2015, extended table 1")
    epsilon_end: float = shared.epsilon_end(0.01, source=f"{_PAPER}, section 4.1 (as QR-DQN)")
    epsilon_fraction: float = shared.epsilon_fraction(
        0.02, source="Mnih et al. 2015, extended table 1 (1M of 50M steps)"
    )
    epsilon_wait: float = shared.epsilon_wait(
        0.0, source="this project (Mnih et al. 2015, released code: the 50,000 steps before learning, .001 of 50M)"
    )
    evaluation_epsilon: float = shared.evaluation_epsilon(0.001, source=f"{_PAPER}, section 4.1 (as QR-DQN)")


class _Static(NamedTuple):
    config: Config
    net: networks.Network
    rule: transitions.Rule


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of the network.

    Raises:
        UsageError: actions are real, the core is recurrent, or settings of a soft value do not go together.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import iqn
        >>> spec, network = envs.make("toy:walk").spec, networks.Config(torso="mlp")
        >>> agent = iqn.make(iqn.Config(num_cosines=8), spec, network)
        >>> sorted(agent.init(jax.random.key(0)).network)
        ['level', 'q', 'torsos_0']
    """
    num_actions = action_values.check_discrete(spec)
    soft_values.check(config)
    module = functools.partial(_Quantiles, config=network, num_actions=num_actions, num_cosines=config.num_cosines)
    net = networks.make_around(network, spec, action_values.inputs_of(network), lambda encoder: module(encoder=encoder))
    rule = transitions.Rule(net.context, config.n_step, config.discount, config.clip_rewards, config.reward_scale)
    static = _Static(config, net, rule)
    return agents.Agent(
        init=lambda key: types.Params(net.init(key), ()),
        init_carry=net.initial,
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=functools.partial(_prepare, static),
        loss=functools.partial(_loss, static),
        staleness="any",
        context=net.context,
        taught=1,
        lookahead=config.n_step,
        exploration=action_values.scheduled(config),
        target=agents.copy_target,
    )


class _Quantiles(nn.Module):
    """Computes quantiles "q" f32 [N, A, K] of all actions, of observations [N, ...] and levels f32 [N, K]."""

    config: networks.Config
    encoder: encoders.Encoder
    num_actions: int
    num_cosines: int

    def setup(self) -> None:
        self.torsos = [self.encoder.make()]

    @nn.compact
    def __call__(self, inputs: Any, noise: Array | None = None) -> dict[str, Array]:
        features = self.torsos[0](self.encoder.pick(inputs))
        # Without levels only the shapes of parameters matter.
        levels = jnp.zeros((features.shape[0], 1)) if noise is None else noise
        cosines = jnp.cos(jnp.pi * levels[..., None] * jnp.arange(self.num_cosines)).astype(features.dtype)
        # Of the encoder's width, so made here.
        kernel = functools.partial(torsos.kernel, self.config.orthogonal)
        hidden = functools.partial(nn.Dense, dtype=features.dtype, kernel_init=kernel(math.sqrt(2.0)))
        x = hidden(features.shape[-1], name="level")(cosines)
        x = features[:, None] * nn.relu(x)
        if self.config.head_size:
            activation = torsos.ACTIVATIONS[self.config.activation if self.config.torso == "mlp" else "relu"]
            x = hidden(self.config.head_size, name="hidden")(x)
            x = activation(torsos.normalisation(self.config.layer_norm)()(x))
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        quantiles = nn.Dense(self.num_actions, kernel_init=kernel(1.0), name="q")(x)
        return {"q": jnp.moveaxis(quantiles, -1, -2)}


def draw_levels(key: Array, shape: tuple[int, ...]) -> Array:
    """Draws levels of quantiles.

    Args:
        key: typed key [].
        shape: of the levels.

    Returns:
        f32 [*shape] in [0, 1).

    Example:
        >>> import jax
        >>> from jaxrl_dist.agents import iqn
        >>> iqn.draw_levels(jax.random.key(0), (3, 8)).shape
        (3, 8)
    """
    return jax.random.uniform(key, shape)


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Acts ε-greedily by the mean of K quantiles at levels that are drawn."""
    key, levels_key = jax.random.split(inputs.key)
    levels = draw_levels(levels_key, (*inputs.timestep.step_type.shape, static.config.num_policy_levels))
    return _act_by(static, params, inputs._replace(key=key), levels)


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Acts by the mean of quantiles at evenly spread levels, so that a policy has one action for an observation."""
    levels = values.quantile_levels(static.config.num_policy_levels)
    levels = jnp.broadcast_to(levels, (*inputs.timestep.step_type.shape, *levels.shape))
    return _act_by(static, params, inputs._replace(exploration=static.config.evaluation_epsilon), levels)


def _act_by(static: _Static, params: types.Params, inputs: types.ActInputs, levels: Array) -> types.ActOutput:
    timestep = inputs.timestep
    outputs, carry = static.net.step(
        params.network, inputs.carry, timestep.observation, agents.is_first(timestep), levels
    )
    q = _mean(outputs)
    action = action_values.epsilon_greedy(q, inputs.key, inputs.exploration, some_illegal="mask" in outputs)
    return types.ActOutput(action, (), carry)


def _mean(outputs: dict[str, Array]) -> Array:
    """Returns the mean of the quantiles f32 [N, A], −inf of illegal actions."""
    return distributions.masked(outputs["q"].mean(-1), outputs.get("mask"))


def _prepare(static: _Static, params: types.Params, inputs: types.LossInputs) -> transitions.Batch:
    del params
    return transitions.prepare(static.rule, static.net, inputs.batch)


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Computes the quantile Huber loss at levels that are drawn anew (equation 3)."""
    config, batch = static.config, inputs.batch
    rows = batch.action.shape[0]
    keys = iter(jax.random.split(inputs.key, 4))

    def quantiles(network: ArrayTree, seen: ArrayTree, count: int) -> tuple[Array, dict[str, Array]]:
        levels = draw_levels(next(keys), (rows, count))
        return levels, networks.of_rows(static.net, network, seen, levels)

    levels, outputs = quantiles(params.network, batch.inputs, config.num_levels)
    predicted = action_values.of_action(outputs["q"], batch.action)
    ahead = quantiles(inputs.target, batch.next_inputs, config.num_target_levels)[1]
    chooser = params.network if config.double else inputs.target
    chosen_by = _mean(quantiles(chooser, batch.next_inputs, config.num_policy_levels)[1])
    if config.temperature:
        bootstrap = soft_values.soft_value(chosen_by, ahead["q"], config.temperature)
    else:
        bootstrap = action_values.of_action(ahead["q"], jnp.argmax(chosen_by, axis=-1))
    reward = batch.reward
    if config.munchausen:
        here = _mean(quantiles(inputs.target, batch.inputs, config.num_policy_levels)[1])
        reward += soft_values.bonus(here, batch.action, config)
    target = jax.lax.stop_gradient(reward[:, None] + batch.discount[:, None] * bootstrap)
    of_rows = jax.vmap(functools.partial(values.quantile_loss, clip=config.error_clip))
    loss = of_rows(predicted, levels, target)
    loss, value = (jnp.where(batch.taught > 0, x, 0.0) for x in (loss, predicted.mean(-1)))
    return types.LossOutput(loss, batch.taught, loss, {"td_error": loss, "q_value": value, "loss": loss}, {})
