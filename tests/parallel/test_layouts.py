"""Every system in every layout of its row: it learns, goes on bit by bit from what was saved, and seeds are alone."""

import pathlib
from typing import Any

import conftest
import jax
import marks
import numpy as np
import pytest

from jaxrl_dist import systems

CASES = {f"{row.name}-{layout}": (row, layout) for row in systems.SYSTEMS.values() for layout in row.layout_names}
# Workers take turns in virtual time, so that runs are exact, and give one gradient for each unroll.
TURNS = {"layout.schedule": "virtual", "layout.num_workers": 2}
ONE_GRADIENT: dict[str, dict[str, Any]] = {
    "gorila": {"replay.samples_per_insert": 2.0},
    "r2d2": {"replay.samples_per_insert": 3.0},
}
# Where one loop acts for all, the clock says who is served first, so that no run is another's.
CENTRAL = ("ga3c", "seed_impala", "seed_r2d2")


def made(row: systems.System, layout: str, **settings: Any) -> conftest.Small:
    env = "gymnax:CartPole-v1" if "discrete" in row.actions else "gymnax:Pendulum-v1"
    if layout == "async_gradient":
        on_policy = (
            {} if "replay.batch_size" in conftest.SMALL[row.name] else {"learner.epochs": 1, "learner.minibatches": 1}
        )
        settings = {**TURNS, **on_policy, **ONE_GRADIENT.get(row.name, {}), **settings}
    if row.name in CENTRAL and layout == "sebulba":
        settings = {"layout.policy_lag": "1", "layout.inference": "per_actor", **settings}
    return conftest.Small(row.name, env, 1, {"layout": layout, **settings})


@pytest.mark.parametrize("case", marks.some(list(CASES), fast={"crossq-sebulba"}))
def test_a_run_cut_in_two_is_the_run_in_one_piece(case: str, tmp_path: pathlib.Path) -> None:
    row, layout = CASES[case]
    whole = made(row, layout)
    before = whole.params
    whole.run(5).run(4)
    second = made(row, layout).run(5).handed_to(made(row, layout), tmp_path).run(4)
    for run in (whole, second):
        run.layout.close()
    assert all(np.isfinite(leaf).all() for leaf in whole.params)
    assert not all(map(np.array_equal, before, whole.params))
    for x, y in zip(jax.tree.leaves(whole.state.learner), jax.tree.leaves(second.state.learner), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("system", [row.name for row, layout in CASES.values() if layout == "anakin"])
def test_seeds_in_one_program_are_each_seed_alone(system: str) -> None:
    row = systems.SYSTEMS[system]
    together = made(row, "anakin", num_seeds=2).run(4)
    alone = made(row, "anakin", seed=1).run(4)
    networks = [jax.tree.leaves(run.state.learner.params.network) for run in (together, alone)]
    # Another program: the compiler may order sums otherwise.
    for x, y in zip(*networks, strict=True):
        np.testing.assert_allclose(x[1], y[0], rtol=1e-3, atol=1e-4)
    assert any(not np.array_equal(x[0], x[1]) for x in networks[0])


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"num_seeds": 2}], ids=["one", "seeds"])
def test_games_against_past_networks_go_on_bit_by_bit(settings: dict[str, Any], tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pgx")
    settings = {**settings, "env.params.opponent": "self", "agent.pool_size": 2, "agent.pool_share": 0.5}

    def make() -> conftest.Small:
        return conftest.Small("alphazero", "pgx:tic_tac_toe", 1, {"agent.pool_period": 2, **settings})

    whole, second = make().run(5).run(4), make().run(5).handed_to(make(), tmp_path).run(4)
    for x, y in zip(whole.params, second.params, strict=True):
        np.testing.assert_array_equal(x, y)
    kept = jax.tree.leaves(whole.state.learner.params.statistics.networks)
    # Two networks of different ages are kept, and neither is the one that learns.
    assert all(leaf.shape[1] == 2 for leaf in kept)
    assert any(not np.array_equal(leaf[:, 0], leaf[:, 1]) for leaf in kept)
