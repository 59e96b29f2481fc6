"""Populations: who goes on from whom, with which values, what is recorded, and that a run resumes to the bit."""

import pathlib
import shutil
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_dist
from jaxrl_dist import types
from jaxrl_dist.learning import learner, members
from jaxrl_dist.runs import checkpoint, metrics
from jaxrl_dist.systems import training_flags
from jaxrl_dist.training import policy, population

BOUNDS = {"agent.entropy_cost": (0.0, 0.5), "learner.learning_rate": (1e-4, 1e-1)}
RATES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


def _state(size: int, rates: Any) -> learner.LearnerState:
    number = jnp.arange(size, dtype=jnp.float32)
    values = {"agent.entropy_cost": jnp.full(size, 0.25), "learner.learning_rate": jnp.asarray(rates, jnp.float32)}
    params = types.Params({"w": jnp.stack([number] * 3, 1)}, members.Statistics(values, number + 100))
    return learner.LearnerState(params, {"w": number + 200}, number + 300, jnp.zeros(size, jnp.int32))


def test_the_worst_fifth_goes_on_from_the_best_fifth_of_its_own_population() -> None:
    """Ten members of each of two populations, whose order is told by hand."""
    returns = np.stack([np.arange(10.0), -np.arange(10.0)], 1).reshape(-1)  # of member c of population n: [c, n]
    keys, exploit = jax.random.split(jax.random.key(0), 2), jax.jit(lambda *x: members.exploit(*x, BOUNDS))
    found = set()
    for i in range(20):
        folded = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
        state, source = exploit(_state(20, [1e-2] * 20), returns, folded)
        first, second = np.asarray(source).reshape(10, 2).T
        assert (first[2:] == 2 * np.arange(2, 10)).all() and (second[:8] == 2 * np.arange(8) + 1).all()
        assert set(first[:2]) <= {16, 18} and set(second[8:]) <= {1, 3}
        found |= {*first[:2].tolist(), *second[8:].tolist()}
        for leaf, offset in ((state.params.network["w"][:, 2], 0), (state.params.statistics.own, 100)):
            np.testing.assert_array_equal(leaf, np.asarray(source) + offset)
        np.testing.assert_array_equal(state.target_network["w"], np.asarray(source) + 200)
        np.testing.assert_array_equal(state.opt_state, np.asarray(source) + 300)
    assert found == {16, 18, 1, 3}


def test_values_of_replaced_members_alone_are_multiplied_or_drawn_within_their_bounds() -> None:
    size, rates = 1000, np.geomspace(1e-4, 8e-2, 1000)  # 1.2 times the highest is within the bounds
    state, source = members.exploit(
        _state(size, rates), jnp.arange(size, dtype=jnp.float32), jax.random.split(jax.random.key(3), 1), BOUNDS
    )
    values, source = state.params.statistics.values, np.asarray(source)
    replaced = source != np.arange(size)
    assert replaced.sum() == 200 and replaced[:200].all()
    for name, before in (("learner.learning_rate", rates), ("agent.entropy_cost", np.full(size, 0.25))):
        (low, high), after = BOUNDS[name], np.asarray(values[name], np.float64)
        np.testing.assert_allclose(after[~replaced], before[~replaced], rtol=1e-6)
        after, before = after[replaced], before[source[replaced]]
        ways = [np.isclose(after, np.clip(factor * before, low, high), rtol=1e-5) for factor in (0.8, 1.2)]
        assert all(50 < way.sum() < 100 for way in ways)
        drawn = after[~(ways[0] | ways[1])]
        assert 30 < len(drawn) < 70 and low <= drawn.min() and drawn.max() <= high
        # Uniform between the bounds, or between their logarithms: mean and deviation.
        scaled = np.log(drawn / low) / np.log(high / low) if low else drawn / high
        assert abs(scaled.mean() - 0.5) < 0.13 and abs(scaled.std() - 12**-0.5) < 0.05
    # Each setting draws by itself.
    costs, rates = (np.asarray(values[name][:200]) for name in sorted(values))
    assert abs(np.corrcoef(costs == np.float32(0.2), rates > 5e-2)[0, 1]) < 0.3
    two = _state(2, [1e-2] * 2), jnp.array([2.0, 1.0]), jax.random.split(jax.random.key(0), 1)
    assert members.exploit(*two, BOUNDS)[1].tolist() == [0, 0]


@pytest.mark.parametrize(("at", "factor"), [(1e-1, 0.8), (1e-4, 1.2)])
def test_a_value_at_a_bound_moves_into_it(at: float, factor: float) -> None:
    returns, keys = jnp.arange(1000, dtype=jnp.float32), jax.random.split(jax.random.key(3), 1)
    state, source = members.exploit(_state(1000, [at] * 1000), returns, keys, BOUNDS)
    after = np.asarray(state.params.statistics.values["learner.learning_rate"])[np.asarray(source) != np.arange(1000)]
    moved = np.isclose(after, factor * at)
    assert len(after) == 200 and 130 < moved.sum() < 170 and (after > 1e-4).all() and (after < 1e-1).all()
    # Bounds that no factor leads to the inside of are the next values themselves.
    narrow = BOUNDS | {"learner.learning_rate": (0.9 * at, 1.1 * at)}
    state, _ = members.exploit(_state(1000, [at] * 1000), returns, keys, narrow)
    after = np.asarray(state.params.statistics.values["learner.learning_rate"])[:200] / at
    ends = [np.isclose(after, end) for end in (0.9, 1.1)]
    assert all(50 < end.sum() < 100 for end in ends) and ((after > 0.89) & (after < 1.11)).all()


def test_of_a_discount_the_distance_from_one_is_multiplied_or_drawn() -> None:
    discounts, bounds = np.linspace(0.95, 0.98, 1000), {"agent.discount": (0.9, 0.999)}
    params = types.Params({}, members.Statistics({"agent.discount": jnp.asarray(discounts, jnp.float32)}, ()))
    state = learner.LearnerState(params, (), (), jnp.zeros(1000, jnp.int32))
    keys = jax.random.split(jax.random.key(3), 1)
    state, source = members.exploit(state, jnp.arange(1000, dtype=jnp.float32), keys, bounds)
    after = 1 - np.asarray(state.params.statistics.values["agent.discount"], np.float64)[:200]
    before = 1 - discounts[np.asarray(source)[:200]]
    ways = [np.isclose(after, factor * before, rtol=1e-4) for factor in (0.8, 1.2)]
    assert all(50 < way.sum() < 100 for way in ways)
    drawn = np.log(after[~(ways[0] | ways[1])] / 1e-3) / np.log(100)
    assert 30 < len(drawn) < 70 and abs(drawn.mean() - 0.5) < 0.13 and abs(drawn.std() - 12**-0.5) < 0.05
    # At 1 itself, where there is no distance to multiply, it is drawn, and bounds hold to the bit.
    one = state._replace(
        params=params._replace(statistics=params.statistics._replace(values={"agent.discount": jnp.ones(1000)}))
    )
    after, _ = members.exploit(one, jnp.arange(1000, dtype=jnp.float32), keys, {"agent.discount": (0.9, 1.0)})
    after = np.asarray(after.params.statistics.values["agent.discount"])
    assert (after[200:] == 1).all() and np.float32(0.9) <= after.min() and after[:200].max() < 1
    assert abs(after[:200].mean() - 0.95) < 0.01
    # Members that all have one value of it keep it.
    one = _state(1000, [0.75] * 1000)
    after, _ = members.exploit(one, jnp.arange(1000.0), keys, BOUNDS | {"learner.learning_rate": (0.75, 0.75)})
    assert (np.asarray(after.params.statistics.values["learner.learning_rate"]) == 0.75).all()


def test_ranks_tell_returns_apart_that_floats_do_not() -> None:
    # In f32 the first three means are one number; of equal ones the last is the best; no number is the worst.
    returns = np.array([[-12.17012072], [-12.17012024], [-12.17012119], [5.0], [np.nan], [5.0]])
    assert population.ranks(returns).tolist() == [2, 3, 1, 4, 0, 5]
    assert population.ranks(returns).dtype == np.float32
    # Means, not sums or last episodes.
    assert population.ranks(np.array([[9.0, 1.0], [0.0, 2.0], [3.0, 3.0]])).tolist() == [2, 0, 1]


def test_a_population_without_a_sweep_is_refused_and_so_is_a_layout_of_one_seed() -> None:
    for flags in ([], ["--sweep=learner.learning_rate=1e-3"]):
        with conftest.refused("--population=true", "--sweep"):
            training_flags.parse(["--population=true", *flags])
    with conftest.refused("--sweep=agent.discount=0.9,0.8", "--layout=anakin"):
        training_flags.parse(["--population=true", "--sweep=agent.discount=0.9,0.8", "--layout=sebulba"])


NAMED: dict[str, Any] = {
    "system": "a2c",
    "steps": 128 * 12,
    "num_seeds": 2,
    "sweep": f"learner.learning_rate={','.join(map(str, RATES))}",
    "population": True,
    "evaluation.episodes": 2,
    "evaluation.interval_steps": 128 * 4,
    "log.interval_steps": 128 * 2,
    "checkpoint.keep": 100,
    "checkpoint.interval_s": 0.0,
}


def _evaluations(folder: pathlib.Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if name != "wall_s"}
        for record in metrics.read(folder)
        if record["kind"] == "eval"
    ]


def test_what_a_population_goes_on_with_is_saved_so_that_it_can_be_run_again(train: conftest.Train) -> None:
    run = train(**{**NAMED, "num_seeds": 1, "checkpoint.interval_s": 1e9})
    steps = {int(path.name.split("_")[1]) for path in (run.folder / "checkpoints").glob("step_*")}
    assert steps == {128 * 4, 128 * 8, 128 * 12}


@pytest.mark.slow
def test_a_population_is_recorded_and_resumes_to_the_bit(tmp_path: pathlib.Path, train: conftest.Train) -> None:
    """Cut by a kill after an evaluation and between two, by a stop, and by a fault of what gets the record."""
    whole = train(folder="whole", **NAMED)
    first, *middle, last = _evaluations(whole.folder)
    assert [record["env_steps"] // 128 for record in (first, *middle, last)] == [0, 4, 8, 12]
    name = "member_learner.learning_rate"
    np.testing.assert_allclose(first[name], np.repeat(RATES, 2), rtol=1e-6)
    assert "member_goes_on_from" not in first and "member_goes_on_from" not in last
    changed: set[bool] = set()
    for before, after in zip(middle, [*middle[1:], last], strict=True):
        source, scores = np.array(before["member_goes_on_from"]), np.array(before["eval_return_per_seed"])
        for seed in range(2):
            own = slice(seed, None, 2)
            worst, best = (2 * np.argsort(scores[own], kind="stable")[i] + seed for i in (0, -1))
            assert source[worst] == best and (source[own] != np.arange(10)[own]).sum() == 1
        kept = source == np.arange(10)
        values, old = np.array(after[name]), np.array(before[name])
        np.testing.assert_array_equal(values[kept], old[kept])
        assert values.min() >= 0.99e-5 and values.max() <= 0.1001
        changed |= set((values[~kept] != old[source[~kept]]).tolist())
    assert True in changed
    _check_summary(whole, last)
    steps = sorted(int(path.name.split("_")[1]) for path in (whole.folder / "checkpoints").glob("step_*"))
    assert {128 * 4, 128 * 6} <= set(steps)
    for cut in (128 * 4, 128 * 6):
        folder = tmp_path / f"killed{cut}"
        shutil.copytree(whole.folder, folder)
        (folder / "summary.json").unlink()
        for step in steps:
            if step > cut:
                shutil.rmtree(next((folder / "checkpoints").glob(f"step_*{step}")))
        resumed = train(folder=folder.name, **NAMED)
        assert resumed.summary["resumed_from"] == cut
        _check_same(resumed, whole)
    for ended in (_stop, _raise):
        try:
            train(folder=ended.__name__, callbacks=[ended], **NAMED)
        except RuntimeError:
            assert ended is _raise
        _check_same(train(folder=ended.__name__, **NAMED), whole)


def _stop(record: Any) -> bool:
    return bool(record["kind"] == "train" and record["env_steps"] == 128 * 6)


def _raise(record: Any) -> bool:
    if record["kind"] == "eval" and record["env_steps"] == 128 * 4:
        raise RuntimeError("a user's fault")
    return False


def _check_same(run: Any, whole: Any) -> None:
    assert run.summary["params_sha256"] == whole.summary["params_sha256"]
    assert run.summary["population"] == whole.summary["population"]
    assert _evaluations(run.folder) == _evaluations(whole.folder)


def _check_summary(run: Any, last: dict[str, Any]) -> None:
    found, name = run.summary["population"], "learner.learning_rate"
    assert [one["seed"] for one in found] == [0] * 5 + [1] * 5 and "sweep" not in run.summary
    scores = [one["eval_return_mean"] for one in found]
    assert scores[:5] == sorted(scores[:5], reverse=True) and scores[5:] == sorted(scores[5:], reverse=True)
    for one in found:
        assert one["eval_return_mean"] == last["eval_return_per_seed"][one["member"]]
        assert one["settings"] == {name: last[f"member_{name}"][one["member"]]} and one["member"] % 2 == one["seed"]
    for i in (1, 4):
        assert jaxrl_dist.load(run.folder, seed_index=i).settings[name] == last[f"member_{name}"][i]
    evaluated = policy.evaluate(run.folder, 3, 0, "latest", {})["sweep"]
    assert [one["settings"][name] for one in evaluated] == last[f"member_{name}"]


@pytest.mark.slow
def test_a_population_is_the_same_on_two_devices_and_a_seed_alone(train: conftest.Train) -> None:
    both = train(folder="both", devices=jax.devices()[:2], **NAMED)
    whole = train(folder="whole", **NAMED)
    assert both.summary["num_devices"] == 2 and both.summary["population"] == whole.summary["population"]
    alone = train(folder="alone", **{**NAMED, "num_seeds": 1, "seed": 1})
    of_seed = [{**one, "member": one["member"] // 2} for one in whole.summary["population"][5:]]
    assert alone.summary["population"] == of_seed


def test_checkpoints_hold_the_values(small: Any) -> None:
    """They travel with the parameters, as those of a sweep do."""
    run = small("a2c", "toy:walk", 1, {name: NAMED[name] for name in ("num_seeds", "sweep", "population")})
    learned, returns = run.state.learner, np.arange(20.0).reshape(10, 2)
    assert run.parts.exploit is not None
    after, source = run.parts.exploit(learned, returns, run.keys, 7)
    again, _ = run.parts.exploit(learned, returns, run.keys, 7)
    other, _ = run.parts.exploit(learned, returns, run.keys, 8)
    assert source == [8, 9, *range(2, 10)]
    digests = [checkpoint.params_sha256(jax.tree.map(np.asarray, x.params)) for x in (after, again, other)]
    assert digests[0] == digests[1] != digests[2]
