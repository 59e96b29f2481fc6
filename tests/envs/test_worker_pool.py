"""Tests of the pool of worker processes: order, shared memory, and the end of its processes."""

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
from fakes import lives

from jaxrl_dist import types
from jaxrl_dist.envs.host import worker_pool, worker_process


@pytest.fixture
def make() -> Iterator[Any]:
    with lives.starting() as start:
        yield start


def test_episodes_follow_each_other_and_nothing_returned_is_written_again(make: Any) -> None:
    pool = make()
    rows = lives.play(pool, 13)
    copies = jax.tree.map(np.copy, rows)
    lives.assert_whole(rows)
    assert not lives.cuts(rows)
    assert rows[0].observation[:, lives.SEED].tolist() == lives.SEEDS.tolist()
    assert rows[6].observation[:, [lives.SEED, lives.EPISODE, lives.STEPS]].tolist() == [
        [seed, 2, 0] for seed in lives.SEEDS
    ]
    assert [leaf.dtype for leaf in rows[1][:4]] == [np.int8, np.float32, np.float32, np.float32]
    assert len(set(rows[0].observation[:, lives.PROCESS].tolist())) == 2
    lives.play(pool, 2)
    jax.tree.map(np.testing.assert_array_equal, rows, copies)


def test_reset_starts_anew_even_while_environments_are_being_stepped(make: Any) -> None:
    pool = make(batch_size=2)
    first = pool.reset()
    pool.step(lives.zeros())
    pool.send(lives.zeros(3), np.array([3, 0, 2]))
    again = pool.reset()
    assert (
        again.observation[:, [lives.SEED, lives.STEPS]].tolist()
        == first.observation[:, [lives.SEED, lives.STEPS]].tolist()
    )
    assert (pool.step(lives.zeros()).observation[:, lives.STEPS] == 1).all()


def test_first_ready_come_first_and_each_environment_goes_on_by_itself(make: Any) -> None:
    slow = worker_pool.WorkerPool(lives.make_plan(workers=4, delay=0.3), np.array([1000, 1, 2, 3], np.uint32), 2, 10.0)
    steps = np.zeros(4, int)
    slow.reset()
    slow.send(lives.zeros(), np.arange(4))
    for _ in range(8):
        timestep, ids = slow.recv()
        assert ids.dtype == np.int32 and len(set(ids.tolist())) == 2
        steps[ids] += timestep.step_type != types.FIRST
        kept = np.where(timestep.step_type == types.FIRST, 0, timestep.observation[:, lives.STEPS])
        np.testing.assert_array_equal(timestep.observation[:, lives.STEPS], kept)
        assert (timestep.observation[:, lives.SEED] == np.array([1000, 1, 2, 3])[ids]).all()
        slow.send(lives.zeros(2), ids)
    slow.close()
    assert steps[0] <= 1 and steps[1:].sum() >= 10


def test_rows_come_in_the_order_of_indices_when_all_are_waited_for(make: Any) -> None:
    pool = make()
    pool.reset()
    pool.send(lives.zeros(2), np.array([3, 1]))
    pool.send(lives.zeros(2), np.array([0, 2]))
    timestep, ids = pool.recv()
    assert ids.tolist() == [0, 1, 2, 3] and timestep.observation[:, lives.SEED].tolist() == lives.SEEDS.tolist()


def test_what_cannot_be_is_refused(make: Any) -> None:
    pool = make(batch_size=2)
    with pytest.raises(RuntimeError, match=" reset "):
        pool.step(lives.zeros())
    pool.reset()
    with pytest.raises(RuntimeError, match=r"recv .*\b2 .*\b0 "):
        pool.recv()
    pool.send(lives.zeros(1), np.array([1]))
    for action, ids, named in (
        ([0, 0], [1, 2], r"\[1\]"),
        ([0, 0], [2, 2], r"env_ids=\[2, 2\] .*0 … 3"),
        ([0], [4], r"env_ids=\[4\] .*0 … 3"),
        ([0], [-1], r"env_ids=\[-1\] .*0 … 3"),
        ([], [], r"env_ids=\[\] .*0 … 3"),
        ([3], [2], "action 3 .*environment 2.*0 to 2"),
        ([0, 0], [2], r"env_ids=\[2\] .*2 actions"),
        ([[0]], [2], "shape"),
    ):
        with pytest.raises(ValueError, match=named):
            pool.send(np.array(action, np.int32), np.array(ids, np.int32))
    pool.send(lives.zeros(1), np.array([2]))
    assert sorted(pool.recv()[1].tolist()) == [1, 2]
    for batch_size, timeout_s, named in ((0, 1.0, "batch_size=0"), (5, 1.0, "batch_size=5"), (1, 0.0, "timeout_s=0")):
        with pytest.raises(ValueError, match=named):
            worker_pool.WorkerPool(lives.make_plan(), lives.SEEDS, batch_size, timeout_s)


def test_close_ends_the_processes_and_closes_the_environments(make: Any, tmp_path: pathlib.Path) -> None:
    before = lives.children()
    pool = make(close=str(tmp_path / "closed"))
    pool.reset()
    started = time.monotonic()
    pool.close()
    pool.close()
    assert lives.children() == before and time.monotonic() - started < conftest.SOON_S
    assert (tmp_path / "closed").read_text() == "closed\n" * 4
    with pytest.raises(RuntimeError, match="closed"):
        pool.step(lives.zeros())


def test_close_does_not_wait_for_one_that_hangs(make: Any) -> None:
    before = lives.children()
    pool = make(hold=[11, 1])
    pool.reset()
    pool.send(lives.zeros(), np.arange(4))
    started = time.monotonic()
    pool.close()
    assert lives.children() == before and time.monotonic() - started < conftest.SOON_S


def test_a_pool_that_is_forgotten_ends_its_processes() -> None:
    gc.collect()
    before = lives.children()
    descriptors = len(os.listdir("/proc/self/fd"))
    pool = worker_pool.WorkerPool(lives.make_plan(), lives.SEEDS, 4, 10.0)
    pool.reset()
    del pool
    gc.collect()
    assert lives.children() == before and len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("how", ["return", "fork", "kill"])
def test_no_process_outlives_the_trainer(how: str, tmp_path: pathlib.Path) -> None:
    code = f"""
        import os, signal, sys, warnings
        warnings.simplefilter("error")
        from fakes import lives
        import numpy as np
        from jaxrl_dist.envs.host import worker_pool
        pool = worker_pool.WorkerPool(lives.make_plan(hold=[11, 1]), lives.SEEDS, 4, 10.0)
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
    while any(map(lives.is_alive, processes)) and time.monotonic() < until:
        time.sleep(0.01)
    assert len(processes) >= 2 and not any(map(lives.is_alive, processes))


def test_signals_to_the_whole_job_leave_the_workers_to_the_trainer(make: Any) -> None:
    pool = make()
    rows = lives.play(pool, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for process in set(rows[0].observation[:, lives.PROCESS].astype(int)):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(process, number)
        rows += [pool.step(lives.zeros()) for _ in range(3)]
    lives.assert_whole(rows)


def test_a_worker_imports_no_jax() -> None:
    code = f"import runpy, sys; runpy.run_path({worker_process.__file__!r}); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
