"""Environments of a pool of C++ threads, on a fake one: its bookkeeping, its faults, and how it is closed."""

import re
import threading
import time
from typing import Any

import conftest
import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from fakes import pool as fake_pool

from jaxrl_dist import errors, types
from jaxrl_dist.envs import wrappers
from jaxrl_dist.envs.host import hangs, pooled

DISCRETE = types.DiscreteSpace(3)
BOX = types.BoxSpace((2,), np.float32(-1), np.float32(1))


def faked(
    num_envs: int = 3,
    batch_size: int = 3,
    *,
    name: str = "episode",
    action: Any = DISCRETE,
    timeout_s: float = 60.0,
    life_loss: bool = False,
    atari: bool = True,
) -> tuple[pooled.Pooled, fake_pool.FakePool]:
    struct = jax.ShapeDtypeStruct((2,), np.dtype(np.float32))
    spec = types.EnvironmentSpec("envpool:fake", struct, action, "classic")
    pool = fake_pool.FakePool(name, num_envs, batch_size, atari=atari)
    return pooled.Pooled(pool, spec, batch_size, timeout_s, convert=lambda x: x, life_loss=life_loss), pool


def no_envs(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


@hypothesis.given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=3, max_size=3).filter(lambda x: min(x) < 0 or max(x) > 2)
)
def test_integers_out_of_range_never_reach_the_pool(action: list[int]) -> None:
    environment, pool = faked()
    environment.reset()
    with pytest.raises(ValueError, match=r"\b0 to 2\b"):
        environment.step(np.array(action))
    assert not pool.sent
    environment.step(no_envs(3))


@hypothesis.given(
    hypothesis.extra.numpy.arrays(np.float32, (3, 2), elements=st.floats(width=32)),
    st.sampled_from([np.nan, np.inf, -np.inf]),
    st.integers(0, 5),
)
def test_numbers_that_are_not_finite_never_reach_the_pool(action: np.ndarray, wrong: float, place: int) -> None:
    environment, pool = faked(action=BOX)
    environment.reset()
    action.flat[place] = wrong
    with pytest.raises(ValueError, match=r"environment [0-2]\b.*finite"):
        environment.send(action, np.arange(3))
    assert not pool.sent and not environment.waiting_for.size


def test_real_actions_are_clipped_and_integers_are_not_rounded() -> None:
    environment, pool = faked(action=BOX)
    environment.reset()
    environment.send(np.full((3, 2), 5.0), np.arange(3))
    assert pool.sent[0][0].dtype == np.float32 and (pool.sent[0][0] == 1).all()
    with pytest.raises(ValueError, match="integers"):
        faked()[0].step(np.zeros(3))


@pytest.mark.parametrize("env_ids", [[0, 0], [3, 1], [-1, 1], [0], [2, 1]])
def test_wrong_indices_are_refused(env_ids: list[int]) -> None:
    environment, pool = faked(6 // 2, 1)
    environment.reset()
    environment.send(no_envs(1), np.array([2]))
    with pytest.raises(ValueError, match=rf"{re.escape(str(env_ids))}|\[2\]"):
        environment.send(no_envs(2), np.array(env_ids))
    assert len(pool.sent) == 1 and environment.waiting_for.tolist() == [2]


def test_recv_that_would_wait_for_ever_is_refused() -> None:
    environment, _ = faked(4, 2)
    environment.reset()
    environment.send(no_envs(1), np.array([0]))
    with pytest.raises(RuntimeError, match=r"\b2 .*\b1 "):
        environment.recv()


def test_a_pool_of_whole_batches_takes_one_send() -> None:
    environment, pool = faked(3, 3)
    environment.reset()
    environment.send(no_envs(1) + 2, np.array([1]))
    environment.send(no_envs(2), np.array([2, 0]))
    timestep, env_ids = environment.recv()
    assert len(pool.sent) == 1 and env_ids.tolist() == [1, 2, 0] and timestep.reward.tolist() == [2, 0, 0]


@pytest.mark.parametrize(("num_envs", "batch_size", "sent"), [(3, 3, 3), (3, 3, 1), (6, 2, 6), (6, 2, 5), (6, 2, 1)])
def test_reset_first_waits_for_steps_under_way(num_envs: int, batch_size: int, sent: int) -> None:
    environment, _ = faked(num_envs, batch_size)
    environment.reset()
    environment.send(no_envs(sent), np.arange(sent))
    for timestep in (environment.reset(), environment.reset()):
        assert (timestep.step_type == types.FIRST).all() and not environment.waiting_for.size
    timestep = environment.step(no_envs(num_envs) + 1)
    assert (timestep.step_type == types.MID).all() and (timestep.observation == [1, 1]).all()
    assert (timestep.info.episode_length == 1).all()


def test_life_loss_is_a_discount_of_0_within_the_episode() -> None:
    environment, pool = faked(life_loss=True)
    unaware, other = faked()
    for e in (environment, unaware):
        e.reset()
    pool.lives[1] = other.lives[1] = 2
    for discounts in ([1, 0, 1], [1, 1, 1]):
        timestep = environment.step(no_envs(3))
        assert timestep.discount.tolist() == discounts and (timestep.step_type == types.MID).all()
        assert not timestep.info.game_over.any()
        assert unaware.step(no_envs(3)).discount.tolist() == [1, 1, 1]


def test_a_new_life_counter_at_a_reset_is_no_loss() -> None:
    environment, pool = faked(life_loss=True)
    environment.reset()
    for _ in range(fake_pool.LENGTH):
        environment.step(no_envs(3))
    pool.lives[:] = 1
    assert environment.step(no_envs(3)).discount.tolist() == [1, 1, 1]
    assert environment.step(no_envs(3)).discount.tolist() == [1, 1, 1]


def test_without_its_own_flag_a_true_end_on_the_limit_reads_as_truncation() -> None:
    environment, _ = faked(name="both", atari=False)
    environment.reset()
    for _ in range(fake_pool.LENGTH):
        timestep = environment.step(no_envs(3))
    assert (timestep.step_type == types.LAST).all() and (timestep.discount == 1).all()


def test_numbers_that_cannot_be_name_field_environment_and_step() -> None:
    environment, pool = faked()
    environment.reset()
    real = pool.recv
    pool.recv = lambda: (lambda o, *rest: (np.where(np.arange(3)[:, None] == 1, np.nan, o), *rest))(*real())  # type: ignore[method-assign]
    with pytest.raises(errors.EnvironmentFault, match=r"observation of envpool:fake, environment 1, at its step 2\b"):
        environment.step(no_envs(3))
    with pytest.raises(errors.EnvironmentFault, match=r"environment 1, at its step 2\b"):
        environment.step(no_envs(3))


def test_a_reset_out_of_place_is_a_fault() -> None:
    environment, pool = faked()
    environment.reset()
    environment.step(no_envs(3))
    pool._ended[2] = True
    with pytest.raises(errors.EnvironmentFault, match=r"environment 2\b.*reset"):
        environment.step(no_envs(3))
    with pytest.raises(errors.EnvironmentFault, match=r"environment 2\b"):
        environment.reset()


def test_an_error_of_the_pool_is_a_fault_with_its_words() -> None:
    environment, pool = faked()
    environment.reset()

    def fail() -> Any:
        raise RuntimeError("the ROM is gone")

    pool.recv = fail  # type: ignore[method-assign]
    with pytest.raises(errors.EnvironmentFault, match="envpool:fake: RuntimeError: the ROM is gone"):
        environment.step(no_envs(3))


@pytest.mark.parametrize("shown", [False, True])
def test_another_thread_sees_a_hanging_recv_and_can_close(shown: bool) -> None:
    inner, pool = faked(12, 12, timeout_s=0.2)
    environment: Any = wrappers._Observed(inner, inner.spec, wrappers._Components(np.array([0]))) if shown else inner
    environment.reset()
    hangs.check_waiting(environment)
    assert environment.waiting_since == 0
    pool.hold.clear()
    raised = []

    def act() -> None:
        try:
            environment.step(no_envs(12))
        except errors.EnvironmentFault as error:
            raised.append(str(error))

    waiting = threading.Thread(target=act, daemon=True)
    waiting.start()
    deadline = time.monotonic() + conftest.SOON_S
    message = ""
    while not message and time.monotonic() < deadline:
        time.sleep(0.02)
        try:
            hangs.check_waiting(environment)
        except errors.EnvironmentFault as error:
            message = str(error)
    assert message == (
        "envpool:fake gave nothing for 0.2 s; it is stepping environments 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"
    )
    start = time.monotonic()
    environment.close()
    assert time.monotonic() - start < conftest.SOON_S and waiting.is_alive()
    pool.hold.set()
    waiting.join(conftest.SOON_S)
    # It came back, but too late.
    assert raised == [message]
    with pytest.raises(errors.EnvironmentFault):
        environment.step(no_envs(12))


def test_close_does_not_wait_for_steps_under_way() -> None:
    environment, pool = faked(4, 2)
    environment.reset()
    environment.send(no_envs(3), np.arange(3))
    pool.hold.clear()
    environment.close()
    environment.close()
    pool.hold.set()
    for thread in threading.enumerate():
        if thread.name == "envpool:fake closing":
            thread.join(conftest.SOON_S)
    assert not pool._ready
    with pytest.raises(errors.EnvironmentFault, match="closed"):
        environment.reset()
