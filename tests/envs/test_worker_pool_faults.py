"""Tests of workers that die, hang or return invalid values: each is replaced, and no sequence joins two lives."""

import contextlib
import os
import pathlib
import re
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from fakes import lives

from jaxrl_dist import errors, types
from jaxrl_dist.envs.host import worker_pool


@pytest.fixture
def make() -> Iterator[Any]:
    with lives.starting() as start:
        yield start


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("kill", "SIGKILL .*environment 1"),
        ("raise", "raised .*environment 1"),
        ("hang", r"\b0\.5 s .*environment 1"),
        ("hold", r"\b0\.5 s .*environment 1"),
        ("shape", "raised .*environment 1"),
        ("garbage", "wrote no message .*environment 1"),
    ],
)
def test_a_worker_that_fails_is_replaced_and_no_sequence_joins_two_lives(make: Any, fault: str, message: str) -> None:
    pool = make(timeout_s=0.5, **{fault: [11, 3]})
    with pytest.warns(RuntimeWarning, match=message) as caught:
        rows = lives.play(pool, 14)
    text = str(caught[0].message)
    assert len(caught) == 1 and "fake:lives: the worker of environments 0 … 1" in text and "replaced (1 of 3)" in text
    where = r"ZeroDivisionError at host_environments\.py:\d+: the physics broke\n"
    assert bool(re.search(where, text)) == ("\n" in text) == (fault == "raise")
    assert ("the observation has shape [2], its space has [4]" in text) == (fault == "shape")
    lives.assert_whole(rows)
    assert lives.cuts(rows) == {0: 3, 1: 3} or (fault != "kill" and lives.cuts(rows) == {0: 4, 1: 3})
    seeds = rows[-1].observation[:, lives.SEED].tolist()
    assert seeds[2:] == [12, 13] and not {10, 11} & set(seeds) and len(set(seeds)) == 4
    # The others are as they would have been.
    assert [row.observation[2, lives.STEPS] for row in rows] == [t % 6 for t in range(15)]


def left(processes: list[int], count: int) -> int:
    """Returns how many are alive, once they are so many."""
    until = time.monotonic() + 10
    while sum(map(lives.is_alive, processes)) != count and time.monotonic() < until:
        time.sleep(0.01)
    return sum(map(lives.is_alive, processes))


@pytest.mark.parametrize("fault", ["kill", "raise", "hold", ""])
def test_what_an_environment_started_ends_with_its_worker(make: Any, tmp_path: pathlib.Path, fault: str) -> None:
    pool = make(timeout_s=0.5, start=str(tmp_path / "started"), **({fault: [11, 3]} if fault else {}))

    def started() -> list[int]:
        return [int(line) for line in (tmp_path / "started").read_text().split()]

    pool.reset()
    first = started()
    assert len(first) == 4 and all(map(lives.is_alive, first))
    with pytest.warns(RuntimeWarning) if fault else contextlib.nullcontext():
        lives.play(pool, 5)
    # Two of them are of the worker that failed.
    assert left(first, 2 if fault else 4) == (2 if fault else 4)
    pool.close()
    assert left(started(), 0) == 0


def test_a_worker_that_dies_between_steps_cuts_its_environments_short(make: Any) -> None:
    pool = make()
    rows = lives.play(pool, 2)
    os.kill(int(rows[-1].observation[0, lives.PROCESS]), signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="SIGKILL$"):
        rows += [pool.step(lives.zeros()) for _ in range(8)]
    lives.assert_whole(rows)
    assert lives.cuts(rows) == {0: 3, 1: 3}


def test_a_worker_that_dies_while_its_environments_are_reset_makes_them_anew(make: Any) -> None:
    pool = make()
    rows = lives.play(pool, 5)
    assert (rows[-1].step_type == types.LAST).all()
    os.kill(int(rows[-1].observation[0, lives.PROCESS]), signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        rows += [pool.step(lives.zeros()) for _ in range(7)]
    lives.assert_whole(rows)
    assert not lives.cuts(rows)


def test_rows_that_were_ready_before_the_death_are_received(make: Any) -> None:
    pool = make(batch_size=2, workers=1, **{"kill": [13, 2]})
    columns: list[list[Any]] = [[] for _ in range(4)]

    def keep(timestep: types.TimeStep, ids: np.ndarray) -> None:
        for row, env in enumerate(ids):
            columns[env].append(jax.tree.map(lambda x: x[row : row + 1], timestep))  # noqa: B023

    keep(pool.reset(), np.arange(4))
    pool.send(lives.zeros(), np.arange(4))
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        # A new process takes its time, in which the others go on.
        while min(map(len, columns)) <= 8:
            timestep, ids = pool.recv()
            keep(timestep, ids)
            pool.send(lives.zeros(2), ids)
    for column in columns:
        lives.assert_whole(column)
        assert len(lives.cuts(column)) == 1 or any(row.info.episode_length[0] == 0 for row in column)


def test_one_that_hangs_is_noticed_while_others_go_on(make: Any) -> None:
    pool = make(batch_size=1, timeout_s=0.3, hang=[11, 1])
    pool.reset()
    pool.send(lives.zeros(), np.arange(4))
    received, until = [], time.monotonic() + 5
    with pytest.warns(RuntimeWarning, match=r"\b0\.3 s .*environment 1\b"):
        while 1 not in received and time.monotonic() < until:
            _, ids = pool.recv()
            received += ids.tolist()
            pool.send(lives.zeros(1), ids)
    assert received.count(2) > 3 and 1 in received


def test_one_fault_too_many_ends_the_pool(make: Any) -> None:
    pool = make(max_restarts=1, **{"raise": [-1, 2]})
    with pytest.warns(RuntimeWarning, match="1 of 1"), pytest.raises(errors.EnvironmentFault) as error:
        lives.play(pool, 20)
    text = str(error.value)
    assert "ZeroDivisionError" in text and "env.params.max_restarts" in text and "\n" not in text
    with pytest.raises(errors.EnvironmentFault):
        pool.recv()


def test_environments_that_cannot_be_made_are_a_fault(make: Any) -> None:
    pool = make(max_restarts=0, build=[-1, 0])
    with pytest.warns(RuntimeWarning, match="host_environments.py"), pytest.raises(errors.EnvironmentFault) as error:
        pool.reset()
    assert "RuntimeError" in str(error.value) and "cannot be made" in str(error.value)


@pytest.mark.parametrize(
    ("fault", "named", "is_placed"),
    [
        ("raise", "ZeroDivisionError at host_environments.py", True),
        ("old_reset", "(observation, info)", False),
        ("old_step", "(observation, reward, terminated, truncated, info)", False),
        ("none", "the reward is None", False),
        ("array", "the reward has shape [1], expected a number", False),
    ],
)
def test_what_is_wrong_at_the_first_step_is_one_line_without_another_try(
    make: Any, fault: str, named: str, is_placed: bool
) -> None:
    pool = make(workers=1, **{fault: [-1, 1]})
    with warnings.catch_warnings(record=True) as caught, pytest.raises(errors.EnvironmentFault) as error:
        warnings.simplefilter("always")
        lives.play(pool, 3)
    assert named in str(error.value) and "\n" not in str(error.value)
    assert len(caught) == is_placed and not any("replaced" in str(one.message) for one in caught)


@pytest.mark.parametrize("field", ["reward", "observation"])
def test_numbers_that_are_not_finite_are_named(make: Any, field: str) -> None:
    pool = make(**{field: [12, 3]})
    with pytest.raises(errors.EnvironmentFault, match=rf"{field} of fake:lives, environment 2, at its step 4\b"):
        lives.play(pool, 5)


def test_kills_at_random_times_join_no_two_lives(make: Any) -> None:
    seeds = np.arange(10, 16, dtype=np.uint32)
    pool = worker_pool.WorkerPool(lives.make_plan(max_restarts=100, workers=3, length=9), seeds, 2, 10.0)
    generator, columns = np.random.default_rng(0), [[] for _ in seeds]
    timestep, ids, kills = pool.reset(), np.arange(6), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(600):
            for row, env in enumerate(ids):
                columns[env].append(jax.tree.map(lambda x: x[row : row + 1], timestep))  # noqa: B023
            if ids.size == 2 and generator.random() < 0.02:
                process = int(timestep.observation[0, lives.PROCESS])
                if lives.is_alive(process):
                    os.kill(process, signal.SIGKILL)
                    kills += 1
            pool.send(lives.zeros(ids.size), ids)
            timestep, ids = pool.recv()
    pool.close()
    assert kills > 3 and all(len(column) > 20 for column in columns)
    for column in columns:
        lives.assert_whole(column, length=9)
