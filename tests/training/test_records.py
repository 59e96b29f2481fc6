"""The numbers of records: rates by the wall clock, shares over a second, and returns over seeds or episodes."""

import itertools
import pathlib
import time
import types
from typing import Any

import conftest
import numpy as np
import pytest

from jaxrl_dist.analysis import study_table
from jaxrl_dist.runs import aggregate, metrics
from jaxrl_dist.training import records


@pytest.mark.parametrize("layout", [pytest.param("anakin", marks=pytest.mark.slow), "sebulba"])
def test_rates_are_steps_by_the_wall_clock_also_where_actors_play_on(
    layout: str, train: conftest.Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actors go on while the learner logs; what they played then was in no second of the rate once."""
    monkeypatch.setattr("jaxrl_dist.training.session._CHUNK_S", 0.0)

    def linger(record: dict[str, Any]) -> None:
        time.sleep(0.05)

    run = train(layout=layout, callbacks=[linger], **{"log.interval_steps": 128, "evaluation.interval_steps": 640})
    written = [record for record in metrics.read(run.folder) if record["kind"] == "train"]
    assert len(written) == 10
    for before, after in itertools.pairwise(written):
        steps, wall_s = (after[name] - before[name] for name in ("env_steps", "wall_s"))
        assert after["steps_per_second"] * wall_s == pytest.approx(steps, rel=1e-9)
    summary = run.summary
    assert summary["steps_per_second"] * summary["running_s"] == pytest.approx(summary["env_steps"])
    assert (
        written[-1]["wall_s"] - written[0]["wall_s"] < summary["running_s"] <= summary["wall_s"] - summary["compile_s"]
    )


@pytest.mark.slow
def test_a_record_s_clock_begins_when_a_session_has_compiled(tmp_path: pathlib.Path, train: conftest.Train) -> None:
    settings = {"log.interval_steps": 640, "evaluation.interval_steps": 640}
    before, after = (train(steps=steps, **settings).summary for steps in (640, 1280))
    first, second = (record for record in metrics.read(tmp_path) if record["kind"] == "train")
    first_s, second_s = (640 / record["steps_per_second"] for record in (first, second))
    assert second_s < second["wall_s"] - first["wall_s"] - (after["compile_s"] - before["compile_s"])
    assert first_s + second_s <= after["running_s"] <= after["wall_s"] - after["compile_s"]


def test_rates_are_of_all_seeds_without_steps_that_nobody_made_and_frames_are_counted() -> None:
    parts = conftest.Small("a2c", "toy:walk", 1, {"num_seeds": 3}).parts
    rows = parts.layout.rows_per_iteration
    sums = {"layout/unplayed_steps": [4.0, 6.0]}
    assert records.steps_per_second(parts, 10, sums, 2.0) == (10 * rows * 3 - 10) / 2
    assert records.steps_per_second(parts, 10, {}, 2.0) == 10 * rows * 3 / 2
    spec: Any = parts.environment.spec._replace(frames_per_step=4)
    told = records.counters(
        parts._replace(environment=types.SimpleNamespace(spec=spec)), records.Progress(iteration=2, total=10)
    )
    assert (told["env_steps"], told["frames"]) == (2 * rows, 8 * rows)


def test_each_agent_of_an_environment_inserts_rows() -> None:
    for env, agents in (("toy:walk", 1), ("toy:team", 3)):
        parts = conftest.Small("dqn", env, 1, {"replay.capacity": 960}).parts
        rows = 10 * parts.settings["env.num_envs"] * parts.settings["layout.unroll_length"]
        expected = 5 * parts.settings["replay.batch_size"] / (agents * rows)
        assert records._replayed(parts, 5.0, 10) == {"samples_per_insert": pytest.approx(expected)}


def _pending(seconds: float, value: float) -> records.Pending:
    return records.Pending({"layout/x": [value]}, seconds, 1)


def test_recent_sums_cover_a_second_where_there_is_one() -> None:
    recent, covered = records.Recent(), []
    for seconds, value in ((0.4, 1.0), (0.4, 2.0), (0.4, 4.0), (0.4, 8.0), (3.0, 16.0), (0.2, 32.0)):
        sums = recent.add(_pending(seconds, value))
        covered.append((round(recent.seconds, 6), float(sums["layout/x"][0])))
    assert covered == [(0.4, 1.0), (0.8, 3.0), (1.2, 7.0), (1.2, 14.0), (3.0, 16.0), (3.2, 48.0)]


def test_shares_are_of_the_last_second_and_counts_of_the_record(small: Any) -> None:
    layout = small("ppo", "toy:walk", 1, {"layout": "sebulba"}).layout

    def sums(learning_s: float, dropped: float) -> dict[str, np.ndarray]:
        names = ("queue_depth", "iterations", "environment_s", "inference_s", "transfer_s", "bytes_to_actors")
        one = {f"layout/{name}": np.ones(1) for name in (*names, "learner_wait_s", "bytes_to_learner")}
        own = {"layout/learning_s": np.full(1, learning_s), "layout/dropped_unrolls": np.full(1, dropped)}
        return one | own | {"layout/lag_counts": np.eye(1, 4, 2)}

    report = layout.report(sums(0.0, 5.0), sums(3.0, 7.0), 2.0)
    fleet = layout.report(sums(0.0, 5.0), sums(3.0, 7.0) | {"layout/bytes_from_players": np.full(1, 8.0)}, 2.0)
    layout.close()
    assert fleet == report | {"bytes_per_second_from_players": 4.0}
    assert (report["share_learning"], report["bottleneck"]) == (0.75, "learning")
    assert (report["dropped_unrolls"], report["policy_lag_p50"]) == (5, 2)
    assert report["bytes_per_second_to_learner"] == 0.5


def test_one_seed_is_its_mean_with_the_interval_of_the_mean_over_episodes() -> None:
    returns = np.array([[500.0] * 29 + [0.0] * 3])
    told = records.summarise_returns(returns)
    assert told["eval_return"] == told["eval_return_iqm"] == pytest.approx(453.125)
    low, high = told["eval_return_ci95"]
    assert low < 453.125 < high <= 500.0
    assert told["eval_interval_over"] == "episodes"
    assert (low, high) == aggregate.interval(returns[0], statistic=aggregate.mean)


@pytest.mark.parametrize(("seeds", "is_few"), [(0, False), (1, True), (4, True), (5, False)])
def test_a_table_of_few_seeds_says_so(seeds: int, is_few: bool) -> None:
    names = ("eval_return_iqm", "eval_return_ci95", "eval_return_mean", "eval_return_min", "eval_return_max")
    empty = dict.fromkeys(
        (*names, "final_window_mean", "env_steps", "minutes", "better_than_first", "better_than_first_ci95")
    )
    item = empty | {"setting": "a", "seeds": seeds, "means": {}, "state": "finished"}
    table = study_table.table([item])
    assert any(str(aggregate.FEW) in line for line in table.note[2:]) == is_few


def test_seeds_are_their_interquartile_mean() -> None:
    returns = np.array([[0.0, 2.0], [10.0, 10.0], [20.0, 22.0], [100.0, 0.0]])
    told = records.summarise_returns(returns)
    assert told["eval_return_iqm"] == pytest.approx(np.mean([10.0, 21.0]))
    assert (told["eval_return"], told["eval_interval_over"]) == (returns.mean(), "seeds")
    assert told["eval_return_ci95"] == list(aggregate.interval(returns.mean(1)))
