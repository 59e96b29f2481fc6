"""Update rules: those of this project, and any optimiser of optax by its name with its arguments, which are literals.

An optimiser of optax is made anew for each step, with the step size of that step: a schedule, a part of a network and a
member of a sweep have their own.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from jaxrl_dist import errors
from jaxrl_dist.types import Array, ArrayTree

# Of the names of optax's optimisers.
PREFIX = "optax:"
_CONTRIB = "contrib."
_FLAG = "learner.optimizer"
_RATE = "learning_rate"


class Rule(NamedTuple):
    """An update rule.

    Attributes:
        init: (params) -> state.
        step: (gradients, state, params, rate f32 []) -> (params, state); a rate of 0 moves no parameter.
    """

    init: Callable[[ArrayTree], ArrayTree]
    step: Callable[[ArrayTree, ArrayTree, ArrayTree, Array], tuple[ArrayTree, ArrayTree]]


def make(name: str, momentum: float, decay: float, epsilon: float) -> Rule:
    """Returns a rule by its name, `learner.Config.optimizer`.

    Args:
        name: a name of `make_direction`, or `optax:NAME(ARGUMENT=LITERAL, ...)`, whose arguments take the place of the
            other parameters.
        momentum: see `make_direction`.
        decay: likewise.
        epsilon: likewise.

    Returns:
        `Rule`.

    Raises:
        UsageError: optax has no such optimiser, or its arguments are wrong.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.learning import optimizers
        >>> rule = optimizers.make("optax:lion(b1=0.5, weight_decay=0.0)", momentum=0.9, decay=0.99, epsilon=1e-8)
        >>> params = jnp.zeros(2)
        >>> print(rule.step(jnp.array([3.0, -0.5]), rule.init(params), params, jnp.float32(0.25))[0])
        [-0.25  0.25]
    """
    if name.startswith(PREFIX):
        build = _of_optax(name)
        return Rule(build(learning_rate=1.0).init, functools.partial(_step_of_optax, build))
    direction = make_direction(name, momentum, decay, epsilon)
    return Rule(direction.init, functools.partial(_step, direction))


def make_direction(name: str, momentum: float, decay: float, epsilon: float) -> optax.GradientTransformation:
    """Returns one of the rules of this project as a transformation of gradients into directions.

    Args:
        name: adam, radam, laprop (the mean of gradients that are divided first), rmsprop (ε under the root),
            rmsprop_centred, adagrad (likewise) or sgd.
        momentum: decay of the mean gradient, for adam, radam and laprop.
        decay: decay of the squared gradient.
        epsilon: keeps the denominator from 0.

    Returns:
        A transformation of gradients into directions, without a step size.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.learning import optimizers
        >>> rule = optimizers.make_direction("adagrad", momentum=0.9, decay=0.99, epsilon=0.0)
        >>> params = jnp.zeros(2)
        >>> print(rule.update(jnp.array([3.0, -0.5]), rule.init(params), params)[0])
        [ 1. -1.]
    """
    if name == "adam":
        return optax.scale_by_adam(b1=momentum, b2=decay, eps=epsilon)
    if name == "radam":
        return optax.scale_by_radam(b1=momentum, b2=decay, eps=epsilon)
    if name == "laprop":
        divided = optax.scale_by_rms(decay=decay, eps=epsilon, eps_in_sqrt=False, bias_correction=True)
        return optax.chain(divided, optax.ema(momentum, debias=True))
    if name == "rmsprop":
        return optax.scale_by_rms(decay=decay, eps=epsilon)
    if name == "rmsprop_centred":
        return _centred(optax.scale_by_stddev(decay=decay, eps=epsilon), epsilon)
    if name == "adagrad":
        return optax.scale_by_rss(initial_accumulator_value=0.0, eps=epsilon)
    return optax.identity()


def _centred(rule: optax.GradientTransformation, epsilon: float) -> optax.GradientTransformation:
    """Bounds the variance below by 0: of gradients that hardly change, rounding makes it negative, and the root NaN."""

    def update(gradient: ArrayTree, state: Any, params: ArrayTree = None) -> Any:
        _, state = rule.update(gradient, state, params)

        def direction(g: Array, mean: Array, square: Array) -> Array:
            return jax.lax.rsqrt(jnp.maximum(square - mean * mean, 0.0) + epsilon) * g

        return jax.tree.map(direction, gradient, state.mu, state.nu), state

    return optax.GradientTransformation(rule.init, update)


def check(name: str, network: ArrayTree) -> None:
    """Checks that an optimiser of optax can move a network by gradients and a step size alone; traces a step of it.

    Args:
        name: as in `make`, of optax.
        network: tree of `jax.ShapeDtypeStruct`, the parameters.

    Raises:
        UsageError: it needs more than gradients, ignores the step size, or its state does not keep its form.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.learning import optimizers
        >>> network = {"weights": jax.ShapeDtypeStruct((3, 2), jnp.float32)}
        >>> optimizers.check("optax:adamw(weight_decay=0.01)", network)
        >>> optimizers.check("optax:rprop", network)
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: learner.optimizer=optax:rprop: its steps do not depend on the step size
    """
    flag, build = errors.given(_FLAG, name), _of_optax(name)

    def step(rate: Any, state: ArrayTree, params: ArrayTree) -> Any:
        return build(learning_rate=rate).update(params, state, params)

    try:
        before = jax.eval_shape(build(learning_rate=1.0).init, network)
        jaxpr = jax.make_jaxpr(step)(0.5, before, network).jaxpr
        after = jax.eval_shape(step, jnp.float32(0.5), before, network)[1]
    # Code of others meets values that no signature describes.
    except Exception as error:
        raise errors.UsageError(flag, f": no step by gradients and a step size alone: {_told(error)}") from error
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(before)):
        raise errors.UsageError(flag, ": it draws random numbers, the same for every seed of a run")
    if _form(before) != _form(after):
        raise errors.UsageError(flag, ": its state does not keep its form from step to step")
    if not any(operand is jaxpr.invars[0] for equation in jaxpr.eqns for operand in equation.invars):
        raise errors.UsageError(flag, ": its steps do not depend on the step size")


def _step(
    direction: optax.GradientTransformation, grads: ArrayTree, state: ArrayTree, params: ArrayTree, rate: Array
) -> tuple[ArrayTree, ArrayTree]:
    directions, state = direction.update(grads, state, params)
    return jax.tree.map(lambda p, d: p - rate * d, params, directions), state


def _step_of_optax(
    build: Callable[..., Any], grads: ArrayTree, state: ArrayTree, params: ArrayTree, rate: Array
) -> tuple[ArrayTree, ArrayTree]:
    updates, state = build(learning_rate=rate).update(grads, state, params)
    # A decay of weights may come after the step size.
    return jax.tree.map(lambda p, u: jnp.where(rate > 0, p + u, p), params, updates), state


def _of_optax(text: str) -> Callable[..., Any]:
    """Returns (learning_rate) -> optimiser, of `optax:NAME` or `optax:NAME(ARGUMENT=LITERAL, ...)`.

    Raises:
        UsageError: there is no such optimiser, or an argument is unknown, missing or no literal.
    """
    flag, valid = errors.given(_FLAG, text), _names()
    name, arguments = _parsed(text)
    if name not in valid:
        what = "takes no step size" if hasattr(optax, name) else "is not in optax"
        hint = errors.nearest(_CONTRIB + name if _CONTRIB + name in valid else name, valid)
        raise errors.UsageError(flag, f": {name} {what}{hint}; valid: {', '.join(valid)}")
    known = [one for one in inspect.signature(valid[name]).parameters if one != _RATE]
    if _RATE in arguments:
        raise errors.UsageError(flag, ": give the step size by ", errors.given("learner.learning_rate"))
    for one in arguments:
        if one not in known:
            listed = ", ".join(known) or "none"
            raise errors.UsageError(flag, f": {name} has no {one}{errors.nearest(one, known)}; valid: {listed}")
    build = functools.partial(valid[name], **arguments)
    try:
        build(learning_rate=1.0)
    except Exception as error:
        raise errors.UsageError(flag, f": {_told(error)}") from error
    return build


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Returns name and arguments of `optax:NAME(ARGUMENT=LITERAL, ...)`; nothing of it is evaluated as code.

    Raises:
        UsageError: it has another form.
    """
    try:
        call = ast.parse(text.removeprefix(PREFIX), mode="eval").body
        if not isinstance(call, ast.Call):
            return ast.unparse(call), {}
        if call.args or not all(one.arg for one in call.keywords):
            raise ValueError(text)
        return ast.unparse(call.func), {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        form = f"{PREFIX}NAME or {PREFIX}NAME(ARGUMENT=LITERAL,...), such as '{PREFIX}lion(b1=0.9,b2=0.99)'"
        raise errors.UsageError(errors.given(_FLAG, text), f": expected {form}") from error


@functools.cache
def _names() -> Mapping[str, Callable[..., Any]]:
    """Returns the functions of optax that take a step size, by name; those of `optax.contrib` as `contrib.NAME`."""
    found = {}
    for prefix, module in (("", optax), (_CONTRIB, contrib)):
        for name, value in vars(module).items():
            makes_parts = name.startswith(("_", "scale_by_"))
            if inspect.isfunction(value) and not makes_parts and _RATE in inspect.signature(value).parameters:
                found[prefix + name] = value
    return dict(sorted(found.items()))


def _form(state: ArrayTree) -> Any:
    return jax.tree.structure(state), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]


def _told(error: Exception) -> str:
    """Describes an error of optax in one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
