"""JaxMARL's tasks as columns, where it is installed; its older versions are refused anywhere."""

import importlib.util
import sys
import types as modules
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist import envs, types

KEY = jax.random.key(4)


def made(name: str, **params: str) -> envs.Environment:
    if importlib.util.find_spec("jaxmarl") is None:
        pytest.skip("jaxmarl is not installed: it is the extra jaxmarl")
    environment = envs.make(f"jaxmarl:{name}", params)
    assert isinstance(environment, envs.Environment)
    return environment


def played(environment: envs.Environment, steps: int, actions: Any) -> list[types.TimeStep]:
    columns = envs.columns(environment)
    state, timestep = columns.reset(KEY, jnp.arange(2))
    step, rows = jax.jit(columns.step), [jax.device_get(timestep)]
    for t in range(steps):
        state, timestep = step(state, jnp.asarray(actions(t, rows[-1]), jnp.int32))
        rows.append(jax.device_get(timestep))
    return rows


def test_an_older_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old: Any = modules.ModuleType("jaxmarl")
    old.__version__ = "0.0.9"
    monkeypatch.setitem(sys.modules, "jaxmarl", old)
    with conftest.refused("--env=jaxmarl:", "0.0.9"):
        envs.make("jaxmarl:MPE_simple_spread_v3")


def test_particles_are_columns_with_rewards_of_their_own() -> None:
    environment = made("MPE_simple_spread_v3", max_steps="4")
    rng = np.random.default_rng(0)
    rows = played(environment, 6, lambda t, row: rng.integers(0, 5, 6))
    import jaxmarl

    library: Any = jaxmarl.make("MPE_simple_spread_v3", max_steps=4)
    key = jax.random.fold_in(jax.random.fold_in(KEY, 1), 0)
    seen, state = library.reset(key)
    second = rows[0].observation
    for a, name in enumerate(library.agents):
        np.testing.assert_allclose(second["own"][3 + a], seen[name], rtol=1e-6)
    np.testing.assert_allclose(second["all"][4], np.concatenate([seen[name] for name in library.agents]), rtol=1e-6)
    # The library counts the steps before the last one.
    assert [row.step_type[0] for row in rows[3:7]] == [types.MID, types.MID, types.LAST, types.FIRST]
    assert rows[5].discount.tolist() == [1.0] * 6 and environment.spec.time_limit == 5
    rng = np.random.default_rng(0)
    for t in range(5):
        action = rng.integers(0, 5, 6)[3:]
        _, state, reward, _, _ = library.step_env(key, state, dict(zip(library.agents, action, strict=True)))
        np.testing.assert_allclose(rows[t + 1].reward[3:], [reward[name] for name in library.agents], rtol=1e-5)
    assert len(set(np.round(rows[5].info.episode_return[:3], 4).tolist())) >= 1


def test_shorter_observations_are_filled_up() -> None:
    spec = made("MPE_simple_tag_v3").spec
    assert spec.num_agents == 4 and spec.observation["own"].shape == (16,) and spec.observation["all"].shape == (64,)
    row = played(made("MPE_simple_tag_v3"), 0, None)[0]
    assert (row.observation["own"][3, 14:] == 0).all() and (row.observation["own"][0] != 0).sum() > 10


def test_a_limit_of_units_is_that_of_the_spec() -> None:
    environment = made("HeuristicEnemySMAX", map="3m", max_steps="3")
    rows = played(environment, 5, lambda t, row: [np.flatnonzero(mask)[0] for mask in row.observation["action_mask"]])
    kinds = [int(row.step_type[0]) for row in rows]
    assert kinds[: environment.spec.time_limit + 2] == [types.FIRST, *[types.MID] * 3, types.LAST, types.FIRST]
    assert rows[environment.spec.time_limit].discount.tolist() == [1.0] * len(rows[0].discount)


def test_units_that_die_earn_their_team_s_reward_to_its_end() -> None:
    environment = made("HeuristicEnemySMAX", map="3m", max_steps="40")
    rng = np.random.default_rng(1)

    def legal(t: int, row: types.TimeStep) -> Any:
        return [rng.choice(np.flatnonzero(mask)) for mask in row.observation["action_mask"]]

    rows = played(environment, 40, legal)
    kinds, rewards, discounts = (
        np.stack([getattr(row, name) for row in rows]).reshape(-1, 2, 3) for name in ("step_type", "reward", "discount")
    )
    legal_moves = np.stack([row.observation["action_mask"] for row in rows]).reshape(*kinds.shape, -1)
    is_dead = legal_moves.sum(-1) == 1
    assert legal_moves[is_dead][:, 4].all()
    for of_team in (kinds, rewards, discounts):
        assert (of_team == of_team[:, :, :1]).all()
    # Some team was paid for what it did without one of its units, whose value goes on until then.
    before_the_end = is_dead.any(-1) & ~is_dead.all(-1) & (kinds == types.MID).all(-1)
    assert (before_the_end[:-1] & (rewards[1:, :, 0] > 0)).any() and (discounts[before_the_end] == 1).all()
    assert ((kinds == types.FIRST).all(-1)[1:] == (kinds == types.LAST).all(-1)[:-1]).all()


def test_cooks_see_pictures_and_may_be_paid_for_parts() -> None:
    environment = made("overcooked", max_steps="5")
    assert environment.spec.family == "minatar" and environment.spec.privileged == ""
    rows = played(environment, 6, lambda t, row: [4] * 4)
    # No bytes, which a torso takes for pixels: of flags divided by 255 nothing was learned.
    assert rows[0].observation["own"].dtype == np.int16 and rows[0].observation["own"].max() >= 1
    assert [int(row.step_type[0]) for row in rows[4:]] == [types.MID, types.LAST, types.FIRST]
    assert rows[5].discount.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("name", "params", "named"),
    [
        ("overcooked", {"layout": "cramped_rom"}, "cramped_room"),
        ("HeuristicEnemySMAX", {"map": "3n"}, "3m"),
        ("MPE_simple_spread_v3", {"local_ratio": "2"}, "--env.params.local_ratio=2"),
        ("MPE_simple_spread_v3", {"num_agents": "0"}, "--env.params.num_agents=0"),
        ("overcooked", {"shaping": "-1"}, "--env.params.shaping=-1"),
    ],
)
def test_wrong_parameters_are_refused(name: str, params: dict[str, str], named: str) -> None:
    with conftest.refused(named):
        made(name, **params)
