"""Writes a run for others, into a folder or onto the Hugging Face Hub."""

import pathlib
import sys

# From a checkout without installation.
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxrl_dist import commands  # noqa: E402

if __name__ == "__main__":
    sys.exit(commands.start("share"))
