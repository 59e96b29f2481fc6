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
import json, os, pathlib, sys
import jax

layout, num_actors, index, count, address = json.loads(sys.argv[1])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4 // count)
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, count, index, coordinator_bind_address=address)
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
# The addresses that this process listens on, as the kernel writes them.
links = {os.path.basename(os.path.realpath(f"/proc/self/fd/{name}")) for name in os.listdir("/proc/self/fd")}
rows = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()]
listens = [row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links]
print("RESULT" + json.dumps([[x.tolist() for x in params], listens]), flush=True)
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


def results_of(process: subprocess.Popen[str]) -> tuple[list[Any], list[str]]:
    """Returns the parameters of a process, and the addresses that it listened on."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT"))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["anakin", "sebulba"])
def test_two_processes_update_as_one(layout: str) -> None:
    whole, _ = results_of(start(layout, 2, 0, 1, ""))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    both = [start(layout, 1, index, 2, address) for index in range(2)]
    (first, listened), (second, also) = map(results_of, both)
    for one, other, expected in zip(first, second, whole, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, expected, atol=2e-6)
    # The coordinator asks nobody who he is, so it must not listen to every interface, whose address is zeros.
    assert listened and not any(set(one) == {"0"} for one in (*listened, *also)), (listened, also)
