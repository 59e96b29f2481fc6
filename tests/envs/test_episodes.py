"""Rows of CPU environments: what makes timesteps of them, what follows their episodes, and what refuses them."""

from typing import Any

import gymnasium
import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs.host import episodes

STRUCT = jax.ShapeDtypeStruct((2,), np.dtype(np.float32))
SPEC = types.EnvironmentSpec("fake:rows", STRUCT, types.DiscreteSpace(3), "classic", (-1.0, 1.0))
BOX = SPEC._replace(action=types.BoxSpace((2,), np.float32([-1, -2]), np.float32([1, 2])))
WIDTH = 3
IDS = np.arange(WIDTH, dtype=np.int32)


def played(rng: np.random.Generator, length: int) -> envs.RawStep:
    """Returns rows [T, 3] that begin with a reset, with garbage where the library may leave it."""
    is_last = rng.random((length, WIDTH)) < 0.3
    is_first = np.concatenate([np.ones((1, WIDTH), bool), is_last[:-1]])
    was_lost = ~is_first & is_last & (rng.random(is_last.shape) < 0.3)
    is_last &= ~is_first
    for t in range(1, length):
        # A row that resets does not end, so the one behind it is an ordinary one.
        is_first[t] &= is_last[t - 1]
    reward = np.where(is_first, np.nan, rng.uniform(-1, 1, is_last.shape))
    discount = ~is_last | (rng.random(is_last.shape) < 0.5)
    return envs.RawStep(rng.normal(size=(length, WIDTH, 2)), reward, is_first | was_lost, is_last, discount)


def rows_of(raw: envs.RawStep, part: Any) -> tuple[types.TimeStep, np.ndarray]:
    one = jax.tree.map(lambda x: x[part], raw)
    return episodes.timestep(one), episodes.lost(one)


@hypothesis.given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12))
def test_many_rows_at_once_are_those_one_by_one(seed: int, length: int, first: int) -> None:
    raw = played(np.random.default_rng(seed), length)
    at_once, by_row = (episodes.Episodes(SPEC, WIDTH) for _ in range(2))
    cuts = [slice(0, first), slice(first, length)] if first < length else [slice(0, length)]
    found = [at_once.add(*rows_of(raw, part), IDS) for part in cuts]
    expected = [by_row.add(*rows_of(raw, slice(t, t + 1)), IDS) for t in range(length)]
    for some, one in zip(zip(*found, strict=True), zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(some), np.concatenate(one))
    # The slow reference: numbers of each environment since its last reset, 0 where it was lost.
    returns, lengths = np.concatenate([r for r, _ in expected]), np.concatenate([x for _, x in expected])
    timestep, lost = rows_of(raw, slice(None))
    for env in range(WIDTH):
        total, count = np.float32(0), 0
        for t in range(length):
            begins = timestep.step_type[t, env] == types.FIRST
            total, count = (np.float32(0), 0) if begins else (total + timestep.reward[t, env], count + 1)
            assert (returns[t, env], lengths[t, env]) == ((0, 0) if lost[t, env] else (total, count))
    assert (at_once.steps == length).all() and (at_once.ended == raw.is_last[-1]).all()


@hypothesis.settings(deadline=None)
@hypothesis.given(st.integers(0, 10_000))
def test_a_timestep_is_the_same_in_a_program_and_back(seed: int) -> None:
    raw = played(np.random.default_rng(seed), 4)
    timestep = episodes.timestep(raw)
    kinds = [x.dtype for x in jax.tree.leaves(timestep)]
    assert kinds == [np.int8, np.float32, np.float32, np.float32]
    assert (timestep.reward[timestep.step_type == types.FIRST] == 0).all()
    assert (timestep.discount[raw.is_first] == 1).all()
    again = episodes.timestep(episodes.raw_step(timestep))
    for found in (jax.jit(episodes.timestep)(raw), again):
        jax.tree.map(np.testing.assert_array_equal, found, timestep)


def test_a_reset_out_of_place_in_an_unroll_names_the_environment() -> None:
    raw = played(np.random.default_rng(0), 6)
    for t, wrong in ((0, False), (3, ~raw.is_first[3, 1])):
        changed = raw._replace(is_first=raw.is_first.copy(), is_last=raw.is_last.copy())
        changed.is_first[t, 1], changed.is_last[t, 1] = wrong, False
        with pytest.raises(errors.EnvironmentFault, match=r"environment 1\b.*reset"):
            episodes.Episodes(SPEC, WIDTH).add(*rows_of(changed, slice(None)), IDS)


@pytest.mark.parametrize("was_lost", [False, True])
def test_an_episode_beyond_the_time_limit_names_the_environment(was_lost: bool) -> None:
    is_first = np.zeros((6, WIDTH), bool)
    is_first[0] = True
    is_last = np.zeros_like(is_first)
    # Of length 3 in environment 0 and 2, of 5 in environment 1.
    is_last[3, ::2] = is_first[4, ::2] = is_last[5, 1] = True
    is_first[3, 2] |= was_lost
    zeros = np.zeros((6, WIDTH, 2), np.float32)
    raw = envs.RawStep(zeros, zeros[..., 0], is_first, is_last, ~is_last)
    for limit in (0, 5):
        episodes.Episodes(SPEC._replace(time_limit=limit), WIDTH).add(*rows_of(raw, slice(None)), IDS)
    followed = episodes.Episodes(SPEC._replace(time_limit=3), WIDTH)
    followed.add(*rows_of(raw, slice(0, 3)), IDS)
    with pytest.raises(errors.EnvironmentFault, match=r"environment 1 .* time limit of 3 steps"):
        followed.add(*rows_of(raw, slice(3, 4)), IDS)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("observation", np.inf, "is not finite"), ("reward", np.nan, "is nan"), ("reward", 1.5, "is 1.5")],
)
def test_a_bad_number_in_an_unroll_names_field_environment_and_step(field: str, value: float, said: str) -> None:
    raw = played(np.random.default_rng(1), 8)
    followed = episodes.Episodes(SPEC, WIDTH)
    followed.add(*rows_of(raw, slice(0, 3)), IDS)
    t, env = next((t, env) for t in range(4, 8) for env in range(WIDTH) if not raw.is_first[t, env])
    getattr(raw, field)[t, env] = value
    with pytest.raises(errors.EnvironmentFault, match=rf"the {field} .* environment {env}, at its step {t + 1} {said}"):
        followed.add(*rows_of(raw, slice(3, 8)), IDS)


@pytest.mark.parametrize(("spec", "wrong"), [(SPEC, [3, -1]), (BOX, [np.nan, np.inf])])
def test_no_program_sends_an_action_that_is_none(spec: types.EnvironmentSpec, wrong: list[float]) -> None:
    shape = (4, WIDTH, *spec.action.struct.shape)
    actions = np.zeros(shape, spec.action.struct.dtype)
    if isinstance(spec.action, types.BoxSpace):
        actions[:] = 5
    episodes.check_actions(spec, actions)
    safe = jax.jit(lambda action: episodes.safe_action(spec, action))
    np.testing.assert_array_equal(safe(actions[0]), episodes.check_action(spec, actions[0]))
    for value in wrong:
        actions[2, 1] = value
        assert (np.asarray(safe(actions[2]))[1] == 0).all()
        with pytest.raises(ValueError, match=r"environment 1\b"):
            episodes.check_actions(spec, actions)


def test_an_action_of_another_kind_is_refused_as_the_program_is_made() -> None:
    with pytest.raises(ValueError, match="integers"):
        episodes.safe_action(SPEC, jax.numpy.zeros(WIDTH))
    with pytest.raises(ValueError, match="shape"):
        episodes.safe_action(BOX, jax.numpy.zeros(WIDTH))


def _seen(*shape: int, dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("observation", "action", "time_limit", "wanted"),
    [
        (_seen(4), types.DiscreteSpace(2), 500, "classic"),
        (_seen(4), types.DiscreteSpace(2), 501, "long"),
        (_seen(4), types.DiscreteSpace(2), 0, "classic"),
        ({"a": _seen(4), "b": _seen(dtype=np.int32)}, types.MultiDiscreteSpace((2, 3)), 1000, "long"),
        ({"a": _seen(4), "b": _seen(5, 5)}, types.DiscreteSpace(2), 1000, "classic"),
        (_seen(84, 84, 3, dtype=np.uint8), types.DiscreteSpace(2), 27_000, "atari"),
        (_seen(35, 84, 3, dtype=np.uint8), types.DiscreteSpace(2), 27_000, "grid"),
        (_seen(36, 84, 3, dtype=np.uint8), types.DiscreteSpace(2), 27_000, "atari"),
        (_seen(36, 84, 3), types.DiscreteSpace(2), 27_000, "classic"),
        (_seen(84, 84, 3), types.DiscreteSpace(2), 100, "classic"),
        ({"image": _seen(7, 7, 3, dtype=np.int16), "way": _seen(4)}, types.DiscreteSpace(7), 100, "grid"),
        (_seen(7, 7, 3, dtype=np.int16), types.BoxSpace((2,), -1.0, 1.0), 100, "continuous"),
        (_seen(4), types.BoxSpace((2,), -1.0, 1.0), 1000, "continuous"),
    ],
)
def test_a_family_follows_from_what_is_seen_done_and_how_long(
    observation: Any, action: types.ActionSpace, time_limit: int, wanted: str
) -> None:
    assert episodes.family(observation, action, time_limit) == wanted


@pytest.mark.parametrize(
    ("space", "is_small"),
    [
        (gymnasium.spaces.Box(0, 1, (5, 5, 2), np.uint8), True),
        (gymnasium.spaces.Box(0, 254, (3,), np.uint8), True),
        (gymnasium.spaces.Box(0, np.array([4, 255], np.uint8), (2,), np.uint8), False),
        (gymnasium.spaces.Box(0, 255, (84, 84, 1), np.uint8), False),
        (gymnasium.spaces.Box(0, 1, (5,), np.int32), False),
        (gymnasium.spaces.Box(0, 1, (5,), np.float32), False),
        (gymnasium.spaces.MultiBinary(3), False),
        (gymnasium.spaces.MultiDiscrete([3, 3], np.uint8), False),
    ],
)
def test_bytes_that_end_below_255_are_small(space: Any, is_small: bool) -> None:
    assert episodes.is_of_small_bytes(space) is is_small


@pytest.mark.parametrize(
    ("space", "wanted"),
    [
        (gymnasium.spaces.Box(0, 255, (3, 84, 80), np.uint8), (84, 80, 3)),
        (gymnasium.spaces.Box(0, 255, (84, 80), np.uint8), (84, 80, 1)),
        (gymnasium.spaces.Box(0, 255, (35, 84), np.uint8), ()),
        (gymnasium.spaces.Box(0, 255, (36, 84), np.uint8), (36, 84, 1)),
        (gymnasium.spaces.Box(0, 255, (3, 4, 4), np.uint8), (4, 4, 3)),
        (gymnasium.spaces.Box(0, 255, (4, 4, 4), np.uint8), ()),
        (gymnasium.spaces.Box(0, 4, (84, 80), np.uint8), ()),
        (gymnasium.spaces.Box(0, 255, (84, 80, 3), np.uint8), ()),
        (gymnasium.spaces.Box(0, 1, (84, 80), np.float32), ()),
        (gymnasium.spaces.MultiDiscrete([3, 3], np.uint8), ()),
        (gymnasium.spaces.Discrete(3), ()),
    ],
)
def test_pictures_in_bytes_are_turned(space: Any, wanted: tuple[int, ...]) -> None:
    assert episodes.turned(space) == wanted
    x = np.arange(2 * np.prod(space.shape, dtype=int)).reshape(2, *space.shape)
    found = episodes.turn(space, x)
    if wanted:
        np.testing.assert_array_equal(found.ravel(), np.einsum("n...hw->nhw...", x).ravel())
    assert found.shape == (2, *(wanted or space.shape))


def test_bounds_that_no_action_comes_near_are_none() -> None:
    space = gymnasium.spaces.Box(np.float32([-1e10, -2, -np.inf]), np.float32([3.4e38, 9e8, np.inf]))
    found = episodes.actions(space, "fake").space
    assert isinstance(found, types.BoxSpace)
    np.testing.assert_array_equal(found.low, np.float32([-np.inf, -2, -np.inf]))
    np.testing.assert_array_equal(found.high, np.float32([np.inf, 9e8, np.inf]))


@pytest.mark.parametrize(
    ("low", "high", "dtype", "expected"),
    [
        (0, 1, np.int64, False),
        (0, 2, np.int64, True),
        (-1, 1, np.int32, True),
        (0, 9, np.uint32, True),
        (0, 9, np.int16, False),
        (0, 255, np.uint8, False),
        (0, 9, np.float64, False),
    ],
)
def test_integers_but_flags_and_small_ones_are_seen_as_reals(low: Any, high: Any, dtype: Any, expected: bool) -> None:
    """A mask of actions stays one."""
    assert episodes.is_of_integers(gymnasium.spaces.Box(low, high, (2,), dtype)) is expected
    assert not episodes.is_of_integers(gymnasium.spaces.MultiDiscrete([3, 3]))


def test_the_reward_of_a_reset_is_right_though_no_other_may_be_0() -> None:
    raw = played(np.random.default_rng(0), 6)
    raw = raw._replace(reward=np.full_like(raw.reward, -1.5))
    spec = SPEC._replace(reward_range=(-2.0, -1.0))
    rows, lost = rows_of(raw, slice(None))
    assert (rows.reward == 0).any() and not envs.out_of_range(spec, rows)["reward"].any()
    episodes.Episodes(spec, WIDTH).add(rows, lost, IDS)


@pytest.mark.parametrize(("field", "value"), [("reward", np.inf), ("reward", -np.inf), ("discount", 1.5)])
def test_numbers_are_finite_and_discounts_shares_though_the_range_has_no_end(field: str, value: float) -> None:
    spec, raw = SPEC._replace(reward_range=(-np.inf, np.inf)), played(np.random.default_rng(0), 1)
    rows, lost = rows_of(raw, slice(None))
    getattr(rows, field)[0, 1] = value
    assert envs.out_of_range(spec, rows)[field].tolist() == [[False, True, False]]
    with pytest.raises(errors.EnvironmentFault, match=f"the {field} .* environment 1,"):
        episodes.Episodes(spec, WIDTH).add(rows, lost, IDS)


def test_seeds_have_31_bits_and_differ_by_all_that_they_are_for() -> None:
    found = episodes.seeds(3, "training", 0, 5, 200)
    assert found.dtype == np.uint32 and found.max() < 2**31 and found.max() > 2**30
    np.testing.assert_array_equal(episodes.seeds(3, "training", 0, 7, 2), found[2:4])
    others = (
        episodes.seeds(*given, 5, 200) for given in ((4, "training", 0), (3, "evaluation", 0), (3, "training", 1))
    )
    assert len(set(np.concatenate([found, *others]).tolist())) == 800


def test_a_leaf_is_a_mask_if_it_has_the_name_and_a_number_for_each_choice() -> None:
    three, pair = types.DiscreteSpace(3), types.MultiDiscreteSpace((3, 2))
    for dtype, is_mask in ((np.int8, True), (np.bool_, True), (np.uint8, True), (np.float32, False)):
        observation = {"x": _seen(3, dtype=np.int8), "unit": {"action_mask": _seen(3, dtype=dtype)}}
        assert episodes.mask_of(observation, three) == ("unit/action_mask" if is_mask else "")
        assert episodes.mask_of(observation, pair) == ""
    assert episodes.mask_of({"action_mask": _seen(5, dtype=np.int8)}, pair) == "action_mask"


def test_one_number_of_an_observation_or_of_an_action_makes_it_wrong() -> None:
    rows, lost = rows_of(played(np.random.default_rng(0), 1), slice(None))
    rows.observation[0, 1, 1] = np.nan
    assert envs.out_of_range(SPEC, rows)["observation"].tolist() == [[False, True, False]]
    with pytest.raises(errors.EnvironmentFault, match="the observation .* environment 1,"):
        episodes.Episodes(SPEC, WIDTH).add(rows, lost, IDS)
    pair = SPEC._replace(action=types.MultiDiscreteSpace((3, 2)))
    for spec, wrong in ((BOX, np.nan), (pair, 2), (pair, -1)):
        action = np.zeros((WIDTH, 2), spec.action.struct.dtype)
        action[1, 1] = wrong
        with pytest.raises(ValueError, match=r"environment 1\b"):
            episodes.check_action(spec, action)
        assert not np.asarray(episodes.safe_action(spec, jax.numpy.asarray(action))).any()
