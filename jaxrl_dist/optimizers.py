"""Directions of steps by the name of their rule; whoever takes them has the step size."""

import optax


def make(name: str, momentum: float, decay: float, epsilon: float) -> optax.GradientTransformation:
    """Returns a rule by its name, `learner.Config.optimizer`.

    Args:
        name: adam, radam, rmsprop (ε under the root), rmsprop_centred or sgd.
        momentum: decay of the mean gradient, of adam and radam.
        decay: of the squared gradient.
        epsilon: keeps the denominator from 0.
    """
    if name == "adam":
        return optax.scale_by_adam(b1=momentum, b2=decay, eps=epsilon)
    if name == "radam":
        return optax.scale_by_radam(b1=momentum, b2=decay, eps=epsilon)
    if name == "rmsprop":
        return optax.scale_by_rms(decay=decay, eps=epsilon)
    if name == "rmsprop_centred":
        return optax.scale_by_stddev(decay=decay, eps=epsilon)
    return optax.identity()
