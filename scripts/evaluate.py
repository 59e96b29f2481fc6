"""Evaluates, and films, the policies of a run."""

import pathlib
import sys

# From a checkout without installation.
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxrl_dist import commands  # noqa: E402

if __name__ == "__main__":
    sys.exit(commands.start("evaluate"))
