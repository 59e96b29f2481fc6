"""Self-play against a pool of past networks, which move for one of two players in a share of the games.

The other games are of the newest network against itself. Of the pool's games, the rows in which a past network moved
have a policy of zeros, and teach no policy; AlphaZero learns nothing from them, MuZero values and rewards, and a policy
where it searches once more.

Source: OpenAI et al. 2019, "Dota 2 with large scale deep reinforcement learning" (80 % of games against the newest
network, the others against past ones); there past opponents are drawn by how strong they are, here each has as many
games.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import agents, types
from jaxrl_dist.agents import wrapping
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.settings import OURS, setting
from jaxrl_dist.types import Array, ArrayTree

_PAPER = "OpenAI et al. 2019 (Dota 2)"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the pool."""

    pool_size: int = setting(
        0, "Games of two: past networks that are kept as opponents; 0 plays the newest alone.", low=0, source=OURS
    )
    pool_share: float = setting(
        0.2,
        "Games of two: share of the environments in which a past network moves for one player.",
        above=0.0,
        high=1.0,
        source=f"{_PAPER}, opponent sampling (80 % of games are against the newest)",
    )
    pool_period: int = setting(
        1_000, "Games of two: updates from one network that is kept to the next.", low=1, source=OURS
    )


class Pool(NamedTuple):
    """Past networks; the first one until others are kept.

    Attributes:
        networks: tree of [K, ...].
        updates: i32 [], updates so far.
    """

    networks: ArrayTree
    updates: Array


class Carry(NamedTuple):
    """Acting state of B columns.

    Attributes:
        own: that of the agent.
        moves: i32 [B], moves of the game before this one.
        games: i32 [B], games so far.
    """

    own: ArrayTree
    moves: Array
    games: Array


_PLACE = wrapping.Place(
    own=lambda params: params._replace(statistics=()),
    put=lambda params, own: own._replace(statistics=params.statistics),
)


def make(agent: agents.Agent, config: Config, spec: types.EnvironmentSpec) -> agents.Agent:
    """Lets past networks of an agent play; with a `pool_size` of 0 it is the agent itself.

    Args:
        agent: without statistics; its extras have a `policy` f32 [B, A].
        config: settings.
        spec: of the environment.

    Raises:
        UsageError: the environment is no game of two who move in turn.

    Example:
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.agents.shared import opponent_pool
        >>> spec = envs.make("toy:walk").spec
        >>> opponent_pool.make("an agent", opponent_pool.Config(), spec)
        'an agent'
        >>> opponent_pool.make("an agent", opponent_pool.Config(pool_size=4), spec)
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: agent.pool_size=4: toy:walk is no game of two who move in turn; valid: 0
    """
    if not config.pool_size:
        return agent
    if spec.players != 2:
        raise UsageError(
            given("agent.pool_size", config.pool_size), f": {spec.name} is no game of two who move in turn; valid: 0"
        )
    made = wrapping.forwarded(agent, _PLACE, functools.partial(_init, agent, config.pool_size))
    return made._replace(
        init_carry=functools.partial(_init_carry, agent),
        act=functools.partial(_act, agent, config),
        evaluate=functools.partial(_evaluate, agent),
        prepare=functools.partial(_prepare, agent),
        adapt=functools.partial(_adapt, config),
        acts_together=True,
    )


def has_policy(policy: Array) -> Array:
    """Returns bool [...], whether the newest network chose the action, of policies f32 [..., A].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import opponent_pool
        >>> print(opponent_pool.has_policy(jnp.array([[0.5, 0.5], [0.0, 0.0]])))
        [ True False]
    """
    return policy.any(-1)


def _init(agent: agents.Agent, size: int, key: Array) -> types.Params:
    params = agent.init(key)
    networks = jax.tree.map(lambda x: jnp.repeat(x[None], size, 0), params.network)
    return params._replace(statistics=Pool(networks, jnp.int32(0)))


def _init_carry(agent: agents.Agent, size: int) -> Carry:
    return Carry(agent.init_carry(size), jnp.zeros(size, jnp.int32), jnp.zeros(size, jnp.int32))


def _act(agent: agents.Agent, config: Config, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    """Acts by the newest network, but for the moves of past ones in the last columns."""
    is_first = agents.is_first(inputs.timestep)
    moves, games = jnp.where(is_first, 0, inputs.carry.moves), inputs.carry.games + is_first
    own_key, pool_key = jax.random.split(inputs.key)
    inputs = inputs._replace(carry=inputs.carry.own, key=own_key)
    output = agent.act(_PLACE.own(params), inputs)
    first, count = _places(config, moves.shape[0])
    keys = jax.random.split(pool_key, config.pool_size)

    def of_pool(x: Array) -> Array:
        return x[first:].reshape(config.pool_size, count // config.pool_size, *x.shape[1:])

    def past(network: ArrayTree, key: Array, *seen: ArrayTree) -> Array:
        timestep, carry, exploration, state = seen
        inputs = types.ActInputs(timestep, carry, key, exploration, state)
        return agent.act(types.Params(network, ()), inputs).action

    seen = jax.tree.map(of_pool, (inputs.timestep, inputs.carry, inputs.exploration, inputs.state))
    action = jax.vmap(past)(params.statistics.networks, keys, *seen).reshape(-1)
    # A past network begins every second game of a column, and those of every second column at first.
    theirs = (moves[first:] + games[first:] + jnp.arange(count)) % 2 == 0
    mine, policy = output.action[first:], output.extras.policy[first:]
    action = output.action.at[first:].set(jnp.where(theirs, action, mine))
    policy = output.extras.policy.at[first:].set(jnp.where(theirs[:, None], 0.0, policy))
    return types.ActOutput(action, output.extras._replace(policy=policy), Carry(output.carry, moves + 1, games))


def _places(config: Config, columns: int) -> tuple[int, int]:
    """Returns the first column of the pool and the number of them, as many for each past network.

    Raises:
        UsageError: there are fewer than past networks.
    """
    # 100 × .29 is a little less than 29.
    count = int(columns * config.pool_share + 1e-6) // config.pool_size * config.pool_size
    if not count:
        raise UsageError(
            given("agent.pool_size", config.pool_size),
            f": {columns} environments on a device × ",
            given("agent.pool_share", config.pool_share),
            " are fewer than one for each network; valid: fewer networks, or more of ",
            given("env.num_envs", "…"),
        )
    return columns - count, count


def _evaluate(agent: agents.Agent, params: types.Params, inputs: types.ActInputs) -> types.ActOutput:
    output = agent.evaluate(_PLACE.own(params), inputs._replace(carry=inputs.carry.own))
    return output._replace(carry=inputs.carry._replace(own=output.carry))


def _prepare(agent: agents.Agent, params: types.Params, inputs: types.LossInputs) -> ArrayTree:
    sequences = inputs.batch._replace(carry=inputs.batch.carry.own)
    return agent.prepare(_PLACE.own(params), inputs._replace(batch=sequences))


def _adapt(config: Config, params: types.Params, *rest: ArrayTree) -> types.Params:
    """Keeps the network after each `pool_period` updates, in place of the oldest."""
    del rest
    pool: Pool = params.statistics
    updates = pool.updates + 1
    is_due, place = updates % config.pool_period == 0, (updates // config.pool_period - 1) % config.pool_size

    def kept(past: Array, new: Array) -> Array:
        return past.at[place].set(jnp.where(is_due, new, past[place]))

    return params._replace(statistics=Pool(jax.tree.map(kept, pool.networks, params.network), updates))
