"""Tests of the pool of worker processes: order, shared memory, every fault forced, and the end of its processes."""

import gc
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from typing import Any

import conftest
import jax
import numpy as np
import pytest

from jaxrl_dist import types
from jaxrl_dist.envs import base, worker, worker_pool

SEED, PROCESS, EPISODE, STEPS = range(4)
SEEDS = np.arange(10, 14, dtype=np.uint32)
SPEC = types.EnvironmentSpec("fake:lives", jax.ShapeDtypeStruct((4,), np.float32), types.DiscreteSpace(3), "classic")


def make_plan(max_restarts: int = 3, workers: int = 2, **arguments: Any) -> worker_pool.Plan:
    return worker_pool.Plan(
        spec=SPEC,
        factory=worker.Factory(("host_environments:lives",), arguments),
        leaves=(worker.Leaf((), (4,), "float64"),),
        observation=lambda leaves: leaves[0],
        action_dtype="int64",
        workers=workers,
        max_restarts=max_restarts,
    )


@pytest.fixture
def make() -> Iterator[Any]:
    pools = []

    def start(batch_size: int = 4, timeout_s: float = 10.0, **options: Any) -> worker_pool.WorkerPool:
        pools.append(worker_pool.WorkerPool(make_plan(**options), SEEDS, batch_size, timeout_s))
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()


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


def test_episodes_follow_each_other_and_nothing_returned_is_written_again(make: Any) -> None:
    pool = make()
    rows = play(pool, 13)
    copies = jax.tree.map(np.copy, rows)
    assert_whole(rows)
    assert not cuts(rows)
    assert rows[0].observation[:, SEED].tolist() == SEEDS.tolist()
    assert rows[6].observation[:, [SEED, EPISODE, STEPS]].tolist() == [[seed, 2, 0] for seed in SEEDS]
    assert [leaf.dtype for leaf in rows[1][:4]] == [np.int8, np.float32, np.float32, np.float32]
    assert len(set(rows[0].observation[:, PROCESS].tolist())) == 2
    play(pool, 2)
    jax.tree.map(np.testing.assert_array_equal, rows, copies)


def test_reset_starts_anew_even_while_environments_are_being_stepped(make: Any) -> None:
    pool = make(batch_size=2)
    first = pool.reset()
    pool.step(zeros())
    pool.send(zeros(3), np.array([3, 0, 2]))
    again = pool.reset()
    assert again.observation[:, [SEED, STEPS]].tolist() == first.observation[:, [SEED, STEPS]].tolist()
    assert (pool.step(zeros()).observation[:, STEPS] == 1).all()


def test_first_ready_come_first_and_each_environment_goes_on_by_itself(make: Any) -> None:
    slow = worker_pool.WorkerPool(make_plan(workers=4, delay=0.3), np.array([1000, 1, 2, 3], np.uint32), 2, 10.0)
    steps = np.zeros(4, int)
    slow.reset()
    slow.send(zeros(), np.arange(4))
    for _ in range(8):
        timestep, ids = slow.recv()
        assert ids.dtype == np.int32 and len(set(ids.tolist())) == 2
        steps[ids] += timestep.step_type != types.FIRST
        kept = np.where(timestep.step_type == types.FIRST, 0, timestep.observation[:, STEPS])
        np.testing.assert_array_equal(timestep.observation[:, STEPS], kept)
        assert (timestep.observation[:, SEED] == np.array([1000, 1, 2, 3])[ids]).all()
        slow.send(zeros(2), ids)
    slow.close()
    assert steps[0] <= 1 and steps[1:].sum() >= 10


def test_rows_come_in_the_order_of_indices_when_all_are_waited_for(make: Any) -> None:
    pool = make()
    pool.reset()
    pool.send(zeros(2), np.array([3, 1]))
    pool.send(zeros(2), np.array([0, 2]))
    timestep, ids = pool.recv()
    assert ids.tolist() == [0, 1, 2, 3] and timestep.observation[:, SEED].tolist() == SEEDS.tolist()


def test_what_cannot_be_is_refused(make: Any) -> None:
    pool = make(batch_size=2)
    with pytest.raises(RuntimeError, match="reset the environments first"):
        pool.step(zeros())
    pool.reset()
    with pytest.raises(RuntimeError, match="recv of 2 with 0 being stepped"):
        pool.recv()
    pool.send(zeros(1), np.array([1]))
    for action, ids, message in (
        ([0, 0], [1, 2], r"\[1\] are being stepped"),
        ([0, 0], [2, 2], "distinct indices in 0 … 3"),
        ([0], [4], "distinct indices in 0 … 3"),
        ([0], [-1], "distinct indices in 0 … 3"),
        ([], [], "distinct indices in 0 … 3"),
        ([3], [2], "action 3 for environment 2; valid: 0 to 2"),
        ([0, 0], [2], r"env_ids=\[2\] for 2 actions"),
        ([[0]], [2], "shape"),
    ):
        with pytest.raises(ValueError, match=message):
            pool.send(np.array(action, np.int32), np.array(ids, np.int32))
    pool.send(zeros(1), np.array([2]))
    assert sorted(pool.recv()[1].tolist()) == [1, 2]
    for batch_size, timeout_s in ((0, 1.0), (5, 1.0), (1, 0.0)):
        with pytest.raises(ValueError, match="expected"):
            worker_pool.WorkerPool(make_plan(), SEEDS, batch_size, timeout_s)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("kill", "was killed by SIGKILL at environment 1"),
        ("raise", "raised at environment 1"),
        ("hang", "did not answer within 0.5 s at environment 1"),
        ("hold", "did not answer within 0.5 s at environment 1"),
        ("shape", "raised at environment 1"),
    ],
)
def test_a_worker_that_fails_is_replaced_and_no_sequence_joins_two_lives(make: Any, fault: str, message: str) -> None:
    pool = make(timeout_s=0.5, **{fault: [11, 3]})
    with pytest.warns(RuntimeWarning, match=message) as caught:
        rows = play(pool, 14)
    text = str(caught[0].message)
    assert len(caught) == 1 and "fake:lives: the worker of environments 0 … 1" in text and "replaced (1 of 3)" in text
    assert ("ZeroDivisionError: the physics broke" in text) == (fault == "raise")
    assert ("the observation has shape [2], its space has [4]" in text) == (fault == "shape")
    assert_whole(rows)
    assert cuts(rows) == {0: 3, 1: 3} or (fault != "kill" and cuts(rows) == {0: 4, 1: 3})
    seeds = rows[-1].observation[:, SEED].tolist()
    assert seeds[2:] == [12, 13] and not {10, 11} & set(seeds) and len(set(seeds)) == 4
    # The others are as they would have been.
    assert [row.observation[2, STEPS] for row in rows] == [t % 6 for t in range(15)]


def test_a_worker_that_dies_between_steps_cuts_its_environments_short(make: Any) -> None:
    pool = make()
    rows = play(pool, 2)
    os.kill(int(rows[-1].observation[0, PROCESS]), signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="killed by SIGKILL$"):
        rows += [pool.step(zeros()) for _ in range(8)]
    assert_whole(rows)
    assert cuts(rows) == {0: 3, 1: 3}


def test_a_worker_that_dies_while_its_environments_are_reset_makes_them_anew(make: Any) -> None:
    pool = make()
    rows = play(pool, 5)
    assert (rows[-1].step_type == types.LAST).all()
    os.kill(int(rows[-1].observation[0, PROCESS]), signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="killed by SIGKILL"):
        rows += [pool.step(zeros()) for _ in range(7)]
    assert_whole(rows)
    assert not cuts(rows)


def test_rows_that_were_ready_before_the_death_are_received(make: Any) -> None:
    pool = make(batch_size=2, workers=1, **{"kill": [13, 2]})
    columns: list[list[Any]] = [[] for _ in range(4)]

    def keep(timestep: types.TimeStep, ids: np.ndarray) -> None:
        for row, env in enumerate(ids):
            columns[env].append(jax.tree.map(lambda x: x[row : row + 1], timestep))  # noqa: B023

    keep(pool.reset(), np.arange(4))
    pool.send(zeros(), np.arange(4))
    with pytest.warns(RuntimeWarning, match="killed by SIGKILL"):
        # A new process takes its time, in which the others go on.
        while min(map(len, columns)) <= 8:
            timestep, ids = pool.recv()
            keep(timestep, ids)
            pool.send(zeros(2), ids)
    for column in columns:
        assert_whole(column)
        assert len(cuts(column)) == 1 or any(row.info.episode_length[0] == 0 for row in column)


def test_one_that_hangs_is_noticed_while_others_go_on(make: Any) -> None:
    pool = make(batch_size=1, timeout_s=0.3, hang=[11, 1])
    pool.reset()
    pool.send(zeros(), np.arange(4))
    received, until = [], time.monotonic() + 5
    with pytest.warns(RuntimeWarning, match="did not answer within 0.3 s at environment 1"):
        while 1 not in received and time.monotonic() < until:
            _, ids = pool.recv()
            received += ids.tolist()
            pool.send(zeros(1), ids)
    assert received.count(2) > 3 and 1 in received


def test_one_fault_too_many_ends_the_pool(make: Any) -> None:
    pool = make(max_restarts=1, **{"raise": [-1, 2]})
    with pytest.warns(RuntimeWarning, match="1 of 1"), pytest.raises(base.EnvironmentFault) as error:
        play(pool, 20)
    text = str(error.value)
    assert "ZeroDivisionError: the physics broke" in text and "the most that --env.params.max_restarts allows" in text
    with pytest.raises(base.EnvironmentFault):
        pool.recv()


def test_environments_that_cannot_be_made_are_a_fault(make: Any) -> None:
    pool = make(max_restarts=0, build=[-1, 0])
    with pytest.raises(base.EnvironmentFault, match="RuntimeError: cannot be made"):
        pool.reset()


@pytest.mark.parametrize("field", ["reward", "observation"])
def test_numbers_that_are_not_finite_are_named(make: Any, field: str) -> None:
    pool = make(**{field: [12, 3]})
    with pytest.raises(base.EnvironmentFault, match=f"the {field} of fake:lives, environment 2, at its step 4"):
        play(pool, 5)


def test_close_ends_the_processes_and_closes_the_environments(make: Any, tmp_path: pathlib.Path) -> None:
    before = children()
    pool = make(close=str(tmp_path / "closed"))
    pool.reset()
    started = time.monotonic()
    pool.close()
    pool.close()
    assert children() == before and time.monotonic() - started < conftest.SOON_S
    assert (tmp_path / "closed").read_text() == "closed\n" * 4
    with pytest.raises(RuntimeError, match="closed"):
        pool.step(zeros())


def test_close_does_not_wait_for_one_that_hangs(make: Any) -> None:
    before = children()
    pool = make(hold=[11, 1])
    pool.reset()
    pool.send(zeros(), np.arange(4))
    started = time.monotonic()
    pool.close()
    assert children() == before and time.monotonic() - started < conftest.SOON_S


def test_a_pool_that_is_forgotten_ends_its_processes() -> None:
    gc.collect()
    before = children()
    descriptors = len(os.listdir("/proc/self/fd"))
    pool = worker_pool.WorkerPool(make_plan(), SEEDS, 4, 10.0)
    pool.reset()
    del pool
    gc.collect()
    assert children() == before and len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("how", ["return", "fork", "kill"])
def test_no_process_outlives_the_trainer(how: str, tmp_path: pathlib.Path) -> None:
    code = f"""
        import os, signal, sys, warnings
        warnings.simplefilter("error")
        import numpy as np
        import test_worker_pool as tests
        from jaxrl_dist.envs import worker_pool
        pool = worker_pool.WorkerPool(tests.make_plan(hold=[11, 1]), tests.SEEDS, 4, 10.0)
        rows = pool.reset()
        print(*set(rows.observation[:, 1].astype(int)), flush=True)
        if {how!r} == "fork" and os.fork() == 0:
            sys.exit()
        if {how!r} == "fork":
            os.wait()
            pool.send(np.zeros(2, int), np.array([2, 3]))
        if {how!r} == "kill":
            pool.send(np.zeros(4, int), np.arange(4))
            os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path)), "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == (-signal.SIGKILL if how == "kill" else 0)
    assert ended.stderr == ""
    processes, until = [int(word) for word in ended.stdout.split()], time.monotonic() + 2
    while any(map(is_alive, processes)) and time.monotonic() < until:
        time.sleep(0.01)
    assert len(processes) >= 2 and not any(map(is_alive, processes))


def test_signals_to_the_whole_job_leave_the_workers_to_the_trainer(make: Any) -> None:
    pool = make()
    rows = play(pool, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for process in set(rows[0].observation[:, PROCESS].astype(int)):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(process, number)
        rows += [pool.step(zeros()) for _ in range(3)]
    assert_whole(rows)


def test_a_worker_imports_no_jax() -> None:
    code = "import sys; from jaxrl_dist.envs import worker; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_kills_at_random_times_join_no_two_lives(make: Any) -> None:
    seeds = np.arange(10, 16, dtype=np.uint32)
    pool = worker_pool.WorkerPool(make_plan(max_restarts=100, workers=3, length=9), seeds, 2, 10.0)
    generator, columns = np.random.default_rng(0), [[] for _ in seeds]
    timestep, ids, kills = pool.reset(), np.arange(6), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(600):
            for row, env in enumerate(ids):
                columns[env].append(jax.tree.map(lambda x: x[row : row + 1], timestep))  # noqa: B023
            if ids.size == 2 and generator.random() < 0.02:
                process = int(timestep.observation[0, PROCESS])
                if is_alive(process):
                    os.kill(process, signal.SIGKILL)
                    kills += 1
            pool.send(zeros(ids.size), ids)
            timestep, ids = pool.recv()
    pool.close()
    assert kills > 3 and all(len(column) > 20 for column in columns)
    for column in columns:
        assert_whole(column, length=9)
