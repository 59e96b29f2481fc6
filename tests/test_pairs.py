"""Every system learns in every layout of its row, with its own settings, from its first rows on."""

import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_dist import systems
from jaxrl_dist.systems import catalogue
from jaxrl_dist.training import runner

PAIRS = [(system.name, layout) for system in systems.SYSTEMS.values() for layout in system.layout_names]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), PAIRS)
def test_a_system_learns_in_each_of_its_layouts(name: str, layout: str, tmp_path: pathlib.Path) -> None:
    system = systems.SYSTEMS[name]
    env, family = ("CartPole-v1", "classic") if "classic" in system.families else ("Pendulum-v1", "continuous")
    chosen: dict[str, Any] = {"system": name, "layout": layout, "env": f"gymnax:{env}"}
    own = catalogue.resolved(chosen, family)
    settings: dict[str, Any] = {"layout": layout, "evaluation.episodes": 2, "log.tensorboard": False}
    rows = own["env.num_envs"] * own["layout.unroll_length"]
    if "replay.min_size" in catalogue.declared(system, layout):
        settings["replay.min_size"] = min(own["replay.min_size"], rows)
        rows = max(rows, own["replay.batch_size"], own["env.num_envs"] * own.settings.get("agent.n_step", 1))
    settings["steps"] = 4 * rows
    run = runner.train(name, f"gymnax:{env}", out=str(tmp_path), settings=settings, devices=jax.devices()[:1])
    assert run.summary["learner_steps"] >= 1 and np.isfinite(run.summary["eval_return_mean"])
