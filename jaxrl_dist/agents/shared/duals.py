r"""Dual variables of MPO and V-MPO: a temperature of weights, and multipliers of how far a policy moves.

Both are positive: softplus of parameters with losses of their own. A multiplier α of a divergence D with bound ε adds

.. math:: L_\alpha = \alpha (\varepsilon - \operatorname{sg}[D]) + \operatorname{sg}[\alpha] D

Source: Song et al. 2020, "V-MPO", equations 4 to 6; Abdolmaleki et al. 2018, "Relative entropy regularized policy
iteration", section 4.2 (divergences of mean and deviation apart); softplus as in Acme's `jax/mpo` (Hoffman et al.
2020), where the papers clip the variables at 1e-8. As logarithms, multipliers of a bound that is met by no step size
would grow exponentially.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_dist.numeric import distributions
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

temperature = functools.partial(setting, help="First temperature of the weights of actions (η).", above=0.0)
temperature_bound = functools.partial(
    setting, help="Bound of the weights' divergence, by which the temperature is learned (ε_η).", above=0.0, sweep=True
)
multiplier = functools.partial(
    setting, help="First multiplier of each divergence of the new policy from the old (α).", above=0.0
)
policy_bound = functools.partial(
    setting, help="Bound of the divergence of policies over few actions (ε_α).", above=0.0, sweep=True
)
mean_bound = functools.partial(
    setting, help="Bound of the divergence by a real policy's means (ε_αμ).", above=0.0, sweep=True
)
deviation_bound = functools.partial(
    setting, help="Bound of the divergence by a real policy's deviations (ε_αΣ).", above=0.0, sweep=True
)
dual_learning_rate = functools.partial(
    setting, help="Step size of temperature and multipliers; 0 is the learner's.", low=0.0
)

_SMALLEST = 1e-8
TEMPERATURE = "temperature"
# Kinds of divergences: of few actions the whole, of real ones by means and by deviations.
POLICY, MEAN, DEVIATION = "policy", "mean", "deviation"


def init(temperature: float, multipliers: Mapping[str, float]) -> dict[str, Array]:
    """Returns parameters whose `value` are the dual variables.

    Args:
        temperature: first η.
        multipliers: first α of each kind of divergence, as `kinds_of` names them.

    Returns:
        Name -> f32 [].

    Example:
        >>> from jaxrl_dist.agents.shared import duals
        >>> sorted(duals.init(1.0, {"mean": 10.0, "deviation": 1000.0}))
        ['deviation', 'mean', 'temperature']
    """
    values = {TEMPERATURE: temperature, **multipliers}
    # The inverse of softplus, in a form that large values leave finite.
    return {name: first + jnp.log(-jnp.expm1(jnp.float32(-first))) for name, first in values.items()}


def value(parameter: Array) -> Array:
    """Returns a dual variable.

    Args:
        parameter: f32 [], from `init`.

    Returns:
        f32 [], at least 1e-8.

    Example:
        >>> from jaxrl_dist.agents.shared import duals
        >>> print(duals.value(duals.init(3.0, {})["temperature"]).round(4))
        3.0
    """
    return jax.nn.softplus(parameter) + _SMALLEST


def kinds_of(is_real: bool) -> tuple[str, ...]:
    """Returns the kinds of divergences of policies over real actions, or over few.

    Example:
        >>> from jaxrl_dist.agents.shared import duals
        >>> duals.kinds_of(is_real=False)
        ('policy',)
    """
    return (MEAN, DEVIATION) if is_real else (POLICY,)


def divergences(old: Any, new: Any) -> dict[str, Array]:
    """Returns divergences of a new policy from an old one.

    Args:
        old: distribution [N].
        new: likewise, of the same kind.

    Returns:
        Kind -> f32 [N]. Of Gaussians, squashed or not: that of one with the new means and old deviations, and that of
        one with the old means and new deviations.

    Source: Song et al. 2020, equations 25 and 26 (decoupled divergences).

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import duals
        >>> from jaxrl_dist.numeric import distributions
        >>> zero = jnp.zeros((1, 1))
        >>> old, new = distributions.Gaussian(zero, zero), distributions.Gaussian(zero + 1, zero)
        >>> print(duals.divergences(old, new))
        {'mean': Array([0.5], dtype=float32), 'deviation': Array([0.], dtype=float32)}
    """
    if isinstance(old, distributions.Gaussian | distributions.TanhGaussian):
        before = distributions.Gaussian(old.mean, old.log_std)
        by_mean = distributions.Gaussian(new.mean, old.log_std)
        by_deviation = distributions.Gaussian(old.mean, new.log_std)
        return {MEAN: before.kl(by_mean), DEVIATION: before.kl(by_deviation)}
    return {POLICY: old.kl(new)}


def penalty(duals: ArrayTree, bounds: Mapping[str, float], found: Mapping[str, Array]) -> Array:
    """Adds the losses of multipliers and the weighted divergences.

    Args:
        duals: parameters, from `init`.
        bounds: kind -> ε.
        found: kind -> f32 [N], from `divergences`.

    Returns:
        f32 [N].

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents.shared import duals
        >>> state, found = duals.init(1.0, {"policy": 5.0}), {"policy": jnp.array([0.5])}
        >>> print(duals.penalty(state, {"policy": 0.1}, found).round(3))  # 5 (.1 − .5) + 5 · .5
        [0.5]
    """
    parts = []
    for kind, divergence in found.items():
        multiplier = value(duals[kind])
        fixed, held = jax.lax.stop_gradient((multiplier, divergence))
        parts.append(fixed * divergence - multiplier * (held - bounds[kind]))
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total
