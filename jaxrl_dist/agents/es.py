r"""Evolution strategies: environments play by perturbed parameters, whose mean moves to those with the best returns.

Environment i of n plays one episode, with its return F_i, by the parameters θ + s_i σ ε_k: environments 2k and 2k + 1
have the same normal noise ε_k and opposite signs s_i. Returns are replaced by their centred ranks u_i, from −1/2 to
1/2; equal returns share the mean of their ranks. The optimiser gets

.. math:: g = -\frac{1}{n} \sum_i u_i s_i \varepsilon_{\lfloor i / 2 \rfloor} + \lambda \theta

with λ `weight_decay`. Every device gathers all returns and makes all the noise once more, so that no gradient crosses
devices: what does is 8 bytes per environment, whatever the size of the network.

Source: Salimans et al. 2017, "Evolution strategies as a scalable alternative to reinforcement learning", algorithm 2
and section 2.1, and its code, openai/evolution-strategies-starter, which like this file leaves out the factor 1 / σ.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import actor_critic, normalisation
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.networks import encoders
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("discrete", "multi_discrete", "bounded", "unbounded")

_CODE = "openai/evolution-strategies-starter, configurations/humanoid.json"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of evolution strategies; defaults are those of the paper's code for MuJoCo."""

    sigma: float = setting(
        0.02, "Deviation of the noise on parameters (σ).", above=0.0, source=f"{_CODE} (noise_stdev)", sweep=True
    )
    weight_decay: float = setting(
        0.005,
        "Share of the parameters that is added to the gradient (λ), in which ranks weigh noise of deviation 1.",
        low=0.0,
        source=f"{_CODE} (l2coeff)",
        sweep=True,
    )
    normalise_observations: bool = shared.normalise_observations(
        False, source="openai/evolution-strategies-starter, es_distributed/policies.py (MuJoCo only)"
    )
    clip_observations: float = shared.clip_observations(
        0.0, source="openai/evolution-strategies-starter, es_distributed/policies.py (5, MuJoCo only)"
    )
    distribution: str = shared.distribution("gaussian", source="this project; actions are the mode")


class _Seen(NamedTuple):
    """Settings that `normalisation` reads; returns are ranked, so that no reward is scaled."""

    normalise_observations: bool
    clip_observations: float
    discount: float = 1.0
    scale_rewards: bool = False
    smallest_deviation: float = 0.0
    clip_rewards: float = 0.0
    reward_scale: float = 1.0


class Statistics(NamedTuple):
    """State that lives across generations.

    Attributes:
        key: u32 [2], data of the key of all noise.
        generation: i32 [], updates so far.
        observation: running moments of observations.
    """

    key: Array
    generation: Array
    observation: normalisation.Statistics


class Batch(NamedTuple):
    """Episodes of N environments.

    Attributes:
        member: i32 [N], global indices of the environments.
        fitness: f32 [N], returns.
    """

    member: Array
    fitness: Array


class _Static(NamedTuple):
    """Objects that the functions of an agent are bound to.

    Attributes:
        config: settings.
        seen: those of observations.
        spec: of the environment.
        net: network with the head of the policy.
        policy: outputs -> distribution over actions.
    """

    config: Config
    seen: _Seen
    spec: types.EnvironmentSpec
    net: networks.Network
    policy: Callable[[dict[str, Array]], Any]


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of the network.

    Raises:
        UsageError: the network or the distribution of actions does not fit the environment, or it has several agents,
            whose returns would not be of one member alone.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import es
        >>> agent = es.make(es.Config(), envs.make("toy:walk").spec, networks.Config(torso="mlp"))
        >>> perturbed, member = agent.exploration(agent.init(jax.random.key(0)), jnp.arange(6), 6, progress=0.0)
        >>> {leaf.shape[0] for leaf in jax.tree.leaves(perturbed)}, agent.fresh_episodes
        ({6}, True)
    """
    agents.check_alone(spec)
    told = "this agent has no values beside its policy"
    encoders.refuse_inputs("network.value_inputs", network.value_inputs, told, "network.policy_inputs")
    distribution, heads = actor_critic.policy_head(spec, config.distribution)
    # A vector that depends on no observation, such as deviations of a policy whose mode acts, would only be noise.
    heads = tuple(head._replace(inputs=network.policy_inputs) for head in heads if head.depends_on_input)
    seen = _Seen(config.normalise_observations, config.clip_observations)
    net = networks.make(network, normalisation.observed(seen, spec), heads)
    static = _Static(config, seen, spec, net, functools.partial(_policy, distribution))
    return agents.Agent(
        init=functools.partial(_init, static),
        init_carry=net.initial,
        act=functools.partial(_act, static),
        evaluate=functools.partial(_evaluate, static),
        prepare=_prepare,
        loss=agents.no_loss,
        staleness="none",
        keeps_sequences=True,
        exploration=functools.partial(_perturbed, config),
        gradient=functools.partial(_gradient, config),
        adapt=functools.partial(_adapt, static),
        adopt=_adopt,
        fresh_episodes=True,
    )


def _policy(distribution: Callable[[dict[str, Array]], Any], outputs: dict[str, Array]) -> Any:
    """Returns the distribution over actions, of whatever deviation where the network gives none."""
    return distribution({"log_std": jnp.zeros_like(outputs["policy"]), **outputs})


def _init(static: _Static, key: Array) -> types.Params:
    network_key, noise_key = jax.random.split(key)
    observation = normalisation.initial(static.seen, static.spec)
    statistics = Statistics(jax.random.key_data(noise_key), jnp.zeros((), jnp.int32), observation)
    return types.Params(static.net.init(network_key), statistics)


def _adopt(params: types.Params, other: types.Params) -> types.Params:
    """Returns parameters of another run; noise is that of this run's seed."""
    return other._replace(statistics=other.statistics._replace(key=params.statistics.key))


def _noise(statistics: Statistics, pair: Array, size: int) -> Array:
    """Returns ε f32 [P] of a pair of this generation."""
    key = jax.random.fold_in(jax.random.wrap_key_data(statistics.key), statistics.generation)
    return jax.random.normal(jax.random.fold_in(key, pair), (size,))


def _perturbed(
    config: Config, params: types.Params, env_index: Array, num_envs: int, progress: Array
) -> tuple[ArrayTree, Array]:
    """Returns the parameters of each environment, leaves [B, ...], and its index."""
    del num_envs, progress
    mean, unravel = ravel_pytree(params.network)

    def one(member: Array) -> ArrayTree:
        sign = 1.0 - 2.0 * (member % 2)
        return unravel(mean + sign * config.sigma * _noise(params.statistics, member // 2, mean.size))

    return jax.vmap(one)(env_index), env_index


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Acts in each environment by its own parameters; stores its index."""
    perturbed, member = inputs.exploration
    running, seen = params.statistics.observation, inputs.timestep.observation
    observation = normalisation.observation(static.seen, static.spec, running, seen)

    def one(network: ArrayTree, carry: ArrayTree, observation: ArrayTree, is_first: Array) -> Any:
        batch = jax.tree.map(lambda x: x[None], (carry, observation, is_first))
        return jax.tree.map(lambda x: x[0], static.net.step(network, *batch))

    outputs, carry = jax.vmap(one)(perturbed, inputs.carry, observation, agents.is_first(inputs.timestep))
    policy = static.policy(outputs)
    return types.ActOutput(policy.action(policy.mode()), member, carry)


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    timestep, running = inputs.timestep, params.statistics.observation
    observation = normalisation.observation(static.seen, static.spec, running, timestep.observation)
    outputs, carry = static.net.step(params.network, inputs.carry, observation, agents.is_first(timestep))
    policy = static.policy(outputs)
    return types.ActOutput(policy.action(policy.mode()), (), carry)


def _prepare(params: types.Params, inputs: types.LossInputs) -> Batch:
    """Adds up the first episode of each environment, with its return so far where the unroll cuts it."""
    del params
    steps: types.Step = inputs.batch.steps
    episode = jnp.cumsum(agents.is_first(steps.timestep).astype(jnp.int32), 0)
    fitness = jnp.where(episode == 1, steps.timestep.reward, 0.0).sum(0)
    return Batch(steps.extras[0], fitness)


def _gradient(config: Config, params: types.Params, inputs: types.LossInputs) -> types.Gradient:
    """Returns the gradient over all devices, and the sum of all returns."""
    batch: Batch = inputs.batch
    member, fitness = inputs.axis.gather((batch.member, batch.fitness))
    count, pairs = len(fitness), (len(fitness) + 1) // 2
    if count == 1:
        raise UsageError(given("env.num_envs", 1), ": one member has no rank among others; valid: 2 and more")
    signed = centred_ranks(fitness) * (1.0 - 2.0 * (member % 2))
    weights = jnp.zeros(pairs).at[member // 2].add(signed)
    mean, unravel = ravel_pytree(params.network)

    def add(total: Array, one: tuple[Array, Array]) -> tuple[Array, None]:
        weight, pair = one
        return total + weight * _noise(params.statistics, pair, mean.size), None

    total, _ = jax.lax.scan(add, jnp.zeros_like(mean), (weights, jnp.arange(pairs)))
    sums = unravel(count * config.weight_decay * mean - total)
    metrics, maxima = {"fitness": fitness.sum()}, {"largest_fitness": fitness.max()}
    return types.Gradient(sums, jnp.zeros(()), jnp.float32(count), metrics, maxima, jnp.zeros_like(batch.fitness))


def centred_ranks(fitness: Array) -> Array:
    """Returns ranks of f32 [n] from −1/2 for the lowest to 1/2 for the highest; equal numbers share the mean of theirs.

    Args:
        fitness: f32 [n].

    Source: Salimans et al. 2017, section 2.1 (fitness shaping); its code's compute_centered_ranks orders equal numbers
        by their places.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents import es
        >>> print(es.centred_ranks(jnp.array([7.0, -1.0, 7.0])))
        [ 0.25 -0.5   0.25]
    """
    ordered = jnp.sort(fitness)
    below, up_to = (jnp.searchsorted(ordered, fitness, side) for side in ("left", "right"))
    return 0.5 * (below + up_to - len(fitness)) / max(len(fitness) - 1, 1)


def _adapt(
    static: _Static, params: types.Params, sequences: types.Unroll, metrics: Any, aux: Any, axis: types.Axis
) -> types.Params:
    """Begins the next generation, and moves the moments of observations."""
    del metrics, aux
    statistics, timestep = params.statistics, sequences.steps.timestep
    observation = normalisation.update(static.seen, static.spec, statistics.observation, timestep, (), axis)
    return params._replace(statistics=Statistics(statistics.key, statistics.generation + 1, observation))
