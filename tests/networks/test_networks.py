"""Networks: torsos fit their observations, cores clear at FIRST, unrolling equals stepping."""

import functools

import conftest
import flax.linen as nn
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from flax import nnx

from jaxrl_dist import networks, types
from jaxrl_dist.networks import torsos
from jaxrl_dist.settings import user_code


class Failing(nn.Module):
    def __call__(self, observation):
        raise ValueError("no such thing\nand more")


class Wanting(nn.Module):
    size: int

    def __call__(self, observation):
        return observation


class Batched(nn.Module):
    @nn.compact
    def __call__(self, observation):
        return nn.BatchNorm(use_running_average=False)(observation)


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, observation):
        return nn.Dropout(0.5, deterministic=False)(observation)


class Newer(nnx.Module):
    def __call__(self, observation):
        return observation


class Summing(nn.Module):
    def __call__(self, observation):
        return observation.sum()


class Repeating(nn.Module):
    def __call__(self, observation):
        return jnp.concatenate([observation, observation])


HEADS = (networks.Head("policy", 3, 0.01), networks.Head("value", 1, 1.0))
SHAPES = {"mlp": (5,), "minatar_cnn": (10, 10, 4), "nature_cnn": (84, 84, 4), "impala_resnet": (16, 16, 3)}


def _spec(shape, dtype=jnp.float32):
    return types.EnvironmentSpec("toy:x", jax.ShapeDtypeStruct(shape, dtype), types.DiscreteSpace(3), "classic")


class Doubling(nn.Module):
    """A user's module: maps [B, D] to [B, 2 D] without parameters."""

    @nn.compact
    def __call__(self, x):
        return jnp.concatenate([x, -x], axis=-1)


@pytest.mark.parametrize("torso", SHAPES)
@pytest.mark.parametrize("shared", [True, False])
def test_torsos_give_heads_of_the_right_shape(torso, shared):
    net = networks.make(networks.Config(torso=torso, shared=shared), _spec(SHAPES[torso]), HEADS)
    shapes = jax.eval_shape(net.init, jax.random.key(0))
    outputs = jax.eval_shape(
        functools.partial(networks.of_rows, net), shapes, jax.ShapeDtypeStruct((7, *SHAPES[torso]), jnp.float32)
    )
    assert {name: x.shape for name, x in outputs.items()} == {"policy": (7, 3), "value": (7, 1)}
    assert sum(name.startswith("torsos") for name in shapes) == (1 if shared else 2)


@pytest.mark.parametrize("torso", SHAPES)
@pytest.mark.parametrize("core", ["identity", "lstm"])
def test_heads_with_a_layer_of_their_own_take_the_place_of_the_torso_s_last(torso, core):
    settings = networks.Config(torso=torso, head_size=9, core=core, core_size=5)
    net = networks.make(settings, _spec(SHAPES[torso]), HEADS)
    params = jax.eval_shape(net.init, jax.random.key(0))
    plain = networks.make(networks.Config(torso=torso, core=core, core_size=5), _spec(SHAPES[torso]), HEADS)
    dense = [
        sum(n.startswith("Dense") for n in p["torsos_0"])
        for p in (params, jax.eval_shape(plain.init, jax.random.key(0)))
    ]
    assert dense[1] - dense[0] == (core == "identity")
    hidden = {name: params[f"outputs_{name}"]["Dense_0"]["kernel"].shape[-1] for name in ("policy", "value")}
    assert hidden == {"policy": 9, "value": 9}


@pytest.mark.parametrize("torso", SHAPES)
def test_every_hidden_layer_is_normalised_or_none(torso):
    plain, normalised = (
        jax.eval_shape(
            networks.make(
                networks.Config(torso=torso, head_size=9, layer_norm=layer_norm), _spec(SHAPES[torso]), HEADS
            ).init,
            jax.random.key(0),
        )
        for layer_norm in (False, True)
    )
    for part, layers in plain.items():
        added = normalised[part].keys() - layers.keys()
        # The last layer of a head is none that is hidden.
        assert len(added) == len(layers) - part.startswith("outputs") > 0
        assert all(name.startswith("LayerNorm") for name in added)
        assert jax.tree.map(lambda x: x.shape, {name: normalised[part][name] for name in layers}) == jax.tree.map(
            lambda x: x.shape, layers
        )


def test_layer_normalisation_is_that_of_numpy():
    settings = networks.Config(torso="mlp", hidden_sizes=(8,), activation="relu", layer_norm=True)
    net = networks.make(settings, _spec((5,)), HEADS)
    noise = np.random.default_rng(0)
    params = jax.jit(net.init)(jax.random.key(0))
    params = jax.tree.map(lambda x: x + jnp.asarray(noise.normal(size=x.shape), x.dtype), params)
    x = noise.normal(size=(6, 5)).astype(np.float32)
    layer, norm = params["torsos_0"]["Dense_0"], params["torsos_0"]["LayerNorm_0"]
    rows = x @ layer["kernel"] + layer["bias"]
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-6)
    last = params["outputs_value"]["Dense_0"]
    expected = np.maximum(rows * norm["scale"] + norm["bias"], 0) @ last["kernel"] + last["bias"]
    np.testing.assert_allclose(networks.of_rows(net, params, x)["value"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "formula"),
    [("tanh", np.tanh), ("relu", lambda x: np.maximum(x, 0)), ("swish", lambda x: x / (1 + np.exp(-x)))],
    ids=["tanh", "relu", "swish"],
)
def test_an_activation_is_its_formula(activation, formula):
    net = networks.make(networks.Config(torso="mlp", hidden_sizes=(8,), activation=activation), _spec((5,)), HEADS)
    params, x = net.init(jax.random.key(0)), np.random.default_rng(0).normal(size=(6, 5), scale=2).astype(np.float32)
    layer, head = params["torsos_0"]["Dense_0"], params["outputs_value"]["Dense_0"]
    wanted = formula(x @ layer["kernel"] + layer["bias"]) @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(networks.of_rows(net, params, x)["value"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("torso", "formula"), [("mlp", np.tanh), ("minatar_cnn", lambda x: np.maximum(x, 0))], ids=["mlp", "minatar_cnn"]
)
def test_the_layer_of_a_head_has_the_activation_of_its_torso(torso, formula):
    """Convolutional torsos use relu, whatever is asked for the layers of the other."""
    config = networks.Config(torso=torso, hidden_sizes=(8, 8), head_size=7, activation="tanh")
    net, shape = networks.make(config, _spec(SHAPES[torso]), HEADS), SHAPES[torso]
    params, x = net.init(jax.random.key(0)), np.random.default_rng(0).normal(size=(6, *shape)).astype(np.float32)
    features = torsos.make(config, shape, last_layer=False).apply({"params": params["torsos_0"]}, x).reshape(6, -1)
    hidden, last = (params["outputs_value"][f"Dense_{i}"] for i in range(2))
    wanted = formula(features @ hidden["kernel"] + hidden["bias"]) @ last["kernel"] + last["bias"]
    np.testing.assert_allclose(networks.of_rows(net, params, x)["value"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_images_of_bytes_are_scaled_to_the_unit_interval():
    net = networks.make(networks.Config(torso="nature_cnn"), _spec((84, 84, 4), jnp.uint8), HEADS)
    params = jax.jit(net.init)(jax.random.key(0))
    image = np.random.default_rng(0).integers(0, 256, (1, 84, 84, 4)).astype(np.uint8)
    as_bytes, as_floats = (
        networks.of_rows(net, params, x)["value"] for x in (image, jnp.asarray(image / 255.0, jnp.float32))
    )
    np.testing.assert_allclose(as_bytes, as_floats, rtol=1e-4, atol=1e-6)


def _unrolled(net, params, carry, observation, is_first):
    """Returns outputs [T, B] and the memory after them."""
    return net.unroll(params, carry.memory, net.inputs(carry.frames, observation, is_first), is_first)


@pytest.mark.parametrize("core", marks.some(["identity", "lstm", "frame_stack", "frame_stack_lstm"], slow={"identity"}))
def test_unrolling_equals_stepping_and_forgets_at_first(core):
    settings = networks.Config(torso="mlp", hidden_sizes=(8,), core=core, core_size=6, num_frames=3)
    net = networks.make(settings, _spec((5,)), HEADS)
    params = jax.jit(net.init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    observation = jnp.asarray(rng.normal(size=(9, 2, 5)), jnp.float32)
    is_first = jnp.zeros((9, 2), bool).at[4, 0].set(True).at[6, 1].set(True)
    carry, stepped = net.initial(2), []
    step = jax.jit(functools.partial(net.step, params))
    for t in range(9):
        outputs, carry = step(carry, observation[t], is_first[t])
        stepped.append(outputs["policy"])
    unrolled, final = _unrolled(net, params, net.initial(2), observation, is_first)
    np.testing.assert_allclose(jnp.stack(stepped), unrolled["policy"], rtol=1e-4, atol=1e-6)
    for a, b in zip(jax.tree.leaves(carry.memory), jax.tree.leaves(final), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    if "frame_stack" in core:
        np.testing.assert_array_equal(carry.frames, observation[-2:].swapaxes(0, 1))
    fresh, _ = _unrolled(net, params, net.initial(1), observation[4:, :1], is_first[4:, :1])
    np.testing.assert_allclose(fresh["policy"], unrolled["policy"][4:, :1], rtol=1e-4, atol=1e-6)
    changed, _ = _unrolled(net, params, net.initial(2), observation.at[3].add(1.0), is_first)
    assert (changed["policy"][5, 0] == unrolled["policy"][5, 0]).all()
    remembers = not np.allclose(changed["policy"][4, 1], unrolled["policy"][4, 1], atol=1e-7)
    assert remembers == (core != "identity")


@pytest.mark.parametrize("core", networks.STACKED)
def test_a_stack_of_categories_alone_is_refused(core):
    spec = _spec((2,))._replace(observation=jax.ShapeDtypeStruct((2,), jnp.int32), categories={"": (3,)})
    with conftest.refused(f"--network.core={core}", "categories"):
        networks.make(networks.Config(torso="mlp", core=core, num_frames=3), spec, HEADS)


def test_frame_stack_fills_with_the_first_frame_after_a_reset():
    net = networks.make(networks.Config(torso="mlp", core="frame_stack", num_frames=3), _spec((1,)), HEADS)
    observation = jnp.arange(1.0, 6.0)[:, None, None]
    is_first = jnp.asarray([True, False, False, True, False])[:, None]
    stacked = net.inputs(net.initial(1).frames, observation, is_first)
    assert stacked[:, 0].astype(int).tolist() == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [4, 4, 4], [4, 4, 5]]
    assert net.context == 2


def test_a_stack_before_an_lstm_is_kept_where_the_memory_is_forgotten():
    size = {"torso": "mlp", "hidden_sizes": (8,), "core_size": 6}
    both = networks.make(networks.Config(**size, core="frame_stack_lstm", num_frames=3), _spec((2,)), HEADS, extra=1)
    plain = networks.make(networks.Config(**size, core="lstm"), _spec((6,)), HEADS, extra=1)
    assert both.recurrent and both.context == 0
    params = both.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    rows, beside = (jnp.asarray(rng.normal(size=(7, 2, size)), jnp.float32) for size in (2, 1))
    is_first = jnp.zeros((7, 2), bool).at[0].set(True)
    carry = both.initial(2)
    for t in range(4):
        _, carry = both.step(params, carry, (rows[t], beside[t]), is_first[t])
    np.testing.assert_array_equal(carry.frames, rows[2:4].swapaxes(0, 1))
    assert any(np.asarray(x).any() for x in jax.tree.leaves(carry.memory))
    forgotten = both.forget(carry)
    np.testing.assert_array_equal(forgotten.frames, carry.frames)
    assert all(not np.asarray(x).any() for x in jax.tree.leaves(forgotten.memory))
    outputs, _ = _unrolled(both, params, forgotten, (rows[4:], beside[4:]), is_first[4:])
    stacked = jnp.stack([jnp.stack([rows[t + k] for k in range(3)], -1).reshape(2, 6) for t in range(2, 5)])
    wanted, _ = plain.unroll(params, plain.initial(2).memory, (stacked, beside[4:]), is_first[4:])
    np.testing.assert_allclose(outputs["policy"], wanted["policy"], rtol=1e-5, atol=1e-6)


def test_a_module_of_the_user_s_is_taken_and_wrong_ones_are_one_line():
    net = networks.make(networks.Config(torso=f"{__name__}:Doubling"), _spec((5,)), HEADS)
    params = net.init(jax.random.key(0))
    assert jax.tree.leaves(params["outputs_policy"])[1].shape == (10, 3)
    for torso, *named in (
        ("no_such_module:Net", "=no_such_module:Net: ", "ModuleNotFoundError"),
        (f"{__name__}:Missing", ":Missing: ", "Failing"),
        (f"{__name__}:Failing", ":Failing: ", "ValueError", "test_networks.py:", ": no such thing", "(2, 5)"),
        (f"{__name__}:Wanting", ":Wanting: ", "TypeError", "'size'"),
        (f"{__name__}:Summing", ":Summing ", "(2, 5)", " ()", "(2, F)"),
        (f"{__name__}:Repeating", ":Repeating ", "(2, 5)", " (4, 5)", "(2, F)"),
        (f"{__name__}:Batched", ":Batched ", "batch_stats"),
        (f"{__name__}:Dropping", ":Dropping: ", "deterministic=True"),
        (f"{__name__}:Newer", ":Newer ", "flax.linen.Module"),
        ("minatar_cnn", "=minatar_cnn", "--network=mlp"),
    ):
        with conftest.refused(*named):
            networks.make(networks.Config(torso=torso), _spec((5,)), HEADS)


def test_observations_without_numbers_are_refused():
    empty = _spec((0,))
    tree = empty._replace(observation={"a": empty.observation})
    for spec in (empty, tree):
        with conftest.refused("--env=toy:x", "(0,)"):
            networks.make(networks.Config(torso="mlp"), spec, HEADS)


def test_a_mask_alone_shows_a_policy_nothing():
    mask = jax.ShapeDtypeStruct((3,), bool)
    spec = _spec((3,))._replace(observation={"mask": mask}, mask="mask")
    with conftest.refused("--env=toy:x", "mask"):
        networks.make(networks.Config(torso="mlp"), spec, HEADS)


@pytest.mark.parametrize(
    ("torso", "least", "other"), [("nature_cnn", 36, "minatar_cnn"), ("minatar_cnn", 3, "impala_resnet")]
)
def test_images_too_small_for_a_torso_are_refused_in_one_line(torso, least, other):
    smallest = networks.make(networks.Config(torso=torso), _spec((least, least, 4)), HEADS)
    assert all(leaf.size for leaf in jax.tree.leaves(smallest.init(jax.random.key(0))))
    with conftest.refused(f"{least} × {least}", f"({least}, {least - 1}, 4)", f"--network={other}"):
        networks.make(networks.Config(torso=torso), _spec((least, least - 1, 4)), HEADS)


def test_orthogonal_initialisation_has_the_asked_gains():
    net = networks.make(networks.Config(torso="mlp", hidden_sizes=(64, 64)), _spec((64,)), HEADS)
    params = net.init(jax.random.key(0))
    kernels = {"/".join(map(lambda k: k.key, path)): x for path, x in jax.tree_util.tree_leaves_with_path(params)}
    for name, gain in (
        ("torsos_0/Dense_1/kernel", 2.0),
        ("outputs_policy/Dense_0/kernel", 1e-4),
        ("outputs_value/Dense_0/kernel", 1.0),
    ):
        gram = kernels[name].T @ kernels[name]
        np.testing.assert_allclose(gram, gain * np.eye(len(gram)), atol=1e-5)


# Shapes of all kernels for images of 84 × 84 (10 × 10) pixels in 4 channels: Young & Tian 2019, section 3; Mnih et al.
# 2015, methods; Espeholt et al. 2018, figure 3 (deep), whose pooling leaves 11 × 11 pixels.
KERNELS = {
    "minatar_cnn": [(3, 3, 4, 16), (8 * 8 * 16, 128)],
    "nature_cnn": [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (7 * 7 * 64, 512)],
    "impala_resnet": [
        *((3, 3, 4, 16), *[(3, 3, 16, 16)] * 4),
        *((3, 3, 16, 32), *[(3, 3, 32, 32)] * 4),
        *([(3, 3, 32, 32)] * 5),
        (11 * 11 * 32, 256),
    ],
}


def _torso(torso, shape):
    """Returns the parameters of a torso's layers, in their order."""
    net = networks.make(networks.Config(torso=torso), _spec(shape), HEADS)
    params = net.init(jax.random.key(0))["torsos_0"]
    return [*(params[f"_Convolution_{i}"] for i in range(len(params) - 1)), params["Dense_0"]]


@pytest.mark.parametrize("torso", KERNELS)
def test_torsos_have_the_layers_of_their_papers(torso):
    pixels = 10 if torso == "minatar_cnn" else 84
    layers = _torso(torso, (pixels, pixels, 4))
    assert [layer["kernel"].shape for layer in layers] == KERNELS[torso]
    for layer in layers[:-1]:
        # Orthogonal filters, with the gain of relu.
        rows = layer["kernel"].reshape(-1, layer["kernel"].shape[-1])
        gram = rows.T @ rows if rows.shape[0] >= rows.shape[1] else rows @ rows.T
        np.testing.assert_allclose(gram, 2.0 * np.eye(len(gram)), atol=1e-5)


def test_the_residual_torso_adds_what_its_blocks_find():
    image = jax.random.normal(jax.random.key(1), (3, 9, 7, 2))
    layers = [{**layer, "bias": layer["bias"] + 0.1 * i} for i, layer in enumerate(_torso("impala_resnet", (9, 7, 2)))]
    rest = iter(layers)

    def conv(x):
        layer = next(rest)
        numbers = ("NHWC", "HWIO", "NHWC")
        return (
            jax.lax.conv_general_dilated(x, layer["kernel"], (1, 1), "SAME", dimension_numbers=numbers) + layer["bias"]
        )

    x = image
    for _ in range(3):
        x = jax.lax.reduce_window(conv(x), -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for _ in range(2):
            x = x + conv(jnp.maximum(conv(jnp.maximum(x, 0)), 0))
    last = next(rest)
    wanted = jnp.maximum(jnp.maximum(x, 0).reshape(3, -1) @ last["kernel"] + last["bias"], 0)
    module = torsos.make(networks.Config(torso="impala_resnet"), (9, 7, 2), last_layer=True)
    params = {f"_Convolution_{i}": layer for i, layer in enumerate(layers[:-1])} | {"Dense_0": layers[-1]}
    np.testing.assert_allclose(module.apply({"params": params}, image), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("core", "layers"),
    [("lstm", ["input", "hidden"]), ("gru", ["input", "hidden"]), ("mingru", ["gate/kernel", "new/kernel"])],
)
def test_hidden_layers_of_heads_and_memories_begin_orthogonal(core, layers):
    config = networks.Config(torso="mlp", hidden_sizes=(32,), head_size=16, core=core, core_size=8)
    params = networks.make(config, _spec((32,)), HEADS).init(jax.random.key(0))
    hidden = params["outputs_policy"]["Dense_0"]["kernel"]
    gram = hidden @ hidden.T if hidden.shape[0] < hidden.shape[1] else hidden.T @ hidden
    np.testing.assert_allclose(gram, 2.0 * np.eye(len(gram)), atol=1e-5)
    paths = jax.tree_util.tree_leaves_with_path(params)
    leaves = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in paths}
    for name in layers:
        (rows,) = (x for path, x in leaves.items() if path.endswith(f"/{name}"))
        gram = rows @ rows.T if rows.shape[0] < rows.shape[1] else rows.T @ rows
        np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5)


def test_layers_that_are_not_orthogonal_are_lecun_normal():
    config = networks.Config(torso="mlp", hidden_sizes=(256,), orthogonal=False)
    kernel = networks.make(config, _spec((400,)), HEADS).init(jax.random.key(0))["torsos_0"]["Dense_0"]["kernel"]
    np.testing.assert_allclose([kernel.mean(), 400 * kernel.var()], [0.0, 1.0], atol=2e-2)


def test_an_error_is_placed_also_where_every_frame_is_a_library_s():
    try:
        exec(compile("raise ValueError('no')", "/x/site-packages/library.py", "exec"))
    except ValueError as error:
        inside = error.with_traceback(error.__traceback__.tb_next)
    assert user_code.where(inside) == "ValueError at library.py:1: no"


@pytest.mark.parametrize(
    ("height", "width", "size", "stride", "channels"),
    [
        *((84, 84, 8, 4, 4), (11, 8, 3, 2, 2), (10, 13, 5, 3, 1)),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in ((10, 10, 3, 1, 4), (20, 20, 4, 2, 3), (9, 9, 3, 1, 5))
        ),
    ],
)
def test_products_are_the_convolution(height: int, width: int, size: int, stride: int, channels: int) -> None:
    image_key, kernel_key = jax.random.split(jax.random.key(0))
    image = jax.random.normal(image_key, (2, height, width, channels))
    weights = jax.random.normal(kernel_key, (size, size, channels, 6))

    def both(function):
        def loss(weights, image):
            return jnp.sum(jnp.sin(function(image, weights, stride)))

        return function(image, weights, stride), jax.grad(loss, (0, 1))(weights, image)

    for x, y in zip(
        jax.tree.leaves(both(torsos.by_products)), jax.tree.leaves(both(torsos.by_convolution)), strict=True
    ):
        # Sums of hundreds of products in another order: the error grows with the largest of them.
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5 * np.abs(y).max())


def test_heads_behind_a_memory_share_it_though_they_are_asked_not_to():
    made = [
        networks.make(networks.Config(torso="mlp", core="lstm", core_size=5, shared=shared), _spec((4,)), HEADS)
        for shared in (True, False)
    ]
    together, apart = (jax.eval_shape(net.init, jax.random.key(0)) for net in made)
    assert jax.tree.map(lambda x: x.shape, together) == jax.tree.map(lambda x: x.shape, apart)


def test_each_noisy_head_has_factors_of_its_own():
    """Fortunato et al. 2018, equations 10 and 11: first those of the inputs of a head, then those of its outputs."""
    heads = [networks.Head("value", 1, 1.0, noise=0.5), networks.Head("advantage", 3, 1.0, noise=0.5)]
    net = networks.make(networks.Config(torso="mlp", hidden_sizes=()), _spec((4,)), heads)
    params, rng = net.init(jax.random.key(0)), np.random.default_rng(0)
    x = rng.normal(size=(6, 4)).astype(np.float32)
    noise = np.asarray(net.draw_noise(jax.random.key(1), ()))
    assert noise.shape == (4 + 1 + 4 + 3,)
    outputs = networks.of_rows(net, params, x, noise)
    for name, into, out in (("value", noise[:4], noise[4:5]), ("advantage", noise[5:9], noise[9:])):
        layer = params[f"outputs_{name}"]["Noisy_0"]
        weights = layer["kernel"] + layer["kernel_deviation"] * np.outer(into, out)
        wanted = x @ weights + layer["bias"] + layer["bias_deviation"] * out
        np.testing.assert_allclose(outputs[name], wanted, rtol=1e-5, atol=1e-6)


def test_weights_of_noisy_layers_begin_uniform_around_zero():
    """Fortunato et al. 2018, section 3.2: from −1/√p to 1/√p, of variance 1/(3 p)."""
    config, heads = networks.Config(torso="mlp", hidden_sizes=()), [networks.Head("q", 200, 1.0, noise=0.5)]
    layer = networks.make(config, _spec((50,)), heads).init(jax.random.key(0))["outputs_q"]["Noisy_0"]
    for weights, share in ((layer["kernel"], 0.02), (layer["bias"], 0.2)):
        scaled = np.asarray(weights) * np.sqrt(50)
        np.testing.assert_allclose([scaled.mean(), scaled.var()], [0.0, 1 / 3], atol=share)
        assert -1 <= scaled.min() < -0.95 and 0.95 < scaled.max() <= 1
