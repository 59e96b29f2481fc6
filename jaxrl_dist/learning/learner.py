"""The learner: gradients over epochs and minibatches, their reduction over devices, the optimiser and the target.

It knows agents only through their loss, and devices only through `types.Axis`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_dist import agents, types
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.learning import optimizers
from jaxrl_dist.numeric import permutations, vectors
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

# Folded into an update's key for `Agent.prepare`.
_PREPARE = 2**31 - 1
# Brock et al. 2021, section 4.1 (ε): parameters that begin at 0 could never move without it.
_SMALLEST_NORM = 1e-3
# Names of loops in compiled programs and in profiles.
EPOCH, GRADIENT_STEP = "epoch", "gradient_step"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the optimiser, of epochs and minibatches, and of the target network."""

    optimizer: str = setting(
        "adam",
        "Update rule; radam is adam with rectified first steps (Liu et al. 2020), laprop averages gradients that it "
        "has divided (Ziyin et al. 2020), rmsprop is that of Mnih et al. 2016 (ε under the root), rmsprop_centred "
        "subtracts the mean gradient as Mnih et al. 2015 do, adagrad divides by the root of all squared gradients "
        "(Duchi et al. 2011); optax:NAME is any of optax with its own arguments, such as 'optax:lion(b1=0.9,b2=0.99)', "
        "and reads neither epsilon nor decay nor momentum.",
        choices=("adam", "radam", "laprop", "rmsprop", "rmsprop_centred", "adagrad", "sgd", "optax:NAME"),
        source="Schulman et al. 2017, table 5",
    )
    learning_rate: float = setting(2.5e-4, "Step size.", above=0.0, source="Schulman et al. 2017, table 5", sweep=True)
    anneal: bool = setting(
        True, "Let the step size fall over training, by learner.schedule.", source="Schulman et al. 2017, table 5 (α)"
    )
    schedule: str = setting(
        "linear",
        "Form of the fall of an annealed step size: along a line, or along half a cosine (Loshchilov & Hutter 2017).",
        choices=("linear", "cosine"),
        source="Schulman et al. 2017, table 5 (α)",
    )
    final_share: float = setting(
        0.0,
        "Share of the step size that is left at the end of annealing.",
        low=0.0,
        below=1.0,
        source="Schulman et al. 2017, table 5 (α)",
    )
    warmup: float = setting(
        0.0,
        "Share of training in which the step size rises linearly from 0, before it is held or falls.",
        low=0.0,
        below=1.0,
        source="Goyal et al. 2017, section 2.2 (gradual warmup)",
    )
    epsilon: float = setting(
        1e-5,
        "Term that keeps the optimiser's denominator from 0.",
        above=0.0,
        source="Huang et al. 2022, detail 3",
        sweep=True,
    )
    decay: float = setting(
        0.999,
        "Decay of the squared gradient (β2 of adam, radam and laprop, rmsprop's decay).",
        low=0.0,
        below=1.0,
        source="Kingma & Ba 2015",
    )
    momentum: float = setting(
        0.9,
        "Decay of the mean gradient (β1 of adam, radam and laprop; unused by the others).",
        low=0.0,
        below=1.0,
        source="Kingma & Ba 2015",
    )
    max_grad_norm: float = setting(
        0.5,
        "Global norm to which gradients are clipped, those of each part of a network by their own; 0 is off.",
        low=0.0,
        source="Huang et al. 2022, detail 11",
    )
    max_grad_ratio: float = setting(
        0.0,
        "Norm to which the gradient of each array of parameters is clipped, as a share of the array's own norm, which "
        "counts as 1e-3 at least; 0 is off.",
        low=0.0,
        source="Hafner et al. 2025, released code; Brock et al. 2021, equation 3, clip each unit by its own norm",
    )
    reduction: str = setting(
        "mean",
        "Mean of the loss over taught rows of all devices, or its sum.",
        choices=("mean", "sum"),
        source="Schulman et al. 2017, equation 9",
    )
    epochs: int = setting(1, "Passes over each sample.", low=1, source="Mnih et al. 2015")
    minibatches: int = setting(1, "Parts that a sample is shuffled into, per epoch.", low=1, source="Mnih et al. 2015")
    shuffle: bool = setting(
        True, "Shuffle items before cutting minibatches.", source="Schulman et al. 2017, algorithm 1"
    )
    target_period: int = setting(
        10_000, "Updates between copies into the target network.", low=1, source="Mnih et al. 2015, extended table 1"
    )
    target_rate: float = setting(
        1.0,
        "Share of the way that a copy moves the target network (τ); 1 replaces it.",
        above=0.0,
        high=1.0,
        source="Lillicrap et al. 2016, section 3",
    )


class LearnerState(NamedTuple):
    """Everything a learner carries.

    Attributes:
        params: parameters and statistics.
        target_network: parameters of the target network, () without one.
        opt_state: state of the optimiser; of several parts, name -> state.
        updates: i32 [], calls of `Learner.update` so far.
        pace: f32 [], the factor that `Agent.pace` has given the step size so far; () for agents without it.
    """

    params: types.Params
    target_network: ArrayTree
    opt_state: ArrayTree
    updates: Array
    pace: ArrayTree = ()


class Learner(NamedTuple):
    """Pure functions of one learner.

    Attributes:
        init: (params) -> `LearnerState`.
        gradients: (params, `types.LossInputs`, weights [N]) -> `types.Gradient` of this device.
        prepare: (params, `types.LossInputs` of an unroll) -> batch that is one minibatch, for layouts that take one
            gradient of an unroll.
        apply: (state, gradient of all devices, progress) -> (state, metrics).
        advance: (state) -> state; counts an update, and refreshes the target network when it is due.
        update: (state, sample, key, progress) -> (state, priorities [N], metrics), metrics f32 [] each: means over
            the taught rows of all devices and minibatches, and the largest of the loss's `maxima`. Without taught rows
            no parameter moves.
    """

    init: Callable[[types.Params], LearnerState]
    gradients: Callable[[types.Params, types.LossInputs, Array], types.Gradient]
    prepare: Callable[[types.Params, types.LossInputs], ArrayTree]
    apply: Callable[..., tuple[LearnerState, dict[str, Array]]]
    advance: Callable[[LearnerState], LearnerState]
    update: Callable[..., tuple[LearnerState, Array, dict[str, Array]]]

    def __repr__(self) -> str:
        return types.short_repr(self)


class _Measured(NamedTuple):
    """Measurements of a step: the taught rows of all devices, its metrics, its `aux`, and the maxima of this device."""

    valid: Array
    metrics: dict[str, Array]
    aux: ArrayTree
    maxima: dict[str, Array]


class _Static(NamedTuple):
    """The parts of a learner: its settings, its agent, the reductions over devices, and its optimiser."""

    config: Config
    agent: agents.Agent
    axis: types.Axis
    rule: optimizers.Rule


def make(config: Config, agent: agents.Agent, axis: types.Axis) -> Learner:
    """Builds a learner of one agent.

    Args:
        config: settings of the optimiser, of epochs and of the target network.
        agent: its loss is learned from.
        axis: reduces over devices, or is `types.LOCAL`.

    Returns:
        `Learner`, pure functions.

    Raises:
        UsageError: the optimiser does not fit the agent's network, or settings of the step size do not go together.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs, networks, types
        >>> from jaxrl_dist.agents import a2c
        >>> from jaxrl_dist.learning import learner
        >>> from jaxrl_dist.parallel import unroll
        >>> environment, keys = envs.make("toy:walk"), jax.random.split(jax.random.key(0), 4)
        >>> agent = a2c.make(a2c.Config(), environment.spec, networks.Config(torso="mlp"))
        >>> rules = learner.make(learner.Config(learning_rate=0.01), agent, types.LOCAL)
        >>> state, timestep = envs.columns(environment).reset(keys[0], jnp.arange(2))
        >>> actors, learned = unroll.ActorState(state, timestep, agent.init_carry(2)), rules.init(agent.init(keys[1]))
        >>> play = unroll.device_unroll(agent, environment, length=4)
        >>> _, rows, _ = play(learned.params, actors, keys[2], (), learned.updates)
        >>> sample = types.Sample(rows, indices=(), weights=jnp.ones(2))
        >>> learned, _, metrics = rules.update(learned, sample, keys[3], jnp.float32(0.0))
        >>> int(learned.updates), sorted(metrics)
        (1, ['entropy', 'gradient_norm', 'policy_loss', 'value_loss'])
    """
    _check_schedule(config)
    _check_pace(config, agent)
    rule = optimizers.make(config.optimizer, config.momentum, config.decay, config.epsilon)
    if config.optimizer.startswith(optimizers.PREFIX):
        optimizers.check(config.optimizer, jax.eval_shape(agent.init, jax.random.key(0)).network)
    static = _Static(config, agent, axis, rule)
    return Learner(
        init=functools.partial(_init, static),
        gradients=functools.partial(_gradients, agent),
        prepare=functools.partial(_prepare_whole, static),
        apply=functools.partial(_apply, static),
        advance=functools.partial(_advance, static),
        update=functools.partial(_update, static),
    )


def _init(static: _Static, params: types.Params) -> LearnerState:
    network, parts = params.network, static.agent.parts
    opt_state: Any = {name: static.rule.init(network[name]) for name in parts} if parts else static.rule.init(network)
    pace = jnp.ones(()) if static.agent.pace else ()
    return LearnerState(params, static.agent.target(network), opt_state, jnp.zeros((), jnp.int32), pace)


def _update(
    static: _Static, state: LearnerState, sample: types.Sample, key: Array, progress: Array
) -> tuple[LearnerState, Array, dict[str, Array]]:
    inputs = types.LossInputs(sample.sequences, state.target_network, key, progress, static.axis)
    batch = _prepare(static.agent, state.params, inputs)
    weights = item_weights(sample, batch, static.agent.columns_per_item)
    if static.config.epochs * static.config.minibatches == 1:
        inputs = inputs._replace(batch=_as_one(static.agent, batch, static.axis))
        state, priorities, measured = _step(static, state, inputs, weights)
    else:
        state, measured = _epochs(static, state, inputs._replace(batch=batch), weights)
        # With a replay that keeps priorities there is one epoch of one minibatch, so nobody reads these.
        priorities = jnp.zeros_like(weights)
    metrics = measured.metrics | static.axis.max(measured.maxima)
    sequences = sample.fresh or sample.sequences
    params = static.agent.adapt(state.params, sequences, metrics, measured.aux, static.axis)
    return _advance(static, state._replace(params=params)), priorities, metrics


def _epochs(
    static: _Static, state: LearnerState, inputs: types.LossInputs, weights: Array
) -> tuple[LearnerState, _Measured]:
    """Goes `epochs` times over the items, each time in shuffled minibatches; averages over rows, and takes maxima."""
    config, agent, num_items = static.config, static.agent, _num_items(inputs.batch)

    def begun(key: Array) -> tuple[ArrayTree, Array, Array]:
        """Returns the batch of an epoch, and indices and key of each of its minibatches."""
        shuffle_key, loss_key = jax.random.split(key)
        order = permutations.permutation(shuffle_key, num_items) if config.shuffle else jnp.arange(num_items)
        order, keys = order.reshape(config.minibatches, -1), jax.random.split(loss_key, config.minibatches)
        batch = inputs.batch if agent.epoch is None else agent.epoch(inputs.batch, order, inputs.axis)
        return batch, order, keys

    def minibatch(state: LearnerState, batch: ArrayTree, indices: Array, key: Array) -> tuple[LearnerState, Any, Any]:
        """Makes a step; also returns what is summed, and what the largest is kept of."""
        part, part_weights = jax.tree.map(lambda leaf: leaf[indices], (batch, weights))
        state, _, measured = _step(static, state, inputs._replace(batch=part, key=key), part_weights)
        weighted = {name: measured.valid * x for name, x in measured.metrics.items()}
        return state, (measured.valid, weighted, measured.aux), measured.maxima

    def epoch(carried: Any, key: Array) -> Any:
        batch, *each = begun(key)

        def body(carried: Any, x: Any) -> Any:
            state, totals = carried
            state, *new = minibatch(state, batch, *x)
            return (state, jax.tree.map(total, totals, vectors.join(new)[0], is_maximum)), None

        with jax.named_scope(GRADIENT_STEP):
            return jax.lax.scan(body, carried, tuple(each))

    def first() -> tuple[Any, Any]:
        """Measures a minibatch without a step, whose tracing would take as long once more."""
        batch, order, loss_keys = begun(keys[0])
        part = jax.tree.map(lambda leaf: leaf[order[0]], batch)
        output = agent.loss(state.params, inputs._replace(batch=part, key=loss_keys[0]))
        metrics = jax.tree.map(jnp.sum, output.metrics) | {"gradient_norm": optax.global_norm(state.params.network)}
        metrics |= {"learning_rate": state.pace} if agent.pace else {}
        return (output.valid.sum(), metrics, output.aux), jax.tree.map(jnp.max, output.maxima)

    def total(so_far: Array, new: Array, is_maximum: Array) -> Array:
        return jnp.where(is_maximum, jnp.maximum(so_far, new), so_far + new)

    # Sums and maxima are carried as one vector: a loop writes each array of its results by itself.
    keys = jax.random.split(inputs.key, config.epochs)
    sums, maxima = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(first))
    totals, split = vectors.join((sums, jax.tree.map(lambda x: x - jnp.inf, maxima)))
    is_maximum = [x < 0 for x in totals]
    with jax.named_scope(EPOCH):
        (state, totals), _ = jax.lax.scan(epoch, (state, totals), keys)
    (valid, weighted, aux), maxima = split(totals)
    metrics = jax.tree.map(lambda x: x / jnp.maximum(valid, 1.0), weighted)
    aux = jax.tree.map(lambda x: x / (config.epochs * config.minibatches), aux)
    return state, _Measured(valid, metrics, aux, maxima)


def _step(
    static: _Static, state: LearnerState, inputs: types.LossInputs, weights: Array
) -> tuple[LearnerState, Array, _Measured]:
    """Takes one gradient over all devices, and makes one step."""
    if static.agent.gradient is not None:
        gradient = static.agent.gradient(state.params, inputs)
    else:
        gradient = _gradients(static.agent, state.params, inputs, weights)
        # One collective for all; maxima and priorities stay on their device. Only a mean of `aux` needs their number.
        counted = (gradient.aux, jnp.ones(())) if jax.tree.leaves(gradient.aux) else ()
        sums, valid, metrics, counted = static.axis.sum((gradient.sums, gradient.valid, gradient.metrics, counted))
        aux = jax.tree.map(lambda x: x / counted[1], counted[0]) if counted else ()
        gradient = gradient._replace(sums=sums, valid=valid, metrics=metrics, aux=aux)
    state, metrics = _apply(static, state, gradient, inputs.progress)
    return state, gradient.priorities, _Measured(gradient.valid, metrics, gradient.aux, gradient.maxima)


def _gradients(agent: agents.Agent, params: types.Params, inputs: types.LossInputs, weights: Array) -> types.Gradient:
    def objective(network: ArrayTree) -> tuple[Array, types.LossOutput]:
        output = agent.loss(params._replace(network=network), inputs)
        return jnp.sum(weights * output.loss + output.unweighted), output

    (loss, output), sums = jax.value_and_grad(objective, has_aux=True)(params.network)
    # One sum of all rows instead of one sum each.
    valid, *metrics = jnp.stack([output.valid, *output.metrics.values()]).sum(-1)
    named, maxima = dict(zip(output.metrics, metrics, strict=True)), jax.tree.map(jnp.max, output.maxima)
    return types.Gradient(sums, loss, valid, named, maxima, output.priority, output.aux)


def _apply(
    static: _Static, state: LearnerState, gradient: types.Gradient, progress: Array
) -> tuple[LearnerState, dict[str, Array]]:
    config, parts = static.config, static.agent.parts
    valid = jnp.maximum(gradient.valid, 1.0)
    scale = 1 / valid if config.reduction == "mean" else 1.0
    grads, network = jax.tree.map(lambda g: g * scale, gradient.sums), state.params.network
    metrics = {name: value / valid for name, value in gradient.metrics.items()}
    rate, pace = learning_rate(config, progress), state.pace
    if static.agent.pace:
        pace = static.agent.pace(config.learning_rate * pace, metrics) / config.learning_rate
        pace = jnp.where(gradient.valid > 0, pace, state.pace)
        rate = rate * pace
    # A step size of 0 without taught rows, else the optimiser's momentum would still move parameters.
    rate = rate * (gradient.valid > 0)
    if parts:
        moved = {name: _part_moved(static, part, name, grads, state, rate) for name, part in parts.items()}
        network, opt_state = ({name: one[i] for name, one in moved.items()} for i in (0, 1))
    else:
        network, opt_state = _moved(static, grads, state.opt_state, network, rate)
    metrics["gradient_norm"] = _norm(grads)
    metrics |= {"learning_rate": rate} if static.agent.pace else {}
    return state._replace(params=state.params._replace(network=network), opt_state=opt_state, pace=pace), metrics


def _part_moved(
    static: _Static, part: types.Part, name: str, grads: ArrayTree, state: LearnerState, rate: Array
) -> Any:
    """Moves a part by its own step size, in each update that its period selects.

    A part that never moves has no step of its own: a decay of weights moves what has no gradient.
    """
    before = state.params.network[name], state.opt_state[name]
    if part.period == 0:
        return before
    if part.learning_rate:
        rate = rate * (part.learning_rate / static.config.learning_rate)
    after = _moved(static, grads[name], before[1], before[0], rate)
    if part.period == 1:
        return after
    due = (state.updates + 1) % part.period == 0
    return jax.tree.map(lambda new, old: jnp.where(due, new, old), after, before)


def _moved(
    static: _Static, grads: ArrayTree, opt_state: ArrayTree, network: ArrayTree, rate: Array
) -> tuple[ArrayTree, ArrayTree]:
    """Clips gradients by their norm, and makes a step."""
    if limit := static.config.max_grad_norm:
        norm = _norm(grads)
        grads = jax.tree.map(lambda g: jnp.where(norm < limit, g, g / norm * limit), grads)
    if ratio := static.config.max_grad_ratio:
        grads = jax.tree.map(functools.partial(_clipped_by_ratio, ratio=ratio), grads, network)
    return static.rule.step(grads, opt_state, network, rate)


def _clipped_by_ratio(gradient: Array, parameters: Array, ratio: float) -> Array:
    """Clips the gradient of one array by the array's norm."""
    limit = ratio * jnp.maximum(_SMALLEST_NORM, jnp.sqrt(jnp.square(parameters).sum()))
    norm = jnp.sqrt(jnp.square(gradient).sum())
    return gradient / jnp.maximum(1.0, norm / limit)


def _norm(grads: ArrayTree) -> Array:
    """Returns the norm of all leaves, f32 []."""
    norm: Array = jax.lax.platform_dependent(grads, cpu=optax.global_norm, default=_norm_of_one)
    return norm


def _norm_of_one(grads: ArrayTree) -> Array:
    """Joins the leaves first: on an accelerator each leaf's sum would be a kernel of its own, or two."""
    norm: Array = optax.global_norm(vectors.join(grads)[0])
    return norm


def _advance(static: _Static, state: LearnerState) -> LearnerState:
    config, state = static.config, state._replace(updates=state.updates + 1)
    due, present = state.updates % config.target_period == 0, state.target_network
    moved = optax.incremental_update(static.agent.target(state.params.network), present, config.target_rate)
    return state._replace(target_network=jax.tree.map(lambda new, old: jnp.where(due, new, old), moved, present))


def _prepare(agent: agents.Agent, params: types.Params, inputs: types.LossInputs) -> ArrayTree:
    # `prepare` has a key of its own, so that the keys of losses do not depend on it.
    return agent.prepare(params, inputs._replace(key=jax.random.fold_in(inputs.key, _PREPARE)))


def _prepare_whole(static: _Static, params: types.Params, inputs: types.LossInputs) -> ArrayTree:
    return _as_one(static.agent, _prepare(static.agent, params, inputs), static.axis)


def _as_one(agent: agents.Agent, batch: ArrayTree, axis: types.Axis) -> ArrayTree:
    """Returns a batch after `Agent.epoch`, with all items as the only minibatch."""
    return batch if agent.epoch is None else agent.epoch(batch, jnp.arange(_num_items(batch))[None], axis)


def _num_items(batch: ArrayTree) -> int:
    return jax.tree.leaves(batch)[0].shape[0]


def learning_rate(config: Config, progress: Array) -> Array:
    """Returns the step size at a share of training.

    It rises over the first `warmup` of training, and falls over the rest if `anneal` is on.

    Args:
        config: settings of the optimiser.
        progress: f32 [] in [0, 1].

    Returns:
        f32 [].

    Source: Loshchilov & Hutter 2017, "SGDR", equation 5 without restarts (cosine); Goyal et al. 2017, section 2.2.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.learning import learner
        >>> print(learner.learning_rate(learner.Config(learning_rate=0.5), jnp.float32(0.75)))
        0.125
    """
    rise = config.warmup
    past = jnp.maximum(progress - rise, 0.0) / (1.0 - rise) if rise else progress
    share = _left(config, past) if config.anneal else 1.0
    share = jnp.where(progress < rise, progress / rise, share) if rise else share
    return jnp.asarray(config.learning_rate * share, jnp.float32)


def _left(config: Config, past: Array) -> Array:
    """Returns the share f32 [] of the step size that is left after a share of its fall."""
    left = 1.0 - past if config.schedule == "linear" else 0.5 * (1.0 + jnp.cos(jnp.pi * past))
    return config.final_share + (1.0 - config.final_share) * left if config.final_share else left


def _check_schedule(config: Config) -> None:
    """Raises a UsageError if the fall of the step size has a form, but the step size does not fall."""
    for name, value, none in (("schedule", config.schedule, "linear"), ("final_share", config.final_share, 0.0)):
        if value != none and not config.anneal:
            raise UsageError(
                given(f"learner.{name}", value),
                ": the step size of this run does not fall; add ",
                given("learner.anneal", "true"),
            )


def _check_pace(config: Config, agent: agents.Agent) -> None:
    """Raises a UsageError if the step size follows a divergence that the one step of an update never shows."""
    if agent.pace and config.epochs * config.minibatches == 1:
        raise UsageError(
            given("agent.adapt_learning_rate", "true"),
            ": with one gradient step per unroll the policy that acted is still the newest; valid: ",
            given("agent.adapt_learning_rate", "false"),
            ", or more than one of ",
            given("learner.epochs"),
            " and ",
            given("learner.minibatches"),
            " (not under ",
            given("layout", "async_gradient"),
            ", which takes one)",
        )


def item_weights(sample: types.Sample, batch: ArrayTree, columns_per_item: int = 1) -> Array:
    """Returns the weight of each item that an agent made of a sample's N sequences.

    Args:
        sample: N sequences [L, N] with a weight each.
        batch: tree of [N', ...], the items.
        columns_per_item: sequences beside each other that are one item together, see `agents.Agent`; its weight is
            their mean.

    Returns:
        f32 [N'].

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import types
        >>> from jaxrl_dist.learning import learner
        >>> sample = types.Sample(types.Unroll((), ()), indices=(), weights=jnp.array([1.0, 0.5]))
        >>> print(learner.item_weights(sample, batch=jnp.zeros((6, 3))))  # three rows of each, time-major
        [1.  0.5 1.  0.5 1.  0.5]
    """
    # Items are rows of the sequences, time-major, or the sequences themselves.
    weights = sample.weights
    if columns_per_item > 1:
        weights = weights.reshape(-1, columns_per_item).mean(-1)
    return jnp.tile(weights, _num_items(batch) // weights.shape[0])


def check_batch(config: Config, num_items: int, num_devices: int) -> None:
    """Checks that devices and minibatches divide the items.

    Args:
        config: settings of the learner.
        num_items: items of a sample, over all devices.
        num_devices: number of devices.

    Raises:
        UsageError: they do not; the message names the nearest valid numbers.

    Example:
        >>> from jaxrl_dist.learning import learner
        >>> learner.check_batch(learner.Config(minibatches=4), num_items=64, num_devices=2)
        >>> learner.check_batch(learner.Config(minibatches=5), num_items=64, num_devices=2)
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: learner.minibatches=5 on 2 device(s) does not divide 64 items; …
    """
    parts = config.minibatches * num_devices
    if num_items % parts:
        valid = [m for m in range(1, num_items + 1) if num_items % (m * num_devices) == 0]
        nearest = sorted(sorted(valid, key=lambda m: abs(m - config.minibatches))[:3])
        fix = f"nearest valid: {', '.join(map(str, nearest))}" if nearest else "no number of minibatches would"
        raise UsageError(
            given("learner.minibatches", config.minibatches),
            f" on {num_devices} device(s) does not divide {num_items} items; {fix}",
        )
