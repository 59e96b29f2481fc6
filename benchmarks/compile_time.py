"""Measures the parts of Brax ant's compile time: `python benchmarks/compile_time.py [--targets=cpu,h200] [--rounds=3]`.

Parts: the program as a whole; the environment's steps alone, in a scan; Brax's own steps, without our resets; and the
program with an environment of the same shapes that computes nothing. Each is lowered and compiled in a process of its
own, and the seconds are the processor's, over its threads, so that others on the machine disturb them little.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

PARTS = ("whole", "environment", "brax", "learner")
# Of ant.
_OBSERVATION, _ACTION = 27, 8


def measure(part: str, name: str) -> tuple[float, float]:
    """Returns the processor seconds to lower and to compile a part for a target."""
    import jax
    import jax.numpy as jnp
    import rows

    from jaxrl_dist import envs
    from jaxrl_dist.training import assemble, targets

    target = targets.make(name)
    flags = dict(one.removeprefix("--").split("=", 1) for one in rows.ANT)
    if part == "learner":
        flags = {key: value for key, value in flags.items() if not key.startswith("env.params.")}
        flags |= {"env": "custom:compile_time:hollow"}
    started_s = time.process_time()
    settings, environment = assemble.resolve(flags)
    if part in ("whole", "learner"):
        layout = assemble.assemble(settings, environment, target.devices[:1]).layout
        keys = jax.eval_shape(lambda: assemble.seed_keys(settings))
        lowered = layout.program.lower(*layout.run_arguments(layout.template(keys), 0, 10, 100))
    else:
        count, length = settings["env.num_envs"], settings["layout.unroll_length"]
        if part == "environment":
            columns = envs.columns(environment)
            step, reset = columns.step, lambda key: columns.reset(key, jnp.arange(count))[0]
        else:
            import brax.envs

            own = brax.envs.get_environment("ant", backend="spring")
            started_s = time.process_time()
            reset = lambda key: jax.vmap(own.reset)(jax.random.split(key, count))  # noqa: E731
            step = lambda state, action: (jax.vmap(own.step)(state, action), None)  # noqa: E731
        actions = jax.ShapeDtypeStruct((length, count, _ACTION), "float32")
        state = jax.eval_shape(reset, jax.eval_shape(lambda: jax.random.key(0)))
        placed = jax.sharding.SingleDeviceSharding(target.devices[0])

        def scan(state: Any, actions: Any) -> Any:
            return jax.lax.scan(lambda state, action: (step(state, action)[0], None), state, actions)[0]

        lowered = jax.jit(scan, in_shardings=placed, out_shardings=placed).lower(state, actions)
    lowered_s = time.process_time()
    lowered.compile()
    return lowered_s - started_s, time.process_time() - lowered_s


def hollow() -> Any:
    """Makes an environment with ant's shapes that computes next to nothing."""
    import jax.numpy as jnp
    import numpy as np

    from jaxrl_dist import envs, types

    def reset(key: Any) -> Any:
        del key
        return jnp.zeros(_OBSERVATION), jnp.zeros(_OBSERVATION)

    def step(key: Any, state: Any, action: Any) -> envs.Transition:
        del key
        state = state + action.sum()
        return envs.Transition(state, state, state[0], state[1] > 1, state[2] > 1)

    bound = np.ones(_ACTION, np.float32)
    action = types.BoxSpace((_ACTION,), -bound, bound)
    return envs.BareEnvironment(reset, step, types.EnvironmentSpec("hollow", (), action, "physics", time_limit=1000))


def main(arguments: list[str]) -> int:
    """Measures the parts; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default="cpu", help="with commas between; others than cpu need `make compiled`")
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians are printed")
    parser.add_argument("--measure", default="", metavar="PART", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(options.measure, options.targets)))
        return 0
    print("| target | part | lowered, s | compiled, s |\n|---|---|---|---|")
    for target in options.targets.split(","):
        for part in PARTS:
            command = [sys.executable, __file__, f"--measure={part}", f"--targets={target}"]
            found = []
            for _ in range(options.rounds):
                done = subprocess.run(command, stdout=subprocess.PIPE, cwd=HERE, check=True, text=True)
                found.append(json.loads(done.stdout.splitlines()[-1]))
            traced_s, compiled_s = (statistics.median(column) for column in zip(*found, strict=True))
            print(f"| {target} | {part} | {traced_s:.1f} | {compiled_s:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
