"""Torsos: Flax modules that map observations [B, ...] to features [B, F]."""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.networks import custom

if TYPE_CHECKING:
    from jaxrl_dist import networks

# Name -> least height and width of an image, in pixels, for which its last convolution has an output.
_CONVOLUTIONS = {"minatar_cnn": 3, "nature_cnn": 36, "impala_resnet": 1}

# Filters, width and stride of each layer, and units of the last one.
_CNNS = {
    # Young & Tian 2019, section 3.
    "minatar_cnn": (((16, 3, 1),), 128),
    # Mnih et al. 2015, methods.
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}

ACTIVATIONS = {"tanh": jnp.tanh, "relu": nn.relu, "swish": nn.swish}


def make(config: "networks.Config", shape: tuple[int, ...], *, last_layer: bool) -> nn.Module:
    """Makes a torso.

    Args:
        config: settings; for a module of the user, only its name is used.
        shape: shape of one observation.
        last_layer: whether the last layer of units is part of it; else each head has its own.

    Raises:
        UsageError: the torso does not take such observations, or there is no such module.
    """
    name, init, norm = config.torso, kernel(config.orthogonal, math.sqrt(2.0)), normalisation(config.layer_norm)
    dtype = jnp.dtype(config.compute)
    if name == "mlp":
        return make_layers(config, last_layer=last_layer)
    if name in _CONVOLUTIONS:
        if not is_image(shape):
            raise UsageError(
                given("network", name),
                f" takes images [H, W, C]; this observation has shape {shape}: use ",
                given("network", "mlp"),
            )
        least = _CONVOLUTIONS[name]
        if least > min(shape[:2]):
            other = next((torso for torso, pixels in _CONVOLUTIONS.items() if pixels <= min(shape[:2])), "mlp")
            raise UsageError(
                given("network", name),
                f" takes images of {least} × {least} pixels or more; this observation has shape {shape}: use ",
                given("network", other),
            )
        if name in _CNNS:
            return _Cnn(dtype, *_CNNS[name], init, norm, last_layer)
        return _ImpalaResNet(dtype, init, norm, last_layer)
    if ":" not in name:
        raise UsageError(
            given("network", name), f" is not one of {', '.join(('mlp', *_CONVOLUTIONS))}, nor module:Class"
        )
    return custom.make(name)


def make_layers(config: "networks.Config", *, last_layer: bool) -> nn.Module:
    """Makes the layers of the mlp torso, with the activation of the torso that the settings name."""
    sizes = config.hidden_sizes if last_layer else config.hidden_sizes[:-1]
    activation = ACTIVATIONS[config.activation if config.torso == "mlp" else "relu"]
    init, norm = kernel(config.orthogonal, math.sqrt(2.0)), normalisation(config.layer_norm)
    return _Mlp(jnp.dtype(config.compute), sizes, activation, init, norm)


def is_image(shape: tuple[int, ...]) -> bool:
    """Says whether observations of this shape are images [H, W, C]."""
    return len(shape) == 3


def is_of_images(name: str) -> bool:
    """Says whether a torso takes images alone."""
    return name in _CONVOLUTIONS


def takes(name: str, shape: tuple[int, ...]) -> bool:
    """Says whether a torso is of images, and takes those of this shape."""
    return is_of_images(name) and is_image(shape) and min(shape[:2]) >= _CONVOLUTIONS[name]


def as_float(image: jax.Array, dtype: Any) -> jax.Array:
    """Casts an observation; bytes are divided by 255."""
    scale = 1 / 255 if image.dtype == jnp.uint8 else 1.0
    return (image.astype(jnp.float32) * scale).astype(dtype)


class _Mlp(nn.Module):
    dtype: Any
    sizes: tuple[int, ...]
    activation: Callable[[jax.Array], jax.Array]
    kernel: Any
    norm: Callable[[], Any]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_float(x, self.dtype).reshape(x.shape[0], -1)
        for size in self.sizes:
            x = self.activation(self.norm()(nn.Dense(size, kernel_init=self.kernel)(x)))
        return x


class _Convolution(nn.Module):
    """A convolution without padding; on a CPU as products, since XLA's own is slow there inside loops.

    In a loop the gradient of the Nature network took 26 times as long as outside, that of MinAtar's 7 times.
    """

    features: int
    size: int
    stride: int
    kernel: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        weights = self.param("kernel", self.kernel, (self.size, self.size, x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        x, weights, bias = nn.dtypes.promote_dtype(x, weights, bias)
        return convolve(x, weights, self.stride) + bias


def convolve(x: jax.Array, weights: jax.Array, stride: int) -> jax.Array:
    """Convolves images [B, H, W, C] with weights [K, K, C, F], without padding, by what the platform is fast at."""
    products, convolution = (functools.partial(f, stride=stride) for f in (by_products, by_convolution))
    convolved: jax.Array = jax.lax.platform_dependent(x, weights, cpu=products, default=convolution)
    return convolved


def by_convolution(x: jax.Array, weights: jax.Array, stride: int) -> jax.Array:
    """Convolves images [B, H, W, C] with weights [K, K, C, F], without padding."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weights, (stride, stride), "VALID", dimension_numbers=numbers)


def by_products(x: jax.Array, weights: jax.Array, stride: int) -> jax.Array:
    """Convolves as `by_convolution`, by one product of matrices.

    Blocks of stride × stride pixels become channels, so that few shifted copies of the image make all patches.
    """
    size, _, channels, features = weights.shape
    blocks = -(-size // stride)
    height, width = ((n - size) // stride + 1 for n in x.shape[1:3])
    rows, columns = ((n + blocks - 1) * stride for n in (height, width))
    missing = ((0, 0), (0, max(rows - x.shape[1], 0)), (0, max(columns - x.shape[2], 0)), (0, 0))
    x = jnp.pad(x, missing)[:, :rows, :columns]
    x = x.reshape(-1, rows // stride, stride, columns // stride, stride, channels).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(*x.shape[:3], -1)
    shifted = [x[:, i : i + height, j : j + width] for i in range(blocks) for j in range(blocks)]
    # Weights of pixels beyond the kernel, where the stride does not divide its size, are 0.
    weights = jnp.pad(weights, ((0, blocks * stride - size),) * 2 + ((0, 0),) * 2)
    weights = weights.reshape(blocks, stride, blocks, stride, channels, features).transpose(0, 2, 1, 3, 4, 5)
    return jnp.concatenate(shifted, -1) @ weights.reshape(-1, features)


class _Cnn(nn.Module):
    """Convolutions with relu, and a layer of units."""

    dtype: Any
    layers: tuple[tuple[int, int, int], ...]
    units: int
    kernel: Any
    norm: Callable[[], Any]
    last_layer: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_float(x, self.dtype)
        for filters, size, stride in self.layers:
            x = nn.relu(self.norm()(_Convolution(filters, size, stride, self.kernel)(x)))
        return _units(self.units * self.last_layer, self.kernel, self.norm, x)


class _ImpalaResNet(nn.Module):
    """Espeholt et al. 2018, figure 3 (deep): 16, 32, 32 channels, two residual blocks each, 256 units."""

    dtype: Any
    kernel: Any
    norm: Callable[[], Any]
    last_layer: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_float(x, self.dtype)

        def conv(x: jax.Array, channels: int) -> jax.Array:
            padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            return self.norm()(_Convolution(channels, 3, 1, self.kernel)(padded))

        for channels in (16, 32, 32):
            x = nn.max_pool(conv(x, channels), (3, 3), strides=(2, 2), padding="SAME")
            for _ in range(2):
                x = x + conv(nn.relu(conv(nn.relu(x), channels)), channels)
        return _units(256 * self.last_layer, self.kernel, self.norm, nn.relu(x))


def _units(size: int, init: Any, norm: Callable[[], Any], x: jax.Array) -> jax.Array:
    """Flattens features, and maps them to `size` units with relu unless it is 0."""
    x = x.reshape(x.shape[0], -1)
    return nn.relu(norm()(nn.Dense(size, kernel_init=init)(x))) if size else x


def kernel(orthogonal: bool, gain: float) -> Any:
    """Returns the initialiser of weights: orthogonal with a gain, or LeCun normal."""
    return nn.initializers.orthogonal(gain) if orthogonal else nn.initializers.lecun_normal()


def normalisation(layer_norm: bool) -> Callable[[], Any]:
    """Returns the maker of a layer's normalisation, over the features of each row (and pixel), or of the identity.

    Source: Ba et al. 2016, "Layer normalization".
    """
    return nn.LayerNorm if layer_norm else _no_normalisation


def _no_normalisation() -> Callable[[jax.Array], jax.Array]:
    return lambda x: x
