"""Torsos: Flax modules that map observations [B, ...] to features [B, F]."""

import functools
import importlib
import math
import os
import traceback
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_dist.config import UsageError

_CONVOLUTIONS = ("minatar_cnn", "nature_cnn", "impala_resnet")


def make(
    name: str, hidden_sizes: tuple[int, ...], activation: str, orthogonal: bool, shape: tuple[int, ...]
) -> nn.Module:
    """Makes a torso.

    Args:
        name: `mlp`, `minatar_cnn`, `nature_cnn`, `impala_resnet`, or `module:Class` of the user's.
        hidden_sizes: widths of the mlp.
        activation: of the mlp: tanh, relu or swish.
        orthogonal: initialisation; else LeCun normal.
        shape: of one observation.

    Raises:
        UsageError: the torso does not take such observations, or there is no such module.
    """
    init = kernel(orthogonal, math.sqrt(2.0))
    if name == "mlp":
        return _Mlp(hidden_sizes, {"tanh": jnp.tanh, "relu": nn.relu, "swish": nn.swish}[activation], init)
    if name in _CONVOLUTIONS:
        if len(shape) != 3:
            raise UsageError(
                f"--network={name} takes images [H, W, C]; this observation has shape {shape}: use --network=mlp"
            )
        return {"minatar_cnn": _MinAtarCnn, "nature_cnn": _NatureCnn, "impala_resnet": _ImpalaResNet}[name](init)
    module_name, _, class_name = name.partition(":")
    if not class_name:
        raise UsageError(f"--network={name} is not one of {', '.join(('mlp', *_CONVOLUTIONS))}, nor module:Class")
    try:
        return getattr(importlib.import_module(module_name), class_name)()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--network={name}: {error}") from error
    except Exception as error:
        raise UsageError(f"--network={name}: {_where(error)}; it is made without arguments") from error


def check(name: str, torso: nn.Module, observation: jax.ShapeDtypeStruct) -> None:
    """Tries a module of the user's, by shapes alone.

    Args:
        name: as in `make`.
        torso: from `make`.
        observation: one of those that it will see, without a batch.

    Raises:
        UsageError: it fails, or does not map [B, ...] to [B, F]; the message names the line.
    """
    batch = jax.ShapeDtypeStruct((2, *observation.shape), observation.dtype)
    try:
        features = jax.eval_shape(lambda x: torso.init_with_output(jax.random.key(0), x)[0], batch)
    except Exception as error:
        raise UsageError(f"--network={name}: {_where(error)}; it was given observations {batch.shape}") from error
    shape = getattr(features, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != 2:
        raise UsageError(
            f"--network={name} maps observations {batch.shape} to {'a tree' if shape is None else shape}; wanted (2, F)"
        )


def _where(error: Exception) -> str:
    """Says in one line what an error is and where in the user's code it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    # The package itself may be installed beside the libraries, and then every frame is of them.
    frame = ([f for f in frames if "site-packages" not in f.filename] or frames)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__} at {place}: {text[0] if text else 'no message'}"


def _as_float(image: jax.Array) -> jax.Array:
    scale = 1 / 255 if image.dtype == jnp.uint8 else 1.0
    return image.astype(jnp.float32) * scale


class _Mlp(nn.Module):
    sizes: tuple[int, ...]
    activation: Callable[[jax.Array], jax.Array]
    kernel: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = _as_float(x).reshape(x.shape[0], -1)
        for size in self.sizes:
            x = self.activation(nn.Dense(size, kernel_init=self.kernel)(x))
        return x


class _MinAtarCnn(nn.Module):
    """Young & Tian 2019, section 3: 16 filters 3×3, then 128 units.

    The convolution is a product with gathered neighbourhoods: on a CPU XLA's own gradient of so small a convolution
    took 7 times as long.
    """

    kernel: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(16, kernel_init=self.kernel)(_neighbourhoods(_as_float(x))))
        return nn.relu(nn.Dense(128, kernel_init=self.kernel)(x.reshape(x.shape[0], -1)))


def _neighbourhoods(image: jax.Array) -> jax.Array:
    """Gathers the 3×3 neighbourhoods of [B, H, W, C] into [B, H − 2, W − 2, 9 C]."""
    height, width = image.shape[1] - 2, image.shape[2] - 2
    shifted = [image[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1)


class _NatureCnn(nn.Module):
    """Mnih et al. 2015, methods: 32@8×8/4, 64@4×4/2, 64@3×3/1, 512 units."""

    kernel: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = _as_float(x)
        for filters, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            conv = nn.Conv(filters, (size, size), (stride, stride), padding="VALID", kernel_init=self.kernel)
            x = nn.relu(conv(x))
        return nn.relu(nn.Dense(512, kernel_init=self.kernel)(x.reshape(x.shape[0], -1)))


class _ImpalaResNet(nn.Module):
    """Espeholt et al. 2018, figure 3 (deep): 16, 32, 32 channels, two residual blocks each, 256 units."""

    kernel: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = _as_float(x)
        conv = functools.partial(nn.Conv, kernel_size=(3, 3), kernel_init=self.kernel)
        for channels in (16, 32, 32):
            x = nn.max_pool(conv(channels)(x), (3, 3), strides=(2, 2), padding="SAME")
            for _ in range(2):
                x = x + conv(channels)(nn.relu(conv(channels)(nn.relu(x))))
        x = nn.relu(x).reshape(x.shape[0], -1)
        return nn.relu(nn.Dense(256, kernel_init=self.kernel)(x))


def kernel(orthogonal: bool, gain: float) -> Any:
    """Returns the initialiser of weights: orthogonal with a gain, or LeCun normal."""
    return nn.initializers.orthogonal(gain) if orthogonal else nn.initializers.lecun_normal()
