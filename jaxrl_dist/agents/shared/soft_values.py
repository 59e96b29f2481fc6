r"""Munchausen reinforcement learning: the target of an entropic policy, and its log-probability as a reward.

With temperature τ the policy is π = softmax(Q(s, ·; θ⁻) / τ); the target bootstraps from its soft value, and the reward
of an action grows by α times its scaled log-probability, between l_0 and 0:

.. math:: y = r + \alpha [\tau \log \pi(a|s)]_{l_0}^0
   + \gamma \sum_{a'} \pi(a'|s') \left(Q(s', a'; \theta^-) - \tau \log \pi(a'|s')\right)

Source: Vieillard et al. 2020, "Munchausen reinforcement learning", equation 2 and section 3; over distributions (M-IQN)
appendix B. As in the released code, n rewards get the log-probability of the first action alone.
"""

import functools
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array

_CODE = "Vieillard et al. 2020, released code munchausen_rl/agents/m_iqn.py"

temperature = functools.partial(
    setting,
    help="Temperature τ of the policy whose soft value is the bootstrap value, in units of values; 0 takes the best "
    "action's value.",
    low=0.0,
    source=f"{_CODE} (.03)",
)
munchausen = functools.partial(
    setting,
    help="Share α of the policy's log-probability of an action, times the temperature, that its reward grows by.",
    low=0.0,
    high=1.0,
    source=f"{_CODE} (.9)",
)
log_policy_low = functools.partial(
    setting,
    help="Lowest log-probability times temperature that a reward gets a share of (l0).",
    sweep=True,
    source=_CODE,
)


class Settings(Protocol):
    """Settings that `check` reads."""

    @property
    def temperature(self) -> float:
        """Temperature τ; 0 is off."""

    @property
    def munchausen(self) -> float:
        """Share α; 0 is off."""

    @property
    def log_policy_low(self) -> float:
        """Bound l0."""

    @property
    def double(self) -> bool:
        """Says whether the online network chooses the bootstrap action."""


def check(config: Settings) -> None:
    """Checks settings.

    Args:
        config: settings of the agent.

    Raises:
        UsageError: there is a share of a log-probability but no temperature; the bound is not below 0; or an action is
            chosen for a bootstrap value that takes all.

    Example:
        >>> from jaxrl_dist.agents import dqn
        >>> from jaxrl_dist.agents.shared import soft_values
        >>> soft_values.check(dqn.Config(temperature=0.03, munchausen=0.9))
        >>> soft_values.check(dqn.Config(munchausen=0.9))
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: agent.munchausen=0.9: the best action's log-probability is 0; …
    """
    if config.munchausen and not config.temperature:
        raise UsageError(
            given("agent.munchausen", config.munchausen),
            ": the best action's log-probability is 0; add ",
            given("agent.temperature", 0.03),
        )
    if config.munchausen and config.log_policy_low >= 0:
        raise UsageError(given("agent.log_policy_low", config.log_policy_low), ": valid: below 0")
    if config.temperature and config.double:
        raise UsageError(
            given("agent.double", "true"),
            ": a soft value takes all actions, so none is chosen; valid: ",
            given("agent.double", "false"),
            ", or ",
            given("agent.temperature", 0),
        )


def log_policy(q: Array, temperature: float) -> Array:
    """Returns the scaled log-probabilities of softmax(q / τ).

    Args:
        q: values f32 [..., A], −inf of illegal actions.
        temperature: τ.

    Returns:
        τ log π, f32 [..., A], −inf of illegal actions.

    Source: Vieillard et al. 2020, appendix B.1 (the largest value is subtracted first).

    Example:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from jaxrl_dist.agents.shared import soft_values
        >>> q = jnp.array([3.0, 3.0 - 2 * jnp.log(3.0)])  # three times as likely
        >>> print(np.asarray(soft_values.log_policy(q, temperature=2.0)).round(3))
        [-0.575 -2.773]
    """
    centred = q - q.max(-1, keepdims=True)
    return centred - temperature * jax.nn.logsumexp(centred / temperature, axis=-1, keepdims=True)


def soft_value(q: Array, outputs: Array, temperature: float) -> Array:
    """Returns the soft value of softmax(q / τ): the mean of outputs less τ log π.

    Args:
        q: values f32 [N, A], −inf of illegal actions.
        outputs: f32 [N, A], q itself; or quantiles f32 [N, A, K] whose means are q.
        temperature: τ.

    Returns:
        f32 [N], or [N, K].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import soft_values
        >>> import numpy as np
        >>> q = jnp.array([[1.0, 1.0, -jnp.inf]])
        >>> print(np.asarray(soft_values.soft_value(q, q, temperature=2.0)).round(3))  # 1 + 2 log 2
        [2.386]
    """
    scaled = log_policy(q, temperature)
    shape = (*q.shape, *(1,) * (outputs.ndim - q.ndim))
    policy, scaled = jnp.exp(scaled / temperature).reshape(shape), scaled.reshape(shape)
    return jnp.where(scaled > -jnp.inf, policy * (outputs - scaled), 0.0).sum(1)


def bonus(q: Array, action: Array, config: Settings) -> Array:
    """Returns what the rewards of actions grow by.

    Args:
        q: values f32 [N, A], −inf of illegal actions.
        action: i32 [N].
        config: settings of the agent.

    Returns:
        α τ log π(a), f32 [N], in [α l0, 0].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents import dqn
        >>> from jaxrl_dist.agents.shared import soft_values
        >>> config = dqn.Config(temperature=1.0, munchausen=0.5, log_policy_low=-1.0)
        >>> import numpy as np
        >>> q, action = jnp.array([[0.0, 0.0], [0.0, 9.0]]), jnp.array([0, 0])
        >>> print(np.asarray(soft_values.bonus(q, action, config)).round(3))
        [-0.347 -0.5  ]
    """
    scaled = jnp.take_along_axis(log_policy(q, config.temperature), action[:, None], axis=1)[:, 0]
    return config.munchausen * jnp.clip(scaled, config.log_policy_low, 0.0)
