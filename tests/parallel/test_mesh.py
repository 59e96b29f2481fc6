"""Options of compiled programs."""

import types
from typing import Any

import numpy as np
import pytest

from jaxrl_dist.parallel import mesh as meshes
from jaxrl_dist.training import evaluation


@pytest.mark.parametrize(("platform", "given", "asked", "wanted"), [("cpu", "", True, False), ("tpu", "", True, False),
    ("gpu", "", True, True), ("gpu", "", False, False), ("gpu", "--xla_gpu_enable_command_buffer=", True, False),
    ("gpu", "--xla_dump_to=x", True, True)])  # fmt: skip
def test_loops_are_nodes_of_graphs_on_gpus_where_asked(
    platform: str, given: str, asked: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", given)
    device = types.SimpleNamespace(platform=platform)
    options = meshes._options(types.SimpleNamespace(devices=np.array([device])), asked)
    assert (options is not None) == wanted
    assert not wanted or "WHILE" in options["xla_gpu_enable_command_buffer"].split(",")


@pytest.mark.parametrize("layout", ["anakin", "sebulba"])
def test_replays_alone_learn_by_loops_in_graphs(layout: str, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(meshes, "_options", lambda mesh, graph_loops: asked.append(graph_loops))
    monkeypatch.setattr(evaluation, "make", lambda *args: None)
    for system, wanted in (("ppo", {False}), ("dqn", {False, True}), ("impala_replay", {False, True})):
        asked.clear()
        small(system, "gymnax:CartPole-v1", 1, {"layout": layout}).layout.close()
        assert set(asked) == wanted


def test_evaluations_play_by_a_loop_in_graphs(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(meshes, "_options", lambda mesh, graph_loops: asked.append(graph_loops))
    small("ppo", "gymnax:CartPole-v1", 1, {"layout": "anakin"})
    assert asked.count(True) == 1
