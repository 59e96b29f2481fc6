"""Agents: one file each, a `Config` and a `make(config, spec, network) -> Agent` of pure functions."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import errors, types
from jaxrl_dist.types import Array, ArrayTree


def no_exploration(params: types.Params, env_index: Array, num_envs: int, progress: Array) -> ArrayTree:
    """Returns (), for agents whose policy explores by itself."""
    del params, env_index, num_envs, progress
    return ()


# Ages of the policy that acted, from the strictest; see `Agent`.
STALENESS = ("none", "own", "corrected", "any")


def no_loss(params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """Stands for the loss of an agent that gives its gradient itself; nobody calls it.

    Args:
        params: of the agent.
        inputs: of a batch.

    Raises:
        ValueError: always.

    Example:
        >>> from jaxrl_dist import agents, envs, networks
        >>> from jaxrl_dist.agents import es
        >>> agent = es.make(es.Config(), envs.make("toy:walk").spec, networks.Config(torso="mlp"))
        >>> agent.loss is agents.no_loss, agent.gradient is None
        (True, False)
    """
    raise ValueError("this agent has no loss, it gives its gradient itself")


def no_adaptation(
    params: types.Params, sequences: types.Unroll, metrics: Any, aux: ArrayTree, axis: types.Axis
) -> types.Params:
    """Returns the parameters unchanged, for agents without statistics."""
    del sequences, metrics, aux, axis
    return params


def no_target(network: ArrayTree) -> ArrayTree:
    """Returns `()`, for agents without a target network."""
    del network
    return ()


def take_other(params: types.Params, other: types.Params) -> types.Params:
    """Returns the other run's parameters, for agents none of whose settings is the first value of a parameter."""
    del params
    return other


class Agent(NamedTuple):
    """Pure functions of one agent: init, init_carry, act, evaluate, prepare, loss; the rest has defaults.

    B columns, one for each agent of an environment; L rows per window, N items, M minibatches.

    Attributes:
        init: (key) -> `types.Params`.
        init_carry: (batch_size) -> acting state, leaves [B, ...].
        act: (params, `types.ActInputs`) -> `types.ActOutput`.
        evaluate: likewise, as episodes are scored: the greedy or likeliest action, or a draw where
            `agent.evaluation_action` is `sample`.
        prepare: (params, `types.LossInputs` of an unroll) -> batch, leaves [N', ...]. N' is N, an item for each column,
            or a multiple of N: rows in time-major order, as a reshape of [T, N] gives them; the learner repeats the N
            importance weights in that order.
        loss: (params, `types.LossInputs` of that batch) -> `types.LossOutput`, leaves f32 [N']; `no_loss` for an agent
            with a `gradient`.
        staleness: one of `STALENESS`, the age of the policy that acted; a layout that cannot guarantee it is refused.
            `none`: the newest policy, whose rows are learned from once; `own`: the newest policy, whose rows are gone
            over again with targets that are made once; `corrected` or `any`: also older policies.
        context: rows before a window's taught rows (k − 1 for a stack of k frames, the burn-in of a recurrent core).
        taught: taught rows of a window that a replay cuts; 0 takes the unroll whole.
        lookahead: rows after the taught ones that the targets need (n of n-step returns).
        keeps_sequences: whether `prepare` keeps whole sequences (a recurrent core): items are columns, not rows.
        exploration: (params, env_index i32 [B], num_envs, progress f32 []) -> tree of [B, ...], once per unroll; with
            several agents in an environment, indices and number are those of columns.
        epoch: (batch, order i32 [M, N' / M], axis) -> batch: computes once per epoch, over all devices, values that
            depend on which items are in a minibatch; None if there are none.
        gradient: (params, `types.LossInputs` of the batch, once per update) -> `types.Gradient` over the rows of all
            devices, of which the learner reduces nothing; None takes it of `loss`. For an agent of staleness `none`.
        adapt: (params, sequences, metrics, aux, axis) -> params; changes `params.statistics` only, once per update;
            `aux` is the mean of `LossOutput.aux`.
        target: (network) -> target network; `()` for an agent without one.
        parts: key of the network's dict -> `types.Part`, for networks whose values have an optimiser each; empty if one
            optimiser serves all. Keys have no meaning of their own.
        first_error: (`types.Unroll` [L, N] without observations and carry) -> f32 [N], the error of new windows,
            computed from stored extras; None leaves it to the replay.
        pace: (rate f32 [], metrics) -> rate; moves the step size before each gradient step, by the metrics of the
            minibatch's loss, means over all devices; None leaves it to the learner's schedule.
        adopt: (params, params of another run), leaves [S, ...] -> params that start from the other's; what a setting or
            the seed alone decides stays that of this run.
        fresh_episodes: whether all environments begin anew where an unroll opens; for anakin.
        columns_per_item: columns that are one item of a batch together, the agents of an environment whose parameters
            are apart.
        acts_together: whether `act` tells columns apart by their places, so that all of them act at once.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks, types
        >>> from jaxrl_dist.agents import ppo
        >>> environment = envs.make("toy:walk")
        >>> agent = ppo.make(ppo.Config(), environment.spec, networks.Config(torso="mlp"))
        >>> state, timestep = envs.columns(environment).reset(jax.random.key(0), jnp.arange(3))
        >>> inputs = types.ActInputs(timestep, agent.init_carry(3), jax.random.key(1))
        >>> output = agent.act(agent.init(jax.random.key(2)), inputs)
        >>> output.action.shape, output.extras.log_prob.shape
        ((3,), (3,))
    """

    init: Callable[[Array], types.Params]
    init_carry: Callable[[int], ArrayTree]
    act: Callable[[types.Params, types.ActInputs], types.ActOutput]
    evaluate: Callable[[types.Params, types.ActInputs], types.ActOutput]
    prepare: Callable[[types.Params, types.LossInputs], ArrayTree]
    loss: Callable[[types.Params, types.LossInputs], types.LossOutput]
    staleness: str
    context: int = 0
    taught: int = 0
    lookahead: int = 0
    keeps_sequences: bool = False
    exploration: Callable[..., ArrayTree] = no_exploration
    epoch: Callable[..., ArrayTree] | None = None
    gradient: Callable[[types.Params, types.LossInputs], types.Gradient] | None = None
    adapt: Callable[..., types.Params] = no_adaptation
    target: Callable[[ArrayTree], ArrayTree] = no_target
    parts: Mapping[str, types.Part] = {}
    first_error: Callable[[types.Unroll], Array] | None = None
    pace: Callable[[Array, Mapping[str, Array]], Array] | None = None
    adopt: Callable[[types.Params, types.Params], types.Params] = take_other
    fresh_episodes: bool = False
    columns_per_item: int = 1
    acts_together: bool = False

    def __repr__(self) -> str:
        return types.short_repr(self)


def copy_target(network: ArrayTree) -> ArrayTree:
    """Copies the network, so that both may be donated."""
    return jax.tree.map(jnp.copy, network)


def is_first(timestep: types.TimeStep) -> Array:
    """Returns bool, whether each timestep opens an episode."""
    return timestep.step_type == types.FIRST


def taught_rows(step_type: Array) -> Array:
    """Returns f32, 1 where the row's action was executed; the row that leaves a LAST step teaches nothing."""
    return (step_type != types.LAST).astype(jnp.float32)


def seen_reward(reward: Array, bound: float, scale: float) -> Array:
    """Returns rewards f32 [...] as an agent learns from them: clipped to ± `bound` unless it is 0, times `scale`.

    Args:
        reward: f32 [...].
        bound: of the clip; 0 clips nothing.
        scale: factor; that of a member of a sweep is f32 [].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import agents
        >>> print(agents.seen_reward(jnp.array([-3.0, 0.5]), bound=1.0, scale=10.0))
        [-10.   5.]
    """
    clipped = clip(reward, bound)
    if isinstance(scale, float | int) and float(scale) == 1.0:
        return clipped
    return apart(reward, scale * clipped)


def apart(reward: Array, product: Array) -> Array:
    """Returns a product of rewards so that it is rounded before it enters a sum.

    In r·scale + γ·v a compiler may join either product with the sum, in one rounding, and chooses by what is constant:
    a member of a sweep of γ would differ from the run alone. A selection is joined with nothing.

    Args:
        reward: f32 [...], 0 only where the product is.
        product: f32 [...].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import agents
        >>> reward = jnp.array([2.0, 0.0])
        >>> print(agents.apart(reward, 0.5 * reward))
        [1. 0.]
    """
    return jnp.where(reward == 0, 0.0, product)


def clip(x: Array, bound: float) -> Array:
    """Clips to ± `bound`; a bound of 0 clips nothing."""
    return jnp.clip(x, -bound, bound) if bound else x


def check_alone(spec: types.EnvironmentSpec) -> None:
    """Refuses an environment of several agents, for systems that need one column of each environment.

    Args:
        spec: of the environment.

    Raises:
        UsageError: several agents act together.

    Example:
        >>> from jaxrl_dist import agents, envs
        >>> agents.check_alone(envs.make("toy:team").spec)
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: env=toy:team: 3 agents act together, and this system needs one; valid: system=ippo
    """
    if spec.num_agents > 1:
        raise errors.UsageError(
            errors.given("env", spec.name),
            f": {spec.num_agents} agents act together, and this system needs one; valid: ",
            errors.given("system", "ippo"),
        )
