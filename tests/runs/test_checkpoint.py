"""Checkpoints: exact round trips, templates, other numbers of devices, and the order of steps."""

import os
import pathlib
import signal
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import marks
import numpy as np
import optax
import pytest
from fakes import checkpoints
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_dist import errors
from jaxrl_dist.runs import checkpoint


class Pair(NamedTuple):
    """A record of the test's own."""

    weights: Any
    key: Any


@flax.struct.dataclass
class Box:
    """A Flax structure of the test's own."""

    inner: Any


def make_tree(seed: int = 0) -> dict[str, Any]:
    """Makes a tree with every kind of leaf and container that a run has, and one leaf too large to be packed."""
    rng = np.random.default_rng(seed)
    params = {"dense": {"kernel": jnp.asarray(rng.normal(size=(5, 3)), jnp.float32), "bias": jnp.zeros(3)}}
    return {
        "pair": Pair(params, jax.random.split(jax.random.key(seed), (2, 3))),
        "box": Box([jax.random.key(seed, impl="rbg"), jnp.asarray(rng.normal(size=4), jnp.bfloat16)]),
        "optimiser": optax.adam(1e-3).init(params),
        "scalars": (jnp.int32(7), jnp.bool_(True), jnp.int8(-3), jnp.uint8(200), jnp.float32(np.nan)),
        "empty": jnp.zeros((0, 4)),
        "none": None,
        "large": jnp.asarray(rng.integers(0, 255, (3, 400_000)), jnp.uint8),
        "host": np.arange(3, dtype=np.int64) + 2**40,
    }


def test_round_trip_is_exact(tmp_path: pathlib.Path) -> None:
    tree = make_tree()
    path = checkpoint.save(tmp_path, 1234, tree, checkpoints.META)
    assert path == tmp_path / "step_000000001234"
    assert os.listdir(tmp_path) == [path.name]
    restored, meta = checkpoint.restore(path, make_tree(seed=1))
    checkpoints.assert_same(restored, tree)
    assert meta == checkpoints.META
    assert isinstance(restored["host"], np.ndarray)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves({**restored, "host": None}))
    # A restored key is a key: it gives the same numbers.
    assert float(jax.random.normal(restored["box"].inner[0])) == float(jax.random.normal(tree["box"].inner[0]))


def test_template_of_shapes_and_no_implicit_transfer(tmp_path: pathlib.Path) -> None:
    tree = make_tree()
    template = jax.tree.map(lambda x: x if isinstance(x, np.ndarray) else jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
    with jax.transfer_guard("disallow"):
        restored, _ = checkpoint.restore(checkpoint.save(tmp_path, 1, tree, {}), template)
    checkpoints.assert_same(restored, tree)


def test_containers_may_be_of_other_types(tmp_path: pathlib.Path) -> None:
    tree = {"pair": Pair(jnp.arange(3), jnp.ones(2)), "box": Box((jnp.zeros(1),))}
    path = checkpoint.save(tmp_path, 1, tree, {})
    restored, _ = checkpoint.restore(
        path, {"pair": {"key": jnp.zeros(2), "weights": jnp.arange(3)}, "box": tree["box"]}
    )
    assert restored["pair"]["weights"].tolist() == [0, 1, 2]
    assert restored["pair"]["key"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("tree", [{}, {"empty": np.zeros((0, 2), np.float32)}, np.float32(3.0), jnp.arange(2)])
def test_smallest_trees(tmp_path: pathlib.Path, tree: Any) -> None:
    checkpoints.assert_same(
        checkpoint.restore(checkpoint.save(tmp_path, 0, tree, {}), tree)[0], jax.tree.map(lambda x: x, tree)
    )


def test_donation_after_the_save_changes_nothing(tmp_path: pathlib.Path) -> None:
    state = {"x": jnp.arange(1000.0), "large": jnp.ones((600_000,))}
    expected = jax.tree.map(np.array, state)
    path = checkpoint.save(tmp_path, 1, state, {})
    advance = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2 + 1, tree), donate_argnums=0)
    for _ in range(3):
        state = advance(state)
    restored, _ = checkpoint.restore(path, state)
    checkpoints.assert_same(restored, expected)
    advance(restored)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tree: {**tree, "a": np.zeros((5,), np.float32)}, r"'a' .*float32\[4\] .*float32\[5\] "),
        (lambda tree: {**tree, "a": np.zeros((4,), np.int32)}, r"'a' .*float32\[4\] .* int32\[4\] "),
        (lambda tree: {**tree, "a": jax.random.split(jax.random.key(0), 4)}, r"'a' .*float32\[4\] .*key<fry>\[4\] "),
        (lambda tree: {"a": tree["a"]}, r"'b' .*int32\[2, 2\] .*absent.*template"),
        (lambda tree: {**tree, "c": tree["a"]}, r"'c' .*absent.* checkpoint.*float32\[4\] "),
        (lambda tree: {"a": tree["a"], "b": {"c": tree["b"]}}, "'b/c' .*absent.* checkpoint"),
    ],
)
def test_another_template_is_refused(tmp_path: pathlib.Path, change: Callable[[Any], Any], named: str) -> None:
    path = checkpoint.save(tmp_path, 1, checkpoints.small(1), {})
    with pytest.raises(ValueError, match=named):
        checkpoint.restore(path, change(checkpoints.small(1)))
    with pytest.raises(ValueError, match=named):
        checkpoint.restore_latest(tmp_path, change(checkpoints.small(1)), checkpoints.no_warning)


def test_another_generator_is_refused(tmp_path: pathlib.Path) -> None:
    path = checkpoint.save(tmp_path, 1, {"k": jax.random.key(0, impl="rbg")}, {})
    with pytest.raises(ValueError, match=r"'k' .*key<rbg>\[\] .*key<fry>\[\] "):
        checkpoint.restore(path, {"k": jax.random.key(0)})


@pytest.mark.parametrize(
    ("name", "tree", "meta", "error"),
    [
        (1, {"a": 3}, {}, ValueError),
        (1, {"a": "text"}, {}, ValueError),
        (1, {"a/b": np.ones(1), "a": {"b": np.ones(1)}}, {}, ValueError),
        (-1, {}, {}, ValueError),
        ("../best", {}, {}, ValueError),
        ("", {}, {}, ValueError),
        (".lock", {}, {}, ValueError),
        (1, {}, {"a": np.ones(1)}, TypeError),
    ],
)
def test_what_cannot_be_saved_writes_nothing(
    tmp_path: pathlib.Path, name: Any, tree: Any, meta: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        checkpoint.save(tmp_path / "folder", name, tree, meta)
    assert not (tmp_path / "folder").exists()


DEVICES_CODE = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from jaxrl_dist.runs import checkpoint
    from jaxrl_dist.runs.checkpoint import arrays, manifest
    count = int(sys.argv[2])
    assert jax.device_count() == count
    mesh = Mesh(np.asarray(jax.devices()), ("devices",))
    columns, shared = NamedSharding(mesh, P("devices")), NamedSharding(mesh, P())
    key = jax.random.key(0).dtype
    template = {
        "columns": jax.ShapeDtypeStruct((16, 3), jnp.float32, sharding=columns),
        "shared": jax.ShapeDtypeStruct((5,), jnp.float32, sharding=shared),
        "keys": jax.ShapeDtypeStruct((8,), key, sharding=columns),
    }
    tree, _ = checkpoint.restore(sys.argv[1], template)
    for name, leaf in tree.items():
        assert leaf.sharding == template[name].sharding and len(leaf.sharding.device_set) == count
    assert (np.asarray(tree["columns"]) == np.arange(48, dtype=np.float32).reshape(16, 3)).all()
    assert (np.asarray(tree["shared"]) == np.arange(5)).all()
    expected = jax.random.key_data(jax.random.split(jax.random.key(3), 8))
    assert (np.asarray(jax.random.key_data(tree["keys"])) == np.asarray(expected)).all()
    print("restored on", count)
"""


def save_on_all_devices(folder: pathlib.Path) -> pathlib.Path:
    """Saves columns, replicas and keys on the eight virtual devices of the tests."""
    assert jax.device_count() == 8
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("devices",))
    columns, shared = NamedSharding(mesh, P("devices")), NamedSharding(mesh, P())
    tree = {
        "columns": jax.device_put(jnp.arange(48, dtype=jnp.float32).reshape(16, 3), columns),
        "shared": jax.device_put(jnp.arange(5, dtype=jnp.float32), shared),
        "keys": jax.device_put(jax.random.split(jax.random.key(3), 8), columns),
    }
    return checkpoint.save(folder, 1, tree, {})


@pytest.mark.parametrize("count", marks.some([1, 2, 4], slow={"4"}))
def test_saved_on_eight_devices_and_restored_in_a_process_with_fewer(tmp_path: pathlib.Path, count: int) -> None:
    result = checkpoints.run(DEVICES_CODE, save_on_all_devices(tmp_path), count, devices=count)
    assert result.stdout == f"restored on {count}\n", result.stderr


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_saved_on_eight_devices_and_restored_on_some_of_them(tmp_path: pathlib.Path, count: int) -> None:
    path = save_on_all_devices(tmp_path)
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[-count:]), ("devices",))
    columns = NamedSharding(mesh, P("devices"))
    template = {
        "columns": jax.ShapeDtypeStruct((16, 3), jnp.float32, sharding=columns),
        "shared": jax.ShapeDtypeStruct((5,), jnp.float32, sharding=NamedSharding(mesh, P())),
        "keys": jax.ShapeDtypeStruct((8,), jax.random.key(0).dtype, sharding=columns),
    }
    tree, _ = checkpoint.restore(path, template)
    assert all(tree[name].sharding == template[name].sharding for name in tree)
    assert np.asarray(tree["columns"]).ravel().tolist() == list(range(48))
    assert (checkpoints.data(tree["keys"]) == checkpoints.data(jax.random.split(jax.random.key(3), 8))).all()


def test_nothing_to_restore(tmp_path: pathlib.Path) -> None:
    assert checkpoint.restore_latest(tmp_path / "missing", checkpoints.small(0), checkpoints.no_warning) is None
    checkpoint.save(tmp_path, "best", checkpoints.small(5), {})
    assert checkpoint.restore_latest(tmp_path, checkpoints.small(0), checkpoints.no_warning) is None
    checkpoint.clean(tmp_path / "missing")
    with pytest.raises(errors.CheckpointError, match="missing"):
        checkpoint.restore(tmp_path / "missing", checkpoints.small(0))


def test_steps_are_ordered_by_number_and_pruned(tmp_path: pathlib.Path) -> None:
    steps = (5, 10**12 + 1, 20, 999)
    for step in steps:
        checkpoint.save(tmp_path, step, checkpoints.small(1), {})
    checkpoint.save(tmp_path, "best", checkpoints.small(5), {})
    names = [path.name for path in checkpoint.latest(tmp_path)]
    assert names == [f"step_{step:012d}" for step in sorted(steps, reverse=True)]
    checkpoint.prune(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == sorted([*names[:2], "best"])
    with pytest.raises(ValueError, match="keep=0"):
        checkpoint.prune(tmp_path, 0)


def test_a_slot_and_a_step_are_replaced(tmp_path: pathlib.Path) -> None:
    for name in ("best", 7):
        for value in (1, 2, 3):
            path = checkpoint.save(tmp_path, name, checkpoints.small(value), {"value": value})
            assert checkpoint.restore(path, checkpoints.small(0))[1] == {"value": value}
            checkpoints.assert_same(checkpoint.restore(path, checkpoints.small(0))[0], checkpoints.small(value))
    assert sorted(os.listdir(tmp_path)) == ["best", "step_000000000007"]


def test_params_sha256_depends_on_all_that_counts() -> None:
    tree = {"a": jnp.arange(4.0), "b": {"c": jnp.zeros((2, 2))}}
    digest = checkpoint.params_sha256(tree)
    assert digest == checkpoint.params_sha256(
        {"b": {"c": np.zeros((2, 2), np.float32)}, "a": np.arange(4.0, dtype="f4")}
    )
    assert digest == checkpoint.params_sha256(jax.device_put(tree, jax.devices()[-1]))
    others = [
        {**tree, "a": jnp.arange(4.0).at[0].set(-0.0)},
        {**tree, "a": jnp.arange(4.0).reshape(2, 2)},
        {**tree, "a": jnp.arange(4)},
        {"d": tree["a"], "b": tree["b"]},
        {**tree, "b": {"c": jnp.zeros((4,))}},
    ]
    assert len({digest, *map(checkpoint.params_sha256, others)}) == 6
    keys = [checkpoint.params_sha256({"k": jax.random.key(seed)}) for seed in (0, 0, 1)]
    assert keys[0] == keys[1] != keys[2]


def test_a_save_is_quiet(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = {str(index): jnp.ones((64, 64)) for index in range(40)}
    checkpoint.save(tmp_path, 0, tree, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(1, 8):
            path = checkpoint.save(tmp_path, step, tree, {})
        checkpoint.restore(path, tree)
    assert capfd.readouterr() == ("", "")


def test_signals_are_not_taken_over(tmp_path: pathlib.Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    checkpoint.save(tmp_path, 0, checkpoints.small(1), {})
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
