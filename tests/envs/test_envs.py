"""Tests of device environments: names, types of every leaf, episode bookkeeping, parameters and errors."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest

from jaxrl_dist import envs as environments
from jaxrl_dist import errors, types
from jaxrl_dist.envs import parameters, wrappers
from jaxrl_dist.envs.host import as_host
from jaxrl_dist.envs.suites import toy

gymnax_suite = pytest.importorskip("jaxrl_dist.envs.suites.gymnax")

# Quick to compile, and between them: weak rewards, keys used in steps, planes, boxes, one-hot, integers, time limits.
QUICK = (
    "gymnax:CartPole-v1",
    "gymnax:Pendulum-v1",
    "gymnax:Breakout-MinAtar",
    "gymnax:Catch-bsuite",
    "gymnax:MemoryChain-bsuite",
    "gymnax:UmbrellaChain-bsuite",
    "gymnax:FourRooms-misc",
    "gymnax:FrozenLake-misc",
    "toy:episode",
    "toy:walk",
    "brax:fast",
)


def library() -> Any:
    pytest.importorskip("gymnax")
    return gymnax_suite._import_library()


def all_names() -> list[str]:
    from jaxrl_dist.envs.suites import brax

    suites = (gymnax_suite, brax, toy)
    return [f"{suite.SUITE.name}:{name}" for suite in suites for name in suite.SUITE.environments]


def random_action(spec: types.EnvironmentSpec, key: jax.Array, num_envs: int) -> jax.Array:
    if isinstance(spec.action, types.DiscreteSpace):
        return jax.random.randint(key, (num_envs,), 0, spec.action.num_values)
    if isinstance(spec.action, types.MultiDiscreteSpace):
        sizes = jnp.asarray(spec.action.num_values)
        return jax.random.randint(key, (num_envs, len(sizes)), 0, sizes)
    return jax.random.uniform(key, (num_envs, *spec.action.shape), minval=spec.action.low, maxval=spec.action.high)


def rollout(environment: environments.Environment, num_envs: int, length: int, seed: int = 0) -> types.TimeStep:
    """Random actions; returns leaves [T, B, ...]."""
    env_key, act_key = jax.random.split(jax.random.key(seed))

    def body(state: Any, key: jax.Array) -> Any:
        return jax.vmap(environment.step)(state, random_action(environment.spec, key, num_envs))

    @jax.jit
    def run() -> types.TimeStep:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(env_key, jnp.arange(num_envs))
        state, first = jax.vmap(environment.reset)(keys)
        rest = jax.lax.scan(body, state, jax.random.split(act_key, length))[1]
        return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), first, rest)

    return jax.tree.map(np.asarray, run())


def check_timesteps(steps: types.TimeStep, spec: types.EnvironmentSpec) -> None:
    """Recomputes the bookkeeping of every column with plain Python."""
    limit = spec.time_limit or np.inf
    assert isinstance(steps.info, types.EpisodeInfo)
    for column in range(steps.reward.shape[1]):
        previous, total, length = types.LAST, np.float32(0), 0
        for t in range(steps.reward.shape[0]):
            step_type, reward = int(steps.step_type[t, column]), np.float32(steps.reward[t, column])
            assert (step_type == types.FIRST) == (previous == types.LAST)
            if step_type == types.FIRST:
                total, length = np.float32(0), 0
                assert reward == 0 and steps.discount[t, column] == 1
            else:
                total, length = total + reward, length + 1
            if steps.discount[t, column] == 0 or length >= limit:
                assert step_type == types.LAST
            assert length <= limit
            assert steps.info.episode_length[t, column] == length
            np.testing.assert_allclose(steps.info.episode_return[t, column], total, rtol=1e-4, atol=1e-4)
            assert steps.info.game_over[t, column] == (steps.discount[t, column] == 0)
            previous = step_type
    low, high = spec.reward_range
    assert (steps.reward >= low - 1e-5).all() and (steps.reward <= high + 1e-5).all()
    assert np.isfinite(steps.reward).all()


@pytest.mark.parametrize("name", QUICK)
def test_timesteps_are_consistent(name: str) -> None:
    environment = environments.make(name)
    steps = rollout(environment, num_envs=3, length=60)
    check_timesteps(steps, environment.spec)
    assert steps.observation.shape[2:] == environment.spec.observation.shape
    assert steps.observation.dtype == environment.spec.observation.dtype


def test_parameters_of_every_suite_change_what_is_seen() -> None:
    tree, vector, free = (
        environments.make("toy:choice", params) for params in ({}, {"flatten": "true"}, {"mask": "false"})
    )
    assert (tree.spec.mask, vector.spec.mask, free.spec.mask) == ("action_mask", "action_mask", "")
    assert free.spec.observation == tree.spec.observation
    key = jax.random.key(0)
    seen, flat = (environment.reset(key)[1].observation for environment in (tree, vector))
    goal = [np.eye(size)[seen["goal"][i]] for i, size in enumerate((3, 2))]
    wanted = np.concatenate([*goal, seen["seen"]["number"], seen["seen"]["picture"].ravel()])
    np.testing.assert_array_equal(flat["observation"], wanted)
    np.testing.assert_array_equal(flat["action_mask"], seen["action_mask"])
    both = environments.make("toy:choice", {"flatten": "true", "mask": "false"})
    np.testing.assert_array_equal(both.reset(key)[1].observation, np.concatenate([seen["action_mask"], wanted]))
    one = environments.make("gymnax:Catch-bsuite", {"flatten": "true"}).reset(key)[1].observation
    np.testing.assert_array_equal(one, environments.make("gymnax:Catch-bsuite").reset(key)[1].observation.ravel())
    pixels = wrappers._Vector({"": 2}, {}, "", "")(np.full((3, 2, 1), 51, np.uint8))
    np.testing.assert_allclose(pixels, np.full((3, 2), 0.2), rtol=1e-6)
    with conftest.refused("--env.params.mask=false", "toy:walk"):
        environments.make("toy:walk", {"mask": "false"})
    with conftest.refused("--env.params.flatten=maybe"):
        environments.make("toy:choice", {"flatten": "maybe"})


@pytest.mark.slow
# Columns of several agents end apart (test_several_agents.py).
@pytest.mark.parametrize("name", sorted(set(all_names()) - {*QUICK, "toy:team"}))
def test_timesteps_are_consistent_everywhere(name: str) -> None:
    environment = environments.make(name)
    check_timesteps(rollout(environment, num_envs=3, length=60), environment.spec)


@pytest.mark.parametrize("name", QUICK)
def test_every_leaf_is_strongly_typed_and_can_be_carried(name: str) -> None:
    environment = environments.make(name)
    state, timestep = jax.eval_shape(environment.reset, jax.random.key(0))
    stepped = jax.eval_shape(environment.step, state, environment.spec.action.struct)
    outputs = [jax.make_jaxpr(environment.reset)(jax.random.key(0)).out_avals]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), environment.spec.action.struct)
    outputs.append(jax.make_jaxpr(environment.step)(environment.reset(jax.random.key(0))[0], zeros).out_avals)
    assert not any(aval.weak_type for avals in outputs for aval in avals if hasattr(aval, "weak_type"))
    structure: Any = jax.tree.structure((state, timestep))
    assert structure == jax.tree.structure(stepped)
    assert [str(aval) for aval in outputs[0]] == [str(aval) for aval in outputs[1]]
    kinds = {"step_type": jnp.int8, "reward": jnp.float32, "discount": jnp.float32}
    assert {kind: getattr(timestep, kind).dtype for kind in kinds} == kinds
    assert [leaf.dtype for leaf in timestep.info] == [jnp.float32, jnp.int32, jnp.float32, bool]
    assert all(leaf.dtype != jnp.float64 for leaf in jax.tree.leaves(timestep))


def test_environments_of_gymnax_are_those_it_registers() -> None:
    assert set(library().registered_envs) == {*gymnax_suite.ENVIRONMENTS, "MNISTBandit-bsuite"}


def test_environments_of_brax_are_those_it_registers() -> None:
    from jaxrl_dist.envs.suites import brax

    envs = pytest.importorskip("brax.envs")
    assert set(envs._envs) == {*brax.ENVIRONMENTS, "swimmer"}


@pytest.mark.parametrize(
    "backend", marks.some(["generalized", "mjx", "positional", "spring"], fast=("positional", "spring"))
)
def test_every_backend_of_brax_can_be_made_in_silence(
    backend: str, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    if importlib.util.find_spec("brax") is None:  # Importing it, as `importorskip` does, prints by itself.
        pytest.skip("Brax is not installed")
    # Structures of MJX hold arrays that are equal by value only.
    environment = environments.make("brax:inverted_pendulum", {"backend": backend, "episode_length": "30"})
    assert environment.spec.time_limit == 30 and environment.spec.observation.shape == (4,)
    assert capfd.readouterr() == ("", "")
    assert not [w for w in recwarn if "not actively being maintained" in str(w.message)]


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Breakout-MinAtar", "minatar"),
        ("Pong-misc", "minatar"),
        ("Catch-bsuite", "classic"),
        ("FrozenLake-misc", "classic"),
        ("PointRobot-misc", "continuous"),
    ],
)
def test_a_family_is_told_by_the_observation_and_the_actions(name: str, family: str) -> None:
    assert environments.make(f"gymnax:{name}").spec.family == family


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in gymnax_suite.ENVIRONMENTS if name.endswith("-MinAtar")])
def test_planes_of_minatar_are_exactly_zeros_and_ones(name: str) -> None:
    game, params = library().make(name)

    @jax.jit
    def play(key: jax.Array) -> jax.Array:
        def body(state: Any, key: jax.Array) -> Any:
            act_key, step_key = jax.random.split(key)
            action = jax.random.randint(act_key, (), 0, game.num_actions)
            observation, state, *_ = game.step_env(step_key, state, action, params)
            return state, observation

        return jax.lax.scan(body, game.reset_env(key, params)[1], jax.random.split(key, 50))[1]

    assert set(np.unique(play(jax.random.key(0)))) == {0.0, 1.0}


def test_steps_are_those_of_gymnax_itself() -> None:
    environment = environments.make("gymnax:CartPole-v1")
    game, params = library().make("CartPole-v1")
    key = jax.random.key(3)
    state, timestep = environment.reset(key)
    theirs = game.reset_env(jax.random.fold_in(key, 0), params)[1]
    step = jax.jit(environment.step)
    for t in range(1, 200):
        action = jnp.int32(t // 3 % 2)
        state, timestep = step(state, action)
        if timestep.step_type == types.FIRST:
            observation, theirs = game.reset_env(jax.random.fold_in(key, t), params)
        else:
            observation, theirs, _, terminated, _ = game.step_env(key, theirs, action, params)
            assert bool(terminated) == (timestep.discount == 0)
        np.testing.assert_allclose(timestep.observation, observation, rtol=1e-5, atol=1e-6)


def test_every_episode_starts_from_a_state_of_its_own() -> None:
    steps = rollout(environments.make("toy:walk"), num_envs=4, length=80)
    first = steps.observation[steps.step_type == types.FIRST]
    assert len(first) == 4 * 11
    assert len(np.unique(first, axis=0)) == len(first)


def test_a_batch_equals_its_rows_alone() -> None:
    environment = environments.make("toy:walk")
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(5), jnp.arange(3))
    actions = jax.random.randint(jax.random.key(6), (20, 3), 0, 3)

    def play(step: Callable[..., Any], start: Any, actions: jax.Array) -> types.TimeStep:
        return jax.lax.scan(step, start[0], actions)[1]

    step, reset = environment.step, environment.reset
    batch = jax.jit(lambda: play(jax.vmap(step), jax.vmap(reset)(keys), actions))()
    nested = jax.jit(lambda: play(jax.vmap(jax.vmap(step)), jax.vmap(jax.vmap(reset))(keys[None]), actions[:, None]))()
    for row in range(3):
        alone = jax.jit(play, static_argnums=0)(step, reset(keys[row]), actions[:, row])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a[:, row], b, rtol=1e-6), batch, alone)  # noqa: B023
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[:, 0], rtol=1e-6), batch, nested)


def test_step_with_one_action_for_the_whole_batch() -> None:
    environment = environments.make("toy:episode")
    state, _ = jax.vmap(environment.reset)(jax.random.split(jax.random.key(0), 3))
    _, timestep = jax.vmap(environment.step, (0, None))(state, jnp.int32(2))
    np.testing.assert_array_equal(timestep.reward, [2.0, 2.0, 2.0])


def of_actions(space: types.ActionSpace) -> environments.BareEnvironment:
    """Shows the action that it got, beside flags that each step gives alike; a second component above 0.5 ends it."""

    def reset(key: jax.Array) -> Any:
        return jnp.int32(0), {"action": jnp.zeros(2), "flags": jnp.ones(3)}

    def step(key: jax.Array, state: jax.Array, action: jax.Array) -> environments.Transition:
        observation = {"action": action, "flags": jnp.array([1.0, 0.0, 1.0])}
        return environments.Transition(state + 1, observation, 0.0, action[1] > 0.5, False)

    return environments.BareEnvironment(reset, step, types.EnvironmentSpec("toy:x", (), space, "continuous"))


def test_real_actions_are_clipped_to_their_bounds() -> None:
    low, high = np.array([-1.0, -3.0], np.float32), np.array([2.0, 0.25], np.float32)
    actions = np.array([[-7.0, -7.0], [7.0, 7.0], [-1.5, 0.0], [1.5, 0.5], [-0.5, -2.5]], np.float32)
    for space, wanted in (
        (types.BoxSpace((2,), low, high), [[-1.0, -3.0], [2.0, 0.25], [-1.0, 0.0], [1.5, 0.25], [-0.5, -2.5]]),
        (types.BoxSpace((2,), -1.0, 0.5), [[-1.0, -1.0], [0.5, 0.5], [-1.0, 0.0], [0.5, 0.5], [-0.5, -1.0]]),
        (types.BoxSpace((2,), -np.inf, np.inf), actions.tolist()),
    ):
        environment = wrappers.auto_reset(of_actions(space))
        state, _ = environment.reset(jax.random.key(0))
        _, timestep = jax.vmap(environment.step, (None, 0))(state, jnp.asarray(actions))
        np.testing.assert_array_equal(timestep.observation["action"], wanted)


def test_what_a_step_gives_alike_in_all_environments_is_shown_in_each() -> None:
    environment = wrappers.auto_reset(of_actions(types.BoxSpace((2,), -1.0, 1.0)))
    state, _ = jax.vmap(environment.reset)(jax.random.split(jax.random.key(0), 3))
    step, given = jax.vmap(environment.step), [1.0, 0.0, 1.0]
    # The second environment ends at the second step, and begins again at the third.
    for second, last in ((0.0, [given] * 3), (1.0, [given] * 3), (0.0, [given, [1.0] * 3, given])):
        state, timestep = step(state, jnp.array([[0.0, 0.0], [0.0, second], [0.0, 0.0]]))
        np.testing.assert_array_equal(timestep.observation["flags"], last)
    np.testing.assert_array_equal(timestep.step_type, [types.MID, types.FIRST, types.MID])


def test_a_load_lasts_an_episode_and_is_for_a_critic_alone() -> None:
    environment = environments.make("toy:load", {"length": "4"})
    keys, actions = jax.random.split(jax.random.key(0), 64), jax.random.uniform(jax.random.key(1), (12, 64, 1))
    state, first = jax.vmap(environment.reset)(keys)
    steps = jax.jit(lambda: jax.lax.scan(jax.vmap(environment.step), state, actions)[1])()
    load, target = (
        np.concatenate([first.observation[name][None], steps.observation[name]])[..., 0] for name in ("load", "state")
    )
    assert (steps.step_type == types.LAST).sum(0).tolist() == [2] * 64
    assert (steps.discount == 1).all()
    np.testing.assert_allclose(steps.reward[:4], -abs(actions[:4, :, 0] - target[:4]) - load[:4], rtol=1e-6)
    # Four steps and the state that they end in; one more row begins the next episode.
    assert (load[:5] == load[0]).all() and (load[5:10] == load[5]).all()
    assert len({*load[0].tolist(), *load[5].tolist()}) == 128
    assert 0 <= load.min() < 1 and 9 < load.max() <= 10
    assert -1 <= target.min() < -0.9 and 0.9 < target.max() <= 1
    assert environment.spec.privileged == "load"


def test_a_program_for_accelerators_has_no_branch() -> None:
    environment = environments.make("toy:walk")
    state = jax.eval_shape(jax.vmap(environment.reset), jax.random.split(jax.random.key(0), 4))[0]
    traced = jax.jit(jax.vmap(environment.step)).trace(state, jax.ShapeDtypeStruct((4,), jnp.int32))
    texts = {p: traced.lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "cuda", "tpu")}
    # JAX's choice by platform is itself a branch, on a constant that XLA folds; only the CPU has one more.
    branches = {platform: text.count("stablehlo.case") for platform, text in texts.items()}
    assert branches["cuda"] == branches["tpu"] == branches["cpu"] - 1


def test_parameters_reach_the_environment() -> None:
    environment = environments.make("gymnax:MemoryChain-bsuite", {"memory_length": "20", "num_bits": "2"})
    steps = rollout(environment, num_envs=2, length=44)
    assert (steps.step_type[:, 0] == types.LAST).nonzero()[0].tolist() == [21, 43]
    assert environment.spec.observation.shape == (4,)
    limited = environments.make("gymnax:Pendulum-v1", {"max_steps_in_episode": "5", "max_torque": "1"})
    assert limited.spec.time_limit == 5 and limited.spec.action == types.BoxSpace((1,), -1, 1)
    check_timesteps(rollout(limited, num_envs=2, length=20), limited.spec)


def test_a_list_reaches_an_array_parameter() -> None:
    values = parameters.parse_params({"steps": "1,2"}, {"steps": jnp.zeros(2, jnp.int32)}, "x")
    np.testing.assert_array_equal(values["steps"], [1, 2])
    assert values["steps"].dtype == jnp.int32
    torques = environments.make("gymnax:Acrobot-v1", {"available_torque": "-2,0,2"})
    state, _ = torques.reset(jax.random.key(0))
    ends = [torques.step(state, jnp.int32(action))[1].observation for action in range(3)]
    assert not np.allclose(ends[0], ends[1]) and not np.allclose(ends[1], ends[2])


@pytest.mark.parametrize("speed", [0.5, 8.0, 12.0])
def test_no_reward_of_a_pendulum_is_out_of_its_range(speed: float) -> None:
    environment = environments.make("gymnax:Pendulum-v1", {"max_speed": str(speed)})
    low, high = environment.spec.reward_range
    # Straight down, which is π from upright, as fast as an episode may begin or become, with all the torque.
    assert low <= -(np.pi**2 + 0.1 * max(1.0, speed) ** 2 + 0.001 * 2.0**2) + 1e-5 and high == 0.0


def test_a_limit_of_half_a_step_is_the_step_that_comes_to_it() -> None:
    environment = environments.make("gymnax:BernoulliBandit-misc", {"max_steps_in_episode": "10.5"})
    steps = rollout(environment, num_envs=1, length=24)
    assert (steps.step_type[:, 0] == types.LAST).nonzero()[0][0] == environment.spec.time_limit == 11


def test_observe_shows_only_some_components() -> None:
    whole, shown = environments.make("gymnax:CartPole-v1"), environments.make("gymnax:CartPole-v1", {"observe": "2,0"})
    assert shown.spec.observation.shape == (2,)
    np.testing.assert_array_equal(rollout(shown, 2, 40).observation, rollout(whole, 2, 40).observation[..., [2, 0]])


def test_observe_keeps_the_numbers_of_values_of_what_it_shows() -> None:
    spec = environments.make("gymnax:CartPole-v1").spec
    each, one = (spec._replace(categories={"": numbers}) for numbers in ((3, 4, 5, 6), (7,)))
    assert wrappers.spec_of(each, (2, 0)).categories == {"": (5, 3)}
    assert wrappers.spec_of(one, (2, 0)).categories == {"": (7,)}


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("gymnax:CartPole-v2", {}, "did you mean CartPole-v1"),
        ("gymnax:MNISTBandit-bsuite", {}, "gymnax has"),
        ("nothing:x", {}, "no suite nothing, expected one of"),
        ("CartPole-v1", {}, "expected suite:name, suites are"),
        ("wrappers:x", {}, "no suite wrappers"),
        ("gymnax:CartPole-v1", {"gravty": "1"}, "did you mean gravity"),
        ("gymnax:CartPole-v1", {"gravity": "much"}, "gravity=much: expected a number"),
        ("gymnax:CartPole-v1", {"tau": "nan"}, "env.params.tau=nan: expected a number"),
        ("gymnax:CartPole-v1", {"tau": "inf"}, "env.params.tau=inf: expected a number"),
        ("gymnax:Acrobot-v1", {"available_torque": "1,x"}, "=1,x: expected a number, or several separated by commas"),
        ("gymnax:Acrobot-v1", {"available_torque": "1"}, "available_torque=1: expected 3 numbers separated by commas"),
        ("gymnax:UmbrellaChain-bsuite", {"n_distractor": "-1"}, "n_distractor=-1: expected at least 0"),
        ("gymnax:Pong-misc", {"width": "0"}, "width=0: expected at least 1"),
        ("gymnax:MetaMaze-misc", {"rf_size": "2"}, "takes no such values"),
        ("gymnax:MemoryChain-bsuite", {"memory_length": "0"}, "env.params.memory_length=0: expected at least 1"),
        ("gymnax:CartPole-v1", {"observe": "0,4"}, "components 0 … 3"),
        ("gymnax:Catch-bsuite", {"observe": "0"}, "shape [D]"),
        ("gymnax:MetaMaze-misc", {"maze_size": "4"}, "maze_size"),
        ("toy:episode", {"length": "1.5"}, "expected a whole number"),
        ("toy:episode", {"length": "0"}, "length=0"),
        ("brax:ant", {"backend": "springy"}, "expected one of generalized"),
        ("brax:ant", {"episode_length": "0"}, "at least 1"),
    ],
)
def test_bad_input_is_refused_in_one_line(name: str, params: dict[str, str], message: str) -> None:
    with pytest.raises(errors.UsageError) as error:
        environments.make(name, params)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = importlib.import_module

    def without_brax(name: str, package: str | None = None) -> Any:
        if name.startswith(("brax", "mujoco")):
            raise ModuleNotFoundError("No module named 'brax'", name="brax")
        return real_import(name, package)

    monkeypatch.setattr("importlib.import_module", without_brax)
    with conftest.refused("--env=brax:ant ", 'pip install "brax=='):
        environments.make("brax:ant")


def test_importing_gymnax_imports_no_drawing_and_leaves_it_usable() -> None:
    code = (
        "import sys\n"
        "from jaxrl_dist.envs.suites import gymnax\n"
        "library = gymnax._import_library()\n"
        "assert not set(gymnax._DRAWING) & set(sys.modules)\n"
        "import gymnax.environments.misc.pong as pong\n"
        "assert pong.colors.ListedColormap(['k']).N == 1\n"
        "import matplotlib.pyplot\n"
        "assert matplotlib.pyplot.__file__\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_trees_that_change_are_refused_by_name() -> None:
    good = toy.bare("episode", 7)

    def longer(key: jax.Array, state: jax.Array, action: jax.Array) -> environments.Transition:
        transition = good.step(key, state, action)
        return transition._replace(observation=jnp.zeros(3))

    with pytest.raises(ValueError, match=r"toy:episode: .*\(2,\).*\(3,\)"):
        wrappers.auto_reset(good._replace(step=longer))
    with pytest.raises(ValueError, match="toy:episode: .*PyTreeDef"):
        wrappers.auto_reset(good._replace(reset=lambda key: (good.reset(key)[0], [jnp.zeros(2)])))


def test_an_environment_is_traced_once_for_all_programs() -> None:
    traced: list[str] = []
    bare = toy.bare("walk", 5)

    def reset(key: jax.Array) -> Any:
        traced.append("reset")
        return bare.reset(key)

    def step(key: jax.Array, state: Any, action: jax.Array) -> environments.Transition:
        traced.append("step")
        return bare.step(key, state, action)

    columns = environments.columns(wrappers.auto_reset(bare._replace(reset=reset, step=step)))
    for count in (2, 3):
        state, _ = columns.reset(jax.random.key(0), jnp.arange(count))
        jax.jit(columns.step).lower(state, jnp.zeros(count, jnp.int32))
    assert sorted(traced) == ["reset", "step"]


@pytest.mark.parametrize("params", [{}, {"rf_size": "5"}], ids=["by default", "another argument"])
def test_a_maze_shows_its_time_in_the_range_of_its_flags(params: dict[str, str]) -> None:
    environment = environments.make("gymnax:MetaMaze-misc", params)
    state, timestep = environment.reset(jax.random.key(0))
    for _ in range(20):
        state, timestep = environment.step(state, jnp.int32(0))
        assert abs(timestep.observation[-1]) <= 1
    counted = environments.make("gymnax:MetaMaze-misc", {"normalize_time": "false"})
    assert counted.step(counted.reset(jax.random.key(0))[0], jnp.int32(0))[1].observation[-1] == 1


def test_what_a_step_gives_behind_an_end_reaches_no_row() -> None:
    """It is computed all the same, and may be anything; so may the return of an episode that is over."""

    def reset(key: jax.Array) -> Any:
        return jnp.int32(0), jnp.zeros(1)

    def step(key: jax.Array, state: jax.Array, action: jax.Array) -> environments.Transition:
        reward = jnp.array([1.0, jnp.inf, jnp.nan])[state]
        return environments.Transition(state + 1, jnp.zeros(1), reward, state >= 1, state >= 2)

    spec = types.EnvironmentSpec("toy:x", (), types.DiscreteSpace(2), "classic")
    environment = wrappers.auto_reset(environments.BareEnvironment(reset, step, spec))
    state, rows = environment.reset(jax.random.key(0))[0], []
    for _ in range(4):
        state, row = environment.step(state, jnp.int32(0))
        rows.append([float(x) for x in (row.reward, row.info.reward, row.info.episode_return, row.discount)])
    assert rows == [[1, 1, 1, 1], [np.inf, np.inf, np.inf, 0], [0, 0, 0, 1], [1, 1, 1, 1]]


def test_what_begins_as_whole_numbers_may_go_on_as_reals() -> None:
    def reset(key: jax.Array) -> Any:
        return jnp.int32(0), jnp.zeros(2, jnp.int32)

    def step(key: jax.Array, state: jax.Array, action: jax.Array) -> environments.Transition:
        return environments.Transition(state + 0.5, jnp.full(2, state + 0.5), 0.0, False, False)

    spec = types.EnvironmentSpec("toy:x", (), types.DiscreteSpace(2), "classic")
    environment = wrappers.auto_reset(environments.BareEnvironment(reset, step, spec))
    assert environment.spec.observation.dtype == jnp.float32
    state, row = environment.reset(jax.random.key(0))
    assert row.observation.dtype == jnp.float32
    for wanted in (0.5, 1.0):
        state, row = environment.step(state, jnp.int32(0))
        assert row.observation.tolist() == [wanted] * 2


def test_an_evaluation_shows_what_training_shows() -> None:
    key = jax.random.key(0)
    walk, short = (environments.make("toy:walk", {"length": length}) for length in ("7", "3"))
    shown = wrappers.observe(walk._replace(evaluation=short), (1,)).evaluation
    assert shown is not None and shown.spec.time_limit == 3 and shown.spec.observation.shape == (1,)
    np.testing.assert_array_equal(shown.reset(key)[1].observation, short.reset(key)[1].observation[1:])
    choice = environments.make("toy:choice")
    flat = wrappers.flatten(choice._replace(evaluation=choice))
    assert flat.evaluation is not None and flat.evaluation.spec == flat.spec and not flat.spec.categories
    jax.tree.map(np.testing.assert_array_equal, flat.evaluation.reset(key)[1], flat.reset(key)[1])


def test_on_the_host_an_evaluation_is_played_in_environments_of_its_own() -> None:
    def maker(length: str) -> environments.MakeHost:
        made = environments.make("toy:walk", {"length": length})
        return lambda seeds, batch_size, timeout_s: as_host.AsHost(made, len(seeds), jax.random.key(seeds[0]))

    spec = environments.make("toy:walk").spec
    task = wrappers.observe_on_host(environments.HostTask(spec, "", maker("7"), make_evaluation=maker("1")), (1,))
    assert task.make_evaluation is not None
    for make, kind in ((task.make, types.MID), (task.make_evaluation, types.LAST)):
        host = make(np.zeros(1, np.uint32), 1, 60.0)
        assert host.reset().observation.shape == (1, 1)
        assert host.step(np.zeros(1, np.int32)).step_type.tolist() == [kind]


def test_a_flat_mask_is_a_vector_and_whole_numbers_are_reals() -> None:
    show = wrappers._Vector({"legal": 2, "score": 1}, {}, "legal", "")
    rows = {"legal": np.eye(2, 3, dtype=bool)[None].repeat(4, 0), "score": np.full((4, 2), 7, np.int32)}
    found = show(rows)
    assert found["action_mask"].tolist() == [[True, False, False, False, True, False]] * 4
    assert found["observation"].dtype == np.float32 and found["observation"].tolist() == [[7.0, 7.0]] * 4


@pytest.mark.parametrize(("privileged", "mask"), [("observation", ""), ("action_mask", "legal")])
def test_a_vector_takes_no_name_from_what_is_privileged(privileged: str, mask: str) -> None:
    leaves = {privileged: jax.ShapeDtypeStruct((2,), np.float32), "own": jax.ShapeDtypeStruct((3,), np.float32)}
    legal = {mask: jax.ShapeDtypeStruct((2,), np.bool_)} if mask else {}
    spec = types.EnvironmentSpec("mine:y", leaves | legal, types.DiscreteSpace(2), "classic", privileged=privileged)
    with conftest.refused("--env.params.flatten=true", privileged):
        wrappers._flat(spec._replace(mask=mask))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_not_finite_is_a_fault_in_any_float(dtype: Any, value: float) -> None:
    def environment(seen: float) -> Any:
        def step(key: Any, state: Any, action: Any) -> environments.Transition:
            return environments.Transition(state, jnp.array([0, seen], dtype), 0.0, False, False)

        spec = types.EnvironmentSpec("mine:x", (), types.DiscreteSpace(2), "classic")
        bare = environments.BareEnvironment(lambda key: (jnp.int32(0), jnp.zeros(2, dtype)), step, spec)
        return wrappers.auto_reset(bare)

    for seen, is_wrong in ((value, True), (1.0, False)):
        made = environment(seen)
        row = made.step(made.reset(jax.random.key(0))[0], 1)[1]
        assert environments.out_of_range(made.spec, row)["observation"].tolist() == is_wrong
        host = as_host.AsHost(made, 2, jax.random.key(0))
        host.reset()
        if is_wrong:
            with pytest.raises(errors.EnvironmentFault, match="observation of mine:x, environment 0"):
                host.step(np.zeros(2, np.int32))
        else:
            assert host.step(np.zeros(2, np.int32)).observation.tolist() == [[0, 1]] * 2


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [
        (-1.0, np.float32([1.0, 2.0]), "bounded"),
        (-1.0, np.inf, "unbounded"),
        (np.float32([-1.0, -np.inf]), 1.0, "unbounded"),
        (-1.0, np.float32([1.0, np.inf]), "unbounded"),
    ],
)
def test_actions_are_bounded_if_every_bound_is_finite(low: Any, high: Any, kind: str) -> None:
    assert types.BoxSpace((2,), low, high).kind == kind


def test_on_the_host_what_is_shown_waits_as_long_and_forgets_what_a_reset_ends() -> None:
    def make(seeds: np.ndarray, batch_size: int, timeout_s: float) -> environments.HostEnvironment:
        host = as_host.AsHost(environments.make("toy:walk"), len(seeds), jax.random.key(0))
        host.timeout_s = timeout_s
        return host

    spec = environments.make("toy:walk").spec
    host = wrappers.observe_on_host(environments.HostTask(spec, "", make), (1,)).make(np.zeros(2, np.uint32), 1, 7.0)
    assert host.timeout_s == 7.0
    first = host.reset()
    host.send(np.zeros(1, np.int32), np.array([1]))
    assert host.waiting_for.tolist() == [1]
    jax.tree.map(np.testing.assert_array_equal, host.reset(), first)
    assert host.step(np.zeros(2, np.int32)).step_type.tolist() == [types.MID] * 2


def test_planes_of_minatar_are_truth_values() -> None:
    assert environments.make("gymnax:Breakout-MinAtar").spec.observation.dtype == bool
    assert environments.make("gymnax:Pong-misc").spec.observation.dtype == jnp.float32


@pytest.mark.parametrize("name", ["choice", "choices"])
def test_a_choice_is_worth_1_if_both_numbers_are_right(name: str) -> None:
    environment = environments.make(f"toy:{name}")
    state, timestep = environment.reset(jax.random.key(0))
    goal, legal = (np.asarray(timestep.observation[leaf]) for leaf in ("goal", "action_mask"))
    pairs = np.stack(np.divmod(np.arange(6), 2), -1).astype(np.int32)
    actions = pairs if name == "choices" else np.arange(6, dtype=np.int32)
    rewards = jax.vmap(environment.step, (None, 0))(state, actions)[1].reward
    may = legal[pairs + [0, 3]].all(1) if name == "choices" else legal
    assert rewards.tolist() == np.where(may, (pairs == goal).all(1), -1).tolist()
    assert sorted(set(rewards.tolist())) == [-1, 0, 1]


def test_at_least_one_component_is_shown() -> None:
    with conftest.refused("--env.params.observe", "components 0 … 1"):
        wrappers.observe(environments.make("toy:walk"), ())
