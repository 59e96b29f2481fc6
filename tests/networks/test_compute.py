"""Networks that compute in bfloat16: which products do, what stays float32, and how far both are apart."""

from collections.abc import Iterator
from typing import Any

import conftest
import flax.linen as nn
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest

from jaxrl_dist import networks, types
from jaxrl_dist.networks import noisy, torsos
from jaxrl_dist.training import assemble

ROWS, BATCH = 5, 3
IMAGE = jax.ShapeDtypeStruct((10, 10, 4), jnp.uint8)
VECTOR = jax.ShapeDtypeStruct((6,), jnp.float32)
HEADS = [networks.Head("policy", 3, 0.01), networks.Head("value", 1, 1.0), networks.Head("free", 2, 1.0, False)]


class OwnCore(nn.Module):
    """A core of the user's: it adds rows up."""

    size: int

    @nn.nowrap
    def initial(self, batch_size: int) -> Any:
        return jnp.zeros((batch_size, self.size))

    @nn.compact
    def __call__(self, memory: Any, features: Any, is_first: Any) -> Any:
        rows = nn.Dense(self.size)(features)
        memories = memory + jnp.cumsum(rows, axis=0)
        return memories[-1], memories


def _spec(observation: jax.ShapeDtypeStruct) -> types.EnvironmentSpec:
    return types.EnvironmentSpec("toy:x", observation, types.DiscreteSpace(3), "classic")


def _made(compute: str, observation: jax.ShapeDtypeStruct = VECTOR, noise: float = 0.0, **settings: Any) -> Any:
    heads = [head._replace(noise=noise * head.depends_on_input) for head in HEADS]
    settings = {"torso": "mlp", "hidden_sizes": (16, 8), "core_size": 7} | settings
    return networks.make(networks.Config(compute=compute, **settings), _spec(observation), heads)


def _inputs(observation: jax.ShapeDtypeStruct, key: int = 0) -> Any:
    shape = (ROWS, BATCH, *observation.shape)
    if observation.dtype == jnp.uint8:
        return jax.random.randint(jax.random.key(key), shape, 0, 256).astype(jnp.uint8)
    return jax.random.normal(jax.random.key(key), shape)


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for part in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(part, "jaxpr", part)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def _products(function: Any, *arguments: Any) -> list[tuple[set[str], int]]:
    """Returns the dtypes of the operands of each product, and the last side of the second."""
    found = []
    for equation in _equations(jax.make_jaxpr(function)(*arguments).jaxpr):
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            operands = [variable.aval for variable in equation.invars]
            found.append(({x.dtype.name for x in operands}, operands[1].shape[-1]))
    return found


CASES = {
    "mlp": (VECTOR, {}),
    "layer_norm": (VECTOR, {"layer_norm": True}),
    "hidden_heads": (VECTOR, {"head_size": 9}),
    "noisy": (VECTOR, {"head_size": 9, "noise": 0.5}),
    "minatar": (IMAGE, {"torso": "minatar_cnn"}),
    "resnet": (IMAGE, {"torso": "impala_resnet"}),
    "frames": (IMAGE, {"torso": "minatar_cnn", "core": "frame_stack", "num_frames": 2}),
    "lstm": (VECTOR, {"core": "lstm"}),
    "lstm_hidden_heads": (VECTOR, {"core": "lstm", "head_size": 9}),
    "frames_lstm": (IMAGE, {"torso": "minatar_cnn", "core": "frame_stack_lstm", "num_frames": 2}),
    "gru": (VECTOR, {"core": "gru"}),
    "mingru": (VECTOR, {"core": "mingru"}),
    "gtrxl": (VECTOR, {"core": "gtrxl", "core_size": 8, "core_heads": 2, "core_rows": 4}),
}


@pytest.mark.parametrize("case", marks.some(list(CASES), fast=("hidden_heads", "noisy", "lstm", "lstm_hidden_heads")))
def test_products_are_of_bfloat16_but_for_the_last_layer_of_heads(case: str) -> None:
    observation, settings = CASES[case]
    net, reference = _made("bfloat16", observation, **settings), _made("float32", observation, **settings)
    params, carry = net.init(jax.random.key(0)), net.initial(BATCH)
    for x, y in zip(*map(jax.tree.leaves, (params, reference.init(jax.random.key(0)))), strict=True):
        assert x.dtype == y.dtype == jnp.float32
        np.testing.assert_array_equal(x, y)
    first = jnp.zeros((ROWS, BATCH), bool).at[2, 1].set(True)
    inputs = net.inputs(carry.frames, _inputs(observation), first)
    found = _products(lambda params: net.unroll(params, carry.memory, inputs, first), params)
    assert sorted(width for dtypes, width in found if dtypes == {"float32"}) == [1, 3]
    assert sum(dtypes == {"bfloat16"} for dtypes, _ in found) == len(found) - 2 > 0
    values, wanted = (one.unroll(params, carry.memory, inputs, first) for one in (net, reference))
    differences = []
    for x, y in zip(*map(jax.tree.leaves, (values, wanted)), strict=True):
        if not jnp.issubdtype(y.dtype, jnp.floating):
            # Which rows GTrXL's memory has.
            np.testing.assert_array_equal(x, y)
            continue
        assert x.dtype == y.dtype == jnp.float32
        # One rounding errs by 2⁻⁹ of a number; a few layers add some of them up.
        np.testing.assert_allclose(x, y, atol=0.03 * np.abs(y).max() + 1e-6)
        differences.append(np.abs(x - y).max())
    assert max(differences) > 0


def test_a_layer_is_the_rounded_product_of_rounded_numbers() -> None:
    """The first layer and the head by NumPy, with a rounding where bfloat16 rounds."""
    net = _made("bfloat16", hidden_sizes=(16,))
    params, inputs = net.init(jax.random.key(1)), _inputs(VECTOR, 1)

    def rounded(x: Any) -> np.ndarray:
        return np.asarray(x).astype(jnp.bfloat16).astype(np.float64)

    torso, head = params["torsos_0"]["Dense_0"], params["outputs_value"]["Dense_0"]
    hidden = rounded(np.tanh(rounded(rounded(rounded(inputs) @ rounded(torso["kernel"])) + rounded(torso["bias"]))))
    wanted = hidden @ np.asarray(head["kernel"], np.float64) + np.asarray(head["bias"])
    values = net.unroll(params, (), inputs, jnp.zeros((ROWS, BATCH), bool))[0]["value"]
    # A sum in another order may round to the neighbour, which moves an output by far less than rounding the head would.
    assert np.median(np.abs(values - wanted)) < 1e-6 < np.abs(rounded(values) - wanted).max()


@pytest.mark.slow
@pytest.mark.parametrize("core", ["lstm", "gru", "mingru"])
def test_gradients_are_float32_and_near_those_of_float32(core: str) -> None:
    first = jnp.zeros((ROWS, BATCH), bool).at[2, 1].set(True)
    gradients, params = [], None
    for compute in ("bfloat16", "float32"):
        net = _made(compute, core=core)
        params = net.init(jax.random.key(0)) if params is None else params
        memory = jax.tree.map(lambda x: x + 0.3, net.initial(BATCH).memory)

        def loss(params: Any, memory: Any, net: Any = net) -> Any:
            outputs, after = net.unroll(params, memory, _inputs(VECTOR), first)
            assert {x.dtype for x in jax.tree.leaves(after)} == {np.dtype("float32")}
            return sum(jnp.sum(jnp.sin(3 * x)) for x in (*outputs.values(), *jax.tree.leaves(after)))

        products = _products(jax.grad(loss), params, memory)
        assert all(len(dtypes) == 1 for dtypes, _ in products), "no product is of two dtypes"
        assert sum(dtypes == {"float32"} for dtypes, _ in products) in (6, len(products)), "heads: forward and back"
        gradients.append(jax.grad(loss, (0, 1))(params, memory))
    for x, y in zip(*map(jax.tree.leaves, gradients), strict=True):
        assert x.dtype == y.dtype == jnp.float32
        np.testing.assert_allclose(x, y, atol=0.05 * np.abs(y).max() + 1e-6)


def test_noise_is_drawn_as_for_float32_and_acts() -> None:
    net, reference = (_made(compute, head_size=9, noise=0.5) for compute in ("bfloat16", "float32"))
    params, inputs, first = net.init(jax.random.key(0)), _inputs(VECTOR), jnp.zeros((ROWS, BATCH), bool)
    factors = noisy.num_factors(jax.eval_shape(net.init, jax.random.key(0)))
    for shape in ((), (ROWS * BATCH,)):
        noise = net.draw_noise(jax.random.key(2), shape)
        assert noise.shape == (*shape, factors) and noise.dtype == jnp.float32
        outputs, wanted = (one.unroll(params, (), inputs, first, noise)[0] for one in (net, reference))
        without = net.unroll(params, (), inputs, first)[0]
        assert all(outputs[name].dtype == jnp.float32 for name in outputs)
        np.testing.assert_allclose(outputs["value"], wanted["value"], atol=0.05)
        assert np.abs(outputs["value"] - without["value"]).max() > 0.1


def test_a_core_of_the_user_s_computes_in_float32() -> None:
    net = _made("bfloat16", core=f"{__name__}:OwnCore")
    params, memory = net.init(jax.random.key(0)), net.initial(BATCH).memory
    first = jnp.zeros((ROWS, BATCH), bool)
    found = _products(lambda params: net.unroll(params, memory, _inputs(VECTOR), first), params)
    assert [dtypes for dtypes, width in found if width == 7] == [{"float32"}]
    assert [dtypes for dtypes, width in found if width in (16, 8)] == [{"bfloat16"}] * 2
    assert net.unroll(params, memory, _inputs(VECTOR), first)[1].dtype == jnp.float32


def test_a_precision_of_products_beside_it_is_refused() -> None:
    flags = {"system": "ppo", "env": "toy:walk", "network.compute": "bfloat16"}
    with conftest.refused("--precision=tensorfloat32", "--network.compute=bfloat16"):
        assemble.resolve(flags | {"precision": "tensorfloat32"})
    assert assemble.resolve(flags)[0]["network.compute"] == "bfloat16"


NOTED: list[set[str]] = []


class NotingCore(OwnCore):
    """Notes the dtypes of what it is given."""

    @nn.compact
    def __call__(self, memory: Any, features: Any, is_first: Any) -> Any:
        kernel = self.param("kernel", nn.initializers.ones_init(), (features.shape[-1], self.size))
        NOTED.append({x.dtype.name for x in (memory, features, kernel)})
        return memory, features @ kernel


def test_a_core_of_the_user_s_is_given_numbers_and_parameters_of_float32() -> None:
    net = _made("bfloat16", core=f"{__name__}:NotingCore")
    params, memory = net.init(jax.random.key(0)), net.initial(BATCH).memory
    NOTED.clear()
    jax.eval_shape(net.unroll, params, memory, _inputs(VECTOR), jnp.zeros((ROWS, BATCH), bool))
    assert len(NOTED) == 1 and NOTED[0] == {"float32"}


def test_numbers_beside_an_observation_are_rounded_as_it_is() -> None:
    config = networks.Config(torso="mlp", hidden_sizes=(16,), core="lstm", core_size=7, compute="bfloat16")
    net = networks.make(config, _spec(VECTOR), HEADS, extra=2)
    params, first = net.init(jax.random.key(0)), jnp.zeros((ROWS, BATCH), bool)
    inputs = (_inputs(VECTOR), jnp.ones((ROWS, BATCH, 2)))
    found = _products(lambda params: net.unroll(params, net.initial(BATCH).memory, inputs, first), params)
    assert sorted(width for dtypes, width in found if dtypes != {"bfloat16"}) == [1, 3]


def test_embeddings_of_categories_are_of_bfloat16() -> None:
    spec = _spec(VECTOR)._replace(observation=jax.ShapeDtypeStruct((2,), jnp.int32), categories={"": (5, 4)})
    net = networks.make(networks.Config(torso="mlp", hidden_sizes=(16,), compute="bfloat16"), spec, HEADS)
    params, codes = net.init(jax.random.key(0)), jnp.ones((ROWS, 2), jnp.int32)
    found = _products(lambda params: networks.of_rows(net, params, codes), params)
    # Two tables and the layer that joins them, and the last layers of both heads.
    assert [dtypes for dtypes, _ in found] == [{"bfloat16"}] * 3 + [{"float32"}] * 2


def test_bytes_are_divided_before_they_are_rounded() -> None:
    found = torsos.as_float(jnp.arange(256, dtype=jnp.uint8), jnp.bfloat16)
    assert found.dtype == jnp.bfloat16
    # One rounding, to eight binary places.
    np.testing.assert_allclose(np.asarray(found, np.float64), np.arange(256) / 255, rtol=2.0**-8)


def test_shares_of_attention_are_of_float32() -> None:
    net = _made("bfloat16", core="gtrxl", core_size=8, core_heads=2, core_rows=4)
    params, memory = jax.eval_shape(net.init, jax.random.key(0)), net.initial(BATCH).memory
    first = jnp.zeros((ROWS, BATCH), bool)
    jaxpr = jax.make_jaxpr(lambda params: net.unroll(params, memory, _inputs(VECTOR), first))(params)
    powers = [one.invars[0].aval for one in _equations(jaxpr.jaxpr) if one.primitive.name == "exp"]
    assert powers and {x.dtype.name for x in powers} == {"float32"}


def test_bytes_are_known_as_bytes_in_bfloat16() -> None:
    net, reference = (_made(compute, jax.ShapeDtypeStruct((6,), jnp.uint8)) for compute in ("bfloat16", "float32"))
    params, rows = net.init(jax.random.key(0)), _inputs(jax.ShapeDtypeStruct((6,), jnp.uint8))[0]
    value, wanted = (networks.of_rows(one, params, rows)["value"] for one in (net, reference))
    np.testing.assert_allclose(value, wanted, atol=0.03 * np.abs(wanted).max())
