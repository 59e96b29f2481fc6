"""Cores: each memory is that of a slow loop in float64, however rows are cut; a user's own is tried by its shapes."""

import dataclasses
import functools
import pathlib
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from oracles import differences

from jaxrl_dist import networks, types
from jaxrl_dist.networks import attention, cores

T, B, F, SIZE, BIAS = 11, 3, 4, 6, 1.5
ROWS, HEADS = 4, 3
CORES = {
    "lstm": cores.Lstm,
    "gru": cores.Gru,
    "mingru": cores.MinGru,
    "gtrxl": lambda size, bias: attention.GTrXL(size, layers=2, heads=HEADS, rows=ROWS),
}


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _lstm(p: Any, memory: Any, x: np.ndarray) -> Any:
    """Gers et al. 2000, with input, forget, cell and output gates in this order."""
    hidden, cell = memory
    z = x @ p["input"] + hidden @ p["hidden"] + p["bias"]
    i, f, g, o = (z[k * SIZE : (k + 1) * SIZE] for k in range(4))
    cell = _sigmoid(f + BIAS) * cell + _sigmoid(i) * np.tanh(g)
    hidden = _sigmoid(o) * np.tanh(cell)
    return (hidden, cell), hidden


def _gru(p: Any, memory: Any, x: np.ndarray) -> Any:
    """Cho et al. 2014, equations 5 to 8, with the reset gate behind the product and z the share that is kept."""
    (h,) = memory
    a, b = x @ p["input"] + p["bias"], h @ p["hidden"]
    r = _sigmoid(a[:SIZE] + b[:SIZE])
    z = _sigmoid(a[SIZE : 2 * SIZE] + b[SIZE : 2 * SIZE] + BIAS)
    h = z * h + (1 - z) * np.tanh(a[2 * SIZE :] + r * b[2 * SIZE :])
    return (h,), h


def _mingru(p: Any, memory: Any, x: np.ndarray) -> Any:
    """Feng et al. 2024, section 3.1.2: h_t = (1 − z_t) h_{t−1} + z_t h̃_t."""
    (h,) = memory
    z = _sigmoid(x @ p["gate"]["kernel"] + p["gate"]["bias"] - BIAS)
    h = (1 - z) * h + z * (x @ p["new"]["kernel"] + p["new"]["bias"])
    return (h,), h


def _normal(p: Any, x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * p["scale"] + p["bias"]


def _gate(p: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Parisotto et al. 2020, section 3.2 (gated recurrent unit)."""
    of_y, of_x = (p[name]["kernel"].T for name in ("w", "u"))
    r = _sigmoid(of_y[:SIZE] @ y + of_x[:SIZE] @ x)
    z = _sigmoid(of_y[SIZE : 2 * SIZE] @ y + of_x[SIZE:] @ x - p["bias"])
    return (1 - z) * x + z * np.tanh(of_y[2 * SIZE :] @ y + p["u_new"]["kernel"].T @ (r * x))


def _gtrxl(p: Any, memory: Any, x: np.ndarray) -> Any:
    """Parisotto et al. 2020, equations of section 3.1 and 3.2, and of Dai et al. 2019, with scores divided by √d."""
    *rows, kept = memory
    x = x @ p["input"]["kernel"] + p["input"]["bias"]
    after = []
    for i, before in enumerate(rows):
        layer, valid = p[f"layer_{i}"], [*kept, 1.0]
        of = layer["attention"]
        seen = np.concatenate([before, x[None]])
        after.append(seen[1:] * np.array(valid[1:])[:, None])
        normal = np.stack([_normal(layer["norm_attention"], row) for row in seen])
        query = normal[-1] @ of["query"]["kernel"]
        found = np.zeros(SIZE)
        for head in range(HEADS):
            own, weights = slice(head * SIZE // HEADS, (head + 1) * SIZE // HEADS), np.zeros(ROWS + 1)
            for j in range(ROWS + 1):
                angle = (ROWS - j) * 10_000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
                position = np.concatenate([np.sin(angle), np.cos(angle)])[:SIZE] @ of["distance"]["kernel"]
                key = normal[j] @ of["key"]["kernel"]
                score = (query[own] + of["u"][head]) @ key[own] + (query[own] + of["v"][head]) @ position[own]
                weights[j] = np.exp(score / np.sqrt(SIZE / HEADS)) * valid[j]
            found[own] = (weights / weights.sum()) @ (normal @ of["value"]["kernel"])[:, own]
        y = _gate(layer["gate_attention"], x, np.maximum(found @ of["out"]["kernel"], 0))
        wide = np.maximum(_normal(layer["norm_mlp"], y) @ layer["wide"]["kernel"] + layer["wide"]["bias"], 0)
        x = _gate(layer["gate_mlp"], y, np.maximum(wide @ layer["narrow"]["kernel"] + layer["narrow"]["bias"], 0))
    return (*after, np.array([*kept[1:], 1.0])), x


LOOPS = {"lstm": _lstm, "gru": _gru, "mingru": _mingru, "gtrxl": _gtrxl}


def _case(name: str) -> Any:
    """Returns a core, parameters whose biases are not 0, a memory, features and FIRST rows."""
    core, rng = CORES[name](SIZE, BIAS), np.random.default_rng(3)
    features = rng.normal(size=(T, B, F)).astype(np.float32)
    is_first = rng.random((T, B)) < 0.25
    assert is_first.any() and not is_first[0].all()
    params = core.init(jax.random.key(0), core.initial(B), features, is_first)["params"]
    params = jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32), params)

    def begun(x: Any) -> Any:
        # All rows that a memory may hold are of this episode.
        return x | True if x.dtype == bool else x + rng.normal(size=x.shape).astype(np.float32)

    memory = jax.tree.map(begun, core.initial(B))
    return core, params, memory, features, is_first


@pytest.mark.parametrize("name", marks.some(list(CORES), fast={"gru", "gtrxl"}))
def test_a_memory_is_that_of_the_paper_s_loop(name: str) -> None:
    core, params, memory, features, is_first = _case(name)
    after, rows = core.apply({"params": params}, memory, features, is_first)
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for b in range(B):
        one = tuple(np.asarray(x[b], np.float64) for x in jax.tree.leaves(memory))
        for t in range(T):
            one = tuple(np.zeros_like(x) for x in one) if is_first[t, b] else one
            one, row = LOOPS[name](exact, one, features[t, b].astype(np.float64))
            np.testing.assert_allclose(rows[t, b], row, rtol=2e-5, atol=2e-6)
        for mine, theirs in zip(jax.tree.leaves(after), one, strict=True):
            np.testing.assert_allclose(mine[b], theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "cut", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(T - 1, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", CORES)
def test_rows_cut_anywhere_are_the_rows_at_once(name: str, cut: int) -> None:
    core, params, memory, features, is_first = _case(name)
    apply = jax.jit(lambda *inputs: core.apply({"params": params}, *inputs))
    whole_memory, whole = apply(memory, features, is_first)
    memory, first = apply(memory, features[:cut], is_first[:cut])
    memory, second = apply(memory, features[cut:], is_first[cut:])
    np.testing.assert_allclose(np.concatenate([first, second]), whole, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(jax.tree.leaves(memory), jax.tree.leaves(whole_memory), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CORES)
def test_nothing_before_a_first_row_reaches_it_even_if_it_is_not_finite(name: str) -> None:
    core, params, memory, features, _ = _case(name)
    is_first = np.zeros((T, B), bool)
    is_first[4] = True
    fresh = core.apply({"params": params}, core.initial(B), features[4:], is_first[4:])[1]
    broken = np.where(np.arange(T)[:, None, None] == 2, np.float32(np.inf), features)
    rows = core.apply({"params": params}, memory, broken, is_first)[1]
    np.testing.assert_allclose(rows[4:], fresh, rtol=1e-5, atol=1e-6)


def test_an_untrained_transformer_passes_rows_on_by_its_gates() -> None:
    core = attention.GTrXL(8, layers=3, heads=2, rows=4)
    features = np.random.default_rng(0).normal(size=(T, B, F)).astype(np.float32)
    is_first = np.zeros((T, B), bool)
    variables = core.init(jax.random.key(0), core.initial(B), features, is_first)
    rows = core.apply(variables, core.initial(B), features, is_first)[1]
    plain = features @ np.asarray(variables["params"]["input"]["kernel"])
    assert np.corrcoef(rows.ravel(), plain.ravel())[0, 1] > 0.8


@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_transformer_remembers_as_many_rows_as_its_layers_reach(layers: int) -> None:
    core = attention.GTrXL(16, layers, heads=2, rows=3)
    features, is_first = np.random.default_rng(0).normal(size=(12, 1, F)).astype(np.float32), np.zeros((12, 1), bool)
    variables = core.init(jax.random.key(0), core.initial(1), features, is_first)
    variables = jax.tree.map(lambda x: x + 0.5 * jax.random.normal(jax.random.key(1), x.shape), variables)

    def last(changed: int) -> np.ndarray:
        other = np.where(np.arange(12)[:, None, None] == changed, -features, features)
        return np.asarray(core.apply(variables, core.initial(1), other, is_first)[1][-1])

    reach = 3 * layers
    assert not np.array_equal(last(11 - reach), last(-1))
    np.testing.assert_array_equal(last(10 - reach), last(-1))


def test_heads_of_attention_divide_the_units() -> None:
    spec = types.EnvironmentSpec("toy:x", jax.ShapeDtypeStruct((F,), jnp.float32), types.DiscreteSpace(3), "classic")
    config = networks.Config(torso="mlp", core="gtrxl", core_size=6, core_heads=4)
    with conftest.refused("--network.core_heads=4", "--network.core_size=6"):
        networks.make(config, spec, [networks.Head("value", 1, 1.0)])
    fewer = networks.make(dataclasses.replace(config, core_heads=3), spec, [networks.Head("value", 1, 1.0)])
    assert jax.eval_shape(fewer.init, jax.random.key(0))["gtrxl"]["layer_0"]["attention"]["u"].shape == (3, 2)


def test_an_untrained_mingru_fades_by_the_bias() -> None:
    core = cores.MinGru(SIZE, BIAS)
    features, is_first = np.zeros((3, B, F), np.float32), np.zeros((3, B), bool)
    variables = core.init(jax.random.key(0), core.initial(B), features, is_first)
    rows = core.apply(variables, jnp.ones((B, SIZE)), features, is_first)[1]
    np.testing.assert_allclose(rows[:, 0, 0], _sigmoid(np.array(BIAS)) ** np.arange(1, 4), rtol=1e-6)


MODULES = """
import flax.linen as nn
import jax.numpy as jnp

class Mean(nn.Module):
    size: int

    @nn.nowrap
    def initial(self, batch_size):
        return jnp.zeros((batch_size, self.size))

    @nn.compact
    def __call__(self, memory, features, is_first):
        rows = []
        for row, first in zip(nn.Dense(self.size)(features), is_first):
            memory = 0.5 * jnp.where(first[:, None], 0.0, memory) + 0.5 * row
            rows.append(memory)
        return memory, jnp.stack(rows)

class Flat(Mean):
    def __call__(self, memory, features, is_first):
        return memory, features[0]

class Growing(Mean):
    def __call__(self, memory, features, is_first):
        return jnp.concatenate([memory, memory], -1), features

class Broken(Mean):
    def __call__(self, memory, features, is_first):
        return memory @ features

class Common(Mean):
    @nn.nowrap
    def initial(self, batch_size):
        return jnp.zeros((1, self.size))

    def __call__(self, memory, features, is_first):
        return memory, features
"""


@pytest.fixture
def modules(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_cores.py").write_text(MODULES)
    monkeypatch.syspath_prepend(tmp_path)


def _network(core: str) -> networks.Network:
    observation = jax.ShapeDtypeStruct((2,), jnp.float32)
    spec = types.EnvironmentSpec("fake:task", observation, types.DiscreteSpace(2), "classic", (0.0, 1.0), 10)
    config = networks.Config(torso="mlp", hidden_sizes=(3,), core=core, core_size=4)
    return networks.make(config, spec, [networks.Head("policy", 2, 1.0)])


def test_a_core_of_the_user_s_unrolls_as_it_steps(modules: None) -> None:
    net = _network("user_cores:Mean")
    assert net.recurrent
    params, rng = net.init(jax.random.key(0)), np.random.default_rng(0)
    observation, is_first = rng.normal(size=(5, 2, 2)).astype(np.float32), rng.random((5, 2)) < 0.3
    outputs, memory = net.unroll(params, net.initial(2).memory, observation, is_first)
    carry = net.initial(2)
    for t in range(5):
        row, carry = net.step(params, carry, observation[t], is_first[t])
        np.testing.assert_allclose(row["policy"], outputs["policy"][t], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(carry.memory, memory, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "Means": (" Mean?",),
        "Flat": ("(3, 4)", "(2, 3, F)"),
        "Growing": ("8)", "[B, ...]"),
        "Broken": ("user_cores.py:", "(2, 3, 4)"),
        "Common": ("(1, 4)", "[B, ...]"),
    }.items(),
)
def test_what_is_no_core_is_refused_in_one_line(name: str, words: tuple[str, ...], modules: None) -> None:
    with conftest.refused(f"--network.core=user_cores:{name}", *words):
        _network(f"user_cores:{name}")


def test_a_network_without_a_memory_is_no_core(modules: None, tmp_path: pathlib.Path) -> None:
    (tmp_path / "user_torsos.py").write_text("import flax.linen as nn\nclass Net(nn.Module):\n    pass\n")
    with conftest.refused("--network.core=user_torsos:Net", "size"):
        _network("user_torsos:Net")


@pytest.mark.parametrize(("core", "name"), {**{name: name for name in CORES}, "frame_stack_lstm": "lstm"}.items())
def test_parameters_of_a_memory_have_its_name(core: str, name: str) -> None:
    params = _network(core).init(jax.random.key(0))
    assert set(params) == {"torsos_0", name, "outputs_policy"}


@pytest.mark.parametrize("name", marks.some([name for name in CORES if name != "gtrxl"], fast={"lstm"}))
def test_a_gradient_is_that_of_the_paper_s_loop(name: str) -> None:
    """Weighted outputs and last memory, by central differences in float64, to parameters, memory and features."""
    core, params, memory, features, is_first = _case(name)
    rng = np.random.default_rng(7)
    of_rows, of_memory = rng.normal(size=(T, B, SIZE)), rng.normal(size=(2, B, SIZE))
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    inputs = {"memory": np.stack([np.asarray(x, np.float64) for x in jax.tree.leaves(memory)])}
    inputs |= {"features": features.astype(np.float64), "params": exact}

    def by_loop(given: Any) -> float:
        total = 0.0
        for b in range(B):
            one = tuple(given["memory"][:, b])
            for t in range(T):
                one = tuple(np.zeros_like(x) for x in one) if is_first[t, b] else one
                one, row = LOOPS[name](given["params"], one, given["features"][t, b])
                total += of_rows[t, b] @ row
            total += sum(weights[b] @ x for weights, x in zip(of_memory, one, strict=False))
        return float(total)

    def by_core(given: Any) -> jax.Array:
        began = jax.tree.unflatten(jax.tree.structure(memory), list(given["memory"]))
        after, rows = core.apply({"params": given["params"]}, began, given["features"], is_first)
        ends = zip(of_memory, jax.tree.leaves(after), strict=False)
        return jnp.sum(of_rows * rows) + sum(jnp.sum(weights * x) for weights, x in ends)

    with jax.enable_x64(True):
        found = jax.grad(by_core)(jax.tree.map(jnp.asarray, inputs))
    differences.assert_same(found, differences.gradient(by_loop, inputs), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_a_gradient_of_a_transformer_is_that_of_the_paper_s_loop_and_stops_at_the_memory() -> None:
    core, params, memory, features, is_first = _case("gtrxl")
    of_rows = np.random.default_rng(7).normal(size=(T, B, SIZE))
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    inputs = {"features": features.astype(np.float64), "params": exact}
    began = [np.asarray(x, np.float64) for x in jax.tree.leaves(memory)]

    def by_loop(given: Any) -> float:
        total = 0.0
        for b in range(B):
            one = tuple(x[b] for x in began)
            for t in range(T):
                one = tuple(np.zeros_like(x) for x in one) if is_first[t, b] else one
                one, row = _gtrxl(given["params"], one, given["features"][t, b])
                total += of_rows[t, b] @ row
        return float(total)

    def by_core(given: Any, rows: Any) -> jax.Array:
        carry = (rows, memory[1])
        return jnp.sum(of_rows * core.apply({"params": given["params"]}, carry, given["features"], is_first)[1])

    with jax.enable_x64(True):
        rows = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), memory[0])
        found, of_memory = jax.grad(by_core, argnums=(0, 1))(jax.tree.map(jnp.asarray, inputs), rows)
    differences.assert_slopes(found, by_loop, inputs, rtol=1e-5, atol=1e-5)
    assert not any(leaf.any() for leaf in jax.tree.leaves(of_memory))


def test_rows_of_a_transformer_s_memory_have_no_gradient_and_those_of_an_episode_that_is_over_are_zeros() -> None:
    """A row that is not finite would otherwise spoil the gradients of the next unroll, though no row there sees it."""
    core = attention.GTrXL(4, layers=1, heads=2, rows=3)
    features, is_first = np.random.default_rng(0).normal(size=(3, 1, F)).astype(np.float32), np.zeros((3, 1), bool)
    (rows,), is_kept = core.initial(1)
    variables = jax.jit(core.init)(jax.random.key(0), core.initial(1), features, is_first)

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
    def gradients(variables: Any, rows: Any, features: Any, is_first: Any) -> Any:
        after, outputs = core.apply(variables, ((rows,), ~is_kept), features, is_first)
        return jnp.sum(outputs**2), after

    (of_weights, of_memory), _ = gradients(variables, rows + 1.0, features, is_first)
    assert not of_memory.any() and any(leaf.any() for leaf in jax.tree.leaves(of_weights))
    broken = np.where(np.arange(3)[:, None, None] == 0, np.float32(np.inf), features)
    _, ((after,), is_kept_after) = gradients(variables, rows + 1.0, broken, np.arange(3)[:, None] == 1)
    assert is_kept_after.tolist() == [[False, True, True]]
    assert not after[0, 0].any() and np.isfinite(after).all() and after[0, 1:].all()


def test_the_hidden_layer_of_a_transformer_has_four_units_for_each_number() -> None:
    """Vaswani et al. 2017, section 3.3; the paper of the transformer with gates says no other number."""
    core, features = attention.GTrXL(SIZE, layers=1, heads=HEADS, rows=2), np.zeros((1, B, F), np.float32)
    params = jax.eval_shape(core.init, jax.random.key(0), core.initial(B), features, np.zeros((1, B), bool))["params"]
    assert params["layer_0"]["wide"]["kernel"].shape == (SIZE, 4 * SIZE)
