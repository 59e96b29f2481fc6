"""Returns and advantages against numbers worked by hand, slow loops over whole episodes, rlax, and split sequences."""

import functools

import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_dist import types
from jaxrl_dist.numeric import returns

FIRST, MID, LAST = types.FIRST, types.MID, types.LAST
GAMMA, LAMBDA = 0.97, 0.9

# Jitted once, so that the many sequences of one length below compile once.
gae = jax.jit(returns.gae)
lambda_returns = jax.jit(returns.lambda_returns)
vtrace = jax.jit(returns.vtrace)
n_step_returns = jax.jit(returns.n_step_returns, static_argnames="n")
n_step_transitions = jax.jit(returns.n_step_transitions, static_argnames="n")


def make_sequence(seed, length, end=0.25):
    """Draws rows that begin anywhere in an episode and hold ends of both kinds, and life losses."""
    rng = np.random.default_rng(seed)
    step_type, row = np.zeros(length, np.int8), rng.choice([FIRST, MID, LAST])
    for t in range(length):
        step_type[t] = row
        row = FIRST if row == LAST else (LAST if rng.random() < end else MID)
    reward = np.where(step_type == FIRST, 0, rng.normal(size=length)).astype(np.float32)
    discount = np.ones(length, np.float32)
    discount[(step_type == LAST) & (rng.random(length) < 0.5)] = 0
    discount[(step_type == MID) & (rng.random(length) < 0.1)] = 0
    return reward, discount, step_type, rng.normal(size=length).astype(np.float32)


def episodes(step_type):
    """Splits row numbers into runs that hold one episode each: (first row, last row)."""
    starts = [0] + [int(t) + 1 for t in np.flatnonzero(step_type[:-1] == LAST)]
    return list(zip(starts, [s - 1 for s in starts[1:]] + [len(step_type) - 1], strict=True))


def scatter(sequence, estimate):
    """Runs an estimator of whole single episodes on each one; rows that leave a LAST get their own value."""
    reward, discount, step_type, value = (np.asarray(x, np.float64) for x in sequence)
    out = value[:-1].copy()
    for start, stop in episodes(step_type):
        for t in range(start, stop):
            out[t] = estimate(reward, discount, value, t, stop)
    return out


def slow_n_step(n):
    def estimate(reward, discount, value, t, stop):
        k = min(n, stop - t)
        parts = [reward[t + i] * np.prod(GAMMA * discount[t + 1 : t + i]) for i in range(1, k + 1)]
        return sum(parts) + np.prod(GAMMA * discount[t + 1 : t + k + 1]) * value[t + k]

    return estimate


def slow_lambda_return(reward, discount, value, t, stop):
    """Mixes the n-step returns by their definition (Sutton and Barto, equation 12.3)."""
    returns_of = [slow_n_step(n)(reward, discount, value, t, stop) for n in range(1, stop - t + 1)]
    weights = [(1 - LAMBDA) * LAMBDA**i for i in range(stop - t - 1)] + [LAMBDA ** (stop - t - 1)]
    return float(np.dot(weights, returns_of))


def slow_vtrace(sequence, log_rho, lambda_, clip_rho, clip_c, clip_pg_rho):
    """Writes out the sum of products of equation 1 for every row of every episode."""
    reward, discount, step_type, value = (np.asarray(x, np.float64) for x in sequence)
    rho = np.exp(np.asarray(log_rho, np.float64))
    target, q, advantage = value[:-1].copy(), value[:-1].copy(), np.zeros(len(value) - 1)
    for start, stop in episodes(step_type):
        v = value.copy()
        for s in range(start, stop):
            for t in range(s, stop):
                trace = np.prod(lambda_ * np.minimum(clip_c, rho[s:t]) * GAMMA * discount[s + 1 : t + 1])
                delta = reward[t + 1] + GAMMA * discount[t + 1] * value[t + 1] - value[t]
                v[s] += trace * min(clip_rho, rho[t]) * delta
        for s in range(start, stop):
            target[s] = v[s]
            bootstrap = lambda_ * v[s + 1] + (1 - lambda_) * value[s + 1]
            q[s] = reward[s + 1] + GAMMA * discount[s + 1] * bootstrap
            advantage[s] = min(clip_pg_rho, rho[s]) * (q[s] - value[s])
    return target, advantage, q


def draw_log_rho(seed, length):
    return np.random.default_rng(seed + 1000).normal(scale=0.7, size=length - 1).astype(np.float32)


def close(x, y, tolerance=2e-5):
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)


# Rows 0-2 an episode that is truncated at row 2, row 3 the reset, rows 3-5 an episode that terminates at row 5.
HAND = (
    jnp.array([0.0, 1.0, 2.0, 0.0, 3.0, 4.0]),
    jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]),
    jnp.array([FIRST, MID, LAST, FIRST, MID, LAST], jnp.int8),
    jnp.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0]),
)


def test_taught_is_all_but_the_step_that_leaves_a_last_row():
    assert returns.taught(HAND[2]).tolist() == [True, True, False, True, True]


def test_gae_by_hand():
    # δ1 = 2 + .5·30 − 20 = −3, bootstrapped from the truncated episode's last value; δ0 = 1 + .5·20 − 10 = 1.
    # δ4 = 4 − 50 = −46; δ3 = 3 + .5·50 − 40 = −12. With γλ = .25: A0 = 1 − .75 = .25, A3 = −12 − 11.5 = −23.5.
    advantage, target = gae(*HAND, 0.5, 0.5)
    assert advantage.tolist() == [0.25, -3.0, 0.0, -23.5, -46.0]
    assert target.tolist() == [10.25, 17.0, 30.0, 16.5, 4.0]


def test_n_step_by_hand():
    # From row 0: 1 + .5·2 + .25·30 = 9.5 for n = 2 and for n = 3, since the episode is cut after two steps.
    assert n_step_returns(*HAND, 0.5, n=1).tolist() == [11.0, 17.0, 30.0, 28.0, 4.0]
    assert n_step_returns(*HAND, 0.5, n=2).tolist() == [9.5, 17.0, 30.0, 5.0, 4.0]
    assert n_step_returns(*HAND, 0.5, n=3).tolist() == [9.5, 17.0, 30.0, 5.0, 4.0]
    out = n_step_transitions(*HAND[:3], 0.5, n=3)
    assert out.reward.tolist() == [2.0, 2.0, 0.0]
    assert out.offset.tolist() == [2, 1, 0] and out.offset.dtype == jnp.int32
    assert out.discount.tolist() == [0.25, 0.5, 1.0]


def test_vtrace_by_hand():
    # ρ = (.5, 2, ·, 2, .5), all limits 1, γ = .5, λ = 1. Row 1: v = 20 − 3 = 17. Row 0: v = 10 + .5·1 + .5·.5·(−3).
    # Row 4: v = 50 + .5·(−46) = 27. Row 3: v = 40 − 12 + .5·(−23) = 16.5. q0 = 1 + .5·17 = 9.5, q3 = 3 + .5·27.
    log_rho = jnp.log(jnp.array([0.5, 2.0, 7.0, 2.0, 0.5]))
    out = vtrace(*HAND, log_rho, 0.5)
    close(out.target, [9.75, 17.0, 30.0, 16.5, 27.0], 1e-6)
    close(out.q_estimate, [9.5, 17.0, 30.0, 16.5, 4.0], 1e-6)
    close(out.advantage, [-0.25, -3.0, 0.0, -23.5, -23.0], 1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_estimates_equal_slow_loops_over_episodes(seed):
    sequence = make_sequence(seed, 17)
    expected = scatter(sequence, slow_lambda_return)
    advantage, target = gae(*sequence, GAMMA, LAMBDA)
    close(target, expected)
    close(advantage, expected - sequence[3][:-1])
    close(lambda_returns(*sequence, GAMMA, LAMBDA), expected)
    for n in (1, 2, 5, 16, 40):
        close(n_step_returns(*sequence, GAMMA, n=n), scatter(sequence, slow_n_step(n)))
    log_rho = draw_log_rho(seed, 17)
    for limits in ((1.0, 1.0, 1.0, 1.0), (0.8, 1.3, 0.9, 2.0)):
        for got, want in zip(
            vtrace(*sequence, log_rho, GAMMA, *limits), slow_vtrace(sequence, log_rho, *limits), strict=True
        ):
            close(got, want)


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_n_step_transitions_rebuild_the_n_step_returns(seed, n):
    reward, discount, step_type, value = make_sequence(seed, 17)
    out = n_step_transitions(reward, discount, step_type, GAMMA, n=n)
    rows = np.arange(17 - n)
    stops = {t: stop for start, stop in episodes(step_type) for t in range(start, stop + 1)}
    assert out.offset.tolist() == [min(n, stops[t] - t) for t in rows]
    close(
        out.reward + out.discount * value[rows + np.asarray(out.offset)],
        scatter((reward, discount, step_type, value), slow_n_step(n))[: 17 - n],
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_estimates_equal_rlax(seed):
    """rlax knows no inner truncation, so one episode at a time; inner terminations it does know."""
    for start, stop in [(0, 16), *episodes(make_sequence(seed, 17)[2])]:
        if stop == start:
            continue
        reward, discount, step_type, value = (x[start : stop + 1] for x in make_sequence(seed, 17))
        if (start, stop) == (0, 16):
            step_type = np.full(17, MID, np.int8)
        log_rho = draw_log_rho(seed, 17)[start:stop]
        r_t, discount_t = reward[1:], GAMMA * discount[1:]
        advantage, _ = gae(reward, discount, step_type, value, GAMMA, LAMBDA)
        close(advantage, rlax.truncated_generalized_advantage_estimation(r_t, discount_t, LAMBDA, value))
        sequence = (reward, discount, step_type, value)
        close(lambda_returns(*sequence, GAMMA, LAMBDA), rlax.lambda_returns(r_t, discount_t, value[1:], LAMBDA))
        for n in (1, 2, 4):
            expected = rlax.n_step_bootstrapped_returns(r_t, discount_t, value[1:], min(n, stop - start))
            close(n_step_returns(*sequence, GAMMA, n=n), expected)
        for lambda_, clip_rho, clip_pg_rho in ((1.0, 1.0, 1.0), (0.7, 1.5, 0.9)):
            want = rlax.vtrace_td_error_and_advantage(
                value[:-1], value[1:], r_t, discount_t, np.exp(log_rho), lambda_, clip_rho, clip_pg_rho
            )
            got = vtrace(*sequence, log_rho, GAMMA, lambda_, clip_rho, 1.0, clip_pg_rho)
            close(got.target - value[:-1], want.errors)
            close(got.q_estimate, want.q_estimate)
            close(got.advantage, want.pg_advantage)


@pytest.mark.slow
def test_an_inner_end_equals_the_split_sequences():
    """Sequences of many lengths, end to end and batched along axis 1, equal each one alone."""
    lengths = (2, 5, 1, 9, 3)
    for kind in (0.0, 1.0):
        parts = []
        for i, length in enumerate(lengths):
            rng = np.random.default_rng(i)
            step_type = np.full(length, MID, np.int8)
            step_type[-1] = LAST
            step_type[0] = FIRST if length > 1 else LAST
            discount = np.ones(length, np.float32)
            discount[-1] = kind
            parts.append((*rng.normal(size=(2, length)).astype(np.float32), discount, step_type))
        reward, value, discount, step_type = (np.concatenate(x) for x in zip(*parts, strict=True))
        log_rho = draw_log_rho(0, len(value))
        whole = jax.vmap(functools.partial(returns.gae, gamma=GAMMA, lambda_=LAMBDA), in_axes=1, out_axes=1)
        advantage, _ = jax.tree.map(
            lambda x: x[:, 1], whole(*(np.stack([x, x], 1) for x in (reward, discount, step_type, value)))
        )
        joined = vtrace(reward, discount, step_type, value, log_rho, GAMMA)
        start = 0
        for part in parts:
            stop = start + len(part[0]) - 1
            r, v, d, s = part
            if stop > start:
                close(advantage[start:stop], returns.gae(r, d, s, v, GAMMA, LAMBDA)[0], 1e-6)
                alone = returns.vtrace(r, d, s, v, log_rho[start:stop], GAMMA)
                jax.tree.map(lambda x, y, a=start, b=stop: close(x[a:b], y, 1e-6), joined, alone)
            start = stop + 1


@pytest.mark.parametrize("seed", range(8))
def test_garbage_in_rows_that_teach_nothing_changes_no_bit(seed):
    reward, discount, step_type, value = make_sequence(seed, 17)
    log_rho = draw_log_rho(seed, 17)
    reset = np.concatenate([[True], step_type[:-1] == LAST])
    assert reset[1:].any()
    final = (step_type == LAST) & (discount == 0)
    garbage = np.random.default_rng(seed).normal(scale=1e6, size=17).astype(np.float32)
    poisoned = (
        np.where(reset, garbage, reward),
        np.where(reset, garbage, discount),
        step_type,
        np.where(final, garbage, value),
    )
    bad_log_rho = np.where(step_type[:-1] == LAST, np.float32(np.nan), log_rho)
    clean = (reward, discount, step_type, value)
    mask = np.asarray(returns.taught(jnp.asarray(step_type)))

    def estimates(sequence, log_rho):
        yield from gae(*sequence, GAMMA, LAMBDA)
        yield from vtrace(*sequence, log_rho, GAMMA)
        yield n_step_returns(*sequence, GAMMA, n=3)
        yield from (jnp.append(x, x[:2]) for x in n_step_transitions(*sequence[:3], GAMMA, n=3))

    for x, y in zip(estimates(clean, log_rho), estimates(poisoned, bad_log_rho), strict=True):
        np.testing.assert_array_equal(np.asarray(x)[mask], np.asarray(y)[mask])
    advantage = np.asarray(gae(*poisoned, GAMMA, LAMBDA)[0])
    assert not advantage[~mask].any()
    assert not np.asarray(vtrace(*poisoned, bad_log_rho, GAMMA).advantage)[~mask].any()


@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 1), lambda_=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_properties(seed, gamma, lambda_):
    sequence = make_sequence(seed, 13)
    reward, discount, step_type, value = sequence
    advantage, target = gae(*sequence, gamma, lambda_)
    ones = jnp.zeros(12)
    on_policy = vtrace(*sequence, ones, gamma, lambda_)
    close(on_policy.target, target)
    close(on_policy.advantage, advantage)
    close(gae(*sequence, gamma, 0.0)[1], n_step_returns(*sequence, gamma, n=1))
    close(gae(*sequence, gamma, 1.0)[1], n_step_returns(*sequence, gamma, n=12))
    doubled = gae(2 * reward, discount, step_type, 2 * value, gamma, lambda_)
    close(doubled[0], 2 * advantage)
    never_taken = vtrace(*sequence, jnp.full(12, -jnp.inf), gamma, lambda_)
    close(never_taken.target, value[:-1])
    assert not np.asarray(never_taken.advantage).any()


def test_the_door_refuses_wrong_shapes_types_and_n():
    sequence = tuple(jnp.asarray(x) for x in make_sequence(0, 5))
    with pytest.raises(AssertionError):
        returns.gae(sequence[0][:-1], *sequence[1:], GAMMA, LAMBDA)
    with pytest.raises(AssertionError):
        returns.gae(*(x[:, None] for x in sequence), GAMMA, LAMBDA)
    with pytest.raises(AssertionError):
        returns.gae(sequence[0].astype(jnp.int32), *sequence[1:], GAMMA, LAMBDA)
    with pytest.raises(AssertionError):
        returns.vtrace(*sequence, jnp.zeros(5), GAMMA)
    for n in (0, 5):
        with pytest.raises(ValueError, match=f"n = {n}"):
            returns.n_step_transitions(*sequence[:3], GAMMA, n)
    with pytest.raises(ValueError, match="n = 0"):
        returns.n_step_returns(*sequence, GAMMA, 0)


@pytest.mark.parametrize("length", marks.some([1, 2, 3, 5, 8, 13, 128], fast={"1", "3", "13"}))
def test_both_ways_to_sum_are_the_loop(length):
    """An accelerator sums by halves, a CPU row by row."""
    rng = np.random.default_rng(length)
    x, decay = rng.normal(size=length), rng.random(length) * (rng.random(length) < 0.8)
    wanted, y = np.zeros(length), 0.0
    for t in reversed(range(length)):
        y = wanted[t] = x[t] + decay[t] * y
    for function in (returns._row_by_row, returns._by_halves):
        found = function(jnp.asarray(x, jnp.float32), jnp.asarray(decay, jnp.float32))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 6, 40])
def test_running_returns_are_the_loop(length):
    """Episodes end and begin; what came before the first row goes on, unless an episode begins there."""
    rng = np.random.default_rng(length)
    reward, step_type = rng.normal(size=length), rng.integers(0, 3, length)
    for first in (types.FIRST, types.MID):
        step_type[0] = first
        wanted, y = [], 5.0
        for t in range(length):
            y = 0.0 if step_type[t] == types.FIRST else 0.7 * y + reward[t]
            wanted.append(y)
        found = returns.running_returns(
            jnp.asarray(reward, jnp.float32), jnp.asarray(step_type, jnp.int8), 0.7, jnp.float32(5.0)
        )
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
