"""Sizes of exported policies, and how far they are from the policies themselves, on 1,000 observations of play.

`python benchmarks/exports.py [--steps=20_000]` trains six policies for so many steps, exports each as ONNX and
StableHLO, and plays 200 steps of 5 environments with the policy; both exports get the same observations, and keep their
own memory. It prints a table: bytes, the largest difference (of real actions from the policy's own; of scores from
StableHLO's, as the policy gives none, and relative where they are above 1), how many actions are the policy's own, and
the time of one step of one environment. It needs the extra onnx.
"""

import argparse
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

ENVS, STEPS, TIMED = 5, 200, 1_000
POLICIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "PPO, CartPole": ("ppo", "gymnax:CartPole-v1", {"agent.normalise_observations": True}),
    "PPO with LSTM, Pendulum": ("ppo", "gymnax:Pendulum-v1", {"network.core": "lstm", "learner.minibatches": 4}),
    "PPO with GTrXL, Pendulum": (
        "ppo",
        "gymnax:Pendulum-v1",
        {"network.core": "gtrxl", "network.core_rows": 16, "network.core_size": 64, "learner.minibatches": 4},
    ),
    "DQN, dueling, noisy, CartPole": ("dqn", "gymnax:CartPole-v1", {"agent.dueling": True, "agent.noise": 0.5}),
    "SAC, Pendulum": ("sac", "gymnax:Pendulum-v1", {}),
    "PPO, convolutions, MinAtar Breakout": ("ppo", "gymnax:Breakout-MinAtar", {}),
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    arguments = parser.parse_args()
    print("| policy | parameters | ONNX | StableHLO | largest difference | same actions | one step |")
    print("|---|---|---|---|---|---|---|")
    for name, (system, env, settings) in POLICIES.items():
        print(row(name, system, env, {"env.num_envs": 8, "evaluation.episodes": 2, **settings}, arguments.steps))


def row(name: str, system: str, env: str, settings: dict[str, Any], steps: int) -> str:
    """Trains one policy; returns its line of the table."""
    import onnxruntime

    import jaxrl_dist
    from jaxrl_dist import export
    from jaxrl_dist.export import step as steps_of

    with tempfile.TemporaryDirectory() as folder:
        run = jaxrl_dist.train(system, env, steps=steps, out=folder, settings=settings)
        policy = jaxrl_dist.load(run.folder)
    step = steps_of.of_policy(policy)
    files = {"ONNX": export.onnx(step), "StableHLO": export.stablehlo(step)}
    session = onnxruntime.InferenceSession(files["ONNX"], providers=["CPUExecutionProvider"])
    exported = jax.jit(jax.export.deserialize(bytearray(files["StableHLO"])).call)
    calls = {
        "ONNX": lambda given: session.run(None, given),
        "StableHLO": lambda given: [np.asarray(x) for x in exported(*given.values())],
    }
    difference, same = compared(policy, step, calls)
    count = sum(np.size(x) for x in jax.tree.leaves(policy.params.network))
    sizes = " | ".join(f"{len(data):,}" for data in files.values())
    told = ", ".join(f"{difference[form]:.1e}" for form in calls)
    alike = ", ".join(f"{same[form]:,}" for form in calls)
    return f"| {name} | {count:,} | {sizes} | {told} | {alike} | {timed(policy, step, calls)} |"


def compared(policy: Any, step: Any, calls: dict[str, Callable[..., Any]]) -> tuple[dict[str, float], dict[str, int]]:
    """Plays; returns the largest difference and the number of same actions of each export."""
    columns = jax.vmap(policy.environment.reset), jax.jit(jax.vmap(policy.environment.step))
    environments, timestep = columns[0](jax.random.split(jax.random.key(1), ENVS))
    carries = {form: first(step, ENVS) for form in calls}
    difference, same, state = dict.fromkeys(calls, 0.0), dict.fromkeys(calls, 0), None
    for _ in range(STEPS):
        observation = np.asarray(timestep.observation)
        is_first = np.asarray(timestep.step_type) == 0
        action, state = policy.predict(observation, state, is_first=is_first)
        base = {"observation": observation, "is_first": is_first, "reward": np.asarray(timestep.reward)}
        results = {}
        for form, call in calls.items():
            given = {name: (base | carries[form])[name] for name in step.inputs}
            results[form] = dict(zip(step.outputs, call(given), strict=True))
            carries[form] = {name: results[form][after] for name, after in step.carry.items()}
            same[form] += int(
                np.isclose(results[form]["action"], action, rtol=0, atol=1e-5).reshape(ENVS, -1).all(1).sum()
            )
        key = "scores" if "scores" in step.outputs else "action"
        reference = action if key == "action" else results["StableHLO"][key]
        for form, result in results.items():
            apart = np.abs(result[key] - reference) / np.maximum(np.abs(reference), 1)
            difference[form] = max(difference[form], float(apart.max()))
        environments, timestep = columns[1](environments, action)
    return difference, same


def first(step: Any, count: int) -> dict[str, np.ndarray]:
    """Returns the carry before the first step."""
    return {name: np.zeros((count, *step.inputs[name].shape[1:]), step.inputs[name].dtype) for name in step.carry}


def timed(policy: Any, step: Any, calls: dict[str, Callable[..., Any]]) -> str:
    """Returns the mean time of one step of one environment: of `predict`, and of each export."""
    observation = np.zeros(policy.environment.spec.observation.shape, policy.environment.spec.observation.dtype)
    base = {"observation": observation[None], "is_first": np.zeros(1, bool), "reward": np.zeros(1, np.float32)}
    given = {name: (base | first(step, 1))[name] for name in step.inputs}
    _, state = policy.predict(observation)
    works: dict[str, Callable[[], Any]] = {"predict": lambda: policy.predict(observation, state)}
    works |= {form: lambda call=call: call(given) for form, call in calls.items()}
    told = []
    for form, work in works.items():
        work()
        started = time.perf_counter()
        for _ in range(TIMED):
            work()
        told.append(f"{form} {(time.perf_counter() - started) / TIMED * 1e3:.2f} ms")
    return ", ".join(told)


if __name__ == "__main__":
    main()
