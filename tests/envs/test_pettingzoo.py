"""PettingZoo's parallel API in a pool of processes: rows of agents that end early, faults, and what is refused."""

import contextlib
import importlib.util
from typing import Any

import conftest
import jax
import numpy as np
import pytest
from fakes import teams as teams_of_fakes

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import teams, together

pytest.importorskip("gymnasium")
NAME = "pettingzoo:fakes.teams:Team"
ENDS = np.array([7, 5, 3])


def task(**params: str) -> envs.HostTask:
    made = envs.make(NAME, {"workers": "1", **params})
    assert isinstance(made, envs.HostTask)
    return made


@contextlib.contextmanager
def two(**params: str) -> Any:
    environment = task(**params).make(np.arange(2, dtype=np.uint32), 2, 30.0)
    try:
        yield environment
    finally:
        environment.close()


def test_agents_of_known_ends_are_columns() -> None:
    spec = task().spec
    assert (spec.time_limit, spec.family) == (0, "classic")
    long = task(time_limit="501").spec
    assert (long.time_limit, long.family) == (501, "long")
    assert spec.num_agents == 3 and spec.privileged == "all" and spec.categories == {"agent": (3,)}
    assert {name: leaf.shape for name, leaf in spec.observation.items()} == {"own": (2,), "agent": (), "all": (6,)}
    with two() as environment:
        row = environment.reset()
        assert row.step_type.tolist() == [types.FIRST] * 6
        assert row.observation["agent"].tolist() == [0, 1, 2, 0, 1, 2]
        goals = row.observation["own"][:, 0].reshape(2, 3)
        assert (goals == goals[:, :1]).all()
        for t in range(1, 8):
            seen = row.observation
            action = (seen["own"][:, 0].astype(np.int32) + seen["agent"]) % 3
            row = environment.step(action)
            ended = np.tile(t >= ENDS, 2)
            assert row.step_type.tolist() == np.where(ended, types.LAST, types.MID).tolist()
            assert row.reward.tolist() == np.tile(t <= ENDS, 2).astype(float).tolist()
            assert row.discount.reshape(2, 3)[:, 0].tolist() == [1.0, 1.0]
            assert row.discount.reshape(2, 3)[:, 1:].tolist() == (1.0 - ended.reshape(2, 3)[:, 1:]).tolist()
            assert row.info.episode_length.tolist() == np.tile(np.minimum(t, ENDS), 2).tolist()
            # Whoever is gone keeps what it saw last.
            assert row.observation["own"][:, 1].tolist() == np.tile(np.minimum(t, ENDS), 2).tolist()
            every = row.observation["own"].reshape(2, 6).repeat(3, 0)
            assert row.observation["all"].tolist() == every.tolist()
        assert row.info.episode_return.tolist() == [7.0, 5.0, 3.0] * 2
        assert environment.step(np.zeros(6, np.int32)).step_type.tolist() == [types.FIRST] * 6


def test_masks_and_names_of_dicts_are_kept() -> None:
    spec = task(masked="true").spec
    assert spec.mask == "action_mask" and spec.privileged == "" and "observation" in spec.observation
    with two(masked="true") as environment:
        row = environment.reset()
        assert row.observation["action_mask"].shape == (6, 3) and (row.observation["action_mask"].sum(1) == 2).all()


def test_channels_of_pictures_come_last() -> None:
    spec = task(picture="true").spec
    assert spec.observation["own"] == jax.ShapeDtypeStruct((3, 4, 2), np.uint8) and spec.privileged == ""
    with two(picture="true") as environment:
        for row, own in enumerate(environment.reset().observation["own"]):
            name = list(teams_of_fakes.ENDS)[row % 3]
            np.testing.assert_array_equal(own, np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0) + len(name))


def test_rows_after_an_agent_s_end_have_discount_0_though_it_was_cut_short() -> None:
    """As those of environments on the device: no value follows there."""
    with two(early="true") as environment:
        environment.reset()
        found = [environment.step(np.zeros(6, np.int32)).discount[2] for _ in range(7)]
    assert found == [1, 1, 1, 0, 0, 0, 0]


def test_a_reset_waits_for_steps_and_forgets_them() -> None:
    with two() as environment:
        environment.reset()
        environment.send(np.zeros(6, np.int32), np.arange(2))
        assert environment.reset().step_type.tolist() == [types.FIRST] * 6
        assert environment.step(np.zeros(6, np.int32)).step_type.tolist() == [types.MID] * 6


def test_a_lost_environment_cuts_the_episodes_of_all_its_agents_short() -> None:
    with two(fails_at="2") as environment, pytest.warns(RuntimeWarning):
        environment.reset()
        environment.step(np.zeros(6, np.int32))
        row = environment.step(np.zeros(6, np.int32))
        assert row.step_type.tolist() == [types.LAST] * 6
        assert row.reward.tolist() == [0.0] * 6 and row.discount.tolist() == [1.0] * 6
        assert row.info.episode_length.tolist() == [0] * 6
        assert environment.step(np.zeros(6, np.int32)).step_type.tolist() == [types.FIRST] * 6


def test_what_does_not_fit_is_refused() -> None:
    with conftest.refused(f"env={NAME}", "blue"):
        task(other="true")
    with conftest.refused(f"env={NAME}", "a leaf called agent"):
        task(masked="true", leaf="agent")
    with conftest.refused(f"env={NAME}", "TypeError: {1} is no number"):
        task(late="{1}")
    with conftest.refused("env=pettingzoo:fakes.teams:Teem", "Team"):
        envs.make("pettingzoo:fakes.teams:Teem")
    with pytest.raises(errors.EnvironmentFault), two(late="true", max_restarts="0") as environment:
        environment.reset()


def test_modules_of_the_library_are_found_or_refused() -> None:
    if importlib.util.find_spec("pettingzoo") is None:
        pytest.skip("pettingzoo is not installed: it is the extra pettingzoo")
    with conftest.refused("env=pettingzoo:butterfly.pistonbal_v6"):
        envs.make("pettingzoo:butterfly.pistonbal_v6")


def test_what_all_see_is_joined_by_environment() -> None:
    seen = teams.show(2, True, {"": np.arange(6.0)[:, None]})
    assert seen["all"].tolist() == [[0.0, 1.0]] * 2 + [[2.0, 3.0]] * 2 + [[4.0, 5.0]] * 2
    assert seen["agent"].tolist() == [0, 1, 0, 1, 0, 1]
    assert "all" not in teams.show(2, False, {"picture": np.zeros((2, 3, 3))})


def test_an_agent_that_leaves_without_a_word_is_cut_short() -> None:
    class Leaving(teams_of_fakes.Team):
        def step(self, actions: dict[str, Any]) -> Any:
            seen, rewards, *_, told = super().step(actions)
            return seen, rewards, {}, {}, told

    environment = together.Together(Leaving())
    environment.reset(seed=0)
    found = [environment.step(np.zeros(3, np.int64)) for _ in range(7)]
    ends = [step[0][together.ENDS].tolist() for step in found]
    cut, gone = together.TRUNCATED, together.GONE
    assert ends == [[0, 0, 0]] * 2 + [[0, 0, cut], [0, 0, gone], [0, cut, gone], [0, gone, gone], [cut, gone, gone]]
    assert [step[2] for step in found] == [False] * 6 + [True]
