"""Facts of the suites that the test environment lacks, where they are installed; their errors anywhere."""

import importlib
import importlib.util
import pathlib
from typing import Any

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import check
from jaxrl_dist.envs.host import as_host
from jaxrl_dist.settings import user_code

PACKAGES = {
    "ale": "ale_py",
    "craftax": "craftax",
    "jumanji": "jumanji",
    "navix": "navix",
    "pgx": "pgx",
    "playground": "mujoco_playground",
    "xminigrid": "xminigrid",
}
MODULES = {suite: importlib.import_module(f"jaxrl_dist.envs.suites.{suite}") for suite in PACKAGES}
ON_DEVICE = [f"{suite}:{name}" for suite, module in MODULES.items() for name in module.SUITE.environments]
# Of each suite one that compiles quickly; its parameters end episodes by the limit where play would not end them soon.
PLAYED: dict[str, dict[str, str]] = {
    "ale:pong": {"max_episode_steps": "20"},
    "craftax:Craftax-Classic-Symbolic-v1": {"max_timesteps": "20"},
    "jumanji:Snake-v1": {"time_limit": "20"},
    "jumanji:Tetris-v0": {"time_limit": "20"},
    "navix:Navix-Empty-5x5-v0": {"max_steps": "20"},
    "navix:Navix-DoorKey-5x5-v0": {"max_steps": "20", "observation": "symbolic_first_person"},
    "pgx:tic_tac_toe": {},
    "pgx:kuhn_poker": {},
    "jumanji:RobotWarehouse-v0": {"time_limit": "20"},
    "jumanji:Minesweeper-v0": {},
    "pgx:2048": {"max_steps": "20"},
    "playground:CartpoleBalance": {"episode_length": "20"},
    "xminigrid:MiniGrid-DoorKey-5x5": {"max_steps": "20"},
}


def need(name: str) -> None:
    suite = name.partition(":")[0]
    if importlib.util.find_spec(PACKAGES[suite]) is None:
        pytest.skip(f"{PACKAGES[suite]} is not installed: it is the extra {suite}")


def made(name: str, **params: str) -> Any:
    need(name)
    return envs.make(name, params)


@pytest.mark.parametrize("name", PLAYED)
def test_environments_keep_the_rules(name: str) -> None:
    environment = made(name, **PLAYED[name])

    def make() -> envs.HostEnvironment:
        if isinstance(environment, envs.HostTask):
            return environment.make(np.arange(4, dtype=np.uint32), 4, 60.0)
        return as_host.AsHost(environment, 4, jax.random.key(0))

    report = check.check(make, 60)
    assert [fact for fact in report.facts if fact.broken] == [] and report.episodes >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_DEVICE)
def test_every_environment_can_be_traced(name: str, tmp_path: pathlib.Path) -> None:
    environment = made(name, **({"rulesets": rulesets(tmp_path)} if "XLand" in name else {}))
    state, timestep = jax.eval_shape(environment.reset, jax.random.key(0))
    stepped = jax.eval_shape(environment.step, state, environment.spec.action.struct)
    assert jax.tree.structure((state, timestep)) == jax.tree.structure(stepped)
    observation, spec = timestep.observation, environment.spec
    assert jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), observation) == spec.observation != ()
    if spec.mask:
        mask = types.named_leaves(spec.observation)[spec.mask]
        assert mask.size == np.sum(spec.action.num_values)


def test_environments_are_those_that_the_suites_have() -> None:
    for suite in ("navix", "pgx", "playground", "jumanji", "xminigrid"):
        need(suite)
    import jumanji
    import mujoco_playground
    import navix
    import pgx
    import xminigrid

    assert {*MODULES["xminigrid"].SUITE.environments} == set(xminigrid.registered_environments())
    doors = {name for name in navix.registry() if "GoToDoor" in name}
    assert {*MODULES["navix"].SUITE.environments, *doors} == set(navix.registry())
    assert {*MODULES["pgx"].SUITE.environments, "sparrow_mahjong"} == set(pgx.available_envs())
    assert MODULES["playground"].SUITE.environments == mujoco_playground.dm_control_suite.ALL_ENVS
    others = {"Connector-v3", "JobShop-v0", "LevelBasedForaging-v0", "MMST-v0", "MultiCVRP-v0", "Sokoban-v0"}
    all_of_jumanji = set(jumanji.registered_environments())
    assert {*MODULES["jumanji"].SUITE.environments, *others, "SearchAndRescue-v0"} == all_of_jumanji


def test_an_illegal_move_loses_and_the_mask_says_which_are() -> None:
    environment = made("pgx:tic_tac_toe")
    state, timestep = environment.reset(jax.random.key(0))
    step, mask = jax.jit(environment.step), timestep.observation["action_mask"]
    np.testing.assert_array_equal(mask, state.environment.game.legal_action_mask)
    legal = jnp.argmax(mask)
    state, timestep = step(state, legal)
    assert not timestep.observation["action_mask"][legal] and timestep.step_type == types.MID
    state, timestep = step(state, legal)
    assert (timestep.reward, timestep.discount, timestep.step_type) == (-1, 0, types.LAST)


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("jumanji:Cleaner-v0", types.MultiDiscreteSpace((4, 4, 4))),
        ("jumanji:Minesweeper-v0", types.DiscreteSpace(100)),
        ("jumanji:Game2048-v1", types.DiscreteSpace(4)),
    ],
)
def test_masks_of_jumanji_are_of_joint_choices_or_of_each_number(name: str, space: Any) -> None:
    spec = made(name).spec
    assert (spec.action, spec.mask) == (space, "action_mask")


def rulesets(folder: pathlib.Path) -> str:
    """Writes a file of two rulesets, whose goals are to hold a red or a green ball; no rule applies."""
    from xminigrid.benchmarks import save_bz2_pickle
    from xminigrid.core.constants import TILES_REGISTRY, Colors, Tiles
    from xminigrid.core.goals import AgentHoldGoal
    from xminigrid.core.rules import EmptyRule

    balls = [TILES_REGISTRY[Tiles.BALL, colour] for colour in (Colors.RED, Colors.GREEN)]
    goals = jnp.stack([AgentHoldGoal(tile=ball).encode() for ball in balls])
    rules = jnp.broadcast_to(EmptyRule().encode(), (2, 1, *EmptyRule().encode().shape))
    tiles = jnp.broadcast_to(jnp.stack(balls), (2, 2, 2))
    path = folder / "rulesets"
    content = {"goals": goals, "rules": rules, "init_tiles": tiles, "num_rules": jnp.zeros(2, jnp.int32)}
    save_bz2_pickle(content, str(path))
    return str(path)


def test_every_episode_of_xland_draws_its_rules(tmp_path: pathlib.Path) -> None:
    need("xminigrid:")
    with user_code.trusting({rulesets(tmp_path)}):
        environment = made("xminigrid:XLand-MiniGrid-R1-9x9", rulesets=rulesets(tmp_path), max_steps="3")
    assert environment.spec.time_limit == 3 and environment.spec.categories == {"cells": (13, 12)}

    def goal(key: Any) -> Any:
        return environment.reset(key)[0].environment.state.goal_encoding

    goals = np.asarray(jax.vmap(goal)(jax.random.split(jax.random.key(0), 32)))
    assert len(np.unique(goals, axis=0)) == 2
    state, _ = environment.reset(jax.random.key(0))
    seen = []
    for _ in range(12):
        state, _ = jax.jit(environment.step)(state, 0)
        seen.append(np.asarray(state.environment.state.goal_encoding))
    assert len(np.unique(seen, axis=0)) == 2


def test_cells_of_navix_are_one_kind_one_colour_and_one_state() -> None:
    environment = made("navix:Navix-DoorKey-5x5-v0")
    keys = jax.random.split(jax.random.key(0), 8)

    def body(state: Any, actions: jax.Array) -> Any:
        state, timestep = jax.vmap(environment.step)(state, actions)
        return state, timestep.observation

    actions = jax.random.randint(jax.random.key(1), (40, 8), 0, environment.spec.action.num_values)
    planes = jax.jit(lambda: jax.lax.scan(body, jax.vmap(environment.reset)(keys)[0], actions)[1])()
    parts = (planes[..., :11], planes[..., 11:17], planes[..., 17:])
    assert all((part.sum(-1) == 1).all() for part in parts)
    # A key, a locked door, the goal and the agent in every picture, until the key is taken.
    assert planes[0, 0, ..., 10].sum() == 1 and planes[0, 0, ..., 8].sum() == 1 and planes[0, 0, ..., 4].sum() == 1


def test_seeds_alone_decide_what_ale_gives() -> None:
    task = made("ale:breakout")
    columns = [task.make(np.asarray(seeds, np.uint32), 2, 60.0) for seeds in ((1, 2), (1, 2), (1, 3))]
    rows = [[environment.reset().observation] for environment in columns]
    for action in np.random.default_rng(0).integers(0, 4, (40, 2), np.int32):
        for column, environment in zip(rows, columns, strict=True):
            column.append(environment.step(action).observation)
    same, again, other = (np.stack(column) for column in rows)
    np.testing.assert_array_equal(same, again)
    np.testing.assert_array_equal(same[:, 0], other[:, 0])
    assert same.shape == (41, 2, 84, 84, 1) and (same[:, 1] != other[:, 1]).any()


@pytest.mark.parametrize("protocol", ["deepmind", "machado"])
def test_lives_of_breakout_under_the_protocols_of_ale(protocol: str) -> None:
    task = made("ale:breakout", protocol=protocol, repeat_action_probability="0", noop_max="1")
    environment = task.make(np.ones(1, np.uint32), 1, 60.0)
    environment.reset()
    rows = [environment.step(np.array([1 if t % 9 == 0 else 3], np.int32)) for t in range(150)]
    lost = [row for row in rows if row.discount[0] == 0 and not row.info.game_over[0]]
    assert task.spec.action.num_values == {"deepmind": 4, "machado": 18}[protocol]
    assert len(lost) >= 2 if protocol == "deepmind" else not lost


def test_ale_steps_all_environments_together() -> None:
    task = made("ale:pong")
    assert task.steps_together
    with pytest.raises(ValueError, match=r"\b4 environments"):
        task.make(np.arange(4, dtype=np.uint32), 2, 60.0)


@pytest.mark.parametrize("suite", PACKAGES)
def test_a_missing_package_names_the_extra(suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import, package = importlib.import_module, PACKAGES[suite]

    def without(name: str, parent: str | None = None) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real_import(name, parent)

    monkeypatch.setattr("importlib.import_module", without)
    name = next(iter(MODULES[suite].SUITE.environments), "pong")
    with conftest.refused(f"--env={suite}:{name} ", package, f'pip install "{suite}'):
        envs.make(f"{suite}:{name}")


@pytest.mark.parametrize(
    ("name", "params", "nearest"),
    [
        ("craftax:Craftax-Symbolic-v2", {}, " Craftax-Symbolic-v1?"),
        ("navix:Navix-Empty-5x5", {}, " Navix-Empty-5x5-v0?"),
        ("pgx:connect_for", {}, " connect_four?"),
        ("jumanji:Snake", {}, " Snake-v1?"),
        ("xminigrid:MiniGrid-Empty5x5", {}, " MiniGrid-Empty-5x5?"),
        ("playground:CheetaRun", {}, " CheetahRun?"),
    ],
)
def test_a_wrong_name_needs_no_package(name: str, params: dict[str, str], nearest: str) -> None:
    with conftest.refused(f"--env={name}: ", nearest):
        envs.make(name, params)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("ale:Pong", {}, "did you mean pong"),
        ("ale:pong", {"protocol": "deepmid"}, "did you mean deepmind"),
        ("ale:pong", {"noop_max": "0"}, "at least 1"),
        ("ale:pong", {"num_threads": "9999"}, "0 to 1024"),
        ("ale:pong", {"repeat_action_probability": "2"}, "a probability"),
        ("ale:pong", {"stack_num": "4"}, "takes"),
        ("craftax:Craftax-Symbolic-v1", {"max_timesteps": "0"}, "at least 1"),
        ("craftax:Craftax-Symbolic-v1", {"max_timestep": "9"}, "did you mean max_timesteps"),
        ("navix:Navix-Empty-5x5-v0", {"observation": "rgb"}, "expected one of symbolic, symbolic_first_person"),
        ("navix:Navix-Empty-5x5-v0", {"max_steps": "0"}, "at least 1"),
        ("pgx:tic_tac_toe", {"max_steps": "-1"}, "at least 0"),
        ("jumanji:Snake-v1", {"time_limit": "0"}, "at least 1"),
        ("jumanji:Snake-v1", {"rows": "9"}, "did you mean num_rows"),
        ("playground:CartpoleBalance", {"impl": "c"}, "expected one of jax, warp"),
        ("playground:CartpoleBalance", {"episode_length": "0"}, "at least 1"),
        ("playground:CartpoleBalance", {"vision": "true"}, "takes"),
    ],
)
def test_bad_input_is_refused_in_one_line(name: str, params: dict[str, str], message: str) -> None:
    need(name)
    with pytest.raises(errors.UsageError) as error:
        envs.make(name, params)
    assert message in str(error.value) and "\n" not in str(error.value)
