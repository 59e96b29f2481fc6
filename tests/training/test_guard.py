"""Numbers that are not finite, or out of range: whole runs stop with their source named, and keep none of them."""

import functools
import json
import pathlib
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_dist
from jaxrl_dist import envs, errors, parallel, types
from jaxrl_dist.envs import wrappers
from jaxrl_dist.runs import checkpoint
from jaxrl_dist.training import assemble as assembles
from jaxrl_dist.training import evaluation, guard, policy, resume

CARTPOLE = "gymnax:CartPole-v1"
# Ten iterations: a record every third, an evaluation every second, so that a stop after the fifth leaves half a record.
RUN = {"log.interval_steps": 384, "evaluation.interval_steps": 256, "evaluation.episodes": 4}


@pytest.fixture
def train(train: conftest.Train) -> conftest.Train:
    return functools.partial(train, env=CARTPOLE, **RUN)


def poisoned(field: str, at_step: int) -> envs.Environment:
    """An environment of which some copies return NaN at a step of an episode.

    It declares no time limit, so that `evaluation.max_steps` may cut an evaluation before that step.
    """

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        return (jnp.int32(0), jax.random.uniform(key) < 0.5), jnp.zeros(2)

    def step(key: jax.Array, state: Any, action: jax.Array) -> envs.Transition:
        steps, is_poisoned = state[0] + 1, state[1]
        number = jnp.where(is_poisoned & (steps == at_step), jnp.nan, 1.0)
        observation = jnp.full(2, number if field == "observation" else 0.0)
        reward = number if field == "reward" else jnp.float32(1.0)
        return envs.Transition((steps, is_poisoned), observation, reward, jnp.bool_(False), steps >= 60)

    spec = types.EnvironmentSpec("toy:walk", (), types.DiscreteSpace(2), "classic")
    return wrappers.auto_reset(envs.BareEnvironment(reset, step, spec))


@pytest.mark.slow
@pytest.mark.parametrize(("system", "field", "at_step"), [("ppo", "reward", 37), ("dqn", "observation", 37)])
def test_a_number_from_an_environment_is_named_and_reaches_no_checkpoint(
    system: str,
    field: str,
    at_step: int,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    train: conftest.Train,
) -> None:
    monkeypatch.setattr(envs, "make", lambda name, params=None: poisoned(field, at_step))
    length = conftest.SMALL[system]["layout.unroll_length"]
    named = rf"{field} of toy:walk, environment [0-7] of seed 0, at its step {at_step}\b"
    with pytest.raises(guard.NonFiniteError, match=rf"iteration {(at_step - 1) // length}\b.*{named}") as error:
        # An evaluation of whole episodes would come upon the reward before training does.
        train(system, env="toy:walk", **{"checkpoint.interval_s": 0, "evaluation.max_steps": 16})
    assert "\n" not in str(error.value)
    assert checkpoint.latest(tmp_path / "checkpoints")
    assert_all_checkpoints_are_finite(tmp_path)
    broken = jaxrl_dist.replay_failure(tmp_path)
    assert not np.isfinite(np.concatenate([np.ravel(value) for value in broken.values()])).all()


def test_the_environment_of_an_agent_s_row_is_named(small: Any) -> None:
    parts = small("ppo", "toy:team", 1, {}).parts
    told = guard._describe(parts, parallel.Failure(2, None, parallel.BadRow("reward", 0, 7, 3)))
    assert "the reward of toy:team, environment 2 of seed 0" in told


def test_the_seed_and_the_combination_of_a_member_are_named(small: Any) -> None:
    swept = {"num_seeds": 2, "seed": 10, "sweep": "learner.learning_rate=0.1,0.2"}
    parts = small("a2c", "toy:walk", 1, swept).parts
    told = guard._describe(parts, parallel.Failure(2, None, parallel.BadRow("reward", 2, 0, 3)))
    assert "of seed 10 with learner.learning_rate=0.2," in told
    with pytest.raises(errors.EnvironmentFault, match=r"episode 1 .*\bseed 11\b"):
        evaluation.check_finite(np.array([[0.0] * 2] * 3 + [[0.0, np.nan]]), parts.settings.settings)


@pytest.mark.slow
def test_a_layout_that_cannot_look_at_rows_does_not_say_that_they_are_sound(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    monkeypatch.setattr(envs, "make", lambda name, params=None: poisoned("observation", 37))
    with pytest.raises(guard.NonFiniteError, match="an observation, a reward, the loss") as error:
        train(
            "a3c", env="toy:walk", layout="async_gradient", **{"evaluation.max_steps": 16, "checkpoint.interval_s": 0}
        )
    assert "\n" not in str(error.value)
    assert jaxrl_dist.replay_failure(tmp_path)["unsound_rows"] != [0]


@pytest.mark.slow
def test_a_return_that_only_an_evaluation_reaches_is_named_and_what_was_learned_is_saved(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    """Training plays 32 steps; a whole episode has 60."""
    settings = {"env": "toy:walk", "seed": 3, "evaluation.episodes": 8}
    monkeypatch.setattr(envs, "make", lambda name, params=None: poisoned("reward", 70))
    train(steps=128, **settings)
    monkeypatch.setattr(envs, "make", lambda name, params=None: poisoned("reward", 50))
    named = r"toy:walk .*nan\b.* episode [0-7] .*seed 3\b"
    for _ in range(2):
        with pytest.raises(errors.EnvironmentFault, match=named) as error:
            train(steps=256, **settings)
        assert "\n" not in str(error.value)
    with pytest.raises(errors.EnvironmentFault, match=named):
        policy.evaluate(tmp_path, 8, 0, "latest", {})
    assert policy.load(tmp_path).env_steps == 256


@pytest.mark.slow
def test_a_fault_in_the_evaluation_at_step_0_leaves_the_folder_to_the_corrected_command(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    monkeypatch.setattr(envs, "make", lambda name, params=None: poisoned("reward", 50))
    with pytest.raises(errors.EnvironmentFault, match=r"\bnan\b"):
        train(env="toy:walk", steps=128, seed=3, **{"evaluation.episodes": 8})
    assert not list((tmp_path / "checkpoints").glob("[!.]*"))
    monkeypatch.setattr(envs, "make", lambda name, params=None: poisoned("reward", 70))
    assert train(env="toy:walk", steps=128, **{"evaluation.episodes": 4}).reason == "finished"


def test_a_reward_out_of_the_declared_range_is_named(monkeypatch: pytest.MonkeyPatch, train: conftest.Train) -> None:
    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        return jnp.int32(0), jnp.zeros(2)

    def step(key: jax.Array, state: Any, action: jax.Array) -> envs.Transition:
        reward = jnp.where(state == 36, 1.5, 1.0)
        return envs.Transition(state + 1, jnp.zeros(2), reward, jnp.bool_(False), state + 1 >= 60)

    spec = types.EnvironmentSpec("toy:walk", (), types.DiscreteSpace(2), "classic", (-1.0, 1.0), time_limit=60)
    environment = wrappers.auto_reset(envs.BareEnvironment(reset, step, spec))
    monkeypatch.setattr(envs, "make", lambda name, params=None: environment)
    with pytest.raises(
        guard.NonFiniteError,
        match=r"reward of toy:walk, environment 0 of seed 0, at its step 37, .* -?[0-9.e+inf]+ to ",
    ):
        train(env="toy:walk")


def test_the_guard_acts_out_what_the_layout_did(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        return (jnp.int32(0), jnp.int32(0)), jnp.zeros(2)

    def step(key: jax.Array, state: Any, action: jax.Array) -> envs.Transition:
        steps, total = state[0] + 1, state[1] + action
        observation = jnp.full(2, jnp.where((steps == 16) & (total % 2 == 1), jnp.nan, 0.0))
        return envs.Transition((steps, total), observation, 0.0, jnp.bool_(False), steps >= 60)

    spec = types.EnvironmentSpec("toy:walk", (), types.DiscreteSpace(2), "classic", time_limit=60)
    environment = wrappers.auto_reset(envs.BareEnvironment(reset, step, spec))
    monkeypatch.setattr(envs, "make", lambda name, params=None: environment)
    run = small("ppo", "toy:walk", 2, {})
    source = run.layout.diagnosis.find_source(run.state, 0, run.total)
    run.run(1)
    left = ~np.isfinite(run.state.actors.timestep.observation).all(-1)
    assert left.any() and not left.all()
    assert source == ("observation", 0, int(left[0].argmax()), 16)


def test_diverging_parameters_are_found_and_the_iteration_runs_again(
    tmp_path: pathlib.Path, train: conftest.Train
) -> None:
    settings = {"learner.learning_rate": 1e38, "learner.anneal": False, "checkpoint.interval_s": 0}
    with pytest.raises(guard.NonFiniteError, match=r"gradient.*jaxrl_dist\.replay_failure"):
        train(devices=jax.devices()[:2], **{"layout.num_devices": 2}, **settings)
    assert_all_checkpoints_are_finite(tmp_path)
    broken = jaxrl_dist.replay_failure(str(tmp_path))
    assert not all(np.isfinite(value).all() for value in broken.values())
    with pytest.raises(guard.NonFiniteError):
        train(devices=jax.devices()[:2], **{"layout.num_devices": 2}, **settings)


def test_what_is_acted_out_begins_with_the_parameters_that_were_given(
    tmp_path: pathlib.Path, train: conftest.Train
) -> None:
    train(folder="before")
    small = conftest.Small("ppo", CARTPOLE, 1, {"init_from": str(tmp_path / "before")})
    began = guard._state_at(small.parts, tmp_path / "after", small.keys, 20, 0).learner.params
    given, _ = resume.load_params(tmp_path / "before", "latest", small.layout.template(small.keys).learner.params)
    for x, y in zip(jax.tree.leaves(began), jax.tree.leaves(given), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_parameters_are_looked_at_although_every_metric_is_finite(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    make = assembles.assemble

    def assemble(*args: Any, **more: Any) -> Any:
        parts = make(*args, **more)
        original = parts.layout.run

        def run(state: Any, iteration: int, count: int, total: int, stopped: Any = None) -> Any:
            state, sums = original(state, iteration, count, total)
            params = state.learner.params
            if iteration <= 6 < iteration + count:
                params = jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(jnp.inf), params)
            return state._replace(learner=state.learner._replace(params=params)), sums

        monkeypatch.setattr(parts.layout, "run", run)
        return parts

    monkeypatch.setattr(assembles, "assemble", assemble)
    with pytest.raises(guard.NonFiniteError, match=r"iteration 6\b.* 768 steps"):
        train(**{"checkpoint.interval_s": 0})
    assert_all_checkpoints_are_finite(tmp_path)


def test_what_is_finite_when_run_again_blames_the_hardware(
    monkeypatch: pytest.MonkeyPatch, train: conftest.Train
) -> None:
    original, calls = guard.is_sound, [0]

    def is_sound(*args: Any) -> bool:
        calls[0] += 1
        return original(*args) and calls[0] != 5

    monkeypatch.setattr(guard, "is_sound", is_sound)
    with pytest.raises(guard.NonFiniteError, match="hardware"):
        train()


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"system": "dqn", "checkpoint.replay": False}, "--checkpoint.replay=true"),
        ({"layout": "async_gradient", "layout.schedule": "free"}, "--layout.schedule=round_robin"),
        ({"layout": "async_gradient", "layout.schedule": "round_robin"}, "hardware"),
        ({"checkpoint.replay": False}, "hardware"),
    ],
)
def test_iterations_that_cannot_run_again_exactly_do_not_blame_the_hardware(given: dict[str, Any], flag: str) -> None:
    settings = jaxrl_dist.make(given.pop("system", "ppo"), CARTPOLE, settings=given).settings
    assert flag in guard._why_not_again(settings)


def assert_all_checkpoints_are_finite(folder: pathlib.Path) -> None:
    """Checks every checkpoint of a run that failed, the one of its failure too."""
    paths = [path.parent for path in folder.rglob("manifest.json")]
    assert folder / "failure" / "state" in paths
    for path in paths:
        leaves = json.loads((path / "contents.json").read_text())["leaves"]
        template = {fields[0]: _template(fields) for fields in leaves}
        tree, _ = checkpoint.restore(path, _nested(template))
        for leaf in jax.tree.leaves(tree):
            assert jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) or np.isfinite(leaf).all()


def _template(fields: list[Any]) -> Any:
    key = functools.partial(jax.random.key, 0)
    dtype = jax.eval_shape(key).dtype if fields[3] else fields[2]
    return jax.ShapeDtypeStruct(tuple(fields[1]), dtype)


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        node = tree
        *parents, name = path.split("/")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree
