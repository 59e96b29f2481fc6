"""Simulates how often `compare.py` calls a run outside that learns like its reference: `python benchmarks/alarms.py`.

Prints the rows of the table in `reference/README.md`: per kind of curve, 2,000 references and runs whose seeds are all
drawn alike, of 20 evaluations each.
"""

import pathlib
import sys
from collections.abc import Callable

import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

from jaxrl_dist.analysis import compare  # noqa: E402

TRIALS, EVALUATIONS = 2_000, 20
STEPS = np.arange(1.0, EVALUATIONS + 1)


def walks(generator: np.random.Generator, seeds: int) -> np.ndarray:
    """Returns f64 [20, seeds], random walks."""
    return generator.standard_normal((EVALUATIONS, seeds)).cumsum(0)


def rises(generator: np.random.Generator, seeds: int) -> np.ndarray:
    """Returns f64 [20, seeds] from 0 to 1, which rise at times that differ by a tenth of the steps."""
    return 1 / (1 + np.exp(-(STEPS[:, None] - generator.normal(10.0, 2.0, seeds))))


def falls(generator: np.random.Generator, seeds: int) -> np.ndarray:
    """Returns f64 [20, seeds], at 1 but for one evaluation in fifty, which is at .3."""
    return np.where(generator.random((EVALUATIONS, seeds)) < 0.02, 0.3, 1.0)


def alarms(draw: Callable[[np.random.Generator, int], np.ndarray], reference_seeds: int, run_seeds: int) -> float:
    """Returns the share of runs that are outside."""
    generator = np.random.default_rng(0)
    outside = 0
    for _ in range(TRIALS):
        reference, run = draw(generator, reference_seeds), draw(generator, run_seeds)
        outside += not compare.compare(STEPS, run, STEPS, reference).is_inside
    return outside / TRIALS


def main() -> None:
    """Prints a row for each kind of curve and number of seeds of the run."""
    kinds = {
        "random walks": walks,
        "curves that rise at different times": rises,
        "curves at a ceiling with rare deep falls": falls,
    }
    for name, draw in kinds.items():
        for run_seeds in (1, 3):
            few, many = (f"{100 * alarms(draw, seeds, run_seeds):.1f} %" for seeds in (5, 10))
            print(f"| simulated {name} | 5 / 10 | {run_seeds} | {few} / {many} |", flush=True)


if __name__ == "__main__":
    main()
