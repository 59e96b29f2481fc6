"""Population-based training beside a random search: `python benchmarks/population.py [--steps=400000] [FLAG=VALUE ...]`

Both begin with the same eight draws of learning rate, entropy cost and discount for each of five runs, which train in
one program. At the same steps the one goes on by `members.exploit` after each evaluation, the other keeps its draws.
The best member by the last evaluation is scored by episodes of its own. Prints a line of JSON for each arm, and the
probability that population-based training is better. Arguments like env.num_envs=64 are flags of train.py.
"""

import argparse
import json
import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from jaxrl_dist.parallel import keys as run_keys  # noqa: E402
from jaxrl_dist.runs import aggregate, software  # noqa: E402
from jaxrl_dist.settings import sweep  # noqa: E402
from jaxrl_dist.training import assemble, population, runner  # noqa: E402

RUNS = 5
# Bounds between whose logarithms the first values are drawn; two values of each make the eight members.
SWEEP = "learner.learning_rate=1e-4,1e-1;agent.entropy_cost=1e-4,1e-1;agent.discount=0.9,0.999"


def draws(bounds: dict[str, tuple[float, float]], count: int, seed: int) -> dict[str, np.ndarray]:
    """Returns the first values f32 [S] of each setting."""
    rng = np.random.default_rng(seed)
    return {name: np.exp(rng.uniform(*np.log(ends), count)).astype(np.float32) for name, ends in bounds.items()}


def assembled(env: str, steps: int, swept: str, given: dict[str, str]) -> assemble.Assembly:
    """Assembles PPO with eight members for each run, by the flags given."""
    flags = {"system": "ppo", "env": env, "steps": steps, "num_seeds": RUNS, "sweep": swept, "population": True}
    settings, environment = assemble.resolve(flags | given)
    return assemble.assemble(settings, environment, assemble.choose_devices(settings, jax.devices()))


def train(parts: assemble.Assembly, seed: int, evaluations: int, exploits: bool) -> dict[str, Any]:
    """Trains one arm; returns the best member's score for each run, its last values, and seconds."""
    began_s, keys = time.perf_counter(), assemble.seed_keys(parts.settings)
    state = parts.init(keys)
    values = {name: jnp.asarray(x) for name, x in draws(sweep.bounds(parts.settings), len(keys), seed).items()}
    old = state.learner.params.statistics
    values = {name: jax.device_put(x, old.values[name].sharding) for name, x in values.items()}
    params = state.learner.params._replace(statistics=old._replace(values=values))
    state = parts.layout.start_from(state, state.learner._replace(params=params))
    evaluation_keys = jax.vmap(lambda key: run_keys.seed_keys(key).evaluation)(keys)
    total = parts.settings["steps"] // parts.layout.rows_per_iteration
    ends = [total * i // evaluations for i in range(evaluations + 1)]
    for begin, end in zip(ends, ends[1:], strict=False):
        state, _ = parts.layout.run(state, begin, end - begin, total)
        returns = parts.evaluate(state.learner.params, evaluation_keys, end)
        if exploits and end < total:
            assert parts.exploit is not None
            learner, _ = parts.exploit(state.learner, returns, evaluation_keys, end)
            state = parts.layout.start_from(state, learner)
    best = returns.mean(1).reshape(-1, RUNS).argmax(0) * RUNS + np.arange(RUNS)
    scores = parts.evaluate(state.learner.params, evaluation_keys, total + 1).mean(1)
    last = population.values(state.learner.params)
    return {
        "arm": "population" if exploits else "random search",
        "scores": scores[best].tolist(),
        "values": [last[i] for i in best],
        "all": np.sort(scores.reshape(-1, RUNS), 0).round(2).tolist(),
        "seconds": round(time.perf_counter() - began_s, 1),
    }


def main() -> None:
    """Trains both arms, and compares them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="gymnax:Breakout-MinAtar")
    parser.add_argument("--steps", type=int, default=400_000, help="environment steps of each member")
    parser.add_argument("--evaluations", type=int, default=10, help="after which the population goes on")
    parser.add_argument("--sweep", default=SWEEP, help="bounds of three settings")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--out", type=pathlib.Path, default=None, help="file for the lines")
    parser.add_argument("flags", nargs="*", metavar="FLAG=VALUE", help="flags of train.py")
    args = parser.parse_args()
    runner.prepare()
    given = dict(flag.split("=", 1) for flag in args.flags)
    parts, scores = assembled(args.env, args.steps, args.sweep, given), []
    for exploits in (False, True):
        row = train(parts, args.seed, args.evaluations, exploits)
        row |= {
            "env": args.env,
            "steps": args.steps,
            "evaluations": args.evaluations,
            "sweep": args.sweep,
            "flags": given,
            "commit": software.commit(),
        }
        scores.append(np.array(row["scores"]))
        print(json.dumps(row), flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    search, own = scores
    for arm, found in (("random search", search), ("population", own)):
        low, high = aggregate.interval(found)
        print(f"{arm}: {aggregate.interquartile_mean(found):.2f} [{low:.2f}, {high:.2f}]")
    low, high = aggregate.interval(own, search, statistic=aggregate.probability_of_improvement)
    chance = float(aggregate.probability_of_improvement(own, search))
    print(f"probability of improvement {chance:.2f} [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
