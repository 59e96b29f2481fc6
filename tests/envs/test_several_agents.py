"""Tests of environments with several agents: columns, rows of agents whose episode has ended, and their account."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import check, wrappers
from jaxrl_dist.envs.host import as_host, checked, episodes

AGENTS, LENGTH = 3, 7
ENDS = np.array([7, 5, 3])
KEY = jax.random.key(3)


def team(**params: str) -> envs.Environment:
    environment = envs.make("toy:team", params)
    assert isinstance(environment, envs.Environment)
    return environment


def right(observation: Any) -> Any:
    """Returns the actions [B] that are worth 1."""
    return (observation["goal"][..., 0].astype(np.int32) + observation["agent"]) % AGENTS


def played(columns: envs.Columns, num_envs: int, steps: int, action: Any = right) -> list[types.TimeStep]:
    state, timestep = columns.reset(KEY, jnp.arange(num_envs))
    step, rows = jax.jit(columns.step), [timestep]
    for _ in range(steps):
        state, timestep = step(state, action(timestep.observation))
        rows.append(timestep)
    return [jax.device_get(row) for row in rows]


def test_columns_are_environment_major() -> None:
    rows = played(envs.columns(team()), 2, 1)
    assert rows[0].observation["agent"].tolist() == [0, 1, 2, 0, 1, 2]
    goals = rows[0].observation["goal"].reshape(2, AGENTS)
    assert (goals == goals[:, :1]).all()
    # The second environment is that of its own key.
    state, alone = team().reset(jax.random.fold_in(KEY, 1))
    assert alone.observation["goal"].tolist() == rows[0].observation["goal"][AGENTS:].tolist()
    _, stepped = team().step(state, jnp.array([2, 0, 1]))
    taken = jnp.array([0, 0, 0, 2, 0, 1])
    second = envs.columns(team()).step(envs.columns(team()).reset(KEY, jnp.arange(2))[0], taken)[1]
    assert second.reward[AGENTS:].tolist() == stepped.reward.tolist()


def test_indices_and_outcomes_follow_the_same_order() -> None:
    assert envs.column_ids(np.array([1, 0], np.int32), 2).tolist() == [2, 3, 0, 1]
    assert envs.column_ids(np.array([4, 2], np.int32), 1).tolist() == [4, 2]
    last, middle = types.LAST, types.MID
    step_type = np.array([[last, last, middle, last]], np.int8)
    returns, lengths = np.array([[1.0, 2.0, 3.0, 5.0]], np.float32), np.array([[3, 7, 2, 1]])
    ended, mean, longest = envs.outcomes(2, step_type, returns, lengths)
    assert ended.tolist() == [[True, False]] and mean.tolist() == [[1.5, 4.0]] and longest.tolist() == [[7, 2]]
    alone = envs.outcomes(1, step_type, returns, lengths)
    assert alone.ended.tolist() == (step_type == last).tolist() and alone.episode_return is returns


def test_an_agent_that_ended_has_last_rows_until_all_are_reset_at_once() -> None:
    rows = played(envs.columns(team()), 1, 9)
    for t, row in enumerate(rows[1:8], 1):
        ended = t >= ENDS
        assert row.step_type.tolist() == np.where(ended, types.LAST, types.MID).tolist()
        # Agent 0 is truncated, the others terminate.
        assert row.discount.tolist() == [1.0, *(1.0 - ended[1:])]
        assert row.reward.tolist() == np.where(t > ENDS, 0.5, 1.0).tolist()
        assert row.info.game_over.tolist() == [False, *ended[1:].tolist()]
        assert row.info.episode_length.tolist() == np.minimum(t, ENDS).tolist()
        assert row.info.episode_return.tolist() == (np.minimum(t, ENDS) + 0.5 * np.maximum(t - ENDS, 0)).tolist()
        assert row.observation["all"][:, 0].tolist() == [(~ended).sum()] * AGENTS
    fresh = rows[8]
    assert fresh.step_type.tolist() == [types.FIRST] * AGENTS
    assert fresh.reward.tolist() == [0.0] * AGENTS and fresh.discount.tolist() == [1.0] * AGENTS
    assert fresh.info.episode_length.tolist() == [0] * AGENTS and fresh.info.episode_return.tolist() == [0.0] * AGENTS
    assert rows[9].step_type.tolist() == [types.MID] * AGENTS


def test_one_number_serves_for_all_agents() -> None:
    def reset(key: Any) -> Any:
        return jnp.int32(0), jnp.zeros((2, 1))

    def step(key: Any, state: Any, action: Any) -> envs.Transition:
        return envs.Transition(state + 1, jnp.ones((2, 1)), 0.5, state >= 0, jnp.bool_(False))

    spec = types.EnvironmentSpec("mine:pair", (), types.BoxSpace((3,), -1.0, 1.0), "continuous", num_agents=2)
    environment = wrappers.auto_reset(envs.BareEnvironment(reset, step, spec))
    assert environment.spec.observation.shape == (1,)
    row = environment.step(environment.reset(KEY)[0], jnp.zeros((2, 3)))[1]
    assert row.reward.tolist() == [0.5, 0.5] and row.step_type.tolist() == [types.LAST] * 2
    assert row.discount.tolist() == [0.0, 0.0]


def test_on_the_host_rows_and_account_are_those_of_the_device() -> None:
    host, device = as_host.AsHost(team(), 2, KEY), played(envs.columns(team()), 2, 17)
    row = host.reset()
    for expected in device[1:]:
        row = host.step(right(row.observation))
        jax.tree.map(np.testing.assert_array_equal, row, expected)
    saved = host.state()
    other = as_host.AsHost(team(), 2, KEY)
    other.load(saved)
    action = right(row.observation)
    jax.tree.map(np.testing.assert_array_equal, other.step(action), host.step(action))


def test_environments_are_sent_apart_with_the_actions_of_their_agents() -> None:
    together, apart = as_host.AsHost(team(), 3, KEY), as_host.AsHost(team(), 3, KEY)
    row = together.reset()
    apart.reset()
    for _ in range(9):
        action = right(row.observation)
        row = together.step(action)
        for ids in (np.array([2, 0]), np.array([1])):
            apart.send(action[envs.column_ids(ids, AGENTS)], ids)
        first, ids = apart.recv()
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[[6, 7, 8, 0, 1, 2]]), first, row)
        apart.recv()
    with pytest.raises(ValueError, match="env_ids"):
        apart.send(np.zeros(4, np.int32), np.array([1]))
    with pytest.raises(ValueError, match="environment 2"):
        apart.send(np.array([0, 0, 0, 0, 0, 9]), np.array([0, 2]))


def test_batches_come_back_in_the_order_of_environments() -> None:
    class Halves:
        def __init__(self) -> None:
            self.left = [np.array([1], np.int32), np.array([0], np.int32)]

        def raw_recv(self) -> tuple[envs.RawStep, np.ndarray]:
            ids = self.left.pop(0)
            rows = envs.column_ids(ids, AGENTS)
            return envs.RawStep(rows * 10, rows, rows < 0, rows < 0, rows < 0), ids

    raw = checked.receive_all(Halves(), np.arange(2, dtype=np.int32))
    assert raw.reward.tolist() == [0, 1, 2, 3, 4, 5]


def account() -> episodes.Episodes:
    return episodes.Episodes(team().spec, 2)


def rows_of(step_types: list[list[int]]) -> types.TimeStep:
    kinds: Any = np.array(step_types, np.int8)
    zeros: Any = np.zeros(kinds.shape, np.float32)
    return types.TimeStep(kinds, zeros, zeros, (), ())


FIRST, MID, LAST = types.FIRST, types.MID, types.LAST


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([[FIRST] * 3, [MID, LAST, LAST], [FIRST] * 3], id="reset while one is left"),
        pytest.param([[FIRST] * 3, [LAST] * 3, [LAST] * 3], id="no reset though all have ended"),
        pytest.param([[FIRST] * 3, [MID, LAST, MID], [MID] * 3], id="back from the end"),
        pytest.param([[FIRST] * 3, [LAST] * 3, [FIRST, FIRST, MID]], id="some are reset"),
    ],
)
def test_resets_out_of_place_are_faults(wrong: list[list[int]]) -> None:
    with pytest.raises(errors.EnvironmentFault, match="environment 1"):
        account().add(rows_of(wrong), np.zeros((len(wrong), 3), bool), np.array([1], np.int32))


def test_a_fault_names_the_environment_not_the_column() -> None:
    rows = rows_of([[FIRST] * 3])
    rows.reward[0, 1] = np.nan
    with pytest.raises(errors.EnvironmentFault, match="environment 1,"):
        account().add(rows, np.zeros((1, 3), bool), np.array([1], np.int32))


def test_flattening_keeps_what_is_privileged_apart() -> None:
    flat = team(flatten="true")
    assert {name: leaf.shape for name, leaf in flat.spec.observation.items()} == {"observation": (4,), "all": (2,)}
    _, timestep = flat.reset(KEY)
    assert timestep.observation["observation"][1].tolist()[:3] == [0.0, 1.0, 0.0]
    assert timestep.observation["all"].tolist() == team().reset(KEY)[1].observation["all"].tolist()


def test_the_check_of_environments_knows_teams() -> None:
    report = check.check(lambda: as_host.AsHost(team(), 2, KEY), 20)
    assert [fact for fact in report.facts if fact.broken] == []
    assert report.episodes == 4


def test_an_agent_that_was_cut_short_is_gone_though_it_is_told_once() -> None:
    """Its later rows are LAST ones with discount 0, as on the host, whatever the environment says of it then."""

    def reset(key: Any) -> Any:
        return jnp.int32(0), jnp.zeros((2, 1))

    def step(key: Any, state: Any, action: Any) -> envs.Transition:
        ends = jnp.array([state == 0, False]), jnp.array([False, state == 2])
        return envs.Transition(state + 1, jnp.zeros((2, 1)), 1.0, terminated=ends[1], truncated=ends[0])

    spec = types.EnvironmentSpec("mine:pair", (), types.DiscreteSpace(2), "classic", num_agents=2)
    environment = wrappers.auto_reset(envs.BareEnvironment(reset, step, spec))
    state, _ = environment.reset(KEY)
    rows = []
    for _ in range(5):
        state, row = environment.step(state, jnp.zeros(2, jnp.int32))
        rows.append((row.step_type.tolist(), row.discount.tolist(), row.info.episode_length.tolist()))
    assert rows == [
        ([LAST, MID], [1, 1], [1, 1]),
        ([LAST, MID], [0, 1], [1, 2]),
        ([LAST, LAST], [0, 0], [1, 3]),
        ([FIRST, FIRST], [1, 1], [0, 0]),
        ([LAST, MID], [1, 1], [1, 1]),
    ]


def test_in_a_short_episode_every_agent_of_a_team_takes_a_step() -> None:
    rows = played(envs.columns(team(length="2")), 1, 3)
    assert [row.step_type.tolist() for row in rows] == [[FIRST] * 3, [MID, LAST, LAST], [LAST] * 3, [FIRST] * 3]
    assert rows[1].reward.tolist() == [1.0] * 3 and rows[2].reward.tolist() == [1.0, 0.5, 0.5]
    assert [row.observation["all"][0, 0] for row in rows] == [3, 1, 0, 3]
