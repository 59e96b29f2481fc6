"""Small trees to save, what a folder holds, and processes of their own, for the tests of checkpoints."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
META = {"iteration": 3, "best": None, "nested": {"a": [1, 2.5]}}


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


def run(code: str, *args: object, devices: int = 1) -> subprocess.CompletedProcess[str]:
    """Runs Python with the package and some virtual devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, mebibytes: int) -> Iterator[pathlib.Path]:
    """A file system of so many MiB, mounted at a new folder; skips the test where that is not permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not permitted")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
