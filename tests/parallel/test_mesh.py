"""Options of compiled programs."""

import types

import numpy as np
import pytest

from jaxrl_dist.parallel import mesh as meshes


@pytest.mark.parametrize(("platform", "given", "wanted"), [("cpu", "", False), ("tpu", "", False), ("gpu", "", True),
    ("gpu", "--xla_gpu_enable_command_buffer=", False), ("gpu", "--xla_dump_to=x", True)])  # fmt: skip
def test_loops_are_nodes_of_graphs_on_gpus_alone(
    platform: str, given: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", given)
    device = types.SimpleNamespace(platform=platform)
    options = meshes._options(types.SimpleNamespace(devices=np.array([device])))
    assert (options is not None) == wanted
    assert not wanted or "WHILE" in options["xla_gpu_enable_command_buffer"].split(",")
