"""Environments for tests of worker pools, which tell the process and the life that they are of."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxrl_dist import types
from jaxrl_dist.envs.host import worker_pool, worker_process

SEED, PROCESS, EPISODE, STEPS = range(4)
SEEDS = np.arange(10, 14, dtype=np.uint32)
SPEC = types.EnvironmentSpec("fake:lives", jax.ShapeDtypeStruct((4,), np.float32), types.DiscreteSpace(3), "classic")


def make_plan(max_restarts: int = 3, workers: int = 2, **arguments: Any) -> worker_pool.Plan:
    return worker_pool.Plan(
        spec=SPEC,
        factory=worker_process.Factory("fakes.host_environments:lives", worker_process.packed(arguments)),
        leaves=(worker_process.Leaf((), (4,), "float64"),),
        observation=lambda leaves: leaves[0],
        action_dtype="int64",
        workers=workers,
        max_restarts=max_restarts,
    )


def zeros(count: int = 4) -> np.ndarray:
    return np.zeros(count, np.int32)


def children() -> set[int]:
    """The processes that are children of this one."""
    return set(map(int, pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def is_alive(process: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def assert_whole(rows: list[types.TimeStep], length: int = 5) -> None:
    """Every column is a chain of episodes, each of one process and one seed, which count from 0 without a gap."""
    for env in range(rows[0].reward.shape[0]):
        previous: Any = None
        for row in rows:
            kind, seen = int(row.step_type[env]), row.observation[env]
            if previous is None or previous[0] == types.LAST:
                assert kind == types.FIRST and seen[STEPS] == 0 and row.reward[env] == 0 and row.discount[env] == 1
            else:
                assert kind != types.FIRST
                same = slice(SEED, STEPS)
                np.testing.assert_array_equal(seen[same], previous[1][same])
                was_cut = row.info.episode_length[env] == 0
                assert seen[STEPS] == previous[1][STEPS] + (not was_cut)
                if was_cut:
                    assert kind == types.LAST and row.discount[env] == 1 and row.reward[env] == 0
                else:
                    assert (kind == types.LAST) == (seen[STEPS] == length) == (row.discount[env] == 0)
            previous = kind, seen


def play(pool: worker_pool.WorkerPool, steps: int) -> list[types.TimeStep]:
    return [pool.reset(), *(pool.step(zeros()) for _ in range(steps))]


def cuts(rows: list[types.TimeStep]) -> dict[int, int]:
    """Environments whose episode was cut short, with the row."""
    return {
        env: t
        for t, row in enumerate(rows)
        for env in np.flatnonzero((row.step_type == types.LAST) & (row.info.episode_length == 0)).tolist()
    }


@contextlib.contextmanager
def starting() -> Iterator[Callable[..., worker_pool.WorkerPool]]:
    """Starts pools, (batch_size, timeout_s, options of the plan) -> pool, and closes them in the end."""
    with contextlib.ExitStack() as stack:

        def start(batch_size: int = 4, timeout_s: float = 10.0, **options: Any) -> worker_pool.WorkerPool:
            pool = worker_pool.WorkerPool(make_plan(**options), SEEDS, batch_size, timeout_s)
            return stack.enter_context(contextlib.closing(pool))

        yield start
