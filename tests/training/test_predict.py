"""Acting on raw observations: as the agent acts, one by one and many at once, from the start of an episode on."""

import collections
import pathlib
import re
from typing import Any

import conftest
import jax
import marks
import numpy as np
import pytest

import jaxrl_dist
from jaxrl_dist import types
from jaxrl_dist.systems import catalogue
from jaxrl_dist.training import assemble, evaluation, policy

ENV = "gymnax:CartPole-v1"
OBSERVATIONS = np.random.default_rng(0).normal(scale=8, size=(12, 5, 4))


def loaded(root: pathlib.Path, system: str, env: str = ENV, **settings: Any) -> policy.Policy:
    run = conftest.train_in(root, system, env, **{"evaluation.episodes": 2, **settings})
    return jaxrl_dist.load(run.folder)


def varied(one: policy.Policy) -> policy.Policy:
    """Gives a policy other weights, with which its actions differ from row to row."""
    draw = np.random.default_rng(3).normal
    network = jax.tree.map(lambda x: draw(scale=0.5, size=x.shape).astype(np.float32), one.params.network)
    return one._replace(params=one.params._replace(network=network))


def in_turn(one: policy.Policy, rows: np.ndarray, **options: Any) -> list[Any]:
    """Returns the actions on observations [T, ...], with the state carried on; rewards are 1, 2, 3, …"""
    state, actions = None, []
    for t, row in enumerate(rows):
        reward = np.full(row.shape[:-1], t, np.float32)
        action, state = one.predict(row, state, reward=reward, **options)
        actions.append(action)
    return actions


def as_in_evaluation(one: policy.Policy, rows: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Returns the actions of the agent's own `evaluate` on rows [T, B, ...], where bool [T, B] begin an episode."""
    act, carry, actions = evaluation.acting(one.agent), one.agent.init_carry(rows.shape[1]), []
    for t, row in enumerate(rows.astype(np.float32)):
        step_type = np.where(first[t], types.FIRST, types.MID).astype(np.int8)
        reward = np.where(first[t], 0, t).astype(np.float32)
        timestep = types.TimeStep(step_type, reward, np.ones_like(reward), row, ())
        action, carry = act(one.params, carry, timestep, jax.random.key(0), np.int32(t))
        actions.append(np.asarray(action))
    return np.stack(actions)


PENDULUM = "gymnax:Pendulum-v1"
CASES = {
    "rows": ("ppo", PENDULUM, {"agent.normalise_observations": True}),
    "frames": ("ppo", ENV, {"network.core": "frame_stack", "network.num_frames": 3}),
    "memory": ("ppo", PENDULUM, {"network.core": "lstm", "network.core_size": 8, "agent.scale_rewards": True}),
    "last action and reward": ("r2d2", ENV, {}),
}


@pytest.mark.parametrize("case", marks.some(CASES.keys(), fast={"last action and reward"}))
def test_it_acts_as_in_evaluation_one_by_one_and_many_at_once(tmp_path: pathlib.Path, case: str) -> None:
    system, env, settings = CASES[case]
    one = varied(loaded(tmp_path, system, env, **settings))
    spec = one.environment.spec
    rows, struct = OBSERVATIONS[..., : spec.observation.shape[0]], spec.action.struct
    first = np.zeros((12, 5), bool)
    first[0] = True
    expected = as_in_evaluation(one, rows, first)
    if isinstance(spec.action, types.BoxSpace):
        expected = np.clip(expected, spec.action.low, spec.action.high)
    together = np.stack(in_turn(one, rows))
    assert together.dtype == struct.dtype and len(np.unique(expected)) > 1
    np.testing.assert_allclose(together, expected, rtol=1e-5, atol=1e-6)
    for column in range(5):
        alone = in_turn(one, rows[:, column])
        assert all(action.shape == struct.shape for action in alone)
        np.testing.assert_allclose(alone, expected[:, column], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("core", ["frame_stack", "lstm"])
def test_episodes_begin_where_they_are_said_to(tmp_path: pathlib.Path, core: str) -> None:
    """Real actions, so that any difference shows; rows after a beginning do not depend on those before it."""
    one = loaded(tmp_path, "ppo", PENDULUM, **{"network.core": core})
    rows = np.random.default_rng(1).normal(size=(6, 2, 3)).astype(np.float32)
    whole, cut, state, states = [], [], None, None
    for t, row in enumerate(rows):
        action, state = one.predict(row, state)
        again, states = one.predict(row, states, is_first=np.array([t in (0, 3), t == 0]))
        whole.append(action)
        cut.append(again)
    fresh = in_turn(one, rows[3:, 0])
    np.testing.assert_array_equal(np.stack(cut)[:3], np.stack(whole)[:3])
    np.testing.assert_array_equal(np.stack(cut)[:, 1], np.stack(whole)[:, 1])
    np.testing.assert_allclose(np.stack(cut)[3:, 0], fresh, rtol=1e-5, atol=1e-7)
    assert (np.stack(cut)[3:, 0] != np.stack(whole)[3:, 0]).all()


def test_the_greedy_action_draws_nothing_even_where_evaluation_does(tmp_path: pathlib.Path) -> None:
    one = loaded(tmp_path, "dqn", **{"agent.evaluation_epsilon": 1.0})
    row = OBSERVATIONS[0]
    greedy = [one.predict(row, seed=seed)[0] for seed in range(4)]
    assert all((actions == greedy[0]).all() for actions in greedy)
    params = one.params.network
    hidden = params["torsos_0"]["Dense_0"]
    values = np.maximum(row @ hidden["kernel"] + hidden["bias"], 0)
    head = params["outputs_q"]["Dense_0"]
    np.testing.assert_array_equal(greedy[0], (values @ head["kernel"] + head["bias"]).argmax(-1))


def test_the_greedy_action_is_the_mode_even_where_evaluation_takes_samples(tmp_path: pathlib.Path) -> None:
    one = loaded(tmp_path, "ppo", **{"agent.evaluation_action": "sample"})
    rows = np.repeat(OBSERVATIONS[0, :1], 100, 0)
    (greedy,) = {*one.predict(rows, seed=1)[0].tolist()}
    timestep = types.TimeStep(np.zeros(100, np.int8), np.zeros(100), np.ones(100), rows, ())
    drawn = one.act(timestep, one.agent.init_carry(100), jax.random.key(1)).action
    assert 0 < (np.asarray(drawn) == greedy).sum() < 100


@pytest.mark.slow
def test_draws_are_those_of_the_end_of_training(tmp_path: pathlib.Path) -> None:
    """A quarter of 4,000 actions is drawn among two at ε = .25, so an eighth is not the greedy one (±4 deviations)."""
    one = loaded(tmp_path, "dqn", **{"agent.epsilon_end": 0.25, "agent.evaluation_epsilon": 0.0})
    rows = np.repeat(OBSERVATIONS[0, :1], 4000, 0)
    greedy, _ = one.predict(rows)
    drawn, _ = one.predict(rows, deterministic=False, seed=1)
    assert (drawn != greedy).mean() == pytest.approx(0.125, abs=4 * np.sqrt(0.125 * 0.875 / 4000))


@pytest.mark.slow
def test_of_a_ladder_the_last_environment_draws(tmp_path: pathlib.Path) -> None:
    """Its ε is .4⁸ = .0007; that of the first is .4, which would change a fifth of the actions."""
    one = loaded(tmp_path, "r2d2", **{"agent.ladder_base": 0.4, "agent.ladder_exponent": 7.0})
    rows = np.repeat(OBSERVATIONS[0, :1], 500, 0)
    greedy, _ = one.predict(rows)
    drawn, _ = one.predict(rows, deterministic=False, seed=1)
    assert (drawn != greedy).mean() < 0.02


def test_draws_follow_the_seed_and_go_on_with_the_state(tmp_path: pathlib.Path) -> None:
    one = loaded(tmp_path, "ppo", PENDULUM)
    # Narrow, so that draws are not the bounds.
    network = one.params.network | {"log_std": np.full(1, -3.0, np.float32)}
    one = one._replace(params=one.params._replace(network=network))
    row = np.zeros((3, 3))
    action, state = one.predict(row, deterministic=False, seed=5)
    np.testing.assert_array_equal(action, one.predict(row, deterministic=False, seed=5)[0])
    later, _ = one.predict(row, state, deterministic=False)
    unseeded = [one.predict(row, deterministic=False)[0] for _ in range(2)]
    drawn = np.stack([action, later, one.predict(row, deterministic=False, seed=6)[0], *unseeded])
    assert len(np.unique(drawn)) == drawn.size


def test_real_actions_keep_to_their_bounds(tmp_path: pathlib.Path) -> None:
    one = loaded(tmp_path, "ppo", PENDULUM)
    network = one.params.network | {"log_std": np.full(1, 5.0, np.float32)}
    wide = one._replace(params=one.params._replace(network=network))
    drawn, _ = wide.predict(np.zeros((64, 3)), deterministic=False, seed=0)
    assert (np.abs(drawn) <= 2).all() and (np.abs(drawn) == 2).any()


@pytest.mark.slow
def test_a_combination_of_a_sweep_acts_by_its_own_values(tmp_path: pathlib.Path) -> None:
    run = conftest.train_in(tmp_path, "ppo", sweep="learner.learning_rate=1e-3,1e-2", **{"evaluation.episodes": 2})
    one = jaxrl_dist.load(run.folder, seed_index=1)
    rows = np.random.default_rng(2).normal(size=(4, 3, 2))
    first = np.array([[True] * 3] + [[False] * 3] * 3)
    np.testing.assert_array_equal(np.stack(in_turn(one, rows)), as_in_evaluation(one, rows, first))


@pytest.mark.slow
def test_a_tree_of_observations_with_a_mask_is_taken_by_its_names(tmp_path: pathlib.Path) -> None:
    """Any mapping will do; actions that the mask forbids are never chosen, greedy or drawn."""
    one = varied(loaded(tmp_path, "ppo", "toy:choice"))
    rng, spec = np.random.default_rng(4), one.environment.spec
    many = jax.tree.map(lambda leaf: rng.integers(0, 2, (64, *leaf.shape)).astype(leaf.dtype), spec.observation)
    many["action_mask"][:, 0] = True
    for deterministic in (True, False):
        actions, _ = one.predict(collections.OrderedDict(reversed(many.items())), None, deterministic, seed=0)
        assert many["action_mask"][np.arange(64), actions].all() and len(set(actions.tolist())) > 2
    alone, _ = one.predict(jax.tree.map(lambda leaf: leaf[3], many))
    assert alone == one.predict(many)[0][3] and alone.shape == ()
    with conftest.refused("observation/action_mask"):
        one.predict({name: leaf for name, leaf in many.items() if name != "action_mask"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"observation": np.zeros(3)}, ("observation=float64[3]", "float32[4]", "['B', 4]".replace("'", ""))),
        ({"observation": np.zeros((2, 2, 4))}, ("float64[2, 2, 4]",)),
        ({"observation": np.zeros((0, 4))}, ("float64[0, 4]",)),
        ({"observation": ["a"] * 4}, ("float32[4]",)),
        ({"observation": np.zeros(4), "is_first": [True]}, ("is_first=bool[1]", "bool[]")),
        ({"observation": np.zeros((2, 4)), "is_first": [1.0, 0.0]}, ("is_first=float64[2]",)),
        ({"observation": np.zeros((2, 4)), "reward": 1.0}, ("reward=float64[]", "float32[2]")),
        ({"observation": np.zeros(4), "state": 3}, ("state=<int>",)),
        ({"observation": np.zeros(4), "seed": "x"}, ("seed='x'", "None")),
        ({"observation": np.zeros(4), "seed": -1}, ("seed=-1",)),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(one_policy: policy.Policy, given: dict[str, Any], words: Any) -> None:
    with conftest.refused(*words):
        one_policy.predict(**given)


def test_a_state_of_others_is_refused_in_one_line(one_policy: policy.Policy) -> None:
    _, state = one_policy.predict(np.zeros((2, 4)))
    with conftest.refused("2 observations", "state=None"):
        one_policy.predict(np.zeros((3, 4)), state)
    with conftest.refused("seed"):
        one_policy.predict(np.zeros((2, 4)), state, seed=1)


@pytest.fixture(scope="module")
def one_policy(tmp_path_factory: pytest.TempPathFactory) -> policy.Policy:
    return loaded(tmp_path_factory.mktemp("one"), "ppo", **{"network.core": "lstm", "network.core_size": 8})


def test_the_loop_of_the_docs_plays_an_episode(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded(tmp_path / "runs" / "notebook", "ppo")
    monkeypatch.chdir(tmp_path)
    page = (conftest.PACKAGE.parent / "docs" / "python.md").read_text(encoding="utf-8")
    (loop,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "policy.predict" in block]
    exec(loop, {})
    assert float(capsys.readouterr().out) >= 8


def test_a_run_of_a_fleet_is_loaded_without_one() -> None:
    """Nothing is played by Ray there, which need not be installed."""
    flags = {"system": "ppo", "env": ENV, "layout": "sebulba", "layout.fleet": "auto", "layout.fleet_spares": 3}
    saved = catalogue.resolved(flags, "classic")
    here = policy._devices(saved, 1)
    assert here["layout.fleet"] == "" and here["layout.fleet_spares"] == 1
    settings, environment = assemble.resolve({**saved.settings, "preset": "", **here})
    assert assemble.assemble(settings, environment, jax.devices()[:1])


@pytest.mark.parametrize("system", ["ppo", "sac"])
def test_what_is_known_in_training_alone_may_be_left_out(system: str, tmp_path: pathlib.Path) -> None:
    # Also where a critic knows it.
    one = varied(loaded(tmp_path, system, "toy:load", **{"network.value_inputs": "load,state"}))
    assert one.environment.spec.privileged == "load"
    seen, load = OBSERVATIONS[0, :, :2], np.zeros((5, 1))
    shapes = {name: leaf.shape for name, leaf in types.named_leaves(one.environment.spec.observation).items()}
    whole = {name: np.resize({"load": load}.get(name, seen), (5, *shape)) for name, shape in shapes.items()}
    own = {name: value for name, value in whole.items() if name != "load"}
    np.testing.assert_array_equal(one.predict(own)[0], one.predict(whole)[0])
    alone = one.predict({name: value[0] for name, value in own.items()})[0]
    np.testing.assert_allclose(alone, one.predict(whole)[0][0], rtol=1e-5)
    with conftest.refused("predict(observation/", "no such array"):
        one.predict({"load": load})


@pytest.mark.parametrize("system", ["ppo", "sac"])
def test_what_actions_depend_on_is_asked_for(system: str, tmp_path: pathlib.Path) -> None:
    one = loaded(tmp_path, system, "toy:load", **{"network.policy_inputs": "load,state"})
    with conftest.refused("predict(observation/load", "no such array"):
        one.predict({"state": np.zeros(one.environment.spec.observation["state"].shape)})
