"""The mixed replay: what it draws beside the newest unroll, its share of a batch, and an agent that learns from it."""

import re
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import rings

from jaxrl_dist import errors, replay, types
from jaxrl_dist.replay import mixed

LENGTH, COLUMNS = 4, 2


def made(fraction: float = 0.5, capacity: int = 32) -> replay.Replay:
    config = replay.MixedConfig(capacity=capacity, fraction=fraction)
    return mixed.make(config, num_columns=COLUMNS, num_devices=1, unroll_length=LENGTH, axis=types.LOCAL)


def unroll(number: int) -> types.Unroll:
    """An unroll that says in its acting state which it is."""
    return rings.unroll(number * LENGTH, LENGTH, COLUMNS)._replace(carry=jnp.full((COLUMNS, 1), number))


def after(kept: replay.Replay, unrolls: int) -> Any:
    """The state when so many unrolls were added and learned from, and one more was added."""
    state = kept.init(rings.step_spec(), jax.ShapeDtypeStruct((COLUMNS, 1), jnp.int32))
    for number in range(unrolls):
        state = kept.update(kept.add(state, unroll(number), None if number % 2 else jnp.arange(COLUMNS)), (), None)
    return kept.add(state, unroll(unrolls), None)


def test_where_there_is_nothing_older_rows_teach_nothing() -> None:
    kept = made()
    sequences = kept.sample(after(kept, 0), jax.random.key(0), rings.NOW).sequences
    np.testing.assert_array_equal(sequences.steps.timestep.reward[:, :COLUMNS], unroll(0).steps.timestep.reward)
    assert (np.asarray(sequences.steps.timestep.step_type[:, COLUMNS:]) == types.LAST).all()


def test_older_unrolls_come_whole_with_the_state_they_began_in_and_never_the_newest() -> None:
    kept, seen = made(fraction=0.75), set()
    state = after(kept, 6)
    assert kept.updates == (1, 1) and kept.min_rows == 0
    for seed in range(40):
        sample = kept.sample(state, jax.random.key(seed), rings.NOW)
        reward, column = (
            np.asarray(x) for x in (sample.sequences.steps.timestep.reward, sample.sequences.steps.action)
        )
        assert reward.shape == (LENGTH + 1, 4 * COLUMNS) and (np.asarray(sample.weights) == 1).all()
        np.testing.assert_array_equal(sample.fresh.steps.timestep.reward, unroll(6).steps.timestep.reward)
        number = np.asarray(sample.sequences.carry)[:, 0]
        # Rows count on from the unroll's first one, closing row included.
        np.testing.assert_array_equal(reward, number * LENGTH + np.arange(LENGTH + 1)[:, None])
        assert (column == column[0]).all() and (number[:COLUMNS] == 6).all()
        seen |= set(zip(number[COLUMNS:].tolist(), column[0, COLUMNS:].tolist(), strict=True))
    # 32 rows are four unrolls of each column: 3 to 6, of which the last has not been closed.
    assert seen == {(number, column) for number in (3, 4, 5) for column in (0, 1)}


def test_only_the_ring_is_left_between_iterations_and_an_update_can_be_made_again() -> None:
    kept = made()
    state = after(kept, 2)
    left = kept.update(state, (), None)
    again = kept.add_again(left, unroll(2), jnp.arange(COLUMNS))
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)
    assert jax.tree.structure(left) == jax.tree.structure(kept.update(after(kept, 0), (), None))


def test_two_unrolls_at_once_are_both_new() -> None:
    kept = made()
    state = kept.add(after(kept, 1), unroll(2), jnp.arange(COLUMNS))
    samples = [kept.sample(state, jax.random.key(seed), rings.NOW).sequences.carry[:, 0] for seed in range(20)]
    np.testing.assert_array_equal(samples[0][: 2 * COLUMNS], [1, 1, 2, 2])
    # Unroll 1 is closed by now, and yet no older one.
    assert (np.asarray(samples)[:, 2 * COLUMNS :] == 0).all()


def test_of_columns_some_may_have_two_new_unrolls() -> None:
    kept = made(fraction=0.75)
    state = after(kept, 6)
    again = jax.tree.map(lambda x: x[:, :1], unroll(7).steps)
    state = kept.add(state, types.Unroll(again, jnp.full((1, 1), 7)), jnp.zeros(1, jnp.int32))
    seen = set()
    for seed in range(40):
        old = jax.tree.map(np.asarray, kept.sample(state, jax.random.key(seed), rings.NOW).sequences)
        number, column = old.carry[COLUMNS + 1 :, 0], old.steps.action[0, COLUMNS + 1 :]
        np.testing.assert_array_equal(
            old.steps.timestep.reward[:, COLUMNS + 1 :], number * LENGTH + np.arange(LENGTH + 1)[:, None]
        )
        seen |= set(zip(number.tolist(), column.tolist(), strict=True))
    # Of column 0 the ring holds 4 to 7, of column 1 still 3 to 6.
    assert seen == {(4, 0), (5, 0), (3, 1), (4, 1), (5, 1)}


def test_one_column_with_older_unrolls_is_enough_to_draw_them() -> None:
    kept = made()
    state = kept.init(rings.step_spec(), jax.ShapeDtypeStruct((COLUMNS, 1), jnp.int32))
    for number in range(3):
        steps = jax.tree.map(lambda x: x[:, :1], unroll(number).steps)
        one = types.Unroll(steps, jnp.full((1, 1), number))
        state = kept.update(kept.add(state, one, jnp.zeros(1, jnp.int32)), (), None)
    state = kept.add(state, unroll(3), jnp.arange(COLUMNS))
    old = kept.sample(state, jax.random.key(0), rings.NOW).sequences.steps
    assert (old.action[0, COLUMNS:] == 0).all()
    assert (old.timestep.step_type[:, COLUMNS:] != types.LAST).any()


@pytest.mark.parametrize(("fraction", "nearest"), [(0.4, "0.333333"), (0.51, "0.5 ")])
def test_a_share_that_makes_no_whole_unrolls_is_refused(fraction: float, nearest: str) -> None:
    with conftest.refused(f"--replay.fraction={fraction}", nearest):
        made(fraction)


@pytest.mark.parametrize(("fraction", "columns"), [(0.4, 8), (0.3, 32), (0.4, 2), (0.936, 1), (0.5001, 1)])
def test_the_share_that_is_advised_is_taken(fraction: float, columns: int) -> None:
    with pytest.raises(errors.UsageError) as refused:
        mixed._replayed(fraction, columns)
    advised, unrolls = re.search(r"nearest valid: (\S+) \((\d+) unrolls\)", str(refused.value)).groups()
    assert mixed._replayed(float(advised), columns) == int(unrolls)
    others = [n / (n + columns) for n in range(1, 15 * columns + 1)]
    assert abs(float(advised) - fraction) <= min(abs(share - fraction) for share in others) + 1e-6


def test_a_quorum_would_leave_gaps_in_the_ring(train: conftest.Train) -> None:
    settings = {"layout": "sebulba", "layout.num_actors": 2, "layout.quorum": 1, "layout.policy_lag": "1"}
    with conftest.refused("--layout.quorum=1"):
        train("impala_replay", **settings)


def test_the_first_update_is_that_of_impala_and_the_second_is_not(small: Any) -> None:
    """Nothing older is there: the same keys play the same unroll, and what stands in for old ones teaches nothing."""
    settings = {"layout": "anakin", "agent.normalise_observations": True}
    runs = [small(system, "gymnax:CartPole-v1", 1, settings).run(1) for system in ("impala", "impala_replay")]
    for a, b in zip(*(run.params for run in runs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    second = [run.run(1).params for run in runs]
    assert not all(np.allclose(a, b, rtol=1e-4) for a, b in zip(*second, strict=True))
    # Statistics count new rows only.
    counts = [np.asarray(run.state.learner.params.statistics.observation.rows) for run in runs]
    np.testing.assert_array_equal(counts[0], counts[1])


@pytest.mark.slow
def test_it_trains_from_a_free_lag(train: conftest.Train) -> None:
    run = train("impala_replay", layout="sebulba", **{"layout.policy_lag": "free", "layout.ready_envs": 2})
    assert run.summary["learner_steps"] == 10 and np.isfinite(run.summary["eval_return_mean"])
