"""Trains JaxMARL's own IPPO on simple_spread, from its script, beside `--preset=ippo/simple_spread`.

    PEER/bin/python benchmarks/peer_jaxmarl.py --peers=FOLDER [--seeds=5] [--steps=1_000_000] [--learning_rate=2.5e-4]

PEER is an environment with jaxmarl 0.2.0 and distrax, FOLDER holds a clone `JaxMARL`. Its script sends numbers to
Weights and Biases and reads its settings with Hydra: modules that do nothing stand in for both. The settings are those
of its file `ippo_ff_mpe.yaml`, but for the steps, and for the step size if one is given. A line of JSON per seed holds
the mean return per agent, as here (JaxMARL logs the sum over its three agents), of the episodes that ended last in each
environment, at the end of each fifth of the steps, and the seconds of all seeds, compiling included.
"""

import argparse
import importlib
import json
import pathlib
import sys
import time
import types
from typing import Any

import jax
import numpy as np
import yaml

AGENTS = 3


def stand_in() -> None:
    """Puts modules in place of those that log and configure."""

    def plain(*args: Any, **named: Any) -> Any:
        return lambda function: function

    names = {"wandb": {"log": lambda metric: None}, "hydra": {"main": plain}, "omegaconf": {"OmegaConf": None}}
    for name, members in names.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module


def main() -> None:
    """Trains the seeds in one program, as the script does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=pathlib.Path, required=True, help="folder of the clone")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--learning_rate", type=float)
    options = parser.parse_args()
    folder = options.peers / "JaxMARL" / "baselines" / "IPPO"
    config = yaml.safe_load((folder / "config" / "ippo_ff_mpe.yaml").read_text(encoding="utf-8"))
    config = {name: float(x) if name in ("LR", "TOTAL_TIMESTEPS") else x for name, x in config.items()}
    config["TOTAL_TIMESTEPS"] = options.steps
    if options.learning_rate:
        config["LR"] = options.learning_rate
    stand_in()
    sys.path.insert(0, str(folder))
    train = importlib.import_module("ippo_ff_mpe").make_train(config)
    begun = time.monotonic()
    found = jax.jit(jax.vmap(train))(jax.random.split(jax.random.PRNGKey(config["SEED"]), options.seeds))
    returns = np.asarray(found["metrics"]["returned_episode_returns"]) / AGENTS
    seconds = time.monotonic() - begun
    for seed, curve in enumerate(returns):
        fifths = [round(float(part[-5:].mean()), 2) for part in np.array_split(curve, 5)]
        print(json.dumps({"seed": seed, "returns": fifths, "seconds": round(seconds, 1)}), flush=True)


if __name__ == "__main__":
    main()
