"""Random network distillation: bonuses, loss, gradient and statistics against loops in float64 from the paper."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import actor_critic, call, differences, normalisation, ppo, rnd

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import rnd as ours
from jaxrl_dist.agents import wrapping
from jaxrl_dist.numeric import moments

SETTINGS: dict[str, Any] = {"discount": 0.9, "gae_lambda": 0.8, "value_cost": 0.7, "entropy_cost": 0.2}
SETTINGS |= {"clip_epsilon": 0.2, "clip_value": 0.0, "normalise_advantage": "none", "predictor_share": 1.0}
SETTINGS |= {"intrinsic_weight": 0.6, "extrinsic_weight": 1.7, "intrinsic_discount": 0.75, "feature_size": 2}
SPEC = types.EnvironmentSpec("toy:x", jax.ShapeDtypeStruct((2,), jnp.float32), types.DiscreteSpace(2), "classic")
NUMBERS: dict[str, Any] = {"staleness": "own", "context": 1, "taught": 2, "lookahead": 3, "keeps_sequences": True}
NUMBERS |= {"parts": {}, "fresh_episodes": True, "columns_per_item": 2, "acts_together": True}
CASES: dict[str, dict[str, Any]] = {
    "rows": {},
    "minibatch on two devices": {"normalise_advantage": "minibatch", "devices": 2},
    "a share of rows": {"predictor_share": 0.25},
    "stack": {"core": "frame_stack"},
    "lstm, normalised": {"core": "lstm", "normalise_observations": True, "clip_observations": 1.0},
}


def _before(made: call.Made, seed: int = 5) -> rnd.Before:
    """Statistics of rows before: observations far from 0, and of small deviation, so that the clip acts."""
    rng = np.random.default_rng(seed)
    seen = list(rng.normal(0.5, 0.3, size=(6, call.D)))
    target = call.params(made, 3)["predictor"]
    return rnd.Before(target, seen, list(rng.uniform(0, 9, 4)), 2.5)


def _moments(rows: Any) -> moments.Moments:
    """The running moments of rows [N, ...]."""
    rows = np.asarray(rows)
    zero = np.zeros(rows.shape[1:])
    spread = ((rows - rows.mean(0)) ** 2).sum(0)
    return moments.Moments(np.float64(len(rows)), rows.mean(0), spread, (np.float64(0), zero, zero))


def _statistics(before: rnd.Before, predictor: dict[str, Any], own: Any) -> ours.Statistics:
    flax = ({"outputs_features": {"Dense_0": one["features"]}} for one in (before.target, predictor))
    return ours.Statistics(own, *flax, _moments(before.observations), _moments(before.sums), np.float64(before.running))


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_the_paper(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = dict(CASES[name])
    devices = changes.pop("devices", 1)
    made = call.make("rnd", **{**SETTINGS, **changes})
    s, acted = made.settings, call.params(made, 1)
    now = differences.between(acted, call.params(made, 2), 0.1)
    rows = call.rows(made, seed=7, length=7, columns=4)
    raw, before, inputs = rows["observation"], _before(made), call.normalised(made, rows)
    rows["log_prob"] = inputs["log_prob"] = actor_critic.log_probs(acted["agent"], inputs)
    chosen = np.ones((6, 4)) if s["predictor_share"] == 1 else np.arange(24).reshape(6, 4) % 4 == 0
    drawn = []

    def bernoulli(key: Any, p: float, shape: tuple[int, ...]) -> Any:
        drawn.append(p)
        return jnp.asarray(chosen).reshape(-1)[: np.prod(shape)].reshape(shape)

    monkeypatch.setattr(jax.random, "bernoulli", bernoulli)
    around = lambda own: _statistics(before, acted["predictor"], own)  # noqa: E731
    found = call.learn(made, rows, now, acted=acted, devices=devices, around=around)
    assert set(drawn) == {s["predictor_share"]}
    estimates = rnd.estimate(acted, inputs, raw, before, s)
    if s["normalise_advantage"] != "none":
        estimates["advantage"] = ppo.standardised(estimates["advantage"])

    def objective(params: dict[str, Any]) -> float:
        own = rnd.terms(params, inputs, raw, estimates, before)
        bonus = sum(x * chosen[row] / s["predictor_share"] for row, x in own["bonus"].items())
        value = s["value_cost"] * sum(own["intrinsic_value_loss"].values())
        return ppo.total(ppo.terms(params["agent"], inputs, estimates, s), s) + value + bonus

    rtol = 1e-5 if s["normalise_observations"] else 1e-6
    terms = ppo.terms(now["agent"], inputs, estimates, s) | rnd.terms(now, inputs, raw, estimates, before)
    del terms["ratio"]
    assert found.metrics == pytest.approx({key: sum(x.values()) for key, x in terms.items()}, rel=rtol, abs=rtol)
    assert found.loss == pytest.approx(objective(now), rel=rtol)
    wanted = differences.gradient(objective, now)
    differences.assert_same(found.gradient, wanted, rtol=10 * rtol, atol=10 * rtol)
    assert min(np.abs(part).max() for part in differences.leaves(wanted)) > 1e-3
    # Both sides of the clip are met.
    far = np.abs((raw[1:] - np.mean(before.observations, 0)) / np.std(before.observations, 0))
    assert (far > 5).any() and (far < 5).any()


def test_the_rows_that_teach_the_predictor_are_drawn_by_the_key_of_a_loss() -> None:
    made = call.make("rnd", **{**SETTINGS, "predictor_share": 0.5})
    acted, rows, before = call.params(made, 1), call.rows(made, seed=7, length=7, columns=4), _before(made)
    around = lambda own: _statistics(before, acted["predictor"], own)  # noqa: E731
    rows["log_prob"] = actor_critic.log_probs(acted["agent"], call.normalised(made, rows))
    first, again, second = (call.learn(made, rows, acted, around=around, key=key) for key in (1, 1, 2))
    assert first.loss == again.loss and abs(first.loss - second.loss) > 1e-3
    assert first.metrics == second.metrics


@pytest.mark.parametrize("devices", [1, 2])
def test_statistics_move_by_the_rows_and_bonuses_of_the_predictor_that_prepared(devices: int) -> None:
    made = call.make("rnd", **SETTINGS)
    acted, ended = call.params(made, 1), call.params(made, 2)
    rows, before = call.rows(made, seed=7, length=7, columns=4), _before(made)
    around = lambda own: _statistics(before, acted["predictor"], own)  # noqa: E731
    after = call.moved(made, rows, ended, around=around, devices=devices)
    taught = rows["step_type"][:-1] != types.LAST
    seen = before.observations + list(rows["observation"][1:][taught])
    _, sums, running = rnd.bonuses(acted["predictor"], rows["observation"], rows["step_type"], before, 0.75)
    for device in range(devices):
        now: ours.Statistics = jax.tree.map(lambda x, device=device: np.asarray(x)[device], after)
        np.testing.assert_allclose(now.observation.mean, np.mean(seen, 0), rtol=1e-6)
        np.testing.assert_allclose(now.observation.m2 / len(seen), np.var(seen, 0), rtol=1e-6)
        assert now.observation.rows == len(seen) < 6 + 24
        assert np.sqrt(now.discounted_bonus.m2 / len(sums)) == pytest.approx(normalisation.deviation(sums), rel=1e-6)
        assert now.running == pytest.approx(running, rel=1e-6)
        kernel = ended["predictor"]["features"]["kernel"]
        np.testing.assert_array_equal(now.predictor["outputs_features"]["Dense_0"]["kernel"], kernel)
        target = now.target["outputs_features"]["Dense_0"]["kernel"]
        np.testing.assert_array_equal(target, before.target["features"]["kernel"])


def test_the_random_network_is_another_than_the_predictor_and_both_begin_without_rows() -> None:
    agent = ours.make(ours.Config(), SPEC, networks.Config(torso="mlp", hidden_sizes=(4,)))
    params = agent.init(jax.random.key(0))
    kept, trained = params.statistics, params.network["predictor"]
    same, other = (
        [np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (x, trained)), strict=True)]
        for x in (kept.predictor, kept.target)
    )
    assert all(same) and not all(other)
    assert float(kept.discounted_bonus.rows) == float(kept.observation.rows) == 0


def test_an_agent_inside_another_keeps_every_function() -> None:
    """Each one gets the agent's own part of parameters, network and batch; results go back to their places."""
    calls: list[tuple[str, Any]] = []

    def noted(name: str, result: Any = "found") -> Any:
        def function(*arguments: Any) -> Any:
            calls.append((name, arguments))
            return result

        return function

    own = types.Params("own network", "own statistics")
    kinds = {field: noted(field) for field in agents.Agent._fields if field not in NUMBERS}
    inner = agents.Agent(**{**kinds, **NUMBERS, "adapt": noted("adapt", own), "adopt": noted("adopt", own)})
    place = wrapping.Place(
        own=lambda params: types.Params(params.network["in"], params.statistics["in"]),
        put=lambda params, own: types.Params(
            params.network | {"in": own.network}, params.statistics | {"in": own.statistics}
        ),
        network=lambda network: network["in"],
        batch=lambda batch: batch["in"],
        put_batch=lambda batch, own: batch | {"in": own},
    )
    agent = wrapping.forwarded(inner, place, lambda key: key)
    params = types.Params({"in": "own network", "rest": 1}, {"in": "own statistics", "rest": 2})
    other = types.Params({"in": "other network", "rest": 3}, {"in": "other statistics", "rest": 4})
    inputs, batch = types.LossInputs({"in": "batch", "rest": 5}, "target", "key", 0.5, types.LOCAL), "batch"
    for name in ("act", "evaluate", "prepare"):
        assert getattr(agent, name)(params, inputs) == "found" and calls.pop() == (name, (own, inputs))
    assert agent.exploration(params, 1, 2, 3) == "found" and calls.pop() == ("exploration", (own, 1, 2, 3))
    assert agent.loss(params, inputs) == "found" and calls.pop() == ("loss", (own, inputs._replace(batch=batch)))
    assert agent.gradient is not None and agent.epoch is not None
    assert agent.gradient(params, inputs) == "found"
    assert calls.pop() == ("gradient", (own, inputs._replace(batch=batch)))
    assert agent.epoch(inputs.batch, 1, 2) == {"in": "found", "rest": 5} and calls.pop() == ("epoch", (batch, 1, 2))
    assert agent.adapt(params, 1, 2, 3, 4) == params and calls.pop() == ("adapt", (own, 1, 2, 3, 4))
    assert agent.adopt(params, other) == place.put(other, own)
    assert calls.pop() == ("adopt", (own, types.Params("other network", "other statistics")))
    assert agent.target(params.network) == "found" and calls.pop() == ("target", ("own network",))
    as_they_were = {"init_carry", "first_error", "pace", *NUMBERS}
    assert all(getattr(agent, name) is getattr(inner, name) for name in as_they_were)
    forwarded = {"act", "evaluate", "prepare", "exploration", "loss", "epoch", "adapt", "adopt", "target", "gradient"}
    assert forwarded | as_they_were | {"init"} == set(agents.Agent._fields)
    bare = wrapping.forwarded(inner._replace(epoch=None, gradient=None), place, lambda key: key)
    assert bare.epoch is bare.gradient is None


def test_the_value_at_an_end_is_that_of_the_next_row_that_teaches() -> None:
    """Of several agents one may end before the others, and has LAST rows until all of them are reset."""
    first, mid, last = types.FIRST, types.MID, types.LAST
    rng = np.random.default_rng(2)
    for kinds in ([mid, last, first, mid, mid], [mid, last, last, last, first, mid], [last, first, mid, last, last]):
        value, bonus = (rng.normal(size=len(kinds)) for _ in range(2))
        bonus[1:] *= np.array(kinds[:-1]) != last
        config = ours.Config(intrinsic_discount=0.75, gae_lambda=0.5)
        with call.wide():
            found, target = ours._estimate(config, jnp.asarray(bonus), jnp.asarray(kinds), jnp.asarray(value))
        wanted = rnd.advantages(bonus, np.array(kinds), value, 0.75, 0.5)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        living = np.array(kinds[:-1]) != last
        np.testing.assert_allclose(np.asarray(target)[living], (value[:-1] + wanted)[living], rtol=1e-12)


def test_columns_that_nobody_played_are_not_in_the_running_sum() -> None:
    made = call.make("rnd", **SETTINGS)
    acted, before = call.params(made, 1), _before(made)
    rows = call.rows(made, seed=7, length=7, columns=4)
    rows["step_type"][:, 1] = types.LAST
    around = lambda own: _statistics(before, acted["predictor"], own)  # noqa: E731
    after: ours.Statistics = call.moved(made, rows, acted, around=around)
    _, _, wanted = rnd.bonuses(acted["predictor"], rows["observation"], rows["step_type"], before, 0.75)
    assert np.asarray(after.running).ravel()[0] == pytest.approx(wanted, rel=1e-6)
    rows["step_type"][:] = types.LAST
    after = call.moved(made, rows, acted, around=around)
    assert np.asarray(after.running).ravel()[0] == before.running
