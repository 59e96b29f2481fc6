"""Trains a system on an environment: `python scripts/train.py --system=ppo --env=gymnax:CartPole-v1`; see `--help`."""

import pathlib
import sys

# From a checkout without installation.
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxrl_dist import commands  # noqa: E402

if __name__ == "__main__":
    sys.exit(commands.start("train"))
