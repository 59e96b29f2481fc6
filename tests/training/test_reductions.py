"""Reductions between two real processes, as the compiled program of every system under Anakin has them."""

import json
from typing import Any

import conftest
import pytest
import test_faults
import test_several_processes

from jaxrl_dist import systems

TASKS = {"discrete": "gymnax:CartPole-v1", "bounded": "gymnax:Pendulum-v1"}
# Evolution strategies reduce no gradient; tests/agents/test_es.py counts what crosses devices.
ANAKIN = [name for name, row in systems.SYSTEMS.items() if "anakin" in row.layout_names and name != "es"]
# Name -> bytes of the reduction beside the gradients': a prioritised replay has the largest priority of all devices and
# the least, DPPO its mean divergence, V-MPO the sums of its weights, A2C the mean square of returns, by which rewards
# are divided (PPO has it once for all of its gradient steps).
BESIDE = {
    **dict.fromkeys(("apex_dpg", "apex_dqn", "d4pg", "r2d2", "rainbow", "muzero", "dppo"), 8),
    "vmpo": 20,
    "a2c": 4,
}
# Bytes that join the gradients: means and variances of the inputs of CrossQ's layers, 4 and 16 numbers of two critics.
AUX = {"crossq": 4 * 2 * 2 * (4 + 16)}
CODE = """
    import json, sys, jax
    from jaxrl_dist import processes
    index, address, flags = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    jax.config.update("jax_num_cpu_devices", 1)
    with processes.begun(processes.Group("2", index, address)):
        from jaxrl_dist.training import assemble, compiled, hlo, targets
        for name, own in flags.items():
            settings, environment = assemble.resolve(own)
            parts = assemble.assemble(settings, environment, jax.devices())
            keys = jax.eval_shape(lambda: assemble.seed_keys(settings))
            template = parts.layout.template(keys)
            lowered = parts.layout.program.lower(*parts.layout.run_arguments(template, 0, 10, 100))
            program = hlo.read(lowered.compile().as_text(), targets.make("cpu").speeds, compiled.SCOPES)
            network = template.learner.params.network
            size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(network))
            loops = [[loop.scope, loop.passes, loop.collectives] for _, loop in program.walk()]
            print(json.dumps({name: [len(jax.devices()), size, loops]}), flush=True)
"""


def flags_of(name: str) -> dict[str, Any]:
    actions = next(kind for kind in TASKS if kind in systems.SYSTEMS[name].actions)
    small = conftest.SMALL["ppo" if name == "gpu_sim" else name]
    return {**small, "system": name, "env": TASKS[actions], "layout": "anakin"}


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """Name of each system -> number of devices, bytes of its trained parameters, and scope, passes, reductions of its
    loops."""
    address = f"127.0.0.1:{test_several_processes.free_port()}"
    flags = json.dumps({name: flags_of(name) for name in ANAKIN})
    started = [test_faults.start_code(CODE, index, address, flags) for index in range(2)]
    outputs = [process.communicate(timeout=600) for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    found: list[dict[str, Any]] = [{}, {}]
    for own, (output, _) in zip(found, outputs, strict=True):
        for line in output.splitlines():
            own |= json.loads(line) if line.startswith("{") else {}
    assert found[0] == found[1]
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ANAKIN)
def test_a_gradient_step_has_one_large_reduction(name: str, compiled: dict[str, Any]) -> None:
    devices, size, loops = compiled[name]
    assert devices == 2
    kinds = {kind for *_, collectives in loops for kind, _ in collectives}
    # V-MPO gathers the advantages of an epoch.
    assert kinds == {"all-reduce", *["all-gather"] * (name == "vmpo")}
    steps = [[moved for _, moved in collectives] for *_, collectives in loops]
    (step,) = [moved for moved in steps if any(one >= size for one in moved)]
    *beside, gradients = sorted(step)
    # All gradients at once, with what is summed for metrics; parameters stand in no other reduction.
    assert size + AUX.get(name, 0) <= gradients < size + AUX.get(name, 0) + 256
    assert len(beside) == (name in BESIDE) and all(one <= BESIDE[name] for one in beside), step
