"""Code of users that ends the program, as a script without a guard does: a line that names it, not a silent end."""

import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import conftest
import jax
import numpy as np
import pytest

from jaxrl_dist import envs
from jaxrl_dist.networks import custom

ENDING = """
import sys
import flax.linen as nn

def make():
    sys.exit(3)

class Made(nn.Module):
    def __post_init__(self):
        sys.exit(3)

class Called(nn.Module):
    def __call__(self, x):
        sys.exit(3)
"""
SEEN = jax.ShapeDtypeStruct((4,), np.float32)


@pytest.mark.parametrize(
    "use",
    [
        lambda: envs.make("custom:ends_at_once:make"),
        lambda: envs.make("custom:ends:make"),
        lambda: custom.make("ends:Made"),
        lambda: custom.check("ends:Called", custom.make("ends:Called"), SEEN),
    ],
    ids=["imported", "environment", "made", "called"],
)
def test_code_that_ends_the_program_is_named(
    use: Callable[[], Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends.py").write_text(ENDING)
    (tmp_path / "ends_at_once.py").write_text("import sys\nsys.exit('usage: ends_at_once.py LEVEL')\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    for name in ("ends", "ends_at_once"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with conftest.refused("ends", SystemExit.__name__):
        use()
