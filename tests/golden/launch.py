"""Runs the training script of a checkout, once it is sure that the package is that checkout's: CHECKOUT FLAG ..."""

import os
import pathlib
import runpy
import sys


def main(checkout: pathlib.Path, flags: list[str]) -> None:
    """Trains on two cores, so that a machine with more has no further devices."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    import jaxrl_dist

    found = pathlib.Path(jaxrl_dist.__file__).resolve()
    if checkout.resolve() not in found.parents:
        sys.exit(f"jaxrl_dist is {found}, not that of {checkout}")
    script = checkout / "scripts" / "train.py"
    sys.argv = [str(script), *flags]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
