r"""CrossQ: SAC without target networks, whose critics normalise the batch of both states of a transition together.

The losses of a row are those of SAC (`sac.py`), but that the value of s' is that of the critics which learn, computed
in one pass with Q(s, a):

.. math:: \binom{Q_i(s, a)}{Q_i(s', a')} = Q_i\left(\binom{s, a}{s', a'}\right), \qquad
   y = \sum_{k=0}^{n-1} \gamma^k r_k + \gamma^n \left(\min_i Q_i(s', a') - \alpha \log \pi(a' | s')\right)

The input of a critic and the output of each of its layers are normalised, by the moments of the batch in this pass and
by running moments in the policy's loss. Batch renormalisation corrects the former towards the latter:

.. math:: \hat x = \frac{x - \mu_B}{\sigma_B} r + d, \qquad
   r = \left[\frac{\sigma_B}{\sigma}\right]_{1/r_{max}}^{r_{max}}, \qquad
   d = \left[\frac{\mu_B - \mu}{\sigma}\right]_{-d_{max}}^{d_{max}}

Source: Bhatt et al. 2024, "CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency and
simplicity", section 3 and figure 3, and their code; Ioffe 2017, "Batch renormalization", algorithm 1. Rows that teach
nothing are in no moment. Each device normalises by the moments of its own rows, and running moments follow their mean.
In their code the policy is normalised, too; here it is not.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_dist import agents, errors, networks, types
from jaxrl_dist.agents import sac, shared
from jaxrl_dist.agents.shared import bounded_actions, transitions
from jaxrl_dist.networks import encoders, torsos
from jaxrl_dist.numeric import distributions
from jaxrl_dist.settings import setting
from jaxrl_dist.types import Array, ArrayTree

ACTIONS = ("bounded",)
_CODE = "Bhatt et al. 2024, released code"
# Ioffe 2017, section 4, and the released code.
_LARGEST_RATIO, _LARGEST_SHIFT, _EPSILON = 3.0, 5.0, 1e-3


@dataclasses.dataclass(frozen=True)
class Config(sac.Config):
    """Settings of CrossQ: those of SAC, and of the normalisation; defaults are the paper's."""

    policy_period: int = shared.policy_period(3, source=f"{_CODE} train.py (policy_delay)")
    norm_rate: float = setting(
        0.01,
        "Share of the way that an update moves the running moments of the critics' layers.",
        above=0.0,
        high=1.0,
        source=f"{_CODE} train.py (bn_momentum .99)",
        sweep=True,
    )
    renorm_wait: float = setting(
        0.1,
        "Share of training in which batches are normalised by their own moments alone, before these are corrected "
        "towards the running ones.",
        low=0.0,
        high=1.0,
        source=f"this project ({_CODE} sbx/sac/policies.py: the first 100,000 updates)",
        sweep=True,
    )


class Moments(NamedTuple):
    """Moments of the inputs of a layer.

    Attributes:
        mean: f32 [F]; of two critics [2, F].
        variance: f32 [F], likewise.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents import crossq
        >>> crossq.Moments(mean=jnp.zeros(3), variance=jnp.ones(3))._fields
        ('mean', 'variance')
    """

    mean: Array
    variance: Array


class _Static(NamedTuple):
    config: Config
    policy: networks.Network
    critic: "_Critic"
    size: int
    actions: bounded_actions.Range
    rule: transitions.Rule
    spec: types.EnvironmentSpec


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment.
        network: settings of policy and critics; a torso of images is normalised behind its last layer alone.

    Raises:
        UsageError: actions are no bounded vector, the torso does not fit, or the network has a memory or another
            normalisation.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import networks, types
        >>> from jaxrl_dist.agents import crossq
        >>> observation, action = jax.ShapeDtypeStruct((3,), jnp.float32), types.BoxSpace((2,), low=-1.0, high=1.0)
        >>> spec = types.EnvironmentSpec("mine:arm", observation, action, family="continuous")
        >>> agent = crossq.make(crossq.Config(), spec, networks.Config(torso="mlp", hidden_sizes=(8,)))
        >>> moments = agent.init(jax.random.key(0)).statistics  # of the critics' input, and of their layer
        >>> [layer.mean.shape for layer in moments], agent.target({})
        ([(2, 5), (2, 8)], ())
    """
    actions = bounded_actions.action_range(spec)
    if network.layer_norm:
        told = ": batches normalise the layers of its critics; valid: false"
        raise errors.UsageError(errors.given("network.layer_norm", "true"), told)
    size = len(actions.centre)
    joined, inputs = bounded_actions.joined_spec(spec, network, size)
    policy = networks.make(network, spec, (networks.Head("policy", 2 * size, 0.01, inputs=network.policy_inputs),))
    # What is normalised, and by what, is float32.
    bare = dataclasses.replace(network, hidden_sizes=(), policy_inputs=(), value_inputs=(), compute="float32")
    critic = _Critic(network, encoders.make(bare, joined, inputs, last_layer=True))
    rule = transitions.Rule(0, config.n_step, config.discount, config.clip_rewards, config.reward_scale)
    static = _Static(config, policy, critic, size, actions, rule, joined)
    # It acts as SAC does; its losses differ, and its temperature moves with the policy.
    agent = sac.make(config, spec, network)
    return agent._replace(
        init=functools.partial(_init, static),
        loss=functools.partial(_loss, static),
        adapt=functools.partial(_adapt, static),
        target=agents.no_target,
        parts={**agent.parts, "temperature": types.Part(period=config.policy_period * config.learn_temperature)},
    )


class _Critic(nn.Module):
    """Maps observations joined with actions to values [N], and returns the moments of each layer's inputs.

    Without `taught` it normalises by the running moments, else by those of the taught rows, corrected where `corrects`
    f32 [] is 1.
    """

    config: networks.Config
    encoder: encoders.Encoder

    @nn.compact
    def __call__(
        self, joined: ArrayTree, running: Any = None, taught: Array | None = None, corrects: Array | float = 0.0
    ) -> tuple[Array, list[Moments]]:
        x = self.encoder.make()(self.encoder.pick(joined)).reshape(jax.tree.leaves(joined)[0].shape[0], -1)
        kernel = functools.partial(torsos.kernel, self.config.orthogonal)
        activation = torsos.ACTIVATIONS[self.config.activation]
        found = []
        for i in range(len(self.config.hidden_sizes) + 1):
            own = None if running is None else running[i]
            x, moments = self._normalised(x, own, taught, corrects, f"norm_{i}")
            found.append(moments)
            if i < len(self.config.hidden_sizes):
                size = self.config.hidden_sizes[i]
                x = activation(nn.Dense(size, kernel_init=kernel(math.sqrt(2.0)), name=f"layer_{i}")(x))
        return nn.Dense(1, kernel_init=kernel(1.0), name="value")(x)[:, 0], found

    def _normalised(self, x: Array, running: Any, taught: Any, corrects: Any, name: str) -> tuple[Array, Moments]:
        scale = self.param(f"{name}_scale", nn.initializers.ones_init(), x.shape[-1:])
        bias = self.param(f"{name}_bias", nn.initializers.zeros_init(), x.shape[-1:])
        if running is None:
            running = Moments(jnp.zeros_like(bias), jnp.ones_like(scale))
        if taught is None:
            return scale * _standardised(x, running) + bias, running
        batch = moments_of(x, taught)
        return scale * renormalised(x, batch, running, corrects) + bias, jax.lax.stop_gradient(batch)


def moments_of(x: Array, taught: Array) -> Moments:
    """Returns the moments of taught rows, 0 if there are none.

    Args:
        x: f32 [N, F].
        taught: f32 [N], 1 or 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents import crossq
        >>> print(crossq.moments_of(jnp.array([[1.0], [3.0], [99.0]]), jnp.array([1.0, 1.0, 0.0])).variance)
        [1.]
    """
    weights = (taught / jnp.maximum(taught.sum(), 1.0))[:, None]
    # What a row that teaches nothing has is not even multiplied by 0, as it may be infinite.
    x = jnp.where(taught[:, None] > 0, x, 0.0)
    mean = (weights * x).sum(0)
    return Moments(mean, (weights * jnp.square(x - mean)).sum(0))


def renormalised(x: Array, batch: Moments, running: Moments, corrects: Array | float) -> Array:
    """Normalises by the moments of a batch, corrected towards the running ones.

    Args:
        x: f32 [N, F].
        batch: f32 [F], through which gradients pass.
        running: f32 [F].
        corrects: f32 [], 1 with the correction and 0 without.

    Returns:
        f32 [N, F].

    Source: Ioffe 2017, "Batch renormalization", algorithm 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.agents import crossq
        >>> x, running = jnp.array([[1.0], [3.0]]), crossq.Moments(jnp.array([1.0]), jnp.array([1.0]))
        >>> batch = crossq.moments_of(x, jnp.ones(2))
        >>> print(*(crossq.renormalised(x, batch, running, corrects).round().T for corrects in (0.0, 1.0)))
        [[-1.  1.]] [[0. 2.]]
    """
    std, running_std = (jnp.sqrt(moments.variance + _EPSILON) for moments in (batch, running))
    ratio = jnp.clip(std / running_std, 1 / _LARGEST_RATIO, _LARGEST_RATIO)
    shift = jnp.clip((batch.mean - running.mean) / running_std, -_LARGEST_SHIFT, _LARGEST_SHIFT)
    ratio, shift = jax.lax.stop_gradient((1 + corrects * (ratio - 1), corrects * shift))
    return _standardised(x, batch) * ratio + shift


def _standardised(x: Array, moments: Moments) -> Array:
    return (x - moments.mean) / jnp.sqrt(moments.variance + _EPSILON)


def _init(static: _Static, key: Array) -> types.Params:
    policy_key, critic_key = jax.random.split(key)
    joined = jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), static.spec.observation)

    def one(key: Array) -> Any:
        return static.critic.init(key, joined)["params"]

    keys = jax.random.split(critic_key, 2)
    critics = jax.vmap(one)(keys)
    _, running = jax.vmap(lambda params: static.critic.apply({"params": params}, joined))(critics)
    network = {
        "policy": static.policy.init(policy_key),
        "critic": critics,
        "temperature": {"log": jnp.log(jnp.float32(static.config.temperature))},
    }
    return types.Params(network, running)


def _critics(static: _Static, critics: ArrayTree, running: Any, joined: ArrayTree, *rest: Any) -> Any:
    """Returns the values f32 [2, N] of both critics, and the moments of their layers' inputs."""

    def one(params: ArrayTree, running: Any) -> Any:
        return static.critic.apply({"params": params}, joined, running, *rest)

    return jax.vmap(one)(critics, running)


def _policy(static: _Static, network: ArrayTree, observation: ArrayTree) -> distributions.TanhGaussian:
    return sac.policy_of(static.policy, network["policy"], observation)


def _loss(static: _Static, params: types.Params, inputs: types.LossInputs) -> types.LossOutput:
    """SAC's losses; both states of a row pass the critics in one batch."""
    config, network, running = static.config, params.network, params.statistics
    batch: transitions.Batch = inputs.batch
    next_key, key = jax.random.split(inputs.key)
    weight = jax.lax.stop_gradient(jnp.exp(network["temperature"]["log"]))
    ahead = _policy(static, network, batch.next_inputs)
    next_sample = ahead.sample(next_key)
    pairs = (batch.inputs, batch.action), (batch.next_inputs, jax.lax.stop_gradient(ahead.action(next_sample)))
    joined = jax.tree.map(lambda *x: jnp.concatenate(x), *(bounded_actions.joined_with(*pair) for pair in pairs))
    corrects = (inputs.progress >= config.renorm_wait).astype(jnp.float32)
    values, found = _critics(static, network["critic"], running, joined, jnp.tile(batch.taught, 2), corrects)
    predicted, bootstrap = jnp.split(values, 2, axis=1)
    bootstrap = bootstrap.min(0) - weight * ahead.log_prob(next_sample)
    target = jax.lax.stop_gradient(batch.reward + batch.discount * bootstrap)
    policy = _policy(static, network, batch.inputs)
    sample = policy.sample(key)
    fixed = jax.lax.stop_gradient(network["critic"])
    done = bounded_actions.joined_with(batch.inputs, policy.action(sample))
    value = _critics(static, fixed, running, done)[0].min(0)
    terms = sac.Terms(predicted, target, policy.log_prob(sample), value)
    output = sac.losses(config, network["temperature"]["log"], static.size, batch.taught, terms)
    count = batch.taught.sum()
    return output._replace(aux=(count, jax.tree.map(lambda x: count * x, found)))


def _adapt(
    static: _Static, params: types.Params, sequences: types.Unroll, metrics: Any, aux: Any, axis: types.Axis
) -> types.Params:
    """Moves the running moments towards those of the batch, over all taught rows."""
    del sequences, metrics, axis
    count, weighted = aux
    rate = jnp.where(count > 0, static.config.norm_rate, 0.0)

    def moved(old: Array, total: Array) -> Array:
        return old + rate * (total / jnp.maximum(count, jnp.finfo(jnp.float32).tiny) - old)

    return params._replace(statistics=jax.tree.map(moved, params.statistics, weighted))
