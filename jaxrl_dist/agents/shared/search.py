r"""Parts of agents that act by tree search: their settings, the search by mctx, and values over a fixed support.

A number x is learned as a distribution over atoms of h(x), where h is `values.signed_hyperbolic`. Its target is on the
two atoms next to h(x), so that their mean is h(x); the prediction is h⁻¹ of the distribution's mean.

Source: Schrittwieser et al. 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model", appendices B
(search) and F (supports); Danihelka et al. 2022, "Policy improvement by planning with Gumbel".
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_dist import errors, types
from jaxrl_dist.agents import shared
from jaxrl_dist.numeric import returns, values
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

_MUZERO = "Schrittwieser et al. 2020"
_GUMBEL = "Danihelka et al. 2022"
_ATARI = f"{_MUZERO}, pseudocode (make_atari_config)"
# Smaller than every logit, and finite: a target of 0 times −inf would be NaN.
_ILLEGAL = float(jnp.finfo(jnp.float32).min)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings that agents with a search share."""

    discount: float = shared.discount(0.997, source=_ATARI)
    n_step: int = shared.n_step(10, source=_ATARI)
    search: str = setting(
        "muzero",
        "Search: muzero (PUCT, with noise at the root, in proportion to visits), or gumbel (sequential halving at the "
        "root, whose policy is better than the network's with any number of simulations).",
        choices=("muzero", "gumbel"),
        source=f"{_MUZERO}, appendix B; {_GUMBEL}, section 3",
    )
    simulations: int = setting(50, "Simulations of a search.", low=1, source=_ATARI)
    dirichlet_alpha: float = setting(
        0.25, "Search muzero: concentration of the noise at the root.", above=0.0, sweep=True, source=_ATARI
    )
    dirichlet_fraction: float = setting(
        0.25, "Search muzero: share of the noise at the root.", low=0.0, high=1.0, sweep=True, source=_ATARI
    )
    temperature: float = setting(
        1.0,
        "Search muzero: actors act in proportion to visits to the power of 1 / temperature.",
        above=0.0,
        sweep=True,
        source=f"{_MUZERO}, appendix D",
    )
    considered_actions: int = setting(
        16, "Search gumbel: actions that the root considers (m).", low=1, source=f"{_GUMBEL}, section 5"
    )
    value_scale: float = setting(
        0.1,
        "Search gumbel: weight of a completed action value in logits (c_scale).",
        above=0.0,
        sweep=True,
        source=f"{_GUMBEL}, section 5 (.1 on Atari, 1 in Go and chess)",
    )
    rescale_values: bool = setting(
        True,
        "Action values are scaled to [0, 1] by the least and the largest of a node, before they are weighed; off for "
        "returns between −1 and 1, as in board games, since noise is scaled as well where all are equal.",
        source="mctx, qtransform_by_parent_and_siblings and qtransform_completed_by_mix_value",
    )
    value_cost: float = setting(
        1.0, "Weight of the value's loss.", low=0.0, sweep=True, source=f"{_MUZERO}, appendix H (.25 with reanalysis)"
    )
    num_atoms: int = setting(601, "Atoms of a value.", low=2, source=f"{_MUZERO}, appendix F")
    value_bound: float = setting(
        300.0, "Largest atom of h(value), and minus the lowest.", above=0.0, source=f"{_MUZERO}, appendix F"
    )


class Found(NamedTuple):
    """Results of a search from B roots, which rows remember.

    Attributes:
        policy: f32 [B, A], probabilities of actions.
        value: f32 [B], of the root.
    """

    policy: Array
    value: Array


class Node(NamedTuple):
    """B nodes of a search.

    Attributes:
        logits: f32 [B, A], of the policy before any search.
        value: f32 [B].
        state: tree of [B, ...], from which a model steps.
    """

    logits: Array
    value: Array
    state: ArrayTree


class Edge(NamedTuple):
    """B steps of a model.

    Attributes:
        reward: f32 [B].
        discount: f32 [B], factor of the value of the node arrived at; negative where that is the opponent's.
        node: `Node` arrived at.
    """

    reward: Array
    discount: Array
    node: Node


Model = Callable[[ArrayTree, Array, Array, ArrayTree], Edge]


def library(config: Config) -> Any:
    """Imports mctx.

    Args:
        config: settings, for the message.

    Raises:
        UsageError: mctx is not installed.

    Example:
        >>> from jaxrl_dist.agents.shared import search
        >>> search.library(search.Config()).__name__
        'mctx'
    """
    try:
        return importlib.import_module("mctx")
    except ModuleNotFoundError as error:
        raise errors.missing_package(errors.given("agent.search", config.search), error.name, "mctx") from error


def run(
    config: Config,
    model: Model,
    network: ArrayTree,
    key: Array,
    root: Node,
    mask: Array | None = None,
    temperature: Array | None = None,
) -> tuple[Array, Found]:
    """Searches from B roots.

    Args:
        config: settings.
        model: (network, key, action i32 [B], state) -> `Edge`.
        network: handed to the model.
        key: typed key [].
        root: B roots.
        mask: bool [B, A], legal actions of the roots; None if all are. A row without any counts as all legal.
        temperature: f32 [B], of acting, with noise; None acts without noise, by the most visited or best action.

    Returns:
        Actions i32 [B], and `Found`; the value is the mean over visits, of gumbel that of its policy.

    Source: mctx, `muzero_policy` and `gumbel_muzero_policy`, with the papers' constants c₁ = 1.25, c₂ = 19652 and
        c_visit = 50.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import search
        >>> def model(network, key, action, state):  # action 1 has a reward of 1, and then the game is over
        ...     node = search.Node(jnp.zeros((2, 3)), jnp.zeros(2), state)
        ...     return search.Edge(jnp.where(action == 1, 1.0, 0.0), jnp.zeros(2), node)
        >>> root = search.Node(jnp.zeros((2, 3)), jnp.zeros(2), ())
        >>> config = search.Config(search="gumbel", simulations=8)
        >>> action, found = search.run(config, model, (), jax.random.key(0), root)
        >>> print(action, found.policy.argmax(-1))
        [1 1] [1 1]
    """
    mctx = library(config)

    def recurrent(network: ArrayTree, key: Array, action: Array, state: ArrayTree) -> Any:
        reward, discount, node = model(network, key, action.astype(jnp.int32), state)
        edge = mctx.RecurrentFnOutput(reward=reward, discount=discount, prior_logits=node.logits, value=node.value)
        return edge, node.state

    illegal = None if mask is None else ~_with_some(mask)
    start = mctx.RootFnOutput(prior_logits=root.logits, value=root.value, embedding=root.state)
    if config.search == "muzero" and temperature is not None:
        key, noise_key = jax.random.split(key)
        prior = noisy(config, root.logits, mask, noise_key)
        start = start.replace(prior_logits=jnp.log(prior))
    search: Any = functools.partial(_gumbel if config.search == "gumbel" else _puct, mctx, config, temperature)
    found = search(network, key, start, recurrent, config.simulations, invalid_actions=illegal)
    return found.action.astype(jnp.int32), Found(found.action_weights, _root_value(config, found))


def noisy(config: Config, logits: Array, mask: Array | None, key: Array) -> Array:
    """Mixes Dirichlet noise over the legal actions with the policy of a root.

    Args:
        config: settings.
        logits: f32 [B, A].
        mask: bool [B, A]; None if all are legal. A row without any counts as all legal.
        key: typed key [].

    Returns:
        Probabilities f32 [B, A]; those of illegal actions are 0.

    Source: Silver et al. 2018, Methods, Configuration. mctx draws noise over all actions and leaves out the illegal
        ones afterwards, so that little of it is left where few of many are legal.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import search
        >>> mask = jnp.array([[True, False, True]])
        >>> found = search.noisy(search.Config(), jnp.zeros((1, 3)), mask, jax.random.key(0))
        >>> print(found[0, 1], found.sum().round(5))
        0.0 1.0
    """
    # The logarithms of gamma variates, as those of small concentrations are too small for f32.
    noise = jax.nn.softmax(legal(jax.random.loggamma(key, config.dirichlet_alpha, logits.shape), mask))
    return (1 - config.dirichlet_fraction) * jax.nn.softmax(legal(logits, mask)) + config.dirichlet_fraction * noise


def _puct(mctx: Any, config: Config, temperature: Array | None, *given: Any, **options: Any) -> Any:
    # As in the papers' pseudocode, an action that was not tried counts as lost. None may count as less, or an illegal
    # one, whose prior is 0, would be better than a legal one.
    def unscaled(tree: Any, node: Array) -> Array:
        return jnp.clip(mctx.qtransform_by_min_max(tree, node, min_value=-1.0, max_value=1.0), 0.0, 1.0)

    return mctx.muzero_policy(
        *given,
        **options,
        dirichlet_fraction=0.0,
        temperature=0.0 if temperature is None else temperature[:, None],
        qtransform=mctx.qtransform_by_parent_and_siblings if config.rescale_values else unscaled,
    )


def _gumbel(mctx: Any, config: Config, temperature: Array | None, *given: Any, **options: Any) -> Any:
    return mctx.gumbel_muzero_policy(
        *given,
        **options,
        max_num_considered_actions=config.considered_actions,
        gumbel_scale=0.0 if temperature is None else 1.0,
        qtransform=functools.partial(
            mctx.qtransform_completed_by_mix_value,
            value_scale=config.value_scale,
            rescale_values=config.rescale_values,
        ),
    )


def _root_value(config: Config, found: Any) -> Array:
    """Returns values f32 [B] of roots.

    PUCT's visits are its policy, so that their mean is its value. Sequential halving visits bad actions as often as
    good ones at first; the value is that of its policy, over the actions that it visited.
    """
    summary = found.search_tree.summary()
    if config.search == "muzero":
        return summary.value
    weight = jnp.where(summary.visit_counts > 0, found.action_weights, 0.0)
    return (weight * summary.qvalues).sum(-1) / jnp.maximum(weight.sum(-1), jnp.finfo(weight.dtype).tiny)


def temperature_schedule(
    params: types.Params, env_index: Array, num_envs: int, progress: Array, *, start: float
) -> Array:
    """Returns the temperature of acting: half of it after half of training, a quarter after three quarters.

    Args:
        params: parameters, not used.
        env_index: i32 [B].
        num_envs: not used.
        progress: f32 [], share of training.
        start: temperature at first.

    Returns:
        f32 [B].

    Source: Schrittwieser et al. 2020, appendix D (500k and 750k of 1M training steps).

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import search
        >>> print(search.temperature_schedule((), jnp.arange(2), 2, jnp.float32(0.8), start=1.0))
        [0.25 0.25]
    """
    del params, num_envs
    share = jnp.where(progress < 0.5, 1.0, jnp.where(progress < 0.75, 0.5, 0.25))
    return jnp.broadcast_to(start * share, env_index.shape).astype(jnp.float32)


def constant_temperature(
    params: types.Params, env_index: Array, num_envs: int, progress: Array, *, temperature: float
) -> Array:
    """Returns the temperature of acting f32 [B], the same for all environments and at all times.

    Args:
        params: parameters, not used.
        env_index: i32 [B].
        num_envs: not used.
        progress: f32 [], not used.
        temperature: of all.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import search
        >>> print(search.constant_temperature((), jnp.arange(2), 2, jnp.float32(0.8), temperature=1.0))
        [1. 1.]
    """
    del params, num_envs, progress
    return jnp.full(env_index.shape, temperature, jnp.float32)


def signed_discount(config: Config, spec: types.EnvironmentSpec) -> float:
    """Returns γ, negative where two players take turns, so that the value of the next row is the opponent's.

    Args:
        config: settings.
        spec: of the environment.

    Example:
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.agents.shared import search
        >>> spec = envs.make("toy:walk").spec
        >>> config = search.Config(discount=0.5)
        >>> search.signed_discount(config, spec), search.signed_discount(config, spec._replace(players=2))
        (0.5, -0.5)
    """
    return config.discount if spec.players == 1 else -config.discount


def n_step_values(n: int, gamma: float, timestep: types.TimeStep, value: Array) -> Array:
    """Returns targets z f32 [L − 1, N] of windows.

    Args:
        n: rewards before the value.
        gamma: discount factor, from `signed_discount`.
        timestep: leaves [L, N].
        value: f32 [L, N], of each row's own player.

    Source: Schrittwieser et al. 2020, appendix B; with both players' moves in a row, a reward is of who moved.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.agents.shared import search
        >>> zero = jnp.zeros((3, 1))  # the second player wins by the second move
        >>> reward, step_type = zero.at[2].set(1.0), jnp.array([[types.FIRST], [types.MID], [types.LAST]])
        >>> timestep = types.TimeStep(step_type, reward, 1.0 - reward, (), ())
        >>> print(search.n_step_values(5, -1.0, timestep, zero)[:, 0])
        [-1.  1.]
    """
    n_step = functools.partial(returns.n_step_returns, gamma=gamma, n=n)
    columns = (timestep.reward, timestep.discount, timestep.step_type, value)
    found: Array = jax.vmap(n_step, in_axes=1, out_axes=1)(*columns)
    return found


def legal(logits: Array, mask: Array | None) -> Array:
    """Returns logits f32 [..., A] with those of illegal actions so low that they have no probability.

    Args:
        logits: f32 [..., A].
        mask: bool [..., A]; None if all are legal. A row without any counts as all legal.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import search
        >>> print(jax.nn.softmax(search.legal(jnp.zeros(3), jnp.array([True, False, True]))))
        [0.5 0.  0.5]
    """
    return logits if mask is None else jnp.where(_with_some(mask), logits, _ILLEGAL)


def _with_some(mask: Array) -> Array:
    return mask | ~mask.any(-1, keepdims=True)


def support(config: Config) -> Array:
    """Places the atoms f32 [num_atoms] of h(x).

    Args:
        config: settings.

    Example:
        >>> from jaxrl_dist.agents.shared import search
        >>> print(search.support(search.Config(num_atoms=3, value_bound=2.0)))
        [-2.  0.  2.]
    """
    return values.support(-config.value_bound, config.value_bound, config.num_atoms)


def number(logits: Array, atoms: Array) -> Array:
    """Returns the number f32 [...] that logits f32 [..., atoms] stand for: h⁻¹ of the mean of their atoms.

    Args:
        logits: f32 [..., atoms].
        atoms: f32 [atoms], from `support`.

    Source: Schrittwieser et al. 2020, appendix F.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import search
        >>> atoms = search.support(search.Config(num_atoms=3, value_bound=2.0))
        >>> print(search.number(jnp.array([0.0, 0.0, 100.0]), atoms).round(2))  # √9 − 1 is 2, and ε takes a little
        7.95
    """
    return values.signed_parabolic(values.mean_of_atoms(logits, atoms))


def number_loss(logits: Array, target: Array, atoms: Array) -> Array:
    """Returns the cross-entropy f32 [N] of predicted distributions with the two atoms next to a target.

    Args:
        logits: f32 [N, atoms].
        target: f32 [N], numbers; one beyond the support counts as its end.
        atoms: f32 [atoms], from `support`.

    Source: Schrittwieser et al. 2020, appendix F.

    Example:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from jaxrl_dist.agents.shared import search
        >>> atoms = search.support(search.Config(num_atoms=3, value_bound=2.0))
        >>> print(np.asarray(search.number_loss(jnp.zeros((1, 3)), jnp.array([5.0]), atoms)).round(3))  # log 3
        [1.099]
    """
    project = jax.vmap(values.categorical_projection, in_axes=(0, 0, None))
    transformed = values.signed_hyperbolic(target)[:, None]
    return policy_loss(logits, project(transformed, jnp.ones_like(transformed), atoms))


def policy_loss(logits: Array, target: Array) -> Array:
    """Returns the cross-entropy f32 [N] of policies with targets.

    Args:
        logits: f32 [N, A].
        target: probabilities f32 [N, A], through which no gradient passes.

    Example:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from jaxrl_dist.agents.shared import search
        >>> print(np.asarray(search.policy_loss(jnp.zeros((1, 2)), jnp.array([[1.0, 0.0]]))).round(3))  # log 2
        [0.693]
    """
    return -(jax.lax.stop_gradient(target) * jax.nn.log_softmax(logits)).sum(-1)
