"""Parts of agents that learn values of actions: heads, dueling, ε-greedy choice, schedule and ladder of ε."""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import errors, networks, types
from jaxrl_dist.networks import encoders
from jaxrl_dist.numeric import distributions, values
from jaxrl_dist.types import Array

# By which shares of training may miss 1.
_ROUNDING = 1e-6


class Seen(NamedTuple):
    """Values that an actor computed.

    Attributes:
        taken: f32 [B], value of the action that it took; [B, C] for C critics.
        best: f32 [B], value of the best action; for several critics the lowest.
    """

    taken: Array
    best: Array


def check_discrete(spec: types.EnvironmentSpec) -> int:
    """Returns the number of actions A.

    Args:
        spec: of the environment.

    Raises:
        UnfitError: actions are real-valued, or vectors of choices.

    Example:
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.agents.shared import action_values
        >>> action_values.check_discrete(envs.make("toy:walk").spec)
        3
    """
    if not isinstance(spec.action, types.DiscreteSpace):
        what = "vectors of choices" if isinstance(spec.action, types.MultiDiscreteSpace) else "real"
        told = errors.given("env", spec.name), f": its actions are {what}, and this agent needs one choice of few"
        raise errors.UnfitError(*told, actions=spec.action.kind)
    return spec.action.num_values


def heads(
    num_actions: int, dueling: bool, num_atoms: int = 1, noise: float = 0.0, inputs: tuple[str, ...] = ()
) -> tuple[networks.Head, ...]:
    """Returns the heads whose outputs `join` takes.

    Args:
        num_actions: A.
        dueling: whether value and advantages have a head each.
        num_atoms: atoms of a distribution, whose logits or places are the outputs; 1 for plain values.
        noise: σ₀ of noisy layers; 0 for plain ones.
        inputs: of these heads, from `inputs_of`.

    Example:
        >>> from jaxrl_dist.agents.shared import action_values
        >>> [(head.name, head.size) for head in action_values.heads(3, dueling=True, num_atoms=5)]
        [('value', 5), ('advantage', 15)]
    """
    sizes = {"value": num_atoms, "advantage": num_actions * num_atoms} if dueling else {"q": num_actions * num_atoms}
    return tuple(networks.Head(name, size, 1.0, noise=noise, inputs=inputs) for name, size in sizes.items())


def inputs_of(network: networks.Config) -> tuple[str, ...]:
    """Returns the leaves of the observation that the values of actions see.

    Args:
        network: settings of the network.

    Raises:
        UsageError: some are given for a policy.

    Example:
        >>> from jaxrl_dist import networks
        >>> from jaxrl_dist.agents.shared import action_values
        >>> action_values.inputs_of(networks.Config(value_inputs=("goal",)))
        ('goal',)
    """
    told = "this agent has no policy beside its values of actions"
    encoders.refuse_inputs("network.policy_inputs", network.policy_inputs, told, "network.value_inputs")
    return network.value_inputs


def join(outputs: dict[str, Array], num_actions: int) -> Array:
    """Joins the outputs of heads.

    Args:
        outputs: name of a head -> f32 [..., size], of the heads that `heads` returns.
        num_actions: A.

    Returns:
        Values f32 [..., A], −inf of illegal actions; or distributions f32 [..., A, atoms] if heads have more than one
        atom, whose `means` know illegal actions.

    Source: Wang et al. 2016, "Dueling network architectures for deep reinforcement learning", equation 9; over
        distributions: Hessel et al. 2018, section "Rainbow".

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import action_values
        >>> outputs = {"value": jnp.array([[5.0]]), "advantage": jnp.array([[1.0, 2.0, 3.0]])}
        >>> print(action_values.join(outputs, num_actions=3))
        [[4. 5. 6.]]
    """
    first = outputs["q"] if "q" in outputs else outputs["advantage"]
    q = first.reshape(*first.shape[:-1], num_actions, -1)
    if "value" in outputs:
        q = outputs["value"][..., None, :] + q - q.mean(-2, keepdims=True)
    return distributions.masked(q[..., 0], outputs.get("mask")) if q.shape[-1] == 1 else q


def means(q: Array, support: Any, outputs: dict[str, Array]) -> Array:
    """Returns the values f32 [..., A] of actions, −inf of illegal ones.

    Args:
        q: values f32 [..., A]; or logits of atoms, or quantiles, f32 [..., A, atoms]; from `join`.
        support: atoms f32 [atoms] of q's logits, None of values and quantiles.
        outputs: name of a head -> f32 [..., size], from which q was joined.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import action_values
        >>> outputs = {"q": jnp.zeros((1, 4)), "mask": jnp.array([[True, False]])}
        >>> q = action_values.join(outputs, num_actions=2)
        >>> print(action_values.means(q, jnp.array([1.0, 3.0]), outputs))
        [[  2. -inf]]
    """
    if support is not None:
        return distributions.masked(values.mean_of_atoms(q, support), outputs.get("mask"))
    is_plain = q.ndim == next(iter(outputs.values())).ndim
    return q if is_plain else distributions.masked(q.mean(-1), outputs.get("mask"))


def of_action(q: Array, action: Array) -> Array:
    """Selects by actions.

    Args:
        q: values f32 [..., A], or distributions f32 [..., A, atoms].
        action: i32 [...].

    Returns:
        f32 [...] of values, [..., atoms] of logits.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import action_values
        >>> print(action_values.of_action(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, 0])))
        [2. 3.]
    """
    if q.shape[action.ndim] > distributions.UNROLLED_ACTIONS:
        return _gathered(q, action)
    # A gather's gradient is a scatter, which accelerators start by itself.
    found: Array = jax.lax.platform_dependent(q, action, cpu=_gathered, default=_summed)
    return found


def _gathered(q: Array, action: Array) -> Array:
    axis = action.ndim
    index = action.reshape(*action.shape, *(1,) * (q.ndim - axis))
    return jnp.take_along_axis(q, index, axis=axis).squeeze(axis)


def _summed(q: Array, action: Array) -> Array:
    axis = action.ndim
    action = action.reshape(*action.shape, *(1,) * (q.ndim - axis - 1))
    parts = (jax.lax.index_in_dim(q, i, axis, keepdims=False) for i in range(q.shape[axis]))
    return functools.reduce(operator.add, [jnp.where(action == i, part, 0.0) for i, part in enumerate(parts)])


def epsilon_greedy(q: Array, key: Array, epsilon: Array | float, *, some_illegal: bool = False) -> Array:
    """Returns the best actions, or with probability ε any legal one at random.

    Args:
        q: values f32 [B, A], −inf of illegal actions.
        key: typed key [].
        epsilon: ε f32 [B], or one number for all, of which 0 draws nothing.
        some_illegal: whether any action can be illegal.

    Returns:
        i32 [B].

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import action_values
        >>> q = jnp.array([[1.0, 2.0], [4.0, 3.0]])
        >>> print(action_values.epsilon_greedy(q, jax.random.key(0), epsilon=jnp.zeros(2)))
        [1 0]
    """
    greedy = jnp.argmax(q, axis=-1).astype(jnp.int32)
    if isinstance(epsilon, float) and epsilon == 0:
        return greedy
    uniform = jax.random.uniform(key, (2, *greedy.shape))
    random = jnp.minimum((uniform[0] * q.shape[-1]).astype(jnp.int32), q.shape[-1] - 1)
    if some_illegal:
        random = _nth_legal(q > -jnp.inf, uniform[0])
    return jnp.where(uniform[1] < epsilon, random, greedy)


def _nth_legal(legal: Array, uniform: Array) -> Array:
    """Returns i32 [B], the action at the share `uniform` f32 [B] of the legal ones, bool [B, A], in their order."""
    count = legal.sum(-1)
    nth = jnp.minimum((uniform * count).astype(jnp.int32), count - 1)
    return jnp.argmax(jnp.cumsum(legal, axis=-1) > nth[:, None], axis=-1).astype(jnp.int32)


def epsilon_schedule(
    params: types.Params,
    env_index: Array,
    num_envs: int,
    progress: Array,
    *,
    start: float,
    end: float,
    fraction: float,
    wait: float = 0.0,
) -> Array:
    """Returns ε, the same for every environment: it falls linearly from start to end.

    It falls in the share `fraction` of training, after the share `wait` in which it stays at its start.

    Args:
        params: parameters, not used.
        env_index: i32 [B].
        num_envs: not used.
        progress: f32 [], share of training.
        start: ε at first.
        end: ε after the schedule.
        fraction: share of training in which ε falls.
        wait: share of training before it.

    Returns:
        f32 [B].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import action_values
        >>> print(action_values.epsilon_schedule((), jnp.arange(2), 2, 0.25, start=1.0, end=0.0, fraction=0.5))
        [0.5 0.5]
    """
    del params, num_envs
    share = jnp.clip((progress - wait) / fraction, 0.0, 1.0)
    return jnp.broadcast_to(start + share * (end - start), env_index.shape).astype(jnp.float32)


def scheduled(config: Any) -> Callable[..., Array]:
    """Returns the schedule of ε of a config's `epsilon_start`, `epsilon_end`, `epsilon_fraction` and `epsilon_wait`.

    Args:
        config: settings of an agent.

    Raises:
        UsageError: ε would not have reached its end when training ends.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents import dqn
        >>> from jaxrl_dist.agents.shared import action_values
        >>> schedule = action_values.scheduled(dqn.Config(epsilon_end=0.1, epsilon_fraction=0.5, epsilon_wait=0.5))
        >>> print(schedule((), jnp.arange(1), 1, 0.75))
        [0.55]
    """
    wait, fraction = config.epsilon_wait, config.epsilon_fraction
    _check_end(wait, fraction)
    return functools.partial(
        epsilon_schedule, start=config.epsilon_start, end=config.epsilon_end, fraction=fraction, wait=wait
    )


def _check_end(wait: Any, fraction: Any) -> None:
    # Those that a sweep varies are arrays; each combination of their values is checked before.
    if all(isinstance(share, float | int) for share in (wait, fraction)) and wait + fraction > 1 + _ROUNDING:
        raise errors.UsageError(
            errors.given("agent.epsilon_wait", wait),
            f": ε falls for a share of {fraction:g} of training from there on, and would not have ended; valid: at "
            f"most {1 - fraction:g}, or a smaller ",
            errors.given("agent.epsilon_fraction"),
        )


def epsilon_ladder(
    params: types.Params, env_index: Array, num_envs: int, progress: Array, *, base: float, exponent: float
) -> Array:
    """Returns ε, constant but different for each environment: base^(1 + exponent · i / (N − 1)).

    Args:
        params: parameters, not used.
        env_index: i of each environment, i32 [B].
        num_envs: N.
        progress: f32 [], not used.
        base: ε of the first environment.
        exponent: how far the ladder reaches down.

    Returns:
        f32 [B].

    Source: Horgan et al. 2018, "Distributed prioritized experience replay", section 4.1.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import action_values
        >>> print(action_values.epsilon_ladder((), jnp.arange(3), 3, 0.0, base=0.5, exponent=2.0))
        [0.5   0.25  0.125]
    """
    del params, progress
    return (base ** (1 + exponent * env_index / max(num_envs - 1, 1))).astype(jnp.float32)
