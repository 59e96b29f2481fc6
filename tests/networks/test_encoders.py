"""Encoders of trees: every leaf reaches its own part, and the layers that join them, as computed in NumPy."""

import dataclasses
import functools
import math
from typing import Any

import conftest
import flax.linen as nn
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from oracles import network as oracle

from jaxrl_dist import networks, types
from jaxrl_dist.networks import encoders, torsos

OBSERVATION = {
    "action_mask": jax.ShapeDtypeStruct((3,), jnp.bool_),
    "goal": jax.ShapeDtypeStruct((2,), jnp.int32),
    "robot": {"count": jax.ShapeDtypeStruct((), jnp.int32), "joints": jax.ShapeDtypeStruct((2, 2), jnp.float32)},
    "picture": jax.ShapeDtypeStruct((4, 4, 2), jnp.uint8),
    "tiles": jax.ShapeDtypeStruct((2, 2), jnp.uint8),
}
SPEC = types.EnvironmentSpec(
    "mine:tree",
    OBSERVATION,
    types.DiscreteSpace(3),
    "classic",
    mask="action_mask",
    categories={"goal": (4, 2), "tiles": (3,)},
)
POLICY, VALUE = networks.Head("policy", 3, 1.0), networks.Head("value", 1, 1.0)
CONFIG = networks.Config(torso="minatar_cnn", hidden_sizes=(5,), embedding_size=3)


def drawn(lead: tuple[int, ...], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)

    def leaf(struct: Any) -> Any:
        shape = (*lead, *struct.shape)
        if struct.dtype == jnp.float32:
            return rng.normal(size=shape).astype(np.float32)
        return rng.integers(0, 2, shape).astype(struct.dtype)

    return jax.tree.map(leaf, OBSERVATION)


def by_hand(params: Any, observation: Any) -> np.ndarray:
    """Features [N, 5] of observations, with relu as beside a torso of images."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)["torsos_0"]
    count = len(observation["goal"])
    tables = [params["embeddings_0"][f"table_{i}"] for i in range(2)]
    goal = np.concatenate([tables[i][observation["goal"][:, i]] for i in range(2)], -1)
    tiles = params["embeddings_4"]["table_0"][observation["tiles"]].reshape(count, -1)
    image = params["images_1"]
    kernel, bias = image["_Convolution_0"]["kernel"], image["_Convolution_0"]["bias"]
    pixels = observation["picture"] / 255
    convolved = np.zeros((count, 2, 2, 16))
    for i, j in np.ndindex(2, 2):
        convolved[:, i, j] = np.einsum("nhwc,hwcf->nf", pixels[:, i : i + 3, j : j + 3], kernel) + bias
    units = np.maximum(oracle.dense(image["Dense_0"], np.maximum(convolved, 0).reshape(count, -1)), 0)
    plain = [observation["robot"]["count"][:, None], observation["robot"]["joints"].reshape(count, -1)]
    joined = np.concatenate([goal, units, *plain, tiles], -1)
    return np.maximum(oracle.dense(params["joint"]["Dense_0"], joined), 0)


def test_every_leaf_is_encoded_and_joined_as_in_numpy() -> None:
    net = networks.make(CONFIG, SPEC, (POLICY, VALUE))
    params, observation = net.init(jax.random.key(0)), drawn((7,))
    outputs = networks.of_rows(net, params, observation)
    features = by_hand(params, observation)
    for name in ("policy", "value"):
        head = jax.tree.map(np.asarray, params[f"outputs_{name}"]["Dense_0"])
        np.testing.assert_allclose(outputs[name], oracle.dense(head, features), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(outputs["mask"], observation["action_mask"])


def test_a_category_out_of_range_is_nothing() -> None:
    net = networks.make(CONFIG, SPEC, (VALUE,))
    params, observation = net.init(jax.random.key(0)), drawn((2,))
    tables = params["torsos_0"]["embeddings_0"]
    zeroed = jax.tree.map(jnp.zeros_like, tables)
    without = {**params, "torsos_0": {**params["torsos_0"], "embeddings_0": zeroed}}
    beyond = {**observation, "goal": np.array([[4, 2], [-1, 9]], np.int32)}
    found = networks.of_rows(net, params, beyond)["value"]
    np.testing.assert_array_equal(found, networks.of_rows(net, without, observation)["value"])


def test_vectors_of_categories_are_as_long_however_many_there_are() -> None:
    """Numbers of variance 1 / E, so that few categories are not told apart by more than many."""
    spec = SPEC._replace(categories={"goal": (2, 300), "tiles": (3,)})
    net = networks.make(dataclasses.replace(CONFIG, embedding_size=64), spec, (VALUE,))
    tables = net.init(jax.random.key(0))["torsos_0"]["embeddings_0"]
    for table in tables.values():
        assert 0.8 < 8 * np.std(table) < 1.2


def test_a_leaf_without_numbers_is_no_input() -> None:
    observation = {**OBSERVATION, "none": jax.ShapeDtypeStruct((0, 3), jnp.float32)}
    assert encoders.seen(SPEC._replace(observation=observation), ()) == encoders.seen(SPEC, ())


@pytest.mark.parametrize("core", ["identity", "lstm"])
@pytest.mark.parametrize("shared", [pytest.param(True, marks=pytest.mark.slow), False])
def test_heads_see_the_leaves_that_are_named_and_no_others(core: str, shared: bool) -> None:
    inputs = {"policy": ("robot", "picture"), "value": ("robot/joints", "goal", "action_mask")}
    heads = [networks.Head(name, 2, 1.0, inputs=leaves) for name, leaves in inputs.items()]
    net = networks.make(
        networks.Config(**{**vars(CONFIG), "core": core, "core_size": 4, "shared": shared}), SPEC, heads
    )
    params, first = net.init(jax.random.key(1)), np.zeros((5, 3), bool)
    rows = drawn((5, 3))
    outputs = net.unroll(params, net.initial(3).memory, rows, first)[0]
    for name, leaf in types.named_leaves(rows).items():
        other = jax.tree_util.tree_map_with_path(
            lambda path, x, name=name: 1 - x if jax.tree_util.keystr(path, simple=True, separator="/") == name else x,
            rows,
        )
        changed = net.unroll(params, net.initial(3).memory, other, first)[0]
        assert leaf.size
        for head, seen in inputs.items():
            sees = any(name == tree or name.startswith(f"{tree}/") for tree in seen)
            assert (not np.array_equal(changed[head], outputs[head])) == sees, (name, head)


@pytest.mark.parametrize("core", marks.some(["lstm", "gru", "frame_stack_lstm"], fast={"frame_stack_lstm"}))
def test_two_streams_remember_apart_step_by_step_as_at_once(core: str) -> None:
    heads = [networks.Head("policy", 2, 1.0, inputs=("robot",)), networks.Head("value", 1, 1.0, inputs=("goal",))]
    net = networks.make(networks.Config(**{**vars(CONFIG), "torso": "mlp", "core": core, "core_size": 4}), SPEC, heads)
    params, rows = net.init(jax.random.key(1)), drawn((6, 3))
    first = np.random.default_rng(0).random((6, 3)) < 0.4
    carry = net.initial(3)
    assert len(carry.memory) == 2
    inputs = net.inputs(carry.frames, rows, first)
    at_once, after = net.unroll(params, carry.memory, inputs, first)
    for t in range(6):
        outputs, carry = net.step(params, carry, jax.tree.map(lambda x, t=t: x[t], rows), first[t])
        for name in ("policy", "value", "mask"):
            np.testing.assert_allclose(outputs[name], at_once[name][t], rtol=2e-5, atol=2e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6), carry.memory, after)


def test_frames_of_images_are_stacked_and_of_numbers_where_there_is_no_image() -> None:
    config = networks.Config(**{**vars(CONFIG), "core": "frame_stack", "num_frames": 3})
    without = {key: leaf for key, leaf in OBSERVATION.items() if key != "picture"}
    first = np.array([True, False, False, True])[:, None]
    for spec, stacked in ((SPEC, {"picture"}), (SPEC._replace(observation=without), {"robot/count", "robot/joints"})):
        torso = "minatar_cnn" if "picture" in spec.observation else "mlp"
        net = networks.make(networks.Config(**{**vars(config), "torso": torso}), spec, (VALUE,))
        rows = {key: leaf for key, leaf in drawn((4, 1)).items() if key in spec.observation}
        seen = types.named_leaves(net.inputs(net.initial(1).frames, rows, first))
        for name, leaf in types.named_leaves(rows).items():
            if name not in stacked:
                np.testing.assert_array_equal(seen[name], leaf)
                continue
            frames = [leaf[[0, 0, 0, 3]], leaf[[0, 0, 1, 3]], leaf]
            # The last axis of an array has frame after frame of each of its numbers.
            wanted = np.stack(frames, -1).reshape(*leaf.shape[:-1], -1) if leaf.ndim > 2 else np.stack(frames, -1)
            np.testing.assert_array_equal(seen[name], wanted)


class Summing(nn.Module):
    """A user's torso of trees."""

    @nn.compact
    def __call__(self, observation: Any) -> Any:
        leaves = [leaf.reshape(len(leaf), -1).astype(jnp.float32) for leaf in jax.tree.leaves(observation)]
        return jnp.concatenate(leaves, -1)


def test_a_torso_of_the_user_s_gets_the_tree() -> None:
    config = networks.Config(torso=f"{__name__}:Summing")
    net = networks.make(config, SPEC, (VALUE,))
    shapes = jax.eval_shape(net.init, jax.random.key(0))
    seen = {name: leaf for name, leaf in OBSERVATION.items() if name != SPEC.mask}
    total = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(seen))
    assert shapes["outputs_value"]["Dense_0"]["kernel"].shape == (total, 1)
    named = networks.make(config, SPEC, (VALUE._replace(inputs=("goal", "robot/joints")),))
    assert jax.eval_shape(named.init, jax.random.key(0))["outputs_value"]["Dense_0"]["kernel"].shape == (6, 1)


def test_one_leaf_beside_the_mask_passes_the_torso_alone() -> None:
    leaves = {"action_mask": OBSERVATION["action_mask"], "joints": jax.ShapeDtypeStruct((4,), jnp.float32)}
    spec = SPEC._replace(observation=leaves, categories={})
    alone = spec._replace(observation=leaves["joints"], mask="")
    found, plain = (
        networks.make(networks.Config(torso="mlp"), one, (VALUE,)).init(jax.random.key(0)) for one in (spec, alone)
    )
    jax.tree.map(np.testing.assert_array_equal, found, plain)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"policy_inputs": ("robo",)}, ["--network.policy_inputs=robo", "did you mean robot?"]),
        ({"value_inputs": ("goal", "x")}, ["--network.value_inputs=goal,x", "goal, picture"]),
        ({"torso": "nature_cnn"}, ["--network=nature_cnn", "36 × 36"]),
    ],
)
def test_what_does_not_fit_is_one_line(settings: dict[str, Any], named: list[str]) -> None:
    with conftest.refused(*named):
        networks.make(networks.Config(**{**vars(CONFIG), **settings}), SPEC, (VALUE,))


def test_an_array_has_no_leaves_to_name() -> None:
    spec = SPEC._replace(observation=OBSERVATION["picture"], mask="", categories={})
    with conftest.refused("--network.value_inputs=goal", "one array"):
        networks.make(networks.Config(**{**vars(CONFIG), "value_inputs": ("goal",)}), spec, (VALUE,))
    assert not torsos.takes("minatar_cnn", (2, 4, 1)) and torsos.takes("minatar_cnn", (3, 4, 1))


def test_bytes_that_are_no_picture_are_divided_as_those_of_pictures() -> None:
    bytes_, reals = jax.ShapeDtypeStruct((3,), jnp.uint8), jax.ShapeDtypeStruct((2,), jnp.float32)
    spec = SPEC._replace(observation={"bytes": bytes_, "reals": reals}, mask="", categories={})
    net = networks.make(networks.Config(torso="mlp", hidden_sizes=(5,), activation="relu"), spec, (VALUE,))
    params, rng = net.init(jax.random.key(0)), np.random.default_rng(0)
    rows = {"bytes": rng.integers(0, 256, (4, 3)).astype(np.uint8), "reals": rng.normal(size=(4, 2)).astype(np.float32)}
    layer, head = params["torsos_0"]["joint"]["Dense_0"], params["outputs_value"]["Dense_0"]
    features = np.maximum(oracle.dense(layer, np.concatenate([rows["bytes"] / 255, rows["reals"]], -1)), 0)
    np.testing.assert_allclose(networks.of_rows(net, params, rows)["value"], oracle.dense(head, features), rtol=1e-5)


def test_a_torso_of_the_user_s_gets_nothing_that_is_privileged() -> None:
    spec = SPEC._replace(mask="", categories={}, privileged="robot")
    net = networks.make(networks.Config(torso=f"{__name__}:Summing"), spec, (VALUE,))
    shapes = jax.eval_shape(net.init, jax.random.key(0))
    assert shapes["outputs_value"]["Dense_0"]["kernel"].shape == (3 + 2 + 4 * 4 * 2 + 2 * 2, 1)


def test_a_head_s_own_layer_takes_the_place_of_the_joint_one_and_pictures_keep_theirs() -> None:
    net = networks.make(dataclasses.replace(CONFIG, head_size=9), SPEC, (VALUE,))
    params = jax.eval_shape(net.init, jax.random.key(0))
    assert "joint" not in params["torsos_0"]
    assert params["torsos_0"]["images_1"]["Dense_0"]["kernel"].shape == (2 * 2 * 16, 128)
    # Two embeddings of the goal, one of each of four tiles, the units of the picture, a count and four joints.
    assert params["outputs_value"]["Dense_0"]["kernel"].shape == ((2 + 4) * 3 + 128 + 1 + 4, 9)


def test_a_mask_of_whole_numbers_is_given_as_truth_values() -> None:
    observation = {"action_mask": jax.ShapeDtypeStruct((3,), jnp.int8), "x": jax.ShapeDtypeStruct((2,), jnp.float32)}
    spec = SPEC._replace(observation=observation, categories={})
    net = networks.make(networks.Config(torso="mlp", hidden_sizes=(5,)), spec, (POLICY,))
    rows = {"action_mask": np.array([[0, 1, 2]], np.int8), "x": np.ones((1, 2), np.float32)}
    mask = networks.of_rows(net, net.init(jax.random.key(0)), rows)["mask"]
    assert mask.dtype == bool and mask.tolist() == [[False, True, True]]


IMAGE, VECTOR = jax.ShapeDtypeStruct((3, 4, 1), np.float32), jax.ShapeDtypeStruct((3,), np.float32)
# Of a map and a vector: the settings that say who sees what, and the leaves of which frames are kept.
STACKED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "both see both": ({}, {}, ["map"]),
    "the map is for training alone": ({"privileged": "map"}, {}, ["x"]),
    "the policy sees the vector": ({}, {"policy_inputs": ("x",)}, ["map", "x"]),
    "both see the vector": ({}, {"policy_inputs": ("x",), "value_inputs": ("x",)}, ["x"]),
    "the critic alone sees the map": ({"privileged": "map"}, {"value_inputs": ("map",)}, ["map", "x"]),
}


@pytest.mark.parametrize("case", STACKED)
def test_frames_are_kept_of_the_images_that_are_seen_or_else_of_all_numbers(case: str) -> None:
    facts, inputs, kept = STACKED[case]
    spec = types.EnvironmentSpec("mine:map", {"map": IMAGE, "x": VECTOR}, types.DiscreteSpace(2), "classic", **facts)
    config = networks.Config(torso="mlp", hidden_sizes=(4,), core="frame_stack", num_frames=4, **inputs)
    frames = networks.make(config, spec, [networks.Head("value", 1, 1.0)]).initial(1).frames
    assert [frame.shape for frame in frames] == [(1, 3, *spec.observation[name].shape) for name in kept]


def test_a_mask_is_no_picture_that_a_torso_asks_for() -> None:
    mask = jax.ShapeDtypeStruct((3, 4, 1), np.bool_)
    spec = types.EnvironmentSpec("mine:map", {"m": mask, "x": VECTOR}, types.DiscreteSpace(12), "classic", mask="m")
    with conftest.refused("minatar_cnn"):
        networks.make(networks.Config(torso="minatar_cnn"), spec, [networks.Head("value", 1, 1.0)])
    seen = networks.Config(torso="minatar_cnn", policy_inputs=("m",), value_inputs=("m",))
    heads = [networks.Head("value", 1, 1.0, inputs=("m",))]
    params = jax.eval_shape(networks.make(seen, spec, heads).init, jax.random.key(0))
    assert any(leaf.ndim == 4 for leaf in jax.tree.leaves(params))
