r"""DreamerV3: a world model of what was played, and an actor and a critic that learn from what it imagines.

The three are parts with a step size each; no gradient passes from one to another. With s the model's state of a row,
x the observation, r the reward for arriving there and c whether the episode goes on, the model's loss of a row is

.. math:: L = -\ln p(x | s) - \ln p(r | s) - \ln p(c | s)
   + \beta_{dyn} \max(1, KL(\bar q \| p)) + \beta_{rep} \max(1, KL(q \| \bar p))

q is the posterior of the latent state, p its prior, and a bar stops gradients. From every row the model imagines H
steps by the policy, with rewards and c of its own. The critic is a distribution over bins; its targets and the policy's
loss, weighted by :math:`w_t = \prod_{k \le t} \gamma^{[k > 0]} c_k`, are

.. math:: R_t = r_{t+1} + \gamma c_{t+1} \left((1 - \lambda) v(s_{t+1}) + \lambda R_{t+1}\right), \qquad R_H = v(s_H)

.. math:: L_\pi = -w_t \left(\frac{R_t - v(s_t)}{\max(1, S)} \log \pi(a_t | s_t) + \eta H(\pi(\cdot | s_t))\right)

S is the running distance between the 5th and the 95th percentile of R. The critic also learns, by `replay_value_scale`,
from the λ-returns of the rows' own rewards, which bootstrap from the imagined R of each row, and everywhere the means
of its own slow copy.

Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", equations 1 to 7; Hafner et al.
2023, "Mastering diverse domains through world models". Differs from their code: S moves once an update, after the
losses that divide by it; each device takes the percentiles of its own rows, whose mean goes on; the state that begins a
window is the actor's, and is not written again; no gradient of the critic reaches the model; windows are drawn
uniformly, not the newest first; evaluation takes the policy's mode; images are halved by strides, not by pooling, and
are not moved to [−.5, .5]; an image begins from one dense layer, not from one of blocks; each number of a category or a
bool is a sigmoid with a squared error.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import bounded_actions
from jaxrl_dist.errors import UnfitError, UsageError, given
from jaxrl_dist.networks import world_model
from jaxrl_dist.numeric import distributions, returns, values
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("discrete", "bounded")
_TABLE = "Hafner et al. 2025, hyperparameters"
_SIZES = "Hafner et al. 2025, model sizes (12M)"
_CODE = "Hafner et al. 2025, released code"
# Deviations of a policy over real actions, and the percentiles whose distance divides advantages (released code).
_LEAST_STD, _MOST_STD, _LOW, _HIGH = 0.1, 1.0, 5.0, 95.0
WORLD, POLICY, CRITIC = "world", "policy", "critic"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of DreamerV3; defaults are the paper's, of its smallest size."""

    discount: float = shared.discount(0.997, source=f"{_TABLE} (1 − 1/333)")
    trace_decay: float = setting(
        0.95, "Decay of the trace of λ-returns (λ).", low=0.0, high=1.0, source=f"{_TABLE}", sweep=True
    )
    length: int = setting(64, "Rows of a window, all of which teach (T).", low=2, source=f"{_TABLE} (batch length)")
    horizon: int = setting(15, "Imagined steps from each row (H).", low=1, source=f"{_TABLE} (imagination horizon)")
    entropy_cost: float = shared.entropy_cost(3e-4, source=f"{_TABLE} (actor entropy regularizer)")
    unimix: float = setting(
        0.01,
        "Share of the uniform distribution in that of latent states and of a discrete policy.",
        above=0.0,
        below=1.0,
        source=f"{_TABLE} (latent and actor unimix)",
        sweep=True,
    )
    free_nats: float = setting(
        1.0, "Divergence of a row's prior and posterior that costs nothing.", low=0.0, source=f"{_TABLE}", sweep=True
    )
    dynamics_scale: float = setting(
        1.0, "Weight of the divergence that teaches the prior.", low=0.0, source=f"{_TABLE} (β_dyn)", sweep=True
    )
    representation_scale: float = setting(
        0.1, "Weight of the divergence that teaches the posterior.", low=0.0, source=f"{_TABLE} (β_rep)", sweep=True
    )
    replay_value_scale: float = setting(
        0.3, "Weight of the critic's loss on replayed rows.", low=0.0, source=f"{_TABLE} (β_repval)", sweep=True
    )
    slow_scale: float = setting(
        1.0,
        "Weight of the critic's loss for the means of its slow copy.",
        low=0.0,
        source=f"{_TABLE} (critic EMA regularizer)",
        sweep=True,
    )
    return_rate: float = setting(
        0.01,
        "Share of the way that an update moves the distance of percentiles that advantages are divided by.",
        above=0.0,
        high=1.0,
        source=f"{_TABLE} (return normalization decay .99)",
        sweep=True,
    )
    policy_learning_rate: float = shared.policy_learning_rate(0.0, source=_TABLE)
    critic_learning_rate: float = setting(
        0.0, "Step size of the critic; 0 takes the world model's.", low=0.0, source=_TABLE
    )
    units: int = setting(256, "Units of hidden layers (d).", low=1, source=_SIZES)
    layers: int = setting(
        3, "Hidden layers of encoder and decoder of vectors, of policy and critic.", low=1, source=_CODE
    )
    recurrent_units: int = setting(2048, "Numbers of the recurrent state (8d).", low=1, source=_SIZES)
    blocks: int = setting(
        8, "Diagonal blocks of the recurrent weights; 1 makes a plain GRU.", low=1, source=f"{_CODE} (blocks)"
    )
    latents: int = setting(32, "Categoricals of the latent state.", low=1, source=f"{_CODE} (stoch)")
    classes: int = setting(16, "Classes of each categorical (d/16).", low=2, source=_SIZES)
    channels: int = setting(
        16, "Channels of convolutions (d/16); their stages have 2, 3, 4 and 4 times as many.", low=1, source=_SIZES
    )
    num_bins: int = setting(
        255, "Bins of rewards and values, an odd number.", low=3, source="Hafner et al. 2025, methods (critic learning)"
    )
    evaluation_action: str = shared.evaluation_action("mode")


class Carry(NamedTuple):
    """Acting state.

    Attributes:
        state: of the model at the row before, f32 [B, ...].
        action: [B, ...], chosen there.
    """

    state: world_model.State
    action: Array


class Statistics(NamedTuple):
    """Running statistics.

    Attributes:
        spread: f32 [], distance between the percentiles of imagined returns.
    """

    spread: Array


class Batch(NamedTuple):
    """N windows of L rows.

    Attributes:
        seen: name -> f32 [N, L, ...], observations as the model sees them.
        led: f32 [N, L, A], the action that led to each row, 0 at FIRST.
        step_type: int [N, L].
        reward: f32 [N, L], for arriving; 0 at FIRST.
        discount: f32 [N, L], 0 where the episode has ended by itself; 1 at FIRST.
        state: `world_model.State` f32 [N, ...], before row 0.
    """

    seen: dict[str, Array]
    led: Array
    step_type: Array
    reward: Array
    discount: Array
    state: world_model.State


class Observed(NamedTuple):
    """The model's states of rows; leaves [L, N, ...].

    Attributes:
        state: `world_model.State`, the latent part drawn from the posterior.
        posterior: log-probabilities f32 [L, N, G, C].
        prior: f32 [L, N, G, C], likewise.
    """

    state: world_model.State
    posterior: Array
    prior: Array


class Imagined(NamedTuple):
    """Trajectories that the model imagines from M rows.

    Attributes:
        state: `world_model.State` [H + 1, M, ...], the first that of the row.
        sample: [H, M, ...], of the policy.
        reward: f32 [H + 1, M], for arriving.
        go_on: f32 [H + 1, M], probability that the episode goes on; of the rows the truth.
    """

    state: world_model.State
    sample: Array
    reward: Array
    go_on: Array


class _Discrete(NamedTuple):
    """One choice of A; the model sees it as a one-hot vector."""

    size: int
    unimix: float

    @property
    def outputs(self) -> int:
        return self.size

    def policy(self, outputs: Array) -> distributions.Categorical:
        return distributions.Categorical(distributions.unimix(outputs, self.unimix))

    def played(self, sample: Array) -> Array:
        return sample

    def imagined(self, sample: Array) -> Array:
        return jax.nn.one_hot(sample, self.size)

    def seen(self, action: Array) -> Array:
        return jax.nn.one_hot(action, self.size)


class _Bounded(NamedTuple):
    """Vectors of A numbers; the model sees them scaled to [-1, 1]."""

    size: int
    range: bounded_actions.Range

    @property
    def outputs(self) -> int:
        return 2 * self.size

    def policy(self, outputs: Array) -> distributions.Gaussian:
        mean, std = jnp.split(outputs, 2, axis=-1)
        std = _LEAST_STD + (_MOST_STD - _LEAST_STD) * jax.nn.sigmoid(std + 2)
        return distributions.Gaussian(jnp.tanh(mean), jnp.log(std))

    def played(self, sample: Array) -> Array:
        return self.range.scaled(self.imagined(sample))

    def imagined(self, sample: Array) -> Array:
        return jnp.clip(sample, -1.0, 1.0)

    def seen(self, action: Array) -> Array:
        return (action - self.range.centre) / self.range.half


class _Static(NamedTuple):
    config: Config
    spec: types.EnvironmentSpec
    actions: _Discrete | _Bounded
    world: world_model.WorldModel
    policy: world_model.Mlp
    critic: world_model.Mlp

    def of_world(self, network: ArrayTree, method: str, *args: Any) -> Any:
        """Calls a method of the world model."""
        return self.world.apply({"params": network[WORLD]}, *args, method=method)

    def draw(self, logits: Array, key: Array) -> tuple[Array, Array]:
        """Returns a latent state f32 [..., G * C] and the mixed log-probabilities that it was drawn by."""
        logits = distributions.unimix(logits, self.config.unimix)
        drawn = distributions.straight_through(logits, key)
        return drawn.reshape(*drawn.shape[:-2], -1), logits

    def policy_at(
        self, network: ArrayTree, state: world_model.State
    ) -> distributions.Categorical | distributions.Gaussian:
        """Returns the policy in states [...]."""
        outputs: Any = self.policy.apply({"params": network[POLICY]}, state.features)
        return self.actions.policy(outputs)

    def critic_at(self, params: ArrayTree, state: world_model.State) -> tuple[Array, Array]:
        """Returns the logits f32 [..., K] of a critic in states [...], and their means, which pass no gradient."""
        logits: Any = self.critic.apply({"params": params}, state.features)
        return logits, jax.lax.stop_gradient(values.mean_of_bins(logits, self.bins()))

    def critic_loss(self, logits: Array, target: Array, slow_value: Array) -> Array:
        """Returns the critic's loss f32 [...] for targets and for the means of its slow copy."""
        distance = values.two_hot_loss(logits, slow_value, self.bins())
        return values.two_hot_loss(logits, target, self.bins()) + self.config.slow_scale * distance

    def bins(self) -> Array:
        """Returns the bins of rewards and values."""
        return values.symexp_support(self.config.num_bins)


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent, with the sizes of its networks.
        spec: of the environment.
        network: the defaults, as all networks are the agent's own.

    Raises:
        UsageError: actions are neither one choice nor a bounded vector, some may be illegal, or sizes do not fit.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import dreamer
        >>> sizes = {"units": 8, "recurrent_units": 16, "latents": 4, "classes": 4}
        >>> agent = dreamer.make(dreamer.Config(length=8, **sizes), envs.make("toy:walk").spec, networks.Config())
        >>> sorted(agent.init(jax.random.key(0)).network), agent.taught, agent.init_carry(3).state.latent.shape
        (['critic', 'policy', 'world'], 8, (3, 16))
    """
    _check(config, spec, network)
    agents.check_alone(spec)
    if isinstance(spec.action, types.DiscreteSpace):
        actions: _Discrete | _Bounded = _Discrete(spec.action.num_values, config.unimix)
    else:
        scale = bounded_actions.action_range(spec)
        actions = _Bounded(len(scale.centre), scale)
    sizes = world_model.Sizes(
        units=config.units,
        layers=config.layers,
        recurrent=config.recurrent_units,
        blocks=config.blocks,
        latents=config.latents,
        classes=config.classes,
        channels=config.channels,
        bins=config.num_bins,
    )
    static = _Static(
        config,
        spec,
        actions,
        world_model.WorldModel(sizes, world_model.leaves_of(spec), actions.size),
        world_model.Mlp(config.units, config.layers, actions.outputs, gain=0.01),
        world_model.Mlp(config.units, config.layers, config.num_bins, gain=0.0),
    )
    return agents.Agent(
        init=functools.partial(_init, static),
        init_carry=functools.partial(_init_carry, static),
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=functools.partial(_prepare, static),
        loss=functools.partial(_loss, static),
        staleness="any",
        taught=config.length,
        keeps_sequences=True,
        adapt=functools.partial(_adapt, static),
        target=_target,
        parts={
            WORLD: types.Part(),
            POLICY: types.Part(config.policy_learning_rate),
            CRITIC: types.Part(config.critic_learning_rate),
        },
    )


def _check(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> None:
    for name, default in vars(networks.Config()).items():
        if getattr(network, name) != default:
            flag = given(f"network.{name}", getattr(network, name))
            raise UsageError(
                flag, ": dreamer's networks are its own; their sizes are ", given("agent.units"), " and others"
            )
    if isinstance(spec.action, types.MultiDiscreteSpace):
        told = given("env", spec.name), ": its actions are vectors of choices, and this agent needs one, or real ones"
        raise UnfitError(*told, actions=spec.action.kind)
    if spec.mask:
        raise UsageError(given("env", spec.name), ": some actions are illegal at times, which dreamer does not imagine")
    if config.recurrent_units % config.blocks:
        valid = [n for n in range(1, config.recurrent_units + 1) if config.recurrent_units % n == 0]
        near = sorted(valid, key=lambda n: abs(n - config.blocks))[:3]
        raise UsageError(
            given("agent.blocks", config.blocks),
            " does not divide ",
            given("agent.recurrent_units", config.recurrent_units),
            f"; nearest valid: {', '.join(map(str, sorted(near)))}",
        )
    if config.num_bins % 2 == 0:
        raise UsageError(
            given("agent.num_bins", config.num_bins),
            f": 0 is the middle bin; valid: odd, such as {config.num_bins + 1}",
        )


def _init(static: _Static, key: Array) -> types.Params:
    world_key, policy_key, critic_key = jax.random.split(key, 3)
    state = _zero_state(static.config, 1)
    observation = jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), static.spec.observation)
    seen = world_model.as_seen(static.world.leaves, observation)
    network = {
        WORLD: static.world.init(world_key, seen, state, jnp.zeros((1, static.actions.size)))["params"],
        POLICY: static.policy.init(policy_key, state.features)["params"],
        CRITIC: static.critic.init(critic_key, state.features)["params"],
    }
    return types.Params(network, Statistics(jnp.zeros(())))


def _init_carry(static: _Static, batch_size: int) -> Carry:
    action = static.spec.action.struct
    return Carry(_zero_state(static.config, batch_size), jnp.zeros((batch_size, *action.shape), action.dtype))


def _zero_state(config: Config, batch_size: int) -> world_model.State:
    return world_model.State(
        jnp.zeros((batch_size, config.recurrent_units)), jnp.zeros((batch_size, config.latents * config.classes))
    )


def _target(network: ArrayTree) -> ArrayTree:
    """Copies the critic: nothing else has a slow copy."""
    return agents.copy_target(network[CRITIC])


def _observe(
    static: _Static, network: ArrayTree, before: world_model.State, row: tuple[Array, ...], key: Array
) -> tuple[world_model.State, Array]:
    """Returns the state [N] of a row, and its posterior.

    Args:
        static: of the agent.
        network: parameters.
        before: state of the row before.
        row: action that led to it, 0 at FIRST; features of its observation; whether it is FIRST.
        key: draws the latent state.
    """
    led, features, first = row
    before = jax.tree.map(lambda x: jnp.where(first[:, None], 0.0, x), before)
    recurrent = static.of_world(network, "move", before, led)
    latent, posterior = static.draw(static.of_world(network, "posterior", recurrent, features), key)
    return world_model.State(recurrent, latent), posterior


def _led(static: _Static, action: Array, first: Array) -> Array:
    """Returns actions as the model sees them, which led to rows [...]: none at FIRST."""
    return jnp.where(first[..., None], 0.0, static.actions.seen(action))


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Draws an action of the policy in the state of the row."""
    state, key = _state_of(static, params, inputs)
    sample = static.policy_at(params.network, state).sample(key)
    return _acted(static, state, sample)


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Acts by the policy's mode or a sample; the latent state is drawn."""
    state, key = _state_of(static, params, inputs)
    policy = static.policy_at(params.network, state)
    return _acted(static, state, distributions.choose(policy, static.config.evaluation_action, key))


def _state_of(static: _Static, params: types.Params, inputs: types.ActInputs) -> tuple[world_model.State, Array]:
    """Returns the model's state of the row, and a key for its action."""
    latent_key, action_key = jax.random.split(inputs.key)
    first, carry = agents.is_first(inputs.timestep), inputs.carry
    seen = world_model.as_seen(static.world.leaves, inputs.timestep.observation)
    row = _led(static, carry.action, first), static.of_world(params.network, "encode", seen), first
    return _observe(static, params.network, carry.state, row, latent_key)[0], action_key


def _acted(static: _Static, state: world_model.State, sample: Array) -> types.ActOutput:
    action = static.actions.played(sample)
    return types.ActOutput(action, (), Carry(state, action))


def _prepare(static: _Static, params: types.Params, inputs: types.LossInputs) -> Batch:
    """Puts the action before each row beside it, and the axis of windows first."""
    del params
    sequences: types.Unroll = inputs.batch
    timestep, action = sequences.steps.timestep, sequences.steps.action
    first = agents.is_first(timestep)
    led = _led(static, jnp.concatenate([sequences.carry.action[None], action[:-1]]), first)
    seen = world_model.as_seen(static.world.leaves, timestep.observation)
    # A reset has no reward, and no end of an episode leads to it, whatever its row says.
    reward, discount = jnp.where(first, 0.0, timestep.reward), jnp.where(first, 1.0, timestep.discount)
    return _swapped(Batch(seen, led, timestep.step_type, reward, discount, sequences.carry.state))


def _swapped(batch: Batch) -> Batch:
    """Swaps the axes of rows and windows."""
    swapped: Batch = jax.tree.map(lambda x: x.swapaxes(0, 1), batch)
    return swapped._replace(state=batch.state)


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Sums the losses of all three parts over the rows of each window, all of which teach."""
    network = params.network
    rows = _swapped(inputs.batch)
    observe_key, imagine_key, entropy_key = jax.random.split(inputs.key, 3)
    observed = _observed(static, network, rows, observe_key)
    model = _model_losses(static, network, rows, observed)
    start = jax.tree.map(lambda x: jax.lax.stop_gradient(x).reshape(-1, x.shape[-1]), observed.state)
    imagined = _imagined(static, network, start, rows.discount.reshape(-1), imagine_key)
    behaviour, spread = _behaviour_losses(static, params, inputs.target, rows, imagined, entropy_key)
    metrics = {name: x.sum(0) for name, x in {**model, **behaviour}.items()}
    weights = {
        "reconstruction_loss": 1.0,
        "reward_loss": 1.0,
        "continue_loss": 1.0,
        "dynamics_loss": static.config.dynamics_scale,
        "representation_loss": static.config.representation_scale,
        "policy_loss": 1.0,
        "value_loss": 1.0,
        "replay_value_loss": static.config.replay_value_scale,
    }
    loss = sum((weight * metrics[name] for name, weight in weights.items()), jnp.zeros(rows.reward.shape[1]))
    taught = jnp.full_like(loss, float(rows.step_type.shape[0]))
    return types.LossOutput(loss, taught, jnp.zeros_like(loss), metrics, {}, aux=spread)


def _observed(static: _Static, network: ArrayTree, rows: Batch, key: Array) -> Observed:
    """Runs the model over rows [L, N]."""
    features = static.of_world(network, "encode", rows.seen)
    first = rows.step_type == types.FIRST

    def step(state: world_model.State, x: Any) -> Any:
        *row, key = x
        state, posterior = _observe(static, network, state, tuple(row), key)
        return state, (state, posterior)

    keys = jax.random.split(key, first.shape[0])
    _, (state, posterior) = jax.lax.scan(step, rows.state, (rows.led, features, first, keys))
    prior = distributions.unimix(static.of_world(network, "prior", state.recurrent), static.config.unimix)
    return Observed(state, posterior, prior)


def _model_losses(static: _Static, network: ArrayTree, rows: Batch, observed: Observed) -> dict[str, Array]:
    """Returns the terms f32 [L, N] of the model's loss (equations 2 and 3)."""
    decoded = static.of_world(network, "decode", observed.state)
    reward, go_on = static.of_world(network, "heads", observed.state)

    def error(name: str, leaf: world_model.Leaf) -> Array:
        predicted = jax.nn.sigmoid(decoded[name]) if leaf.is_share else decoded[name]
        return jnp.square(predicted - rows.seen[name]).sum(tuple(range(2, predicted.ndim)))

    dynamics, representation = distributions.balanced_kl(observed.posterior, observed.prior, static.config.free_nats)
    return {
        "reconstruction_loss": sum((error(name, leaf) for name, leaf in static.world.leaves), jnp.zeros(())),
        "reward_loss": values.two_hot_loss(reward, rows.reward, static.bins()),
        "continue_loss": jax.nn.softplus(go_on) - rows.discount * go_on,
        "dynamics_loss": dynamics,
        "representation_loss": representation,
    }


def _imagined(static: _Static, network: ArrayTree, start: world_model.State, go_on: Array, key: Array) -> Imagined:
    """Plays the policy in the model from states [M], of which `go_on` f32 [M] says whether the episode goes on."""
    network = jax.lax.stop_gradient(network)

    def step(state: world_model.State, key: Array) -> Any:
        action_key, latent_key = jax.random.split(key)
        sample = static.policy_at(network, state).sample(action_key)
        recurrent = static.of_world(network, "move", state, static.actions.imagined(sample))
        latent, _ = static.draw(static.of_world(network, "prior", recurrent), latent_key)
        return world_model.State(recurrent, latent), (state, sample)

    keys = jax.random.split(key, static.config.horizon)
    last, (states, samples) = jax.lax.scan(step, start, keys)
    states = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), states, last)
    reward, predicted = static.of_world(network, "heads", states)
    go_on = jnp.concatenate([go_on[None], jax.nn.sigmoid(predicted[1:])])
    return Imagined(states, samples, values.mean_of_bins(reward, static.bins()), go_on)


def _behaviour_losses(
    static: _Static, params: types.Params, slow: ArrayTree, rows: Batch, imagined: Imagined, key: Array
) -> tuple[dict[str, Array], Array]:
    """Returns the terms f32 [L, N] of policy and critic, means over imagined steps, and the distance of percentiles."""
    config, shape = static.config, rows.step_type.shape
    logits, value = static.critic_at(params.network[CRITIC], imagined.state)
    _, slow_value = static.critic_at(slow, imagined.state)
    all_mid = jnp.full(value.shape, types.MID, jnp.int8)
    target = _lambda_returns(config, imagined.reward, imagined.go_on, all_mid, value)
    weight = _weights(config, imagined.go_on)
    policy = static.policy_at(params.network, jax.tree.map(lambda x: x[:-1], imagined.state))
    advantage = (target - value[:-1]) / jnp.maximum(1.0, params.statistics.spread)
    entropy = policy.entropy(key)
    means = {
        "policy_loss": -weight * (policy.log_prob(imagined.sample) * advantage + config.entropy_cost * entropy),
        "value_loss": weight * static.critic_loss(logits[:-1], target, slow_value[:-1]),
        "entropy": entropy,
        "value": value[:-1],
    }
    found = {name: x.mean(0).reshape(shape) for name, x in means.items()}
    first = target[0].reshape(shape), logits[0].reshape(*shape, -1), slow_value[0].reshape(shape)
    low, high = jnp.percentile(target, jnp.array([_LOW, _HIGH]))
    return found | {"replay_value_loss": _replay_value_loss(static, rows, *first)}, high - low


def _replay_value_loss(static: _Static, rows: Batch, imagined: Array, logits: Array, slow_value: Array) -> Array:
    """Returns the critic's loss f32 [L, N] for λ-returns of replayed rewards; 0 for the row that closes a window.

    Args:
        static: of the agent.
        rows: [L, N].
        imagined: returns f32 [L, N] that were imagined from each row, which the λ-returns bootstrap from.
        logits: f32 [L, N, K], of the critic in these rows.
        slow_value: f32 [L, N], of its slow copy.
    """
    target = _lambda_returns(static.config, rows.reward, rows.discount, rows.step_type, imagined)
    loss = agents.taught_rows(rows.step_type[:-1]) * static.critic_loss(logits[:-1], target, slow_value[:-1])
    return jnp.concatenate([loss, jnp.zeros_like(loss[:1])])


def _lambda_returns(config: Config, reward: Array, discount: Array, step_type: Array, value: Array) -> Array:
    """Returns the λ-returns [L − 1, N] of columns [L, N] (equation 5)."""
    of_one = functools.partial(returns.lambda_returns, gamma=config.discount, lambda_=config.trace_decay)
    found: Array = jax.vmap(of_one, in_axes=1, out_axes=1)(reward, discount, step_type, value)
    return found


def _weights(config: Config, go_on: Array) -> Array:
    """Returns the weights f32 [H, M] of imagined steps: the probability that the episode reaches them, discounted."""
    factors = jnp.concatenate([go_on[:1], config.discount * go_on[1:-1]])
    return jnp.cumprod(factors, axis=0)


def _adapt(
    static: _Static, params: types.Params, sequences: types.Unroll, metrics: ArrayTree, aux: Array, axis: types.Axis
) -> types.Params:
    """Moves the distance of percentiles towards that of the newest imagined returns (equation 7)."""
    del sequences, metrics, axis
    spread = params.statistics.spread
    return params._replace(statistics=Statistics(spread + static.config.return_rate * (aux - spread)))
