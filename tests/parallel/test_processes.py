"""Two processes with two virtual CPU devices each update as one process with four: no layout stands in the way."""

import json
import os
import pathlib
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

CODE = """
import json, sys
import jax

layout, num_actors, index, count, address = json.loads(sys.argv[1])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4 // count)
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, count, index)
import numpy as np
from jaxrl_dist.training import assemble

flags = {
    "system": "ppo", "env": "toy:walk", "layout": layout, "env.num_envs": 8, "layout.unroll_length": 16,
    "learner.minibatches": 1, "learner.epochs": 1, "learner.shuffle": False, "learner.optimizer": "sgd",
    "learner.learning_rate": 0.1, "network.hidden_sizes": (16,), "network.torso": "mlp", "steps": 12800,
}
if layout == "sebulba":
    flags |= {"layout.num_actors": num_actors, "layout.policy_lag": "0"}
settings, environment = assemble.resolve(flags)
parts = assemble.assemble(settings, environment, jax.devices())
keys = assemble.seed_keys(settings)
with jax.thread_guard(count > 1):
    state = parts.layout.init(keys)
    state, sums = parts.layout.run(state, 0, 3, 100)
parts.layout.close()
params = [np.asarray(leaf.addressable_data(0)) for leaf in jax.tree.leaves(state.learner.params)]
print("RESULT" + json.dumps([x.tolist() for x in params]), flush=True)
"""


def start(layout: str, num_actors: int, index: int, count: int, address: str) -> subprocess.Popen[str]:
    arguments = json.dumps([layout, num_actors, index, count, address])
    return subprocess.Popen(
        [sys.executable, "-c", CODE, arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def params_of(process: subprocess.Popen[str]) -> list[Any]:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT"))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["anakin", "sebulba"])
def test_two_processes_update_as_one(layout: str) -> None:
    whole = params_of(start(layout, 2, 0, 1, ""))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    both = [start(layout, 1, index, 2, address) for index in range(2)]
    first, second = map(params_of, both)
    for one, other, expected in zip(first, second, whole, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, expected, atol=2e-6)
