"""Tests of the suite Gymnasium: spaces, arguments, names, and steps as the library itself makes them."""

import functools
import json
import signal
import subprocess
import sys
import types as modules
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import episodes, hangs, registered, worker_process
from jaxrl_dist.envs.suites import gymnasium as suite

gymnasium = pytest.importorskip("gymnasium")


def task(name: str, /, **params: str) -> envs.HostTask:
    made = envs.make(f"gymnasium:{name}", {"workers": "1", **params})
    assert isinstance(made, envs.HostTask)
    return made


def play(name: str, actions: Any, /, **params: str) -> list[types.TimeStep]:
    actions = np.asarray(actions)
    host = task(name, **params).make(np.arange(7, 7 + actions.shape[1], dtype=np.uint32), actions.shape[1], 30.0)
    try:
        return [host.reset(), *(host.step(action) for action in actions)]
    finally:
        host.close()


def test_a_leaf_may_have_no_numbers() -> None:
    shown = [row.observation for row in play("fakes.registered:Spaces-v0", np.full((2, 1, 2), 0.2), kind="nothing")]
    assert [row["none"].shape for row in shown] == [(1, 0)] * 3 and all(row["one"].item() == 0.5 for row in shown)


def test_steps_are_those_of_gymnasium_itself() -> None:
    actions = np.random.default_rng(0).integers(0, 2, (80, 2))
    rows = play("CartPole-v1", actions)
    assert sum((row.step_type == types.LAST).sum() for row in rows) > 3
    for env in range(2):
        theirs = gymnasium.make("CartPole-v1")
        observation, _ = theirs.reset(seed=7 + env)
        np.testing.assert_array_equal(rows[0].observation[env], observation)
        ended = False
        for row, action in zip(rows[1:], actions[:, env], strict=True):
            if ended:
                (observation, _), reward, ended, kind = theirs.reset(), 0, False, types.FIRST
            else:
                observation, reward, ended, _, _ = theirs.step(action)
                kind = types.LAST if ended else types.MID
            np.testing.assert_array_equal(row.observation[env], observation)
            assert (row.reward[env], row.step_type[env], row.discount[env]) == (reward, kind, not ended)


def test_a_task_says_what_its_environments_are() -> None:
    made = task("CartPole-v1")
    assert made.spec == types.EnvironmentSpec(
        "gymnasium:CartPole-v1",
        jax.ShapeDtypeStruct((4,), jnp.float32),
        types.DiscreteSpace(2),
        "classic",
        time_limit=500,
    )
    assert made.protocol == f"CartPole-v1 of Gymnasium {gymnasium.__version__}, episodes of at most 500 steps"
    pendulum = task("Pendulum-v1", max_episode_steps="20", g="9.5")
    assert pendulum.spec.family == "continuous" and pendulum.spec.time_limit == 20
    assert pendulum.spec.action == types.BoxSpace((1,), -2, 2)


def test_a_time_limit_is_a_truncation() -> None:
    rows = play("Pendulum-v1", np.zeros((9, 1, 1)), max_episode_steps="4")
    assert [int(row.step_type[0]) for row in rows] == [0, 1, 1, 1, 2, 0, 1, 1, 1, 2]
    assert all(row.discount[0] == 1 for row in rows)


def test_every_kind_of_observation_becomes_an_array_of_the_tree() -> None:
    made = task("fakes.registered:Spaces-v0")
    expected = {
        "image": jax.ShapeDtypeStruct((5, 4, 3), jnp.uint8),
        "deep": {"b": jax.ShapeDtypeStruct((3,), jnp.int8), "a": jax.ShapeDtypeStruct((4,), jnp.float32)},
        "pair": (jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.float32)),
    }
    assert made.spec.observation == expected
    rows = play("fakes.registered:Spaces-v0", np.full((6, 2, 2), 0.5))
    for t, row in enumerate(rows):
        assert jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), row.observation) == expected
        assert (row.observation["image"] == t).all()
        assert row.observation["deep"]["a"].tolist() == [np.eye(4)[t % 4].tolist()] * 2
        assert row.observation["deep"]["b"].tolist() == [[1, 0, t % 2]] * 2
        assert row.observation["pair"][0].tolist() == [np.float32(0.1)] * 2
        assert row.observation["pair"][1].tolist() == [[t, -t]] * 2


def test_channels_of_pictures_come_last() -> None:
    shape = jax.ShapeDtypeStruct((3, 4, 2), jnp.uint8)
    assert task("fakes.registered:Spaces-v0", kind="frames").spec.observation == shape
    row = play("fakes.registered:Spaces-v0", np.full((1, 2, 2), 0.5), kind="frames")[1]
    for one in row.observation:
        np.testing.assert_array_equal(one, np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0))


def test_a_grey_picture_has_one_channel_and_the_family_of_pictures() -> None:
    spec = task("fakes.registered:Spaces-v0", kind="grey").spec
    assert spec.observation == jax.ShapeDtypeStruct((36, 40, 1), jnp.uint8)
    row = play("fakes.registered:Spaces-v0", np.full((1, 2, 2), 0.5), kind="grey")[1]
    for one in row.observation:
        np.testing.assert_array_equal(one[..., 0], np.arange(1440).reshape(36, 40).astype(np.uint8))
    assert episodes.family(spec.observation, types.DiscreteSpace(2), 0) == "atari"


def test_whole_numbers_are_normalised_as_others_are() -> None:
    """Integers of a tree are not."""
    made = task("fakes.registered:Spaces-v0", kind="numbers")
    assert made.spec.observation == jax.ShapeDtypeStruct((2,), jnp.float32) and not made.spec.categories
    row = play("fakes.registered:Spaces-v0", np.full((1, 1, 2), 0.5), kind="numbers")[1]
    assert row.observation.dtype == np.float32 and row.observation.tolist() == [[100, 20_001]]


def test_a_text_is_its_characters() -> None:
    made = task("fakes.registered:Spaces-v0", kind="text")
    assert made.spec.observation == jax.ShapeDtypeStruct((5,), jnp.uint8) and made.spec.categories == {"": (128,)}
    first, row = play("fakes.registered:Spaces-v0", np.full((1, 2, 2), 0.5), kind="text")
    assert first.observation.tolist() == [[0] * 5] * 2
    assert row.observation.dtype == np.uint8 and row.observation.tolist() == [list(b"a1? m")] * 2


def test_a_mission_of_minigrid_has_a_length() -> None:
    space = type("MissionSpace", (gymnasium.spaces.Space,), {})()
    ((leaf, _),) = suite._leaves(gymnasium.spaces.Dict({"mission": space}), (), "x")
    assert leaf == worker_process.Leaf(("mission",), (96,), worker_process.TEXT)
    assert suite._categories([(leaf, space)]) == {"mission": (128,)}


def test_an_action_has_the_dtype_of_its_space() -> None:
    rows = play("fakes.registered:Spaces-v0", np.asarray([[2], [0]]), kind="small")
    assert len(rows) == 3


def test_whole_numbers_beyond_32_bits_do_not_wrap_around() -> None:
    row = play("fakes.registered:Spaces-v0", np.full((1, 1, 2), 0.5), kind="wide")[1]
    assert row.observation.dtype == np.float32 and row.observation.tolist() == [[np.float32(2**40)]]


def test_codes_of_minigrid_are_categories() -> None:
    leaves = [
        (worker_process.Leaf(("image",), shape, "uint8"), gymnasium.spaces.Box(0, 255, shape, np.uint8))
        for shape in ((7, 7, 3), (56, 56, 3), (7, 7, 1))
    ]
    environment = modules.SimpleNamespace(unwrapped=type("Grid", (), {"__module__": "minigrid.envs"})())
    assert suite._grids(environment, leaves[:1]) == {"image": (11, 6, 4)}
    assert suite._grids(environment, leaves[1:]) == {}
    assert suite._grids(modules.SimpleNamespace(unwrapped=leaves), leaves) == {}


def test_bytes_that_are_flags_are_no_pixels() -> None:
    made = task("fakes.registered:Spaces-v0", kind="flags")
    assert made.spec.observation == jax.ShapeDtypeStruct((2, 3, 1), jnp.int16)
    rows = play("fakes.registered:Spaces-v0", np.full((3, 2, 2), 0.5), kind="flags")
    assert all(row.observation.dtype == np.int16 for row in rows)
    assert [row.observation.max(initial=0) for row in rows] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("kind", "space", "sent", "received"),
    [
        ("from_five", types.DiscreteSpace(3), [2, 0], [[7], [5]]),
        ("vector", types.MultiDiscreteSpace((3, 2)), [[2, 0], [1, 1]], [[2, -1], [1, 0]]),
        ("table", types.MultiDiscreteSpace((3, 2, 2, 2)), [[2, 1, 0, 1], [0, 0, 1, 1]], [[2, 1, 0, 1], [0, 0, 1, 1]]),
        ("switches", types.MultiDiscreteSpace((2, 2, 2, 2)), [[1, 0, 1, 1], [0] * 4], [[1, 0, 1, 1], [0] * 4]),
    ],
)
def test_every_kind_of_choice_reaches_the_environment_as_its_own(
    kind: str, space: Any, sent: list[Any], received: list[Any]
) -> None:
    name = "fakes.registered:Choosing-v0"
    spec = task(name, kind=kind).spec
    assert (spec.action, spec.mask, spec.categories) == (space, "action_mask", {"hand": (4, 3)})
    rows = play(name, np.asarray([sent, sent]), kind=kind)
    assert rows[1].observation["last"].tolist() == rows[2].observation["last"].tolist() == received
    assert rows[0].observation["hand"].tolist() == [[3, 2]] * 2
    with pytest.raises(ValueError, match="valid: 0 to"):
        play(name, np.asarray([np.add(sent, 3)]), kind=kind)


def test_a_flat_observation_is_one_vector_beside_the_mask() -> None:
    name = "fakes.registered:Choosing-v0"
    spec = task(name, flatten="true").spec
    assert spec.observation["observation"] == jax.ShapeDtypeStruct((8,), jnp.float32)
    assert (spec.mask, spec.categories) == ("action_mask", {})
    row = play(name, np.asarray([[2, 0]]), flatten="true")[1]
    # The hand as one-hot vectors of four and of three, and the last action.
    assert row.observation["observation"].tolist() == [[0, 0, 0, 1, 0, 0, 1, 7], [0, 0, 0, 1, 0, 0, 1, 5]]
    assert row.observation["action_mask"].tolist() == [[1, 0, 1]] * 2
    tree = play("fakes.registered:Spaces-v0", np.full((1, 1, 2), 0.5), flatten="true")[1].observation
    assert tree.shape == (1, 4 + 3 + 60 + 1 + 2) and tree.dtype == np.float32


def test_real_actions_are_clipped_into_bounds_of_64_bits() -> None:
    # float32(0.1) and float32(0.7) lie outside of 0.1 and inside of 0.7; the environment asserts its own bounds.
    for action in ([9.0, 9.0], [-9.0, -9.0]):
        play("fakes.registered:Spaces-v0", np.full((2, 1, 2), action))


def test_arguments_reach_the_environment() -> None:
    def reward(**params: str) -> float:
        return float(play("fakes.registered:Spaces-v0", np.zeros((1, 1), int), kind="discrete", **params)[1].reward[0])

    assert reward() == 1
    assert reward(gain="2", flag="true", sizes="[1, 2]", text="ab cd") == 5212
    assert reward(gain="-1.5e0", flag="False", sizes="(3,)") == 98.5


def test_arguments_keep_their_types_on_the_way() -> None:
    """JSON has no tuples, and no keys but texts."""
    name = "fakes.registered:Arguments"
    rows = {
        "registered": play(f"{name}-v0", np.zeros((1, 1), int)),
        "flags": play(name, np.zeros((1, 1), int), size="(5, 6)", names="{1: 'a', (2, None): [True]}", bound="1e999"),
        "others": play(f"{name}-v0", np.zeros((1, 1), int), size="[5, 6]"),
    }
    assert {kind: found[1].observation.tolist() for kind, found in rows.items()} == {
        "registered": [[1]],
        "flags": [[1]],
        "others": [[0]],
    }


@pytest.mark.parametrize("value", [(1, [2.5, None]), {1: "a", (2, True): {"x": ()}}, float("inf"), "text", [], False])
def test_a_packed_value_is_unpacked_as_it_was(value: Any) -> None:
    sent = json.loads(json.dumps(worker_process.packed(value)))
    found = worker_process.unpacked(sent)
    assert found == value and repr(found) == repr(value)


def test_what_is_no_value_is_not_packed() -> None:
    with pytest.raises(TypeError, match="is no number, text, list, tuple or dict"):
        worker_process.packed({"x": [len]})


def test_an_observation_outside_its_space_is_named() -> None:
    with pytest.raises(errors.EnvironmentFault, match=r"observation of .*Spaces-v0 .*\[3\].*Discrete\(3\)"):
        play("fakes.registered:Spaces-v0", np.zeros((3, 1), int), kind="outside")


def test_a_missing_package_of_gymnasiums_own_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*arguments: Any, **kwargs: Any) -> None:
        raise ModuleNotFoundError("No module named 'imageio'")

    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(errors.UsageError, match=r"'imageio'.*\"gymnasium\[mujoco\]\"$"):
        envs.make("gymnasium:HalfCheetah-v5")
    with pytest.raises(errors.UsageError, match="'imageio'$"):
        envs.make("gymnasium:fakes.registered:Spaces-v0")


@pytest.mark.parametrize(
    ("name", "params", "named"),
    [
        (
            "CartPol-v1",
            {},
            r"=gymnasium:CartPol-v1: .* \d+ .*CartPole-v1, .*pprint_registry\(\).*module:name .* CartPole-v1\?$",
        ),
        ("CartPole-v7", {}, r"=gymnasium:CartPole-v7: .* CartPole-v1\?"),
        ("", {}, r"=gymnasium:: .*suite:name.* gymnasium:NAME\?"),
        ("nowhere_at_all:X-v0", {}, "nowhere_at_all: ModuleNotFoundError"),
        ("fakes.registered:Spaces-v1", {}, r"=gymnasium:fakes.registered:Spaces-v1: .* Spaces-v0\?"),
        ("fakes.registered:Local-v0", {}, "=gymnasium:fakes.registered:Local-v0: "),
        ("fakes.registered:Broken-v0", {}, "'nowhere_at_all'"),
        ("CartPole-v1", {"gravty": "3"}, "gravty: .*max_episode_steps, .*sutton_barto_reward, workers"),
        ("CartPole-v1", {"workers": "two"}, "workers=two: "),
        ("CartPole-v1", {"max_restarts": "-1"}, r"max_restarts=-1: .*\b0\b"),
        ("fakes.registered:Spaces-v0", {"kind": "integers"}, "actions .*Box"),
        ("fakes.registered:Spaces-v0", {"kind": "sequence"}, "observation .*Sequence"),
        ("fakes.registered:Spaces-v0", {"kind": "table"}, "observation/x .*MultiDiscrete"),
        ("fakes.registered:Spaces-v0", {"kind": "exit"}, "SystemExit: 6"),
        ("fakes.registered:Wrapped-v0", {}, "its arguments .*TypeError"),
        ("fakes.registered:Arguments-v0", {"size": "{1, 2}"}, "its arguments .*TypeError: {1, 2} is no number"),
        ("fakes.registered:Spaces-v0", {"kind": "bare"}, "spaces: AttributeError"),
    ],
)
def test_bad_input_is_refused_in_one_line(name: str, params: dict[str, str], named: str) -> None:
    with pytest.raises(errors.UsageError, match=named) as error:
        envs.make(f"gymnasium:{name}", params)
    assert "\n" not in str(error.value) and str(error.value).startswith("env")


@pytest.mark.parametrize("when", ["making", "closing"])
def test_one_that_hangs_as_it_is_looked_at_is_refused(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "MAKE_S", 0.2)
    before = signal.getsignal(signal.SIGALRM)
    with conftest.refused("--env=gymnasium:fakes.registered:Slow-v0: ", when, "0.2 s"):
        envs.make("gymnasium:fakes.registered:Slow-v0", {"hangs": when})
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert envs.make("gymnasium:fakes.registered:Slow-v0", {"hangs": "never"})


def test_an_environment_whose_package_is_missing_says_so() -> None:
    try:
        gymnasium.make("LunarLander-v3")
    except gymnasium.error.DependencyNotInstalled:
        with pytest.raises(errors.UsageError, match="Box2D"):
            task("LunarLander-v3")


def test_a_process_of_the_suite_imports_no_jax() -> None:
    code = (
        f"import runpy, sys; resolve = runpy.run_path({worker_process.__file__!r})['_resolve']\n"
        f"make = resolve({registered.__file__ + ':make'!r})\n"
        "import gymnasium; make({'entry': gymnasium.make('CartPole-v1').spec.to_json(), 'kwargs': {}})\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_class_or_a_function_is_an_environment_by_its_module() -> None:
    (first, *_), (scaled, *rows) = (
        play("fakes.registered:short_cart", np.zeros((7, 2), int), **params)
        for params in ({}, {"steps": "3", "scale": "2.0"})
    )
    np.testing.assert_array_equal(scaled.observation, 2 * first.observation)
    assert [int(row.step_type[0]) for row in rows] == [1, 1, 2, 0, 1, 1, 2]
    assert task("fakes.registered:short_cart", steps="3").spec.time_limit == 3
    rows = play("fakes.registered:Counting", np.zeros((8, 1), int), name="episode")
    assert [int(row.step_type[0]) for row in rows] == [0, *[1] * 6, 2, 0]


def test_a_registered_function_adds_its_own_wrappers_once() -> None:
    """Functions, which only its own module can name, are arguments of the wrappers."""
    own, theirs = (
        play(f"fakes.registered:{name}", np.zeros((6, 2), int), **params)
        for name, params in (("ShortCart-v0", {}), ("short_cart", {"scale": "2.0"}))
    )
    for x, y in zip(own, theirs, strict=True):
        np.testing.assert_array_equal(x.observation, y.observation)
        np.testing.assert_array_equal(x.step_type, y.step_type)
    cut = play("fakes.registered:ShortCart-v0", np.zeros((4, 1), int), steps="3", scale="1.0")
    assert [int(row.step_type[0]) for row in cut] == [0, 1, 1, 2, 0]
    np.testing.assert_array_equal(2 * cut[0].observation[:1], own[0].observation[:1])
    assert task("fakes.registered:ShortCart-v0", max_episode_steps="2").spec.time_limit == 2


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("fakes.registered:Countin", {}, ("did you mean Counting?",)),
        ("fakes.registered:short_cart", {"step": "3"}, ("env.params.step", "steps")),
        ("fakes.registered:Counting", {}, ("gymnasium:fakes.registered:Counting", "name")),
    ],
)
def test_a_function_that_does_not_fit_is_refused_in_one_line(name: str, params: Any, words: Any) -> None:
    with conftest.refused(*words):
        envs.make(f"gymnasium:{name}", params)


def test_objects_are_named_as_other_processes_find_them() -> None:
    from fakes import registered as fakes

    from jaxrl_dist.envs.suites import gymnasium as suite

    def named(given: Any) -> tuple[str, dict[str, str]]:
        return tuple(suite.named(given))

    assert named(fakes.Spaces) == ("gymnasium:fakes.registered:Spaces", {})
    partial = functools.partial(fakes.short_cart, steps=3, scale=0.5)
    assert named(partial) == ("gymnasium:fakes.registered:short_cart", {"steps": "3", "scale": "0.5"})
    assert named(gymnasium.make("CartPole-v1", render_mode="rgb_array")) == ("gymnasium:CartPole-v1", {})
    made = gymnasium.make("MountainCarContinuous-v0", goal_velocity=0.1, max_episode_steps=9)
    params = {"goal_velocity": "0.1", "max_episode_steps": "9"}
    assert named(made) == ("gymnasium:MountainCarContinuous-v0", params)
    assert envs.make(*named(made)).spec.time_limit == 9
    made = gymnasium.make("Spaces-v0", kind="discrete", flag=True, sizes=(1, 2), text="a:b")
    name, params = named(made)
    assert name == "gymnasium:fakes.registered:Spaces-v0"
    assert params == {"kind": "discrete", "flag": "True", "sizes": "(1, 2)", "text": "a:b"}


class Here:
    """Holds a class that is not at the top level of its module."""

    class Inner(gymnasium.Env):
        pass


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: gymnasium.make("CartPole-v1"), ("env=<lambda>", "import")),
        (Here.Inner, ("env=<Inner>", "Here.Inner", "top level")),
        (gymnasium.make("CartPole-v1").unwrapped.__class__(), ("env=<CartPoleEnv>", "instance")),
        (
            gymnasium.wrappers.FlattenObservation(gymnasium.make("CartPole-v1")),
            ("env=<FlattenObservation>", "wrappers"),
        ),
        (gymnasium.make_vec("CartPole-v1", 2), ("instance",)),
        (functools.partial(Here, size=object()), ("size",)),
        (object(), ("env=<object>",)),
    ],
)
def test_an_object_that_cannot_be_made_again_is_refused_in_one_line(given: Any, words: Any) -> None:
    from jaxrl_dist.envs.suites import gymnasium as suite

    with conftest.refused("%%writefile", *words):
        suite.named(given)
