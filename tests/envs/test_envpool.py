"""The facts of EnvPool itself that its adapter rests on, and what the adapter makes of its names and parameters."""

import threading
import time
import warnings
from typing import Any

import conftest
import gymnasium
import jax
import numpy as np
import pytest

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import episodes, hangs
from jaxrl_dist.envs.suites import envpool


def made(name: str, seeds: Any = (1, 2), batch_size: int = 0, **params: str) -> envs.HostEnvironment:
    pytest.importorskip("envpool")
    task = envs.make(f"envpool:{name}", params)
    assert isinstance(task, envs.HostTask)
    return task.make(np.asarray(seeds, np.uint32), batch_size or len(seeds), 60.0)


def random_actions(spec: types.EnvironmentSpec, length: int, num_envs: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if isinstance(spec.action, types.DiscreteSpace):
        return rng.integers(0, spec.action.num_values, (length, num_envs), np.int32)
    return rng.uniform(-1, 1, (length, num_envs, *spec.action.shape)).astype(np.float32)


def assert_equal(left: Any, right: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


def no_envs(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


@pytest.mark.parametrize("name", ["CartPole-v1", "HalfCheetah-v4", "Pong-v5"])
def test_seeds_alone_decide_what_happens(name: str) -> None:
    same, again, other = made(name, (1, 2)), made(name, (1, 2)), made(name, (1, 3))
    rows: list[list[Any]] = [[environment.reset()] for environment in (same, again, other)]
    for action in random_actions(same.spec, 25, 2):
        for column, environment in zip(rows, (same, again, other), strict=True):
            column.append(environment.step(action))
    stacked = [np.stack([row.observation for row in column]) for column in rows]
    assert stacked[0].dtype == same.spec.observation.dtype and stacked[0].shape[2:] == same.spec.observation.shape
    np.testing.assert_array_equal(stacked[0], stacked[1])
    np.testing.assert_array_equal(stacked[0][:, 0], stacked[2][:, 0])
    assert (stacked[0][:, 1] != stacked[2][:, 1]).any()


@pytest.mark.parametrize("name", ["CartPole-v1", "HalfCheetah-v4", "Pong-v5", "FrozenLake-v1", "MiniGrid-Empty-5x5-v0"])
def test_native_calls_give_what_the_gymnasium_face_does(name: str) -> None:
    task = envs.make(f"envpool:{name}")
    library = pytest.importorskip("envpool")
    settings = {"max_episode_steps": 15}
    own, bare = (envpool._make_pool(library, name, settings, np.arange(3, dtype=np.uint32), 3) for _ in range(2))
    native, ids = envpool._Bare(bare), np.arange(3, dtype=np.int32)
    own.async_reset()
    native.async_reset()
    for action in [None, *random_actions(task.spec, 80, 3)]:
        if action is not None:
            own.send(action, ids)
            native.send(action, ids)
        expected, found = own.recv(), native.recv()
        info = {name: expected[-1][name] for name in found[-1]}
        assert_equal((*expected[:-1], info), found)
        assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(lambda x: x.dtype, (*expected[:-1], info))
    assert len(native) == 3


@pytest.mark.parametrize("batch_size", [6, 2])
def test_what_was_returned_is_never_written_to_again(batch_size: int) -> None:
    environment = made("CartPole-v1", range(6), batch_size)
    kept = [environment.reset()]
    for action in random_actions(environment.spec, 60, 6):
        kept.append(environment.step(action))
        kept[-1] = (kept[-1], jax.tree.map(np.copy, kept[-1]))
    for row, copy in kept[1:]:
        assert_equal(row, copy)


def test_batches_of_a_pool_give_the_rows_of_the_whole() -> None:
    together, apart = made("CartPole-v1", range(6), 6), made("CartPole-v1", range(6), 2)
    for _ in range(2):
        together.reset()
        first = apart.reset()
        assert (first.step_type == types.FIRST).all()
    together, apart = made("CartPole-v1", range(6), 6), made("CartPole-v1", range(6), 2)
    assert_equal(together.reset(), apart.reset())
    for action in random_actions(together.spec, 40, 6):
        assert_equal(together.step(action), apart.step(action))


def test_rows_belong_to_their_environments_in_whatever_order_they_come() -> None:
    together, apart = made("CartPole-v1", range(4), 4), made("CartPole-v1", range(4), 1)
    assert_equal(together.reset(), apart.reset())
    for action in random_actions(together.spec, 30, 4):
        expected = together.step(action)
        apart.send(action[::-1], np.arange(4)[::-1])
        for _ in range(4):
            row, env_ids = apart.recv()
            assert_equal(row, jax.tree.map(lambda x: x[env_ids], expected))  # noqa: B023


def test_a_time_limit_truncates_and_the_next_step_resets() -> None:
    environment = made("CartPole-v1", max_episode_steps="5")
    environment.reset()
    rows = [environment.step(np.full(2, t % 2, np.int32)) for t in range(7)]
    assert environment.spec.time_limit == 5
    assert [int(row.step_type[0]) for row in rows] == [1, 1, 1, 1, 2, 0, 1]
    assert [float(row.discount[0]) for row in rows] == [1] * 7
    assert [float(row.reward[0]) for row in rows] == [1, 1, 1, 1, 1, 0, 1]
    assert [int(row.info.episode_length[0]) for row in rows] == [1, 2, 3, 4, 5, 0, 1]


def test_lives_of_breakout() -> None:
    lost = {}
    for protocol in ("deepmind", "machado"):
        environment = made("Breakout-v5", (1,), protocol=protocol, repeat_action_probability="0", noop_max="1")
        environment.reset()
        rows = [environment.step(np.array([1 if t % 9 == 0 else 3], np.int32)) for t in range(150)]
        zeros = [row for row in rows if row.discount[0] == 0]
        lost[protocol] = sum(int(row.step_type[0]) == types.MID and not row.info.game_over[0] for row in zeros)
    assert lost["deepmind"] >= 2 and lost["machado"] == 0


def test_what_a_hanging_pool_leaves_other_threads() -> None:
    environment: Any = made("CartPole-v1", range(4), 2)
    environment.timeout_s = 0.1
    environment._busy[:] = True
    waiting = threading.Thread(target=environment.recv, daemon=True)
    waiting.start()
    time.sleep(0.3)
    with pytest.raises(errors.EnvironmentFault, match=r"envpool:CartPole-v1 .*\b0\.1 s\b"):
        hangs.check_waiting(environment)
    environment.close()
    assert waiting.is_alive()


SPECS = {
    "Pong-v5": ((84, 84, 1), np.uint8, "atari", 27000, 4),
    "HalfCheetah-v4": ((17,), np.float32, "continuous", 1000, 1),
    "CartPole-v1": ((4,), np.float32, "classic", 500, 1),
    "FrozenLake-v1": ((16,), np.float32, "classic", 100, 1),
    "Blackjack-v1": ((3,), np.float32, "classic", 0, 1),
    "CarRacing-v3": ((96, 96, 3), np.uint8, "continuous", 1000, 1),
}


@pytest.mark.parametrize("name", SPECS)
def test_specs_without_an_environment(name: str) -> None:
    pytest.importorskip("envpool")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task: Any = envs.make(f"envpool:{name}")
    spec = task.spec
    given = (spec.observation.shape, spec.observation.dtype, spec.family, spec.time_limit, spec.frames_per_step)
    assert given == SPECS[name]


def test_discrete_observations_are_one_hot() -> None:
    environment = made("FrozenLake-v1")
    observation = environment.reset().observation
    np.testing.assert_array_equal(observation, np.eye(16, dtype=np.float32)[[0, 0]])


def test_trees_of_observations() -> None:
    environment = made("MiniGrid-Empty-5x5-v0")
    observation = environment.reset().observation
    assert episodes.observation_structs(observation) == environment.spec.observation
    assert observation["image"].dtype == np.uint8 and observation["direction"].sum() == 2


def test_codes_of_cells_are_categories_and_no_pixels() -> None:
    environment = made("MiniGrid-DoorKey-5x5-v0", range(8))
    highest, rng = np.zeros(3, int), np.random.default_rng(0)
    row = environment.reset()
    for _ in range(100):
        highest = np.maximum(highest, row.observation["image"].max((0, 1, 2)))
        row = environment.step(rng.integers(0, 7, 8))
    numbers = environment.spec.categories["image"]
    assert environment.spec.categories["mission"] == (128,) and row.observation["mission"].max() < 128
    assert highest.tolist() == [8, 5, 2] and (highest < numbers).all()
    assert made("CartPole-v1").spec.categories == {}


def test_bytes_below_255_are_numbers_and_no_pixels() -> None:
    environment = made("Jumanji/Sokoban-v0")
    grid = environment.reset().observation["grid"]
    assert grid.dtype == np.int16 and grid.max() in (3, 4)
    assert episodes.observation_structs(environment.reset().observation) == environment.spec.observation
    leading = envpool._leaf_converter(gymnasium.spaces.Box(0, 4, (2, 5, 6), np.uint8), "fake")
    sent = np.arange(60, dtype=np.uint8).reshape(1, 2, 5, 6) % 5
    assert leading[1] == jax.ShapeDtypeStruct((5, 6, 2), np.int16)
    assert leading[0](sent).dtype == np.int16
    np.testing.assert_array_equal(leading[0](sent), sent.transpose(0, 2, 3, 1))


def test_protocols_are_named_with_what_was_changed() -> None:
    pytest.importorskip("envpool")
    tasks: list[Any] = [
        envs.make("envpool:Breakout-v5", params)
        for params in ({}, {"protocol": "machado"}, {"noop_max": "5", "num_threads": "1", "frame_skip": "4"})
    ]
    assert tasks[0].protocol.startswith("Atari protocol deepmind: no sticky actions, up to 30 no-ops")
    assert "sticky actions 0.25" in tasks[1].protocol and "a life loss ends nothing" in tasks[1].protocol
    assert tasks[2].protocol.startswith("Atari protocol deepmind, changed by noop_max=5: ")
    assert [task.spec.action.num_values for task in tasks] == [4, 18, 4]
    changed: Any = envs.make("envpool:CartPole-v1", {"max_episode_steps": "9"})
    threads: Any = envs.make("envpool:CartPole-v1", {"num_threads": "1"})
    assert changed.protocol == "changed: max_episode_steps=9" and threads.protocol == ""
    # C51's support follows from the range, so the number of threads must not change it.
    assert threads.spec.reward_range == (0, 1) and changed.spec.reward_range == (-np.inf, np.inf)


def test_observe_shows_only_some_components() -> None:
    whole, shown = made("CartPole-v1"), made("CartPole-v1", observe="2,0")
    assert shown.spec.observation.shape == (2,) and shown.num_envs == 2
    np.testing.assert_array_equal(shown.reset().observation, whole.reset().observation[:, [2, 0]])
    shown.send(no_envs(2), np.arange(2))
    assert shown.recv()[0].observation.shape == (2, 2)
    shown.close()


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("CartPole-v2", {}, "did you mean CartPole-v1"),
        ("Hoper-v4", {}, "names, such as Hopper-v4, "),
        ("Hoper-v4", {}, 'print(envpool.list_all_envs())" lists all); did you mean Hopper-v4?'),
        ("zzzzzzzz", {}, 'names (python -c "import envpool; print(envpool.list_all_envs())" lists all)'),
        ("TicTacToe-v1", {}, "only one is supported"),
        ("BinPack-v2", {}, "valid: Discrete, MultiDiscrete"),
        ("Maze-v0", {}, "valid: arrays, or a dict of arrays"),
        ("CartPole-v1", {"protocol": "deepmind"}, "takes"),
        ("CartPole-v1", {"max_episode_steps": "0"}, "at least 1"),
        ("CliffWalking-v0", {"max_episode_steps": "15"}, "does not keep to one"),
        ("Snake-v1", {"max_episode_steps": "15"}, "does not keep to one"),
        ("CartPole-v1", {"num_threads": "-1"}, "at least 0"),
        ("CartPole-v1", {"observe": "4"}, "components 0 … 3"),
        ("Pong-v5", {"observe": "0"}, "shape [D]"),
        ("Pong-v5", {"protocol": "deepmid"}, "did you mean deepmind"),
        ("Pong-v5", {"episodic_life": "1"}, "takes"),
        ("Pong-v5", {"noop_max": "0"}, "at least 1"),
        ("Pong-v5", {"repeat_action_probability": "2"}, "a probability"),
        ("Pong-v5", {"mode": "77"}, "Invalid game mode"),
    ],
)
def test_bad_input_is_refused_in_one_line(name: str, params: dict[str, str], message: str) -> None:
    pytest.importorskip("envpool")
    with pytest.raises(errors.UsageError) as error:
        envs.make(f"envpool:{name}", params)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_batches_must_divide_the_environments() -> None:
    with pytest.raises(ValueError, match=r"batch_size=2\b.*\b3 environments"):
        made("CartPole-v1", (1, 2, 3), 2)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    real_import = importlib.import_module

    def without_envpool(name: str, package: str | None = None) -> Any:
        if name == "envpool":
            raise ModuleNotFoundError("No module named 'envpool'", name="envpool")
        return real_import(name, package)

    monkeypatch.setattr("importlib.import_module", without_envpool)
    with conftest.refused("--env=envpool:CartPole-v1 ", 'pip install "envpool=='):
        envs.make("envpool:CartPole-v1")


def test_what_is_legal_private_or_without_bounds_is_told() -> None:
    pytest.importorskip("envpool")

    def spec(name: str) -> types.EnvironmentSpec:
        return envs.make(f"envpool:{name}").spec

    assert spec("Jumanji/Knapsack-v1").mask == "action_mask" and spec("CartPole-v1").mask == ""
    walks = spec("ApolloJoystickFlatTerrain-v1")
    assert walks.privileged == "privileged_state" and set(walks.observation) == {"privileged_state", "state"}
    wide = spec("LqrLqr21-v1").action
    assert isinstance(wide, types.BoxSpace) and np.isposinf(wide.high).all() and np.isneginf(wide.low).all()
    assert spec("Basic-v1").action == types.DiscreteSpace(6)


def test_a_limit_of_football_is_the_step_after_it() -> None:
    library = pytest.importorskip("envpool.registration").registry
    game = next(name for name, (module, *_) in library.specs.items() if module == "envpool.gfootball")
    assert (envpool._time_limit(game, 400), envpool._time_limit("CartPole-v1", 400)) == (401, 400)
    assert [envpool._time_limit("CartPole-v1", limit) for limit in (0, -1, 2**31 - 1)] == [0, 0, 0]


def test_actions_from_the_smallest_number_on_have_no_bound() -> None:
    tiny = np.finfo(np.float32).tiny
    low, high = np.float32([tiny, tiny, -1.0, -np.inf]), np.float32([np.inf, 1.0, np.inf, np.inf])
    found = envpool._bounded(types.BoxSpace((4,), low, high))
    assert isinstance(found, types.BoxSpace)
    np.testing.assert_array_equal(found.low, np.float32([-np.inf, tiny, -1.0, -np.inf]))
    np.testing.assert_array_equal(found.high, high)
