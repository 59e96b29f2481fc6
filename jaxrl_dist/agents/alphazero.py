r"""AlphaZero: a tree search in the environment itself, whose results the network learns to predict.

The model of the search is the environment's own step, from the state that it is in. With π the search's policy, p and v
those of the network, CE the cross-entropy, φ the two atoms next to h(x), and ν the search's value, the loss of a row is

.. math:: L = CE(\pi_t, p_t) + c \, CE(\phi(z_t), v_t), \qquad
   z_t = \sum_{i=0}^{n-1} \gamma^i r_{t+1+i} + \gamma^n \nu_{t+n}

With n the longest game, z is its outcome. Where two players take turns, γ is negative: a reward is of the player who
moved, and the value of the next row is the other's. Each step of the search draws randomness of its own, so that it
does not see what the environment will draw. Behind the end of an episode there is no reward, and the value stays.

Source: Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go through
self-play", equation 1 and "Methods"; Danihelka et al. 2022 (`agent.search=gumbel`). Differs from the paper: values
are distributions over atoms as in MuZero, so that returns may have any size, targets may look n steps ahead, and
weights
are not decayed unless `learner.optimizer` does it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import shared
from jaxrl_dist.agents.shared import action_values, opponent_pool, search
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.settings import OURS, setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("discrete",)
_PAPER = "Silver et al. 2018"


@dataclasses.dataclass(frozen=True)
class Config(search.Config, opponent_pool.Config):
    """Settings of AlphaZero; defaults are the paper's for chess."""

    discount: float = shared.discount(1.0, source=f"{_PAPER}, equation 1 (the outcome of a game)")
    n_step: int = shared.n_step(10, source=f"{OURS} ({_PAPER}: to the end of the game)")
    simulations: int = setting(800, "Simulations of a search.", low=1, source=f"{_PAPER}, Methods, Configuration")
    dirichlet_alpha: float = setting(
        0.3,
        "Search muzero: concentration of the noise at the root.",
        above=0.0,
        sweep=True,
        source=f"{_PAPER}, Methods, Configuration (.03 in Go)",
    )
    temperature: float = setting(
        1.0,
        "Search muzero: actors act in proportion to visits to the power of 1 / temperature.",
        above=0.0,
        sweep=True,
        source=f"{_PAPER}, Methods, Configuration",
    )
    rescale_values: bool = setting(
        True,
        "Action values are scaled to [0, 1] by the least and the largest of a node, before they are weighed; off for "
        "returns between −1 and 1, as in the paper's games, since noise is scaled as well where all are equal.",
        source=f"{OURS}: returns of any size",
    )
    value_cost: float = setting(1.0, "Weight of the value's loss.", low=0.0, sweep=True, source=f"{_PAPER}, equation 1")


class Batch(NamedTuple):
    """N rows.

    Attributes:
        inputs: tree of [N, ...], of the network.
        value: f32 [N], target z.
        policy: f32 [N, A], target π.
        taught: f32 [N], 1 where the row teaches.
    """

    inputs: ArrayTree
    value: Array
    policy: Array
    taught: Array


class _Static(NamedTuple):
    config: Config
    net: networks.Network
    step: Callable[..., Any]
    atoms: Any
    gamma: float


class _Thought(NamedTuple):
    """State of a node: leaves [B, ...] of environments but for random keys, frames, and the node's value f32 [B]."""

    leaves: list[Array]
    carry: ArrayTree
    value: Array


def make(
    config: Config, spec: types.EnvironmentSpec, network: networks.Config, step: Callable[..., Any]
) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of the network.
        step: `envs.Environment.step` of that environment.

    Raises:
        UsageError: actions are not choices of few, the core has a memory, mctx is not installed, several agents act at
            a time, or there is a pool of opponents without a game of two.

    Example:
        >>> import jax
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import alphazero
        >>> environment = envs.make("toy:walk")
        >>> agent = alphazero.make(
        ...     alphazero.Config(), environment.spec, networks.Config(torso="mlp"), environment.step
        ... )
        >>> sorted(agent.init(jax.random.key(0)).network)
        ['outputs_policy', 'outputs_value', 'torsos_0']
    """
    search.library(config)
    agents.check_alone(spec)
    networks.check_single_steps(network.core)
    num_actions = action_values.check_discrete(spec)
    heads = (
        networks.Head("policy", num_actions, 0.01, inputs=network.policy_inputs),
        networks.Head("value", config.num_atoms, 0.01, inputs=network.value_inputs),
    )
    net = networks.make(network, spec, heads)
    gamma = search.signed_discount(config, spec)
    static = _Static(config, net, jax.vmap(step), search.support(config), gamma)
    agent = agents.Agent(
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
        exploration=functools.partial(search.constant_temperature, temperature=config.temperature),
    )
    return opponent_pool.make(agent, config, spec)


def _act(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    action, found, carry = _search(static, params, inputs, inputs.exploration)
    return types.ActOutput(action, found, carry)


def _evaluate(static: _Static, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    action, _, carry = _search(static, params, inputs, None)
    return types.ActOutput(action, (), carry)


def _search(
    static: _Static, params: types.Params, inputs: types.ActInputs, temperature: Array | None
) -> tuple[Array, search.Found, ArrayTree]:
    """Searches from the states that the environments are in; returns actions, what was found, and the carry."""
    leaves, structure = jax.tree.flatten(inputs.state)
    if not leaves:
        raise UsageError(
            given("system", "alphazero"),
            " steps the environment in thought, and has no state of it here; valid where only observations are known: ",
            given("system", "muzero"),
        )
    root, mask, carry = _node(static, params.network, inputs.carry, inputs.timestep)

    def model(network: ArrayTree, key: Array, action: Array, before: ArrayTree) -> search.Edge:
        plain, keys = iter(before.leaves), iter(jax.random.split(key, len(leaves)))
        state = [jax.random.split(next(keys), x.shape) if _is_key(x) else next(plain) for x in leaves]
        stepped, timestep = static.step(jax.tree.unflatten(structure, state), action)
        node, _, carry = _node(static, network, before.carry, timestep._replace(info=()))
        after = _Thought(_without_keys(stepped), carry, node.value)
        # A step from an ended state resets, which is no move of the game.
        stays = timestep.step_type == types.FIRST
        after = jax.tree.map(functools.partial(_chosen, stays), before, after)
        reward = jnp.where(stays, 0.0, timestep.reward)
        discount = jnp.where(stays, 1.0, static.gamma * timestep.discount)
        return search.Edge(reward, discount, search.Node(node.logits, after.value, after))

    thought = _Thought(_without_keys(leaves), carry, root.value)
    start = search.Node(root.logits, root.value, thought)
    action, found = search.run(static.config, model, params.network, inputs.key, start, mask, temperature)
    return action, found, carry


def _node(
    static: _Static, network: ArrayTree, carry: ArrayTree, timestep: types.TimeStep
) -> tuple[search.Node, Array | None, ArrayTree]:
    """Returns what the network says of timesteps [B], their mask of legal actions, and the next carry."""
    outputs, carry = static.net.step(network, carry, timestep.observation, agents.is_first(timestep))
    mask = outputs.get("mask")
    logits = search.legal(outputs["policy"], mask)
    return search.Node(logits, search.number(outputs["value"], static.atoms), ()), mask, carry


def _is_key(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def _without_keys(state: ArrayTree) -> list[Array]:
    return [x for x in jax.tree.leaves(state) if not _is_key(x)]


def _chosen(first: Array, one: Array, other: Array) -> Array:
    """Chooses between leaves [B, ...] by bool [B]."""
    return jnp.where(first.reshape(-1, *(1,) * (one.ndim - 1)), one, other)


def _prepare(static: _Static, params: types.Params, inputs: types.LossInputs) -> Batch:
    """Makes the targets of each window's taught row."""
    del params
    sequences, context = inputs.batch, static.net.context
    timestep = sequences.steps.timestep
    seen = static.net.inputs(sequences.carry.frames, timestep.observation, agents.is_first(timestep))
    rows, seen = jax.tree.map(lambda x: x[context:], (sequences.steps, seen))
    policy, taught = rows.extras.policy[0], agents.taught_rows(rows.timestep.step_type[0])
    if static.config.pool_size:
        taught *= opponent_pool.has_policy(policy)
    value = search.n_step_values(static.config.n_step, static.gamma, rows.timestep, rows.extras.value)[0]
    return Batch(jax.tree.map(lambda x: x[0], seen), value, policy, taught)


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Computes the loss of rows (equation 1)."""
    config, batch = static.config, inputs.batch
    outputs = networks.of_rows(static.net, params.network, batch.inputs)
    of_policy = search.policy_loss(search.legal(outputs["policy"], outputs.get("mask")), batch.policy)
    of_value = search.number_loss(outputs["value"], batch.value, static.atoms)
    predicted = jax.lax.stop_gradient(search.number(outputs["value"], static.atoms))
    found = {
        "policy_loss": of_policy,
        "value_loss": of_value,
        "loss": of_policy + config.value_cost * of_value,
        "value": predicted,
        "td_error": jnp.abs(predicted - batch.value),
    }
    metrics = {name: jnp.where(batch.taught > 0, x, 0.0) for name, x in found.items()}
    return types.LossOutput(metrics["loss"], batch.taught, metrics["td_error"], metrics, {})
