r"""Dreamer's world model as Flax modules: encoder, recurrent state-space model, decoder and heads; no losses.

The state has a recurrent part h and a latent part z of several categoricals; x is an observation, a the action before:

.. math:: h_t = f(h_{t-1}, z_{t-1}, a_{t-1}), \qquad z_t \sim q(z_t | h_t, x_t), \qquad \hat z_t \sim p(\hat z_t | h_t)

f is a GRU whose weights are block-diagonal. Layers are followed by RMS normalisation and SiLU.

Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", methods, and their code, from which
the order of layers is.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import types
from jaxrl_dist.networks import encoders, torsos
from jaxrl_dist.numeric import values
from jaxrl_dist.types import Array, ArrayTree

# Width of convolutions, channels of their stages as multiples, and the size below which no image is halved.
_KERNEL, _CHANNELS, _SMALLEST = 5, (2, 3, 4, 4), 6


class Sizes(NamedTuple):
    """Sizes of a world model.

    Attributes:
        units: of hidden layers.
        layers: hidden layers of the encoder and of the decoder of vectors.
        recurrent: numbers of the recurrent state.
        blocks: of its weights; 1 makes a plain GRU.
        latents: categoricals of the latent state.
        classes: of each.
        channels: of convolutions; their stages have 2, 3, 4 and 4 times as many.
        bins: outputs of the reward head.

    Example:
        >>> from jaxrl_dist.networks import world_model
        >>> sizes = world_model.Sizes(64, 2, recurrent=128, blocks=4, latents=8, classes=4, channels=4, bins=31)
        >>> sizes.features
        160
    """

    units: int
    layers: int
    recurrent: int
    blocks: int
    latents: int
    classes: int
    channels: int
    bins: int

    @property
    def features(self) -> int:
        """The number of numbers of a state."""
        return self.recurrent + self.latents * self.classes


class State(NamedTuple):
    """State of the model.

    Attributes:
        recurrent: f32 [..., R].
        latent: f32 [..., G * C], one-hot vectors of G categoricals.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist.networks import world_model
        >>> world_model.State(jnp.zeros((3, 4)), jnp.ones((3, 2))).features.shape
        (3, 6)
    """

    recurrent: Array
    latent: Array

    @property
    def features(self) -> Array:
        """Both parts, f32 [..., R + G * C]."""
        return jnp.concatenate([self.recurrent, self.latent], -1)


class Leaf(NamedTuple):
    """Describes a leaf of an observation, and how the model sees and predicts it.

    Attributes:
        observed: shape in the observation.
        shape: as it is seen: [H, W, C] of an image, else [D].
        categories: number of values of integers that stand for categories; 0 for quantities.
        is_share: whether its numbers lie in [0, 1] and are predicted by a sigmoid; others are compressed by symlog.
        scale: that brings them there.

    Example:
        >>> from jaxrl_dist.networks import world_model
        >>> world_model.Leaf((84, 84, 3), (84, 84, 3), categories=0, is_share=True, scale=1 / 255).is_image
        True
    """

    observed: tuple[int, ...]
    shape: tuple[int, ...]
    categories: int
    is_share: bool
    scale: float

    @property
    def is_image(self) -> bool:
        """Says whether it passes convolutions."""
        return torsos.is_image(self.shape)


def leaves_of(spec: types.EnvironmentSpec) -> tuple[tuple[str, Leaf], ...]:
    """Describes the leaves of an observation that play shows, each with its name.

    Args:
        spec: of the environment.

    Example:
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.networks import world_model
        >>> world_model.leaves_of(envs.make("toy:walk").spec)
        (('', Leaf(observed=(2,), shape=(2,), categories=0, is_share=False, scale=1.0)),)
    """
    leaves = types.named_leaves(spec.observation)
    seen = encoders.seen(spec, ())
    return tuple((name, _leaf(leaves[name], spec.categories.get(name, ()))) for name in seen)


def _leaf(leaf: jax.ShapeDtypeStruct, numbers: Sequence[int]) -> Leaf:
    size, categories = math.prod(leaf.shape), max(numbers, default=0)
    shape = leaf.shape if torsos.is_image(leaf.shape) and not categories else (size * max(categories, 1),)
    is_byte = leaf.dtype == np.uint8 and not categories
    is_share = is_byte or bool(categories) or leaf.dtype == bool
    return Leaf(leaf.shape, shape, categories, is_share, 1 / 255 if is_byte else 1.0)


def as_seen(leaves: Sequence[tuple[str, Leaf]], observation: ArrayTree) -> dict[str, Array]:
    """Returns an observation as the model sees and predicts it.

    Args:
        leaves: of `leaves_of`.
        observation: tree of [..., *`Leaf.observed`].

    Returns:
        Name -> f32 [..., *`Leaf.shape`].

    Source: Hafner et al. 2025, methods (symlog of vectors, bytes of images divided by 255).

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrl_dist import envs
        >>> from jaxrl_dist.networks import world_model
        >>> leaves = world_model.leaves_of(envs.make("toy:walk").spec)
        >>> print(world_model.as_seen(leaves, jnp.array([[0.0, jnp.e - 1]]))[""])
        [[0. 1.]]
    """
    named = types.named_leaves(observation)
    return {name: _as_seen(leaf, named[name]) for name, leaf in leaves}


def _as_seen(leaf: Leaf, x: Array) -> Array:
    batch = x.shape[: x.ndim - len(leaf.observed)]
    x = jax.nn.one_hot(x.astype(jnp.int32), leaf.categories) if leaf.categories else x
    x = x.reshape(*batch, *leaf.shape)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32)) * leaf.scale
    return x if leaf.is_share else values.symlog(x)


class WorldModel(nn.Module):
    """The model's networks; each method is one of them. All leaves may have any axes before those that are named.

    Attributes:
        sizes: of its layers.
        leaves: of `leaves_of`.
        actions: numbers of an action as the model sees it.
    """

    sizes: Sizes
    leaves: tuple[tuple[str, Leaf], ...]
    actions: int

    def setup(self) -> None:
        sizes = self.sizes
        self.encoders = {name: self._encoder(leaf) for name, leaf in self._images()}
        vectors = sum(leaf.shape[0] for _, leaf in self._vectors())
        self.encoder = Mlp(sizes.units, sizes.layers) if vectors else None
        self.enter = [Layer(sizes.units) for _ in range(3)]
        self.inner = BlockDense(sizes.recurrent, sizes.blocks)
        self.inner_norm = _norm()
        self.gates = BlockDense(3 * sizes.recurrent, sizes.blocks)
        latent = sizes.latents * sizes.classes
        self.prior_net = Mlp(sizes.units, 2, latent)
        self.posterior_net = Mlp(sizes.units, 1, latent)
        self.decoders = {name: Decoder(sizes.channels, leaf.shape) for name, leaf in self._images()}
        self.decoder = Mlp(sizes.units, sizes.layers, vectors) if vectors else None
        self.reward_net = Mlp(sizes.units, 1, sizes.bins, gain=0.0)
        self.continue_net = Mlp(sizes.units, 1, 1)

    def _encoder(self, leaf: Leaf) -> nn.Module:
        return Encoder(self.sizes.channels, leaf.shape)

    def _images(self) -> list[tuple[str, Leaf]]:
        return [(name, leaf) for name, leaf in self.leaves if leaf.is_image]

    def _vectors(self) -> list[tuple[str, Leaf]]:
        return [(name, leaf) for name, leaf in self.leaves if not leaf.is_image]

    def __call__(self, seen: dict[str, Array], state: State, action: Array) -> Any:
        """Calls every network once, which gives each its parameters."""
        recurrent = self.move(state, action)
        state = State(recurrent, state.latent)
        return (
            self.prior(recurrent),
            self.posterior(recurrent, self.encode(seen)),
            self.decode(state),
            self.heads(state),
        )

    def encode(self, seen: dict[str, Array]) -> Array:
        """Returns features f32 [..., E] of observations as `as_seen` gives them."""
        parts = [self.encoders[name](seen[name]) for name, _ in self._images()]
        if self.encoder:
            parts.append(self.encoder(jnp.concatenate([seen[name] for name, _ in self._vectors()], -1)))
        return jnp.concatenate(parts, -1)

    def move(self, state: State, action: Array) -> Array:
        """Returns the recurrent state f32 [..., R] after an action f32 [..., A]."""
        sizes, before = self.sizes, state.recurrent
        entered = [layer(x) for layer, x in zip(self.enter, (before, state.latent, action), strict=True)]
        x = jnp.concatenate(entered, -1)
        batch = x.shape[:-1]
        x = jnp.broadcast_to(x[..., None, :], (*batch, sizes.blocks, x.shape[-1]))
        x = jnp.concatenate([before.reshape(*batch, sizes.blocks, -1), x], -1)
        x = nn.silu(self.inner_norm(self.inner(x).reshape(*batch, -1)))
        gates = self.gates(x.reshape(*batch, sizes.blocks, -1))
        reset, candidate, update = (gate.reshape(*batch, -1) for gate in jnp.split(gates, 3, axis=-1))
        # At first the state changes slowly.
        update = nn.sigmoid(update - 1)
        return update * jnp.tanh(nn.sigmoid(reset) * candidate) + (1 - update) * before

    def prior(self, recurrent: Array) -> Array:
        """Returns logits f32 [..., G, C] of the latent state before an observation is seen."""
        return self._logits(self.prior_net(recurrent))

    def posterior(self, recurrent: Array, features: Array) -> Array:
        """Returns logits f32 [..., G, C] of the latent state after it is seen."""
        return self._logits(self.posterior_net(jnp.concatenate([recurrent, features], -1)))

    def _logits(self, x: Array) -> Array:
        return x.reshape(*x.shape[:-1], self.sizes.latents, self.sizes.classes)

    def decode(self, state: State) -> dict[str, Array]:
        """Returns predictions of observations, as `as_seen` gives them; of shares before the sigmoid."""
        x = state.features
        found = {name: self.decoders[name](x) for name, _ in self._images()}
        if self.decoder:
            ends = np.cumsum([leaf.shape[0] for _, leaf in self._vectors()])[:-1]
            parts = jnp.split(self.decoder(x), ends, axis=-1)
            found |= {name: part for (name, _), part in zip(self._vectors(), parts, strict=True)}
        return found

    def heads(self, state: State) -> tuple[Array, Array]:
        """Returns logits f32 [..., bins] of the reward for arriving, and f32 [...] of the episode going on."""
        x = state.features
        return self.reward_net(x), self.continue_net(x)[..., 0]


def _norm() -> nn.RMSNorm:
    return nn.RMSNorm(epsilon=1e-4)


class Layer(nn.Module):
    """Dense layer, RMS normalisation and SiLU: f32 [..., F] -> f32 [..., units]."""

    units: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.silu(_norm()(nn.Dense(self.units)(x)))


class Mlp(nn.Module):
    """Maps f32 [..., F] through hidden layers, and to outputs unless there are 0 of them.

    Attributes:
        units: of a hidden layer.
        layers: hidden layers.
        outputs: number of outputs.
        gain: of the last layer's first weights; 0 makes every first output 0.
    """

    units: int
    layers: int
    outputs: int = 0
    gain: float = 1.0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for _ in range(self.layers):
            x = Layer(self.units)(x)
        return nn.Dense(self.outputs, kernel_init=_scaled(self.gain))(x) if self.outputs else x


def _scaled(gain: float) -> Callable[..., Array]:
    if not gain:
        return nn.initializers.zeros_init()
    return nn.initializers.variance_scaling(gain**2, "fan_in", "truncated_normal")


class BlockDense(nn.Module):
    """A dense layer of block-diagonal weights: f32 [..., blocks, F] -> f32 [..., blocks, outputs / blocks]."""

    outputs: int
    blocks: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (self.blocks, x.shape[-1], self.outputs // self.blocks)
        # As in the released code, where the inputs of all blocks count for the deviation of each.
        init = nn.initializers.variance_scaling(1 / self.blocks, "fan_in", "truncated_normal", batch_axis=(0,))
        weights = self.param("kernel", init, shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (shape[0], shape[2]))
        return jnp.einsum("...kf,kfo->...ko", x, weights) + bias


def stages(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Returns height and width of an image before each stage of the encoder, and after the last.

    Args:
        shape: [H, W, C].

    Returns:
        Sizes that are halved until none is above 6.

    Source: Hafner et al. 2025, methods: down to 6 × 6 or 4 × 4 pixels.

    Example:
        >>> from jaxrl_dist.networks import world_model
        >>> world_model.stages((64, 64, 3))
        [(64, 64), (32, 32), (16, 16), (8, 8), (4, 4)]
    """
    found = [(shape[0], shape[1])]
    while max(found[-1]) > _SMALLEST:
        height, width = found[-1]
        found.append((-(-height // 2), -(-width // 2)))
    return found


def _channels(channels: int, stage: int) -> int:
    return channels * _CHANNELS[min(stage, len(_CHANNELS) - 1)]


class Encoder(nn.Module):
    """Maps images f32 [..., H, W, C] to features f32 [..., F] by convolutions that halve them."""

    channels: int
    shape: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        batch = x.shape[: x.ndim - 3]
        x = x.reshape(-1, *self.shape)
        for stage in range(len(stages(self.shape)) - 1):
            x = nn.silu(_norm()(Convolution(_channels(self.channels, stage), 2)(x)))
        return x.reshape(*batch, -1)


class Decoder(nn.Module):
    """Maps states f32 [..., F] to images f32 [..., H, W, C], by the stages of the encoder in reverse."""

    channels: int
    shape: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        batch, (*before, smallest) = x.shape[:-1], stages(self.shape)
        depth = _channels(self.channels, max(len(before) - 1, 0))
        x = Layer(math.prod(smallest) * depth)(x.reshape(-1, x.shape[-1]))
        x = x.reshape(-1, *smallest, depth)
        for stage, (height, width) in reversed(list(enumerate(before))):
            x = x.repeat(2, axis=1).repeat(2, axis=2)[:, :height, :width]
            if stage:
                x = nn.silu(_norm()(Convolution(_channels(self.channels, stage - 1), 1)(x)))
        return Convolution(self.shape[2], 1)(x).reshape(*batch, *self.shape)


class Convolution(nn.Module):
    """A convolution with padding, f32 [N, H, W, C] -> f32 [N, H / stride, W / stride, features], rounded up."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
        weights = self.param("kernel", init, (_KERNEL, _KERNEL, x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        missing = [max((-(-n // self.stride) - 1) * self.stride + _KERNEL - n, 0) for n in x.shape[1:3]]
        x = jnp.pad(x, ((0, 0), *((n // 2, n - n // 2) for n in missing), (0, 0)))
        return torsos.convolve(x, weights, self.stride) + bias
