"""Tests of the parameter server: what it sums, drops and undoes, and in which order gradients come."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist import types
from jaxrl_dist.learning import learner
from jaxrl_dist.parallel import async_gradient
from jaxrl_dist.parallel.async_gradient import schedules, server


def gradient(value: float, loss: float = 1.0, valid: float = 2.0) -> types.Gradient:
    return types.Gradient(
        jnp.full(3, value), jnp.float32(loss * valid), jnp.float32(valid), {"m": jnp.float32(4.0)}, {}, ()
    )


def parts(**settings: Any) -> Any:
    """Returns the step of a server, and the first states of learner and server."""
    agent: Any = type("Agent", (), {"target": staticmethod(lambda network: ()), "parts": (), "pace": None})
    rule = learner.Config(optimizer="sgd", learning_rate=1.0, anneal=False, max_grad_norm=0.0)
    built = learner.make(rule, agent, types.LOCAL)
    step = functools.partial(server.step, built, async_gradient.Config(**settings))
    return step, built.init(types.Params(jnp.zeros(3), ())), server.init(gradient(0.0))


def judge(**settings: Any) -> Any:
    step, state, served = parts(**settings)
    step = jax.jit(step)

    def feed(one: types.Gradient, age: int = 0) -> server.Verdict:
        nonlocal state, served
        state, served, verdict, feed.metrics = step(state, served, one, state.updates - age, jnp.float32(0))  # type: ignore[attr-defined]
        feed.params, feed.updates = np.asarray(state.params.network), int(state.updates)  # type: ignore[attr-defined]
        return server.Verdict(int(verdict.age), *(bool(flag) for flag in verdict[1:]))

    return feed


def test_gradients_are_summed_until_there_are_enough() -> None:
    feed = judge(gradients_per_apply=3)
    assert feed(gradient(1.0, valid=1.0)).taken and feed.updates == 0
    assert not feed(gradient(2.0, valid=3.0)).applied
    verdict = feed(gradient(3.0, valid=2.0))
    assert verdict.taken and verdict.applied and feed.updates == 1
    # The mean over all taught rows, not of the gradients' own means.
    np.testing.assert_allclose(feed.params, -np.full(3, 6.0 / 6.0))
    np.testing.assert_allclose(feed.metrics["m"], 12.0 / 6.0)
    assert not feed(gradient(1.0)).applied


def test_a_gradient_of_no_rows_is_nothing() -> None:
    feed = judge()
    assert not any(feed(gradient(5.0, valid=0.0)))
    assert feed.updates == 0 and not feed.params.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_dropped(bad: float) -> None:
    feed = judge(gradients_per_apply=2)
    feed(gradient(1.0))
    assert feed(gradient(bad)) == server.Verdict(0, False, False, True, False, False, False)
    assert feed(gradient(1.0, loss=bad)).broken
    assert feed(gradient(3.0)).applied
    np.testing.assert_allclose(feed.params, -np.full(3, 1.0))


def test_an_update_that_is_not_finite_is_undone_bit_by_bit() -> None:
    feed = judge()
    feed(gradient(1.0))
    before = feed.params
    verdict = feed(gradient(3e38, valid=0.5))
    assert verdict.reverted and not verdict.applied and feed.updates == 1
    np.testing.assert_array_equal(feed.params, before)
    assert feed(gradient(1.0)).applied


def test_losses_far_above_their_mean_are_dropped() -> None:
    feed, random = judge(outlier_deviations=4.0), np.random.default_rng(0)
    # Nothing is an outlier before there is something to compare with.
    assert feed(gradient(0.0, loss=1000.0)).taken
    feed = judge(outlier_deviations=4.0)
    for loss in random.normal(5.0, 1.0, 300):
        feed(gradient(0.0, loss=loss))
    assert feed(gradient(1.0, loss=20.0)).outlier and not feed.params.any()
    assert feed(gradient(1.0, loss=6.0)).applied


@pytest.mark.parametrize("huge", [500.0, 1e20, 3e38])
def test_a_huge_loss_hides_no_other(huge: float) -> None:
    feed, random = judge(outlier_deviations=5.0), np.random.default_rng(0)
    for loss in random.normal(5.0, 1.0, 300):
        feed(gradient(0.0, loss=loss, valid=1.0))
    for loss in (huge, 100.0, *random.normal(5.0, 1.0, 50), 100.0):
        verdict = feed(gradient(1e-3, loss=loss, valid=1.0))
        assert verdict.outlier == (loss > 50) and verdict.taken != verdict.outlier


def test_a_huge_first_loss_is_forgotten() -> None:
    step, state, served = parts(outlier_deviations=5.0)
    losses = (3e38, *np.random.default_rng(0).normal(5.0, 1.0, 12_000), 100.0)

    def arrive(carried: Any, loss: jax.Array) -> Any:
        state, served, verdict, _ = step(
            *carried, gradient(0.0)._replace(loss=loss), carried[0].updates, jnp.float32(0)
        )
        return (state, served), verdict.outlier

    _, outliers = jax.jit(functools.partial(jax.lax.scan, arrive))((state, served), jnp.asarray(losses, jnp.float32))
    assert outliers[-1] and not outliers[-1000:-1].any()


@pytest.mark.parametrize("before", [0.0, 1e-6])
def test_losses_that_grow_for_good_are_learned_from(before: float) -> None:
    """As where the first reward comes after long."""
    feed, random = judge(outlier_deviations=5.0), np.random.default_rng(0)
    for loss in before * random.uniform(0.5, 1.5, 300):
        feed(gradient(0.0, loss=loss))
    verdicts = [feed(gradient(0.0, loss=loss)) for loss in random.normal(5.0, 1.0, 400)]
    assert sum(verdict.taken for verdict in verdicts[-100:]) > 95
    assert before or verdicts[0].taken


def test_losses_of_the_server_have_their_mean_and_deviation() -> None:
    losses, random = server.init(gradient(0.0)).losses, np.random.default_rng(1)
    values = random.normal(3.0, 2.0, 2000)
    for value in values:
        losses = server._count(losses, jnp.float32(value))
    deviation = np.sqrt(losses.square - losses.mean**2)
    # Of the last hundred or so.
    assert abs(float(losses.mean) - 3.0) < 0.6 and abs(float(deviation) - 2.0) < 0.6


def test_a_virtual_clock_orders_by_time() -> None:
    clock = schedules.VirtualClock([1.0, 2.5], 0.0, 0)
    order = []
    for number in (0, 1):
        clock.answered(number, 0)
    for _ in range(7):
        (number,) = clock.next([0, 1])
        assert clock.next([0, 1]) == [number]
        order.append(number)
        clock.took(number)
        clock.answered(number, len(order))
    # Finished at 1, 2, 2.5, 3, 4, 5, 5: the lower number first.
    assert order == [0, 0, 1, 0, 0, 0, 1]


def test_turns_pass_over_who_waits() -> None:
    turns = schedules.RoundRobin(3)
    for number in (0, 1, 2, 0):
        # Whose turn it is stays so until it has been taken, as where a stop comes first.
        assert [turns.next([0, 1, 2]) for _ in range(2)] == [[number], [number]]
        turns.took(number)
    assert turns.next([0, 2]) == [2]
