"""Exports: as the policy acts, for any number of rows, and by ONNX's runtime in a process without JAX."""

import functools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
from fakes import written_runs

import jaxrl_dist
from jaxrl_dist import export, types
from jaxrl_dist.export import step as steps
from jaxrl_dist.training import assemble, policy, predicting

CARTPOLE, PENDULUM, BREAKOUT = "gymnax:CartPole-v1", "gymnax:Pendulum-v1", "gymnax:Breakout-MinAtar"
SMALL = {"network.hidden_sizes": (16,), "network.core_size": 8}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", CARTPOLE, {"agent.normalise_observations": True}),
    "lstm": ("ppo", PENDULUM, {"network.core": "lstm", "agent.normalise_observations": True}),
    "gru": ("ppo", CARTPOLE, {"network.core": "gru", "network.layer_norm": True}),
    "mingru": ("a2c", PENDULUM, {"network.core": "mingru"}),
    "gtrxl": ("ppo", PENDULUM, {"network.core": "gtrxl", "network.core_rows": 6}),
    "dqn": ("dqn", CARTPOLE, {"agent.dueling": True, "agent.noise": 0.5}),
    "rainbow": ("rainbow", CARTPOLE, {"agent.num_atoms": 11, "network.head_size": 8}),
    "sac": ("sac", PENDULUM, {}),
    "ddpg": ("ddpg", PENDULUM, {}),
    "pqn": ("pqn", CARTPOLE, {}),
    "r2d2": ("r2d2", CARTPOLE, {"network.head_size": 8}),
    "convolutions": ("ppo", BREAKOUT, {"network.torso": "minatar_cnn", "network.core": "frame_stack_lstm"}),
    "masked tree": ("dqn", "toy:choice", {}),
    "vector of choices": ("ppo", "toy:choices", {"network.core": "gru"}),
    "residual": ("impala", BREAKOUT, {"network.torso": "impala_resnet", "network.core": "frame_stack"}),
}
# Of the inputs beside the observation, those that each reads.
READ = {
    **{"lstm": {"is_first", "carry/core/memory/0", "carry/core/memory/1"}},
    **dict.fromkeys(("gru", "mingru", "vector of choices"), {"is_first", "carry/core/memory"}),
    "gtrxl": {"is_first", "carry/core/memory/0/0", "carry/core/memory/0/1", "carry/core/memory/1"},
    "r2d2": {"is_first", "reward", "carry/action", "carry/core/memory/0", "carry/core/memory/1"},
    "convolutions": {"is_first", "carry/core/frames", "carry/core/memory/0", "carry/core/memory/1"},
    "residual": {"is_first", "carry/core/frames"},
}


def made(system: str, env: str, settings: dict[str, Any]) -> policy.Policy:
    """Makes a policy of this system with weights, and moments of observations, that no training has made alike."""
    small = {} if system == "dreamer" else SMALL
    resolved, environment = assemble.resolve({"system": system, "env": env, **small, **settings})
    agent = assemble.make_agent(resolved, environment.spec)
    rng = np.random.default_rng(0)
    params = agent.init(jax.random.key(0))
    network = jax.tree.map(lambda x: (x + 0.1 * rng.normal(size=x.shape)).astype(np.float32), params.network)
    statistics = jax.tree.map(lambda x: (x + rng.uniform(1, 3, x.shape)).astype(x.dtype), params.statistics)
    predictor = predicting.make(resolved, environment.spec)
    return policy.Policy(agent, types.Params(network, statistics), environment, resolved, 123, predictor)


class Runner:
    """An exported step with its carry, run row by row."""

    def __init__(self, step: steps.Step, call: Any, count: int) -> None:
        self._step, self._call = step, call
        structs = {name: step.inputs[name] for name in step.carry}
        self._carry = {name: np.zeros((count, *one.shape[1:]), one.dtype) for name, one in structs.items()}

    def __call__(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        every = {**given, **self._carry}
        outputs = self._call({name: every[name] for name in self._step.inputs})
        self._carry = {name: outputs[after] for name, after in self._step.carry.items()}
        return outputs


def by_stablehlo(step: steps.Step) -> Any:
    call = jax.export.deserialize(bytearray(export.stablehlo(step))).call
    return lambda given: dict(zip(step.outputs, map(np.asarray, call(*given.values())), strict=True))


def by_onnx(step: steps.Step) -> Any:
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    pytest.importorskip("onnx", reason="needs the extra onnx")
    session = runtime.InferenceSession(export.onnx(step), providers=["CPUExecutionProvider"])
    return lambda given: dict(zip(step.outputs, session.run(None, given), strict=True))


def rows(spec: types.EnvironmentSpec, rng: np.random.Generator, count: int) -> Any:
    def drawn(struct: jax.ShapeDtypeStruct) -> np.ndarray:
        if struct.dtype == np.float32:
            return rng.normal(scale=2, size=(count, *struct.shape)).astype(np.float32)
        return rng.integers(0, 2, (count, *struct.shape)).astype(struct.dtype)

    return jax.tree.map(drawn, spec.observation)


def flat(tree: Any) -> dict[str, np.ndarray]:
    """Returns the leaves of a tree by the names that an export has for them."""
    named, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(map(steps._key, path)): np.asarray(leaf) for path, leaf in named}


@pytest.mark.parametrize("case", marks.some(CASES.keys(), fast={"lstm", "sac", "masked tree", "vector of choices"}))
@pytest.mark.parametrize("form", export.FORMATS)
def test_an_export_acts_as_the_policy(form: str, case: str) -> None:
    """On 1,000 observations, in 20 steps of 50 environments whose episodes begin at different times."""
    one = made(*CASES[case])
    step = steps.of_policy(one)
    read = {name for name in step.inputs if not name.startswith("observation")}
    assert read == READ.get(case, set()) and len(read) < len(step.inputs)
    run = Runner(step, (by_onnx if form == "onnx" else by_stablehlo)(step), 50)
    rng, state, spec, seen = np.random.default_rng(1), None, one.environment.spec, []
    for t in range(20):
        given = {"observation": rows(spec, rng, 50), "reward": rng.normal(size=50).astype(np.float32)}
        given["is_first"] = rng.random(50) < (1.0 if t == 0 else 0.1)
        action, state = one.predict(state=state, **given)
        outputs = run(flat(given))
        assert outputs["action"].dtype == action.dtype and outputs["action"].shape == action.shape
        if "scores" in outputs:
            # Two scores may differ by less than the error of either.
            chosen = np.take_along_axis(outputs["scores"], action[:, None], 1)[:, 0]
            np.testing.assert_allclose(chosen, outputs["scores"].max(1), rtol=1e-5, atol=1e-5)
            assert (outputs["action"] == action).mean() > 0.9
        elif action.dtype == np.int32:
            assert (outputs["action"] == action).mean() > 0.9
        else:
            np.testing.assert_allclose(outputs["action"], action, rtol=1e-5, atol=1e-5)
        for name, leaf in zip(step.carry.values(), carried(step, state), strict=True):
            np.testing.assert_allclose(outputs[name], leaf, rtol=1e-5, atol=1e-5)
        seen.append(outputs.get("scores", outputs["action"]))
    whole = np.concatenate(seen)
    assert np.ptp(whole[np.isfinite(whole).reshape(len(whole), -1).all(1)], axis=0).min() > 1e-2
    one_row = {name: value[:1] for name, value in flat(given).items()}
    assert Runner(step, (by_onnx if form == "onnx" else by_stablehlo)(step), 1)(one_row)["action"].shape[0] == 1


def carried(step: steps.Step, state: predicting.State) -> list[np.ndarray]:
    """Returns the leaves of a state that the export has."""
    by_name = flat({"carry": state.carry})
    return [by_name[name] for name in step.carry]


def test_scores_are_what_the_action_is_the_largest_of() -> None:
    one = made(*CASES["ppo"])
    step = steps.of_policy(one)
    outputs = by_stablehlo(step)({"observation": rows(one.environment.spec, np.random.default_rng(2), 64)})
    assert step.outputs["scores"].shape[1:] == (2,)
    np.testing.assert_array_equal(outputs["action"], outputs["scores"].argmax(1))
    assert "scores" not in steps.of_policy(made(*CASES["sac"])).outputs


def test_onnx_computes_in_float32_what_a_network_computes_in_less(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("onnx", reason="needs the extra onnx")
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    halved, whole = (made("ppo", PENDULUM, {"network.compute": dtype}) for dtype in ("bfloat16", "float32"))
    export.write(halved, "onnx", tmp_path / "halved.onnx")
    session = runtime.InferenceSession(tmp_path / "halved.onnx", providers=["CPUExecutionProvider"])
    given = rows(halved.environment.spec, np.random.default_rng(3), 64)
    (action,) = session.run(None, {"observation": given})
    np.testing.assert_allclose(action, whole.predict(given)[0], rtol=1e-5, atol=1e-5)
    assert np.abs(action - halved.predict(given)[0]).max() > 1e-5


PLAYER = """
import importlib.abc, json, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib", "flax", "jaxrl_dist"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())

import gymnasium
import numpy as np
import onnxruntime

file, described = sys.argv[1], json.load(open(sys.argv[2]))
session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
environment = gymnasium.make("Pendulum-v1")
observation, _ = environment.reset(seed=3)
inputs = {one["name"]: one for one in described["inputs"]}
carry = {name: np.zeros([1, *inputs[name]["shape"][1:]], inputs[name]["dtype"]) for name in described["carry"]}
total, is_first, is_over = 0.0, True, False
while not is_over:
    given = {"observation": observation[None], "is_first": np.array([is_first])}
    outputs = dict(zip([one["name"] for one in described["outputs"]], session.run(None, given | carry)))
    carry = {name: outputs[after] for name, after in described["carry"].items()}
    observation, reward, terminated, truncated, _ = environment.step(outputs["action"][0])
    total, is_first, is_over = total + float(reward), False, terminated or truncated
assert not {"jax", "jaxrl_dist"} & set(sys.modules)
print(total)
"""


def test_a_process_without_jax_plays_an_episode(tmp_path: pathlib.Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extra onnx")
    one = made(*CASES["lstm"])
    export.write(one, "onnx", tmp_path / "policy.onnx")
    command = [sys.executable, "-c", PLAYER, str(tmp_path / "policy.onnx"), str(tmp_path / "policy.onnx.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0, done.stderr
    environment = gymnasium.make("Pendulum-v1")
    observation, _ = environment.reset(seed=3)
    state, total, is_over = None, 0.0, False
    while not is_over:
        action, state = one.predict(observation, state)
        observation, reward, terminated, truncated, _ = environment.step(action)
        total, is_over = total + float(reward), terminated or truncated
    assert float(done.stdout) == pytest.approx(total, rel=1e-3)


def test_the_description_says_what_a_program_needs(tmp_path: pathlib.Path) -> None:
    described = export.write(made(*CASES["lstm"]), "stablehlo", tmp_path / "new" / "policy.stablehlo")
    assert json.loads((tmp_path / "new" / "policy.stablehlo.json").read_text()) == described
    memory = [f"carry/core/memory/{i}" for i in range(2)]
    shapes = {one["name"]: (one["shape"], one["dtype"]) for one in described["inputs"] + described["outputs"]}
    assert shapes == {
        **{name: (["batch", 8], "float32") for leaf in memory for name in (leaf, f"next_{leaf}")},
        "observation": (["batch", 3], "float32"),
        "is_first": (["batch"], "bool"),
        "action": (["batch", 1], "float32"),
    }
    assert described["carry"] == {leaf: f"next_{leaf}" for leaf in memory}
    assert described["action"] == {"kind": "bounded", "shape": [1], "low": [-2.0], "high": [2.0]}
    assert (described["format"], described["system"], described["env_steps"]) == ("stablehlo", "ppo", 123)
    unbounded = types.BoxSpace((2,), -np.inf, np.array([1.0, np.inf]))
    assert export._space(unbounded) == {"kind": "unbounded", "shape": [2], "low": None, "high": [1.0, None]}
    assert export._space(types.DiscreteSpace(3)) == {"kind": "discrete", "num_values": 3}


def test_the_command_exports_a_run(
    train: conftest.Train, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("ppo", CARTPOLE, num_seeds=2, **{"evaluation.episodes": 2})
    call = written_runs.script("scripts/export.py")
    assert call([f"--run={run.folder}", "--format=stablehlo", "--seed_index=1"]) == 0
    said = json.loads(capsys.readouterr().out)
    file = pathlib.Path(said["file"])
    assert file == run.folder / "policy.stablehlo" and file.stat().st_size == said["bytes"]
    given = np.random.default_rng(4).normal(scale=2, size=(100, 4)).astype(np.float32)
    action, _ = jax.export.deserialize(bytearray(file.read_bytes())).call(given)
    np.testing.assert_array_equal(action, jaxrl_dist.load(run.folder, seed_index=1).predict(given)[0])
    for arguments, word in (
        ([f"--run={tmp_path / 'nothing'}"], "no such folder"),
        ([f"--run={run.folder}", "--format=onxx"], "did you mean onnx?"),
        ([f"--run={run.folder}", "--seed_index=2"], "seeds 0 to 1"),
        ([f"--run={run.folder}", "--format=stablehlo", f"--out={tmp_path / 'a.json'}"], ".json"),
        ([], "--run=FOLDER"),
    ):
        assert call(arguments) == 2
        line = capsys.readouterr().err
        assert word in line and line.count("\n") == 1


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with conftest.refused("--format=onnx", "pip install"):
        export.onnx(steps.of_policy(made(*CASES["ppo"])))


def operations(image: Any) -> dict[str, Any]:
    """Computes of images [B, 4, 4, 2] what an order of arguments, a sign or a bound could turn round."""
    x, at = image.reshape(image.shape[0], 32), functools.partial(jax.lax.index_in_dim, axis=0, keepdims=False)
    above, rows = x > 0.3, jnp.moveaxis(image, 3, 0)
    _, backward = jax.lax.scan(lambda last, row: (0.5 * last + row, last), at(rows, 0), rows, reverse=True)
    weights = jnp.arange(16.0).reshape(2, 2, 2, 2)
    around, image_axes = ((0, 1), (2, 0)), ("NHWC", "HWIO", "NHWC")
    return {
        "a share": (x > 0.3).astype(jnp.uint8) / 255.0,
        "all": (x > -1.5).all(1),
        "any": (x > 1.5).any(1),
        "apart": sum(jax.lax.optimization_barrier((x, 2 * x))),
        "at least 0": jax.lax.max(x, 0.0),
        "backward": at(backward, 0),
        "backward's last": at(backward, 1),
        "bounded": jnp.clip(x, -0.5, 0.7),
        "convolved": jax.lax.conv_general_dilated(image, weights, (1, 1), around, dimension_numbers=image_axes),
        "clamped": jax.lax.clamp(-1.0, x, 0.7),
        "counted": jax.lax.broadcasted_iota(jnp.int32, x.shape, 1),
        "cubed": x**3,
        "equal": above == (x > -0.3),
        "exponential": jnp.expm1(x),
        "finite": jnp.isfinite(jnp.where(x > 1, jnp.inf, jnp.where(x < -1, jnp.nan, x))),
        "largest": x.argmax(1),
        "logarithm": jnp.log1p(jnp.abs(x)),
        "masked": jnp.where(x > 0.3, x, -jnp.inf),
        "moved inside": jax.vmap(lambda row: jax.lax.dynamic_slice_in_dim(row, 30, 5))(x),
        "padded": jnp.pad(x, ((0, 0), (1, 2))),
        "pooled": jax.lax.reduce_window(
            image, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), ((0, 0), *around[:1], (1, 0), (0, 0))
        ),
        "rest": jax.lax.rem(x, jnp.full_like(x, 0.7)),
        "root": jax.lax.rsqrt(jnp.abs(x) + 1),
        "smallest": x.argmin(1),
        "others": 1.0 - (x > 0.3),
        "sum of none": jnp.sum(x, axis=()),
        "sums": jnp.cumsum(x, axis=1),
        "sums backward": jax.lax.cumsum(x, axis=1, reverse=True),
        "truths": jnp.where(x > 0, above, x < -0.3),
        "unequal": above != (x > -0.3),
        "where": jnp.where(above, x, 2 * x),
    }


def test_each_operation_is_jax_s() -> None:
    (batch,) = jax.export.symbolic_shape(steps.BATCH)
    given = jax.ShapeDtypeStruct((batch, 4, 4, 2), np.float32)
    program = jax.make_jaxpr(lambda x: list(operations(x).values()))(given)
    x = np.random.default_rng(0).normal(size=(7, 4, 4, 2)).astype(np.float32)
    expected = operations(jnp.asarray(x))
    outputs = {name: jax.ShapeDtypeStruct((batch, *one.shape[1:]), one.dtype) for name, one in expected.items()}
    found = by_onnx(steps.Step(program, {"observation": given}, outputs))({"observation": x})
    for name, one in expected.items():
        assert found[name].dtype == one.dtype
        np.testing.assert_allclose(found[name], one, rtol=1e-5, atol=1e-5, err_msg=name)


def test_onnx_computes_in_float32_what_a_network_of_one_s_own_computes_in_less() -> None:
    (batch,) = jax.export.symbolic_shape(steps.BATCH)
    given = jax.ShapeDtypeStruct((batch, 3), np.float32)
    weights = jnp.arange(12.0).reshape(3, 4).astype(jnp.bfloat16) / 7

    def product(x: Any) -> list[Any]:
        return [(x.astype(jnp.bfloat16) @ weights + 1.0).astype(jnp.float32)]

    step = steps.Step(jax.make_jaxpr(product)(given), {"x": given}, {"y": jax.ShapeDtypeStruct((batch, 4), np.float32)})
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(by_onnx(step)({"x": x})["y"], x @ np.asarray(weights, np.float32) + 1, rtol=1e-5)


# Of observations [B, N] -> actions, and a word for what ONNX lacks.
INEXPRESSIBLE = {
    "sorts": (lambda x: jnp.sort(x, axis=1)[:, 0].astype(int), "sort"),
    "counts rows": (lambda x: jnp.arange(x.shape[0]) + x[:, 0].astype(int), "counts rows"),
    "sees nothing": (lambda x: jnp.zeros(x.shape[0], int), "reads nothing"),
    "largest truth": (lambda x: jnp.argmax(x > 0, axis=1), "ONNX does not take"),
}


@pytest.mark.parametrize("case", INEXPRESSIBLE)
def test_what_onnx_cannot_express_is_refused_in_one_line(case: str) -> None:
    pytest.importorskip("onnx", reason="needs the extra onnx")
    one, (acts, word) = made(*CASES["ppo"]), INEXPRESSIBLE[case]

    def act(params: Any, state: Any, observation: Any, reward: Any, is_first: Any) -> Any:
        return acts(observation), state

    step = steps.of_policy(one._replace(predictor=one.predictor._replace(greedy=jax.jit(act))))
    with conftest.refused("--format=onnx", word, "--format=stablehlo"):
        export.onnx(step)


def test_an_error_without_a_message_is_one_line() -> None:
    one = made(*CASES["ppo"])

    def fails(params: Any, state: Any, observation: Any, reward: Any, is_first: Any) -> Any:
        raise AssertionError

    with conftest.refused("AssertionError"):
        steps.of_policy(one._replace(predictor=one.predictor._replace(greedy=jax.jit(fails))))


def test_a_policy_of_a_fixed_number_of_rows_is_refused_in_one_line() -> None:
    one = made(*CASES["ppo"])

    def counts(params: Any, state: Any, observation: Any, reward: Any, is_first: Any) -> Any:
        return jnp.zeros(int(observation.shape[0]), int), state

    with conftest.refused("number of rows"):
        steps.of_policy(one._replace(predictor=one.predictor._replace(greedy=jax.jit(counts))))


@pytest.mark.parametrize("system", ["dreamer", "muzero"])
def test_a_policy_that_draws_in_evaluation_is_refused_in_one_line(system: str) -> None:
    """Its key would be the same in every step."""
    with conftest.refused("draws in evaluation"):
        steps.of_policy(made(system, CARTPOLE, conftest.SMALL[system]))


def test_small_whole_numbers_are_described_as_onnx_takes_them() -> None:
    """Its operations have no 16 bits."""
    one = made("ppo", CARTPOLE, {})
    given = {"observation": jax.ShapeDtypeStruct((1, 3), np.int16), "is_first": jax.ShapeDtypeStruct((1,), bool)}
    step = steps.Step(None, given, {"action": jax.ShapeDtypeStruct((1,), np.int32)})
    for form, dtype in (("onnx", "int32"), ("stablehlo", "int16")):
        found = {entry["name"]: entry["dtype"] for entry in export.describe(one, step, form)["inputs"]}
        assert found == {"observation": dtype, "is_first": "bool"}


@pytest.mark.parametrize("name", ["config", "config.json"])
def test_an_export_replaces_no_other_file(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text('{"settings": {}}')
    with conftest.refused("config.json", "another name"):
        export.write(made("ppo", CARTPOLE, {}), "stablehlo", tmp_path / name)
    assert (tmp_path / "config.json").read_text() == '{"settings": {}}' and len(list(tmp_path.iterdir())) == 1


def test_an_export_needs_the_name_of_a_file() -> None:
    with conftest.refused("expected the name of a file"):
        export.write(made("ppo", CARTPOLE, {}), "stablehlo", pathlib.Path("."))


def test_each_export_of_a_folder_has_its_own_description(tmp_path: pathlib.Path) -> None:
    one = made("ppo", CARTPOLE, {})
    for name in ("a.v1", "a.v2", "a.v2"):
        export.write(one, "stablehlo", tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"a.v1", "a.v1.json", "a.v2", "a.v2.json"}
