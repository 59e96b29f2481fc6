"""DreamerV3's encoder and decoder of images beside plain loops, written from the paper's appendix; first weights."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_dist import types
from jaxrl_dist.networks import world_model

# Two stages, of odd and even sizes.
SHAPE, CHANNELS = (14, 11, 2), 3
SIZES = [(14, 11), (7, 6), (4, 3)]


def convolved(x: np.ndarray, weights: np.ndarray, bias: np.ndarray, stride: int) -> np.ndarray:
    """Convolves an image [H, W, C] with [5, 5, C, F], padded with zeros as evenly as can be, more at the end."""
    height, width, _ = x.shape
    out = np.zeros((-(-height // stride), -(-width // stride), weights.shape[-1]))
    before = [max((n - 1) * stride + 5 - m, 0) // 2 for n, m in zip(out.shape[:2], x.shape[:2], strict=True)]
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = bias
            for k in range(5):
                for m in range(5):
                    row, column = i * stride + k - before[0], j * stride + m - before[1]
                    if 0 <= row < height and 0 <= column < width:
                        out[i, j] += x[row, column] @ weights[k, m]
    return out


def normed(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Divides by the root of the mean square of the channels, and applies SiLU."""
    x = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-4) * scale
    return x / (1 + np.exp(-x))


def encoded(params: dict[str, Any], image: np.ndarray) -> np.ndarray:
    for stage in range(2):
        weights = params[f"Convolution_{stage}"]
        image = normed(convolved(image, weights["kernel"], weights["bias"], 2), params[f"RMSNorm_{stage}"]["scale"])
    return image.reshape(-1)


def decoded(params: dict[str, Any], features: np.ndarray) -> np.ndarray:
    layer = params["Layer_0"]
    x = normed(features @ layer["Dense_0"]["kernel"] + layer["Dense_0"]["bias"], layer["RMSNorm_0"]["scale"])
    x = x.reshape(*SIZES[2], -1)
    for stage, (height, width) in ((0, SIZES[1]), (1, SIZES[0])):
        # Each pixel becomes four; what is too much at the end is cut off.
        x = np.array([[x[i // 2, j // 2] for j in range(width)] for i in range(height)])
        weights = params[f"Convolution_{stage}"]
        x = convolved(x, weights["kernel"], weights["bias"], 1)
        # The last one gives the image.
        x = normed(x, params["RMSNorm_0"]["scale"]) if stage == 0 else x
    return x


def random(module: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Returns parameters of which none is 0 or 1, as biases and scales are at first."""
    params = jax.eval_shape(module.init, jax.random.key(0), np.zeros(shape, np.float32))["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: rng.normal(0.5, 0.3, x.shape).astype(np.float32), params)


def test_the_encoder_is_that_of_plain_loops() -> None:
    encoder = world_model.Encoder(CHANNELS, SHAPE)
    params, images = random(encoder, (1, *SHAPE)), np.random.default_rng(1).normal(size=(2, 3, *SHAPE))
    found = encoder.apply({"params": params}, images.astype(np.float32))
    assert found.shape == (2, 3, 4 * 3 * 3 * CHANNELS)
    for i in range(2):
        for j in range(3):
            np.testing.assert_allclose(found[i, j], encoded(params, images[i, j]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_the_decoder_is_that_of_plain_loops(batch: tuple[int, ...]) -> None:
    decoder = world_model.Decoder(CHANNELS, SHAPE)
    params, states = random(decoder, (1, 5)), np.random.default_rng(1).normal(size=(*batch, 5))
    found = decoder.apply({"params": params}, states.astype(np.float32))
    assert found.shape == (*batch, *SHAPE)
    for index in np.ndindex(*batch):
        np.testing.assert_allclose(found[index], decoded(params, states[index]), rtol=1e-4, atol=1e-4)


def test_stages_have_two_three_four_and_four_times_the_channels() -> None:
    shape = (64, 64, 2)
    encoder, decoder = world_model.Encoder(CHANNELS, shape), world_model.Decoder(CHANNELS, shape)
    found = []
    for module, given in ((encoder, shape), (decoder, (5,))):
        params = jax.eval_shape(module.init, jax.random.key(0), np.zeros((1, *given), np.float32))["params"]
        found.append([params[f"Convolution_{stage}"]["kernel"].shape[2:] for stage in range(4)])
    # Channels before and after each convolution; the decoder begins with as many as the encoder ends with.
    assert found[0] == [(2, 6), (6, 9), (9, 12), (12, 12)]
    assert found[1] == [(12, 12), (12, 9), (9, 6), (6, 2)]


def test_convolutions_begin_with_a_variance_of_one_by_their_inputs() -> None:
    module = world_model.Convolution(32, 2)
    kernel = module.init(jax.random.key(0), np.zeros((1, 6, 6, 8), np.float32))["params"]["kernel"]
    assert kernel.shape == (5, 5, 8, 32)
    np.testing.assert_allclose([kernel.mean(), 5 * 5 * 8 * kernel.var()], [0.0, 1.0], atol=0.05)


@pytest.mark.parametrize("gain", [0.0, 0.01, 0.5, 1.0])
def test_the_last_layer_begins_with_the_deviation_of_its_gain(gain: float) -> None:
    module = world_model.Mlp(128, 1, 64, gain)
    kernel = module.init(jax.random.key(0), np.zeros((1, 3), np.float32))["params"]["Dense_0"]["kernel"]
    assert kernel.shape == (128, 64)
    np.testing.assert_allclose(np.sqrt(128) * kernel.std(), gain, rtol=0.05)


OBSERVATION = {
    "bytes": jax.ShapeDtypeStruct((2,), np.uint8),
    "camera": jax.ShapeDtypeStruct((8, 7, 2), np.uint8),
    "cells": jax.ShapeDtypeStruct((2, 1, 2), np.uint8),
    "goal": jax.ShapeDtypeStruct((2,), np.int32),
    "joints": jax.ShapeDtypeStruct((3,), np.float32),
    "lit": jax.ShapeDtypeStruct((), np.bool_),
}
SPEC = types.EnvironmentSpec(
    "toy:x", OBSERVATION, types.DiscreteSpace(3), "classic", categories={"goal": (2, 4), "cells": (3,)}
)


def test_each_leaf_is_seen_as_its_kind() -> None:
    """Bytes as shares, categories as one-hot vectors, also those of a grid, and the symlog of other numbers."""
    leaves = world_model.leaves_of(SPEC)
    kinds = {name: (leaf.shape, leaf.is_share, leaf.is_image) for name, leaf in leaves}
    assert kinds == {
        "bytes": ((2,), True, False),
        "camera": ((8, 7, 2), True, True),
        "cells": ((12,), True, False),
        "goal": ((8,), True, False),
        "joints": ((3,), False, False),
        "lit": ((1,), True, False),
    }
    given = {
        "bytes": np.array([[0, 255]], np.uint8),
        "camera": np.full((1, 8, 7, 2), 51, np.uint8),
        "cells": np.array([2, 0, 1, 1], np.uint8).reshape(1, 2, 1, 2),
        "goal": np.array([[1, 3]], np.int32),
        "joints": np.float32([[0.0, np.e - 1, 1 - np.e**2]]),
        "lit": np.array([True]),
    }
    seen = world_model.as_seen(leaves, given)
    np.testing.assert_array_equal(seen["bytes"], [[0, 1]])
    np.testing.assert_allclose(seen["camera"], np.full((1, 8, 7, 2), 0.2), rtol=1e-6)
    np.testing.assert_array_equal(seen["cells"], np.eye(3)[[2, 0, 1, 1]].reshape(1, 12))
    np.testing.assert_array_equal(seen["goal"], np.eye(4)[[1, 3]].reshape(1, 8))
    np.testing.assert_allclose(seen["joints"], [[0.0, 1.0, -2.0]], rtol=1e-6)
    np.testing.assert_array_equal(seen["lit"], [[1]])


def test_predictions_of_vectors_are_cut_where_the_leaves_end_and_first_rewards_are_nothing() -> None:
    leaves = tuple((name, leaf) for name, leaf in world_model.leaves_of(SPEC) if not leaf.is_image)
    sizes = world_model.Sizes(units=5, layers=1, recurrent=4, blocks=2, latents=2, classes=3, channels=2, bins=7)
    world = world_model.WorldModel(sizes, leaves, 3)
    seen = {name: np.ones((1, *leaf.shape), np.float32) for name, leaf in leaves}
    state = world_model.State(np.ones((1, 4), np.float32), np.ones((1, 6), np.float32))
    params = world.init(jax.random.key(0), seen, state, np.ones((1, 3), np.float32))["params"]
    reward, goes_on = world.apply({"params": params}, state, method="heads")
    assert not reward.any() and goes_on.all()
    last = params["decoder"]["Dense_0"]
    last = {"kernel": np.zeros(last["kernel"].shape), "bias": np.arange(2.0 + 12 + 8 + 3 + 1)}
    params = {**params, "decoder": {**params["decoder"], "Dense_0": last}}
    found = world.apply({"params": params}, state, method="decode")
    ends = {"bytes": (0, 2), "cells": (2, 14), "goal": (14, 22), "joints": (22, 25), "lit": (25, 26)}
    assert {name: x[0].tolist() for name, x in found.items()} == {
        name: list(range(first, end)) for name, (first, end) in ends.items()
    }
