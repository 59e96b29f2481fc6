"""The learning step's schedule: when it begins, and how many updates are due, by counting."""

import fractions
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import rings
from oracles import learner as oracle

from jaxrl_dist import replay as replays
from jaxrl_dist import types
from jaxrl_dist.learning import learner, step

RATIOS = [(1, 1), (3, 4), (5, 2), (1, 7)]


@pytest.mark.parametrize("ratio", RATIOS)
def test_updates_are_those_that_samples_per_insert_allows(ratio: tuple[int, int]) -> None:
    """Unrolls of 4 rows, of which 10 are needed: the third makes them 12."""
    replay: Any = replays.Replay(10, ratio, *[None] * 5, keeps_rows=True)
    schedule = step.schedule(replay, 4)
    wanted = oracle.updates(30, 4, 10, fractions.Fraction(*ratio))
    assert [schedule.due(iteration) for iteration in range(30)] == wanted
    assert wanted[:2] == [0, 0] and sum(wanted) == 28 * ratio[0] // ratio[1]


@pytest.mark.parametrize("ratio", RATIOS)
def test_the_program_makes_the_updates_that_are_due(ratio: tuple[int, int]) -> None:
    """A replay that holds a number and a learner that counts; credit goes on from one iteration to the next."""

    def update(state: Any, sample: types.Sample, key: Any, progress: Any) -> Any:
        return state._replace(updates=state.updates + 1), jnp.zeros(1), {"x": sample.weights.sum()}

    rows = types.Unroll(types.Step((), (), (), jnp.zeros((1, 1), jnp.int32)), ())
    replay = replays.Replay(
        min_rows=10,
        updates=ratio,
        init=lambda *_: jnp.int32(0),
        add=lambda state, unroll, columns: state,
        add_again=lambda state, unroll, columns: state,
        sample=lambda state, key, progress: types.Sample(rows, (), jnp.ones(2)),
        update=lambda state, indices, errors: state + 1,
        keeps_rows=True,
    )
    fake: Any = learner.Learner(*[None] * 5, update)
    learn = jax.jit(step.make(fake, replay))
    state, held, credit = learner.LearnerState((), (), (), jnp.int32(0)), jnp.int32(0), jnp.int32(0)
    schedule, wanted = step.schedule(replay, 4), oracle.updates(12, 4, 10, fractions.Fraction(*ratio))
    for iteration in range(12):
        assert int(credit) == schedule.credit(iteration)
        ready, key = jnp.asarray(iteration >= schedule.first_ready), jax.random.key(iteration)
        state, held, credit, due, total = learn(state, held, [], credit, ready, key, jnp.float32(0))
        assert int(due) == wanted[iteration] and float(total["x"]) == 2 * wanted[iteration]
    assert int(state.updates) == int(held) == sum(wanted)


def test_windows_that_are_chosen_ahead_are_those_of_one_draw_after_the_other() -> None:
    """Eight rows come in an iteration, and three windows are taught: two updates or three."""
    ring = rings.make(48, 2, 4, batch=3)

    def update(state: Any, sample: types.Sample, key: Any, progress: Any) -> Any:
        rows = sample.sequences.steps
        seen = rows.timestep.reward[0] + 100.0 * rows.action[0]
        return state._replace(params=state.params.at[state.updates].set(seen)), jnp.zeros(3), {"x": seen.sum()}

    def taught(replay: Any) -> tuple[np.ndarray, list[int]]:
        fake: Any = learner.Learner(*[None] * 5, update)
        learn = jax.jit(step.make(fake, replay))
        state = learner.LearnerState(jnp.zeros((20, 3)), (), (), jnp.int32(0))
        held, credit, due = rings.filled(replay, 3, 4, 2), jnp.int32(0), []
        for iteration in range(4):
            new = (rings.unroll(12 + 4 * iteration, 4, 2), None)
            key = jax.random.key(iteration)
            state, held, credit, made, _ = learn(state, held, [new], credit, jnp.bool_(True), key, jnp.float32(0))
            due.append(int(made))
        return np.asarray(state.params), due

    assert ring.updates == (8, 3) and ring.choose is not None
    found, due = taught(ring)
    wanted, other_due = taught(ring._replace(choose=None))
    assert due == other_due == [2, 3, 3, 2]
    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(found[:10], axis=0)) == 10 and found[:10].min() >= 0


@pytest.mark.parametrize("keeps_rows", [True, False])
def test_the_age_of_a_replay_is_in_updates_since_its_rows_were_acted(keeps_rows: bool) -> None:
    def update(state: Any, sample: types.Sample, key: Any, progress: Any) -> Any:
        return state, jnp.zeros(1), {}

    replay: Any = replays.Replay(*[None] * 6, update=lambda state, indices, errors: state, keeps_rows=keeps_rows)
    fake: Any = learner.Learner(*[None] * 5, update)
    rows = types.Unroll(types.Step((), (), (), jnp.array([[3, 4], [4, 9]])), ())
    state = learner.LearnerState((), (), (), jnp.int32(11))
    sample = types.Sample(rows, (), jnp.ones(2))
    metrics = step.parts(fake, replay).teach(state, (), sample, jax.random.key(0), jnp.float32(0))[2]
    assert jax.tree.map(float, metrics) == ({"replay_age": 6.0} if keeps_rows else {})
