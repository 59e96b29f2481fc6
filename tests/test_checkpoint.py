"""Tests of checkpoints: exact round trips, every kind of damage, and being killed or out of space in a save."""

import functools
import json
import os
import pathlib
import pickle
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_dist import checkpoint, manifest, storage

ROOT = pathlib.Path(__file__).resolve().parent.parent
META = {"iteration": 3, "best": None, "nested": {"a": [1, 2.5]}}


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


def data(leaf: Any) -> np.ndarray:
    """Returns the numbers of a leaf."""
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def assert_same(actual: Any, expected: Any) -> None:
    """Checks structure, dtypes and bytes."""
    jax.tree.map(lambda *_: None, actual, expected)
    for mine, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        assert data(mine).tobytes() == data(other).tobytes()


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def small(value: float) -> dict[str, np.ndarray]:
    return {"a": np.full((4,), value, np.float32), "b": np.full((2, 2), int(value), np.int32)}


def no_warning(text: str) -> None:
    raise AssertionError(text)


def test_round_trip_is_exact(tmp_path: pathlib.Path) -> None:
    tree = make_tree()
    path = checkpoint.save(tmp_path, 1234, tree, META)
    assert path == tmp_path / "step_000000001234"
    assert os.listdir(tmp_path) == [path.name]
    restored, meta = checkpoint.restore(path, make_tree(seed=1))
    assert_same(restored, tree)
    assert meta == META
    assert isinstance(restored["host"], np.ndarray)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves({**restored, "host": None}))
    # A restored key is a key: it gives the same numbers.
    assert float(jax.random.normal(restored["box"].inner[0])) == float(jax.random.normal(tree["box"].inner[0]))


def test_template_of_shapes_and_no_implicit_transfer(tmp_path: pathlib.Path) -> None:
    tree = make_tree()
    template = jax.tree.map(lambda x: x if isinstance(x, np.ndarray) else jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
    with jax.transfer_guard("disallow"):
        restored, _ = checkpoint.restore(checkpoint.save(tmp_path, 1, tree, {}), template)
    assert_same(restored, tree)


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
    assert_same(checkpoint.restore(checkpoint.save(tmp_path, 0, tree, {}), tree)[0], jax.tree.map(lambda x: x, tree))


def test_donation_after_the_save_changes_nothing(tmp_path: pathlib.Path) -> None:
    state = {"x": jnp.arange(1000.0), "large": jnp.ones((600_000,))}
    expected = jax.tree.map(np.array, state)
    path = checkpoint.save(tmp_path, 1, state, {})
    advance = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2 + 1, tree), donate_argnums=0)
    for _ in range(3):
        state = advance(state)
    restored, _ = checkpoint.restore(path, state)
    assert_same(restored, expected)
    advance(restored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: {**tree, "a": np.zeros((5,), np.float32)}, r"'a' is float32\[4\] in the .*, float32\[5\] in the"),
        (lambda tree: {**tree, "a": np.zeros((4,), np.int32)}, r"'a' is float32\[4\] in the .*, int32\[4\] in the"),
        (lambda tree: {**tree, "a": jax.random.split(jax.random.key(0), 4)}, r"float32\[4\] in .*, key<fry>\[4\] in"),
        (lambda tree: {"a": tree["a"]}, r"'b' is int32\[2, 2\] in the checkpoint, absent in the template"),
        (lambda tree: {**tree, "c": tree["a"]}, r"'c' is absent in the checkpoint, float32\[4\] in the template"),
        (lambda tree: {"a": tree["a"], "b": {"c": tree["b"]}}, r"'b/c' is absent in the checkpoint"),
    ],
)
def test_another_template_is_refused(tmp_path: pathlib.Path, change: Callable[[Any], Any], message: str) -> None:
    path = checkpoint.save(tmp_path, 1, small(1), {})
    with pytest.raises(ValueError, match=message):
        checkpoint.restore(path, change(small(1)))
    with pytest.raises(ValueError, match=message):
        checkpoint.restore_latest(tmp_path, change(small(1)), no_warning)


def test_another_generator_is_refused(tmp_path: pathlib.Path) -> None:
    path = checkpoint.save(tmp_path, 1, {"k": jax.random.key(0, impl="rbg")}, {})
    with pytest.raises(ValueError, match=r"'k' is key<rbg>\[\] in the checkpoint, key<fry>\[\] in the template"):
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
    from jaxrl_dist import checkpoint, manifest, storage
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


def run(code: str, *args: object, devices: int = 1) -> subprocess.CompletedProcess[str]:
    """Runs Python with the package and some virtual devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


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


@pytest.mark.parametrize("count", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_saved_on_eight_devices_and_restored_in_a_process_with_fewer(tmp_path: pathlib.Path, count: int) -> None:
    result = run(DEVICES_CODE, save_on_all_devices(tmp_path), count, devices=count)
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
    assert (data(tree["keys"]) == data(jax.random.split(jax.random.key(3), 8))).all()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """One checkpoint with packed and large leaves, to be copied and damaged."""
    tree = {**small(3), "large": np.random.default_rng(0).integers(0, 255, 1_100_000).astype(np.uint8)}
    return checkpoint.save(tmp_path_factory.mktemp("saved"), 3, tree, META)


def damages(path: pathlib.Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields ways to damage a checkpoint: in each file some bits, its end, more, and all of it; and what is added."""
    rng = random.Random(0)
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        name, whole = str(file.relative_to(path)), file.read_bytes()
        positions = {0, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(6))}
        if file.name == "manifest.json":
            positions |= set(range(0, len(whole), 7))
        for position in sorted(positions):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << rng.randrange(8)
            yield f"{name}: bit of byte {position}", functools.partial(file.write_bytes, bytes(flipped))
        for size in sorted({0, len(whole) // 2, len(whole) - 1}):
            yield f"{name}: {size} bytes left", functools.partial(file.write_bytes, whole[:size])
        yield f"{name}: a byte more", functools.partial(file.write_bytes, whole + b" ")
        yield f"{name}: deleted", file.unlink
        yield f"{name}: zeros", functools.partial(file.write_bytes, bytes(len(whole)))
    yield "an extra file", (path / "arrays" / "extra").touch
    yield "an extra link", functools.partial((path / "arrays" / "link").symlink_to, "/etc/hostname")
    yield "all gone", functools.partial(shutil.rmtree, path)


def test_every_damage_is_found(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / saved.name
    shutil.copytree(saved, path)
    checkpoint.verify(path)
    before = contents(path)
    missed, count = [], 0
    for name, damage in list(damages(path)):
        damage()
        count += 1
        try:
            checkpoint.verify(path)
            missed.append(name)
        except checkpoint.CheckpointError as error:
            assert "\n" not in str(error) and str(path) in str(error)
        for extra in ("extra", "link"):
            (path / "arrays" / extra).unlink(missing_ok=True)
        for file, whole in before.items():
            if name.startswith((f"{file}:", "all gone")):
                (path / file).parent.mkdir(parents=True, exist_ok=True)
                (path / file).write_bytes(whole)
    checkpoint.verify(path)
    assert count > 150
    assert missed == []


def test_a_link_to_the_right_bytes_is_refused(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = tmp_path / saved.name
    shutil.copytree(saved, path)
    (path / "contents.json").unlink()
    (path / "contents.json").symlink_to(saved / "contents.json")
    with pytest.raises(checkpoint.CheckpointError, match=r"contents\.json is not a plain file"):
        checkpoint.verify(path)


def flip(path: pathlib.Path) -> None:
    """Flips one bit of the largest data file."""
    file = max((path / "arrays").rglob("*"), key=lambda file: file.stat().st_size if file.is_file() else 0)
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)


def test_walk_back_warns_in_one_line_and_sets_the_corrupt_ones_aside(tmp_path: pathlib.Path) -> None:
    for step in (100, 200, 300):
        checkpoint.save(tmp_path, step, small(step), {"step": step})
    for step in (200, 300):
        flip(tmp_path / f"step_{step:012d}")
    lines: list[str] = []
    found = checkpoint.restore_latest(tmp_path, small(0), lines.append)
    assert found is not None and found[1] == {"step": 100}
    assert_same(found[0], small(100))
    assert ["step_000000000300" in lines[0], "step_000000000200" in lines[1], len(lines)] == [True, True, 2]
    assert not any("\n" in line for line in lines)
    # The next saves must not drop the whole one in favour of those.
    checkpoint.save(tmp_path, 250, small(250), {})
    checkpoint.prune(tmp_path, 3)
    assert [path.name[-3:] for path in checkpoint.latest(tmp_path)] == ["250", "100"]
    assert len(list(tmp_path.glob("corrupt_step_*"))) == 2
    checkpoint.prune(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["step_000000000100", "step_000000000250"]
    assert checkpoint.restore_latest(tmp_path, small(0), no_warning) is not None


def test_all_bad_is_an_error_and_changes_nothing(tmp_path: pathlib.Path) -> None:
    checkpoint.save(tmp_path, "best", small(5), {})
    for step in (100, 200):
        flip(checkpoint.save(tmp_path, step, small(step), {}))
    before, lines = contents(tmp_path), list[str]()
    with pytest.raises(checkpoint.CheckpointError, match="all 2 checkpoints are corrupt"):
        checkpoint.restore_latest(tmp_path, small(0), lines.append)
    assert contents(tmp_path) == before
    assert len(lines) == 2


def test_nothing_to_restore(tmp_path: pathlib.Path) -> None:
    assert checkpoint.restore_latest(tmp_path / "missing", small(0), no_warning) is None
    checkpoint.save(tmp_path, "best", small(5), {})
    assert checkpoint.restore_latest(tmp_path, small(0), no_warning) is None
    checkpoint.clean(tmp_path / "missing")
    with pytest.raises(checkpoint.CheckpointError, match="missing"):
        checkpoint.restore(tmp_path / "missing", small(0))


def test_steps_are_ordered_by_number_and_pruned(tmp_path: pathlib.Path) -> None:
    steps = (5, 10**12 + 1, 20, 999)
    for step in steps:
        checkpoint.save(tmp_path, step, small(1), {})
    checkpoint.save(tmp_path, "best", small(5), {})
    names = [path.name for path in checkpoint.latest(tmp_path)]
    assert names == [f"step_{step:012d}" for step in sorted(steps, reverse=True)]
    checkpoint.prune(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == sorted([*names[:2], "best"])
    with pytest.raises(ValueError, match="keep=0"):
        checkpoint.prune(tmp_path, 0)


def test_a_slot_and_a_step_are_replaced(tmp_path: pathlib.Path) -> None:
    for name in ("best", 7):
        for value in (1, 2, 3):
            path = checkpoint.save(tmp_path, name, small(value), {"value": value})
            assert checkpoint.restore(path, small(0))[1] == {"value": value}
            assert_same(checkpoint.restore(path, small(0))[0], small(value))
    assert sorted(os.listdir(tmp_path)) == ["best", "step_000000000007"]


@pytest.mark.parametrize("killed_at", range(1, 5))
def test_a_replacement_cut_short_leaves_a_whole_best(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    folder = tmp_path / "run"
    checkpoint.save(folder, "best", small(1), {})
    calls = 0
    rename, rmtree = pathlib.Path.rename, shutil.rmtree

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if ".trash" not in str(args[0]) or function is rename or args[0].exists():
                calls += 1
            if calls >= killed_at:
                # As kill -9 would: nothing that comes after has an effect.
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return call

    # Steps of a replacement: the old one aside, the new one in, the old one renamed, the old one deleted.
    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "rename", dying(rename))
        patch.setattr(shutil, "rmtree", dying(rmtree))
        patch.setattr(storage, "write_arrays", lambda path, *rest: path.mkdir())
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(folder, "best", small(1), {"new": True})
    found = checkpoint.find(folder, "best")
    assert found is not None
    checkpoint.verify(found)
    checkpoint.clean(folder)
    assert os.listdir(folder) == ["best"]
    checkpoint.verify(folder / "best")
    is_new = json.loads((folder / "best" / "contents.json").read_text())["meta"] == {"new": True}
    assert is_new == (killed_at >= 2)


KILLED_CODE = """
    import itertools, os, pathlib, signal, sys, time
    import numpy as np, orbax.checkpoint
    from jaxrl_dist import checkpoint, manifest, storage

    def work(folder, pipe):
        rng = np.random.default_rng(0)
        noise = rng.integers(0, 255, 2_000_000).astype(np.uint8)
        for step in itertools.count(1):
            tree = {"step": np.full((3,), step, np.int32), "large": noise + np.uint8(step % 100)}
            checkpoint.save(folder, step, tree, {"step": step})
            checkpoint.save(folder, "best", tree, {"step": step})
            checkpoint.prune(folder, 2)
            os.write(pipe, b"%d\\n" % step)

    for index, delay in enumerate(map(float, sys.argv[2:])):
        folder = pathlib.Path(sys.argv[1]) / str(index)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                work(folder, writer)
            finally:
                os._exit(1)
        os.close(writer)
        lines = os.read(reader, 100)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9
        while more := os.read(reader, 100):
            lines += more
        print(int(lines.split()[-1]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_time_a_whole_checkpoint_is_left(tmp_path: pathlib.Path) -> None:
    rng = random.Random(0)
    result = run(KILLED_CODE, tmp_path, *(rng.uniform(0.0, 1.5) for _ in range(5)))
    finished = [int(line) for line in result.stdout.split()]
    assert len(finished) == 5, result.stderr
    template = {"step": np.zeros((3,), np.int32), "large": np.zeros(2_000_000, np.uint8)}
    for index, step in enumerate(finished):
        folder = tmp_path / str(index)
        found = checkpoint.find(folder, "best")
        assert found is not None
        checkpoint.verify(found)
        checkpoint.clean(folder)
        assert all(name == "best" or name.startswith("step_") for name in os.listdir(folder))
        restored = checkpoint.restore_latest(folder, template, no_warning)
        assert restored is not None
        (tree, meta), best = restored, checkpoint.restore(folder / "best", template)
        assert step <= meta["step"] <= step + 1 and step <= best[1]["step"] <= step + 1
        assert tree["step"].tolist() == [meta["step"]] * 3 and best[0]["step"].tolist() == [best[1]["step"]] * 3


@pytest.fixture
def tiny_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not permitted")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_loud_and_older_checkpoints_stay_whole(tiny_disk: pathlib.Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, 4_000_000).astype(np.uint8)
    checkpoint.save(tiny_disk, 1, small(1), {})
    checkpoint.save(tiny_disk, "best", small(1), {})
    before = contents(tiny_disk)
    for name in (2, "best"):
        for tree in ({"large": noise}, {str(index): part for index, part in enumerate(np.split(noise, 100))}):
            with pytest.raises(
                checkpoint.CheckpointError, match=": No space left on device; earlier checkpoints are untouched"
            ):
                checkpoint.save(tiny_disk, name, tree, {})
            assert contents(tiny_disk) == before
            assert sorted(os.listdir(tiny_disk)) == ["best", "step_000000000001"]
    checkpoint.save(tiny_disk, 2, small(2), {})


@pytest.mark.parametrize(
    ("module", "fails"),
    [(storage, "write_arrays"), (manifest, "encode"), (manifest, "sync"), (manifest, "sync_entry")],
)
def test_a_failing_write_leaves_the_older_ones(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, module: Any, fails: str
) -> None:
    checkpoint.save(tmp_path, 1, small(1), {})
    before = contents(tmp_path)

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, fails, fail)
        with pytest.raises(checkpoint.CheckpointError, match="No space left on device"):
            checkpoint.save(tmp_path, 2, small(2), {})
    assert contents(tmp_path) == before


def test_a_read_only_folder_is_loud(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(checkpoint.CheckpointError, match="cannot save"):
        checkpoint.save(tmp_path / "file" / "folder", 1, small(1), {})


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.target,)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_pickle_in_any_file_never_runs(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    trace, path = tmp_path / "fired", tmp_path / saved.name
    bomb = pickle.dumps(Bomb(str(trace)))
    pickle.loads(bomb)
    trace.rmdir()
    template = {**small(3), "large": np.zeros(1_100_000, np.uint8)}
    for name in contents(saved):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(saved, path)
        (path / name).write_bytes(bomb)
        if name != "manifest.json":
            # An attacker writes a manifest that fits, too.
            (path / "manifest.json").write_bytes(manifest.encode(manifest.digests(path)))
        # Some files of Orbax are not needed for reading; what counts is that the bomb is not run.
        try:
            restored, _ = checkpoint.restore(path, template)
            assert_same(restored, {**template, **small(3), "large": restored["large"]})
        except checkpoint.CheckpointError:
            pass
        assert not trace.exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"leaves": 3, "meta": {}}', '{"leaves": [[1, 2]], "meta": {}}', "[" * 100_000, '{"leaves": []}'],
)
def test_contents_of_another_form_are_refused(saved: pathlib.Path, tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / saved.name
    shutil.copytree(saved, path)
    (path / "contents.json").write_text(text)
    (path / "manifest.json").write_bytes(manifest.encode(manifest.digests(path)))
    with pytest.raises(checkpoint.CheckpointError, match="is not readable"):
        checkpoint.restore(path, small(0))


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


def test_a_save_is_quiet_and_quick(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = {str(index): jnp.ones((64, 64)) for index in range(40)}
    checkpoint.save(tmp_path, 0, tree, {})
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(1, 8):
            start = time.perf_counter()
            path = checkpoint.save(tmp_path, step, tree, {})
            seconds.append(time.perf_counter() - start)
        checkpoint.restore(path, tree)
    assert capfd.readouterr() == ("", "")
    # About 0.1 s on two idle cores; loose, because cores are shared.
    assert min(seconds) < 0.5


def test_signals_are_not_taken_over(tmp_path: pathlib.Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    checkpoint.save(tmp_path, 0, small(1), {})
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
